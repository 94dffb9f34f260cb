import numpy as np
import pytest

from formats import InputError
from hardware.catalog import load_accelerator
from hardware.kernels import load_kernels
from policies.speculation import (
    DraftModel,
    Eagle,
    Lookahead,
    MultiTokenPrediction,
    ParallelHeads,
    PromptLookup,
    expected_tokens,
    positions,
    speculation,
)
from sim.engines import engines
from sim.speculation import SpeculativeSteps, break_even_batch, draft_model
from sim.steptime import GRAPH_SIZES, Batching, StepTimeModel
from workloads.models import load_model

LLAMA = load_model("llama-3.1-8b")
LIMITS = Batching(8192, 512, 8192, GRAPH_SIZES)
BATCHES = np.array([1.0, 8, 32, 128, 512])
CONTEXT = np.full(5, 1000.0)


@pytest.fixture(scope="module")
def target():
    kernels = load_kernels(load_accelerator("h200-sxm"))
    return StepTimeModel(kernels, LLAMA, engines.load("vllm-0.24").gpu)


@pytest.mark.parametrize("a", [0.0, 0.3, 0.7, 0.95])
@pytest.mark.parametrize("g", [1, 3, 8])
def test_expected_tokens_of_equal_chances_are_the_closed_form(a, g):
    assert expected_tokens([a] * g) == pytest.approx((1 - a ** (g + 1)) / (1 - a))


def test_expected_tokens_by_hand_and_in_the_limits():
    assert expected_tokens([]) == 1
    assert expected_tokens([1.0] * 4) == 5
    assert expected_tokens([0.8, 0.5, 0.0, 1.0]) == pytest.approx(1 + 0.8 + 0.4)


def test_expected_tokens_are_those_of_drawn_drafts():
    chances = np.array([0.8, 0.6, 0.9])
    drawn = np.random.default_rng(0).random((200_000, 3)) < chances
    accepted = np.cumprod(drawn, axis=1).sum(axis=1) + 1
    error = 3 * accepted.std() / np.sqrt(accepted.size)
    assert accepted.mean() == pytest.approx(expected_tokens(chances), abs=error)


def test_chances_by_position_are_filled_up_or_refused():
    assert positions(4, 0.5, (0.9, 0.7)) == (0.9, 0.7, 0.7, 0.7)
    with pytest.raises(InputError, match="3 chances for 2"):
        positions(2, 0.5, (0.9, 0.8, 0.7))


def test_without_drafts_a_step_is_plain_decoding(target):
    steps = SpeculativeSteps(target, Eagle().rules(), LIMITS)
    plain = target.linear_s(LIMITS.padded(BATCHES)) + target.head_s(BATCHES)
    plain = plain + target.decode_attention_s(BATCHES, CONTEXT)
    assert steps.step_s(BATCHES, CONTEXT, 0) == pytest.approx(plain)
    assert steps.tokens(0) == 1


def test_a_step_is_drafts_and_their_verification(target):
    steps = SpeculativeSteps(target, DraftModel(tokens=3).rules(), LIMITS)
    draft = SpeculativeSteps(steps.draft, DraftModel().rules(), LIMITS)
    alone = draft.step_s(BATCHES, CONTEXT, 0)
    parts = steps.verify_s(BATCHES, CONTEXT, 3) + 3 * alone
    assert steps.step_s(BATCHES, CONTEXT, 3) == pytest.approx(parts)


def test_gains_shrink_and_reverse_as_the_batch_grows(target):
    steps = SpeculativeSteps(target, DraftModel(acceptance=0.7).rules(), LIMITS)
    gains = steps.speed_up(BATCHES, CONTEXT, 4)
    assert gains[0] > 1.2
    assert gains[-1] < 0.8
    assert (np.diff(gains) < 0.01).all()
    limit = break_even_batch(steps, 1000.0)
    around = np.array([limit, limit + 1.0])
    before, after = steps.speed_up(around, np.full(2, 1000.0), 4)
    assert before >= 1 > after


def test_more_accepted_drafts_break_even_later(target):
    limits = [
        break_even_batch(SpeculativeSteps(target, DraftModel(acceptance=a).rules(), LIMITS), 1000.0)
        for a in (0.1, 0.5, 0.7, 0.9)
    ]
    found = [np.inf if limit is None else limit for limit in limits]
    assert found == sorted(found)
    assert found[0] == 0


def test_the_best_length_falls_with_the_batch_and_never_loses(target):
    steps = SpeculativeSteps(target, DraftModel(tokens=8, length="best").rules(), LIMITS)
    table = steps.table([1, 8, 32, 128, 512], 1000.0)
    assert (np.diff(table["drafted"]) <= 0).all()
    assert table["drafted"].iloc[0] > table["drafted"].iloc[-1]
    assert (table["speed_up"] >= 1 - 1e-12).all()


def test_a_limit_of_the_batch_turns_drafts_off(target):
    rules = Eagle(length="batch", largest_batch=16).rules()
    drafted = SpeculativeSteps(target, rules, LIMITS).lengths(np.array([1.0, 16, 17]), 1000.0)
    assert drafted.tolist() == [3, 3, 0]


def test_trees_and_pools_verify_more_than_they_draft():
    assert ParallelHeads(candidates=32).rules().verified(4) == 33
    assert Lookahead(window=5, pool=3, tokens=2).rules().verified(2) == 1 + 16
    assert PromptLookup(tokens=5).rules().verified(5) == 6
    assert PromptLookup().rules().verified(0) == 1


def test_what_drafts_takes_memory(target):
    def extra(policy):
        return SpeculativeSteps(target, policy.rules(), LIMITS).extra_bytes()

    weights, kv = extra(DraftModel(model="llama-3.2-1b"))
    assert weights == pytest.approx(2 * 1.2358e9, rel=1e-3)
    assert kv == 16 * 2 * 8 * 64 * 2
    layer = 4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336
    assert extra(Eagle())[0] == pytest.approx(2 * (layer + 2 * 4096**2), rel=1e-3)
    assert extra(Eagle())[1] == 2 * 8 * 128 * 2
    assert extra(ParallelHeads(tokens=2, by_position=()))[0] == 2 * 4096 * (4096 + 128256) * 2
    assert extra(PromptLookup()) == (0, 0)


def test_modules_of_a_mixture_of_experts_have_experts():
    deepseek = load_model("deepseek-v3")
    module = draft_model(deepseek, MultiTokenPrediction().rules())
    assert module.layers == module.expert_layer_count == 1


def test_every_policy_by_name():
    assert {"none", "draft-model", "eagle", "mtp", "medusa", "lookahead", "prompt-lookup"} <= set(
        speculation
    )
    for name in speculation:
        rules = speculation.make({"name": name}).rules()
        assert len(rules.acceptance) == rules.tokens
    with pytest.raises(InputError, match="acceptance"):
        speculation.make({"name": "eagle", "acceptance": 1.2})
