"""Every shipped length distribution and workload: sources, kinds, units, plausible sizes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from workloads.arrivals import mean_rate
from workloads.lengths import Lengths, describe_lengths, length_distributions, load_lengths
from workloads.named import NamedWorkload, WorkloadSpec, load_workload, workloads

NAMES, LENGTHS = list(workloads), list(length_distributions)
PROMISED = {
    *("agent-multi-turn", "azure-code", "azure-conv", "batch-classification", "batch-labelling"),
    *("batch-reports", "chat", "code-completion", "edge-single-stream", "image-questions"),
    *("rag", "reasoning", "summarisation", "templates"),
}
PROMISED_LENGTHS = {
    *("agents", "azure-code", "azure-conv", "batch-classification", "code-completion"),
    *("constant", "edge-single-stream", "image-questions", "rag", "reasoning", "sharegpt"),
    "summarisation",
}


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Every pydantic model inside a type, and inside its fields."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from models_in(field.annotation)
    for part in get_args(annotation):
        yield from models_in(part)


SCHEMAS = sorted({m for top in (Lengths, NamedWorkload, WorkloadSpec) for m in models_in(top)},
                 key=lambda m: m.__name__)  # fmt: skip


def test_the_promised_names_are_there():
    assert set(NAMES) >= PROMISED
    assert set(LENGTHS) >= PROMISED_LENGTHS


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_say_what_they_are_and_where_they_come_from(name):
    dist = load_lengths(name)
    assert dist.name
    assert dist.description.endswith(".")
    assert len(dist.source) > 20
    if dist.kind == "fitted":
        assert dist.licence.split(",")[0] in ("CC-BY-4.0", "Apache-2.0", "MIT")
        assert "github.com/" in dist.source
        assert dist.statistics is not None
    else:
        assert dist.statistics is None


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_are_statistics_and_not_the_data(name):
    """A file holds at most 128 points of a distribution and 16 x 16 joint ranks."""
    dist = load_lengths(name)
    for side in (dist.prompt, dist.output):
        assert len(getattr(side, "probabilities", [])) <= 128
    assert len(dist.output_ranks) <= 16
    path = length_distributions.paths[name]
    assert path.stat().st_size < 8000


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_are_plausible(name):
    found = describe_lengths(load_lengths(name), 20_000)
    assert 10 < found.prompt_mean < 100_000
    assert 1 < found.output_mean < 10_000
    assert found.prompt_p50 <= found.prompt_p95 <= found.prompt_p99 < 200_000


@pytest.mark.parametrize("name", NAMES)
def test_workloads_say_what_they_are_and_what_they_must_meet(name):
    named = load_workload(name)
    assert named.description.endswith(".")
    assert len(named.source) > 20
    goals = named.objectives
    assert any(v is not None for v in (goals.ttft_s, goals.tpot_s, goals.e2e_s))
    assert len(goals.source) > 20
    if isinstance(named.lengths, str):
        load_lengths(named.lengths)
    else:
        assert named.lengths.source


@pytest.mark.parametrize("name", NAMES)
def test_workloads_are_of_a_size_that_a_laptop_simulates(name):
    named = load_workload(name)
    requests = mean_rate(named.arrivals) * named.duration_s
    assert min(requests, named.count or 10**9) < 10**6 or requests == float("inf")


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda m: m.__name__)
def test_every_number_has_a_description_that_ends_in_its_unit(schema):
    for name, field in schema.model_fields.items():
        kinds = {field.annotation, *get_args(field.annotation)}
        if name != "schema_version" and kinds & {int, float}:
            assert field.description, f"{schema.__name__}.{name}"
            assert name == "priority" or field.description.endswith("]"), (
                f"{schema.__name__}.{name}"
            )


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda m: m.__name__)
def test_unknown_keys_are_refused_everywhere(schema):
    assert schema.model_config.get("extra") == "forbid"


def test_no_file_names_a_folder_of_some_machine():
    for catalog in (workloads, length_distributions):
        for path in catalog.paths.values():
            text = path.read_text(encoding="utf-8")
            assert "/home/" not in text
            assert "/work/" not in text
            assert Path(path).name == path.name
