"""Fleets whose queues grow while they run: every request is served once, whoever routes."""

import pytest

from sim import Scenario, simulate

ROUTERS = ("round-robin", "random", "least-outstanding")


@pytest.mark.parametrize("router", ROUTERS)
def test_thousands_of_requests_on_eight_replicas_are_all_served(router):
    scenario = Scenario.model_validate(
        {
            "hardware": {"replicas": 8},
            "workload": {
                "arrivals": {"kind": "poisson", "rate_per_s": 64},
                "lengths": "azure-conv",
                "count": 4000,
            },
            "policies": {"routing": {"name": router}, "caching": {"name": "none"}},
        }
    )
    result = simulate(scenario)
    table = result.requests
    assert (table["status"] == "finished").all()
    assert table["emitted_tokens"].sum() == table["output_tokens"].sum()
    assert table["replica"].between(0, 7).all()
    assert table["replica"].nunique() == 8
