"""NOT PRIVATE: what the Spider paper and its like say, held against the numbers."""

from collections.abc import Sequence

import numpy as np

from dpjax.reproduce import spider_rates
from dpjax.reproduce.escapes import Escapes, quartiles
from dpjax.reproduce.page import Claim, number
from dpjax.reproduce.study import Figure

_SPIDER, _FIXED, _GD, _TR = "Spider", "Spider, fixed batches", "DP-GD", "DP-TR"

_ORDERED = ((spider_rates.DESCENT_BOUND, _GD), (spider_rates.TRUST_REGION_BOUND, _TR))


def claims(one: Figure, every: Sequence[Escapes]) -> list[Claim]:
    """Returns the verdicts on one figure."""
    made = _of_escape if one.kind == "escape" else _of_rates
    return [claim for found in every for claim in made(found)]


def _of_escape(found: Escapes) -> list[Claim]:
    if _SPIDER not in found.labels:
        return []
    shares = [found.share(_SPIDER, e) for e in found.epsilons]
    said = [
        Claim(
            "Spider leaves the saddle (held where at least nine in ten seeds do).",
            sum(share >= 0.9 for share in shares),
            len(shares),
            f"Shares: {_listed(found, shares)}.",
        )
    ]
    for other in ("SpiderBoost", _FIXED):
        if other in found.labels:
            others = [found.share(other, e) for e in found.epsilons]
            said.append(
                Claim(
                    f"Adaptive batches leave it more often than {other}.",
                    sum(a > b for a, b in zip(shares, others, strict=True)),
                    len(shares),
                    f"{other}: {_listed(found, others)}.",
                )
            )
    for other in (_GD, _TR):
        if other in found.labels:
            said += [_fewer(found, other), _nearer(found, other)]
    if {_GD, _TR} <= set(found.labels):
        steps = [[quartiles(found.iterations(m, e))[1] for m in (_TR, _GD)] for e in found.epsilons]
        said.append(
            Claim(
                "Second-order steps escape in fewer iterations than first-order ones: DP-TR before "
                "DP-GD.",
                sum(a < b for a, b in steps),
                len(steps),
                f"Medians: {_pairs(steps)}.",
            )
        )
    return said


def _fewer(found: Escapes, other: str) -> Claim:
    pairs = [
        [quartiles(found.read(m, e))[1] / found.rows for m in (_SPIDER, other)]
        for e in found.epsilons
    ]
    return Claim(
        f"Spider reads fewer records than {other} until it is out.",
        sum(a < b for a, b in pairs),
        len(pairs),
        f"Median passes over n: {_pairs(pairs)}.",
    )


def _nearer(found: Escapes, other: str) -> Claim:
    pairs = [[float(np.median(found.gaps(m, e))) for m in (_SPIDER, other)] for e in found.epsilons]
    return Claim(
        f"Spider ends no higher above the minimum than {other}.",
        sum(a <= b for a, b in pairs),
        len(pairs),
        "Median gaps: " + ", ".join(f"{number(a)} against {number(b)}" for a, b in pairs) + ".",
    )


def _of_rates(found: Escapes) -> list[Claim]:
    epsilon, sizes, name = found.epsilons[-1], found.sizes, found.problem.where
    said = []
    for bound in spider_rates.BOUNDS:
        for label in (label for label in bound.methods if label in found.labels):
            least = min(bound.exponent, spider_rates.SAMPLING if bound.population else 1.0)
            fit = fitted(found, label)
            if fit is None:
                continue
            said.append(
                Claim(
                    f"{name}: {label} leaves the saddle, and its alpha falls at least as fast as "
                    f"its bound, n^-{least:.2f}.",
                    int(fit.value >= least and _out(found, label)),
                    1,
                    f"Measured {fit.value:.2f} (middle 80 % of seeds: {fit.low:.2f} to "
                    f"{fit.high:.2f}), with {found.share(label, epsilon):.0%} out of the saddle at "
                    f"n = {sizes[-1]:,}.",
                )
            )
    if _SPIDER in found.labels:
        said += [_order(found, b, m) for b, m in _ORDERED if m in found.labels]
    rivals = [label for label in found.labels if label != _SPIDER and _out(found, label)]
    if rivals and _SPIDER in found.labels:
        ours = float(np.median(found.alphas(_SPIDER, epsilon)))
        theirs = {m: float(np.median(found.alphas(m, epsilon))) for m in rivals}
        said.append(
            Claim(
                f"{name}: at n = {found.rows:,} no method that escapes has a smaller alpha than "
                "Spider.",
                sum(ours <= alpha for alpha in theirs.values()),
                len(theirs),
                f"Spider {number(ours)}; "
                + ", ".join(f"{m} {number(alpha)}" for m, alpha in theirs.items())
                + ".",
            )
        )
    return said


def _order(found: Escapes, bound: spider_rates.Bound, label: str) -> Claim:
    epsilon, n, d = found.epsilons[-1], found.rows, found.dimension
    mine = spider_rates.SPIDER_BOUND.alpha(n, d, epsilon)
    whole = spider_rates.on_population(bound)(n, d, epsilon)
    ours, theirs = (float(np.median(found.alphas(m, epsilon))) for m in (_SPIDER, label))
    return Claim(
        f"{found.problem.where}: of Spider and {label} the one with the smaller bound at n = {n:,} "
        "(constants 1, on the population) has the smaller alpha.",
        int((mine < whole) == (ours < theirs)),
        1,
        f"Bounds {number(mine)} and {number(whole)}, measured {number(ours)} and {number(theirs)}.",
    )


def _out(found: Escapes, label: str) -> bool:
    return found.share(label, found.epsilons[-1]) > 0.5


def fitted(found: Escapes, label: str) -> spider_rates.Slope | None:
    """Returns how fast the method's alpha falls with n; None where it is 0 or there is one n."""
    epsilon, sizes = found.epsilons[-1], found.sizes
    alphas = np.array([found.alphas(label, epsilon, size) for size in sizes])
    if len(sizes) < 2 or not (np.isfinite(alphas).all() and (alphas > 0).all()):
        return None
    return spider_rates.slope(np.array(sizes, float), alphas)


def _pairs(pairs: list[list[float]]) -> str:
    words = [[f"{v:.3g}" if np.isfinite(v) else "never" for v in pair] for pair in pairs]
    return ", ".join(f"{a} against {b}" for a, b in words)


def _listed(found: Escapes, shares: list[float]) -> str:
    return ", ".join(
        f"{s:.0%} at epsilon {e:g}" for e, s in zip(found.epsilons, shares, strict=True)
    )
