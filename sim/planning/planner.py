"""`plan`: rate every candidate, size and price its fleets, and say how sure that is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from formats import InputError, check
from sim.planning.load import Load
from sim.planning.model_error import capacity_error
from sim.planning.money import Pricing
from sim.planning.options import Option, doubts, evaluate, tornado
from sim.planning.planfile import PlanFile, load_plan
from sim.planning.pooled import best_counts
from sim.planning.prices import Ledger, SitePrices, api_prices, candidate_prices, note_power
from sim.planning.rated import Fault, Rating
from sim.planning.raters import fingerprint, rate_all
from sim.planning.rating import Bench
from sim.planning.result import PlanResult
from sim.planning.schedule import purchase_plan
from sim.planning.supply import Candidate, expand
from sim.planning.worlds import Sample

__all__ = ["plan"]

Progress = Callable[[float, str], None]
RATED = 0.9  # share of the progress when all candidates are rated


def plan(
    demand: PlanFile | Path | dict[str, Any],
    base: Path | None = None,
    workers: int = 1,
    progress: Progress | None = None,
    earlier: PlanResult | None = None,
) -> PlanResult:
    """Return how many of what to have when, at what cost, and how sure that is.

    Parameters
    ----------
    demand : PlanFile, Path or dict
        A plan, its file, or its content.
    base : Path, optional
        Folder that relative paths start from; none = that of the file.
    workers : int
        Processes that rate candidates; 1 = this one. The result does not depend on it.
    progress : callable, optional
        Called with the share done [0..1] and what is being done.
    earlier : PlanResult, optional
        Its simulations serve again for candidates of which only money, site or doubt have changed:
        a what-if on prices takes a fraction of a second.

    Raises
    ------
    InputError
        Something in the plan is wrong, or no candidate fits: the message says why for each.

    Examples
    --------
    >>> result = plan({"traffic": [{"requests_per_s": 1, "shape": "flat"}],
    ...                "candidates": [{"accelerator": "h200-sxm", "node": "none"}],
    ...                "search": {"requests": 100, "replicas": 1, "caps": []},
    ...                "uncertainty": {"samples": 8}, "horizon": {"quarters": 1}})
    >>> int(result.best.fleet.replicas[0, 0])
    1
    """
    file, folder = _read(demand, base)
    tell = progress or (lambda _share, _text: None)
    load, ledger = Load.of(file, folder), Ledger(file)
    site = SitePrices.of(ledger)
    candidates = [
        settled(c, load, file, ledger) if c.unsettled else c
        for c in expand(file.candidates, file.model)
    ]
    prices = [
        Pricing.of(file, site, [candidate_prices(kind, ledger) for kind in c.kinds])
        for c in candidates
    ]
    known = {} if earlier is None else earlier.ratings
    ratings = rate_all(candidates, load, file, known, workers, lambda s, t: tell(RATED * s, t))
    options, faults = _options(candidates, ratings, load, prices)
    fitting = [option for option in options if option.fits]
    if not fitting:
        raise _nothing_fits(options, faults)
    best = min(fitting, key=lambda option: option.present)
    note_power(ledger)
    tell(RATED, "sampling worlds")
    sample = _sample(file, [o.rating for o in options], ledger)
    result = PlanResult(
        file=file,
        options=sorted(options, key=lambda option: (not option.fits, option.present)),
        faults=faults,
        best=best,
        schedule=purchase_plan(best, load),
        doubts=doubts(options, load, sample),
        tornado=tornado(best, load, sample),
        list_prices=api_prices(ledger, best.rating.candidate.model),
        assumptions=ledger.table(),
        ratings={fingerprint(c, file): r for c, r in zip(candidates, ratings, strict=True)},
    )
    tell(1.0, "done")
    return result


def settled(candidate: Candidate, load: Load, file: PlanFile, ledger: Ledger) -> Candidate:
    """Return a candidate with the ratio of prefill to decode that, by the bound, costs least rent.

    The requests are those of the plan's busiest hour. One that cannot be deployed, and batch work
    alone, keep 1:1.
    """
    if not load.classes:
        return candidate.with_counts((1, 1))
    rates, _ = load.peak(np.ones(len(load.classes)))
    shares, peak = rates / rates.sum(), float(rates.sum())
    hourly = [candidate_prices(part.design, ledger).on_demand for part in candidate.parts]
    bench = Bench(candidate.with_counts((1, 1)), load, file.search, shares)
    try:
        made, mix = bench.deployments, bench.mix
        chosen = best_counts(candidate, made, mix, bench.tpot_s, hourly, peak)
    except InputError:
        chosen = (1, 1)
    return candidate.with_counts(chosen)


def _read(demand: PlanFile | Path | dict[str, Any], base: Path | None) -> tuple[PlanFile, Path]:
    if isinstance(demand, PlanFile):
        return demand, base or Path()
    if isinstance(demand, dict):
        return check(demand, PlanFile, "plan"), base or Path()
    return load_plan(demand), base or demand.parent


def _options(
    candidates: list[Candidate],
    ratings: list[Rating | Fault],
    load: Load,
    prices: list[Pricing],
) -> tuple[list[Option], dict[str, Fault]]:
    """Return the options of all candidates that can serve, and why the others cannot."""
    options: list[Option] = []
    faults: dict[str, Fault] = {}
    for candidate, rating, pricing in zip(candidates, ratings, prices, strict=True):
        if isinstance(rating, Fault):
            faults[candidate.name] = rating
        else:
            options += evaluate(rating, load, pricing)
    return options, faults


def _nothing_fits(options: list[Option], faults: dict[str, Fault]) -> InputError:
    """Return the error that says for each candidate why it does not fit."""
    every = faults | {o.name: o.fault for o in options if o.fault is not None}
    lines = [f"{name}: {fault.what}" for name, fault in every.items()]
    repairs = list(dict.fromkeys(f.repair for f in every.values() if f.repair))
    return InputError(
        f"no candidate fits. {'; '.join(lines)}",
        "[[candidates]]",
        repair=" | ".join(repairs[:3]),
    )


def _sample(file: PlanFile, ratings: list[Rating], ledger: Ledger) -> Sample:
    """Return the sampled worlds, the model's own error noted with its source."""
    limits = {}
    for rating in [one for whole in ratings for one in whole.machines]:
        chip = rating.candidate.accelerator
        error = capacity_error(rating.deployment.fidelity, rating.deployment.spec.kind)
        limits[chip] = file.uncertainty.model or error.limits
        kind = "given" if file.uncertainty.model else error.kind
        source = "plan file" if file.uncertainty.model else error.source
        low, high = limits[chip]
        ledger.note(f"model error {chip}", f"{low:.3g} .. {high:.3g}", "P10 .. P90", kind, source)
    for name in ("demand", "growth", "prompt", "output", "electricity", "price", "rent"):
        low, high = getattr(file.uncertainty, name)
        given = name in file.uncertainty.model_fields_set
        kind, source = (
            ("given", "plan file") if given else ("assumption", "rule: default of [uncertainty]")
        )
        ledger.note(f"doubt {name}", f"{low:.3g} .. {high:.3g}", "P10 .. P90", kind, source)
    return Sample(file.uncertainty, limits, file.search.seed)
