"""Charts of a plan: a result goes in, an Altair chart without a width of its own comes out."""

from collections.abc import Callable

import altair as alt
import numpy as np
import pandas as pd

from sim.charts import COLOURS
from sim.planning.energy import day_power
from sim.planning.money import PARTS, discounts
from sim.planning.options import Option
from sim.planning.result import PlanResult

__all__ = ["CHARTS", "plan_charts"]

Chart = alt.Chart | alt.LayerChart
HEIGHT, MOST = 260, 12
BLUE, ORANGE, GREEN, RED, GREY = (
    COLOURS[name] for name in ("prefill", "decode", "service", "memory", "idle")
)
SHADES = (BLUE, COLOURS["host"], GREEN, ORANGE, RED, COLOURS["queue"], GREY)


def _title(option: Option) -> str:
    return option.name


def _names(result: PlanResult) -> list[str]:
    """Return the options to show, cheapest first."""
    return [_title(o) for o in result.options if o.fits][:MOST]


def cost_parts(result: PlanResult) -> alt.Chart:
    """Return the present cost of the options, by what it is for."""
    coin = result.file.money.currency
    rows = []
    for option in [o for o in result.options if o.fits][:MOST]:
        weights = discounts(option.pricing.site.discount_rate, result.file.horizon.quarters)
        for part in PARTS:
            value = float(option.bill.parts[part][0] @ weights)
            rows.append({"option": _title(option), "part": part, "cost": round(value, 2)})
    chart: alt.Chart = (
        alt.Chart(pd.DataFrame(rows), height={"step": 22})
        .mark_bar()
        .encode(
            y=alt.Y("option:N", sort=_names(result), title=None).axis(labelLimit=260),
            x=alt.X("sum(cost):Q", title=f"present cost [{coin}]").axis(format="~s"),
            color=alt.Color("part:N", sort=list(PARTS))
            .legend(orient="top", title=None, columns=2)
            .scale(domain=list(PARTS), range=list(SHADES)),
            order=alt.Order("part:N"),
            tooltip=["option:N", "part:N", alt.Tooltip("cost:Q", format=",.0f")],
        )
    )
    return chart


def fleet_growth(result: PlanResult) -> Chart:
    """Return nodes needed and nodes in service in each quarter of the best option."""
    plan = result.schedule
    parts = {"owned": plan["owned"], "rented (mean)": plan["rented"]}
    data = pd.concat(
        [
            pd.DataFrame({"quarter": plan["quarter"], "what": k, "chips": v})
            for k, v in parts.items()
        ]
    )
    bars = (
        alt.Chart(data, height=HEIGHT)
        .mark_bar()
        .encode(
            x=alt.X("quarter:O", title=None).axis(labelAngle=-45),
            y=alt.Y("chips:Q", title="accelerators"),
            color=alt.Color("what:N", title=None)
            .legend(orient="top")
            .scale(domain=list(parts), range=[BLUE, ORANGE]),
            tooltip=["quarter:O", "what:N", alt.Tooltip("chips:Q", format=",.1f")],
        )
    )
    peak = (
        alt.Chart(plan)
        .mark_tick(color=RED, thickness=3, width=26)
        .encode(
            x="quarter:O",
            y="accelerators:Q",
            tooltip=["quarter:O", "accelerators:Q", "replicas:Q"],
        )
    )
    layers: alt.LayerChart = bars + peak
    return layers


def power_of_day(result: PlanResult) -> Chart:
    """Return IT power over the day in the heaviest quarter, against the site's limit."""
    data = day_power(result.best)
    parts = {"mean day": "mean_w", "highest of a mean week": "max_w", "busy day": "busy_w"}
    rows = [
        pd.DataFrame({"hour": data["hour"], "what": what, "kw": data[column] / 1e3})
        for what, column in parts.items()
    ]
    lines: alt.Chart = (
        alt.Chart(pd.concat(rows), height=HEIGHT)
        .mark_line(interpolate="step-after")
        .encode(
            x=alt.X("hour:Q", title="hour of the day [h]").scale(domain=[0, 24], nice=False),
            y=alt.Y("kw:Q", title="IT power [kW]").scale(zero=True),
            color=alt.Color("what:N", title=None)
            .legend(orient="top", columns=2)
            .scale(domain=list(parts), range=[BLUE, GREEN, ORANGE]),
            tooltip=["hour:Q", "what:N", alt.Tooltip("kw:Q", format=".4~g")],
        )
    )
    limit = result.file.site.power_limit_w
    if limit is None:
        return lines
    rule = alt.Chart(pd.DataFrame({"kw": [limit / 1e3]})).mark_rule(
        color=RED, strokeDash=[6, 4], size=2
    )
    layers: alt.LayerChart = lines + rule.encode(y="kw:Q", tooltip=["kw:Q"])
    return layers


def use_curve(result: PlanResult) -> Chart:
    """Return the cost of an accelerator-hour of use, owned and rented, by utilisation."""
    best, coin = result.best, result.file.money.currency
    even = result.break_evens[best.rating.candidate.name]
    data = even.curve().melt("utilisation", var_name="way", value_name="cost")
    most = 4 * even.rent_per_hour
    lines = (
        alt.Chart(data[data["cost"] <= most], height=HEIGHT)
        .mark_line()
        .encode(
            x=alt.X("utilisation:Q", title="share of hours in use").axis(format="%"),
            y=alt.Y("cost:Q", title=f"per accelerator-hour of use [{coin}]"),
            color=alt.Color("way:N", title=None)
            .legend(orient="top")
            .scale(domain=["owned", "rented"], range=[BLUE, ORANGE]),
            tooltip=[
                alt.Tooltip("utilisation:Q", format=".0%"),
                "way:N",
                alt.Tooltip("cost:Q", format=".3~g"),
            ],
        )
    )
    here = alt.Chart(pd.DataFrame({"utilisation": [even.needed]})).mark_rule(
        color=RED, strokeDash=[6, 4], size=2
    )
    layers: alt.LayerChart = lines + here.encode(x="utilisation:Q")
    return layers


def cost_bands(result: PlanResult) -> Chart:
    """Return P10 to P90 of the options' cost over the sampled worlds."""
    coin, names = result.file.money.currency, _names(result)
    data = result.doubts.assign(
        option=result.doubts["candidate"] + ", " + result.doubts["way"],
        chance=result.doubts["cheapest"],
    )
    data = data[data["option"].isin(names)]
    base = alt.Chart(data, height={"step": 22}).encode(
        y=alt.Y("option:N", sort=names, title=None).axis(labelLimit=260),
        tooltip=[
            "option:N",
            *(alt.Tooltip(f"present_{k}:Q", format=",.0f", title=k) for k in ("p10", "p50", "p90")),
            alt.Tooltip("chance:Q", format=".0%", title="cheapest in"),
        ],
    )
    bars = base.mark_bar(height=8, color=BLUE, opacity=0.5).encode(
        x=alt.X("present_p10:Q", title=f"present cost, P10 to P90 [{coin}]").axis(format="~s"),
        x2="present_p90:Q",
    )
    ticks = base.mark_tick(color=RED, thickness=3).encode(x="present_p50:Q")
    text = base.mark_text(align="left", dx=6, fontSize=11, color=GREY).encode(
        x="present_p90:Q", text=alt.Text("chance:Q", format=".0%")
    )
    layers: alt.LayerChart = bars + ticks + text
    return layers


def tornado_chart(result: PlanResult) -> alt.Chart:
    """Return what each factor alone does to the best option's cost."""
    coin, table = result.file.money.currency, result.tornado
    low = table.assign(end=table["present_low"], at="factor at its P10", value=table["low"])
    high = table.assign(end=table["present_high"], at="factor at its P90", value=table["high"])
    data = pd.concat([low, high]).assign(start=result.best.present)
    chart: alt.Chart = (
        alt.Chart(data, height={"step": 24})
        .mark_bar()
        .encode(
            y=alt.Y("factor:N", sort=list(table["factor"]), title=None),
            x=alt.X("start:Q", title=f"present cost [{coin}]")
            .axis(format="~s", tickCount=8)
            .scale(zero=False),
            x2="end:Q",
            color=alt.Color("at:N", title=None)
            .legend(orient="top")
            .scale(domain=["factor at its P10", "factor at its P90"], range=[GREEN, ORANGE]),
            tooltip=["factor:N", "value:Q", alt.Tooltip("end:Q", format=",.0f", title="cost")],
        )
    )
    return chart


def cap_chart(result: PlanResult) -> alt.Chart:
    """Return throughput against watts under power limits, for every candidate."""
    seen: dict[str, pd.DataFrame] = {}
    for option in result.options:
        caps = option.rating.caps
        if len(caps):
            most = float(caps["saturation_per_s"].iloc[0])
            seen[option.rating.candidate.name] = caps.assign(
                candidate=option.rating.candidate.name,
                throughput=caps["saturation_per_s"] / most,
                objectives=np.where(caps["met"].astype(bool), "met", "missed"),
            )
    data = pd.concat(seen.values()) if seen else pd.DataFrame({"candidate": []})
    chart: alt.Chart = (
        alt.Chart(data, height=HEIGHT)
        .mark_line(point={"size": 60, "filled": True})
        .encode(
            x=alt.X("share:Q", title="power limit, share of the TDP").axis(format="%"),
            y=alt.Y("throughput:Q", title="throughput kept").axis(format="%").scale(zero=False),
            color=alt.Color("candidate:N", title=None).legend(orient="top", columns=2),
            tooltip=[
                "candidate:N",
                alt.Tooltip("cap_w:Q", title="limit [W]", format=".0f"),
                alt.Tooltip("watts:Q", title="replica at the peak [W]", format=".0f"),
                alt.Tooltip("throughput:Q", format=".1%"),
                alt.Tooltip("joules_per_request:Q", title="J per request", format=".3~g"),
                "objectives:N",
            ],
        )
    )
    return chart


Maker = Callable[[PlanResult], Chart]
CHARTS: dict[str, tuple[str, str, Maker]] = {
    "parts": ("What it costs", "Present cost of the cheapest options, by part.", cost_parts),
    "bands": (
        "How sure that is",
        "P10 to P90 over sampled worlds, the median in red, and in how many of them an option is "
        "the cheapest.",
        cost_bands,
    ),
    "fleet": (
        "Fleet over time",
        "Accelerators owned and rented; red: needed at the peak, spares included.",
        fleet_growth,
    ),
    "power": (
        "Power over the day",
        "IT power in the quarter that draws most; the dashed rule is the site's limit.",
        power_of_day,
    ),
    "use": (
        "Buy or rent",
        "An hour of use, by how many hours are used; the dashed rule is this load.",
        use_curve,
    ),
    "tornado": (
        "What matters",
        "Cost of the best option with one assumption at its P10 or P90.",
        tornado_chart,
    ),
    "caps": (
        "Power limits",
        "Throughput that is left under a limit on each accelerator. How a lower clock slows work "
        "is an assumption (power_exponent, memory_exponent in the appendix).",
        cap_chart,
    ),
}


def plan_charts(result: PlanResult) -> dict[str, Chart]:
    """Return every chart of a plan by its key in `CHARTS`."""
    charts = {key: make(result) for key, (_, _, make) in CHARTS.items()}
    if all(len(o.rating.caps) < 2 for o in result.options):
        charts.pop("caps")
    return charts
