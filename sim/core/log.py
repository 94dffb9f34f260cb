"""The step log: a row per macro-step."""

from sim.core.jit import compiled
from sim.core.layout import Record

__all__ = ["book", "has_room", "log"]


@compiled
def log(
    state: Record,
    knobs: Record,
    rows: Record,
    schedule_s: float,
    prefills: int,
    prefill_tokens: int,
    pairs: float,
    decodes: int,
    context: int,
) -> None:
    """Open a row of the step log and book the newest step in it."""
    row = rows[state.n_rows]
    state.n_rows += 1
    row.schedule_s = schedule_s
    row.steps = 0
    row.prefill_requests = prefills
    row.prefill_tokens = prefill_tokens
    row.prefill_attention = pairs
    row.decode_requests = decodes
    row.decode_context = context
    row.padding = state.n_padding if decodes > 0 else 0
    row.running = state.n_running
    row.waiting = state.n_waiting
    row.preempted = state.preempted
    row.gpu_s = row.host_s = row.energy_j = row.flops = row.bytes = 0.0
    book(state, knobs, rows)


@compiled
def book(state: Record, knobs: Record, rows: Record) -> None:
    """Add the newest step to the newest row."""
    row = rows[state.n_rows - 1]
    row.steps += 1
    row.output_s = state.gpu_end
    row.gpu_s += state.step_s
    row.host_s += state.step_host_s
    row.energy_j += state.step_j
    row.flops += state.step_flops
    row.bytes += state.step_bytes
    row.free_blocks = state.free_blocks
    row.unused_tokens = state.held_blocks * knobs.block_size - state.kv_tokens
    row.largest_free_blocks = state.largest_free
    row.level = state.level
    row.window_w = state.window_w
    row.temperature_c = state.temperature_c


@compiled
def has_room(state: Record, knobs: Record, rows: Record) -> bool:
    """Return whether the step log takes two more rows; without a log it starts over."""
    if not knobs.log_steps:
        state.n_rows = 0
    return state.n_rows + 2 < rows.size
