"""``load`` and ``describe``: the named data sets and a user's own tables, ready for training."""

import dataclasses
import math
import os
import pathlib

import numpy as np

from dpjax.datasets import archives
from dpjax.datasets.base import Dataset, Table, encode_labels, normalise
from dpjax.datasets.images import IMAGES, find_images, load_images
from dpjax.datasets.registry import SPECS, Spec, spec
from dpjax.datasets.tables import SUFFIXES, Bounds, read_table

IJCNN1_TRAINING_ROWS = 35_000  # ijcnn1.tr; the publisher's ijcnn1 appends 14,990 of validation


def load(
    name_or_path: str | os.PathLike[str],
    *,
    label: str | None = None,
    bounds: Bounds | None = None,
    intercept: bool = False,
) -> Dataset:
    """Loads a named data set, or a table of one's own from a CSV or NPZ file.

    A CSV has a header, one line a record (a blank line is none), and numeric features; ``label``
    names the label's column. An NPZ has the arrays ``x`` (n, p) and ``y`` (n,), and may have
    ``test_x`` and ``test_y``. Labels are -1 and +1, or 0 and 1.

    Args:
      name_or_path: ``"randhie"`` (comes with the package), ``"ijcnn1"``, ``"covtype"``,
        ``"covtype-12"``, the images ``"mnist"`` and ``"cifar10"``, or a path ending in .csv or
        .npz. The named ones are looked for in ``$DPJAX_DATA``, in ``$DPJAX_CACHE``
        (``~/.cache/dpjax``), and at their publishers, except for images.
      label: the label's column (CSV) or array (NPZ, default ``"y"``); for a file only.
      bounds: the declared range of each feature, as ``{column: [low, high]}`` or the path of a
        JSON file that holds it, or of a CSV file ``column,low,high``; for a file only. For an NPZ
        the columns are ``"0"``, ``"1"``, ..., or a list in their order. Values are clamped to the
        range, then scaled to [0, 1].
      intercept: append a feature that is 1 in every row, before the rows are normalised.

    Returns:
      A ``Dataset`` of NumPy arrays, every row divided by its own norm; images are in [0, 1], with
      classes from 0 up.

    Raises:
      ValueError: for an unknown name, a label or bounds that are missing, do not fit or do not
        apply, a table without records, or a file with the wrong checksum.
      FileNotFoundError: if the file is absent, or the named set is and cannot be fetched.

    Privacy: row i of the result depends on record i alone, so an adjacency of records in the file
    is one of rows here. Nothing is read off the data: ranges are declared. A record with a cell
    or a label that is no finite number or no label becomes NaN, silently, and training drops it.

    >>> data = load("randhie")
    >>> data, data.x.shape
    (Dataset(name='randhie', unit='person-year', max_norm=1.0), (20190, 9))
    """
    if _is_path(name_or_path) and bounds is None:
        raise ValueError(
            f"bounds must declare the range of every feature of {str(name_or_path)!r}, got None: "
            "ranges read off the data would leak it. Write what you know without looking, as "
            '{"age": [0, 120], ...}, to a JSON file, and pass its path as bounds.'
        )
    if name_or_path in IMAGES:
        if label is not None or bounds is not None or intercept:
            raise ValueError(f"label, bounds and intercept are for tables, not {name_or_path}.")
        return load_images(str(name_or_path))
    table = open_table(name_or_path, label=label, bounds=bounds)
    test_x = table.test_x
    return Dataset(
        x=normalise(table.x, table.ranges, intercept),
        y=table.y,
        test_x=None if test_x is None else normalise(test_x, table.ranges, intercept),
        test_y=table.test_y,
        name=table.name,
        unit=table.unit,
        max_norm=1.0,
    )


def open_table(
    name_or_path: str | os.PathLike[str], *, label: str | None = None, bounds: Bounds | None = None
) -> Table:
    """Reads what ``load`` reads, and leaves the values as they are in the file.

    Args:
      name_or_path: as for ``load``.
      label: as for ``load``; for a file only.
      bounds: as for ``load``; for a file only, where None attaches no ranges.

    Returns:
      The raw ``Table``.

    Raises:
      ValueError: as ``load``.
      FileNotFoundError: as ``load``.

    Privacy: raw data.

    >>> open_table("randhie").columns[:3]
    ('lncoins', 'idp', 'lpi')
    """
    if _is_path(name_or_path):
        return read_table(pathlib.Path(name_or_path), label, bounds)
    if name_or_path in IMAGES:
        raise ValueError(f"{name_or_path} are images, not a table of features.")
    if pathlib.Path(name_or_path).suffix:
        raise ValueError(f"a table's path must end in .csv or .npz, got {str(name_or_path)!r}.")
    entry = spec(str(name_or_path))
    if label is not None or bounds is not None:
        raise ValueError(
            f"label and bounds apply to a CSV or NPZ file alone, got label={label!r} and "
            f"bounds={bounds!r} for the named data set {entry.name!r}: leave them out."
        )
    return _read_named(entry)


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """What is known about a named data set without reading it.

    Args:
      name: what ``load`` knows it by.
      rows: number of training records.
      features: number of features, without an intercept.
      unit: what one row is.
      task: what +1 stands for against -1.
      source: who published it.
      available: whether ``load`` needs no network for it.
      checksum: sha256 of its archive.
      note: terms, preprocessing, and what to know before quoting a number.
      path: the archive on this machine, or None.
    """

    name: str
    rows: int
    features: int
    unit: str
    task: str
    source: str
    available: bool
    checksum: str
    note: str
    path: str | None = None


def describe() -> list[DatasetInfo]:
    """What the named data sets are, and which of them are on this machine.

    Returns:
      One ``DatasetInfo`` for each name, in the order of the registry.

    Privacy: published facts about published data.

    >>> [info.name for info in describe()]
    ['randhie', 'ijcnn1', 'covtype', 'covtype-12', 'mnist', 'cifar10']
    >>> describe()[0].available
    True
    """
    return [*map(_info, SPECS.values()), *map(_info_of_images, IMAGES)]


def _info_of_images(name: str) -> DatasetInfo:
    images, path = find_images(name)
    return DatasetInfo(
        name=name,
        rows=images.rows,
        features=math.prod(images.shape),
        unit="image",
        task="10 classes of images, for networks: dpjax.fit",
        source=images.source,
        available=path is not None,
        checksum=images.checksum or "none",
        note=images.note,
        path=None if path is None else str(path),
    )


def _info(entry: Spec) -> DatasetInfo:
    path = archives.find(entry)
    return DatasetInfo(
        name=entry.name,
        rows=entry.rows,
        features=len(entry.columns),
        unit=entry.unit,
        task=entry.task,
        source=entry.source,
        available=path is not None or archives.downloaded(entry),
        checksum=entry.checksum,
        note=entry.note,
        path=None if path is None else str(path),
    )


def _is_path(name_or_path: str | os.PathLike[str]) -> bool:
    return os.fspath(name_or_path).lower().endswith(SUFFIXES)


def _read_named(entry: Spec) -> Table:
    raw = archives.arrays(entry)
    ranges = None
    if entry.ranges is not None:
        low, high = np.array(list(entry.ranges.values())).T
        ranges = (low, high)
    test_x = test_y = None
    if entry.name == "randhie":
        x, positive = raw["x"], raw["mdvis"] > 0
    elif entry.name == "ijcnn1":
        x, positive = raw["X_train"][:IJCNN1_TRAINING_ROWS], raw["y_train"] > 0
        positive = positive[:IJCNN1_TRAINING_ROWS]
        test_x, test_y = raw["X_test"], encode_labels(raw["y_test"])
    else:
        classes = [2] if entry.name == "covtype" else [1, 2]
        x, positive = raw["X"], np.isin(raw["y"], classes)
    return Table(
        entry.name, entry.columns, x, encode_labels(positive), ranges, test_x, test_y, entry.unit
    )
