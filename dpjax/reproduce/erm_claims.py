"""NOT PRIVATE: what the convex ERM paper's tables say, each held against the numbers made here."""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dpjax.reproduce.page import Claim, number
from dpjax.reproduce.risks import Risks
from dpjax.reproduce.study import Figure


class Bound(NamedTuple):
    """A row of the paper's tables, of a method that there are numbers of."""

    method: str
    source: str
    """Whose bound it is."""
    risk: str
    """Bound on the excess risk, without constants and log(1/delta)."""
    exponent: float
    """Of epsilon in that bound."""
    evaluations: str
    """Bound on the gradient evaluations."""
    non_smooth: str
    """Whether a non-smooth regularizer is allowed."""


# kappa = L / mu is the condition number, G_C the Gaussian width of the set C and diam its diameter.
_STRONG = (
    Bound(
        "objective perturbation",
        "Chaudhuri et al. 2011",
        "p / (n eps)^2",
        -2,
        "not given",
        "no",
    ),
    Bound("DP-SGD", "Bassily et al. 2014", "p log(n)^2 / (n eps)^2", -2, "n^2", "yes"),
    Bound(
        "output perturbation",
        "Zhang et al. 2017",
        "p / (n eps)^2",
        -2,
        "n kappa log(n eps / kappa)",
        "no",
    ),
    Bound(
        "DP-SVRG",
        "theorem 4.2",
        "p log(n) / (n eps)^2",
        -2,
        "(n + kappa) log(n eps mu / p)",
        "yes",
    ),
    Bound("DP-GD", "theorem 6.2", "p log(n)^2 / (n eps)^2", -2, "n log(n eps / p)", "not said"),
)
_CONVEX = (
    Bound(
        "objective perturbation", "Kifer et al. 2012", "sqrt(p) / (n eps)", -1, "not given", "yes"
    ),
    Bound("DP-SGD", "Bassily et al. 2014", "sqrt(p) log(n)^1.5 / (n eps)", -1, "n^2", "yes"),
    Bound(
        "output perturbation",
        "Zhang et al. 2017",
        "(sqrt(p) / (n eps))^(2/3)",
        -2 / 3,
        "n (n eps / p)^(2/3)",
        "no",
    ),
    Bound(
        "DP-SVRG++",
        "theorem 4.4",
        "sqrt(p) / (n eps)",
        -1,
        "n eps / sqrt(p) + n log(n eps / p)",
        "yes",
    ),
)
# The first is of noisy mirror descent on one record a step; projected DP-SGD stands for it.
_WIDE = (
    Bound(
        "DP-SGD",
        "Talwar et al. 2014",
        "sqrt(G_C^2 + diam^2) log(n) / (n eps)",
        -1,
        "n^3 eps^2 / ((G_C^2 + diam^2) log(n)^2)",
        "yes",
    ),
    Bound(
        "DP-AccMD",
        "theorem 5.4",
        "sqrt(G_C^2 + diam^2) / (n eps)",
        -1,
        "n^1.5 sqrt(eps) / (G_C^2 + diam^2)^(1/4)",
        "no",
    ),
)
# Theorem 6.2 stands for DP-GD in the first, where the table has no row of it.
BOUNDS = {"logistic-l2": _STRONG, "logistic": _CONVEX, "logistic-l1": _CONVEX, "ball": _WIDE}
# A measured exponent this near to the bound's counts as agreeing.
_NEAR = 1 / 3


def bounds(found: Risks) -> tuple[Bound, ...]:
    """Returns the paper's bounds for the methods that there are results of."""
    return tuple(bound for bound in BOUNDS[found.problem.kind] if bound.method in found.methods)


def claims(figure: Figure, every: Sequence[Risks]) -> list[Claim]:
    """Returns what the paper says about ``figure``, each held against the results.

    Args:
      figure: one of the paper's tables.
      every: the results on its problems.

    Reference: Wang, Ye and Xu (2017), tables 1 to 3.
    """
    del figure
    kind = every[0].problem.kind
    if kind == "ball":
        best, plain = "DP-AccMD", ("DP-SGD", "DP-GD")
    elif kind == "logistic-l2":
        best, plain = "DP-SVRG", ("DP-SGD", "output perturbation")
    else:
        best, plain = "DP-SVRG++", ("DP-SGD", "output perturbation")
    made = []
    for other in plain:
        made += [
            _ratio(
                every, best, other, 1, Risks.declared, f"{best} takes fewer gradients than {other}."
            ),
            _ratio(
                every, best, other, 1, Risks.mean, f"{best} has a smaller excess risk than {other}."
            ),
        ]
    if best != "DP-AccMD":
        there = f"Some setting tried of {best} has at most 1.5 times DP-GD's excess risk at"
        for read, text in (
            (_of_the_best, f"{there} a quarter of its gradients at most."),
            (_to_get_there, f"{there} fewer gradients than any setting of DP-GD that has."),
        ):
            limit = 0.25 if read is _of_the_best else 1
            made.append(_ratio(every, best, "DP-GD", limit, read, text))
    made += [_exponents(found) for found in every]
    return [claim for claim in made if claim is not None]


def _to_get_there(found: Risks, label: str, epsilon: float) -> float:
    """Fewest gradients, of the settings tried, for 1.5 times DP-GD's best risk."""
    return found.cheapest(label, epsilon, 1.5 * found.mean("DP-GD", epsilon))


def _of_the_best(found: Risks, label: str, epsilon: float) -> float:
    """The same, but for DP-GD the gradients of its best setting."""
    read = Risks.declared if label == "DP-GD" else _to_get_there
    return read(found, label, epsilon)


def _ratio(
    every: Sequence[Risks],
    ours: str,
    theirs: str,
    limit: float,
    read: Callable[[Risks, str, float], float],
    text: str,
) -> Claim | None:
    held = made = 0
    words = []
    for found in every:
        if not {ours, theirs} <= set(found.methods):
            continue
        ratios = [read(found, ours, e) / read(found, theirs, e) for e in found.epsilons]
        held += sum(ratio <= limit for ratio in ratios)
        made += len(ratios)
        shown = ", ".join(
            f"{number(ratio)} at {epsilon:g}"
            for ratio, epsilon in zip(ratios, found.epsilons, strict=True)
        )
        words.append(f"{found.problem.title}: {shown}")
    if not made:
        return None
    return Claim(text, held, made, f"Ratio by epsilon: {'; '.join(words)}.")


def _exponents(found: Risks) -> Claim | None:
    near, words = 0, []
    for bound in bounds(found):
        measured = found.exponent(bound.method)
        if measured is None:
            continue
        near += abs(measured - bound.exponent) <= _NEAR * abs(bound.exponent)
        words.append(f"{bound.method} {measured:.2f} (bound {bound.exponent:.2g})")
    if not words:
        return None
    text = f"{found.problem.title}: the excess risk falls with epsilon as the bound does."
    return Claim(text, near, len(words), f"Exponent of epsilon: {', '.join(words)}.")


def dominated(found: Risks, epsilon: float) -> list[str]:
    """Returns the methods that another one beats in risk at no more gradient evaluations.

    Args:
      found: the results on one problem.
      epsilon: where.
    """
    worse = set()
    for one, other in itertools.permutations(found.methods, 2):
        cheaper = found.declared(other, epsilon) <= found.declared(one, epsilon)
        if cheaper and found.mean(other, epsilon) < found.mean(one, epsilon):
            worse.add(one)
    return [name for name in found.methods if name in worse]
