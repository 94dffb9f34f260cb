"""Join hardware, workloads and policies into a simulated deployment."""

from sim.scenario import Scenario, load_scenario
from sim.simulation import Result, simulate

__all__ = ["Result", "Scenario", "load_scenario", "simulate"]
