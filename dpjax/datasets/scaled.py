"""Data that were scaled once: an NPZ of their rows, with what was declared of them beside."""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import struct
import zipfile
from typing import Any

import numpy as np

from dpjax import _durable
from dpjax.datasets.columnar import DAMAGED, DECLARED, mapped_member
from dpjax.datasets.dataset import Dataset, Preprocessing
from dpjax.datasets.encoders import Unscaled
from dpjax.datasets.rows import Rows
from dpjax.datasets.schema import column_of
from dpjax.datasets.units import NOT_GROUPED

_ARRAYS = ("x", "y", "test_x", "test_y", "present")
_ROWS = 8192  # written at once
# What is raised for a file that is none, or that another program changed.
_DAMAGED = (*DAMAGED, AttributeError, LookupError, RuntimeError, struct.error)


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
      ValueError: for another name, or arrays that do not go together.
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
    if not _fits(data):
        raise ValueError(
            "x and y must be arrays of numbers with one record a row, and x must have the features "
            "of preprocessing: dataclasses.replace(data, preprocessing=None) forgets them."
        )
    # json cannot write a float32 of NumPy.
    most = None if data.max_norm is None else float(data.max_norm)
    declared = {"name": data.name, "unit": data.unit, "max_norm": most}
    declared |= {"preprocessing": fields_of(data.preprocessing)}
    with (
        _durable.replacing(path, _durable.PRIVATE_FILE) as file,
        # Stored, not compressed, so that the rows can be mapped.
        zipfile.ZipFile(file, "w") as archive,
    ):
        for name in _ARRAYS:
            if (leaf := getattr(data, name)) is not None:
                # Its size is not known when the header is written, and may be above 4 GiB.
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    _write_array(leaf, member)
        archive.writestr(DECLARED, json.dumps(declared))


def is_scaled(table: Any) -> bool:
    """Returns whether ``table`` is the path of a file that ``write`` made."""
    named = isinstance(table, str | os.PathLike) and os.fspath(table).lower().endswith(".npz")
    if not named or not zipfile.is_zipfile(table):
        return False
    # A damaged archive is none: reading it as a table says what is wrong.
    with contextlib.suppress(*_DAMAGED), zipfile.ZipFile(table) as archive:
        return DECLARED in archive.namelist()
    return False


def declared_in(path: str | os.PathLike[str]) -> tuple[str | None, Preprocessing | None]:
    """Returns the unit, where records are grouped, and what was declared of them."""
    data = _mapped(path)
    return None if data.present is None else data.unit, data.preprocessing


def read(path: str | os.PathLike[str], memory_limit: int | None = None) -> Dataset:
    """Returns the data of a file that ``write`` made; above ``memory_limit`` its rows stay there.

    Privacy: raw data.
    """
    data = _mapped(path)
    on_disk = memory_limit is not None and data.x.nbytes > memory_limit
    if on_disk and data.present is not None:
        raise ValueError(NOT_GROUPED)
    arrays: dict[str, Any] = {}
    for name in _ARRAYS:
        if (leaf := getattr(data, name)) is not None:
            # A copy, as a map would change with the file.
            arrays[name] = Rows(leaf) if on_disk and name in ("x", "y") else np.array(leaf)
    return dataclasses.replace(data, **arrays)


def _mapped(path: str | os.PathLike[str]) -> Dataset:
    """Returns the data with maps of the file as arrays.

    Privacy: errors depend on what is declared, and on the shapes and dtypes of arrays.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            declared = json.loads(archive.read(DECLARED))
            names = [name for name in _ARRAYS if f"{name}.npy" in archive.namelist()]
        arrays: dict[str, Any] = {name: mapped_member(pathlib.Path(path), name) for name in names}
        scale = preprocessing_of(declared["preprocessing"])
        data = Dataset(**arrays | declared | {"preprocessing": scale})
        fits = all(leaf is not None for leaf in arrays.values()) and _fits(data)
    except _DAMAGED:
        fits = False
    if not fits:
        raise ValueError(
            f"{str(path)!r} is not as dpjax.datasets.write writes it: damaged, compressed or "
            "changed since. Write it again from its table, `dpjax data FILE --write`."
        )
    return data


def _fits(data: Dataset) -> bool:
    """Whether shapes, dtypes and what was declared go together, as JAX does not check."""
    x, y, present, scale = data.x, data.y, data.present, data.preprocessing
    axes = 1 if present is None else 2
    pairs: list[tuple[Any, Any, int]] = [(x, y, axes)]
    if data.test_x is not None or data.test_y is not None:
        pairs.append((data.test_x, data.test_y, 1))
    return (
        all(getattr(leaf, "dtype", np.dtype("O")).kind in "biuf" for p in pairs for leaf in p[:2])
        and all(x.ndim > n and x.shape[:n] == y.shape[:n] for x, y, n in pairs)
        and (present is None or (present.dtype == bool and present.shape == x.shape[:2]))
        # Images have no columns, and rows of any shape.
        and (scale is None or not scale.columns or x.shape[axes:] == (len(scale.features),))
        and isinstance(data.name, str)
        and isinstance(data.unit, str)
        and (data.max_norm is None or 0 <= data.max_norm < math.inf)
    )


def _write_array(leaf: Any, member: Any) -> None:
    # numpy.save needs the whole array in memory; rows on disk are written block by block.
    kind = np.lib.format.dtype_to_descr(np.dtype(leaf.dtype))
    header = {"descr": kind, "fortran_order": False, "shape": tuple(leaf.shape)}
    np.lib.format.write_array_header_1_0(member, header)
    for start in range(0, leaf.shape[0], _ROWS):
        member.write(np.ascontiguousarray(leaf[start : start + _ROWS]).data)


def fields_of(scale: Preprocessing | None) -> dict[str, Any] | None:
    """Returns what was declared as JSON holds it, for ``preprocessing_of``."""
    if scale is None:
        return None
    return vars(scale) | {"encoders": [(c.name, c.declaration()) for c in scale.encoders]}


def preprocessing_of(fields: dict[str, Any] | None) -> Preprocessing | None:
    """Returns what ``fields_of`` was made of."""
    if fields is None:
        return None
    # JSON knows no tuples, and a preprocessing is compared and hashed by them.
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    columns = (column_of(*each) if each[1] else Unscaled(each[0]) for each in fields["encoders"])
    held: dict[str, Any] = fields | lists | {"encoders": tuple(columns)}
    return Preprocessing(**held)
