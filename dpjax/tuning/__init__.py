"""Private random search over settings: ``tune``, its ``plan``, and what they return."""

from dpjax.tuning.planning import SearchPlan, default_settings, expand, plan
from dpjax.tuning.score import PublicAccuracy
from dpjax.tuning.search import run_plan, tune
from dpjax.tuning.tuned import Tuned

__all__ = [
    "PublicAccuracy",
    "SearchPlan",
    "Tuned",
    "default_settings",
    "expand",
    "plan",
    "run_plan",
    "tune",
]
