"""NOT PRIVATE: the convex ERM paper (Wang, Ye and Xu 2017): problems, methods, settings, claims."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks.papers import page
from benchmarks.papers.claims import Read, Smaller, Verdict, counted, exponent, mean, number, power
from benchmarks.papers.figures import Front, Lines, Picture
from benchmarks.papers.results import Results, per_problem
from benchmarks.papers.spec import Experiment, Figure, Method, Problem, Settings, Tuning, grid
from benchmarks.papers.variants import convex
from benchmarks.papers.variants.exact_anchor import exact_anchor
from dpjax.accounting import PrivacyBudget
from dpjax.algorithms import Algorithm, dp_accelerated_mirror_descent
from dpjax.datasets import Dataset, load, sparse_high_dimensional
from dpjax.objectives import L1Ball, Objective, logistic, logistic_l2, sigmoid_l2

_EPSILONS = (0.2, 0.5, 1.0, 2.0)
GD, SVRG, EXACT, PLUS = "DP-GD", "DP-SVRG", "DP-SVRG, exact anchor", "DP-SVRG++"
SGD, NEWTON, TR, STR = "DP-SGD", "DP-Newton", "DP-TR", "DP-STR"
OUTPUT, PERTURBED, ACCMD = "output perturbation", "objective perturbation", "DP-AccMD"
RIDGE, DESCENT = "objective perturbation, added ridge", "output perturbation of a descent"
WOLFE, PROJECTED = "DP-Frank-Wolfe", "objective perturbation, projected"
_TABLE_1 = (GD, SGD, SVRG, EXACT, OUTPUT, PERTURBED, NEWTON, TR, STR)
_TABLE_2 = (GD, SGD, SVRG, PLUS, OUTPUT, PERTURBED, RIDGE, DESCENT, NEWTON, TR, STR)
_SMALL = (RIDGE, DESCENT)  # on Covertype not run: thousands of passes in float64
_QUICK = (GD, SVRG, SGD, OUTPUT, ACCMD, TR)


def _problem(data: str, objective: Any, methods: tuple[str, ...], keys: tuple[str, ...], batch: int,
             epsilons: tuple[float, ...], quick: Settings, **more: Any) -> Problem:  # fmt: skip
    return Problem(
        data, objective, delta_times_n=1.0, reference="certified", epsilons=epsilons,
        methods=methods, settings={"batch_size": batch}, keys=keys,
        metrics=("exact_value", "gradients", "gradients_computed", "steps", "epsilon_of_the_noise"),
        quick={"epsilons": (0.5, 1.0), "tries": 2, **quick}, **more,
    )  # fmt: skip


def _problems(objective: str, methods: tuple[str, ...], large: tuple[float, ...]):
    quick = {"rows": 4_000, "methods": tuple(name for name in methods if name in _QUICK)}
    # Settings for no regularizer serve the non-smooth one too.
    smooth = objective.removesuffix("-l1")
    return tuple(
        _problem(data, objective, tuple(m for m in methods if data != "covtype" or m not in _SMALL),
                 (f"{data} {smooth}", smooth, objective), batch, epsilons,
                 quick, title="{data}, " + objective)
        for data, batch, epsilons in (
            ("randhie", 1_000, _EPSILONS), ("ijcnn1", 1_000, _EPSILONS), ("covtype", 4_000, large),
        )
    )  # fmt: skip


# As many informative words as the data have, each of their weight: the ball holds the truth.
_RADIUS = 40.0
_BALL = _problem(
    "made",
    dataclasses.replace(logistic(), regularizer=L1Ball(_RADIUS),
                        name=f"logistic on the l1 ball of radius {_RADIUS:g}"),
    (GD, SGD, ACCMD, WOLFE, PROJECTED), ("ball",), 200, _EPSILONS,
    {"records": functools.partial(sparse_high_dimensional, 2017, 300, 600)},
    records=functools.partial(sparse_high_dimensional, 2017, 2_000, 4_000),
)  # fmt: skip


def _grids(names: str, by_key: Mapping[str, str]) -> dict[str, tuple[Settings, ...]]:
    """The settings by problem, or by kind of problem."""
    return {key: grid(names, every) for key, every in by_key.items()}


_DESCENT = _grids("steps step_size", {
    "logistic-l2": "128/16.0 64/8.0 256/8.0 64/32.0 32/8.0 128/4.0 256/16.0 512/8.0",
    "logistic": "32/8.0 128/8.0 128/32.0 128/64.0 256/32.0 512/8.0 512/32.0 512/64.0",
    "ball": "10/4.0 10/16.0 10/64.0 10/256.0 30/4.0 30/16.0 100/1.0 100/4.0",
    "covtype logistic-l2": "128/8.0 256/4.0 256/8.0 512/8.0",
    "covtype logistic": "128/8.0 256/8.0 512/4.0 512/8.0",
})  # fmt: skip
_STOCHASTIC = _grids("steps step_size", {
    "logistic-l2": "300/64.0 300/16.0 300/4.0 300/128.0 1200/4.0 1200/16.0 1200/64.0 1200/128.0",
    "logistic": "600/8.0 600/32.0 600/128.0 600/256.0 2000/8.0 2000/32.0 2000/128.0 2000/256.0",
    "ball": "50/1.0 50/4.0 50/16.0 50/64.0 100/1.0 100/4.0 100/16.0 200/4.0",
    "covtype logistic-l2": "300/16.0 300/64.0 1200/16.0",
    "covtype logistic": "600/32.0 1200/16.0 1200/64.0",
})  # fmt: skip
_REDUCED = _grids("epochs epoch_length step_size", {
    "logistic-l2": "3/20/32.0 6/20/8.0 6/20/32.0 3/60/8.0 3/60/16.0 3/60/32.0 6/60/4.0 6/60/16.0",
    "logistic": "3/60/8.0 3/60/64.0 6/20/16.0 6/20/128.0 6/60/8.0 6/60/32.0 6/60/64.0 10/60/64.0",
    "covtype logistic-l2": "3/60/8.0 6/60/8.0 6/60/16.0",
    "covtype logistic": "3/60/16.0 6/60/8.0 6/60/16.0",
})  # fmt: skip
# Epoch s has 2^s times the length.
_DOUBLING = _grids("epochs epoch_length step_size", {
    "logistic": "3/4/8.0 3/4/64.0 5/4/16.0 5/4/64.0 5/8/32.0 5/8/64.0 6/8/8.0 6/8/64.0",
    "covtype logistic": "5/4/16.0 5/8/8.0 6/8/16.0",
})  # fmt: skip
# The made entries are at most 1/4, which makes the loss 1/64-smooth in the norm of the ball.
_MIRROR = {"ball": (
    {}, {"smoothness": 1 / 64},
    *grid("smoothness steps", "0.015625/30 0.015625/100 0.015625/300 0.25/100 0.25/300 0.25/600"),
)}  # fmt: skip
_ITERATIONS = _grids("iterations", {"logistic": "4 16 64 256"})
_DISTANCES = _grids("distance", {"logistic": "1.0 5.0 25.0", "ball": "1.0 4.0"})
_VERTICES = {"ball": tuple({"clip_norm": 0.25, "steps": T} for T in (5, 10, 20, 40))}
_REGION = _grids("steps radius final_radius damping", {
    "logistic-l2": "16/4.0/0.25/0.5 16/2.0/0.1/0.5 16/8.0/0.25/0.5 32/4.0/0.1/0.5 32/8.0/0.1/0.5 "
    "32/4.0/0.25/0.5 32/8.0/0.25/0.5",
    "logistic": "16/2.0/0.1/0.5 16/4.0/0.1/0.5 16/8.0/0.5/0.5 32/4.0/0.1/0.5 32/8.0/0.1/0.5 "
    "32/8.0/0.25/0.5 32/12.0/0.25/0.5",
    "covtype logistic-l2": "16/4.0/0.1/0.5 16/8.0/0.1/0.5",
    "covtype logistic": "16/12.0/0.5/0.5 32/12.0/0.25/0.5",
})  # fmt: skip
_REGION |= {kind: ({}, *_REGION[kind]) for kind in ("logistic-l2", "logistic")}
_NEWTON = _grids("steps modification", {
    **dict.fromkeys(("logistic-l2", "logistic"),
                    "6/add 12/add 20/add 32/add 6/clip 12/clip 20/clip 32/clip"),
    **dict.fromkeys(("covtype logistic-l2", "covtype logistic"), "12/add 12/clip"),
})  # fmt: skip
_SMOOTH = {"logistic-l1": "it has no proximal step, and takes derivatives that the l1 norm lacks"}
_CONVEX = "its guarantee rests on strong convexity, which the objective has not; see the row below"
_STRONG = {"logistic": _CONVEX, "logistic-l1": _CONVEX}
_PLAIN = {"logistic-l1": "its proof here is for a differentiable objective"}


def in_ball(make: Any, objective: Objective, budget: PrivacyBudget, **more: Any) -> Algorithm:
    """Returns what ``make`` does with the objective's convex set, which it takes as ``domain``."""
    plain = dataclasses.replace(objective, regularizer=None, name="logistic")
    return make(plain, budget, domain=objective.regularizer, **more)


_BATCH = {"batch_size": "batch_size"}
METHODS = (
    Method(GD, "dp-gd", grids=_DESCENT),
    Method(SGD, "dp-sgd", takes=_BATCH, grids=_STOCHASTIC),
    Method(SVRG, "dp-svrg", takes=_BATCH, grids=_REDUCED),
    Method(EXACT, exact_anchor, takes=_BATCH, grids=_REDUCED),
    Method(PLUS, "dp-svrg++", takes=_BATCH, grids=_DOUBLING),
    Method(ACCMD, functools.partial(in_ball, dp_accelerated_mirror_descent), grids=_MIRROR),
    Method(OUTPUT, "output-perturbation", refused=_STRONG),
    Method(PERTURBED, "objective-perturbation", refused=_STRONG),
    Method(RIDGE, convex.ridge_perturbation, grids=_DISTANCES, refused=_PLAIN),
    Method(DESCENT, convex.descent_perturbation, grids=_ITERATIONS, refused=_PLAIN),
    Method(WOLFE, functools.partial(in_ball, convex.frank_wolfe), grids=_VERTICES),
    Method(PROJECTED, functools.partial(in_ball, convex.projected_perturbation), grids=_DISTANCES),
    Method(NEWTON, "dp-newton", grids=_NEWTON, refused=_SMOOTH),
    Method(TR, "dp-tr", grids=_REGION, refused=_SMOOTH),
    Method(STR, "dp-str", grids=_REGION, refused=_SMOOTH),
)


_BOUND = ("method", "whose bound", "excess risk", "exponent", "measured", "gradients", "non-smooth")
_STANDS = {
    SGD: "noisy SGD on one record a step: here Poisson batches, steps tuned, on a ball projected",
    PERTURBED: "a tilt of Laplace's kind, pure epsilon: here Gaussian, exact accounting",
    OUTPUT: "the end of a descent: here the minimiser, up to a proven distance",
    RIDGE: "the method itself; the minimiser is found up to a proven distance",
    DESCENT: "the method itself",
    **dict.fromkeys((SVRG, PLUS), "the method, with noise on anchor and difference apart"),
    GD: "theorem 6.2's method, which the table leaves out; steps tuned",
    ACCMD: "the method, with one released gradient for y and z",
    WOLFE: "the method, with Gumbel noise for Laplace noise",
    PROJECTED: "a tilted minimum in C: here one in R^p with the ridge, projected on C",
}
# No constants, no log(1/delta); kappa = L / mu, G_C the Gaussian width of C, diam its diameter.
_BOUNDS = {
    "logistic-l2": (
        (PERTURBED, "Chaudhuri et al. 2011", "p / (n eps)^2", -2, "not given", "no"),
        (SGD, "Bassily et al. 2014", "p log(n)^2 / (n eps)^2", -2, "n^2", "yes"),
        (OUTPUT, "Zhang et al. 2017", "p / (n eps)^2", -2, "n kappa log(n eps / kappa)", "no"),
        (SVRG, "theorem 4.2", "p log(n) / (n eps)^2", -2, "(n + kappa) log(n eps mu / p)", "yes"),
        (GD, "theorem 6.2", "p log(n)^2 / (n eps)^2", -2, "n log(n eps / p)", "not said"),
    ),
    "logistic": (
        (RIDGE, "Kifer et al. 2012", "sqrt(p) / (n eps)", -1, "not given", "yes"),
        (SGD, "Bassily et al. 2014", "sqrt(p) log(n)^1.5 / (n eps)", -1, "n^2", "yes"),
        (DESCENT, "Zhang et al. 2017", "(sqrt(p) / (n eps))^(2/3)", -2 / 3, "n (n eps / p)^(2/3)",
         "no"),
        (PLUS, "theorem 4.4", "sqrt(p) / (n eps)", -1, "n eps / sqrt(p) + n log(n eps / p)", "yes"),
    ),
    "ball": (
        (SGD, "Talwar et al. 2014", "sqrt(G_C^2 + diam^2) log(n) / (n eps)", -1,
         "n^3 eps^2 / ((G_C^2 + diam^2) log(n)^2)", "yes"),
        (PROJECTED, "Talwar et al. 2014", "G_C / (n eps), up to its assumptions", -1, "not given",
         "no"),
        (WOLFE, "Talwar et al. 2015", "G_C^(2/3) log(n)^2 / (n eps)^(2/3)", -2 / 3,
         "n (n eps / G_C)^(2/3)", "yes"),
        (ACCMD, "theorem 5.4", "sqrt(G_C^2 + diam^2) / (n eps)", -1,
         "n^1.5 sqrt(eps) / (G_C^2 + diam^2)^(1/4)", "no"),
    ),
}  # fmt: skip
_BOUNDS["logistic-l1"] = _BOUNDS["logistic"]
# A measured exponent this near to the bound's counts as agreeing.
_NEAR = 1 / 3


def _bounds(found: Results, problem: Problem) -> Iterator[dict[str, Any]]:
    """The bounds of methods that there are numbers of, each with the exponent measured."""
    for method, source, risk, bound, *more in _BOUNDS[problem.keys[-1]]:
        if method in found.each("method"):
            measured = exponent(found, "exact_gap", method)
            row = dict(zip(_BOUND, (method, source, risk, bound, measured, *more), strict=True))
            yield row | {"stands for": _STANDS[method]}


@per_problem
def _exponents(found: Results, problem: Problem) -> Iterator[Verdict]:
    known = [(b["method"], b["measured"], b["exponent"])
             for b in _bounds(found, problem) if b["measured"] is not None]  # fmt: skip
    held = [abs(slope - bound) <= _NEAR * abs(bound) for _, slope, bound in known]
    words = ", ".join(f"{m} {slope:.2f} (bound {bound:.2g})" for m, slope, bound in known)
    text = f"{problem.name}: the excess risk falls with epsilon as the bound does."
    if held:
        yield counted(text, held, f"Exponent of epsilon: {words}.")


def cheapest(found: Results, method: str, epsilon: float) -> float:
    """Returns the fewest gradients of a method's settings for 1.5 times DP-GD's best excess risk.

    Infinite if no setting tried gets there; NaN if the table does not have what was tried.
    """
    if not found.tried("gradients", epsilon=epsilon):
        return math.nan
    at = {"method": method, "epsilon": epsilon}
    risk = 1.5 * found.mean("exact_gap", method=GD, epsilon=epsilon)
    costs = found.tried("gradients", **at)
    there = [costs[words] for words, gap in found.tried("exact_gap", **at).items() if gap <= risk]
    there += [found.mean("gradients", **at)] if found.mean("exact_gap", **at) <= risk else []
    return min(there, default=math.inf)


def _best_of_descent(found: Results, method: str, epsilon: float) -> float:
    """The same, but for DP-GD the gradients of its best setting."""
    return (mean("gradients") if method == GD else cheapest)(found, method, epsilon)


def _claims(best: str, *others: str) -> tuple[Any, ...]:
    said: list[tuple[str, Read, str, float]] = []
    for other in others:
        said += [(f"{best} takes fewer gradients than {other}.", mean("gradients"), other, 1.0),
                 (f"{best} has a smaller excess risk than {other}.", mean("exact_gap"), other, 1.0),
        ]  # fmt: skip
    if best != ACCMD:
        there = f"Some setting tried of {best} has at most 1.5 times DP-GD's excess risk at"
        said += [(f"{there} a quarter of its gradients at most.", _best_of_descent, GD, 0.25),
                 (f"{there} fewer gradients than any setting of DP-GD that has.", cheapest, GD, 1.0)
        ]  # fmt: skip
    smaller = (Smaller(text, read, best, other, limit=limit, ratios=True)
               for text, read, other, limit in said)  # fmt: skip
    return (*smaller, _exponents)


def unbeaten(found: Results, epsilon: float) -> list[str]:
    """Returns the methods that none beats in risk at no more gradient evaluations."""
    rows = found.where(epsilon=epsilon)
    at = {m: [rows.mean(name, method=m) for name in ("gradients", "exact_gap")]
          for m in rows.each("method")}  # fmt: skip
    return [m for m, (cost, risk) in at.items()
            if not any(other <= cost and less < risk for other, less in at.values())]  # fmt: skip


@per_problem
def _tables(found: Results, problem: Problem) -> Iterator[str]:
    risks = page.Grid("Excess risk, mean (standard error):", page.mean("exact_gap", error=True))
    passes = page.Grid("Gradient evaluations over n, declared (computed):", _passes,
                       more=(("settings at epsilon 1", _taken),))  # fmt: skip
    yield from (f"### {problem.name}", "", *risks(found, [problem]), *passes(found, [problem]))
    fronts = (f"at epsilon {e:g}: {', '.join(unbeaten(found, e))}" for e in found.each("epsilon"))
    words = "Not beaten in risk by any method of no more gradient evaluations, "
    yield from (f"{words}{'; '.join(fronts)}.", "")
    refused = {m.label: m.refused.get(problem.keys[-1]) for m in METHODS}
    yield from (f"- {label}: n/a, {why}." for label, why in refused.items()
                if why and label in problem.methods)  # fmt: skip
    rows = [
        bound | {"exponent": f"{bound['exponent']:.2g}",
                 "measured": "" if bound["measured"] is None else f"{bound['measured']:.2f}"}
        for bound in _bounds(found, problem)
    ]  # fmt: skip
    if rows:
        words = "The paper's bounds, and the exponent of epsilon measured here:"
        yield from ("", *page.table(rows, words))


def _passes(found: Results) -> str:
    n, declared = found.each("rows")[0], found.mean("gradients")
    computed = found.mean("gradients_computed")
    return f"{declared / n:.3g}" + (f" ({computed / n:.3g})" if computed != declared else "")


def _taken(found: Results) -> str:
    at = found.where(epsilon=1.0)
    words = at.taken("gradients").replace("defaults", "from theory")
    tried = len(at.tried("exact_gap"))
    return f"{words} (best of {tried})" if tried else words


def _picture(epsilons: tuple[float, ...], columns: int = 3) -> Picture:
    return Picture(
        "Excess risk of each method against its cost: lower is better, further left is cheaper\n"
        "mean of {seeds}, bars: two standard errors; delta = 1/n, {relation}; {exact}",
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


THEOREM_62, RANDOM, LAST = "DP-GD, theorem 6.2", "DP-GD, theorem 6.3", "DP-GD, its last iterate"
_MU = 1e-3


class _RidgeOfSum:
    """The ridge of (w_1 + w_2) / sqrt(2), w_1 and w_2 the halves: flat along w_1 - w_2."""

    smoothness = _MU

    def __call__(self, params: Any) -> Any:
        return _MU / 4 * (params.reshape(2, -1).sum(axis=0) ** 2).sum()


def _doubled(data: str) -> Dataset:
    """Rows (x, x) / sqrt(2): F(w_1, w_2) = G((w_1 + w_2) / sqrt(2)), G the objective of x."""
    whole = load(data)
    twice = np.concatenate([whole.x, whole.x], axis=1) / np.float32(math.sqrt(2))
    return dataclasses.replace(whole, x=twice, test_x=None, test_y=None)


def _theory(objective: Any, methods: tuple[str, ...], words: str, more: Any = lambda data: {}):
    return tuple(
        Problem(
            data, objective, title="{data}, " + words, delta_times_n=1.0, epsilons=_EPSILONS,
            methods=methods, starts=1, **more(data),
            quick={"epsilons": (0.5, 1.0), "rows": 4_000},
            metrics=("exact_value", "exact_gradient_norm", "steps", "noise_multiplier"),
        )
        for data in ("randhie", "ijcnn1")
    )  # fmt: skip


_TWICE = dataclasses.replace(logistic(), regularizer=_RidgeOfSum(), name="logistic, ridge of sums")
_PL = _theory(logistic_l2(_MU), (THEOREM_62,), "strongly convex",
              lambda data: {"reference": "certified"})  # fmt: skip
_PL += _theory(_TWICE, (THEOREM_62,), "PL without strong convexity", lambda data: {
    "reference": "descents", "records": functools.partial(_doubled, data)})  # fmt: skip
_NONCONVEX = _theory(sigmoid_l2(_MU), (RANDOM, LAST), "sigmoid loss with l2")
METHODS += (
    Method(THEOREM_62, "dp-gd", {"pl_constant": _MU}),
    Method(RANDOM, "dp-gd", {"output": "random"}),
    Method(LAST, "dp-gd"),
)


def _of_theory(found: Results, problem: Problem) -> Iterator[tuple[float, float, float, float]]:
    """Epsilon, T, the mean of what a theorem is about, and its bound with constants."""
    loss, (n, p) = problem.loss, found.shape
    gap, (lipschitz, *_) = loss.averaged.at_zero, loss.constants  # pyright: ignore
    for epsilon in found.each("epsilon"):
        at = found.where(epsilon=epsilon)
        steps, noise = at.mean("steps"), p * (at.mean("noise_multiplier") * lipschitz / n) ** 2
        if THEOREM_62 in problem.methods:
            left = (1 - _MU / loss.smoothness) ** steps  # pyright: ignore
            mean, bound = at.mean("exact_gap"), left * gap + (1 - left) * noise / (2 * _MU)
        else:
            mean = float((at.values("exact_gradient_norm") ** 2).mean())
            bound = 2 * gap * loss.smoothness / steps + noise  # pyright: ignore
        yield epsilon, steps, mean, bound


def _section_6(results: Results, problems: tuple[Problem, ...]) -> Iterator[str]:
    rows = []
    for problem in problems:
        found = results.where(problem=problem.name)
        for method in found.each("method"):
            every = [*_of_theory(found.where(method=method), problem)]
            slope = power([e for e, *_ in every], [mean for *_, mean, _ in every])
            cells = {f"epsilon {e:g}": f"{number(mean)} / {number(bound)} (T {steps:g})"
                     for e, steps, mean, bound in every}  # fmt: skip
            rows.append({"": f"{problem.name}: {method}"} | cells | {"exponent": f"{slope:.2f}"})
    words = "Mean excess risk (6.1) or squared gradient norm (6.2) / the bound with constants (T), "
    yield from page.table(rows, f"{words}and the mean's exponent of epsilon:")


def _theorems(results: Results, problems: tuple[Problem, ...]) -> Iterator[Verdict]:
    each = [(p, results.where(problem=p.name, method=m)) for p in problems for m in p.methods]
    held = [mean <= bound for p, found in each for *_, mean, bound in _of_theory(found, p)]
    yield counted("The mean is within the theorem's bound with constants.", held)


def _section_picture(metric: str, words: str) -> Picture:
    panel = Lines(metric, "{problem}\nn = {n:,}, p = {p:,}", ylabel=words)
    title = f"{words} against epsilon: lower is better\nmean of {{seeds}}; {{exact}}"
    return Picture(title, (panel,), 2)


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
            "1e-3.", _CONVEX_PROBLEMS, _picture((1.0,)), (_tables,),
            _claims(PLUS, SGD, RIDGE, DESCENT),
        ),
        "table3": Figure(
            "High-dimensional: logistic loss on an l1 ball, more features than records.", (_BALL,),
            _picture(_EPSILONS, 2), (_tables,), _claims(ACCMD, SGD, GD, WOLFE, PROJECTED),
        ),
        "pl": Figure(
            "Section 6.1: the Polyak-Lojasiewicz condition, mu = 1e-3, with and without strong "
            "convexity; T, eta = 1 / L and noise from theory.", _PL,
            _section_picture("exact_gap", "Excess risk"), (_section_6,), (_theorems,),
        ),
        "nonconvex": Figure(
            "Section 6.2: a loss that is not convex, T and eta = 1 / L from theory, the random "
            "iterate and the last.", _NONCONVEX,
            _section_picture("exact_gradient_norm", "Gradient norm"), (_section_6,),
            (_theorems,),
        ),
    },
    "Wang, Ye and Xu, NIPS 2017, tables 1 to 3 and section 6",
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
