"""Charts: what they show, how much, and that axes carry units."""

import json

import numpy as np
import pandas as pd
import pytest

from sim import charts
from sim.metrics.waits import WAITS
from sim.step_log import binned, even_edges, with_spans

OKABE_ITO = {
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
    "#999999",
}  # fmt: skip


def all_charts(result):
    steps, requests = result.steps, result.requests
    return {
        "ttft": charts.latency_cdf(requests, "ttft", 0.1),
        "tpot": charts.latency_cdf(requests, "tpot"),
        "e2e": charts.latency_cdf(requests, "e2e"),
        "tokens": charts.token_rates(steps),
        "queue": charts.queue(steps),
        "kv": charts.kv_use(steps, 50_000),
        "power": charts.power(steps, 125.0),
        "temperature": charts.temperature(steps),
        "gantt": charts.request_gantt(requests),
        "energy": charts.energy_split(1.0, 2.0, 3.0),
        "waits": charts.wait_split({"queue": 0.1, "host": 0.2}),
        "roofline": charts.roofline(steps, 9.9e14, 4.8e12),
    }


def rows(chart):
    return [row for table in chart.to_dict()["datasets"].values() for row in table]


def titles(spec):
    """Titles of all axes in a chart's dictionary."""
    layers = spec.get("layer", [spec])
    return [
        layer["encoding"][axis]["title"]
        for layer in layers
        for axis in ("x", "y")
        if "title" in layer["encoding"].get(axis, {})
    ]


@pytest.fixture(scope="module")
def made(small_result):
    return all_charts(small_result)


def test_every_chart_is_small_json(made):
    for name, chart in made.items():
        text = json.dumps(chart.to_dict(), allow_nan=False)
        assert len(text) < 200_000, name
        assert "width" not in chart.to_dict(), name


def test_axes_have_units(made):
    no_unit = {"share of requests", "requests (batch, queue)", "KV blocks in use"}
    no_unit |= {"requests in order of arrival"}
    for name, chart in made.items():
        found = titles(chart.to_dict())
        assert found, name
        assert all("[" in t or t in no_unit for t in found), (name, found)


def test_colours_can_be_told_apart():
    assert {*charts.COLOURS.values(), *charts.LINES} <= OKABE_ITO
    for together in ([*WAITS, "service"], ["prefill", "decode", "idle"], ["queue", "prefill"]):
        assert len({charts.COLOURS[name] for name in together}) == len(together)
    assert "#000000" not in charts.COLOURS.values()  # not seen on a dark page


def test_a_cdf_holds_the_quantiles(made, small_result):
    table = small_result.requests
    ms = (table["first_token_s"] - table["arrival_s"]) * 1e3
    points = [row for row in rows(made["ttft"]) if "share" in row]
    assert points[0]["latency"] == pytest.approx(ms.min(), abs=1e-3)
    assert points[-1] == {"latency": pytest.approx(ms.max(), abs=1e-3), "share": 1.0}
    median = next(p["latency"] for p in points if p["share"] >= 0.5)
    assert median == pytest.approx(ms.median(), rel=0.02)
    assert [row for row in rows(made["ttft"]) if "share" not in row] == [{"latency": 100.0}]


def test_rates_hold_all_tokens(made, small_result):
    points = pd.DataFrame(rows(made["tokens"]))
    width = small_result.steps["output_s"].max() / charts.BINS
    prompts = points.loc[points["what"] == "prefill", "value"].sum() * width
    assert prompts == pytest.approx(small_result.requests["prompt_tokens"].sum(), rel=1e-4)


def test_power_holds_the_energy(made, small_result):
    points = pd.DataFrame(rows(made["power"]))
    end = small_result.steps["output_s"].max()
    joules = points["value"].mean() * end
    totals = small_result.totals.iloc[0]
    idle = 125.0 * (end - totals["busy_s"])
    expected = totals["energy_j"] - totals["idle_energy_j"] + idle
    assert joules == pytest.approx(expected, rel=1e-4)
    assert points["value"].min() >= 125.0 - 1e-3


def test_long_logs_are_reduced(small_result):
    steps = pd.concat([small_result.steps] * 20, ignore_index=True)
    steps[["schedule_s", "output_s"]] += np.repeat(np.arange(20), len(small_result.steps))[
        :, None
    ] * (small_result.steps["output_s"].max() + 1)
    requests = pd.concat([small_result.requests] * 50, ignore_index=True)
    for chart in (
        charts.latency_cdf(requests),
        charts.token_rates(steps),
        charts.temperature(steps),
        charts.roofline(steps, 9.9e14, 4.8e12),
        charts.request_gantt(requests),
    ):
        assert len(rows(chart)) <= 1600


def test_stacks_are_shares_of_the_whole(made):
    found = {row["what"]: row["share"] for row in rows(made["waits"])}
    assert found == pytest.approx({"queue": 0.1, "host": 0.2, "service": 0.7})
    energy = {row["what"]: row["value"] for row in rows(made["energy"])}
    assert energy == {"prefill": 1.0, "decode": 2.0, "idle": 3.0}


def test_no_step_lies_above_the_roof(made):
    dots = [row for row in rows(made["roofline"]) if "tokens" in row]
    assert dots
    for dot in dots:
        roof = min(dot["intensity"] * 4.8e12, 9.9e14) / 1e12
        assert dot["rate"] <= roof * 1.02, dot


def test_gantt_bars_join(made, small_result):
    bars = pd.DataFrame(rows(made["gantt"]))
    one = bars[bars["order"] == 5].set_index("what")
    assert one.loc["queue", "end"] == one.loc["prefill", "begin"]
    assert one.loc["prefill", "end"] == one.loc["decode", "begin"]
    assert bars["order"].nunique() <= charts.BARS


def test_bins_hold_the_whole_amount_whatever_their_edges(fleet_result):
    spans = with_spans(fleet_result.steps)
    for bins in (1, 7, 100):
        edges = even_edges(0.0, float(spans["output_s"].max()), bins)
        total = binned(spans, spans["energy_j"], edges).sum()
        assert total == pytest.approx(fleet_result.steps["energy_j"].sum(), rel=1e-9)


def test_an_empty_result_still_draws(small_result):
    nothing = small_result.requests.assign(
        status="unfinished", first_token_s=np.nan, finish_s=np.nan
    )
    for what in ("ttft", "tpot", "e2e"):
        assert rows(charts.latency_cdf(nothing, what)) == []
