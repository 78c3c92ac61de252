"""NOT PRIVATE: the Spider paper (Liu and Talwar 2024): saddles, what is compared, the theory."""

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from benchmarks.papers import claims, page
from benchmarks.papers.claims import Compared, Smaller, Verdict, decided, number
from benchmarks.papers.figures import Dots, Lines, Picture
from benchmarks.papers.looks import look
from benchmarks.papers.results import Results, per_problem, quartiles
from benchmarks.papers.spec import Experiment, Figure, Method, Problem
from benchmarks.papers.variants.spiders import fixed_batch_spider, gauss_psgd, spider_boost
from dpjax.objectives import Objective, welsch, welsch_regularization

GD, SGD, PRGD = "DP-GD", "DP-SGD", "PrGD"
SPIDER, FIXED, BOOST = "Spider", "Spider, fixed batches", "SpiderBoost"
PSGD, TUNED, TR, STR = "Gauss-PSGD", "Gauss-PSGD, tuned", "DP-TR", "DP-STR"
MANY, ONCE = (GD, SGD, PRGD, TR, STR), (SPIDER, FIXED, BOOST, PSGD, TUNED)
_ALL, _BATCH, _AT_MOST = "all at every step", "a Poisson batch a step", "each at most once"
METHODS = (
    Method(GD, "dp-gd", about=_ALL),
    Method(SGD, "dp-sgd", about=_BATCH),
    Method(PRGD, "prgd", about=_BATCH),
    Method(SPIDER, "spider", about=_AT_MOST),
    Method(FIXED, fixed_batch_spider, about=_AT_MOST),
    Method(BOOST, spider_boost, about=_AT_MOST),
    Method(PSGD, gauss_psgd, about=_AT_MOST),
    Method(TUNED, gauss_psgd, {"escape_steps": 400, "escape_distance": 0.5}, about=_AT_MOST),
    Method(TR, "dp-tr", about=_ALL),
    Method(STR, "dp-str", about=_BATCH),
)
_READS = ("reads", {method.label: method.about for method in METHODS})


def saddle(data: str) -> Objective:
    """Returns the Welsch loss with the strength that is published for the data."""
    return welsch(welsch_regularization(data))


def _problem(title: str, data: str, **more: Any) -> Problem:
    return Problem(
        data, saddle, title, reference="landscape", checkpoints=72,
        metrics=("exact_value", "exact_gradient_norm", "exact_min_eigenvalue", "exact_alpha",
                 "exact_escaped", "exact_iterations_until_out", "exact_passes_until_out",
                 "exact_alpha_on_all_records", "promised_alpha", "epsilon_of_the_noise"),
        quick={"epsilons": (1.0,), "methods": (SPIDER, TR), "rows": 2_000,
               "sizes": (1_000, 0) if "sizes" in more else (0,)}, **more,
    )  # fmt: skip


_ESCAPE = _problem("{data}, welsch", "ijcnn1", epsilons=(0.2, 0.5, 1.0, 2.0))
_COVTYPE = _problem("{data}, welsch", "covtype", epsilons=(0.2, 1.0), most_seeds=5,
                    methods=(GD, SPIDER, TR))  # fmt: skip
_RATES = tuple(
    _problem("{data}, welsch, by n", data, epsilons=(1.0,), sizes=sizes)
    for data, sizes in (("ijcnn1", (2_000, 4_000, 8_000, 16_000, 0)),
                        ("randhie", (1_250, 2_500, 5_000, 10_000, 0)))
)  # fmt: skip


# Exponent of 1/n in the term that sampling costs in every bound for the population.
_SAMPLING = Fraction(1, 3)


class Bound(NamedTuple):
    """How small an alpha is promised, its constants and logarithms taken as 1."""

    source: str
    exponent: Fraction
    """Of 1/n in the term that privacy costs."""
    population: bool
    """Whether it is of the population's objective; else of the records' own."""
    methods: tuple[str, ...]
    """The methods here that it is a bound of, or of the nearest to one."""

    @property
    def words(self) -> str:
        """The bound as a formula."""
        if self.population:
            return f"n^(-{_SAMPLING}) + (sqrt(d)/(n epsilon))^({self.exponent})"
        return f"(d/(n epsilon))^({self.exponent})"

    def alpha(self, n: float, d: int, epsilon: float) -> float:
        """The bound as a number."""
        if self.population:
            return n**-_SAMPLING + (math.sqrt(d) / (n * epsilon)) ** float(self.exponent)
        return (d / (n * epsilon)) ** float(self.exponent)

    def on_population(self, n: float, d: int, epsilon: float) -> float:
        """The bound; one for the records alone takes sqrt(d/n) more (section 4 of the paper)."""
        return self.alpha(n, d, epsilon) + (0.0 if self.population else math.sqrt(d / n))


BOUNDS = _OURS, _, _REGION, _DESCENT = (
    Bound("Liu and Talwar 2024, theorem 3.11 (as Arora et al. 2023 to first order)",
          Fraction(1, 2), True, (SPIDER, BOOST)),
    Bound("Ganesh et al. 2023", Fraction(3, 7), True, (FIXED,)),
    Bound("Wang and Xu 2020, theorems 2 and 4", Fraction(4, 7), False, (TR, STR)),
    Bound("Wang, Chen and Xu 2019, as Wang and Xu 2020 quote it", Fraction(1, 2), False, (GD,)),
)  # fmt: skip


def crossings(
    first: Callable[..., float], second: Callable[..., float], d: int, epsilon: float
) -> list[tuple[float, bool]]:
    """Returns each n from 1 to 10^15 where two bounds cross, and whether the first wins beyond it.

    >>> crossings(lambda n, d, e: n**-0.5, lambda n, d, e: 0.1 * n**-0.25, 1, 1.0)
    [(10000.0, True)]
    """
    at = np.geomspace(1, 1e15, 6001)
    better = np.array([first(n, d, epsilon) < second(n, d, epsilon) for n in at])
    changes = np.flatnonzero(better[1:] != better[:-1])
    return [(float(f"{math.sqrt(at[i] * at[i + 1]):.2g}"), bool(better[i + 1])) for i in changes]


def _theory(results: Results, problems: Sequence[Problem]) -> Iterator[str]:
    """The bounds, and where Spider's is the smallest."""
    found = results.where(problem=problems[0].name)
    (n, d), e = found.shape, found.each("epsilon")[-1]

    def where(other: Callable[..., float]) -> str:
        crossed = crossings(_OURS.alpha, other, d, e)
        return ", ".join(f"{'from' if wins else 'up to'} n = {at:.2g}" for at, wins in crossed)

    rows = [
        {"whose bound": b.source, "alpha": b.words,
         "exponent of privacy": f"{float(b.exponent):.2f}",
         "of": "the population" if b.population else "the records",
         f"at n = {n:,}, d = {d}": number(b.alpha(n, d, e)),
         "of the methods here": ", ".join(b.methods)}
        for b in BOUNDS
    ]  # fmt: skip
    yield from ("### Theory", "")
    yield from page.table(
        rows,
        "Bounds on alpha, constants and logarithms taken as 1. 1/3 is the exponent of sampling in "
        "the bounds for the population. DP-SGD, PrGD and Gauss-PSGD have none in these papers.",
    )
    for bound, name in ((_DESCENT, GD), (_REGION, TR)):
        better = _OURS.alpha(n, d, e) < bound.on_population(n, d, e)
        alone = where(bound.alpha)
        yield (
            f"Where Spider's bound is below that of {name}: compared is {_OURS.words} with "
            f"{bound.words} + sqrt(d/n), the last term for the way from the records to the "
            "population (uniform convergence, Liu and Talwar, section 4), all constants and "
            f"logarithms 1. With d = {d} and epsilon = {e:g} it is "
            f"{where(bound.on_population) or 'never crossed'}; at n = {n:,} "
            f"{SPIDER if better else name} has the smaller bound. n^(-1/3) falls slower than "
            "sqrt(d/n), so a large d, not a large n, is what the bound is for; on the records "
            "alone, without sqrt(d/n), "
            + (f"Spider's is below {name}'s {alone}." if alone else "they do not cross.")
        )
        yield ""


# Tables.


def _three(metric: str, form: str) -> page.Cell:
    def cell(found: Results) -> str:
        every = quartiles(found.values(metric))
        low, middle, high = (form.format(v) if np.isfinite(v) else "never" for v in every)
        return "never" if middle == "never" else f"{middle} ({low} to {high})"

    return cell


_share = page.mean("exact_escaped", "{:.0%}".format)


def _end(found: Results) -> str:
    names = ("exact_gap", "exact_gradient_norm", "exact_min_eigenvalue")
    gap, norm, lowest = map(found.median, names)
    return f"{number(gap)}, {number(norm) if norm else '0'}, {lowest:+.4f}"


def _until(found: Results) -> str:
    steps = quartiles(found.values("exact_iterations_until_out"))[1]
    passes = quartiles(found.values("exact_passes_until_out"))[1]
    return f"{steps:.0f} ({passes:.3g})" if np.isfinite(steps) else "never"


def _slope(found: Results) -> str:
    fit = claims.exponents(found, "exact_alpha", found.each("method")[0], "rows")
    stays = found.mean("exact_escaped", rows=found.each("rows")[-1]) <= 0.5
    return _fall(fit) + ", at the saddle" * stays


def _fall(fit: np.ndarray | None) -> str:
    """The exponent of 1/n: median of the seeds, and their middle 80 %."""
    if fit is None:
        return ""
    return "{:.2f} ({:.2f} to {:.2f})".format(*-np.quantile(fit, [0.5, 0.9, 0.1]))


def _promised(found: Results) -> str:
    last = found.where(epsilon=found.each("epsilon")[-1])
    promised = last.mean("promised_alpha")
    reached = number(last.median("exact_alpha"))
    return f"{number(promised)}, {reached}" if promised == promised else f"none, {reached}"


_ESCAPE_TABLES = (
    page.Grid(
        "Share of the seeds that escaped; median (quartiles) of the first iterate below the value "
        "halfway, never where fewer than half were; and of the records read until then, over n:",
        _share, corner="escaped", about=_READS,
    ),
    page.Grid("", _three("exact_iterations_until_out", "{:.0f}"), corner="iterations until out",
              about=_READS),
    page.Grid("", _three("exact_passes_until_out", "{:.3g}"), corner="records until out / n",
              about=_READS),
    page.Grid(
        "Where the runs end, medians over seeds: gap to the minimum, gradient norm, lambda_min. At "
        "the largest epsilon also the alpha that a single-pass method is calibrated for, the least "
        "that its theory promises with constants 1, and the alpha reached: where the saddle's own "
        "alpha is below the promise, theory does not say that a method leaves it.", _end,
        more=(("alpha promised, reached", _promised),),
    ),
)  # fmt: skip
_RATE_TABLES = (
    page.Grid(
        "### {problem}, epsilon 1\n\nMedian over seeds of the least alpha for which the output is "
        "an alpha-SOSP of the objective on the records it was trained on, and the share of seeds "
        "out of the saddle; then the slope, the exponent of 1/n (median and middle 80 % of single "
        "seeds), and whether half of the seeds or more are not out even at the largest n: "
        "they compare with no rate. Each n is one random subset, the same for all seeds and "
        "methods. A method that stays at the saddle has the saddle's alpha, which may well be the "
        "least of all: alpha alone does not say that a minimum was reached.",
        lambda found: f"{number(found.median('exact_alpha'))} ({_share(found)})", "rows",
        more=(("slope", _slope),),
    ),
    page.Grid("{problem}: iterations until out (records read by then, over n), medians:", _until,
              "rows"),
    page.Grid("{problem}: gap, gradient norm and lambda_min at the end, medians:", _end, "rows"),
    page.Grid("{problem}: alpha of the same outputs on all records, as on the population:",
              lambda found: number(found.median("exact_alpha_on_all_records")), "rows"),
    _theory,
)  # fmt: skip


# Claims.
@per_problem
def _leaves(found: Results, problem: Problem) -> Iterator[Verdict]:
    out = {e: found.values("exact_escaped", method=SPIDER, epsilon=e)
           for e in found.where(method=SPIDER).each("epsilon")}  # fmt: skip
    compared = [Compared(f"{one.mean():.0%} at epsilon {e:g}", one.mean() > 0.5, claims.half(one))
                for e, one in out.items()]  # fmt: skip
    if compared:
        yield decided("Spider leaves the saddle in more than half of the seeds.", compared)


_ESCAPE_CLAIMS = (
    _leaves,
    *(Smaller(f"Adaptive batches leave it more often than {other}.", claims.share("exact_escaped"),
              other, SPIDER, form="{:.0%}".format) for other in (BOOST, FIXED)),
    *(Smaller(text.format(other), claims.median(metric), SPIDER, other, form="{:.3g}".format)
      for other in (GD, TR) for text, metric in (
        ("Spider reads fewer records than {} until it is out (passes).", "exact_passes_until_out"),
        ("Spider ends nearer to the minimum than {}.", "exact_gap"),
    )),
    Smaller("Second-order steps escape in fewer iterations than first-order ones: DP-TR before "
            "DP-GD.", claims.median("exact_iterations_until_out"), TR, GD, form="{:.3g}".format),
)  # fmt: skip


@per_problem
def _rates(found: Results, problem: Problem) -> Iterator[Verdict]:
    """Slopes against the bounds, and who is nearest to a second-order stationary point."""
    (n, d), e, name = found.shape, found.each("epsilon")[-1], problem.where
    there, last = found.each("method"), found.where(rows=float(n))
    out = {m: last.values("exact_escaped", method=m) for m in there}
    alpha = {m: last.values("exact_alpha", method=m) for m in there}
    middle = {m: float(np.median(values)) for m, values in alpha.items()}
    for bound, label in ((b, m) for b in BOUNDS for m in b.methods if m in there):
        least = float(min(bound.exponent, _SAMPLING if bound.population else 1))
        fit = claims.exponents(found, "exact_alpha", label, "rows")
        if fit is not None:
            falls = Compared(
                f"Slope {_fall(fit)}", -fit.mean() >= least, claims.against(-fit, least)
            )
            leaves = Compared(f"{out[label].mean():.0%} out of the saddle at n = {n:,}",
                              out[label].mean() > 0.5, claims.half(out[label]))  # fmt: skip
            yield decided(f"{name}: {label}'s alpha falls at least as fast as its bound, "
                          f"n^-{least:.2f}, and it leaves the saddle in more than half of the "
                          "seeds.", [falls, leaves])  # fmt: skip
    if SPIDER not in there:
        return
    ours, mine = alpha.pop(SPIDER), _OURS.alpha(n, d, e)
    for bound, label in ((_DESCENT, GD), (_REGION, TR)):
        if label in alpha:
            other = bound.on_population(n, d, e)
            told = [number(value) for value in (mine, other, middle[SPIDER], middle[label])]
            held = (mine < other) == (middle[SPIDER] < middle[label])
            yield decided(
                f"{name}: of Spider and {label} the one with the smaller bound at n = {n:,} "
                "(constants 1, on the population) has the smaller alpha.",
                [Compared("bounds {} and {}, measured {} and {}".format(*told), held,
                          claims.ranks(ours, alpha[label]))],
            )  # fmt: skip
    rivals = [m for m in alpha if out[m].mean() > 0.5]
    compared = [Compared(f"{m} {number(middle[m])}", middle[SPIDER] < middle[m],
                         claims.ranks(ours, alpha[m])) for m in rivals]  # fmt: skip
    if compared:
        yield decided(f"{name}: at n = {n:,} Spider has a smaller alpha than any method that "
                      "escapes.", compared, f"Spider {number(middle[SPIDER])};")  # fmt: skip


# Pictures.


def _bounds(axes: Any, results: Results) -> None:
    at = np.geomspace(1e2, 1e8, 200)
    _, d = results.where(problem=lambda name: np.char.endswith(name, "by n")).shape
    e = results.where(metric="exact_alpha", rows=results.each("rows")[0]).each("epsilon")[-1]
    names = ("Spider (1/2)", "Ganesh et al. (3/7)", "DP-TR (4/7) + sqrt(d/n)",
             "DP-GD (1/2) + sqrt(d/n)")  # fmt: skip
    for bound, name in zip(BOUNDS, names, strict=True):
        values = [bound.on_population(n, d, e) for n in at]
        axes.plot(at, values, color=look(bound.methods[0]).color, label=name)
    axes.legend(fontsize="small", loc="lower left")
    axes.set(xscale="log", yscale="log", xlabel="n", ylabel="alpha, constants and logarithms 1")
    axes.set_title(f"What theory promises on the population\nd = {d}", fontsize="medium")


_PICTURE = Picture(
    "Which methods leave the saddle of the Welsch loss on {data}, and where they end: n = {n:,}, "
    "p = {p}, {relation}, delta = 1/(10 n); {exact}\nmedian of {seeds}, bars: quartiles; in "
    "each row, downwards: epsilon {epsilons}, small to large marker; hollow: half of the seeds or "
    "more did not leave",
    (
        Dots("exact_escaped", "Left the saddle", "share of seeds", percent=True,
             xscale="linear"),
        Dots("exact_iterations_until_out", "Steps until out", "steps"),
        Dots("exact_passes_until_out", "Records read until out", "records read / n"),
        Dots("exact_gap", "Final gap to the minimum\n(0 is best)", "gap",
             levels={"exact_saddle_gap": "saddle"}),
        Dots("exact_gradient_norm", "Final gradient norm\n(0 at a stationary point)",
             "gradient norm (exactly 0 is not drawn)"),
        Dots("exact_min_eigenvalue", "Final smallest curvature\n(below 0: still at a saddle)",
             "lambda_min", xscale="linear", levels={"exact_saddle_min_eigenvalue": "saddle",
                                                    "exact_minimum_min_eigenvalue": "minimum"}),
    ),
    3,
    size=(4.6, 4.4),
    legend="none",
)  # fmt: skip


def _group(words: str, methods: tuple[str, ...]) -> Lines:
    return Lines("exact_alpha", f"{words}\n{{data}}, p = {{p}}", "n", "alpha", x="rows",
                 centre="median", only=methods, hollow="exact_escaped",
                 wedge=(1 / 3, 4 / 7), least=1e-12,
                 levels={"exact_saddle_alpha": "the saddle itself"})  # fmt: skip


_RATES_PICTURE = Picture(
    "How near to a second-order stationary point the outputs are: the least alpha of an "
    "alpha-SOSP, lower is better; epsilon {epsilons}, {relation}; {exact}\nmedian of {seeds}, "
    "bars: quartiles; hollow: half of the seeds or more did not leave the saddle; wedge: "
    "slopes of the theory, n^(-1/3) to n^(-4/7), its height is free",
    (
        _group("Methods that read records many times", MANY),
        _group("Methods that read each record at most once", ONCE),
    ),
    2,
    size=(4.8, 3.8),
    legend="none",
    extra=_bounds,
)

EXPERIMENT = Experiment(
    "spider",
    "Adaptive Batch Size for Privately Finding Second-Order Stationary Points",
    METHODS,
    {
        "escape": Figure("Iterations and records to escape a saddle, and where the runs end.",
                         (_ESCAPE,), _PICTURE, _ESCAPE_TABLES, _ESCAPE_CLAIMS),
        "covtype": Figure("The same on the whole of Covertype, five seeds, three methods.",
                          (_COVTYPE,), _PICTURE, _ESCAPE_TABLES, _ESCAPE_CLAIMS),
        "rates": Figure("The alpha that is reached against n, beside the exponents of the theory.",
                        _RATES, _RATES_PICTURE, _RATE_TABLES, (_rates,)),
    },
    "Liu and Talwar, 2024, theorem 3.11 and section 1; the paper has no experiments",
    "Neighbours are zero_out, delta = 1/(10 n). The problem is the Welsch loss with an l2 "
    "regularizer, midway between the two largest eigenvalues of X'X/n: w = 0 is a strict saddle, "
    "where the gradient of every record is 0, and its minima come in pairs. A run has escaped if "
    "its output is below the midpoint of the saddle's value and the minimum's.",
    "All methods have their defaults, whatever epsilon is, but for the one that is called tuned: "
    "Gauss-PSGD with escape_steps=400 and escape_distance=0.5, chosen by hand on ijcnn1 at epsilon "
    "1 and 2 by exact values. The noise of PrGD depends on delta alone. Iterates are looked at on "
    "a geometric grid of about 70 step numbers, so iterations to escape are known to about 12 %, "
    "and exactly while they are few. Records are counted as read: n a step of all records, the "
    "expected batch of a Poisson batch, and of a single pass what it used by then.",
    seeds=20,
    quick=("ijcnn1, welsch", "ijcnn1, welsch, by n"),
)  # fmt: skip
