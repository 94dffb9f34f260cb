"""Several replicas as one service: pools, routers, hand-offs, scaling, failures, on one clock."""
