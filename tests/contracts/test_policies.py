"""Every serving policy keeps the contract, with its defaults and with other parameters."""

import pytest

from formats import InputError
from policies.base import registries
from sim.contract import AXES, check_policy

OTHERS = [
    ("batching", {"name": "static", "max_num_seqs": 3}),
    ("batching", {"name": "dynamic", "preferred_batch_size": 4, "max_queue_delay_s": 0.05}),
    ("batching", {"name": "continuous", "max_num_seqs": 8}),
    ("batching", {"name": "chunked-prefill", "max_num_batched_tokens": 48, "max_num_seqs": 16}),
    (
        "batching",
        {
            "name": "chunked-prefill",
            "long_prefill_token_threshold": 24,
            "max_num_partial_prefills": 3,
        },
    ),
    ("batching", {"name": "adaptive", "step_objective_s": 0.01, "interval_s": 0.05}),
    # fewer tokens in a step than sequences: held batches must not run over
    *(
        ("batching", {"name": name, "max_num_batched_tokens": 4})
        for name in ("static", "dynamic", "chunked-prefill", "adaptive", "prefill-only")
    ),
    ("batching", {"name": "dynamic", "max_num_batched_tokens": 1}),
    ("ordering", {"name": "online-first", "deadline_s": 2.0, "margin_s": 1.5}),
    ("ordering", {"name": "online-first", "max_batch_seqs": 2, "batch_tokens": 16}),
    ("memory", {"name": "paged", "block_size": 1}),
    ("memory", {"name": "paged", "block_size": 32, "watermark": 0.1}),
    ("memory", {"name": "paged", "preemption": "swap", "swap_bytes": 2e7}),
    ("memory", {"name": "paged", "preemption": "swap", "victim": "shortest-progress"}),
    ("memory", {"name": "paged", "victim": "lowest-priority"}),
    ("memory", {"name": "contiguous", "max_output_tokens": 200}),
    ("caching", {"name": "prefix-ttl", "ttl_s": 0.2}),
    ("caching", {"name": "tiered", "dram_bytes": 1e7, "ssd_bytes": 5e7, "fetch_beside": False}),
    ("caching", {"name": "tiered", "dram_bytes": 0, "ssd_bytes": 5e7, "fetch_always": True}),
    ("admission", {"name": "queue-limit", "limit": 3}),
    ("admission", {"name": "timeout", "timeout_s": 0.2}),
    ("admission", {"name": "rate-limit", "rate_per_s": 2.0, "burst": 3}),
    ("admission", {"name": "shed-load", "ttft_s": 0.1}),
    ("admission", {"name": "impatient", "patience_s": 0.2, "patience_cv": 0.5}),
    ("admission", {"name": "impatient", "patience_s": 0.2, "patience_cv": 1e-300}),
    ("admission", {"name": "limits", "queue_limit": 5, "timeout_s": 0.5, "patience_s": 0.4}),
    ("answers", {"name": "hit-rate", "hit_share": 0.5}),
    ("encoder", {"name": "cached", "cache_bytes": 1e5, "items": 5}),
]
DEFAULTS = [(axis, {"name": name}) for axis in AXES for name in registries[axis]]


def words(case):
    axis, choice = case
    rest = "-".join(f"{k}={v}" for k, v in choice.items() if k != "name")
    return f"{axis}-{choice['name']}-{rest}".rstrip("-")


@pytest.mark.parametrize("case", DEFAULTS + OTHERS, ids=words)
def test_every_policy_keeps_the_contract(case):
    check_policy(*case)


@pytest.mark.parametrize("axis", AXES)
def test_every_policy_says_what_its_parameters_are(axis):
    """A line on when to use it; a unit or words, a default and bounds for every parameter."""
    registry = registries[axis]
    for name in registry:
        assert "Use it" in registry.summary(name), name
        assert len(registry.summary(name)) <= 100, name
        for parameter in registry.parameters(name):
            assert parameter.default != "required", (name, parameter.name)
            assert len(parameter.description) > 10, (name, parameter.name)


def test_what_the_issue_asks_for_is_there():
    wanted = {
        "batching": "static dynamic continuous chunked-prefill adaptive decode-only prefill-only",
        "ordering": "fcfs sjf priority edf fair online-first",
        "memory": "paged contiguous",
        "caching": "none prefix-lru prefix-lfu prefix-ttl cost-aware tiered",
        "admission": "all queue-limit timeout rate-limit shed-load impatient limits",
    }
    for axis, names in wanted.items():
        assert set(names.split()) <= set(registries[axis]), axis


def test_bad_parameters_are_named():
    with pytest.raises(InputError, match=r"block_size.*less than or equal to 256, got 512"):
        registries["memory"].make({"name": "paged", "block_size": 512})
    with pytest.raises(InputError, match="did you mean 'max_num_seqs'"):
        registries["batching"].make({"name": "static", "max_num_seq": 4})


def test_a_policy_that_sees_the_future_is_caught():
    """The contract is not empty: an order by true output length breaks it."""
    from dataclasses import dataclass

    from policies.ordering import ordering

    @ordering("clairvoyant")
    @dataclass
    class Clairvoyant:
        """Use it never."""

        def key(self, request):
            return request.output_tokens if request.output_tokens > 100 else 0.0

    try:
        with pytest.raises(AssertionError, match="unseen answers"):
            check_policy("ordering", {"name": "clairvoyant"})
    finally:
        ordering._classes.pop("clairvoyant")
