"""``predict_table``: predictions for a table in blocks of rows, with a gap where there is none."""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dpjax.datasets import Dataset, Preprocessing, load
from dpjax.datasets.source import ROWS_AT_ONCE
from dpjax.datasets.sources import has_columns, is_table_path, open_features
from dpjax.results.prediction import NO_COLUMNS, Predictions, training_rows


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
      table: the path of a CSV, NPZ, NPY or Parquet file, a data frame or a mapping of columns, with
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
    predicted(np.empty((0, len(scale.features)), np.float32))  # before a record is read
    if is_table_path(table) or has_columns(table):
        source = open_features(table, scale.columns)
        size, blocks = source.size, scale.blocks(source)
    else:
        data = load(table, intercept=scale.intercept)
        rows = np.asarray(training_rows(data, scale))
        size, blocks = (
            data.size,
            (rows[i : i + ROWS_AT_ONCE] for i in range(0, data.size, ROWS_AT_ONCE)),
        )
    return PredictedTable(size, map(predicted, blocks))


def _predicted(
    model: Predictions, scale: Preprocessing, probabilities: bool, rows: np.ndarray
) -> PredictedRows:
    known = np.logical_and.reduce(np.isfinite(rows), axis=1)
    # Not left out: blocks of one length compile once.
    filled = np.where(known[:, None], rows, np.float32(0))
    data = Dataset(filled, np.zeros(len(rows), np.float32), preprocessing=scale)
    chances = model.predict_proba(data) if probabilities else None
    return PredictedRows(model.predict(data), chances, known)
