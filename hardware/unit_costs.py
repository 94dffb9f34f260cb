"""Cost per unit of work and per request, carbon, and prices of other years.

References
----------
.. [1] Green Software Foundation, "Software Carbon Intensity", ISO/IEC 21031:2024.
.. [2] T. P. Wright, "Factors Affecting the Cost of Airplanes", J. Aeronaut. Sci. 3(4), 1936.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2

from formats import InputError
from hardware.capital import JOULES_PER_KWH, need

__all__ = [
    "Work",
    "carbon_grams",
    "cost_per_million_tokens",
    "cost_per_request",
    "in_price_year",
    "learned_price",
]


@dataclass(frozen=True, slots=True)
class Work:
    """What one class of tokens (input, cached, output) caused on a fleet.

    Parameters
    ----------
    tokens : float
        How many were served.
    seconds : float
        Accelerator time that they occupied [s].
    joules : float
        Energy that they took beyond idle [J].
    """

    tokens: float
    seconds: float
    joules: float


def cost_per_million_tokens(
    work: Mapping[str, Work], time_cost: float, energy_cost: float
) -> dict[str, float]:
    """Return the cost of a million tokens of each class, by the time and energy each caused.

    ``c_k = 1e6 (T s_k / sum s + E j_k / sum j) / n_k``. T holds all that is paid by time (capital,
    hosting, rent), idle hours included, so the classes together pay for idle time; E holds all
    electricity. Sum over classes of ``c_k n_k / 1e6`` equals T + E.

    Parameters
    ----------
    work : mapping of str to Work
        Class of token -> what it caused over the same period as the costs.
    time_cost : float
        T [money].
    energy_cost : float
        E [money].

    Returns
    -------
    dict of str to float
        Class -> cost [money per million tokens]; 0 for a class without tokens.

    Raises
    ------
    InputError
        Nothing was served, or a class has time or energy but no tokens.

    Examples
    --------
    Input takes a quarter of the time and half of the energy: (75 + 10) / 10 million tokens, and
    output (225 + 10) / 2 million.

    >>> work = {"input": Work(10e6, 1.0, 5.0), "output": Work(2e6, 3.0, 5.0)}
    >>> cost_per_million_tokens(work, time_cost=300, energy_cost=20)
    {'input': 8.5, 'output': 117.5}
    """
    need("time cost", time_cost)
    need("energy cost", energy_cost)
    for name, one in work.items():
        _check_work(name, one)
    seconds = sum(one.seconds for one in work.values())
    joules = sum(one.joules for one in work.values())
    if seconds <= 0 or (joules <= 0 < energy_cost):
        what = f"nothing was served: {seconds:g} s, {joules:g} J over all classes"
        raise InputError(what, "cost per token", repair="lengthen the run")
    per_second, per_joule = time_cost / seconds, energy_cost / joules if joules else 0.0
    return {
        name: 1e6 * (one.seconds * per_second + one.joules * per_joule) / one.tokens
        if one.tokens
        else 0.0
        for name, one in work.items()
    }


def _check_work(name: str, work: Work) -> None:
    for part in ("tokens", "seconds", "joules"):
        need(f"{name} {part}", getattr(work, part))
    if work.tokens == 0 and (work.seconds > 0 or work.joules > 0):
        what = f"{name} has {work.seconds:g} s and {work.joules:g} J but no tokens"
        raise InputError(what, "cost per token", repair="count its tokens")


def cost_per_request(tokens: Mapping[str, float], per_million: Mapping[str, float]) -> float:
    """Return the cost of one request from its tokens and the prices of a million.

    Parameters
    ----------
    tokens : mapping of str to float
        Class (input, cached, output) -> tokens of the request.
    per_million : mapping of str to float
        Class -> price [money per million tokens].

    Returns
    -------
    float
        Cost [money].

    Raises
    ------
    InputError
        A class has no price.

    Examples
    --------
    2000 x 2.5 + 500 x 10 = 10000 millionths:

    >>> cost_per_request({"input": 2000, "output": 500}, {"input": 2.5, "output": 10})
    0.01
    """
    total = 0.0
    for name, count in tokens.items():
        need(f"{name} tokens", count)
        if name not in per_million:
            known = ", ".join(per_million)
            raise InputError(f"no price for {name!r} tokens", "cost per request", known, "add it")
        need(f"price of {name}", per_million[name])
        total += count * per_million[name]
    return total / 1e6


def carbon_grams(
    joules: float, grams_per_kwh: float, pue: float = 1.0, embodied_grams: float = 0.0
) -> float:
    """Return grams of CO2 caused by electricity, plus a share of making the hardware.

    ``joules / 3.6e6 x PUE x intensity + embodied``, E x I + M of [1]_.

    Parameters
    ----------
    joules : float
        Energy of the IT equipment [J].
    grams_per_kwh : float
        Intensity of the grid [gCO2/kWh].
    pue : float
        Facility energy over IT energy, 1 or more.
    embodied_grams : float
        Share of manufacturing that falls on this work [gCO2].

    Returns
    -------
    float
        Emissions [gCO2].

    Examples
    --------
    2 kWh at 400 g/kWh and PUE 1.25:

    >>> carbon_grams(7.2e6, 400, 1.25)
    1000.0
    """
    need("joules", joules)
    need("grid intensity", grams_per_kwh, 0, 2000)
    need("pue", pue, 1, 10)
    need("embodied", embodied_grams)
    return joules / JOULES_PER_KWH * pue * grams_per_kwh + embodied_grams


def in_price_year(value: float, year: float, to_year: float, inflation: float) -> float:
    """Return an amount of one price year in the money of another.

    ``value (1 + i)^(to - from)``.

    Parameters
    ----------
    value : float
        Amount in money of `year` [money].
    year, to_year : float
        Price years.
    inflation : float
        Mean rate between them, above -1 [1/year].

    Returns
    -------
    float
        Amount in money of `to_year` [money].

    Examples
    --------
    >>> round(in_price_year(100, 2023, 2025, 0.10), 6)
    121.0
    >>> round(in_price_year(121, 2025, 2023, 0.10), 6)
    100.0
    """
    need("amount", value)
    need("year", year, 1900, 2200)
    need("year", to_year, 1900, 2200)
    need("inflation", inflation, -0.5, 5)
    return value * float((1 + inflation) ** (to_year - year))


def learned_price(price: float, volume_ratio: float, learning_rate: float) -> float:
    """Return a price after experience: it falls by the learning rate per doubling of volume.

    Wright's law [2]_, ``price x ratio^log2(1 - LR)``.

    Parameters
    ----------
    price : float
        Price now [money].
    volume_ratio : float
        Cumulative production then over now, 1 or more.
    learning_rate : float
        Share lost per doubling, 0 up to 0.9.

    Returns
    -------
    float
        Price then [money].

    Examples
    --------
    Two doublings at 20 %: 100 x 0.8 x 0.8

    >>> round(learned_price(100, 4, 0.2), 9)
    64.0
    """
    need("price", price)
    need("volume ratio", volume_ratio, 1)
    need("learning rate", learning_rate, 0, 0.9)
    return price * float(volume_ratio ** log2(1 - learning_rate))
