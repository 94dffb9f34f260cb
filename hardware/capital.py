"""Capital and running cost: annuity, salvage, present value, owning, energy, facility.

Amounts are in one currency of one price year, whichever the caller chose; rates are real (without
inflation) unless all amounts are nominal.

References
----------
.. [1] W. Short, D. J. Packey, T. Holt, "A Manual for the Economic Evaluation of Energy
   Efficiency and Renewable Energy Technologies", NREL/TP-462-5173, 1995.
.. [2] The Green Grid, "PUE: A Comprehensive Examination of the Metric", White Paper 49, 2012.
"""

from collections.abc import Sequence
from math import inf, isinf

from formats import InputError

__all__ = [
    "HOURS_PER_MONTH",
    "HOURS_PER_YEAR",
    "JOULES_PER_KWH",
    "annuity",
    "capital_recovery_factor",
    "energy_cost",
    "facility_cost",
    "need",
    "npv",
    "owned_cost_per_hour",
    "salvage_value",
]

HOURS_PER_YEAR = 8760.0
HOURS_PER_MONTH = HOURS_PER_YEAR / 12
JOULES_PER_KWH = 3.6e6


def need(name: str, value: float, low: float = 0.0, high: float = inf, finite: bool = True) -> None:
    """Refuse a value outside low..high, or infinite where `finite`, naming it.

    Raises
    ------
    InputError
        The value is out of range or not a number.

    Examples
    --------
    >>> need("rate", -0.1)
    Traceback (most recent call last):
    formats.errors.InputError: money: rate = -0.1 (allowed: 0 or more, finite); mend that value
    """
    if not low <= value <= high or (finite and isinf(value)):
        allowed = f"{low:g} .. {high:g}" if high < inf else f"{low:g} or more, finite"
        raise InputError(f"{name} = {value:g}", "money", allowed, "mend that value")


def capital_recovery_factor(rate: float, years: float) -> float:
    """Return the yearly share of a price that pays it back with interest.

    ``CRF = r (1 + r)^n / ((1 + r)^n - 1)`` [1]_; 1 / n at r = 0, r for an infinite life.

    Parameters
    ----------
    rate : float
        Discount rate, 0 or more [1/year].
    years : float
        Life, above 0, may be infinite [year].

    Returns
    -------
    float
        Share of the price per year [1/year].

    Raises
    ------
    InputError
        Life not above 0, rate below 0, or rate 0 with an infinite life.

    Examples
    --------
    Two payments at 10 %: p / 1.1 + p / 1.21 = 1 gives p = 1.21 / 2.1 = 0.576190...

    >>> round(capital_recovery_factor(0.10, 2), 6)
    0.57619
    >>> capital_recovery_factor(0, 5), capital_recovery_factor(0.08, float("inf"))
    (0.2, 0.08)
    """
    need("rate", rate, 0, 10)
    need("years", years, 1e-6, finite=False)
    if isinf(years):
        need("rate", rate, 1e-9, 10)
        return rate
    if rate == 0:
        return 1 / years
    return float(rate / (1 - (1 + rate) ** -years))


def annuity(price: float, rate: float, years: float, salvage: float = 0.0) -> float:
    """Return equal yearly payments for a purchase that is sold at the end.

    ``(price - salvage) CRF + salvage r``: the part used up is paid back, the part that comes back
    only bears interest; equal to ``price CRF - salvage SFF`` with SFF = CRF - r [1]_.

    Parameters
    ----------
    price, salvage : float
        Paid at the start, received at the end, salvage at most price [money].
    rate : float
        Discount rate [1/year].
    years : float
        Life [year].

    Returns
    -------
    float
        Payment [money/year].

    Examples
    --------
    100 for two years at 10 %, 21 back: 79 x 0.57619 + 21 x 0.1 = 47.619

    >>> round(annuity(100, 0.10, 2, salvage=21), 3)
    47.619
    """
    need("price", price)
    need("salvage", salvage, 0, price)
    return (price - salvage) * capital_recovery_factor(rate, years) + salvage * rate


def salvage_value(price: float, decline: float, years: float) -> float:
    """Return what is left of a price that declines by the same share each year.

    ``price (1 - d)^n``, declining-balance depreciation.

    Parameters
    ----------
    price : float
        Price when new [money].
    decline : float
        Share lost per year, 0 .. 1 [1/year].
    years : float
        Age, 0 or more [year].

    Returns
    -------
    float
        Value [money].

    Examples
    --------
    >>> round(salvage_value(30_000, 0.2, 2), 2)
    19200.0
    """
    need("price", price)
    need("decline", decline, 0, 1)
    need("years", years)
    return float(price * (1 - decline) ** years)


def npv(rate: float, flows: Sequence[float]) -> float:
    """Return the net present value of yearly cash flows; the first is now.

    ``sum of flow_t / (1 + r)^t`` for t = 0, 1, ... [1]_.

    Parameters
    ----------
    rate : float
        Discount rate [1/year].
    flows : sequence of float
        Money received (+) or paid (-) at the start of each year [money].

    Returns
    -------
    float
        Present value [money].

    Examples
    --------
    -100 + 60 / 1.1 + 60 / 1.21 = 4.1322

    >>> round(npv(0.10, [-100, 60, 60]), 4)
    4.1322
    """
    need("rate", rate, 0, 10)
    return float(sum(flow / (1 + rate) ** t for t, flow in enumerate(flows)))


def owned_cost_per_hour(
    price: float,
    rate: float,
    years: float,
    salvage: float = 0.0,
    maintenance: float = 0.0,
    availability: float = 1.0,
) -> float:
    """Return the cost of owning, per hour that the machine is available, without energy.

    ``(annuity + maintenance x price) / (8760 x availability)``.

    Parameters
    ----------
    price, salvage : float
        See `annuity`; give the price per accelerator, with its share of the server [money].
    rate, years : float
        Discount rate [1/year] and life [year].
    maintenance : float
        Yearly service and spares, share of the price, 0 .. 1 [1/year].
    availability : float
        Share of hours in which it can work, above 0 up to 1.

    Returns
    -------
    float
        Cost [money/h].

    Examples
    --------
    8760 over one year without interest is 1 per hour, 2 if available half of the time:

    >>> owned_cost_per_hour(8760, 0, 1), owned_cost_per_hour(8760, 0, 1, availability=0.5)
    (1.0, 2.0)
    """
    need("maintenance", maintenance, 0, 1)
    need("availability", availability, 1e-6, 1)
    yearly = annuity(price, rate, years, salvage) + maintenance * price
    return yearly / (HOURS_PER_YEAR * availability)


def energy_cost(joules: float, per_kwh: float, pue: float = 1.0) -> float:
    """Return the cost of electricity.

    ``joules / 3.6e6 x PUE x tariff``; power usage effectiveness (PUE) is facility energy over
    IT energy [2]_.

    Parameters
    ----------
    joules : float
        Energy of the IT equipment [J].
    per_kwh : float
        Tariff [money/kWh].
    pue : float
        1 or more.

    Returns
    -------
    float
        Cost [money].

    Examples
    --------
    2 kWh at 0.10 and PUE 1.5:

    >>> round(energy_cost(7.2e6, 0.10, 1.5), 12)
    0.3
    """
    need("joules", joules)
    need("tariff", per_kwh)
    need("pue", pue, 1, 10)
    return joules / JOULES_PER_KWH * pue * per_kwh


def facility_cost(watts: float, per_kw_month: float, seconds: float) -> float:
    """Return the cost of space, power path and cooling, which is sold by reserved power.

    ``kW x price x months`` with 730 h per month.

    Parameters
    ----------
    watts : float
        Reserved IT power [W].
    per_kw_month : float
        Price, such as colocation's [money/(kW month)].
    seconds : float
        Time [s].

    Returns
    -------
    float
        Cost [money].

    Examples
    --------
    10.2 kW at 200 per kW-month for one month:

    >>> round(facility_cost(10_200, 200, 730 * 3600), 6)
    2040.0
    """
    need("power", watts)
    need("price per kW-month", per_kw_month)
    need("time", seconds)
    return watts / 1e3 * per_kw_month * seconds / 3600 / HOURS_PER_MONTH
