"""Renting: on demand, reserved and spot, and when owning is cheaper."""

from math import inf

from hardware.capital import need

__all__ = [
    "break_even_hours",
    "break_even_utilisation",
    "rent_cost",
    "reserved_cost",
    "spot_rate",
]


def rent_cost(hours: float, per_hour: float, count: float = 1.0) -> float:
    """Return the cost of renting on demand: hours used times rate times machines.

    Parameters
    ----------
    hours : float
        Hours used [h].
    per_hour : float
        Rate [money/h].
    count : float
        Machines.

    Returns
    -------
    float
        Cost [money].

    Examples
    --------
    >>> rent_cost(10, 3.5, 8)
    280.0
    """
    for name, value in (("hours", hours), ("rate", per_hour), ("count", count)):
        need(name, value)
    return hours * per_hour * count


def reserved_cost(hours: float, committed: float, per_hour: float, overage: float) -> float:
    """Return the cost of a commitment that is paid whether used or not.

    ``committed x rate + max(0, hours - committed) x overage``.

    Parameters
    ----------
    hours, committed : float
        Hours used and hours committed [h].
    per_hour, overage : float
        Reserved rate, and on-demand rate of what goes beyond [money/h].

    Returns
    -------
    float
        Cost [money].

    Examples
    --------
    >>> reserved_cost(50, 100, 2.0, 3.0), reserved_cost(120, 100, 2.0, 3.0)
    (200.0, 260.0)
    """
    for name, value in (("hours", hours), ("committed hours", committed)):
        need(name, value)
    for name, value in (("reserved rate", per_hour), ("on-demand rate", overage)):
        need(name, value)
    return committed * per_hour + max(0.0, hours - committed) * overage


def spot_rate(per_hour: float, interruptions_per_hour: float, lost_hours: float) -> float:
    """Return the rate per useful hour of capacity that is taken away now and then.

    ``rate / (1 - f t)``: of each rented hour the share f t goes to draining, restarting and
    loading the model again.

    Parameters
    ----------
    per_hour : float
        Spot rate [money/h].
    interruptions_per_hour : float
        f, mean number of interruptions [1/h].
    lost_hours : float
        t, paid hours without useful work per interruption [h].

    Returns
    -------
    float
        Rate per useful hour [money/h].

    Raises
    ------
    InputError
        A value is negative, or interruptions eat all the time (f t at 1 or above).

    Examples
    --------
    One interruption in 10 h, 1 h lost: 0.9 of the time is useful, so 0.9 per hour becomes 1.

    >>> round(spot_rate(0.9, 0.1, 1.0), 12)
    1.0
    """
    need("spot rate", per_hour)
    need("interruptions per hour", interruptions_per_hour)
    need("lost hours", lost_hours)
    lost = interruptions_per_hour * lost_hours
    need("share of time lost to interruptions", lost, 0, 0.999)
    return per_hour / (1 - lost)


def break_even_utilisation(
    owned_per_hour: float, rent_per_hour: float, running_per_hour: float = 0.0
) -> float:
    """Return the share of hours in use above which owning is cheaper than renting on demand.

    Owning costs F every hour and v more in an hour of use, rent costs r in an hour of use only:
    ``F + u v = u r`` gives ``u = F / (r - v)``.

    Parameters
    ----------
    owned_per_hour : float
        F: capital, maintenance and hosting, see `owned_cost_per_hour` [money/h].
    rent_per_hour : float
        r [money/h].
    running_per_hour : float
        v: energy of an hour of use beyond idle [money/h].

    Returns
    -------
    float
        Share of hours; above 1 means that rent is always cheaper, infinite if r <= v.

    Examples
    --------
    >>> break_even_utilisation(1.0, 2.5, 0.5)
    0.5
    >>> break_even_utilisation(1.0, 0.4, 0.5)
    inf
    """
    need("owned cost", owned_per_hour)
    need("rent", rent_per_hour)
    need("running cost", running_per_hour)
    margin = rent_per_hour - running_per_hour
    return owned_per_hour / margin if margin > 0 else inf


def break_even_hours(price: float, rent_per_hour: float, running_per_hour: float = 0.0) -> float:
    """Return hours of use after which a purchase has cost less than rent, without interest.

    ``price / (r - v)``: the simple payback time.

    Parameters
    ----------
    price : float
        Purchase price [money].
    rent_per_hour, running_per_hour : float
        Rent, and hosting plus energy when owned [money/h].

    Returns
    -------
    float
        Hours; infinite if rent is below the running cost.

    Examples
    --------
    >>> break_even_hours(30_000, 3.0, 0.5)
    12000.0
    """
    need("price", price)
    need("rent", rent_per_hour)
    need("running cost", running_per_hour)
    margin = rent_per_hour - running_per_hour
    return price / margin if margin > 0 else inf
