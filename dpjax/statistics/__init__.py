"""Private numbers by one noisy histogram: a first look at a table, and a model's evaluation."""

from dpjax.statistics.bins import Bins, Estimate, Summary
from dpjax.statistics.description import Description, Plan, PrivateBounds, describe, plan
from dpjax.statistics.evaluation import Evaluation, evaluate

__all__ = [
    "Bins",
    "Description",
    "Estimate",
    "Evaluation",
    "Plan",
    "PrivateBounds",
    "Summary",
    "describe",
    "evaluate",
    "plan",
]
