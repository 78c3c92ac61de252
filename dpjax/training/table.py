"""Checks of the data of ``fit`` before a run: shapes, dtypes and public numbers."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._typing import PyTree
from dpjax.accounting import PrivacyBudget
from dpjax.datasets import Dataset, group
from dpjax.datasets.dataset import check_arrays
from dpjax.derivatives.chunks import common_length


def records_of(
    name: str,
    data: Any,
    bounds: tuple[float, float] | None = None,
    like: tuple[PyTree, PyTree] | None = None,
) -> tuple[PyTree, PyTree]:
    """Returns features and labels, checked by shape and dtype alone.

    ``name`` is the argument's, for messages; records ``like`` have the shapes that these must have.
    """
    if isinstance(data, Dataset):
        if bounds is not None and data.preprocessing is not None:
            raise ValueError(
                f"bounds must be left out, got {bounds!r}: {name}, the data set {data.name!r}, "
                "declares its features itself; scale them there, by load(bounds=) or a schema."
            )
        data = data.examples
    if not isinstance(data, tuple | list) or len(data) != 2:
        fix = "of a frame, (frame[features].to_numpy(), frame[label].to_numpy())"
        raise ValueError(f"{name} must be a Dataset or arrays (x, y), one record a row; {fix}.")
    x, y = data
    check_arrays(name, (x, y))
    common_length((x, y), None, name)
    for leaf in jax.tree.leaves(x):
        dtype = jnp.result_type(leaf)
        # Tokens are integers too, in one axis or none; images are bytes, or have two at least.
        image = jnp.issubdtype(dtype, jnp.integer) and (dtype.itemsize == 1 or np.ndim(leaf) > 2)
        if image and bounds is None:
            raise ValueError(
                f"bounds must be given for {name} of {dtype}: the declared range that scales them "
                "to [0, 1], such as bounds=(0, 255) for images of bytes. Tokens, which only index, "
                "are passed as int32 in one axis, (n, length)."
            )
    if like is not None:
        # Of one record: the numbers of records may differ.
        shapes, needed = (jax.tree.map(lambda leaf: np.shape(leaf)[1:], r) for r in ((x, y), like))
        if shapes != needed:
            raise ValueError(
                f"records of {name} have shapes {shapes}, but those of the training data have "
                f"{needed}."
            )
    return x, y


class TrainingData(NamedTuple):
    """The training data of ``fit``."""

    data: Any
    """What is trained on: a ``Dataset``, grouped if its examples are units, or arrays."""
    records: tuple[PyTree, PyTree]
    examples: PyTree
    """What is drawn and clipped; ``records`` themselves unless they are grouped."""


def given(
    data: Any,
    groups: Any = None,
    max_records: int | None = None,
    unit_type: str | None = None,
    bounds: tuple[float, float] | None = None,
    processes: int = 1,
) -> TrainingData:
    """Returns checked training data, grouped into units where ``groups`` says so.

    ``data`` is a ``Dataset``, one record or one unit a row, or ``(x, y)``, one record a row;
    ``processes`` is how many hold it. The other arguments are those of ``fit``.
    """
    if (groups is None) != (max_records is None):
        raise ValueError(
            "groups and max_records go together: whose each record is, and the declared largest "
            "number of records of one person."
        )
    if groups is not None and max_records is not None:
        if not isinstance(data, Dataset):
            # Checked before it is grouped, while a row is a record.
            data = Dataset(*records_of("data", data, bounds))
        data = group(data, groups, max_records, unit_type=unit_type)
    if not isinstance(data, Dataset) or data.present is None:
        records = records_of("data", data, bounds)
        return TrainingData(data if isinstance(data, Dataset) else records, records, records)
    if processes > 1:
        raise ValueError("units are trained in one process: pass data that are not distributed.")
    present = np.asarray(data.present)
    # Single records: the model is checked on one, and evaluated on them.
    x, y = jax.tree.map(lambda leaf: np.asarray(leaf)[present], (data.x, data.y))
    alone = dataclasses.replace(data, x=x, y=y, present=None)
    return TrainingData(data, records_of("data", alone, bounds), data.examples)


def example_shape(records: PyTree) -> PyTree:
    """Returns shapes and dtypes of one record."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf)[1:], jnp.result_type(leaf)), records
    )


def sizes_of(
    records: PyTree,
    budget: Any,
    data_size: int | None,
    batch_size: int,
    epochs: float | None,
    steps: int | None,
) -> dict[str, int]:
    """Returns the public numbers of a run, by the names that factories have for them.

    The rows of ``records`` are counted if their number is public, as the relation of the budget
    says. The other arguments are those of ``fit``.
    """
    PrivacyBudget.check(budget)
    if data_size is None and budget.relation == "add_or_remove_one":
        raise ValueError(
            "data_size is required under relation='add_or_remove_one', where the number of records "
            "is private: declare a public one."
        )
    # Rows are counted only where their number is public, as checked above.
    n = np.shape(jax.tree.leaves(records)[0])[0] if data_size is None else data_size
    n = _validate.positive_int("data_size", n)
    batch_size = _validate.positive_int("batch_size", batch_size)
    if (epochs is None) == (steps is None):
        raise ValueError(f"pass exactly one of epochs= and steps=, got {epochs!r} and {steps!r}.")
    if epochs is not None:
        exact = _validate.positive("epochs", epochs) * n / batch_size
        # Steps are counted in int32.
        if exact >= 2**31:
            raise ValueError(f"epochs={epochs!r} gives more steps than are supported; lower it.")
        steps = max(1, round(exact))
    steps = _validate.int32_count("steps", steps)
    return {"data_size": n, "batch_size": batch_size, "steps": steps}
