"""Every shipped plan file can be read, and names things that exist."""

from pathlib import Path

import pytest

from sim.planning import load_plan, plan
from sim.planning.load import Load
from sim.planning.prices import Ledger, SitePrices, candidate_prices
from sim.planning.racks import nodes_per_rack, rack_fault
from sim.planning.supply import expand
from sim.planning.write import write_plan

PLANS = sorted((Path(__file__).resolve().parents[2] / "examples" / "plans").glob("*.toml"))


def test_there_are_plans():
    assert len(PLANS) >= 3


@pytest.mark.parametrize("path", PLANS, ids=lambda p: p.stem)
def test_a_plan_names_things_that_exist(path):
    file = load_plan(path)
    load = Load.of(file, path.parent)
    assert len(load.classes) == len(file.traffic)
    assert all(one.week.mean() > 0 for one in load.classes)
    ledger = Ledger(file)
    assert SitePrices.of(ledger).pue >= 1
    for candidate in expand(file.candidates, file.model):
        prices = candidate_prices(candidate, ledger)
        assert prices.node > 0
        assert prices.spot < prices.reserved < prices.on_demand
        assert rack_fault(candidate, file.site.rack) is None
        assert nodes_per_rack(candidate, file.site.rack) != 0


@pytest.mark.parametrize("path", PLANS, ids=lambda p: p.stem)
def test_a_plan_says_how_to_run_it(path):
    text = path.read_text()
    assert f"roofcast plan examples/plans/{path.name}" in text
    assert all(len(line) <= 120 for line in text.splitlines())


def test_the_plan_in_the_manual_can_be_read(tmp_path):
    manual = (Path(__file__).resolve().parents[2] / "docs" / "planning.md").read_text()
    block = manual.split("```toml\n")[1].split("```")[0]
    (tmp_path / "plan.toml").write_text(block)
    file = load_plan(tmp_path / "plan.toml")
    assert [c.name for c in expand(file.candidates, file.model)] == [
        "h200-sxm fp8 tp1",
        "l40s fp8 tp1",
    ]
    sections = {name for name in type(file).model_fields if name not in ("schema_version", "name")}
    assert all(f"`[{name}]`" in manual or f"`[[{name}]]`" in manual for name in sections)


@pytest.mark.slow
def test_six_candidates_take_few_trials():
    # a minute of two cores is 120 CPU-seconds; the engine loop serves some 30,000 requests in one
    path = next(p for p in PLANS if p.stem == "assistant")
    result = plan(path)
    ratings = {o.rating.candidate.name: o.rating for o in result.options}
    assert len(ratings) == 6
    assert all(len(r.bench.trials) <= 40 for r in ratings.values())


@pytest.mark.slow
@pytest.mark.parametrize("path", PLANS, ids=lambda p: p.stem)
def test_a_shipped_plan_has_an_answer(path, tmp_path):
    result = plan(path)
    assert result.best.fits
    assert 0.9 < result.doubts["cheapest"].sum() < 1 + 1e-9  # in some worlds nothing can be had
    assert all(p.is_file() for p in write_plan(result, tmp_path))
