"""NOT PRIVATE: the convex ERM paper (Wang, Ye and Xu 2017): problems, methods, settings, claims."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dpjax.accounting import PrivacyBudget
from dpjax.algorithms import Algorithm, dp_accelerated_mirror_descent
from dpjax.datasets import sparse_high_dimensional
from dpjax.experiments import page
from dpjax.experiments.claims import Smaller, Verdict, counted, exponent, mean
from dpjax.experiments.figures import Front, Picture
from dpjax.experiments.results import Results
from dpjax.experiments.spec import Experiment, Figure, Method, Problem, Tuning, grid
from dpjax.objectives import L1Ball, Objective, logistic

_EPSILONS = (0.2, 0.5, 1.0, 2.0)
GD, SVRG, EXACT, PLUS = "DP-GD", "DP-SVRG", "DP-SVRG, exact anchor", "DP-SVRG++"
SGD, NEWTON, TR, STR = "DP-SGD", "DP-Newton", "DP-TR", "DP-STR"
OUTPUT, PERTURBED, ACCMD = "output perturbation", "objective perturbation", "DP-AccMD"
_TABLE_1 = (GD, SGD, SVRG, EXACT, OUTPUT, PERTURBED, NEWTON, TR, STR)
_TABLE_2 = (GD, SGD, SVRG, PLUS, OUTPUT, PERTURBED, NEWTON, TR, STR)
_QUICK = (GD, SVRG, SGD, OUTPUT, ACCMD, TR)
_SHARED: dict[str, Any] = {
    "delta_times_n": 1.0,
    "reference": "certified",
    "metrics": ("exact_value", "gradients", "gradients_computed", "steps", "epsilon_of_the_noise"),
}


def _problems(objective: str, methods: tuple[str, ...], large: tuple[float, ...]):
    small = {"epsilons": (0.5, 1.0), "tries": 2, "rows": 4_000}
    small["methods"] = tuple(name for name in methods if name in _QUICK)
    return tuple(
        Problem(data, objective, "{data}, " + objective, epsilons=epsilons, methods=methods,
                settings={"batch_size": batch}, keys=(f"{data} {objective}", objective),
                quick=small, **_SHARED)
        for data, batch, epsilons in (
            ("randhie", 1_000, _EPSILONS), ("ijcnn1", 1_000, _EPSILONS), ("covtype", 4_000, large),
        )
    )  # fmt: skip


# As many informative words as the data have, each of their weight: the ball holds the truth.
_RADIUS = 40.0
_BALL = Problem(
    "made",
    dataclasses.replace(logistic(), regularizer=L1Ball(_RADIUS),
                        name=f"logistic on the l1 ball of radius {_RADIUS:g}"),
    records=functools.partial(sparse_high_dimensional, 2017, 2_000, 4_000),
    epsilons=_EPSILONS,
    methods=(GD, SGD, ACCMD),
    settings={"batch_size": 200},
    keys=("ball",),
    quick={"records": functools.partial(sparse_high_dimensional, 2017, 300, 600),
           "epsilons": (0.5, 1.0), "tries": 2},
    **_SHARED,
)  # fmt: skip


def _grids(names: str, **by_kind: str) -> dict[str, tuple[dict[str, Any], ...]]:
    """The settings by problem; those for no regularizer serve the non-smooth one too."""
    found = {kind.replace("__", " ").replace("_", "-"): grid(names, every)
             for kind, every in by_kind.items()}  # fmt: skip
    plain = {kind: grid for kind, grid in found.items() if kind.endswith("logistic")}
    return found | {kind + "-l1": grid for kind, grid in plain.items()}


_SLOPES = "steps step_size"
_DESCENT = _grids(
    _SLOPES,
    logistic_l2="128/16.0 64/8.0 256/8.0 64/32.0 32/8.0 128/4.0 256/16.0 512/8.0",
    logistic="32/8.0 128/8.0 128/32.0 128/64.0 256/32.0 512/8.0 512/32.0 512/64.0",
    ball="10/4.0 10/16.0 10/64.0 10/256.0 30/4.0 30/16.0 100/1.0 100/4.0",
    covtype__logistic_l2="128/8.0 256/4.0 256/8.0 512/8.0",
    covtype__logistic="128/8.0 256/8.0 512/4.0 512/8.0",
)
_STOCHASTIC = _grids(
    _SLOPES,
    logistic_l2="300/64.0 300/16.0 300/4.0 300/128.0 1200/4.0 1200/16.0 1200/64.0 1200/128.0",
    logistic="600/8.0 600/32.0 600/128.0 600/256.0 2000/8.0 2000/32.0 2000/128.0 2000/256.0",
    ball="50/1.0 50/4.0 50/16.0 50/64.0 100/1.0 100/4.0 100/16.0 200/4.0",
    covtype__logistic_l2="300/16.0 300/64.0 1200/16.0",
    covtype__logistic="600/32.0 1200/16.0 1200/64.0",
)
_EPOCHS = "epochs epoch_length step_size"
_REDUCED = _grids(
    _EPOCHS,
    logistic_l2="3/20/32.0 6/20/8.0 6/20/32.0 3/60/8.0 3/60/16.0 3/60/32.0 6/60/4.0 6/60/16.0",
    logistic="3/60/8.0 3/60/64.0 6/20/16.0 6/20/128.0 6/60/8.0 6/60/32.0 6/60/64.0 10/60/64.0",
    covtype__logistic_l2="3/60/8.0 6/60/8.0 6/60/16.0",
    covtype__logistic="3/60/16.0 6/60/8.0 6/60/16.0",
)
# Epoch s has 2^s times the length.
_DOUBLING = _grids(
    _EPOCHS,
    logistic="3/4/8.0 3/4/64.0 5/4/16.0 5/4/64.0 5/8/32.0 5/8/64.0 6/8/8.0 6/8/64.0",
    covtype__logistic="5/4/16.0 5/8/8.0 6/8/16.0",
)
# The made entries are at most 1/4, which makes the loss 1/64-smooth in the norm of the ball.
_MIRROR = {
    "ball": (
        {},
        {"smoothness": 1 / 64},
        *grid("smoothness steps", "0.015625/30 0.015625/100 0.015625/300"),
        *grid("smoothness steps", "0.25/100 0.25/300 0.25/600"),
    )
}
_RADII = "steps radius final_radius damping"
_REGION: dict[str, Any] = _grids(
    _RADII,
    logistic_l2="16/4.0/0.25/0.5 16/2.0/0.1/0.5 16/8.0/0.25/0.5 32/4.0/0.1/0.5 32/8.0/0.1/0.5 "
    "32/4.0/0.25/0.5 32/8.0/0.25/0.5",
    logistic="16/2.0/0.1/0.5 16/4.0/0.1/0.5 16/8.0/0.5/0.5 32/4.0/0.1/0.5 32/8.0/0.1/0.5 "
    "32/8.0/0.25/0.5 32/12.0/0.25/0.5",
    covtype__logistic_l2="16/4.0/0.1/0.5 16/8.0/0.1/0.5",
    covtype__logistic="16/12.0/0.5/0.5 32/12.0/0.25/0.5",
)
_REGION |= {kind: ({}, *_REGION[kind]) for kind in ("logistic-l2", "logistic")}
_NEWTON = _grids(
    "steps modification",
    logistic_l2="6/add 12/add 20/add 32/add 6/clip 12/clip 20/clip 32/clip",
    logistic="6/add 12/add 20/add 32/add 6/clip 12/clip 20/clip 32/clip",
    covtype__logistic_l2="12/add 12/clip",
    covtype__logistic="12/add 12/clip",
)
_SMOOTH = {"logistic-l1": "it has no proximal step, and takes derivatives that the l1 norm lacks"}
_STRONG = dict.fromkeys(
    ("logistic", "logistic-l1"),
    "its guarantee rests on strong convexity, which the objective has not",
)


def mirror_descent(objective: Objective, budget: PrivacyBudget, **more: Any) -> Algorithm:
    """Returns DP-AccMD on the objective's convex set, which it takes as ``domain``."""
    plain = dataclasses.replace(objective, regularizer=None, name="logistic")
    more["domain"] = objective.regularizer
    return dp_accelerated_mirror_descent(plain, budget, **more)


def _method(label: str, factory: Any, grids: Mapping[str, Any], batched: bool, **more: Any):
    takes = {"batch_size": "batch_size"} if batched else {}
    return Method(label, factory, takes=takes, grids=grids, **more)


METHODS = (
    _method(GD, "dp-gd", _DESCENT, False),
    _method(SGD, "dp-sgd", _STOCHASTIC, True),
    _method(SVRG, "dp-svrg", _REDUCED, True),
    _method(EXACT, "dp-svrg", _REDUCED, True, settings={"anchor": "exact"}),
    _method(PLUS, "dp-svrg++", _DOUBLING, True),
    _method(ACCMD, mirror_descent, _MIRROR, False),
    _method(OUTPUT, "output-perturbation", {}, False, refused=_STRONG),
    _method(PERTURBED, "objective-perturbation", {}, False, refused=_STRONG),
    _method(NEWTON, "dp-newton", _NEWTON, False, refused=_SMOOTH),
    _method(TR, "dp-tr", _REGION, False, refused=_SMOOTH),
    _method(STR, "dp-str", _REGION, False, refused=_SMOOTH),
)


class Bound(NamedTuple):
    """A row of the paper's tables, of a method that there are numbers of."""

    method: str
    source: str
    risk: str
    exponent: float
    evaluations: str
    non_smooth: str


# Without constants and log(1/delta). kappa = L / mu is the condition number, G_C the Gaussian width
# of the set C and diam its diameter. Theorem 6.2 stands for DP-GD, of which the table has no row.
_BOUNDS_STRONG = (
    Bound(PERTURBED, "Chaudhuri et al. 2011", "p / (n eps)^2", -2, "not given", "no"),
    Bound(SGD, "Bassily et al. 2014", "p log(n)^2 / (n eps)^2", -2, "n^2", "yes"),
    Bound(OUTPUT, "Zhang et al. 2017", "p / (n eps)^2", -2, "n kappa log(n eps / kappa)", "no"),
    Bound(SVRG, "theorem 4.2", "p log(n) / (n eps)^2", -2, "(n + kappa) log(n eps mu / p)", "yes"),
    Bound(GD, "theorem 6.2", "p log(n)^2 / (n eps)^2", -2, "n log(n eps / p)", "not said"),
)
_BOUNDS_CONVEX = (
    Bound(PERTURBED, "Kifer et al. 2012", "sqrt(p) / (n eps)", -1, "not given", "yes"),
    Bound(SGD, "Bassily et al. 2014", "sqrt(p) log(n)^1.5 / (n eps)", -1, "n^2", "yes"),
    Bound(OUTPUT, "Zhang et al. 2017", "(sqrt(p) / (n eps))^(2/3)", -2 / 3,
          "n (n eps / p)^(2/3)", "no"),
    Bound(PLUS, "theorem 4.4", "sqrt(p) / (n eps)", -1, "n eps / sqrt(p) + n log(n eps / p)",
          "yes"),
)  # fmt: skip
# The first is of noisy mirror descent on one record a step; projected DP-SGD stands for it.
_BOUNDS_WIDE = (
    Bound(SGD, "Talwar et al. 2014", "sqrt(G_C^2 + diam^2) log(n) / (n eps)", -1,
          "n^3 eps^2 / ((G_C^2 + diam^2) log(n)^2)", "yes"),
    Bound(ACCMD, "theorem 5.4", "sqrt(G_C^2 + diam^2) / (n eps)", -1,
          "n^1.5 sqrt(eps) / (G_C^2 + diam^2)^(1/4)", "no"),
)  # fmt: skip
# A measured exponent this near to the bound's counts as agreeing.
_NEAR = 1 / 3


def _bounds(found: Results, problem: Problem) -> list[tuple[Bound, float | None]]:
    kind = problem.keys[-1]
    every = {"logistic-l2": _BOUNDS_STRONG, "ball": _BOUNDS_WIDE}.get(kind, _BOUNDS_CONVEX)
    there = [bound for bound in every if bound.method in found.each("method")]
    return [(bound, exponent(found, "exact_gap", bound.method)) for bound in there]


def _exponents(results: Results, problems: Sequence[Problem]) -> list[Verdict]:
    said = []
    for problem in problems:
        every = _bounds(results.where(problem=problem.name), problem)
        known = [(bound, slope) for bound, slope in every if slope is not None]
        held = [
            abs(slope - bound.exponent) <= _NEAR * abs(bound.exponent) for bound, slope in known
        ]
        words = ", ".join(f"{b.method} {slope:.2f} (bound {b.exponent:.2g})" for b, slope in known)
        text = f"{problem.name}: the excess risk falls with epsilon as the bound does."
        said += [counted(text, held, f"Exponent of epsilon: {words}.")] if held else []
    return said


def cheapest(found: Results, method: str, epsilon: float) -> float:
    """Returns the fewest gradients of the settings tried for 1.5 times DP-GD's best excess risk.

    Args:
      found: the rows of one problem.
      method: whose settings.
      epsilon: where.

    Returns:
      Infinite if none gets there; NaN if the table does not have what was tried.
    """
    at = {"method": method, "epsilon": epsilon}
    if not found.tried("gradients", epsilon=epsilon):
        return math.nan
    risk = 1.5 * found.mean("exact_gap", method=GD, epsilon=epsilon)
    costs = found.tried("gradients", **at)
    there = [costs[words] for words, gap in found.tried("exact_gap", **at).items() if gap <= risk]
    if found.mean("exact_gap", **at) <= risk:
        there.append(found.mean("gradients", **at))
    return min(there, default=math.inf)


def _against_best(found: Results, method: str, epsilon: float) -> float:
    """The same, but for DP-GD the gradients of its best setting."""
    if method == GD:
        return found.mean("gradients", method=GD, epsilon=epsilon)
    return cheapest(found, method, epsilon)


def _claims(best: str, *others: str) -> tuple[Any, ...]:
    said: list[Any] = []
    for other in others:
        said += [
            Smaller(f"{best} takes fewer gradients than {other}.", mean("gradients"), best, other,
                    ratios=True),
            Smaller(f"{best} has a smaller excess risk than {other}.", mean("exact_gap"), best,
                    other, ratios=True),
        ]  # fmt: skip
    if best != ACCMD:
        there = f"Some setting tried of {best} has at most 1.5 times DP-GD's excess risk at"
        said += [
            Smaller(f"{there} a quarter of its gradients at most.", _against_best, best, GD,
                    limit=0.25, ratios=True),
            Smaller(f"{there} fewer gradients than any setting of DP-GD that has.", cheapest, best,
                    GD, ratios=True),
        ]  # fmt: skip
    return (*said, _exponents)


def dominated(found: Results, epsilon: float) -> list[str]:
    """Returns the methods that another one beats in risk at no more gradient evaluations."""
    rows = found.where(epsilon=epsilon)
    at = {m: [rows.mean(name, method=m) for name in ("gradients", "exact_gap")]
          for m in rows.each("method")}  # fmt: skip
    pairs = itertools.permutations(at, 2)
    worse = {m for m, o in pairs if at[o][0] <= at[m][0] and at[o][1] < at[m][1]}
    return [name for name in at if name in worse]


def _tables(results: Results, problems: Sequence[Problem]) -> list[str]:
    lines = []
    for problem in problems:
        found = results.where(problem=problem.name)
        risks = page.Grid("Excess risk, mean (standard error):", page.mean("exact_gap", error=True))
        passes = page.Grid("Gradient evaluations over n, declared (computed):", _passes,
                           more=(("settings at epsilon 1", _taken),))  # fmt: skip
        lines += [f"### {problem.name}", "", *risks(found, [problem]), *passes(found, [problem])]
        fronts = []
        for epsilon in found.each("epsilon"):
            worse = dominated(found, epsilon)
            best = [m for m in found.where(epsilon=epsilon).each("method") if m not in worse]
            fronts.append(f"at epsilon {epsilon:g}: {', '.join(best)}")
        words = "Not beaten in risk by any method of no more gradient evaluations, "
        lines += [f"{words}{'; '.join(fronts)}.", ""]
        for method in METHODS:
            why = method.refused.get(problem.keys[-1])
            if why and method.label in problem.methods:
                lines += [f"- {method.label}: n/a, {why}."]
        rows = [
            {"method": b.method, "whose bound": b.source, "excess risk": b.risk,
             "exponent": f"{b.exponent:.2g}", "measured": "" if slope is None else f"{slope:.2f}",
             "gradient evaluations": b.evaluations, "non-smooth": b.non_smooth}
            for b, slope in _bounds(found, problem)
        ]  # fmt: skip
        if rows:
            lines += ["", "The paper's bounds, and the exponent of epsilon measured here:", "",
                      *page.table(rows), ""]  # fmt: skip
    return lines


def _passes(found: Results) -> str:
    n, declared = found.each("rows")[0], found.mean("gradients")
    computed = found.mean("gradients_computed")
    return f"{declared / n:.3g}" + (f" ({computed / n:.3g})" if computed != declared else "")


def _taken(found: Results) -> str:
    rows = found.where(epsilon=1.0, metric="gradients").rows()
    words = next(row.settings for row in rows if not row.seed < 0)
    words = words.replace("defaults", "from theory")
    tried = len(found.tried("exact_gap", epsilon=1.0))
    return f"{words} (best of {tried})" if tried else words


def _picture(epsilons: tuple[float, ...], columns: int = 3) -> Picture:
    return Picture(
        "Excess risk of each method against its cost: lower is better, further left is cheaper\n"
        "mean of {seeds} seeds, bars: two standard errors; delta = 1/n, {relation}; {exact}",
        tuple(
            Front("exact_gap", "{problem}, epsilon {epsilon:g}\nn = {n:,}, p = {p:,}",
                  "gradient evaluations (of one record each)", "excess risk (mean loss)",
                  {"epsilon": epsilon})
            for epsilon in epsilons
        ),
        columns,
        panels_first=True,
        size=(4.2, 3.6),
        legend="right",
    )  # fmt: skip


_STRONG_PROBLEMS = _problems("logistic-l2", _TABLE_1, (0.2, 1.0))
_CONVEX_PROBLEMS = _problems("logistic", _TABLE_2, (1.0,))
_CONVEX_PROBLEMS += _problems("logistic-l1", _TABLE_2, (1.0,))
TUNING = Tuning(seeds=4)

EXPERIMENT = Experiment(
    "erm",
    "Differentially Private Empirical Risk Minimization Revisited: Faster and More General",
    METHODS,
    {
        "table1": Figure(
            "Strongly convex: logistic loss with l2 regularizer 1e-3.", _STRONG_PROBLEMS,
            _picture((0.2, 1.0)), (_tables,), _claims(SVRG, SGD, OUTPUT),
        ),
        "table2": Figure(
            "Convex: logistic loss without regularizer, and with the non-smooth l1 regularizer "
            "1e-3.", _CONVEX_PROBLEMS, _picture((1.0,)), (_tables,), _claims(PLUS, SGD, OUTPUT),
        ),
        "table3": Figure(
            "High-dimensional: logistic loss on an l1 ball, more features than records.", (_BALL,),
            _picture(_EPSILONS, 2), (_tables,), _claims(ACCMD, SGD, GD),
        ),
    },
    "Wang, Ye and Xu, NIPS 2017, tables 1 to 3",
    "Neighbours are zero_out with delta = 1/n (the paper's are replace-one, where a record moves a "
    "sum twice as far);",
    "Excess risks are exact values minus a certified optimum, mean and standard error. A gradient "
    "evaluation is one record's gradient: *declared* counts batches by their expected size, "
    "*computed* counts the padded batches that really run; a Hessian is taken with its gradient "
    "and counts as none. Where a method has settings, the best of a few is taken, on "
    f"{TUNING.seeds} seeds of their own; the numbers are those of other seeds. Choosing by exact "
    "risk is NOT PRIVATE; the tables say of how many it was done.",
    tuning=TUNING,
    quick=("ijcnn1, logistic-l2", _BALL.name),
)  # fmt: skip
