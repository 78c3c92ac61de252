"""Checks of the shape and dtype of the data, before anything is spent."""

import jax
import numpy as np

from dpjax._typing import Params, PyTree, confusable
from dpjax.algorithms import Algorithm
from dpjax.datasets import Dataset
from dpjax.driver.asking import check_questions
from dpjax.objectives.base import SIGNS
from dpjax.oracles import check_examples


def check_data(algorithm: Algorithm, data: Dataset | PyTree, params: Params) -> None:
    """Raises if data, parameters and the declared numbers do not fit together.

    Args:
      algorithm: configured.
      data: as in ``solve``.
      params: floating pytree.

    Raises:
      ValueError: for a class of the algorithm that was registered by JAX's ``register_dataclass``,
        see ``dpjax.pytree_dataclass``; as ``check_examples``; or, where -1 and +1 are the labels
        that count, for labels of words, booleans or unsigned integers, and for data that declare
        more than two classes.

    Privacy: reads shapes, dtypes and declarations, no value: labels 0 and 1 of a signed dtype raise
      nothing.
    """
    if confused := confusable(jax.tree.structure(algorithm)):
        name = confused[0].__name__
        raise ValueError(
            f"{name} is registered by jax.tree_util.register_dataclass, and JAX may run the "
            "compiled program of another such class in its place. Decorate it by "
            "@dpjax.pytree_dataclass instead."
        )
    examples = data.examples if isinstance(data, Dataset) else data
    if algorithm.objective.labels == SIGNS:
        _check_labels(algorithm.objective.name, data, examples)
    for query in algorithm.queries:
        check_examples(query, examples, params)
    check_questions(algorithm, examples, params)


def _check_labels(objective: str, data: Dataset | PyTree, examples: PyTree) -> None:
    preprocessing = data.preprocessing if isinstance(data, Dataset) else None
    classes = None if preprocessing is None else preprocessing.classes
    if classes is not None and len(classes) != 2:
        raise ValueError(
            f"{objective} is a loss for two labels, but the data declare {len(classes)} classes: "
            "declare two of them, or train a network on all of them with dpjax.fit."
        )
    if not isinstance(examples, tuple) or len(examples) != 2:
        return
    y = examples[1]
    dtype = y.dtype if hasattr(y, "dtype") else np.asarray(y).dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "buUSTO":
        raise ValueError(
            f"labels must be the numbers -1 and +1, got an array of dtype {dtype}: encode them by "
            "y = dpjax.datasets.encode_labels(y, classes=(negative, positive)). A record with any "
            "other label then becomes a null record; no error is raised."
        )
