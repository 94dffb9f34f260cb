"""Fitting of named workloads to traces: ``python -m workloads.fit_workloads TRACES OUT``.

Makes the files of ``data/workloads`` whose kind is "fitted": their arrivals come from the public
traces named in them, their objectives from `OBJECTIVES` below.
"""

from collections.abc import Callable
from pathlib import Path

from workloads.arrival_specs import Client, Clients, Shaped
from workloads.fit_lengths import write_fits
from workloads.named import NamedWorkload, Objectives
from workloads.servegen import WINDOW_S, read_client_rates
from workloads.synthesis import fit_arrivals
from workloads.traces import day_shape, read_trace

__all__ = ["FITS", "fit_clients", "main"]

AZURE = "github.com/Azure/AzurePublicDataset at b469a113 (CC-BY-4.0, Microsoft Azure)"
SERVEGEN = "github.com/alibaba/ServeGen at f891d118 (Apache-2.0, Alibaba)"
INTERACTIVE = Objectives(
    ttft_s=0.45,
    tpot_s=0.04,
    percentile=99,
    kind="assumption",
    source="MLPerf Inference v5.1, llama2-70b interactive",
)
COMPLETION = Objectives(
    ttft_s=0.125,
    tpot_s=0.2,
    percentile=90,
    kind="assumption",
    source="code completion in Zhong et al., DistServe, OSDI 2024; not re-read in the paper",
)
REASONING = Objectives(
    ttft_s=2.0,
    tpot_s=0.08,
    percentile=99,
    kind="assumption",
    source="MLPerf Inference v5.1, deepseek-r1 server; not re-read in the rules",
)
IMAGES = Objectives(
    ttft_s=2.0,
    tpot_s=0.05,
    percentile=95,
    kind="assumption",
    source="rule: a second more than for text, reading at 20 tokens a second",
)


def fit_clients(path: Path, rate_per_s: float = 1.0, least_share: float = 0.01) -> Clients:
    """Return the clients of a ServeGen table with their shares of a total rate.

    Parameters
    ----------
    path : Path
        A table of client rates.
    rate_per_s : float
        Total rate of the result in request/s.
    least_share : float
        Clients below this share of the requests become one, "others".

    Returns
    -------
    Clients
        Rates in proportion to the requests of each client; variation of gaps as its mean over
        windows, weighted by requests; the family that most requests follow.
    """
    rows = read_client_rates(path)
    rows["weighted_cv"] = rows["cv"] * rows["rate_per_s"]
    rows["weibull"] = (rows["family"] == "weibull") * rows["rate_per_s"]
    total = rows.groupby("client")[["rate_per_s", "weighted_cv", "weibull"]].sum()
    total["share"] = total["rate_per_s"] / total["rate_per_s"].sum()
    total = total.sort_values("share", ascending=False)
    kept = total[total["share"] >= least_share]
    cv = (kept["weighted_cv"] / kept["rate_per_s"]).round(3)
    weibull = kept["weibull"] > kept["rate_per_s"] / 2
    clients = [
        Client(name=n, rate_per_s=r, cv=c, family="weibull" if w else "gamma")
        for n, r, c, w in zip(
            kept.index.to_list(),
            (rate_per_s * kept["share"]).round(5).to_list(),
            cv.to_list(),
            weibull.to_list(),
            strict=True,
        )
    ]
    rest = 1.0 - float(kept["share"].sum())
    others = [Client(name="others", rate_per_s=round(rate_per_s * rest, 5))] if rest > 0 else []
    return Clients(clients=[*clients, *others])


def fit_week(path: Path, rate_per_s: float = 1.0) -> Shaped:
    """Return the daily and weekly shape of the total rate in a ServeGen table."""
    rows = read_client_rates(path)
    total = rows.groupby("start_s")["rate_per_s"].sum()
    hourly, daily = day_shape(total.index.to_numpy(), weights=total.to_numpy() * WINDOW_S)
    return Shaped(rate_per_s=rate_per_s, hourly=hourly, daily=daily)


def _azure(folder: Path, which: str, name: str, objectives: Objectives) -> NamedWorkload:
    trace = read_trace(folder / f"azure2023_{which}.csv.gz")
    return NamedWorkload(
        name=name,
        description="One hour of the service in November 2023: its rate, gaps and lengths.",
        kind="fitted",
        source=f"Azure LLM inference trace 2023, {which}: {AZURE}; quantiles of the gaps",
        arrivals=fit_arrivals(trace["arrival_s"]),
        lengths=f"azure-{which}",
        objectives=objectives,
        duration_s=3600,
    )


def _clients(
    folder: Path, which: str, name: str, lengths: str, objectives: Objectives
) -> NamedWorkload:
    return NamedWorkload(
        name=name,
        description="One day's clients by their share of the requests, at 1 request/s in all.",
        kind="fitted",
        source=f"ServeGen, {which}: {SERVEGEN}; mean rate and variation of each client",
        arrivals=fit_clients(folder / f"servegen_{which}_client_rates.csv.gz"),
        lengths=lengths,
        objectives=objectives,
        duration_s=600,
    )


def _week(folder: Path) -> NamedWorkload:
    return NamedWorkload(
        name="Chat over a week",
        description="Chat with the daily and weekly shape of a large API, at 1 request/s on "
        "average; the first day is the first of the trace, the hours are those of its clock.",
        kind="fitted",
        source=f"ServeGen, m-small: {SERVEGEN}; hourly and daily means over two weeks",
        arrivals=fit_week(folder / "servegen_language_m-small_client_rates.csv.gz"),
        lengths="azure-conv",
        objectives=INTERACTIVE,
        duration_s=7 * 86400,
    )


FITS: dict[str, Callable[[Path], NamedWorkload]] = {
    "azure-conv": lambda folder: _azure(folder, "conv", "Azure 2023 conversation", INTERACTIVE),
    "azure-code": lambda folder: _azure(folder, "code", "Azure 2023 code", COMPLETION),
    "reasoning": lambda folder: _clients(
        folder, "reason_deepseek-r1", "Reasoning", "reasoning", REASONING
    ),
    "image-questions": lambda folder: _clients(
        folder, "multimodal_mm-image", "Questions about images", "image-questions", IMAGES
    ),
    "chat-week": _week,
}


def main(arguments: list[str] | None = None) -> int:
    """Fit every workload of `FITS` and write its file; return the exit code."""
    return write_fits(FITS, "workloads", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
