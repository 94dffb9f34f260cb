"""Errors of fleets computed once and kept: tensor ranks, splits, accelerators left out."""

import pandas as pd

from validation import left_out, pd_ratio, silicon_e2e
from validation.text import TextTable, percent

__all__ = [
    "fleet_errors",
    "fleet_rows",
    "fleet_table",
    "left_out_errors",
    "left_out_rows",
    "left_out_table",
    "split_table",
    "splits",
]

SYSTEMS = {"h100_sxm": "H100", "h200_sxm": "H200", "b200_sxm": "B200"}
ENGINES = {"vllm": "vLLM", "trtllm": "TensorRT-LLM", "sglang": "SGLang"}
WORDS = {"tpot": "TPOT mean", "ttft": "TTFT mean"}


def fleet_errors() -> pd.DataFrame:
    """Return what `validation.silicon_e2e` found, as `judge` returns it."""
    return silicon_e2e.stored()


def left_out_errors() -> pd.DataFrame:
    """Return what `validation.left_out` found, as `judge` returns it."""
    return left_out.stored()


def left_out_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return TPOT errors of accelerators left out as rows of the table of all cases."""
    if table.empty:
        return pd.DataFrame()
    whole = table["backend"] == "all"
    engines = table["backend"].map(ENGINES).fillna("all engines")
    return pd.DataFrame(
        {
            "family": "datasheet only",
            "case": table["system"].map(SYSTEMS) + ", " + engines,
            "figure": "median |error| of Llama TPOT, accelerator left out",
            "unit": "1",
            "predicted": pd.NA,
            "measured": pd.NA,
            "error": table["median"],
            "low": pd.NA,
            "high": table["p90"],
            "limit": table["limit"].where(whole, pd.NA),
            "fitted": "no",
            "source": silicon_e2e.SOURCE,
            "licence": silicon_e2e.LICENCE,
        }
    )


def left_out_table(table: pd.DataFrame) -> TextTable:
    """Return TPOT errors of accelerators whose kernels came from the others."""
    rows = []
    for row in table.to_dict("records"):
        whole = row["backend"] == "all"
        held = "held" if row["median"] <= row["limit"] else "missed"
        sizes = (percent(row["median"], sign=False), percent(row["p90"], sign=False))
        case = [SYSTEMS[row["system"]], ENGINES.get(row["backend"], "all")]
        rows.append([*case, str(row["rows"]), percent(row["bias"]), *sizes, held if whole else ""])
    about = (
        "TPOT of the Llama rows of Tensor ranks, each accelerator with the kernels that the others "
        "give; engine profiles as there (some saw rows of the accelerator), so kernels alone are "
        f"carried over. Limit {percent(left_out.LIMIT, sign=False)} per accelerator. Kept from the "
        "last python -m validation.left_out."
    )
    columns = ["left out", "engine", "rows", "signed", "median |error|", "p90", "limit"]
    return TextTable("Datasheet only, Llama TPOT", about, columns, rows)


def splits() -> pd.DataFrame:
    """Return what `validation.pd_ratio` found, as `winners` returns it."""
    return pd_ratio.winners(pd_ratio.stored())


def _cases(table: pd.DataFrame) -> list[str]:
    names = zip(table["system"], table["backend"], table["tp_size"], strict=True)
    return [f"{SYSTEMS[s]}, {ENGINES[b]}, tp {t}" for s, b, t in names]


def fleet_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return errors by system, engine and ranks as rows of the table of all cases."""
    if table.empty:
        return pd.DataFrame()
    parts = [
        pd.DataFrame(
            {
                "family": "tensor ranks",
                "case": _cases(table),
                "figure": f"median |error| of {words}",
                "unit": "1",
                "predicted": pd.NA,
                "measured": pd.NA,
                "error": table[f"{name}_median"],
                "low": pd.NA,
                "high": pd.NA,
                "limit": table[f"{name}_limit"],
                "fitted": table["fitted"],
                "source": silicon_e2e.SOURCE,
                "licence": silicon_e2e.LICENCE,
            }
        )
        for name, words in WORDS.items()
    ]
    return pd.concat(parts, ignore_index=True)


def fleet_table(table: pd.DataFrame) -> TextTable:
    """Return errors of TPOT and TTFT by system, engine and ranks."""
    rows = []
    for case, row in zip(_cases(table), table.to_dict("records"), strict=True):
        held = all(row[f"{name}_median"] <= row[f"{name}_limit"] for name in WORDS)
        figures = [
            percent(row[f"{name}_{kind}"], sign=kind == "bias")
            for name in WORDS
            for kind in ("bias", "median")
        ]
        rows.append([case, str(row["rows"]), row["fitted"], *figures, "held" if held else "missed"])
    columns = ["case", "rows", "fitted", "TPOT", "|TPOT|", "TTFT", "|TTFT|", "limits"]
    limits = " and ".join(
        f"{percent(limit, sign=False)} ({name.upper()})"
        for name, limit in silicon_e2e.LIMITS.items()
    )
    about = (
        "Llama served on one to eight GPUs, signed and absolute median errors of means over "
        f"requests; limits {limits}. Fitted: the engine's profile saw these rows. Kept from the "
        "last python -m validation.silicon_e2e: the raw table is not part of the project."
    )
    return TextTable("Tensor ranks", about, columns, rows)


def split_table(found: pd.DataFrame) -> TextTable:
    """Return the best split of prefill and decode workers of every load."""
    judged = found[found["judged"]]
    rows = [
        [
            f"{row['isl']} in, {row['osl']} out, {row['conc']} users",
            str(row["measured"]),
            percent(row["lead"], sign=False),
            str(row["predicted"]),
            ("right" if row["right"] else "wrong") + ("" if row["judged"] else ", not judged"),
        ]
        for row in found.to_dict("records")
    ]
    about = (
        "gpt-oss-120b on eight H200 in workers of two, SGLang, by dstack: which split has most "
        f"tokens/s. Right in {judged['right'].sum()} of the {len(judged)} loads whose lead exceeds "
        f"{percent(pd_ratio.LEAD, sign=False)}. Kept from the last python -m validation.pd_ratio."
    )
    columns = ["load", "measured best", "lead", "predicted best", ""]
    return TextTable("Prefill and decode workers", about, columns, rows)
