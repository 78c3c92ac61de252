"""NOT PRIVATE: the convex ERM paper (Wang, Ye and Xu 2017): its problems, methods and settings."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from dpjax import datasets
from dpjax.algorithms import ALGORITHMS
from dpjax.baselines import BASELINES, ONE_RELEASE
from dpjax.reproduce import erm_claims
from dpjax.reproduce.study import Curve, Figure, Problem

TITLE = "Differentially Private Empirical Risk Minimization Revisited: Faster and More General"
REFERENCE = "Wang, Ye and Xu, NIPS 2017, tables 1 to 3"
EPSILONS = (0.2, 0.5, 1.0, 2.0)
# On the large data a point takes minutes.
_FEWER = (0.2, 1.0)
RELATION = "zero_out"
FACTORIES = {**ALGORITHMS, **BASELINES, **ONE_RELEASE}

GD, SVRG, EXACT, PLUS = "DP-GD", "DP-SVRG", "DP-SVRG, exact anchor", "DP-SVRG++"
SGD, NEWTON, TR, STR = "DP-SGD", "DP-Newton", "DP-TR", "DP-STR"
OUTPUT, OBJECTIVE, ACCMD = "output perturbation", "objective perturbation", "DP-AccMD"


@dataclasses.dataclass(frozen=True)
class Method(Curve):
    """A method of these tables; each is tuned alike, on seeds of their own.

    Args:
      tried: configurations, of which the best is taken: what its factory is given.
      refused: by the name of an objective, why the method is not there for it.
      domain: whether the convex set is given as ``domain`` and not as the regularizer.
    """

    tried: tuple[Mapping[str, Any], ...] = ({},)
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    domain: bool = False

    def drawn(self, problem: Problem) -> bool:
        """Returns whether there are results of it on ``problem``."""
        return super().drawn(problem) and problem.objective not in self.refused

    def trainings(self, seeds: int) -> int:
        """Returns how many trainings one point takes, those of the tuning included."""
        return seeds + (TUNED_ON * len(self.tried) if len(self.tried) > 1 else 0)


# Seeds on which a configuration is chosen; the results are those of others.
TUNED_ON = 2

_TABLE_1 = (GD, SVRG, EXACT, SGD, OUTPUT, OBJECTIVE, NEWTON, TR, STR)
_TABLE_2 = (GD, SVRG, PLUS, SGD, OUTPUT, OBJECTIVE, NEWTON, TR, STR)
_TABLE_3 = (GD, SGD, ACCMD)


def _problems(objective: str, methods: tuple[str, ...]) -> tuple[Problem, ...]:
    shared = {"traced": False, "relation": RELATION, "methods": methods}
    return (
        Problem("randhie", objective, 1_000, EPSILONS, **shared),
        Problem("ijcnn1", objective, 1_000, EPSILONS, **shared),
        Problem("covtype", objective, 4_000, _FEWER, **shared),
    )


# As many informative words as the data have, each of their weight: the ball holds the truth.
_BALL = Problem(
    "made",
    "logistic",
    200,
    EPSILONS,
    traced=False,
    rows=2_000,
    relation=RELATION,
    radius=40.0,
    features=4_000,
    methods=_TABLE_3,
)

FIGURES = {
    "table1": Figure(
        "risk",
        _problems("logistic-l2", _TABLE_1),
        "Strongly convex: logistic loss with l2 regularizer 1e-3.",
        _FEWER,
    ),
    "table2": Figure(
        "risk",
        _problems("logistic", _TABLE_2) + _problems("logistic-l1", _TABLE_2),
        "Convex: logistic loss without regularizer, and with the non-smooth l1 regularizer 1e-3.",
    ),
    "table3": Figure(
        "risk",
        (_BALL,),
        "High-dimensional: logistic loss on an l1 ball, more features than records.",
        EPSILONS,
    ),
}
# What the quick run of all keeps.
QUICK = (("ijcnn1", "logistic-l2"), ("made", "logistic"))
_QUICK_METHODS = (GD, SVRG, SGD, OUTPUT, ACCMD, TR)

_SECOND = {"logistic-l1": "it takes second derivatives of the whole objective"}
_STRONG = dict.fromkeys(
    ("logistic", "logistic-l1"),
    "its noise rests on strong convexity, which the objective has not",
)
CURVES = (
    Method(GD, "DP-GD", "dp-gd"),
    Method(TR, "DP-TR", "dp-tr", refused=_SECOND),
)
CONVENTIONS = (
    f"Neighbours are {RELATION} with delta = 1/n (the paper's are replace-one, where a record "
    "moves a sum twice as far);"
)
SETTINGS = (
    "Excess risks are exact values minus a certified optimum, mean and standard error. A gradient "
    "evaluation is one record's gradient: *declared* counts batches by their expected size, "
    "*computed* counts the padded batches that really run. Where a method has settings, the best "
    f"of a few is taken, on {TUNED_ON} seeds of their own; the numbers are those of other seeds. "
    "Choosing by exact risk is NOT PRIVATE; it is done alike for every method."
)
claims = erm_claims.claims


def curves() -> tuple[Method, ...]:
    """Returns the methods.

    >>> curves()[0].label
    'DP-GD'
    """
    return CURVES


def quick(problem: Problem) -> Problem:
    """Returns a small version of ``problem``; on the embedded data where its own are not here.

    >>> quick(FIGURES["table3"].problems[0]).features
    600
    """
    methods = tuple(name for name in problem.methods if name in _QUICK_METHODS)
    small = dataclasses.replace(problem, epsilons=(0.5, 1.0), methods=methods)
    if problem.features is not None:
        return dataclasses.replace(small, rows=300, features=600)
    small = dataclasses.replace(small, rows=4_000)
    here = {info.name for info in datasets.describe() if info.available}
    if problem.data in here:
        return small
    return dataclasses.replace(small, data="randhie", stands_for=problem.data)
