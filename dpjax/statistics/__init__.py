"""A first look at a table, privately: ``describe`` releases a histogram of every column, once."""

from dpjax.statistics.bins import Bins
from dpjax.statistics.description import Description, Plan, describe, plan
from dpjax.statistics.summary import Estimate, Summary

__all__ = ["Bins", "Description", "Estimate", "Plan", "Summary", "describe", "plan"]
