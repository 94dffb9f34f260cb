"""Metrics of a simulation: one function with one decorator each.

Lists on the command line, the table of the report and the page follow from the registry.
"""

from sim.metrics import (
    devices,
    drafting,
    energy,
    fleet,
    latency,
    money,
    queueing,
    rates,
    reuse,
    waits,
)
from sim.metrics.base import Metric, Observed, distribution, metric, metrics, weighted_percentile
from sim.metrics.summary import by_group, measure, metric_table, summary
from sim.metrics.window import Window, mser, observation_window

__all__ = [
    "Metric",
    "Observed",
    "Window",
    "by_group",
    "devices",
    "distribution",
    "drafting",
    "energy",
    "fleet",
    "latency",
    "measure",
    "metric",
    "metric_table",
    "metrics",
    "money",
    "mser",
    "observation_window",
    "queueing",
    "rates",
    "reuse",
    "summary",
    "waits",
    "weighted_percentile",
]
