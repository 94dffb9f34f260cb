"""An explanation as a page that opens without a network: roofline, phases, operators, memory."""

import html
from string import Template

import pandas as pd

from sim.charts_roofline import roofs
from sim.explain import Explanation
from sim.report import json_script, vega_script
from sim.roofline import memory_roofs, peak_roofs

__all__ = ["explanation_html"]

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
    chart = roofs(found.operators, peak_roofs(found.spec), memory_roofs(found.spec))
    parts = {
        "title": html.escape(f"Explained: {found.model.name} on {found.spec.name}"),
        "subtitle": html.escape(words),
        "phases": _table(found.phases),
        "operators": _table(found.operators),
        "memory": html.escape(memory),
        "largest": _table(found.largest()),
        "spec": json_script(chart.properties(width="container").to_dict()),
        "vega": f"<script>{vega_script()}</script>",
    }
    return PAGE.substitute(parts)


def _table(table: pd.DataFrame) -> str:
    rounded = table.copy()
    for name in rounded.select_dtypes("number"):
        rounded[name] = [f"{value:.4g}" for value in rounded[name]]
    return str(rounded.to_html(index=False, border=0, na_rep=""))
