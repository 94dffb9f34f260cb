"""From a demand to a bill of materials, money, watts and carbon.

>>> from sim.planning import PlanFile
>>> PlanFile(traffic=[{"requests_per_s": 3}], candidates=[{"accelerator": "h200-sxm"}]).name
'plan'
"""

from sim.planning.planfile import PlanFile, load_plan
from sim.planning.planner import plan
from sim.planning.result import PlanResult

__all__ = ["PlanFile", "PlanResult", "load_plan", "plan"]
