"""The simulator as queues that theory knows: service that is exponential, constant, shared.

Step tables are made so that one mechanism decides and the host takes no time: a prompt of so many
tokens is a service time, a number of output tokens is a number of equal steps, a step that grows
with its batch shares the server.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from sim.streams import stream
from sim.testing import serve, toy_knobs, toy_tables
from validation.queueing import batch_response_bound, md1, mg1, mg1_ps, mm1, mmc

__all__ = ["CASES", "Theory", "check_theory"]

REPLICATIONS, REQUESTS, WARMUP = 8, 8_000, 0.2
COOL = {"throttle_per_k": 0.0}  # made-up steps say nothing about heat
SERVICE_S = 0.1
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Theory:
    """One queue: its load, its engine, and the mean response that theory gives.

    Attributes
    ----------
    load : float
        Share of capacity in use [1].
    rate_per_s : float
        Poisson arrivals [1/s].
    draw : callable
        (generator, count) -> prompt and output tokens of every request.
    knobs : mapping
        Engine parameters that differ from the toy engine.
    step_s, token_s : float
        Seconds of a step, and of each of its tokens [s].
    expected_s : float
        Mean response [s].
    bound : bool
        `expected_s` is an upper bound, not the value.
    """

    load: float
    rate_per_s: float
    draw: Callable[[np.random.Generator, int], tuple[Ints, Ints]]
    knobs: Mapping[str, float]
    step_s: float
    token_s: float
    expected_s: float
    bound: bool = False


def _ones(count: int) -> Ints:
    return np.ones(count, dtype=np.int64)


def _prompts(
    sample: Callable[[np.random.Generator, int], Floats],
) -> Callable[[np.random.Generator, int], tuple[Ints, Ints]]:
    """Return a drawer of prompts (at least one token) with one output token each."""

    def draw(rng: np.random.Generator, count: int) -> tuple[Ints, Ints]:
        return np.maximum(np.rint(sample(rng, count)), 1).astype(np.int64), _ones(count)

    return draw


def _one_server(load: float, kind: str) -> Theory:
    """Return a single server that works through prompts of a mean of 1,000 tokens."""
    mean, rate = 1000.0, load / SERVICE_S
    samples: dict[str, tuple[Callable[[np.random.Generator, int], Floats], float]] = {
        "M/D/1": (lambda _, n: np.full(n, mean), md1(rate, SERVICE_S).response_s),
        "M/M/1": (lambda rng, n: rng.exponential(mean, n), mm1(rate, SERVICE_S).response_s),
        # 0.9 x 500 + 0.1 x 5,500 = 1,000 tokens
        "M/G/1": (
            lambda rng, n: rng.choice([500.0, 5500.0], n, p=[0.9, 0.1]),
            mg1(rate, SERVICE_S, 0.9 * 0.5**2 + 0.1 * 5.5**2 - 1.0).response_s,
        ),
    }
    sample, expected = samples[kind]
    knobs = {"max_num_seqs": 1, "max_num_batched_tokens": 20_000}
    return Theory(load, rate, _prompts(sample), knobs, 0.0, SERVICE_S / mean, expected)


def _decodes(mean: float) -> Callable[[np.random.Generator, int], tuple[Ints, Ints]]:
    """Return a drawer of one-token prompts whose output tokens are geometric."""

    def draw(rng: np.random.Generator, count: int) -> tuple[Ints, Ints]:
        return _ones(count), rng.geometric(1.0 / mean, count)

    return draw


def _servers(load: float, servers: int) -> Theory:
    """Return M/M/c: steps of constant time serve up to `servers` requests side by side."""
    tokens, step = 500.0, 1e-4
    service = (tokens + 1.0) * step  # its slot is free one step after the last token
    rate = load * servers / service
    knobs = {"max_num_seqs": servers, "max_num_batched_tokens": 256}
    expected = mmc(rate, service, servers).response_s
    return Theory(load, rate, _decodes(tokens), knobs, step, 0.0, expected)


def _shared(load: float) -> Theory:
    """Return M/G/1-PS: a step takes time in proportion to its batch, so all share the server."""
    tokens, token = 200.0, 1e-4
    service = tokens * token
    knobs = {"max_num_seqs": 256, "max_num_batched_tokens": 512}
    expected = mg1_ps(load / service, service).response_s
    return Theory(load, load / service, _decodes(tokens), knobs, 0.0, token, expected)


def _batches(load: float) -> Theory:
    """Return batch service: an idle engine takes all that wait, a batch takes longer the larger."""
    fixed, item = 0.05, 0.01
    knobs = {"hold": 1, "fill_size": 1, "max_num_seqs": 2000, "max_num_batched_tokens": 4000}
    draw = _prompts(lambda _, n: np.ones(n))
    bound = batch_response_bound(load / item, fixed, item)
    return Theory(load, load / item, draw, knobs, fixed, item, bound, bound=True)


CASES: dict[str, Callable[[], Theory]] = {
    "M/D/1, load 0.5": lambda: _one_server(0.5, "M/D/1"),
    "M/D/1, load 0.8": lambda: _one_server(0.8, "M/D/1"),
    "M/M/1, load 0.5": lambda: _one_server(0.5, "M/M/1"),
    "M/M/1, load 0.8": lambda: _one_server(0.8, "M/M/1"),
    "M/G/1, load 0.7": lambda: _one_server(0.7, "M/G/1"),
    "M/M/4, load 0.8": lambda: _servers(0.8, 4),
    "M/M/16, load 0.9": lambda: _servers(0.9, 16),
    "M/G/1-PS, load 0.5": lambda: _shared(0.5),
    "M/G/1-PS, load 0.8": lambda: _shared(0.8),
    "batch service, load 0.6": lambda: _batches(0.6),
    "batch service, load 0.9": lambda: _batches(0.9),
}


def simulate_case(case: Theory, seed: int, requests: int = REQUESTS) -> float:
    """Return the mean response of one replication, without its warm-up [s]."""
    rng = stream(seed, "theory")
    prompts, outputs = case.draw(rng, requests)
    table = pd.DataFrame(
        {
            "arrival_s": np.cumsum(rng.exponential(1.0 / case.rate_per_s, requests)),
            "prompt_tokens": prompts,
            "output_tokens": outputs,
        }
    )
    tokens, seqs = (int(case.knobs[k]) for k in ("max_num_batched_tokens", "max_num_seqs"))
    tables = toy_tables(case.step_s, case.token_s, tokens=tokens, seqs=seqs)
    served = serve(table, toy_knobs(**COOL, **case.knobs), tables).records.requests
    response = served["finish_s"] - served["arrival_s"]
    return float(response[int(WARMUP * requests) :].mean())


def check_theory(replications: int = REPLICATIONS, requests: int = REQUESTS) -> pd.DataFrame:
    """Return simulated beside theoretical mean response of every case.

    Returns
    -------
    DataFrame
        case, expected_s, simulated_s (mean of replications), error_s (its standard error),
        bound (expected_s is an upper bound), error [1], sigmas (difference in standard errors).
    """
    rows = []
    for name, make in CASES.items():
        case = make()
        means = np.array([simulate_case(case, seed, requests) for seed in range(replications)])
        spread = float(means.std(ddof=1) / np.sqrt(replications))
        mean = float(means.mean())
        sigmas = (mean - case.expected_s) / spread
        rows.append((name, case.expected_s, mean, spread, case.bound, sigmas))
    columns = ["case", "expected_s", "simulated_s", "error_s", "bound", "sigmas"]
    table = pd.DataFrame(rows, columns=columns)
    table["error"] = table["simulated_s"] / table["expected_s"] - 1.0
    return table
