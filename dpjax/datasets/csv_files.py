"""Reader for CSV files in which each line is one record, whatever its content."""

import csv
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np


def open_csv(path: pathlib.Path) -> tuple[list[str], int]:
    """Returns the header and the number of records; each line is one record."""
    # Read as a stream, a stray quote in one record would swallow the records after it. Hence also
    # binary mode, which splits at \n alone.
    with path.open("rb") as file:
        first = file.readline().removeprefix(b"\xef\xbb\xbf")
        records = sum(1 for line in file if line.strip())
    name = repr(str(path))
    if not first.strip():
        raise ValueError(
            f"{name} begins with an empty line, or is empty: the first line must name the columns."
        )
    try:
        first.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(
            f"the header of {name} is not UTF-8: save the file as UTF-8 (spreadsheets call it CSV "
            "UTF-8). It may be Latin-1, Windows-1252 or UTF-16 now."
        ) from None
    header = [cell.strip() for cell in _cells(first)]
    for mark, called in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if len(header) == 1 and mark in header[0]:
            raise ValueError(
                f"the header of {name} has {called} and no comma: save the file with commas "
                "between cells, and points in decimal numbers."
            )
    check_unique(f"the header of {name}", header)
    return header, records


def read_csv(
    path: pathlib.Path, header: list[str], records: int, wanted: Sequence[str], label: str | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns the wanted columns as numbers (n, p), and the label's cells, None where missing."""
    positions = [header.index(name) for name in wanted]
    x = np.full((records, len(wanted)), np.nan)
    labels = None if label is None else np.full(records, None, object)
    position = None if label is None else header.index(label)
    same: dict[str, str] = {}  # one string for each label, not one for each record
    for record, line in enumerate(_lines(path)):
        cells = _cells(line)
        if len(cells) == len(header):
            x[record] = [to_number(cells[at]) for at in positions]
            if labels is not None and position is not None:
                cell = cells[position].strip()
                labels[record] = same.setdefault(cell, cell)
    return x, labels


def _lines(path: pathlib.Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.readline()
        yield from (line for line in file if line.strip())


def _cells(line: bytes) -> list[str]:
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    try:
        return next(csv.reader([text]), [])
    except csv.Error:
        return []


def to_number(cell: Any) -> float:
    """Returns a cell as a float, NaN if it is not a number."""
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return np.nan


def few(names: Sequence[Any]) -> str:
    """Returns the first few names as text for an error message.

    >>> few(["age", "bmi"])
    "'age', 'bmi'"
    """
    shown = ", ".join(map(repr, names[:8]))
    return shown + (f", ... ({len(names)} in all)" if len(names) > 8 else "")


def check_unique(where: str, names: Sequence[str]) -> None:
    """Raises if a name occurs twice."""
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"{where} names {few(twice)} twice: rename one.")
