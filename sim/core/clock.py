"""Time and energy of one engine step: GPU and host as two resources, watts under a cap.

The engine keeps two steps in flight: step i + 1 is formed and dispatched before the output of step
i is processed. The GPU works through steps in order; a step cannot leave the GPU before the host
has dispatched all of it; an output is seen only after the next step was dispatched. In an engine
that is not yet warm, the first step of a row count loads kernels, which waits for the GPU.
"""

import numpy as np

from sim.core.jit import compiled
from sim.core.layout import (
    ITL_BINS,
    ITL_BINS_PER_E,
    ITL_MIN_S,
    PROMPT_OCTAVE,
    PROMPTS,
    SPREAD_STEP,
    SPREADS,
    Record,
    StepTables,
)

__all__ = [
    "balanced",
    "count_gap",
    "decode_attention_s",
    "dispatch_s",
    "gpu_s",
    "grid_place",
    "pass_front",
    "prefill_attention_s",
    "run_step",
    "spread_over",
    "uniform",
]

EAGER, PIECEWISE, GRAPH = 0, 1, 2

ROWS = 8
"""Row counts that share the kernels of the last products: tiles of cuBLAS on Hopper, measured."""


@compiled
def uniform(seed: Record, stream: int, index: int) -> float:
    """Return a uniform number in [0, 1) that depends on (seed, stream, index) only.

    Counter-based (SplitMix64 finaliser), so that draws do not depend on how steps are grouped.
    """
    z = np.uint64(seed) + np.uint64(stream) * np.uint64(0xD1342543DE82EF95)
    z += np.uint64(index + 1) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return float(z >> np.uint64(11)) / 9007199254740992.0


@compiled
def _update_level(state: Record, knobs: Record) -> None:
    """Redraw the host's level when its time is over (uniform level, exponential stay)."""
    while state.now >= state.level_until:
        index = state.level_index
        stay = -np.log(1.0 - uniform(state.seed, 1, index)) * knobs.level_mean_s
        spread = knobs.level_high - knobs.level_low
        state.level = knobs.level_low + spread * uniform(state.seed, 2, index)
        state.level_until = max(state.level_until, 0.0) + stay
        state.level_index = index + 1


@compiled
def dispatch_s(state: Record, knobs: Record, tokens: int, prefilling: bool) -> tuple[float, int]:
    """Return (host seconds to dispatch a step, how it is launched)."""
    if tokens <= knobs.graph_tokens and not prefilling:
        slow = 1.0 + knobs.graph_level_share * (state.level - 1.0)
        return knobs.graph_dispatch_s * slow, GRAPH
    noise = 1.0 + knobs.level_jitter * (2.0 * uniform(state.seed, 3, state.step) - 1.0)
    scale = state.level * noise
    if tokens <= knobs.graph_tokens:
        return knobs.piecewise_dispatch_s * scale, PIECEWISE
    return knobs.eager_dispatch_s * scale, EAGER


@compiled
def _load(state: Record, knobs: Record, rows: int) -> bool:
    """Load the kernels of a row count where that was not done; True when it had to be."""
    bit = 1 << min(max(rows - 1, 0) // ROWS, 61)
    if rows > knobs.load_rows or state.loaded & bit:
        return False
    state.loaded |= bit
    return True


@compiled
def grid_place(bounds: Record, axis: int, value: float, size: int) -> tuple[int, float]:
    """Return (lower index, weight of the upper neighbour) on a log2 grid, clamped below."""
    place = (np.log2(max(value, 1.0)) - bounds[2 * axis]) * bounds[2 * axis + 1]
    low = min(max(int(place), 0), size - 2)
    return low, max(place - low, 0.0)


@compiled
def prefill_attention_s(tables: StepTables, chunk: int, past: int) -> tuple[float, float]:
    """Return attention seconds that a prompt chunk adds, and those of its call (on a log grid).

    The prompts of a step share one call: it takes what each adds, and the longest of the others.
    """
    table, call = tables.prefill_s, tables.prefill_call_s
    i, u = grid_place(tables.bounds, 1, chunk, table.shape[0])
    j, v = grid_place(tables.bounds, 2, past + 1.0, table.shape[1])
    low = table[i, j] * (1.0 - v) + table[i, j + 1] * v
    high = table[i + 1, j] * (1.0 - v) + table[i + 1, j + 1] * v
    call_low = call[i, j] * (1.0 - v) + call[i, j + 1] * v
    call_high = call[i + 1, j] * (1.0 - v) + call[i + 1, j + 1] * v
    return low * (1.0 - u) + high * u, call_low * (1.0 - u) + call_high * u


@compiled
def decode_attention_s(
    tables: StepTables, sequences: int, context: float, squares: float, prompt: int = 0
) -> float:
    """Return attention seconds of decoding sequences.

    Uneven contexts take longer than even ones of the same sum: units that have short ones wait for
    the others. In a step with prompts those fill the waiting, but the kernel may be a slower one:
    the larger extra counts.

    Parameters
    ----------
    tables : StepTables
        Tabulated kernels.
    sequences : int
        Decoding sequences.
    context, squares : float
        Sum of their contexts, and of the squares of their contexts.
    prompt : int
        Prompt tokens that the step computes as well.
    """
    if sequences == 0:
        return 0.0
    mean = context / sequences
    variance = max(squares / sequences - mean * mean, 0.0)
    spread = np.sqrt(variance) / max(mean, 1.0)
    row, extra = tables.decode_s[sequences], tables.uneven[sequences]
    i, u = grid_place(tables.bounds, 0, mean, row.size)
    even = row[i] * (1.0 - u) + row[i + 1] * u
    place = spread / SPREAD_STEP
    k = min(int(place), SPREADS - 2)
    v, u = min(place - k, 1.0), min(u, 1.0)
    low = extra[i, k] * (1.0 - v) + extra[i, k + 1] * v
    high = extra[i + 1, k] * (1.0 - v) + extra[i + 1, k + 1] * v
    slower = low * (1.0 - u) + high * u
    if prompt > 0 and tables.beside.size > 0:
        slower = max(slower, _beside(tables.beside[sequences], i, u, prompt))
    return even * (1.0 + slower)


@compiled
def _beside(extra: Record, i: int, u: float, prompt: int) -> float:
    """Return the relative extra beside so many prompt tokens, between contexts i and i + 1."""
    place = min(max(np.log2(prompt) - PROMPT_OCTAVE, 0.0), PROMPTS - 1.0)
    k = min(int(place), PROMPTS - 2)
    v = place - k
    low = extra[i, k] * (1.0 - v) + extra[i, k + 1] * v
    high = extra[i + 1, k] * (1.0 - v) + extra[i + 1, k + 1] * v
    return low * (1.0 - u) + high * u


@compiled
def spread_over(knobs: Record, prefill_tokens: int, prefills: int) -> int:
    """Return over how many micro-batches and data-parallel ranks the prompts of a step spread."""
    if knobs.units <= 1:
        return 1
    pieces = (prefill_tokens + knobs.unit_tokens - 1) // knobs.unit_tokens
    return max(min(knobs.units, max(prefills, pieces)), 1)


@compiled
def balanced(knobs: Record, prefill_tokens: int, prefills: int, decodes: int) -> int:
    """Return the tokens of a step in which every rank had as many as the busiest one has.

    Decoding requests spread evenly; a prompt is on one rank, so that few prompts keep few busy.
    """
    if knobs.units <= 1:
        return prefill_tokens + decodes
    spread = spread_over(knobs, prefill_tokens, prefills)
    most = (decodes + knobs.units - 1) // knobs.units + (prefill_tokens + spread - 1) // spread
    return most * knobs.units


@compiled
def gpu_s(
    tables: StepTables,
    tokens: int,
    spread_tokens: int,
    prefill_attention: float,
    decodes: int,
    context: float,
    squares: float,
    logits: int,
    prompt: int,
) -> float:
    """Return GPU seconds of a step at the power cap: the sum of its kernels.

    Parameters
    ----------
    tables : StepTables
        Tabulated kernels.
    tokens, spread_tokens : int
        Tokens computed, as they are and as `balanced` counts them.
    prefill_attention : float
        Attention time of the prompt chunks [s].
    decodes, context, squares : int, float, float
        Decoding sequences, the sum of their contexts [token], and of the squares of these.
    logits : int
        Sequences that need output logits.
    prompt : int
        Prompt tokens among those computed.
    """
    decode = decode_attention_s(tables, decodes, context, squares, prompt)
    shared = tables.shared_s[min(tokens, tables.shared_s.size - 1)]
    linear = tables.linear_s[spread_tokens] + shared
    return linear + tables.head_s[logits] + prefill_attention + decode


@compiled
def _warm(state: Record, knobs: Record, watts: float, seconds: float) -> None:
    """Advance the temperature by a time of constant power (one RC element)."""
    steady = knobs.ambient_c + knobs.kelvin_per_w * watts
    state.temperature_c += (steady - state.temperature_c) * (
        1.0 - np.exp(-seconds / knobs.thermal_s)
    )


@compiled
def _throttle(state: Record, knobs: Record) -> float:
    """Return the time factor of a chip at its throttle temperature, 1 below it."""
    return 1.0 + knobs.throttle_per_k * max(state.temperature_c - knobs.throttle_c, 0.0)


@compiled
def _slowdown(knobs: Record, watts: float, share: float) -> float:
    """Return by what factor work takes longer when its `watts` are lowered to the cap.

    Dynamic watts go with clock^power_exponent, the time of compute-bound work (`share` 1) with
    clock^-time_exponent, that of memory-bound work with clock^-memory_exponent.
    """
    clock = ((knobs.cap_w - knobs.base_w) / (watts - knobs.base_w)) ** (1 / knobs.power_exponent)
    exponent = knobs.time_exponent * share + knobs.memory_exponent * (1.0 - share)
    return clock**-exponent


@compiled
def _run_under_cap(
    state: Record, knobs: Record, table_s: float, dynamic_j: float, flop_j: float
) -> tuple[float, float]:
    """Return (seconds, joules) of GPU work under the power cap, and move the power window.

    Kernel tables hold times close to the cap. Compute-bound work (most of its dynamic joules are
    those of FLOPs) that wants more watts than the cap runs at the
    full clock, faster than its table, until the power window (a low-pass of the drawn watts)
    reaches the cap; from then on the clock is lowered so that the cap is met.
    """
    wanted = (knobs.base_w + dynamic_j / table_s) / knobs.full_cap_w
    share = min(max((wanted - knobs.clock_free) / (1.0 - knobs.clock_free), 0.0), 1.0)
    share *= min(max(2.0 * flop_j / dynamic_j - 1.0, 0.0), 1.0)
    fast_s = table_s * (1.0 - knobs.full_clock_gain * share)
    slow_s = table_s * (1.0 - knobs.capped_gain * share)
    fast_w = knobs.base_w + dynamic_j / fast_s
    slow_w = min(knobs.full_cap_w, knobs.base_w + dynamic_j / slow_s)
    if slow_w > knobs.cap_w:
        slow_s *= _slowdown(knobs, slow_w, share)
        slow_w = knobs.cap_w
    cross_s = np.inf
    if fast_w > knobs.cap_w:
        ratio = (fast_w - state.window_w) / (fast_w - knobs.cap_w)
        cross_s = knobs.window_s * np.log(max(ratio, 1.0))
    if cross_s >= fast_s:
        state.window_w = fast_w + (state.window_w - fast_w) * np.exp(-fast_s / knobs.window_s)
        return fast_s, fast_s * fast_w
    rest_s = slow_s * (1.0 - cross_s / fast_s)
    state.window_w = slow_w + (knobs.cap_w - slow_w) * np.exp(-rest_s / knobs.window_s)
    return cross_s + rest_s, cross_s * fast_w + rest_s * slow_w


@compiled
def _rest(state: Record, knobs: Record, seconds: float) -> None:
    """Book a time in which the GPU waits."""
    if seconds <= 0.0:
        return
    state.idle_s += seconds
    state.idle_energy_j += seconds * knobs.idle_w
    state.energy_j += seconds * knobs.idle_w
    state.window_w = knobs.idle_w + (state.window_w - knobs.idle_w) * np.exp(
        -seconds / knobs.window_s
    )
    _warm(state, knobs, knobs.idle_w, seconds)


@compiled
def _account(state: Record, knobs: Record, seconds: float, joules: float, share: float) -> None:
    """Book a step's energy; `share` is the prompts' part of its time."""
    state.energy_j += joules
    state.prefill_energy_j += joules * share
    state.decode_energy_j += joules * (1.0 - share)
    state.busy_s += seconds
    _warm(state, knobs, joules / seconds, seconds)


@compiled
def run_step(
    tables: StepTables,
    state: Record,
    knobs: Record,
    prefill_tokens: int,
    prefill_attention: float,
    pairs: float,
    decodes: int,
    context: int,
    squares: float,
    logits: int,
    prefills: int = 0,
) -> float:
    """Dispatch one step at `state.now`, let the GPU run it, and book its time and energy.

    Returns
    -------
    float
        When the output of the step before it is seen [s].
    """
    _update_level(state, knobs)
    computed = decodes + state.verified
    tokens = prefill_tokens + computed
    even = balanced(knobs, prefill_tokens, prefills, computed)
    own_tokens = even // max(knobs.units, 1)
    host, launch = dispatch_s(state, knobs, own_tokens, prefill_tokens > 0)
    prefill_attention /= spread_over(knobs, prefill_tokens, prefills)
    table_s = gpu_s(
        tables, tokens, even, prefill_attention, decodes, context, squares, logits, prefill_tokens
    ) * _throttle(state, knobs)
    table_s += state.extra_s
    if launch == PIECEWISE:
        table_s += knobs.piecewise_gap_s
    linear = tables.counts[0] * tokens + tables.counts[1] * logits + state.extra_flops
    attention = tables.counts[2] * (pairs + context)
    weights = tables.linear_bytes[even] + state.extra_bytes
    kv = tables.counts[3] * (context + tokens + prefill_tokens)
    flop_j = knobs.j_per_flop * (linear * knobs.flop_scale + attention)
    dynamic_j = flop_j + knobs.j_per_weight_byte * weights + knobs.j_per_kv_byte * kv
    lead = knobs.graph_lead_s if launch == GRAPH else knobs.eager_lead_s
    dispatched = state.now + host
    start = max(state.gpu_end, state.now + lead) + state.copy_s
    _rest(state, knobs, start - state.gpu_end)
    seconds, joules = _run_under_cap(state, knobs, table_s, dynamic_j, flop_j)
    end = start + seconds if launch == GRAPH else max(start + seconds, dispatched)
    end = max(end, start + state.fetch_s)
    if _load(state, knobs, prefills + computed):
        dispatched = max(dispatched, end)
    _rest(state, knobs, end - start - seconds)
    prefill = prefill_attention + tables.linear_s[even] * prefill_tokens / max(tokens, 1)
    prefill += state.extra_s
    _account(state, knobs, seconds, joules, min(prefill / table_s, 1.0))
    gap = end - seconds - state.gpu_end - state.copy_s
    state.host_wait_s += max(gap, 0.0) if state.in_flight else 0.0
    seen = max(state.gpu_end, dispatched) + knobs.visible_s
    state.gpu_end = end
    state.copied_s += state.copy_s + state.fetch_s
    state.copy_s = state.fetch_s = state.extra_s = state.extra_flops = state.extra_bytes = 0.0
    state.verified = 0
    state.step += 1
    state.step_s, state.step_host_s, state.step_j = seconds, dispatched - state.now, joules
    state.step_flops, state.step_bytes = linear + attention, weights + kv
    state.flops += state.step_flops
    state.bytes += state.step_bytes
    return seen


@compiled
def pass_front(state: Record, knobs: Record, seen: float, tokens: int) -> float:
    """Let the front end send a step's output; return by how much later than the one before [s].

    The front end does one thing after another while the engine goes on: clients see a step when
    all that came before it has been done and its own tokens have been sent.
    """
    sent = max(state.front_s, seen) + tokens * knobs.front_token_s
    later = sent - seen - state.front_lag_s
    state.front_s = sent
    state.front_lag_s = sent - seen
    return later


@compiled
def count_gap(histogram: Record, gap: float, weight: int) -> None:
    """Add `weight` inter-token gaps to the histogram of log-spaced bins."""
    place = int(np.log(max(gap, ITL_MIN_S) / ITL_MIN_S) * ITL_BINS_PER_E)
    histogram[min(place, ITL_BINS - 1)] += weight
