"""Reader for NPZ files: an array of features, one of labels, and perhaps the same for testing."""

import pathlib
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpjax.datasets.archives import DAMAGED
from dpjax.datasets.columnar import Matrix, mapped_member
from dpjax.datasets.csv_files import few
from dpjax.datasets.rows import Rows
from dpjax.datasets.source import OpenTable

DECLARED = "dpjax.json"  # the member that tells a file of scaled rows from a table
# Names of the arrays of an NPZ: features, labels, features and labels for testing.
_NAMES = (
    ("x", "y", "test_x", "test_y"),
    ("X", "y", "X_test", "y_test"),
    ("X_train", "y_train", "X_test", "y_test"),
    ("x_train", "y_train", "x_test", "y_test"),
)


def open_archive(path: pathlib.Path, label: str | None, memory_limit: int | None) -> OpenTable:
    """Returns the arrays of an NPZ, whose columns are "0", "1", ..., and its labels.

    Raises:
      ValueError: if it is not an archive of such arrays. A strange *record* raises nothing.

    Privacy: errors depend on the names, shapes and dtypes of arrays only, which are taken as
      public.
    """
    # The size of an uncompressed archive is that of its arrays.
    on_disk = memory_limit is not None and path.stat().st_size > memory_limit
    held, names, arrays = _read(path, label, on_disk)
    features, label, *of_test = names
    _check_held(path, held, features, label)
    for name, array in arrays.items():
        if array is None:
            raise ValueError(
                f"{name!r} of {str(path)!r} is compressed, so it is read as a whole, which is "
                "above memory_limit: save it by numpy.savez, or as NPY or Parquet."
            )
    present = [name in arrays for name in of_test]
    if present[0] != present[1]:
        raise ValueError(
            f"{str(path)!r} must have both {of_test[0]!r} and {of_test[1]!r}, or neither."
        )
    sources = []
    for x, y in ((features, label), of_test)[: 1 + present[0]]:
        _check_shapes(path, arrays, x, y)
        cells, labels = (Rows(arrays[name]) if on_disk else arrays[name] for name in (x, y))
        sources.append(Matrix(repr(str(path)), cells, beside={label: labels}))
    widths = [arrays[name].shape[1] for name in (features, of_test[0])[: len(sources)]]
    if widths[0] != widths[-1]:
        raise ValueError(
            f"{of_test[0]!r} of {str(path)!r} must have {widths[0]} columns, as {features!r} has."
        )
    return OpenTable(*sources, on_disk=on_disk, label=label)


def read_features(path: pathlib.Path) -> np.ndarray:
    """Returns the array of features of an NPZ, which may have no labels."""
    held, (features, *_), arrays = _read(path, None, False)
    _check_held(path, held, features)
    return arrays[features]


def _read(
    path: pathlib.Path, label: str | None, mapped: bool
) -> tuple[list[str], tuple[str, str, str, str], dict[str, Any]]:
    """Returns which arrays there are, which are wanted, and those of them that there are."""
    try:
        # Opened here, because numpy leaves a damaged archive's file open.
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            held = [name.removesuffix(".npy") for name in archive.namelist()]
        names = _names_in(held, label)
        if mapped:
            return held, names, {k: mapped_member(path, k) for k in names if k in held}
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return held, names, {k: arrays[k] for k in names if k in held}
    except DAMAGED as error:
        raise ValueError(f"{str(path)!r} is not an archive of plain arrays: {error}.") from None


def _check_held(path: pathlib.Path, held: Sequence[str], *names: str) -> None:
    if DECLARED in held:
        raise ValueError(
            f"{str(path)!r} holds scaled rows, which dpjax.datasets.load reads: here give the "
            "table that they were made of."
        )
    roles = ("the features", "the labels (label=... names another)")
    for name, role in zip(names, roles, strict=False):
        if name not in held:
            raise ValueError(f"{str(path)!r} lacks {name!r}, {role}; it has {few(held)}.")


def _names_in(held: Sequence[str], label: str | None) -> tuple[str, str, str, str]:
    features, usual, test_features, test_label = next(
        (names for names in _NAMES if names[0] in held), _NAMES[0]
    )
    if label is None or label == usual:
        return features, usual, test_features, test_label
    # Labels of another name have their test labels under a name like it.
    return features, label, test_features, f"test_{label}"


def _check_shapes(path: pathlib.Path, arrays: Mapping[str, np.ndarray], features: str, label: str):
    x, y = arrays[features], arrays[label]
    if x.ndim != 2 or y.shape != x.shape[:1]:
        axes = (x.ndim, y.ndim)
        # Without n, which is private where records are added or removed.
        held = "two lengths" if axes == (2, 1) else f"{axes[0]} and {axes[1]} axes"
        raise ValueError(
            f"{features!r} of {str(path)!r} must be (n, p) and {label!r} (n,), got {held}."
        )
    if x.dtype.kind not in "biuf":
        raise ValueError(f"{features!r} of {str(path)!r} must be numbers, got {x.dtype}.")
