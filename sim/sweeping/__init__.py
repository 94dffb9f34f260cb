"""Sweeps: many scenarios over a grid, one table out, on one machine or many."""

from sim.sweeping.grid import Grid, load_grid, points
from sim.sweeping.pool import executor
from sim.sweeping.run import sweep, sweep_grid

__all__ = ["Grid", "executor", "load_grid", "points", "sweep", "sweep_grid"]
