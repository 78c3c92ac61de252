"""Prediction from trained parameters: of records that fit into memory, and of tables in blocks."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax

from dpjax import objectives
from dpjax._typing import Params, PyTree
from dpjax.algorithms import ErrorBars, PopulationBars
from dpjax.datasets import Dataset, Preprocessing, load
from dpjax.datasets.labels import decode_labels
from dpjax.datasets.source import ROWS_AT_ONCE, few
from dpjax.datasets.sources import column_keys, is_table, is_table_path, open_features
from dpjax.objectives.classifier import Softmax
from dpjax.objectives.linear import unweighted
from dpjax.results.coefficients import Coefficients, coefficients

NO_COLUMNS = (
    "the model was trained on arrays, so the columns and bounds of a table are not known to it: "
    "pass rows (n, p) as in training."
)


@dataclasses.dataclass(frozen=True)
class Score:
    """How parameters score rows. It can be written to a file.

    ``kind`` is empty for what predicts nothing or is code of the user's own, ``hidden`` the units
    of two layers, ``logistic`` whether scores are log-odds of the second class, or logits of all,
    and ``classes`` how many there are, where each has a score.
    """

    kind: str = ""
    hidden: int = 0
    logistic: bool = False
    classes: int = 0

    @property
    def model(self) -> Any:
        """What the parameters are."""
        models = {
            "linear": objectives.LinearModel(),
            "two-layer": objectives.TwoLayer(max(self.hidden, 1)),
            "classes": objectives.LinearClassifier(self.classes),
            "numbers": objectives.LinearRegression(),
        }
        return models[self.kind]

    def features(self, parameters: int) -> int:
        """Returns the number of features of a row, for so many parameters."""
        if self.kind == "two-layer":
            # Each hidden unit has a weight for each feature, and one for its output.
            return parameters // self.hidden - 1
        return parameters // max(self.classes, 1)

    def __call__(self, params: Params, rows: np.ndarray) -> np.ndarray:
        """Returns the scores of rows as in training, (n,), or (n, K) of K classes."""
        if self.kind == "two-layer":
            return np.asarray(self.model.score(params, rows))
        # On the host and in float64: nothing is compiled for a few rows.
        return self.model.score(np.asarray(params, np.float64), rows)

    def decide(self, scores: np.ndarray) -> np.ndarray:
        """Returns the code of a label, or the number, for each row, (n,)."""
        if self.kind == "classes":
            # Codes are floats, as `encode_labels` returns them.
            return np.argmax(scores, axis=1).astype(float)
        return scores if self.kind == "numbers" else np.where(scores >= 0, 1.0, -1.0)


def score_of(objective: objectives.Objective) -> Score:
    """Returns how the parameters of ``objective`` score rows."""
    model, linear = objective.model, unweighted(objective.averaged)
    if isinstance(model, objectives.TwoLayer):
        return Score("two-layer", model.hidden, logistic=True)
    if isinstance(model, objectives.LinearClassifier):
        return Score("classes", logistic=linear == Softmax(model.classes), classes=model.classes)
    if model == objectives.LinearRegression():
        return Score("numbers")
    if objective.predicts and (model is None or model == objectives.LinearModel()):
        return Score("linear", logistic=linear == objectives.logistic().linear)
    return Score()


def training_rows(x: Any, preprocessing: Preprocessing | None) -> PyTree:
    """Returns records as the rows that the model was trained on.

    Args:
      x: a ``Dataset``, whose rows are those of training already and are not scaled again; or what
        ``Preprocessing.rows`` takes, in its own units. Without a preprocessing, rows.
      preprocessing: of the training data, or None.

    Raises:
      ValueError: for a ``Dataset`` scaled otherwise, or a table where arrays were trained on.

    Privacy: NOT a mechanism; each row depends on its own record.

    >>> from dpjax.datasets.encoders import Numeric
    >>> scale = Preprocessing((Numeric("age", 0, 100),), intercept=True)
    >>> rows = training_rows({"age": [100]}, scale)
    >>> training_rows(Dataset(rows, np.zeros(1), preprocessing=scale), scale) is rows
    True
    """
    if isinstance(x, Dataset):
        other = x.preprocessing
        # Arrays: nothing is known of their columns, and so nothing can differ.
        if other is None or preprocessing is None:
            return x.x
        if differences := other.differences(preprocessing):
            raise ValueError(
                f"the data set {x.name!r} was scaled by other columns, bounds or intercept than "
                f"the training data: they differ in {few(differences, str)}. Load it as those "
                "were (with inference=True if they were), or, to predict, pass the table itself."
            )
        return x.x
    if preprocessing is None:
        if is_table_path(x):
            raise ValueError(NO_COLUMNS)
        return x
    if not preprocessing.columns and np.asarray(x).dtype.kind == "f":
        return x  # images: bytes are raw, floats scaled already
    return preprocessing.rows(x)


def probabilities(scores: np.ndarray) -> np.ndarray:
    """Returns probabilities (n, K) for scores (n, K), or of two classes for log-odds (n,)."""
    if scores.ndim == 2:
        return softmax(scores, axis=1)
    # Each from the smaller exponential, so that neither is 1 minus a number near 1.
    return np.exp(-np.logaddexp(0, np.stack([scores, -scores], axis=1)))


class Predictions:
    """Predicts labels for records that may have none, in the units of the table trained on.

    Privacy: the parameters are covered by the guarantee. What is predicted for the training records
      is not: it tells of those records.
    """

    params: Params
    preprocessing: Preprocessing | None
    error_bars: ErrorBars | PopulationBars | None
    description: Any

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, in the order of their probabilities; of a regression, none.

        Raises:
          ValueError: if the model predicts no label.
        """
        score = self._score()
        if score.kind == "numbers":
            return ()
        declared = None if self.preprocessing is None else self.preprocessing.classes
        if declared is None:
            # Trained on arrays: the codes of the classes are all that is known of them.
            declared = range(score.classes) if score.classes else (-1, 1)
        return tuple(map(str, declared))

    def coefficients(self, confidence: float = 0.95) -> Coefficients:
        """Returns the coefficients of a linear model by name, with intervals where there are any.

        Where a constant divides rows, as for inference or a label that is a number, in the units of
        label and columns, or as log-odds; else the parameters of scaled features.

        Args:
          confidence: of each interval by itself.

        Raises:
          ValueError: if the model is not linear, or for a confidence out of range.

        Privacy: post-processing.
        """
        score = self._score()
        if score.kind == "two-layer":
            raise ValueError("a network of two layers has no coefficients by name.")
        if np.ndim(self.params) != 1:
            raise ValueError(
                "coefficients are of one solution; index a batch with jax.tree.map first."
            )
        return coefficients(
            np.asarray(self.params),
            self.preprocessing,
            self.error_bars,
            classes=self.class_names if score.kind == "classes" else (),
            numeric=score.kind == "numbers",
            confidence=confidence,
            penalty=self.description.penalty,
        )

    def decision_function(self, x: Any) -> np.ndarray:
        """Returns the scores (n,); above 0 for the second class, of a logistic loss its log-odds.

        Of more than two classes, the scores (n, K) of all; of a regression, numbers from -1 to 1.

        Args:
          x: records in their own units, with or without labels: the path of a file, a
            data frame or mapping with the columns trained on, or an array (n, p) in their order. A
            ``Dataset`` that was loaded as the training data is scaled, and not scaled again. Where
            training was on arrays, rows as there.

        Raises:
          FileNotFoundError: if there is no such file.
          ValueError: for other columns or shapes, a value that is missing or not finite, or a model
            that predicts no label.
        """
        score = self._score()
        if np.ndim(self.params) != 1:
            raise ValueError("predict takes one solution; index a batch with jax.tree.map.")
        if not np.isfinite(np.asarray(self.params)).all():
            raise ValueError("the parameters are not finite, so they predict nothing: train again.")
        rows = training_rows(x, self.preprocessing)
        # Without a preprocessing a table comes back as it is.
        if column_keys(rows) is not None:
            raise ValueError(NO_COLUMNS)
        rows = np.asarray(rows)
        features = score.features(np.size(self.params))
        if rows.ndim != 2 or rows.shape[1] != features or rows.dtype.kind not in "biuf":
            raise ValueError(
                f"x must be rows of {features} numbers, (n, {features}), got {rows.dtype} "
                f"{rows.shape}."
            )
        # Unlike in training, where it is a null record: nobody is protected by a silent guess.
        if not np.isfinite(rows).all():
            raise ValueError(
                "x holds a missing or non-finite value, or a level that is not declared, so it has "
                "no prediction: fill it in, or leave the record out."
            )
        return score(self.params, rows)

    def predict(self, x: Any) -> np.ndarray:
        """Returns the label (n,) of each record: a declared class, else its number; or a number.

        Of a regression on a label with declared bounds, a number in its own units.

        Takes and raises what ``decision_function`` does.
        """
        score = self._score()
        codes = score.decide(self.decision_function(x))
        classes = None if self.preprocessing is None else self.preprocessing.classes
        if score.kind == "numbers" and self.preprocessing is not None:
            return self.preprocessing.unscale_labels(codes)
        # More than two classes without names are numbers from 0; two are decoded to -1 and +1.
        if score.kind == "numbers" or (score.kind == "classes" and classes is None):
            return codes
        return decode_labels(codes, classes)

    def predict_proba(self, x: Any) -> np.ndarray:
        """Returns the probabilities (n, K) of a logistic or softmax loss, by the declared classes.

        Takes and raises what ``decision_function`` does.

        Raises:
          ValueError: for a loss of another kind than these.
        """
        if not self._score().logistic:
            raise ValueError("probabilities need a logistic or softmax loss; predict gives labels.")
        return probabilities(self.decision_function(x))

    def _score(self) -> Score:
        raise NotImplementedError


class PredictedRows(NamedTuple):
    """Predictions for some rows of a table.

    Attributes:
      labels: declared classes, or numbers in the label's units, (m,).
      probabilities: of each class (m, K), or None where they were not asked for.
      known: False (m,) for a record with a missing value or an undeclared level, whose label and
        probabilities mean nothing.
    """

    labels: np.ndarray
    probabilities: np.ndarray | None
    known: np.ndarray


class PredictedTable(NamedTuple):
    """A table that is predicted as it is read.

    Attributes:
      size: number of its records.
      blocks: one ``PredictedRows`` after the other, in the order of the records.
    """

    size: int
    blocks: Iterator[PredictedRows]


def predict_table(model: Predictions, table: Any, *, probabilities: bool = False) -> PredictedTable:
    """Returns predictions for the records of a table, which is read in blocks of rows.

    Unlike ``predict`` it raises no error where single records have no prediction.

    Args:
      model: a ``Solution`` or ``SavedSolution`` that was trained on a table.
      table: the path of a file that ``load`` reads, a data frame or a mapping of columns, with
        or without labels and further columns; or the name of the data set trained on.
      probabilities: whether to give those of the classes too.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if a column is missing or stored otherwise, or the model predicts no label or was
        trained on arrays; for probabilities of another loss than the logistic or softmax one.

    Privacy: NOT a mechanism. The guarantee covers the model; predictions of the training records
      tell of those records.

    >>> import dpjax
    >>> data = dpjax.datasets.load("randhie")
    >>> algorithm = dpjax.dp_gradient_descent(
    ...     dpjax.objectives.logistic(), dpjax.PrivacyBudget(1.0, 1e-6),
    ...     data_size=data.size, dimension=data.dimension, steps=2)
    >>> found = predict_table(dpjax.solve(algorithm, data, seed=0), "randhie")
    >>> found.size, next(found.blocks).labels.shape
    (20190, (8192,))
    """
    scale = model.preprocessing
    _ = model.class_names  # what predicts nothing says so first
    if scale is None:
        raise ValueError(NO_COLUMNS)
    predicted = functools.partial(_predicted, model, scale, probabilities)
    # A model without probabilities says so before a record is read.
    predicted(np.empty((0, len(scale.features)), np.float32))  # before a record is read
    if is_table(table):
        source = open_features(table, scale.columns)
        size, blocks = source.size, scale.blocks(source)
    else:
        # A name stands for published declarations, all but the intercept.
        data = load(table, intercept=scale.intercept)
        rows = np.asarray(training_rows(data, scale))
        size = data.size
        blocks = (rows[i : i + ROWS_AT_ONCE] for i in range(0, size, ROWS_AT_ONCE))
    return PredictedTable(size, map(predicted, blocks))


def _predicted(
    model: Predictions, scale: Preprocessing, probabilities: bool, rows: np.ndarray
) -> PredictedRows:
    known = np.logical_and.reduce(np.isfinite(rows), axis=1)
    # Not left out: blocks of one length compile once.
    filled = np.where(known[:, None], rows, np.float32(0))
    # A Dataset of this preprocessing is scaled: so its rows are not scaled again.
    data = Dataset(filled, np.zeros(len(rows), np.float32), preprocessing=scale)
    chances = model.predict_proba(data) if probabilities else None
    return PredictedRows(model.predict(data), chances, known)
