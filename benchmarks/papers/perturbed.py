"""NOT PRIVATE: perturbed gradient descent (Tholeti et al. 2021): its figure, and what escapes."""

import math
import warnings
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from benchmarks.papers import page
from benchmarks.papers.claims import LEVEL, Compared, Verdict, decided, number
from benchmarks.papers.figures import Lines, Picture
from benchmarks.papers.results import Results, Row
from benchmarks.papers.spec import Experiment, Figure, Problem
from dpjax import datasets, diagnostics
from dpjax.accounting import PrivacyBudget, ball_composition, ball_delta
from dpjax.algorithms import Algorithm, perturbed_gradient_descent
from dpjax.driver import trajectory
from dpjax.mechanisms import add_ball, seed_key
from dpjax.objectives import welsch, welsch_regularization

DIMENSIONS = (1, 2, 3, 10, 22, 100)
# Steps are composed at one distance, on as many records as IJCNN1 has.
STEP_DISTANCE, RECORDS = 0.1, 35_000
_SEED, _BATCH, _NAN = 2021, 10_000, float("nan")
_COUNTS = np.unique(np.geomspace(1, 100 * RECORDS, 61).round().astype(int))
_TOLD = (1, 100, 1_000, RECORDS, 10 * RECORDS)
# What a row of the table is of: its problem.
BALL, CHECKED, DRAWN, ERROR = "ball", "ball, checked", "ball, drawn", "ball, standard error"
STEPS, RECORD = "steps", "publishing random records"
# Radii with clip norms, and step sizes, from the Welsch saddle.
NOISES, STEP_SIZES = ((0.65, None), (1.0, None), (3.0, None), (1.0, 0.05)), (1.0, 0.3, 0.1, 0.03)
OUT, SEEDS = "exact_share_out", 10
GAUSS = {0: "Gaussian, epsilon 0", 1: "Gaussian, epsilon 1"}


def gaussian_delta(distance: float, dimension: int, epsilon: float) -> float:
    """Returns delta of Gaussian noise with the standard deviation of the unit ball's.

    >>> round(gaussian_delta(0.5, 10, 0.0), 4)
    0.6135
    """
    apart = distance * math.sqrt(dimension + 2)
    below, above = (stats.norm.cdf(side * apart / 2 - epsilon / apart) for side in (1, -1))
    return float(below - math.exp(epsilon) * above)


def noise(dimension: int, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns squared length and first coordinate of noise as dpjax draws it."""
    zero = jnp.zeros(dimension)

    @jax.jit
    @jax.vmap
    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        drawn = add_ball(key, zero, 1.0)
        return jnp.sum(drawn**2), drawn[0]

    pieces = []
    for start in range(0, draws, _BATCH):
        key = jax.random.fold_in(jax.random.fold_in(seed_key(_SEED), dimension), start)
        pieces.append(draw(jax.random.split(key, min(_BATCH, draws - start))))
    squares, along = (np.concatenate(part).astype(float) for part in zip(*pieces, strict=True))
    return squares, along


def computed(draws: int, points: int) -> list[Row]:
    """Returns the table: delta by what it is of, dimension and distance, and after steps.

    It is checked by so many draws of noise in each dimension, at so many distances.
    """
    rows, even = [], 2 * np.arange(1, points + 1) / (points + 1)
    fine = sorted({*even.tolist(), *np.geomspace(1e-3, 1.999, 61).tolist()})
    counts = sorted({*_COUNTS.tolist(), *_TOLD})

    def add(what: str, d: int, value: float, distance: float, step: float = _NAN) -> None:
        cells = (what, RECORDS, d, f"d = {d}" if d else what, f"D = {distance:.6g}", _NAN, _NAN)
        rows.append(Row("perturbed", *cells, step, "delta", float(value)))

    for d in DIMENSIONS:
        squares, along = noise(d, draws)
        for distance in fine:
            exact = ball_delta(distance, 1.0, d)
            add(BALL, d, exact, distance)
            for epsilon, what in GAUSS.items():
                add(what, d, gaussian_delta(distance, d, epsilon), distance)
            if distance in even:
                outside = squares + 2 * distance * along + distance**2 > 1
                # Where hardly a draw is expected to miss, one that does is no evidence.
                error = max(math.sqrt(exact * (1 - exact) / draws), 2 / draws)
                for what, value in ((CHECKED, exact), (DRAWN, outside.mean()), (ERROR, error)):
                    add(what, d, value, distance)
        each = ball_delta(STEP_DISTANCE, 1.0, d)
        for count in counts:
            add(STEPS, d, ball_composition(each, int(count), 1 / RECORDS), STEP_DISTANCE, count)
    for count in counts:
        add(RECORD, 0, -math.expm1(count * math.log1p(-1 / RECORDS)), STEP_DISTANCE, count)
    return rows


def escapes(data: str, longest: int, seeds: int) -> list[Row]:
    """Returns the share of seeds that are below halfway from the saddle, where they start, by T.

    One index a step; of all step sizes the best at each T.
    """
    records, objective = datasets.load(data), welsch(welsch_regularization(data))
    examples, (n, d) = (jnp.asarray(records.x), jnp.asarray(records.y)), records.x.shape
    at, rows = np.unique(np.geomspace(1, longest, 40).round().astype(int)), []
    keys = jax.random.split(jax.random.key(_SEED), seeds)
    halfway = diagnostics.exact_landscape(objective, examples).halfway
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="delta = ")  # that it is large is the result
        budget = PrivacyBudget(1.0, 0.49, "replace_one")
    more = {"sampling": "without_replacement", "acknowledge_weak_delta": True, "steps": longest}

    def path(one: Algorithm, key: jax.Array) -> jax.Array:
        return trajectory(one, examples, key=key, at=jnp.asarray(at)).params

    paths = jax.jit(jax.vmap(jax.vmap(path, (None, 0)), (0, None)))
    for radius, clip in NOISES:
        made = [perturbed_gradient_descent(objective, budget, data_size=n, dimension=d,
                                           step_size=step, radius=radius, clip_norm=clip, **more)
                for step in STEP_SIZES]  # fmt: skip
        found = paths(jax.tree.map(lambda *leaves: jnp.stack(leaves), *made), keys).reshape(-1, d)
        below = np.asarray(diagnostics.exact_values(objective, found, examples)) < halfway
        share = below.reshape(len(made), seeds, -1).mean(1)
        label = f"R = {radius:g}, " + (f"C = {clip:g}" if clip else "nothing clipped")
        for t, step, most in zip(at, share.argmax(0), share.max(0), strict=True):
            delta = made[0].query.event(int(t)).releases[0].certain_delta()
            words = f"T = {t:,}, step size {STEP_SIZES[step]:g}, delta = {delta:.2g}"
            rows.append(Row("perturbed", data, n, d, label, words, _NAN, _NAN, _NAN, OUT, most))
    return rows


def _deltas(results: Results, what: str, dimensions: tuple[int, ...] = DIMENSIONS) -> np.ndarray:
    """A row a dimension, a column a distance, or one of the step numbers that are told."""
    told = {"step": tuple(map(float, _TOLD))} if what in (STEPS, RECORD) else {}
    found = results.where(problem=what, **told)
    return np.array([found.where(dimension=d).column("value") for d in dimensions])


def _tables(results: Results, problems: Sequence[Problem]) -> list[str]:
    words = results.where(problem=DRAWN).each("settings")
    exact = _deltas(results, CHECKED)
    shown = [round(i * (len(words) - 1) / 4) for i in range(5)]
    names = [f"d = {d}" for d in DIMENSIONS]
    rows = [{"": name} | {words[i]: number(row[i]) for i in shown}
            for name, row in zip(names, exact, strict=True)]  # fmt: skip
    after = [*_deltas(results, RECORD, (0,)), *_deltas(results, STEPS)]
    steps = [
        {"": name} | {f"T = {t:,}": number(v) for t, v in zip(_TOLD, row, strict=True)}
        for name, row in zip(["publishing T random records", *names], after, strict=True)
    ]
    each = f"each on one record in n = {RECORDS:,}, at D = {STEP_DISTANCE:g}:"
    return [
        *page.table(rows, "Delta of one release, the same at every epsilon:"),
        *page.table(steps, f"After T steps, {each}"),
    ]


def _claims(results: Results, problems: Sequence[Problem]) -> list[Verdict]:
    table, drawn, errors = (_deltas(results, what) for what in (CHECKED, DRAWN, ERROR))
    off = np.abs(drawn - table) / errors
    distances = np.array([float(w[4:]) for w in results.where(problem=DRAWN).each("settings")])
    # Beyond 1 - 1e-12 all are 1 in float64.
    wide = (np.diff(table, axis=0) > 0) | (table[1:] > 1 - 1e-12)
    up = (np.diff(table, axis=1) > 0) | (table[:, 1:] > 1 - 1e-12)
    (after,) = _deltas(results, STEPS, (22,))
    after = {t: v for t, v in zip(_TOLD, after, strict=True) if t >= 1_000}
    words = ", ".join(f"{number(v)} after T = {t:,}" for t, v in after.items())
    off = off.max()
    # Of the farthest of all points, each twice as likely as one side, by Bonferroni.
    p = min(1.0, 2 * drawn.size * float(stats.norm.sf(off)))
    told = f"the farthest of {drawn.size} points is {number(off)} standard errors away, p = {p:.2g}"

    def exact(text: str, held: np.ndarray, words: str = "") -> Verdict:
        return decided(text, [Compared(words, bool(held.all()))])

    return [
        # A law that is the right one is not rejected.
        exact("Equation 6 is the total variation of the noise drawn (agrees unless the test of "
              f"{LEVEL:.0%} rejects it).", np.array(p >= LEVEL), told),
        exact("For d = 1 delta is D / 2, that of uniform noise.",
              np.abs(table[0] - distances / 2) < 1e-5),
        exact("Delta grows with the dimension.", wide),
        exact("Delta grows with the distance.", up),
        exact("The noise that escapes saddle points also gives privacy (held where delta is "
              "below 1/n).", np.array([value < 1 / RECORDS for value in after.values()]),
              f"with D = {STEP_DISTANCE:g}, d = 22 and n = {RECORDS:,} delta is {words}; "
              f"publishing one random record in full has {number(1 / RECORDS)}"),
    ]  # fmt: skip


def _escaped(results: Results, problems: Sequence[Problem]) -> Iterator[str]:
    """Where seeds are out first, and whether at a delta that means something."""
    table, verdicts = results.where(metric=OUT), []
    for data in table.each("problem"):
        found, rows, small, least = table.where(problem=data), [], 0.0, math.inf
        n = found.shape[0]
        for label in found.each("method"):
            own, cells = found.where(method=label), {f"{data}, n = {n:,}": label}
            words, share = own.column("settings"), own.column("value")
            deltas = np.array([float(one.split()[-1]) for one in words])
            for head, few in (("half of the seeds out", 0.5), ("nine in ten out", 0.9)):
                cells[head] = (*words[share >= few], "never")[0]
            least = min([least, *deltas[share >= 0.9]])
            small = max([small, *share[deltas < 1 / n]])
            rows.append(cells | {"most out": f"{share.max():.0%}", "longest run": words[-1]})
        yield from page.table(rows)
        told = f"below it {small:.0%} of {SEEDS} seeds are out; nine in ten "
        told += f"are from delta = {least:.2g} on" if least < math.inf else "never are"
        p = float(stats.binomtest(round(SEEDS * small), SEEDS).pvalue)
        text = f"{data}: most runs leave the saddle (theorem 2) at a delta below 1/n = {1 / n:.2g}."
        verdicts.append(decided(text, [Compared(told, small > 0.5, p)]))
    yield from map(str, verdicts)


_DISTANCE = "distance D of the centres, R = 1"
_FEW = {"dimension": (2.0, 22.0, 100.0)}
_PICTURE = Picture(
    "Noise uniform in the unit ball hides little: the delta of its (0, delta) guarantee, the same "
    "at every epsilon, by dimension d (lower is more private)\nlines: closed form; dots: share of "
    "drawn noise that tells two centres apart",
    (
        Lines("delta", "Delta of one release\n(1: nothing is hidden)", _DISTANCE, x="settings",
              where={"problem": BALL}, xscale="linear", yscale="linear", centre="line",
              layers=(({"problem": DRAWN}, "o", ""),)),
        Lines("delta", "Beside Gaussian noise\nof the same standard deviation", _DISTANCE,
              where=_FEW | {"problem": BALL}, x="settings", xscale="log", centre="line",
              layers=((_FEW | {"problem": GAUSS[0]}, "--", "dashed: Gaussian, epsilon 0"),
                      (_FEW | {"problem": GAUSS[1]}, ":", "dotted: Gaussian, epsilon 1"))),
        Lines("delta", f"Delta after T steps\n(n = {RECORDS:,}, D = {STEP_DISTANCE:g})",
              "steps T, each on one random record", x="step", where={"problem": STEPS},
              xscale="log", centre="line", least=1e-9,
              layers=(({"problem": RECORD}, "-.", "publishing T random records"),)),
    ),
)  # fmt: skip

EXPERIMENT = Experiment(
    "perturbed",
    "On the Differentially Private Nature of Perturbed Gradient Descent",
    (),
    {"fig2": Figure("Delta against the distance of gradients, and after T sampled steps.", (),
                    _PICTURE, (_tables,), (_claims,)),
     "escape": Figure("Theorem 2: who leaves a saddle, and at which delta.", (), None,
                      (_escaped,))},
    "Tholeti et al., 2021, figure 2 and theorems 1 and 2",
    "Neighbours are replace_one, as in the paper: the distance D is that of the gradients of two "
    "records, 2 C where they are clipped at C. fig2 reads no data: closed forms with R = 1, and "
    "noise as dpjax draws it. escape reads records; its shares of seeds are exact values.",
    "The noise is uniform in the unit ball of d dimensions; a Gaussian beside it has the same "
    "standard deviation in every coordinate, 1 / sqrt(d + 2).",
    computed=lambda quick: computed(20_000, 9) + escapes("randhie", 100, 3) if quick else [
        *computed(1_000_000, 39), *escapes("randhie", 2_000, SEEDS),
        *escapes("ijcnn1", 20_000, SEEDS),
    ],
)  # fmt: skip
