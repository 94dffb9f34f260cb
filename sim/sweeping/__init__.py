"""Sweeps: many scenarios over a grid, one table out, on one machine or many."""

from sim.sweeping.grid import Grid, points
from sim.sweeping.keys import Span
from sim.sweeping.run import sweep
from sim.sweeping.saturation import Saturation, saturation_curve

__all__ = ["Grid", "Saturation", "Span", "points", "saturation_curve", "sweep"]
