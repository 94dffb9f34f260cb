"""Speed of one replica and of eight: `make bench`; figures with machine and date in docs/speed.md.

Requests are like the Azure conversation trace (mean 1,155 tokens in, 211 out).
"""

import pytest

from sim import Scenario, simulate
from sim.simulation import workload_requests
from workloads.traces import read_trace, scale_trace_rate

LENGTHS = "azure-conv"
LOADS = {
    "2/s on one replica": (1, 2.0, {}),
    "16/s on eight replicas": (8, 16.0, {}),
    "24/s on one replica, cache and preemption": (
        1,
        24.0,
        {"policies": {"memory": {"name": "paged", "kv_blocks": 7000}}},
    ),
}


def scenario(replicas: int, rate: float, extra: dict, count: int) -> Scenario:
    workload = {
        "arrivals": {"kind": "poisson", "rate_per_s": rate},
        "lengths": LENGTHS,
        "count": count,
    }
    policies = extra or {"policies": {"caching": {"name": "none"}}}
    return Scenario.model_validate(
        {"hardware": {"replicas": replicas}, "workload": workload, **policies}
    )


@pytest.mark.benchmark(group="simulation")
@pytest.mark.parametrize("name", LOADS)
def test_requests_per_second(benchmark, name):
    replicas, rate, extra = LOADS[name]
    case = scenario(replicas, rate, extra, 10_000)
    requests = workload_requests(case)
    simulate(case, requests.head(50))  # compile and load
    result = benchmark(simulate, case, requests)
    tokens = result.requests["emitted_tokens"].sum()
    benchmark.extra_info["output tokens per CPU-s"] = round(tokens / benchmark.stats["mean"])
    assert (result.requests["status"] == "finished").all()


@pytest.mark.benchmark(group="growth")
@pytest.mark.parametrize("count", [1_000, 10_000, 100_000, 1_000_000])
def test_growth_is_linear(benchmark, count):
    case = scenario(8, 16.0, {}, count).changed({"run.step_log": False})
    requests = workload_requests(case)
    simulate(case, requests.head(50))
    benchmark.pedantic(simulate, args=(case, requests), rounds=1)
    benchmark.extra_info["us per request"] = benchmark.stats["mean"] / count * 1e6


@pytest.mark.benchmark(group="fleet")
@pytest.mark.parametrize("router", ["round-robin", "least-outstanding"])
def test_azure_conversations_at_100_per_s_on_64_gpus(benchmark, router, shared):
    trace = read_trace(shared / "traces" / "azure2023_conv.csv.gz")
    rate = len(trace) / float(trace["arrival_s"].max())
    table = scale_trace_rate(trace, 100.0 / rate)
    case = Scenario.model_validate(
        {
            "hardware": {"replicas": 64},
            "policies": {"routing": {"name": router}, "caching": {"name": "none"}},
            "run": {"step_log": False},
        }
    )
    simulate(case, table.head(200))
    result = benchmark(simulate, case, table)
    span = float(table["arrival_s"].max())
    benchmark.extra_info["times real time"] = round(span / benchmark.stats["mean"])
    assert (result.requests["status"] == "finished").all()
