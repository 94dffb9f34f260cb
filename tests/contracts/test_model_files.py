"""Every shipped model file: readable, sourced, and equal to what was published."""

import csv
import tomllib
from pathlib import Path

import pytest

from workloads.counts import kv_bytes_per_token, parameters
from workloads.models import load_model, models
from workloads.operators import operator_models

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
NAMES = list(models)

# Published totals that the count from the shapes does not round to; each file's note says why.
UNLIKE_THE_LABEL = {
    "qwen2.5-32b": 0.0081,  # card 32.5B; the checkpoint holds 32.76B
    "qwen3-14b": 0.0549,  # label 14B; the checkpoint holds 14.77B
    "qwen3-32b": 0.0238,  # label 32B; the checkpoint holds 32.76B
    "qwen3-30b-a3b": 0.0177,  # label 30B; the checkpoint holds 30.53B
    "llama-4-scout": -0.0033,  # label 109B, image encoder included; text alone -1.13 %
    "llama-4-maverick": 0.0040,  # label 400B, image encoder included; text alone +0.18 %
    "glm-4.5": -0.0062,  # label 355B; the checkpoint holds 352.80B without its MTP layer
    "glm-4.6": -0.0062,  # the same architecture
    "glm-4.5-air": 0.0080,  # label 106B; the checkpoint holds 106.85B without its MTP layer
}
# Neither a published total nor an exact count of the checkpoint was found for these.
UNCHECKED = {
    "bloom-7b1",
    "deepseek-r1-distill-llama-70b",
    "deepseek-r1-distill-llama-8b",
    "falcon-180b",
    "falcon-40b",
    "falcon-7b",
    "gpt-3-175b",
    "gpt2",
    "llama-3-70b",
    "llama-3-8b",
    "llama-3.3-70b",
    "llama-7b",
    "mistral-large-2407",
    "opt-30b",
    "opt-6.7b",
    "opt-66b",
    "qwen1.5-7b",
    "qwen2-72b",
    "qwen2-7b",
}


def unit_of_last_digit(value):
    """Return the rounding unit of a published number such as 8.03e9 or "1 trillion"."""
    if value % 1e12 == 0:
        return 0.05e12
    text = f"{value / 1e9:.6g}"
    return 1e9 * 10.0 ** -(len(text.split(".")[1]) if "." in text else 0)


def test_there_are_many_models_of_every_kind():
    specs = [load_model(n) for n in NAMES]
    assert len(specs) >= 50
    assert {s.attention for s in specs} == {"mha", "gqa", "mqa", "mla"}
    assert sum(s.moe is not None for s in specs) >= 10
    assert sum(s.window is not None for s in specs) >= 8
    assert sum(s.kind == "encoder" for s in specs) >= 3
    assert sum(s.vision is not None for s in specs) >= 3
    assert sum(parameters(s).total < 2e9 for s in specs) >= 10
    assert any(s.tied_embeddings for s in specs)
    assert len(operator_models) >= 3


@pytest.mark.parametrize("name", NAMES)
def test_file_says_where_its_numbers_come_from(name):
    spec = load_model(name)
    assert len(spec.source) > 15
    assert bool(spec.published_params) <= bool(spec.published_source)
    assert bool(spec.checkpoint_params) <= bool(spec.checkpoint_source)
    for other in (spec.derived_from, spec.distilled_from):
        assert not other or other in NAMES


@pytest.mark.parametrize("name", [n for n in NAMES if load_model(n).checkpoint_params])
def test_count_equals_the_published_checkpoint(name):
    spec = load_model(name)
    assert parameters(spec).total == spec.checkpoint_params


@pytest.mark.parametrize("name", [n for n in NAMES if load_model(n).published_params])
def test_count_rounds_to_the_published_total_or_is_explained(name):
    spec = load_model(name)
    total, published = parameters(spec).total, spec.published_params
    if name in UNLIKE_THE_LABEL:
        assert total / published - 1 == pytest.approx(UNLIKE_THE_LABEL[name], abs=1e-4)
        assert "label" in spec.note or "card" in spec.note
        return
    # One unit of the last published digit: publishers round and cut.
    assert abs(total - published) <= max(unit_of_last_digit(published), 0.003 * published)


def test_unchecked_models_are_listed():
    found = {
        n
        for n in NAMES
        if not load_model(n).published_params and not load_model(n).checkpoint_params
    }
    assert found == UNCHECKED


def test_active_counts():
    # Published active counts, by the convention of the publisher.
    for name, published in (("mixtral-8x7b", 12.9e9), ("deepseek-v2", 21e9)):
        assert parameters(load_model(name)).active == pytest.approx(published, rel=0.02)
    for name, published in (("gpt-oss-20b", 3.61e9), ("gpt-oss-120b", 5.13e9), ("kimi-k2", 32e9)):
        counts = parameters(load_model(name))
        assert counts.active_without_input == pytest.approx(published, rel=0.012)


def test_file_names_are_plain():
    for name, path in models.paths.items():
        assert name == name.lower()
        assert tomllib.loads(path.read_text())["schema_version"] == 1


def test_counts_against_the_catalog_table():
    table = SHARED / "catalog" / "models.csv"
    if not table.exists():
        pytest.skip("the catalog table is not here")
    by_name = {load_model(n).name: load_model(n) for n in NAMES}
    agree = 0
    for row in csv.DictReader(table.read_text().splitlines()):
        spec = by_name[row["model"]]
        vision = parameters(spec).vision
        ours = parameters(spec).total - vision - spec.extra_parameters * bool(vision)
        # The table leaves out q/k norms, some biases and final norms, and pads Gemma's vocabulary.
        assert ours == pytest.approx(float(row["total_params_computed"]), rel=1.3e-4)
        assert kv_bytes_per_token(spec, "bf16") == float(row["kv_bytes_per_token_bf16"])
        agree += row["total_agrees_within_rounding"] == "yes"
    assert agree == 24
