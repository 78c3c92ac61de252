"""NOT PRIVATE: the trust-region paper (Wang and Xu 2020): its problems, curves and claims."""

import dataclasses

import numpy as np

from dpjax import datasets
from dpjax.algorithms import ALGORITHMS
from dpjax.reproduce.page import Claim, number, percent
from dpjax.reproduce.study import RELATION, TRACED_EPSILON, Curve, Figure, Found, Problem

TITLE = "Escaping Saddle Points of Empirical Risk Privately and Scalably via DP-Trust Region Method"
REFERENCE = "Wang and Xu, ECML PKDD 2020, section 5"
EPSILONS = (0.2, 0.5, 1.0, 1.5, 2.0)
# On the large data a point takes minutes.
_FEWER = (0.2, 0.5, 1.0, 2.0)

_COVTYPE_LOGISTIC = Problem("covtype", "logistic-nonconvex", 50_000, _FEWER, 0.53800)
_IJCNN1_LOGISTIC = Problem("ijcnn1", "logistic-nonconvex", 5_000, EPSILONS, 0.20713)
_COVTYPE_SIGMOID = Problem("covtype", "sigmoid-l2", 50_000, _FEWER, 0.43747)
_IJCNN1_SIGMOID = Problem("ijcnn1", "sigmoid-l2", 5_000, EPSILONS, 0.17507)
# The paper's 86 % needs classes 1 and 2 against the rest; its other figures do not say.
_COVTYPE_12 = Problem("covtype-12", "sigmoid-l2", 50_000, _FEWER, traced=False)

FIGURES = {
    "fig2": Figure(
        "accuracy",
        (_IJCNN1_SIGMOID, _COVTYPE_SIGMOID, _COVTYPE_12),
        "Accuracy of the sigmoid loss with l2 against epsilon.",
    ),
    "fig4": Figure(
        "panels", (_COVTYPE_LOGISTIC,), "Covertype, logistic loss, nonconvex regularizer."
    ),
    "fig6": Figure("panels", (_IJCNN1_LOGISTIC,), "IJCNN1, logistic loss, nonconvex regularizer."),
    "fig8": Figure("panels", (_COVTYPE_SIGMOID,), "Covertype, sigmoid loss with l2."),
    "fig10": Figure("panels", (_IJCNN1_SIGMOID,), "IJCNN1, sigmoid loss with l2."),
    "table1": Figure(
        "table",
        (_COVTYPE_LOGISTIC, _IJCNN1_LOGISTIC),
        "The data sets, and what each method costs and reaches on them at epsilon 1.",
    ),
}

# One problem serves two figures; each other one compiles every method anew.
QUICK = (("ijcnn1", "logistic-nonconvex"),)

# What the paper's table 1 says.
SHAPES = {"covtype": (581_012, 54), "ijcnn1": (35_000, 22)}

# The paper tuned its methods, so the curves with its noise are tuned here, at epsilon 1 on these
# very problems, and gradient descent in both; dpjax's others run with defaults, tuned on none.
_DESCENT = {
    ("ijcnn1", "logistic-nonconvex"): {"steps": 512, "step_size": 32.0},
    ("covtype", "logistic-nonconvex"): {"steps": 512, "step_size": 16.0},
    ("ijcnn1", "sigmoid-l2"): {"steps": 128, "step_size": 8.0},
    ("covtype", "sigmoid-l2"): {"steps": 128, "step_size": 32.0},
    ("covtype-12", "sigmoid-l2"): {"steps": 128, "step_size": 32.0},
}
_LOGISTIC_REGION = {"radius": 12.0, "final_radius": 1.0, "damping": 0.5}
_SIGMOID_REGION = {"radius": 8.0, "final_radius": 1.0, "damping": 2.0}
_REGION = {
    (data, objective): _SIGMOID_REGION if objective == "sigmoid-l2" else _LOGISTIC_REGION
    for data, objective in _DESCENT
}
_SMALL_STEPS = {"steps": 16, "radius": 2.0, "final_radius": 1.0, "damping": 1.0}
_LONG_STEPS = {"steps": 40, "radius": 6.0, "final_radius": 1.0, "damping": 1.0}
_SUBSETS = {
    ("ijcnn1", "logistic-nonconvex"): _SMALL_STEPS,
    ("covtype", "logistic-nonconvex"): {**_LONG_STEPS, "radius": 2.0, "damping": 0.5},
    ("ijcnn1", "sigmoid-l2"): _SMALL_STEPS,
    ("covtype", "sigmoid-l2"): _LONG_STEPS,
    ("covtype-12", "sigmoid-l2"): _LONG_STEPS,
}
# A curve joins by one line.
CURVES = (
    Curve("DP-GD, published noise", "DP-GD", "dp-gd", published=True, tuned=_DESCENT),
    Curve("DP-GD, dpjax", "DP-GD", "dp-gd", tuned=_DESCENT),
    Curve("DP-TR, published noise", "DP-TR", "dp-tr", published=True, tuned=_REGION),
    Curve("DP-TR, dpjax", "DP-TR", "dp-tr"),
    Curve(
        "DP-STR, published noise, corrected",
        "DP-STR",
        "dp-str",
        published=True,
        tuned=_SUBSETS,
        batched=True,
    ),
    Curve("DP-STR, dpjax", "DP-STR", "dp-str", batched=True),
    Curve("DP-Adam, dpjax", "DP-Adam", "dp-adam"),
)
# For the page.
CONVENTIONS = f"Neighbours are {RELATION} with delta = 1/n, as in the paper;"
SETTINGS = (
    "Where the noise is the paper's formula, radius, damping, steps and step size are tuned on "
    "these very problems at epsilon 1, since the paper tuned its methods; so are DP-GD's steps and "
    "step size in both its curves. dpjax's other curves run with one set of defaults, tuned on "
    "none of them. `benchmarks/fair.py` ranks methods that are tuned alike."
)
_GD, _TR, _STR = CURVES[0].label, CURVES[2].label, CURVES[4].label
_OURS = CURVES[5].label


def curves() -> tuple[Curve, ...]:
    """Returns the curves whose algorithm this installation has.

    >>> [curve.algorithm for curve in curves()][:3]
    ['dp-gd', 'dp-gd', 'dp-tr']
    """
    return tuple(curve for curve in CURVES if curve.algorithm in ALGORITHMS)


def quick(problem: Problem) -> Problem:
    """Returns a small version of ``problem``; on the embedded data where its own are not here.

    >>> quick(_IJCNN1_LOGISTIC).rows
    4000
    """
    small = dataclasses.replace(problem, rows=4_000, epsilons=(0.5, 1.0), known=None, starts=2)
    here = {info.name for info in datasets.describe() if info.available}
    if problem.data in here:
        return small
    return dataclasses.replace(small, data="randhie", stands_for=problem.data)


def claims(figure: Figure, every: tuple[Found, ...]) -> list[Claim]:
    """Returns what the paper says about ``figure``, each held against the results.

    Args:
      figure: one of ``FIGURES``.
      every: the results on its problems.

    Reference: Wang and Xu (2020), section 5.2.
    """
    if figure.kind == "panels":
        return _panel_claims(every[0])
    if figure.kind == "accuracy":
        return [claim for found in every for claim in _accuracy_claims(found)]
    return [_shape_claim(found) for found in every]


def _panel_claims(found: Found) -> list[Claim]:
    there = {label for label, _ in found.points}
    compared = [
        (_TR, _GD, found.gaps, "DP-TR has a smaller gap than DP-GD."),
        (_TR, _GD, found.norms, "DP-TR has a smaller gradient norm than DP-GD."),
        (_TR, _STR, found.gaps, "DP-STR has a larger gap than DP-TR, for its noise is larger."),
        (_GD, _STR, found.gaps, "DP-STR has a larger gap than DP-GD."),
    ]
    made = [
        _smaller(found, low, high, read, text)
        for low, high, read, text in compared
        if {low, high} <= there
    ]
    if _STR in there:
        made.append(_fastest(found))
    if {_STR, _OURS} <= there:
        made.append(_open_problem(found))
    return made


def _smaller(found: Found, low: str, high: str, read, text: str) -> Claim:
    pairs = [
        (float(np.nanmean(read(low, epsilon))), float(np.nanmean(read(high, epsilon))))
        for epsilon in found.epsilons
    ]
    numbers = ", ".join(
        f"{number(a)} / {number(b)} at {epsilon:g}"
        for (a, b), epsilon in zip(pairs, found.epsilons, strict=True)
    )
    return Claim(
        f"{text} (published noise)",
        sum(a < b for a, b in pairs),
        len(pairs),
        f"Measured {numbers}.",
    )


def _fastest(found: Found) -> Claim:
    seconds = {}
    for label in (_GD, _TR, _STR):
        trace = found.trace(label)
        if trace is not None:
            seconds[label.split(",")[0]] = float(trace[1][-1])
    least = min(seconds, key=lambda name: seconds[name])
    numbers = ", ".join(f"{name} {number(spent)} s" for name, spent in seconds.items())
    return Claim("DP-STR takes the least time.", int(least == "DP-STR"), 1, f"Measured {numbers}.")


def _open_problem(found: Found) -> Claim:
    ours, theirs = (float(np.nanmean(found.gaps(label, TRACED_EPSILON))) for label in (_OURS, _STR))
    return Claim(
        "DP-STR's accuracy is an open problem: with the noise that privacy needs and no more, the "
        "gap is smaller than with the published noise.",
        int(ours < theirs),
        1,
        f"Measured {number(ours)} against {number(theirs)} at epsilon {TRACED_EPSILON:g}.",
    )


def _accuracy_claims(found: Found) -> list[Claim]:
    name, epsilons = found.problem.title, found.epsilons
    known = {label for label, _ in found.points}
    chosen = [curve.label for curve in curves() if curve.published and curve.label in known]
    grows = near = 0
    for label in chosen:
        first, *_, last = (float(np.nanmean(found.accuracies(label, e))) for e in epsilons)
        grows += last >= first
        near += found.accuracy - last <= 0.01
    said = {"ijcnn1": 0.95, "covtype": 0.86, "covtype-12": 0.86}.get(found.problem.data)
    made = [
        Claim(f"{name}: accuracy grows with epsilon (published noise).", grows, len(chosen)),
        Claim(
            f"{name}: at epsilon {epsilons[-1]:g} it is within a point of the non-private one.",
            near,
            len(chosen),
        ),
    ]
    if said is not None:
        made.append(
            Claim(
                f"{name}: the non-private accuracy is {percent(said)}.",
                int(abs(found.accuracy - said) <= 0.01),
                1,
                f"Measured {percent(found.accuracy)}; always guessing the larger class gives "
                f"{percent(found.majority)}.",
            )
        )
    return made


def _shape_claim(found: Found) -> Claim:
    n, p = SHAPES.get(found.problem.stands_for or found.problem.data, (0, 0))
    return Claim(
        f"{found.problem.stands_for or found.problem.data} has n = {n:,} and p = {p}.",
        int((found.rows, found.dimension) == (n, p)),
        1,
        f"Used here: n = {found.rows:,}, p = {found.dimension}.",
    )
