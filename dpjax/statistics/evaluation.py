"""``evaluate``: what a model is worth on held-out records, by one histogram of what it predicts."""

import dataclasses
from typing import Any

import numpy as np
from scipy.special import expit

from dpjax._typing import Array
from dpjax.accounting import PrivacyBudget
from dpjax.algorithms.histogram import histograms
from dpjax.datasets import Dataset
from dpjax.display.cards import Card, HasCard
from dpjax.driver import run
from dpjax.results import SavedSolution, Solution
from dpjax.results.prediction import Score, score_of, training_rows
from dpjax.statistics.bins import DRAWS, Estimate, around, in_columns

_STEP = 0.4
EDGES = _STEP * np.arange(-12, 13)
"""Between bins of the log-odds of the second class: finer where rare classes are told apart."""
SIZES = (0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5)
"""Between bins of a residual's size, over the length of the label's declared range."""
_LABELS = 10  # bins of a label that is a number
_FEW = 4.0  # a number of records that is below so many standard deviations divides nothing


@dataclasses.dataclass(frozen=True)
class Evaluation(HasCard):
    """What one release says of a model on held-out records; where there are units each counts one.

    Args:
      classes: names of the classes; empty of a number.
      counts: noisy numbers of records: of two classes (2, bins), by class and probability, see
        ``EDGES``; of more (K, K), by class and predicted class; of a number (bins,), by the size of
        the residual, see ``SIZES``, and after those by the label.
      stddev: of the noise on each.
      estimates: by name, with the 95 % interval of what each is without noise, which says nothing
        of other records; None where there are too few records for the noise.
      solution: what was released, as of any training: its guarantee, its event.

    Privacy: post-processing of one release.
    """

    classes: tuple[str, ...]
    counts: np.ndarray
    stddev: float
    estimates: dict[str, Estimate | None]
    solution: Solution = dataclasses.field(repr=False)

    @property
    def confusion(self) -> np.ndarray | None:
        """Noisy numbers (K, K) of records, by class and predicted class; None of a number."""
        return _confusion(self.counts) if self.classes else None

    @property
    def roc(self) -> np.ndarray | None:
        """Shares (2, bins + 1) of both classes above each threshold; None without an AUC."""
        if self.estimates.get("AUC") is None:
            return None
        above = np.cumsum(self.counts[:, ::-1], axis=1) / self.counts.sum(axis=1, keepdims=True)
        # By noise it may fall, and pass 1.
        return np.maximum.accumulate(np.pad(above, ((0, 0), (1, 0))).clip(0, 1), axis=1)

    @property
    def calibration(self) -> dict[float, Estimate]:
        """Middle of a bin of the probability -> share of the second class; of two classes alone.

        Without bins of too few records. Where the loss is not logistic, of the score's logistic.
        """
        found, two = {}, len(self.classes) == 2
        middles = expit([EDGES[0] - _STEP / 2, *(EDGES + _STEP / 2)]).tolist()
        for middle, pair in zip(middles, self.counts.T if two else (), strict=two):
            if (total := float(pair.sum())) > _FEW * self.stddev:
                share = float(pair[1]) / total
                noise = self.stddev * float(np.hypot(share, 1 - share)) / total
                found[middle] = around(share, noise, 0, 1)
        return found

    def lines(self) -> list[str]:
        """Returns it as lines for people."""
        lines = [f"{name}: {_words(e)}" for name, e in self.estimates.items()]
        lines.append("(95% confidence intervals, over the privacy noise alone)")
        if self.confusion is not None:
            cells = np.vectorize("{:,.0f}".format)(self.confusion).tolist()
            rows = [[name, *row] for name, row in zip(self.classes, cells, strict=True)]
            lines += in_columns([["class \\ predicted as", *self.classes], *rows])
        for p, e in self.calibration.items():
            lines.append(f"share of {self.classes[1]} where {p:.3g} is predicted: {_words(e)}")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain values, with its guarantee."""
        plain = {name: getattr(self, name) for name in ("estimates", "classes", "stddev")}
        plain |= {name: np.array(getattr(self, name)).tolist() for name in ("counts", "confusion")}
        plain["calibration"] = [[middle, *share] for middle, share in self.calibration.items()]
        made = self.solution
        return plain | {"releasable": made.releasable, "guarantee": made.guarantee()}

    def _card(self) -> Card:
        rows = [(name, _words(e)) for name, e in self.estimates.items()]
        return Card("Evaluation on held-out records", tuple(rows))


def evaluate(
    model: Solution | SavedSolution,
    data: Dataset,
    budget: PrivacyBudget | float,
    *,
    key: Array | None = None,
    data_size: int | None = None,
    **how: Any,
) -> Evaluation:
    """Returns AUC, calibration, confusion matrix and accuracy of a model, or errors, privately.

    One release of a histogram of predictions by class, over bins that are known beforehand. A
    record without a prediction or a label counts in no bin; a unit by the mean of its records.

    Args:
      model: a ``Solution``, or what ``load`` returned, of a model that predicts.
      data: records that the model was not trained on, with the same declarations; on those it was
        trained on all is as private, and optimistic.
      budget: what to spend; or epsilon, at delta 1 / (10 n) and ``"zero_out"``.
      key: ``dpjax.random_key()``.
      data_size: the declared n, of units where there are units; by default that of the data.
      **how: ``seed`` in place of a key, ``ledger``, ``label`` and ``part``, as in ``dpjax.run``.

    Raises:
      ValueError: before anything is spent, for data that were declared otherwise, a model that
        predicts nothing, or a ledger that does not admit it.

    Privacy: one Gaussian mechanism, see ``dpjax.algorithms.histogram``. The bins of a record, two
      of a number and else one, follow from it and the model alone, of a linear one wherever it is.

    >>> import dpjax, jax
    >>> x = jax.random.normal(jax.random.key(0), (400, 2)) / 3
    >>> data = Dataset(x, x[:, 0] > 0)
    >>> algorithm = dpjax.dp_gradient_descent(dpjax.objectives.logistic(),
    ...     PrivacyBudget(5.0, 1e-3), data_size=400, dimension=2, steps=4)
    >>> found = evaluate(dpjax.solve(algorithm, data, seed=0), data, 20.0, seed=1)
    >>> bool(found.estimates["AUC"].value > 0.9)
    True
    """
    score = model.score if isinstance(model, SavedSolution) else score_of(model.algorithm.objective)
    names, length = model.class_names, 1.0
    if (ours := model.preprocessing) and (theirs := data.preprocessing):
        if (ours.classes, ours.label_bounds) != (theirs.classes, theirs.label_bounds):
            raise ValueError("the labels are declared otherwise than the model's: load them alike.")
        length = float(np.ptp(ours.label_bounds or (0.0, 1.0)))
    rows, y = np.asarray(training_rows(data, ours)), np.asarray(data.y, np.float64)
    n = len(rows) if data_size is None else data_size
    if not isinstance(budget, PrivacyBudget):
        budget = PrivacyBudget(budget, 1 / (10 * n))
    if budget.relation == "add_or_remove_one" and (score.kind == "two-layer" or data_size is None):
        raise ValueError(
            "under 'add_or_remove_one' n is private: declare data_size; and a record that shifts "
            "others may move the scores of a network to another bin: take another relation."
        )
    # A warning of an overflow would tell that such a record is there.
    with np.errstate(all="ignore"):
        cells, sizes = _cells(score, _scores(score, np.asarray(model.params, np.float64), rows), y)
    known: Any = (cells >= 0).all(axis=-1) & np.isfinite(rows).all(axis=-1)
    present = None if data.present is None else np.asarray(data.present) & known
    algorithm = histograms(sizes, budget, n, of_units=present is not None)
    algorithm = dataclasses.replace(algorithm, title="Evaluation")
    cells = np.where(known[..., None], cells, -1).astype(np.float32)
    # Only the label's place is taken by zeros: it is in the bins.
    read = Dataset(cells, 0 * cells[..., 0], None, None, data.name, data.unit, present=present)
    solution = run(algorithm, read, key=key, progress=False, **how)
    counts = np.asarray(solution.params, np.float64).reshape(*[len(names)] * bool(names), -1) * n
    stddev = float(algorithm.queries[0].stddev) * n
    return Evaluation(names, counts, stddev, _estimates(counts, stddev, length), solution)


def _scores(score: Score, params: np.ndarray, rows: np.ndarray) -> np.ndarray:
    if params.ndim != 1 or rows.shape[-1] != (p := score.features(params.size)):
        raise ValueError("the model is one of rows of another number of features.")
    rows = np.where(np.isfinite(rows).all(axis=-1, keepdims=True), rows, 0)
    if score.kind == "two-layer":
        return score(params, rows.reshape(-1, p)).reshape(rows.shape[:-1])
    # One feature after the other: a product of matrices may round otherwise in another row.
    total: Any = 0.0
    for j, weight in enumerate(params.reshape(-1, p).T):
        total = total + rows[..., j, None].astype(np.float64) * weight
    return total if score.classes else total[..., 0]


def _cells(score: Score, scores: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
    """Returns the bins (..., columns) of each record, below 0 for none, and how many there are."""
    if score.kind == "numbers":
        error = np.abs(np.clip(scores, -1, 1) - y) / 2
        label = np.floor((y + 1) / 2 * _LABELS).clip(max=_LABELS - 1)
        cells = np.stack([np.searchsorted(SIZES, error, side="right"), label], axis=-1)
        return np.where(np.abs(y[..., None]) <= 1, cells, -1), (len(SIZES) + 1, _LABELS)
    if count := score.classes:
        bins, good, total = np.argmax(scores, axis=-1), np.isin(y, range(count)), count**2
    else:
        bins, count = np.searchsorted(EDGES, scores, side="right"), len(EDGES) + 1
        y, good, total = (y > 0) * 1.0, np.isin(y, (-1, 0, 1)), 2 * count
    return np.where(good, y * count + bins, -1)[..., None], (total,)


def _confusion(counts: np.ndarray) -> np.ndarray:
    # Of two classes the threshold 1/2 lies in the middle.
    return counts if len(counts) > 2 else counts.reshape(2, 2, -1).sum(axis=2)


def _auc(counts: np.ndarray) -> float:
    share, place = counts / counts.sum(axis=1, keepdims=True), np.arange(counts.shape[1])
    means = share @ place
    # By how much log-odds grow within a bin, as between normal scores of one variance: records of
    # a bin are told apart that much, where ties would give 1/2. Of t, by t / 12 for t up to 3.
    growth = (means[1] - means[0]) / max((share @ place**2 - means**2).mean(), 0.25)
    return share[1] @ (np.cumsum(share[0]) - (0.5 - np.clip(growth, 0, 3) / 12) * share[0])


def _measures(counts: np.ndarray, length: float) -> dict[str, float]:
    if counts.ndim > 1:
        confusion = _confusion(counts)
        auc = {"AUC": _auc(counts)} if len(counts) == 2 else {}
        return {"accuracy": np.trace(confusion) / confusion.sum(), **auc}
    sizes, labels = (part / part.sum() for part in np.split(counts, [-_LABELS]))
    low, high, middles = (0.0, *SIZES), (*SIZES, 1.0), (np.arange(_LABELS) + 0.5) / _LABELS
    # Records are taken to lie evenly in their bins.
    middle, spread = np.add(low, high) / 2, np.subtract(high, low) ** 2 / 12
    label = labels @ middles**2 - (labels @ middles) ** 2 + 1 / (12 * _LABELS**2)
    found = {"mean absolute error": length * sizes @ middle}
    found["R2"] = 1 - sizes @ (middle**2 + spread) / label
    return found | {f"within {length * SIZES[i]:.4g}": sizes[: i + 1].sum() for i in (2, 4, 6, 8)}


def _words(estimate: Estimate | None) -> str:
    few = "not known: too few records for this much noise; raise epsilon"
    return few if estimate is None else estimate.words("{:.4g}".format)


def _estimates(counts: np.ndarray, stddev: float, length: float) -> dict[str, Estimate | None]:
    """Returns the measures, with intervals by what as much noise again does to them."""
    noise = stddev * np.random.default_rng(0).standard_normal((DRAWS, *counts.shape))
    again, found = [_measures(counts + some, length) for some in noise], {}
    for name, value in _measures(counts, length).items():
        # An AUC divides by each class, the others by all.
        total = counts.sum(axis=-1).min() if name == "AUC" else counts.sum()
        spread = float(np.std([each[name] for each in again]))
        ends = -np.inf if name == "R2" else 0, np.inf if name == "mean absolute error" else 1
        enough = total > _FEW * stddev * np.sqrt(counts.size)
        found[name] = around(float(value), spread, *ends) if enough else None
    return found
