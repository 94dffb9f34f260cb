"""Chart of a prefix cache: hit rate against its size."""

import altair as alt
import pandas as pd

__all__ = ["cache_chart"]

HEIGHT = 240


def cache_chart(curve: pd.DataFrame, pool_bytes: float) -> alt.LayerChart:
    """Return hit rates by cache size, with a rule at the KV pool of a replica [byte]."""
    shown = curve.assign(gb=(curve["capacity_bytes"] / 1e9).round(4))
    rows = shown.melt(["gb"], ["tokens_hit", "blocks_hit"], "what", "share")
    rows["what"] = rows["what"].str.removesuffix("_hit")
    lines = (
        alt.Chart(rows, height=HEIGHT)
        .mark_line(interpolate="step-after")
        .encode(
            x=alt.X("gb:Q", title="KV cache kept [GB]").scale(type="log"),
            y=alt.Y("share:Q", title="share of prompts found").axis(format="%"),
            color=alt.Color("what:N", legend=alt.Legend(title=None, orient="top")).scale(
                range=["#0072B2", "#E69F00"]
            ),
            tooltip=[
                "what:N",
                alt.Tooltip("gb:Q", format=".3~g"),
                alt.Tooltip("share:Q", format=".1%"),
            ],
        )
    )
    rule = alt.Chart(pd.DataFrame({"gb": [pool_bytes / 1e9]})).mark_rule(strokeDash=[4, 4])
    both: alt.LayerChart = lines + rule.encode(x="gb:Q")
    return both
