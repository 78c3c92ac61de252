"""NOT PRIVATE: perturbed gradient descent (Tholeti et al. 2021): its figure, from closed forms."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from dpjax.accounting import ball_composition, ball_delta
from dpjax.experiments import page
from dpjax.experiments.claims import Verdict, counted, number
from dpjax.experiments.figures import Lines, Picture
from dpjax.experiments.results import Results, Row
from dpjax.experiments.spec import Experiment, Figure, Problem
from dpjax.mechanisms import add_ball, seed_key

DIMENSIONS = (1, 2, 3, 10, 22, 100)
# Steps are composed at one distance, on as many records as IJCNN1 has.
STEP_DISTANCE, RECORDS = 0.1, 35_000
_SEED, _BATCH, _NAN = 2021, 10_000, float("nan")
_COUNTS = np.unique(np.geomspace(1, 100 * RECORDS, 61).round().astype(int))
_TOLD = (1, 100, 1_000, RECORDS, 10 * RECORDS)
_COMPARED = (2, 22, 100)
# What a row of the table is of: its problem.
BALL, DRAWN, STEPS, RECORD = "ball", "ball, drawn", "steps", "publishing random records"
GAUSS = {0: "Gaussian, epsilon 0", 1: "Gaussian, epsilon 1"}


def gaussian_delta(distance: float, dimension: int, epsilon: float) -> float:
    """Returns delta of Gaussian noise with the standard deviation of the unit ball's.

    >>> round(gaussian_delta(0.5, 10, 0.0), 4)
    0.6135
    """
    mu = distance * math.sqrt(dimension + 2)
    tail = math.exp(epsilon) * stats.norm.cdf(-epsilon / mu - mu / 2)
    return float(stats.norm.cdf(-epsilon / mu + mu / 2) - tail)


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

    Args:
      draws: of noise in each dimension, for the check.
      points: distances in each dimension.
    """
    rows = []
    for d in DIMENSIONS:

        def add(what: str, step: float, metric: str, value: float, distance: float, d: int = d):
            words = f"D = {distance:.6g}"
            rows.append(Row("perturbed", what, RECORDS, d, f"d = {d}", words, _NAN, _NAN, step,
                            metric, float(value)))  # fmt: skip

        squares, along = noise(d, draws)
        for distance in 2 * np.arange(1, points + 1) / (points + 1):
            exact = ball_delta(float(distance), 1.0, d)
            outside = squares + 2 * distance * along + distance**2 > 1
            for what, value in ((BALL, exact), (DRAWN, outside.mean())):
                add(what, _NAN, "delta", value, distance)
                add(what, _NAN, "distance", distance, distance)
            # Where hardly a draw is expected to miss, one that does is no evidence.
            error = max(math.sqrt(exact * (1 - exact) / draws), 2 / draws)
            add(DRAWN, _NAN, "standard_error", error, distance)
        for distance in np.geomspace(1e-3, 1.999, 61) if d in _COMPARED else ():
            add(f"{BALL}, fine", _NAN, "delta", ball_delta(float(distance), 1.0, d), distance)
            for epsilon, what in GAUSS.items():
                add(what, _NAN, "delta", gaussian_delta(float(distance), d, epsilon), distance)
            for what in (f"{BALL}, fine", *GAUSS.values()):
                add(what, _NAN, "distance", distance, distance)
        each = ball_delta(STEP_DISTANCE, 1.0, d)
        for count in sorted({*_COUNTS.tolist(), *_TOLD}):
            after = ball_composition(each, int(count), 1 / RECORDS)
            add(STEPS, count, "delta", after, STEP_DISTANCE)
    for count in sorted({*_COUNTS.tolist(), *_TOLD}):
        after = -math.expm1(count * math.log1p(-1 / RECORDS))
        rows.append(Row("perturbed", RECORD, RECORDS, 0, RECORD, "", _NAN, _NAN, count, "delta",
                        after))  # fmt: skip
    return rows


def _deltas(results: Results, what: str, d: int, metric: str = "delta") -> np.ndarray:
    return results.where(problem=what, dimension=d, metric=metric).column("value")


def _tables(results: Results, problems: Sequence[Problem]) -> list[str]:
    distances = _deltas(results, BALL, 1, "distance")
    shown = [distances[round(i * (len(distances) - 1) / 4)] for i in range(5)]
    place = {one: int(np.argmin(np.abs(distances - one))) for one in shown}
    rows = [
        {"": f"d = {d}"}
        | {f"D = {one:g}": number(_deltas(results, BALL, d)[place[one]]) for one in shown}
        for d in DIMENSIONS
    ]
    compared = [
        {"d": d, "D": f"{one:g}",
         "ball, every epsilon": number(_deltas(results, BALL, d)[place[one]]),
         "ball, drawn": number(_deltas(results, DRAWN, d)[place[one]])}
        | {words: number(gaussian_delta(one, d, epsilon)) for epsilon, words in GAUSS.items()}
        for d in _COMPARED
        for one in shown[:2]
    ]  # fmt: skip

    def after(what: str, **cells: float) -> dict[str, str]:
        found = results.where(problem=what, metric="delta", **cells)
        return {f"T = {t:,}": number(found.where(step=float(t)).column("value")[0]) for t in _TOLD}

    steps = [{"": "publishing T random records"} | after(RECORD)]
    steps += [{"": f"d = {d}"} | after(STEPS, dimension=d) for d in DIMENSIONS]
    return [
        "Delta of one release, the same at every epsilon:", "", *page.table(rows), "",
        "Beside Gaussian noise of the same standard deviation:", "", *page.table(compared), "",
        f"After T steps, each on one record in n = {RECORDS:,}, at D = {STEP_DISTANCE:g}:", "",
        *page.table(steps), "",
    ]  # fmt: skip


def _claims(results: Results, problems: Sequence[Problem]) -> list[Verdict]:
    table, drawn, errors = (
        np.array([_deltas(results, what, d, metric) for d in DIMENSIONS])
        for what, metric in ((BALL, "delta"), (DRAWN, "delta"), (DRAWN, "standard_error"))
    )
    off = np.abs(drawn - table) / errors
    up, wide = np.diff(table, axis=1) > 0, np.diff(table, axis=0) > 0
    # Beyond 1 - 1e-12 all are 1 in float64.
    wide |= table[1:] > 1 - 1e-12
    up |= table[:, 1:] > 1 - 1e-12
    after = results.where(problem=STEPS, dimension=22)
    counts = (1_000, RECORDS, 10 * RECORDS)
    values = [float(after.where(step=float(t)).column("value")[0]) for t in counts]
    words = ", ".join(f"{number(v)} after T = {t:,}" for v, t in zip(values, counts, strict=True))
    return [
        counted("Equation 6 is the total variation of the noise drawn.",
                (off < stats.norm.isf(5e-4 / off.size)).ravel(),
                f"The farthest of the points is {number(off.max())} standard errors away."),
        counted("For d = 1 delta is D / 2, that of uniform noise.",
                np.abs(table[0] - _deltas(results, BALL, 1, "distance") / 2) < 1e-8),
        counted("Delta grows with the dimension.", wide.ravel()),
        counted("Delta grows with the distance.", up.ravel()),
        counted("The noise that escapes saddle points also gives privacy (held where delta is "
                "below 1/n).", [value < 1 / RECORDS for value in values],
                f"With D = {STEP_DISTANCE:g}, d = 22 and n = {RECORDS:,} delta is {words}; "
                f"publishing one random record in full has {number(1 / RECORDS)}."),
    ]  # fmt: skip


_DISTANCE = "distance D of the centres, R = 1"
_PICTURE = Picture(
    "Noise uniform in the unit ball hides little: the delta of its (0, delta) guarantee, the same "
    "at every epsilon, by dimension d (lower is more private)\nlines: closed form; dots: share of "
    "drawn noise that tells two centres apart",
    (
        Lines("delta", "Delta of one release\n(1: nothing is hidden)", _DISTANCE, x="distance",
              where={"problem": BALL}, xscale="linear", yscale="linear", centre="line",
              layers=(({"problem": DRAWN}, "o", ""),)),
        Lines("delta", "Beside Gaussian noise\nof the same standard deviation", _DISTANCE,
              where={"problem": f"{BALL}, fine"}, x="distance", xscale="log", centre="line",
              layers=(({"problem": GAUSS[0]}, "--", "dashed: Gaussian, epsilon 0"),
                      ({"problem": GAUSS[1]}, ":", "dotted: Gaussian, epsilon 1"))),
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
                    _PICTURE, (_tables,), (_claims,))},
    "Tholeti et al., 2021, figure 2 and theorem 1",
    "Neighbours are replace_one, as in the paper: the distance D is that of the gradients of two "
    "records, 2 C where they are clipped at C. R = 1. No data are read: closed forms, and noise as "
    "dpjax draws it.",
    "The noise is uniform in the unit ball of d dimensions; a Gaussian beside it has the same "
    "standard deviation in every coordinate, 1 / sqrt(d + 2).",
    computed=lambda quick: computed(*((20_000, 9) if quick else (1_000_000, 39))),
)  # fmt: skip
