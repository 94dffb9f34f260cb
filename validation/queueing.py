"""Closed forms of queueing theory, to hold the simulator against.

All functions take an arrival rate [1/s] and service times [s] and return the mean behaviour in
steady state. They refuse a load of 1 or more, at which no steady state exists.

References
----------
.. [1] L. Kleinrock, "Queueing Systems, Volume I: Theory", Wiley, 1975.
.. [2] L. Kleinrock, "Queueing Systems, Volume II: Computer Applications", Wiley, 1976.
.. [3] J. D. C. Little, "A Proof for the Queuing Formula: L = lambda W", Operations Research 9(3),
   1961, https://doi.org/10.1287/opre.9.3.383
.. [4] Y. Inoue, "Queueing Analysis of GPU-Based Inference Servers with Dynamic Batching: A
   Closed-Form Characterization", Performance Evaluation 147, 2021,
   https://doi.org/10.1016/j.peva.2020.102183
"""

from dataclasses import dataclass
from math import inf

from formats import InputError

__all__ = [
    "Queue",
    "batch_capacity",
    "batch_response_bound",
    "erlang_c",
    "little",
    "md1",
    "mg1",
    "mg1_ps",
    "mm1",
    "mmc",
]


@dataclass(frozen=True, slots=True)
class Queue:
    """Mean behaviour of a queue in steady state.

    Attributes
    ----------
    load : float
        Share of capacity in use [1].
    wait_s : float
        Arrival to start of service [s].
    response_s : float
        Arrival to end of service [s].
    waiting, present : float
        Mean number in the queue, and in queue and service together.
    """

    load: float
    wait_s: float
    response_s: float
    waiting: float
    present: float


def _queue(arrival_per_s: float, load: float, wait_s: float, service_s: float) -> Queue:
    response = wait_s + service_s
    return Queue(
        load, wait_s, response, little(arrival_per_s, wait_s), little(arrival_per_s, response)
    )


def _load(arrival_per_s: float, service_s: float, servers: int = 1) -> float:
    """Return the load, or say that there is no steady state."""
    for name, value in (("arrival_per_s", arrival_per_s), ("service_s", service_s)):
        if not 0.0 < value < inf:
            raise InputError(f"{name} is {value:g}", name, "a positive number")
    if servers < 1:
        raise InputError(f"servers is {servers}", "servers", "1 or more")
    load = arrival_per_s * service_s / servers
    if load >= 1.0:
        what = f"the load is {load:.3g}: the queue grows without end"
        raise InputError(what, "arrival_per_s", f"below {servers / service_s:g} per second")
    return load


def little(arrival_per_s: float, time_s: float) -> float:
    """Return the mean number present where each stays `time_s`: L = lambda W [3]_.

    Examples
    --------
    >>> little(4.0, 0.5)
    2.0
    """
    return arrival_per_s * time_s


def mm1(arrival_per_s: float, service_s: float) -> Queue:
    """Return M/M/1: Poisson arrivals, exponential service, one server.

    See [1]_, section 3.2: response = service / (1 - load).

    Parameters
    ----------
    arrival_per_s : float
        Arrival rate [1/s], above 0.
    service_s : float
        Mean service time [s], above 0.

    Raises
    ------
    InputError
        The load is 1 or more.

    Examples
    --------
    >>> mm1(0.8, 1.0).response_s
    5.000000000000001
    """
    return mg1(arrival_per_s, service_s, 1.0)


def md1(arrival_per_s: float, service_s: float) -> Queue:
    """Return M/D/1: Poisson arrivals, constant service, one server; half the wait of M/M/1.

    Examples
    --------
    >>> round(md1(0.8, 1.0).wait_s, 12)
    2.0
    """
    return mg1(arrival_per_s, service_s, 0.0)


def mg1(arrival_per_s: float, service_s: float, squared_variation: float) -> Queue:
    """Return M/G/1, first come first served (Pollaczek-Khinchine).

    See [1]_, equation 5.71: wait = load / (1 - load) x service x (1 + c^2) / 2.

    Parameters
    ----------
    arrival_per_s, service_s : float
        Arrival rate [1/s] and mean service time [s].
    squared_variation : float
        c^2 = variance of the service time over its squared mean [1]; 0 constant, 1 exponential.

    Raises
    ------
    InputError
        The load is 1 or more, or the variation is negative.

    Examples
    --------
    >>> round(mg1(0.5, 1.0, 3.0).wait_s, 12)
    2.0
    """
    load = _load(arrival_per_s, service_s)
    if squared_variation < 0.0:
        raise InputError(f"squared_variation is {squared_variation:g}", allowed="0 or more")
    wait = load / (1.0 - load) * service_s * (1.0 + squared_variation) / 2.0
    return _queue(arrival_per_s, load, wait, service_s)


def erlang_c(arrival_per_s: float, service_s: float, servers: int) -> float:
    """Return the probability that an arrival has to wait in M/M/c (Erlang's C formula) [1].

    See [1]_, equation 3.40; computed by the stable recursion of Erlang's B formula.

    Examples
    --------
    >>> round(erlang_c(0.8, 1.0, 1), 12)
    0.8
    >>> round(erlang_c(8.0, 1.0, 10), 4)
    0.4092
    """
    load = _load(arrival_per_s, service_s, servers)
    offered, blocked = arrival_per_s * service_s, 1.0
    for n in range(1, servers + 1):
        blocked = offered * blocked / (n + offered * blocked)
    return blocked / (1.0 - load * (1.0 - blocked))


def mmc(arrival_per_s: float, service_s: float, servers: int) -> Queue:
    """Return M/M/c: Poisson arrivals, exponential service, `servers` servers, one queue.

    See [1]_, section 3.5: wait = C x service / (servers (1 - load)).

    Examples
    --------
    >>> round(mmc(8.0, 1.0, 10).wait_s, 4)
    0.2046
    """
    load = _load(arrival_per_s, service_s, servers)
    delayed = erlang_c(arrival_per_s, service_s, servers)
    wait = delayed * service_s / (servers * (1.0 - load))
    return _queue(arrival_per_s, load, wait, service_s)


def mg1_ps(arrival_per_s: float, service_s: float) -> Queue:
    """Return M/G/1 with processor sharing: all present share the server equally.

    See [2]_, section 4.4: response = service / (1 - load), whatever the distribution. Nobody waits
    for a start, so `wait_s` is the delay beyond service alone.

    Examples
    --------
    >>> round(mg1_ps(0.75, 1.0).response_s, 12)
    4.0
    """
    load = _load(arrival_per_s, service_s)
    return _queue(arrival_per_s, load, service_s / (1.0 - load) - service_s, service_s)


def batch_capacity(fixed_s: float, item_s: float, largest: int) -> float:
    """Return the greatest rate of a server that takes up to `largest` at once [1/s].

    Parameters
    ----------
    fixed_s, item_s : float
        A batch of b takes fixed_s + b x item_s [s].
    largest : int
        Largest batch.

    Examples
    --------
    >>> batch_capacity(0.01, 0.001, 10)
    500.0
    """
    return largest / (fixed_s + item_s * largest)


def batch_response_bound(arrival_per_s: float, fixed_s: float, item_s: float) -> float:
    """Return an upper bound, close at high load, of the mean response of batch service [s].

    Poisson arrivals; an idle server takes all that wait; a batch of b takes fixed_s + b x item_s.
    See [4]_, theorem 2 (second bound): 3/2 t0 / (1 - l a) + a/2 (l a + 2) / (1 - l^2 a^2) with
    l = arrival rate, a = `item_s`, t0 = `fixed_s`.

    Raises
    ------
    InputError
        Arrivals times `item_s` is 1 or more.

    Examples
    --------
    >>> round(batch_response_bound(0.5, 1.0, 1.0), 3)
    4.667
    """
    load = _load(arrival_per_s, item_s)
    fixed = 1.5 * fixed_s / (1.0 - load)
    return fixed + 0.5 * item_s * (load + 2.0) / (1.0 - load * load)
