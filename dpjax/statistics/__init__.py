"""Private numbers by one noisy histogram: a first look at a table, and a model's evaluation."""

from dpjax.statistics.bins import Bins
from dpjax.statistics.bounds import PrivateBounds
from dpjax.statistics.description import Description, Plan, describe, plan
from dpjax.statistics.evaluation import Evaluation, evaluate
from dpjax.statistics.summary import Estimate, Summary

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
