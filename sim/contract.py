"""The contract of serving policies: what every one of them keeps, yours too.

>>> check_policy("ordering", {"name": "fcfs"})
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from formats import InputError
from policies.base import registries
from sim.core.layout import Status
from sim.deployment import Deployment
from sim.intake import Intake
from sim.replica import Replica
from sim.rules import BlockCosts, adaptive_policy, policy_knobs, serving_rules
from sim.scenario import Policies, Scenario
from sim.testing import busy_knobs, busy_tables, default_deployment, serve

__all__ = ["AXES", "check_policy", "contract_table"]

AXES = ("batching", "ordering", "memory", "caching", "admission", "answers", "encoder")
COSTS = BlockCosts(1e6, 1e6, 2e-4, 2e-5, 1e-9)
LONGEST, BLOCKS = 300, 60
RUSH = 10.0  # times as fast: arrivals of the check for unseen answers
ENDED = ("cached_tokens", "emitted", "preemptions", "status", "finish_s", "first_token_s")
DECIDED = ("schedule_s", "prefill_tokens", "decode_requests", "decode_context", "running")


def contract_table(seed: int = 0, count: int = 60) -> pd.DataFrame:
    """Return requests that make policies work: bursts, sessions, classes, clients, images.

    Examples
    --------
    >>> contract_table(count=3)["class"].isin(["online", "batch"]).all()
    np.True_
    """
    rng = np.random.default_rng(seed)
    gaps = np.where(rng.random(count) < 0.5, 0.0, rng.exponential(0.08, count))
    table = pd.DataFrame(
        {
            "arrival_s": np.cumsum(gaps),
            "prompt_tokens": rng.integers(1, 120, count),
            "output_tokens": rng.integers(1, 90, count),
            "class": rng.choice(["online", "batch"], count),
            "client": rng.choice(["a", "b", "c"], count),
            "priority": rng.integers(0, 3, count),
            "session": [f"s{k}" for k in rng.integers(0, 6, count)],
        }
    )
    before = table.groupby("session")["prompt_tokens"].shift(fill_value=0)
    table["prefix_tokens"] = np.minimum(before, table["prompt_tokens"])
    table["image_tokens"] = np.where(rng.random(count) < 0.3, table["prompt_tokens"] // 2, 0)
    return table


@dataclass
class _Trial:
    """One policy on a small engine with host times, random levels and few KV blocks."""

    axis: str
    choice: dict[str, Any]
    scenario: Scenario = field(init=False)
    deployment: Deployment = field(init=False)

    def __post_init__(self) -> None:
        policies = {self.axis: self.choice}
        if self.axis == "memory" and registries["memory"].make(self.choice).rules().contiguous:
            policies["caching"] = {"name": "none"}
        if self.axis == "encoder" and "flops_per_token" not in self.choice:
            known = [p.name for p in registries["encoder"].parameters(self.choice["name"])]
            extra = {"flops_per_token": 1e9} if "flops_per_token" in known else {}
            policies["encoder"] = self.choice | extra
        self.scenario = Scenario(policies=Policies(**policies))
        self.deployment = default_deployment()

    def knobs(self, **changes: float) -> npt.NDArray[np.void]:
        rules = serving_rules(self.scenario.policies)
        values = policy_knobs(rules, COSTS, LONGEST)
        values["max_num_seqs"] = min(values["max_num_seqs"], 24)
        values["max_num_batched_tokens"] = min(values["max_num_batched_tokens"], LONGEST)
        values |= {"num_blocks": BLOCKS, "watermark_blocks": int(rules.memory.watermark * BLOCKS)}
        size = int(values["block_size"])
        values["num_blocks"] = BLOCKS * 16 // size + 1
        values["dram_blocks"] = min(values["dram_blocks"], 40)
        values["ssd_blocks"] = min(values["ssd_blocks"], 80)
        return busy_knobs(**(values | changes))

    def run(self, table: pd.DataFrame, seed: int = 0, **changes: float) -> Replica:
        """Serve a table; knobs may be changed."""
        records = None
        if len(table):
            records = Intake(self.scenario, table, self.deployment).records
        policy = adaptive_policy(self.scenario.policies)
        tables = busy_tables(tokens=LONGEST)
        knobs = self.knobs(**changes)
        return serve(table, knobs, tables, policy=policy, seed=seed, records=records)


def check_policy(axis: str, choice: dict[str, Any], seed: int = 0) -> None:
    """Run a policy through the contract of all policies.

    Requests are conserved; the KV pool is never overdrawn; nothing is decided on arrivals or
    answers that are not there yet; the same seed gives the same table; single steps and
    macro-steps decide alike; no request, one request and one that is too large are handled.

    Parameters
    ----------
    axis : str
        One of `AXES`.
    choice : dict
        ``{"name": ..., parameter: value, ...}`` as in a scenario.
    seed : int
        Of the requests.

    Raises
    ------
    AssertionError
        A promise is broken; the message says which.
    """
    trial, table = _Trial(axis, choice), contract_table(seed)
    _check_conserved(trial, table)
    _check_repeatable(trial, table)
    _check_macro_steps(trial, table)
    _check_arrivals_unseen(trial, table)
    if not getattr(registries[axis].cls(choice["name"]), "predicts", False):
        _check_answers_unseen(trial, table)
    _check_few(trial, table)


def _promise(kept: bool, text: str) -> None:
    if not kept:
        raise AssertionError(text)


def _check_conserved(trial: _Trial, table: pd.DataFrame) -> None:
    replica, knobs = trial.run(table, every_step=1), trial.knobs()[0]
    requests, rows = replica.records.requests, replica.steps()
    _promise(bool((requests["status"] != Status.UNFINISHED).all()), "a request was left behind")
    done = requests[requests["status"] == Status.FINISHED]
    _promise(bool((done["emitted"] == done["output_tokens"]).all()), "tokens are missing")
    state = replica.state[0]
    _promise(state["free_blocks"] == knobs["num_blocks"], "KV blocks were lost")
    _promise(state["held_blocks"] == 0 and state["kv_tokens"] == 0, "KV tokens were lost")
    inside = (rows["free_blocks"] >= 0) & (rows["free_blocks"] <= knobs["num_blocks"])
    _promise(bool(inside.all()), "the KV pool was overdrawn")
    _promise(bool((rows["unused_tokens"] >= 0).all()), "blocks hold more tokens than they can")
    decoded = rows["decode_requests"] + rows["padding"]
    _promise(bool((decoded <= knobs["max_num_seqs"]).all()), "a step had too many sequences")
    computed = rows["prefill_tokens"] + decoded
    most = knobs["max_num_batched_tokens"]
    _promise(bool((computed <= most).all()), "a step had more tokens than it may")


def _check_repeatable(trial: _Trial, table: pd.DataFrame) -> None:
    one, two = trial.run(table, seed=5), trial.run(table, seed=5)
    _promise(one.steps().tobytes() == two.steps().tobytes(), "the same seed gave other steps")


def _check_macro_steps(trial: _Trial, table: pd.DataFrame) -> None:
    fused, single = trial.run(table), trial.run(table, fuse=0)
    a, b = fused.records.requests, single.records.requests
    for name in ENDED:
        same = np.allclose(a[name], b[name], rtol=1e-9, atol=0, equal_nan=True)
        _promise(same, f"macro-steps changed {name}")
    _promise(int(fused.steps()["steps"].sum()) == single.steps().size, "macro-steps lost steps")


def _check_arrivals_unseen(trial: _Trial, table: pd.DataFrame) -> None:
    """Cut the workload in the middle: until then, both runs must decide alike."""
    half = len(table) // 2
    cut = float(table["arrival_s"].iloc[half])
    whole = trial.run(table, every_step=1).steps()
    part = trial.run(table.iloc[:half], every_step=1).steps()
    _promise(_alike(whole, part, cut), "arrivals of the future changed a decision")


def _check_answers_unseen(trial: _Trial, table: pd.DataFrame) -> None:
    """Make all answers longer: until the first one ends, both runs must decide alike.

    The requests come in a rush, so that many wait by then.
    """
    table = table.assign(arrival_s=table["arrival_s"] / RUSH)
    long, longer = (table.assign(output_tokens=table["output_tokens"] + k) for k in (30, 70))
    runs = [trial.run(t, every_step=1) for t in (long, longer)]
    ends = [float(np.nanmin(run.records.requests["last_token_s"])) for run in runs]
    first = min(_first_end(run) for run in runs)
    _promise(bool(np.isfinite(ends).all()), "nothing was answered")
    alike = _alike(runs[0].steps(), runs[1].steps(), first)
    _promise(alike, "unseen answers changed a decision")


def _first_end(run: Replica) -> float:
    """Return when the last token of the first request that ends could first be known [s]."""
    requests, rows = run.records.requests, run.steps()
    done = requests[requests["status"] == Status.FINISHED]
    last = float(np.nanmin(done["last_token_s"])) if len(done) else np.inf
    before = rows["schedule_s"][rows["schedule_s"] < last]
    return float(before[-4]) if before.size > 4 else 0.0


def _alike(a: npt.NDArray[np.void], b: npt.NDArray[np.void], until: float) -> bool:
    early = [rows[rows["schedule_s"] < until] for rows in (a, b)]
    count = min(len(rows) for rows in early) - 1  # the newest step may end beyond
    return all(np.array_equal(early[0][name][:count], early[1][name][:count]) for name in DECIDED)


def _check_few(trial: _Trial, table: pd.DataFrame) -> None:
    _promise(trial.run(table.iloc[:0]).steps().size == 0, "steps without requests")
    one = trial.run(table.iloc[:1].assign(prefix_tokens=0)).records.requests
    _promise(bool(one["status"][0] in (1, 2)), "a single request was not served")
    large = table.iloc[:1].assign(prompt_tokens=BLOCKS * 16 * 2, prefix_tokens=0, image_tokens=0)
    try:
        trial.run(large, max_num_batched_tokens=LONGEST)
    except InputError as e:
        _promise("KV cache" in str(e), "the message does not say what is too large")
    else:
        raise AssertionError("a request larger than the KV pool was let in")
