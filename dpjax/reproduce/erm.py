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
_FEWER, _ONE = (0.2, 1.0), (1.0,)
RELATION = "zero_out"
FACTORIES = {**ALGORITHMS, **BASELINES, **ONE_RELEASE}

GD, SVRG, EXACT, PLUS = "DP-GD", "DP-SVRG", "DP-SVRG, exact anchor", "DP-SVRG++"
SGD, NEWTON, TR, STR = "DP-SGD", "DP-Newton", "DP-TR", "DP-STR"
OUTPUT, OBJECTIVE, ACCMD = "output perturbation", "objective perturbation", "DP-AccMD"


@dataclasses.dataclass(frozen=True)
class Method(Curve):
    """A method of these tables; each is tuned alike, on seeds of their own.

    Args:
      settings: by the problem's kind or, before that, data and kind: configurations, of which the
        best is taken; what the factory is given. Where there are none, its defaults.
      refused: by the problem's kind, why the method is not there for it.
      domain: whether the convex set is given as ``domain`` and not as the regularizer.
    """

    settings: Mapping[str, tuple[Mapping[str, Any], ...]] = dataclasses.field(default_factory=dict)
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    domain: bool = False

    def tried(self, problem: Problem) -> tuple[Mapping[str, Any], ...]:
        """Returns the configurations of which the best is taken."""
        own = self.settings.get(f"{problem.data} {problem.kind}")
        every = own or self.settings.get(problem.kind, ({},))
        return every[: problem.settings]

    def drawn(self, problem: Problem) -> bool:
        """Returns whether there are results of it on ``problem``."""
        return super().drawn(problem) and problem.kind not in self.refused

    def trainings(self, problem: Problem, seeds: int) -> int:
        """Returns how many trainings one point takes, those of the tuning included."""
        tried = len(self.tried(problem))
        return seeds + (TUNED_ON * tried if tried > 1 else 0)


# Seeds on which a configuration is chosen; the results are those of others.
TUNED_ON = 4

_TABLE_1 = (GD, SVRG, EXACT, SGD, OUTPUT, OBJECTIVE, NEWTON, TR, STR)
_TABLE_2 = (GD, SVRG, PLUS, SGD, OUTPUT, OBJECTIVE, NEWTON, TR, STR)
_TABLE_3 = (GD, SGD, ACCMD)


def _problems(
    objective: str, methods: tuple[str, ...], large: tuple[float, ...]
) -> tuple[Problem, ...]:
    shared = {"traced": False, "relation": RELATION, "methods": methods}
    return (
        Problem("randhie", objective, 1_000, EPSILONS, **shared),
        Problem("ijcnn1", objective, 1_000, EPSILONS, **shared),
        Problem("covtype", objective, 4_000, large, **shared),
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
        _problems("logistic-l2", _TABLE_1, _FEWER),
        "Strongly convex: logistic loss with l2 regularizer 1e-3.",
        _FEWER,
    ),
    "table2": Figure(
        "risk",
        _problems("logistic", _TABLE_2, _ONE) + _problems("logistic-l1", _TABLE_2, _ONE),
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


def _settings(names: str, *each: tuple[Any, ...]) -> tuple[Mapping[str, Any], ...]:
    return tuple(dict(zip(names.split(), one, strict=True)) for one in each)


_SLOPES = "steps step_size"
_DESCENT = {
    "logistic-l2": _settings(
        _SLOPES,
        *((128, 16.0), (64, 8.0), (256, 8.0), (64, 32.0)),
        *((32, 8.0), (128, 4.0), (256, 16.0), (512, 8.0)),
    ),
    "logistic": _settings(
        _SLOPES,
        *((32, 8.0), (128, 8.0), (128, 32.0), (128, 64.0)),
        *((256, 32.0), (512, 8.0), (512, 32.0), (512, 64.0)),
    ),
    "ball": _settings(
        _SLOPES,
        *((10, 4.0), (10, 16.0), (10, 64.0), (10, 256.0)),
        *((30, 4.0), (30, 16.0), (100, 1.0), (100, 4.0)),
    ),
    "covtype logistic-l2": _settings(_SLOPES, (128, 8.0), (256, 4.0), (256, 8.0), (512, 8.0)),
    "covtype logistic": _settings(_SLOPES, (128, 8.0), (256, 8.0), (512, 4.0), (512, 8.0)),
}
_STOCHASTIC = {
    "logistic-l2": _settings(
        _SLOPES,
        *((300, 64.0), (300, 16.0), (300, 4.0), (300, 128.0)),
        *((1_200, 4.0), (1_200, 16.0), (1_200, 64.0), (1_200, 128.0)),
    ),
    "logistic": _settings(
        _SLOPES,
        *((600, 8.0), (600, 32.0), (600, 128.0), (600, 256.0)),
        *((2_000, 8.0), (2_000, 32.0), (2_000, 128.0), (2_000, 256.0)),
    ),
    "ball": _settings(
        _SLOPES,
        *((50, 1.0), (50, 4.0), (50, 16.0), (50, 64.0)),
        *((100, 1.0), (100, 4.0), (100, 16.0), (200, 4.0)),
    ),
    "covtype logistic-l2": _settings(_SLOPES, (300, 16.0), (300, 64.0), (1_200, 16.0)),
    "covtype logistic": _settings(_SLOPES, (600, 32.0), (1_200, 16.0), (1_200, 64.0)),
}
_EPOCHS = "epochs epoch_length step_size"
_REDUCED = {
    "logistic-l2": _settings(
        _EPOCHS,
        *((3, 20, 32.0), (6, 20, 8.0), (6, 20, 32.0), (3, 60, 8.0)),
        *((3, 60, 16.0), (3, 60, 32.0), (6, 60, 4.0), (6, 60, 16.0)),
    ),
    "logistic": _settings(
        _EPOCHS,
        *((3, 60, 8.0), (3, 60, 64.0), (6, 20, 16.0), (6, 20, 128.0)),
        *((6, 60, 8.0), (6, 60, 32.0), (6, 60, 64.0), (10, 60, 64.0)),
    ),
    "covtype logistic-l2": _settings(_EPOCHS, (3, 60, 8.0), (6, 60, 8.0), (6, 60, 16.0)),
    "covtype logistic": _settings(_EPOCHS, (3, 60, 16.0), (6, 60, 8.0), (6, 60, 16.0)),
}
_EXACT = {
    kind: tuple({**one, "anchor": "exact"} for one in each)
    for kind, each in _REDUCED.items()
    if kind.endswith("l2")
}
# Epoch s has 2^s times the length.
_DOUBLING = {
    "logistic": _settings(
        _EPOCHS,
        *((3, 4, 8.0), (3, 4, 64.0), (5, 4, 16.0), (5, 4, 64.0)),
        *((5, 8, 32.0), (5, 8, 64.0), (6, 8, 8.0), (6, 8, 64.0)),
    ),
    "covtype logistic": _settings(_EPOCHS, (5, 4, 16.0), (5, 8, 8.0), (6, 8, 16.0)),
}
# The made entries are at most 1/4, which makes the loss 1/64-smooth in the norm of the ball.
_MIRROR = {
    "ball": (
        {},
        {"smoothness": 1 / 64},
        *_settings(
            "smoothness steps",
            *((1 / 64, 30), (1 / 64, 100), (1 / 64, 300)),
            *((1 / 4, 100), (1 / 4, 300), (1 / 4, 600)),
        ),
    )
}
_RADII = "steps radius final_radius damping"
_REGION = {
    "logistic-l2": (
        {},
        *_settings(
            _RADII,
            *((16, 4.0, 0.25, 0.5), (16, 2.0, 0.1, 0.5), (16, 8.0, 0.25, 0.5)),
            *((32, 4.0, 0.1, 0.5), (32, 8.0, 0.1, 0.5)),
            *((32, 4.0, 0.25, 0.5), (32, 8.0, 0.25, 0.5)),
        ),
    ),
    "logistic": (
        {},
        *_settings(
            _RADII,
            *((16, 2.0, 0.1, 0.5), (16, 4.0, 0.1, 0.5), (16, 8.0, 0.5, 0.5)),
            *((32, 4.0, 0.1, 0.5), (32, 8.0, 0.1, 0.5)),
            *((32, 8.0, 0.25, 0.5), (32, 12.0, 0.25, 0.5)),
        ),
    ),
    "covtype logistic-l2": _settings(_RADII, (16, 4.0, 0.1, 0.5), (16, 8.0, 0.1, 0.5)),
    "covtype logistic": _settings(_RADII, (16, 12.0, 0.5, 0.5), (32, 12.0, 0.25, 0.5)),
}
_DIRECTION = "steps modification"
_NEWTON = {
    kind: _settings(
        _DIRECTION,
        *((6, "add"), (12, "add"), (20, "add"), (32, "add")),
        *((6, "clip"), (12, "clip"), (20, "clip"), (32, "clip")),
    )
    for kind in ("logistic-l2", "logistic")
} | {
    f"covtype {kind}": _settings(_DIRECTION, (12, "add"), (12, "clip"))
    for kind in ("logistic-l2", "logistic")
}


def _shared(settings: dict[str, tuple[Mapping[str, Any], ...]]) -> dict[str, Any]:
    """The settings for no regularizer serve the non-smooth one too."""
    more = {name: name.replace("logistic", "logistic-l1") for name in settings if "-" not in name}
    return settings | {new: settings[name] for name, new in more.items()}


_SECOND: dict[str, str] = {
    "logistic-l1": "it has no proximal step, and takes derivatives that the l1 norm lacks"
}
_STRONG: dict[str, str] = dict.fromkeys(
    ("logistic", "logistic-l1"),
    "its guarantee rests on strong convexity, which the objective has not",
)
CURVES = (
    Method(GD, GD, "dp-gd", settings=_shared(_DESCENT)),
    Method(SGD, SGD, "dp-sgd", settings=_shared(_STOCHASTIC), batched=True),
    Method(SVRG, SVRG, "dp-svrg", settings=_shared(_REDUCED), batched=True),
    Method(EXACT, EXACT, "dp-svrg", settings=_EXACT, batched=True),
    Method(PLUS, PLUS, "dp-svrg++", settings=_shared(_DOUBLING), batched=True),
    Method(ACCMD, ACCMD, "dp-accmd", settings=_MIRROR, domain=True),
    Method(OUTPUT, OUTPUT, "output-perturbation", refused=_STRONG),
    Method(OBJECTIVE, OBJECTIVE, "objective-perturbation", refused=_STRONG),
    Method(NEWTON, NEWTON, "dp-newton", settings=_NEWTON, refused=_SECOND),
    Method(TR, TR, "dp-tr", settings=_REGION, refused=_SECOND),
    Method(STR, STR, "dp-str", settings=_REGION, refused=_SECOND),
)
CONVENTIONS = (
    f"Neighbours are {RELATION} with delta = 1/n (the paper's are replace-one, where a record "
    "moves a sum twice as far);"
)
SETTINGS = (
    "Excess risks are exact values minus a certified optimum, mean and standard error. A gradient "
    "evaluation is one record's gradient: *declared* counts batches by their expected size, "
    "*computed* counts the padded batches that really run; a Hessian is taken with its gradient "
    "and counts as none. Where a method has settings, the best "
    f"of a few is taken, on {TUNED_ON} seeds of their own; the numbers are those of other seeds. "
    "Choosing by exact risk is NOT PRIVATE; the tables say of how many it was done."
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
    small = dataclasses.replace(problem, epsilons=(0.5, 1.0), methods=methods, settings=2)
    if problem.features is not None:
        return dataclasses.replace(small, rows=300, features=600)
    small = dataclasses.replace(small, rows=4_000)
    here = {info.name for info in datasets.describe() if info.available}
    if problem.data in here:
        return small
    return dataclasses.replace(small, data="randhie", stands_for=problem.data)
