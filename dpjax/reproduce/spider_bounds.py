"""NOT PRIVATE: what theory says of the Spider paper's rates, as lines of the page."""

from collections.abc import Sequence

from dpjax.reproduce import page, spider_rates
from dpjax.reproduce.escapes import Escapes
from dpjax.reproduce.page import number


def theory_lines(every: Sequence[Escapes]) -> list[str]:
    """Returns the bounds, and where Spider's is the smallest, as lines of Markdown."""
    epsilon, d, n = every[0].epsilons[-1], every[0].dimension, every[0].rows
    rows = [
        {
            "whose bound": bound.source,
            "alpha": bound.words,
            "exponent of privacy": f"{bound.exponent:.2f}",
            "of": "the population" if bound.population else "the records",
            f"at n = {n:,}, d = {d}": number(bound.alpha(n, d, epsilon)),
            "of the methods here": ", ".join(bound.methods),
        }
        for bound in spider_rates.BOUNDS
    ]
    return [
        "### Theory",
        "",
        "Bounds on alpha, constants and logarithms taken as 1. 1/3 is the exponent of sampling in "
        "the bounds for the population. DP-SGD, PrGD and Gauss-PSGD have none in these papers.",
        "",
        *page.table(rows),
        "",
        _where_spider_wins(spider_rates.DESCENT_BOUND, "DP-GD", d, epsilon, n),
        "",
        _where_spider_wins(spider_rates.TRUST_REGION_BOUND, "DP-TR", d, epsilon, n),
    ]


def _where_spider_wins(bound: spider_rates.Bound, name: str, d: int, epsilon: float, n: int) -> str:
    ours, theirs = spider_rates.SPIDER_BOUND, spider_rates.on_population(bound)
    found = [
        f"{'from' if wins else 'up to'} n = {at:.2g}"
        for at, wins in spider_rates.crossings(ours.alpha, theirs, d, epsilon)
    ]
    better = ours.alpha(n, d, epsilon) < theirs(n, d, epsilon)
    return (
        f"Where Spider's bound is below that of {name}: compared is {ours.words} with "
        f"{bound.words} + sqrt(d/n), the last term for the way from the records to the population "
        "(uniform convergence, Liu and Talwar, section 4), all constants and logarithms 1. With "
        f"d = {d} and epsilon = {epsilon:g} it is {', '.join(found) or 'never crossed'}; at n = "
        f"{n:,} {'Spider' if better else name} has the smaller bound. n^(-1/3) falls slower than "
        "sqrt(d/n), so a large d, not a large n, is what the bound is for; on the records alone, "
        f"without sqrt(d/n), {_alone(bound, name, d, epsilon)}."
    )


def _alone(bound: spider_rates.Bound, name: str, d: int, epsilon: float) -> str:
    found = [
        f"{'from' if wins else 'up to'} n = {at:.2g}"
        for at, wins in spider_rates.crossings(
            spider_rates.SPIDER_BOUND.alpha, bound.alpha, d, epsilon
        )
    ]
    return f"Spider's is below {name}'s {', '.join(found)}" if found else "they do not cross"
