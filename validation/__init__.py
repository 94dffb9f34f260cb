"""How wrong are we, on what: predictions beside measurements and closed forms."""

SEEDS = 5  # simulations of a measured workload, each with its own draw of the host's level
