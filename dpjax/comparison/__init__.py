"""NOT PRIVATE: algorithms side by side on one table, by exact values of its records."""

from dpjax.comparison.results import Results, Row
from dpjax.comparison.runner import Comparison

__all__ = ["Comparison", "Results", "Row"]
