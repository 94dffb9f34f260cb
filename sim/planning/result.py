"""What a plan returns, as tables."""

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from sim.planning.breakeven import BreakEven, break_even
from sim.planning.energy import Footprint, footprint
from sim.planning.options import Option
from sim.planning.planfile import PlanFile
from sim.planning.rated import Fault, Rating
from sim.planning.supply import RANKS
from sim.planning.units import api_comparison
from sim.planning.verdict import Verdict, verdict

__all__ = ["PlanResult"]


@dataclass
class PlanResult:
    """A plan: options in order of cost, the best one's orders, and how sure all of it is.

    Attributes
    ----------
    file : PlanFile
        What was asked.
    options : list of Option
        Every way to have every candidate that can serve; those that can be had first, by cost.
    faults : dict of str to Fault
        Candidates that cannot serve the traffic at all, with the reason.
    best : Option
        The cheapest that can be had.
    schedule : DataFrame
        Its orders, see `purchase_plan`.
    doubts : DataFrame
        Bands and chances of every option, see `doubts`.
    tornado : DataFrame
        What matters for the best one, see `tornado`.
    list_prices : DataFrame
        List prices of APIs.
    assumptions : DataFrame
        Every number the plan rests on: item, value, unit, kind, source, date.
    ratings : dict of str to Rating or Fault
        What simulation found, for a later plan with other prices.
    """

    file: PlanFile
    options: list[Option]
    faults: dict[str, Fault]
    best: Option
    schedule: pd.DataFrame
    doubts: pd.DataFrame
    tornado: pd.DataFrame
    list_prices: pd.DataFrame
    assumptions: pd.DataFrame
    ratings: dict[str, Rating | Fault]

    def doubt(self, option: Option) -> dict[str, float]:
        """Return the row of `doubts` of an option."""
        rows = self.doubts
        own = rows["candidate"].eq(option.rating.candidate.name) & rows["way"].eq(option.bill.way)
        found = rows[own].iloc[0].drop(["candidate", "way"])
        return {str(key): float(value) for key, value in found.items()}

    @cached_property
    def verdicts(self) -> dict[str, Verdict]:
        """Candidate -> what limits it and how far it is from that."""
        return {
            o.rating.candidate.name: verdict(o.rating, o.fleet, self.file) for o in self.options
        }

    @cached_property
    def footprints(self) -> dict[str, Footprint]:
        """Option -> energy and carbon of its fleet."""
        return {o.name: footprint(o) for o in self.options}

    @cached_property
    def break_evens(self) -> dict[str, BreakEven]:
        """Candidate -> owning against renting."""
        return {o.rating.candidate.name: break_even(o) for o in self.options}

    @cached_property
    def api(self) -> pd.DataFrame:
        """The plan's tokens at list prices of APIs, see `api_comparison`."""
        best = self.best
        rate = best.pricing.site.discount_rate
        return api_comparison(self.list_prices, best.asked, rate, best.present)

    def table(self) -> pd.DataFrame:
        """Return plan.csv: one row per option, in order of cost.

        Returns
        -------
        DataFrame
            Money in the plan's currency; units are the suffixes of the columns.
        """
        return pd.DataFrame([self._row(option) for option in self.options]).merge(
            self.doubts, on=["candidate", "way"], how="left"
        )

    def _row(self, option: Option) -> dict[str, object]:
        candidate, peak = option.rating.candidate, option.rating.peak_quarter
        name = candidate.name
        seen, foot = self.verdicts[name], self.footprints[option.name]
        return {
            "candidate": name,
            "way": option.bill.way,
            "fits": option.fits,
            "mode": candidate.mode,
            "accelerator": "+".join(kind.accelerator for kind in candidate.kinds),
            "node": "+".join(kind.node for kind in candidate.kinds),
            "made_of": candidate.made_of,
            **{axis: getattr(candidate, axis) for axis in RANKS},
            "replicas": int(option.fleet.replicas[0, peak]),
            "nodes": int(option.fleet.nodes[0, peak]),
            "bought_share": option.bill.base if option.bill.way != "on-demand" else 0.0,
            "present_cost": option.present,
            "month_cost": option.month,
            "npv": option.npv,
            **{f"{kind}_per_million": value for kind, value in option.per_million.items()},
            "limit": seen.limit,
            "spare": seen.spare,
            "rate_spare": seen.rate_spare,
            "saturation_per_s": seen.saturation_per_s,
            "peak_w": float(option.peak_watts().max()),
            "energy_j": foot.energy_j,
            **{f"{kind}_token_j": joules for kind, joules in foot.per_token_j.items()},
            "all_per_output_token_j": foot.output_token_j,
            "carbon_g": foot.carbon_g,
            "break_even_utilisation": self.break_evens[name].utilisation,
            "fidelity": option.rating.fidelity,
            "fault": "" if option.fault is None else option.fault.what,
        }
