"""Decode attention in steps that compute prompts as well."""

import numpy as np
import pytest

from sim.core.clock import decode_attention_s
from sim.core.layout import PROMPTS, SPREADS, StepTables
from sim.deployment import deploy
from sim.testing import toy_tables
from validation.measured import load_runs


@pytest.fixture(scope="module")
def tables() -> StepTables:
    made = toy_tables(decode_s=1e-6)
    beside = np.broadcast_to(0.1 * np.arange(PROMPTS), (*made.decode_s.shape, PROMPTS))
    uneven = np.broadcast_to(0.05 * np.arange(SPREADS), made.uneven.shape)
    return made._replace(beside=beside.copy(), uneven=uneven.copy())


@pytest.mark.parametrize(
    ("prompt", "extra"), [(0, 0.0), (64, 0.0), (128, 0.1), (181, 0.15), (1024, 0.4), (8192, 0.4)]
)
def test_a_prompt_slows_decoding_by_its_tokens(tables, prompt, extra):
    alone = decode_attention_s(tables, 4, 4 * 100.0, 4 * 100.0**2)
    beside = decode_attention_s(tables, 4, 4 * 100.0, 4 * 100.0**2, prompt)
    assert beside / alone == pytest.approx(1 + extra, abs=1e-3)


def test_the_larger_of_two_extras_counts(tables):
    # deviation over mean 0.6: the third of `uneven`, 0.10
    context, squares = 4 * 100.0, 4 * 100.0**2 * 1.36
    even = decode_attention_s(tables, 4, context, 4 * 100.0**2)
    slowed = [decode_attention_s(tables, 4, context, squares, q) / even for q in (0, 64, 256)]
    assert slowed == pytest.approx([1.1, 1.1, 1.2])


def test_only_an_8_bit_cache_is_slowed():
    runs = load_runs()
    narrow = deploy(runs["llama8b_fp8"].scenario, 1 << 13).tables
    wide = deploy(runs["llama8b_bf16"].scenario, 1 << 13).tables
    assert wide.beside.size == 0
    # measured per layer: 400 sequences at 1,000 tokens beside 1,024 tokens 462.2, alone 367.3 us
    at = round(np.log2(1000) * narrow.bounds[1])
    assert narrow.beside[400, at, PROMPTS - 1] == pytest.approx(462.2 / 367.3 - 1, abs=0.06)
    assert (narrow.beside >= 0).all()
