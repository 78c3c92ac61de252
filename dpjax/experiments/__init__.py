"""NOT PRIVATE: methods compared side by side; as an experiment."""

from dpjax.experiments.comparison import against_epsilon, compare
from dpjax.experiments.figures import Dots, Front, Lines, Picture
from dpjax.experiments.files import Plan, plan, redraw, run
from dpjax.experiments.metrics import METRICS, REFERENCES
from dpjax.experiments.results import Results, Row, read, write
from dpjax.experiments.spec import Experiment, Figure, Method, Problem, Tuning

__all__ = [
    "METRICS",
    "REFERENCES",
    "Dots",
    "Experiment",
    "Figure",
    "Front",
    "Lines",
    "Method",
    "Picture",
    "Plan",
    "Problem",
    "Results",
    "Row",
    "Tuning",
    "against_epsilon",
    "compare",
    "plan",
    "read",
    "redraw",
    "run",
    "write",
]
