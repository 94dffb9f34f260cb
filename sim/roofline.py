"""Roofline of an explanation as a chart, and as a page that opens without a network."""

import html
from string import Template
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from hardware.specs import AcceleratorSpec
from sim.explain import Explanation
from sim.report import json_script, vega_script

__all__ = ["explanation_html", "roofline_chart"]

HEIGHT, POINTS = 420, 200
PAGE = Template(
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>$title</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem auto; max-width: 72rem; }
body { padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; }
th, td { padding: 0.25rem 0.6rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
.wide { overflow-x: auto; }
</style></head><body>
<h1>$title</h1><p>$subtitle</p>
<div id="roofline" style="width: 100%"></div>
<h2>Phases</h2><div class="wide">$phases</div>
<h2>Operators</h2><div class="wide">$operators</div>
<h2>Memory</h2><p>$memory</p><div class="wide">$largest</div>
$vega
<script type="application/json" id="spec">$spec</script>
<script>vegaEmbed("#roofline", JSON.parse(document.getElementById("spec").textContent),
{actions: false});</script>
</body></html>
"""
)


def roofline_chart(found: Explanation) -> Any:  # noqa: ANN401 - layers have no common type
    """Return operators as dots under the roofs of the chip, both axes logarithmic."""
    dots = found.operators[found.operators["flops"] > 0].copy()
    dots["rate"] = dots["flops"] / dots["seconds"] / 1e12
    dots["ms"] = dots["seconds"] * 1e3
    x = alt.X("intensity:Q", title="arithmetic intensity [FLOP/byte]").scale(type="log")
    y = alt.Y("rate:Q", title="rate [TFLOP/s]").scale(type="log")
    points = (
        alt.Chart(dots, height=HEIGHT, width="container")
        .mark_point(filled=True, size=90)
        .encode(
            x=x,
            y=y,
            color=alt.Color("phase:N", title=None),
            shape=alt.Shape("bound:N", title="bound by"),
            tooltip=[
                "phase:N",
                "operator:N",
                "bound:N",
                alt.Tooltip("intensity:Q", title="FLOP/byte", format=".3~g"),
                alt.Tooltip("rate:Q", title="TFLOP/s", format=".3~g"),
                alt.Tooltip("ms:Q", title="time [ms]", format=".3~g"),
            ],
        )
    )
    lines = alt.Chart(roofs(found.spec, dots)).mark_line(opacity=0.6)
    return lines.encode(x=x, y=y, detail="roof:N", tooltip=["roof:N"]) + points


def roofs(spec: AcceleratorSpec, dots: pd.DataFrame) -> pd.DataFrame:
    """Return the attainable rate of each precision over intensity: min(peak, bandwidth x I).

    Parameters
    ----------
    spec : AcceleratorSpec
        Peaks and bandwidth.
    dots : DataFrame
        Operators, for the span of intensities.

    Returns
    -------
    DataFrame
        roof (precision), intensity [FLOP/byte], rate [TFLOP/s].
    """
    low = min(1.0, float(dots["intensity"].min()))
    reach = np.geomspace(low, max(1e4, float(dots["intensity"].max())), POINTS)
    parts = [
        pd.DataFrame(
            {
                "roof": name,
                "intensity": reach,
                "rate": np.minimum(peak.value, spec.memory_bytes_per_s * reach) / 1e12,
            }
        )
        for name, peak in spec.peaks.given().items()
    ]
    return pd.concat(parts, ignore_index=True)


def explanation_html(found: Explanation) -> str:
    """Return the page of an explanation as text."""
    load, plan = found.load, found.plan
    words = (
        f"{found.model.name} on {found.spec.name}: {load.batch} sequences decoding at "
        f"{load.context} tokens; a prompt of {load.prompt} tokens"
    )
    memory = (
        f"weights {plan.weights / 1e9:.1f} GB, activations {plan.activations / 1e9:.1f} GB, "
        f"workspaces {plan.reserved / 1e9:.1f} GB, KV cache {max(plan.kv, 0) / 1e9:.1f} GB of "
        f"{plan.usable / 1e9:.1f} GB usable; {found.kv_bytes_per_token / 1024:.1f} KiB per token"
    )
    parts = {
        "title": html.escape(f"Explained: {found.model.name} on {found.spec.name}"),
        "subtitle": html.escape(words),
        "phases": _table(found.phases),
        "operators": _table(found.operators),
        "memory": html.escape(memory),
        "largest": _table(found.largest()),
        "spec": json_script(roofline_chart(found).to_dict()),
        "vega": f"<script>{vega_script()}</script>",
    }
    return PAGE.substitute(parts)


def _table(table: pd.DataFrame) -> str:
    rounded = table.copy()
    for name in rounded.select_dtypes("number"):
        rounded[name] = [f"{value:.4g}" for value in rounded[name]]
    return str(rounded.to_html(index=False, border=0, na_rep=""))
