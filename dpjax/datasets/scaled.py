"""Data that were scaled once: an NPZ of their rows, with what was declared of them beside."""

import dataclasses
import json
import os
import pathlib
import zipfile
from typing import Any

import numpy as np

from dpjax import _durable
from dpjax.datasets.base import Dataset, Preprocessing
from dpjax.datasets.columnar import mapped_member
from dpjax.datasets.encoders import Unscaled
from dpjax.datasets.npz_files import DECLARED
from dpjax.datasets.rows import Rows
from dpjax.datasets.schema import column_of
from dpjax.datasets.units import NOT_GROUPED

_ARRAYS = ("x", "y", "test_x", "test_y", "present")
_ROWS = 8192  # written at once


def write(data: Dataset, path: str | os.PathLike[str]) -> None:
    """Writes data as ``load`` returns them into one file, from which ``load`` reads them again.

    So a large table is read, scaled and encoded once, and trainings find its rows in float32. With
    a ``memory_limit`` these stay on disk, see ``distributed.stream``; rows of ``data`` that do are
    written block by block.

    Args:
      data: with all that was declared of them: it goes into the file, and into a model that is
        trained from it.
      path: ends in .npz. A file that is there is replaced, once all is written.

    Raises:
      ValueError: for another name.
      OSError: if the file cannot be written; what was there before is still there.

    Privacy: the file HOLDS THE RECORDS, scaled, and labels: as secret as the table. Its owner alone
      can read it.

    >>> import tempfile
    >>> from dpjax.datasets import load
    >>> data = Dataset(np.ones((3, 2), np.float32), np.ones(3, np.float32), name="ones")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(data, f"{folder}/ones.npz")
    ...     load(f"{folder}/ones.npz")
    Dataset(name='ones', unit='row', max_norm=None)
    """
    if not os.fspath(path).lower().endswith(".npz"):
        raise ValueError(f"scaled rows are written as NPZ: name a file .npz, not {str(path)!r}.")
    declared = {"name": data.name, "unit": data.unit, "max_norm": data.max_norm}
    declared |= {"preprocessing": fields_of(data.preprocessing)}
    with (
        _durable.replacing(path, _durable.PRIVATE_FILE) as file,
        zipfile.ZipFile(file, "w") as archive,
    ):
        for name in _ARRAYS:
            if (leaf := getattr(data, name)) is not None:
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    _write_array(leaf, member)
        archive.writestr(DECLARED, json.dumps(declared))


def is_scaled(table: Any) -> bool:
    """Returns whether ``table`` is the path of a file that ``write`` made.

    >>> is_scaled("people.csv")
    False
    """
    named = isinstance(table, str | os.PathLike) and os.fspath(table).lower().endswith(".npz")
    if not named or not zipfile.is_zipfile(table):
        return False
    with zipfile.ZipFile(table) as archive:
        return DECLARED in archive.namelist()


def declared_in(path: str | os.PathLike[str]) -> tuple[str | None, Preprocessing | None]:
    """Returns the unit, where records are grouped, and what was declared of them."""
    with zipfile.ZipFile(path) as archive:
        declared = json.loads(archive.read(DECLARED))
        grouped = "present.npy" in archive.namelist()
    return declared["unit"] if grouped else None, preprocessing_of(declared["preprocessing"])


def read(path: str | os.PathLike[str], memory_limit: int | None = None) -> Dataset:
    """Returns the data of a file that ``write`` made; above ``memory_limit`` its rows stay there.

    Raises:
      ValueError: if they exceed the limit and are grouped into units.

    Privacy: raw data.
    """
    with zipfile.ZipFile(path) as archive:
        declared = json.loads(archive.read(DECLARED))
        names = [name for name in _ARRAYS if f"{name}.npy" in archive.namelist()]
    arrays: dict[str, Any] = {name: mapped_member(pathlib.Path(path), name) for name in names}
    on_disk = memory_limit is not None and arrays["x"].nbytes > memory_limit
    if on_disk and "present" in names:
        raise ValueError(NOT_GROUPED)
    for name in names:
        left = on_disk and name in ("x", "y")
        arrays[name] = Rows(arrays[name]) if left else np.array(arrays[name])
    return Dataset(
        **arrays | declared | {"preprocessing": preprocessing_of(declared["preprocessing"])}
    )


def _write_array(leaf: Any, member: Any) -> None:
    kind = np.lib.format.dtype_to_descr(np.dtype(leaf.dtype))
    header = {"descr": kind, "fortran_order": False, "shape": tuple(leaf.shape)}
    np.lib.format.write_array_header_1_0(member, header)
    for start in range(0, leaf.shape[0], _ROWS):
        member.write(np.ascontiguousarray(leaf[start : start + _ROWS]).data)


def fields_of(scale: Preprocessing | None) -> dict[str, Any] | None:
    """Returns what was declared as JSON holds it, for ``preprocessing_of``."""
    if scale is None:
        return None
    fields = {field.name: getattr(scale, field.name) for field in dataclasses.fields(scale)}
    fields["encoders"] = [(column.name, column.declaration()) for column in fields["encoders"]]
    return fields


def preprocessing_of(fields: dict[str, Any] | None) -> Preprocessing | None:
    """Returns what ``fields_of`` was made of.

    >>> from dpjax.datasets.encoders import Numeric
    >>> preprocessing_of(fields_of(Preprocessing((Numeric("age", 0.0, 99.0),)))).features
    ('age',)
    """
    if fields is None:
        return None
    # JSON knows no tuples, and a preprocessing is compared and hashed by them.
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    held: dict[str, Any] = fields | lists
    columns = held["encoders"]
    held["encoders"] = tuple(column_of(*each) if each[1] else Unscaled(each[0]) for each in columns)
    return Preprocessing(**held)
