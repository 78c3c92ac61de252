"""Cells of a column: how they are stored, and what number, date or unit each one is."""

import datetime
import decimal
import enum
import functools
import re
import unicodedata
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from dpjax import _validate

T = TypeVar("T")


class Kind(enum.Enum):
    """How a column is stored, which is public as the dtype of an array is."""

    NUMBERS = "numbers"
    BOOLEANS = "True and False"
    WORDS = "words"
    DATES = "dates"
    MIXED = "cells whose type is not declared"
    OTHER = "cells of another type"


_OF_DTYPE = {
    **dict.fromkeys("iuf", Kind.NUMBERS),
    **dict.fromkeys("UST", Kind.WORDS),
    "b": Kind.BOOLEANS,
    "M": Kind.DATES,
    "O": Kind.MIXED,
}
# Names of the dtypes of pandas, polars and pyarrow that are no NumPy dtypes.
_OF_NAME = {
    r"(u?int|float|double|halffloat|decimal)": Kind.NUMBERS,
    r"bool": Kind.BOOLEANS,
    r"(large_)?(str|string|string_view|utf8|binary|binary_view|categorical|enum)\b": Kind.WORDS,
    r"(date|timestamp)": Kind.DATES,
    r"(object|null|category)\b": Kind.MIXED,
}
# Words that stand for a missing cell: of nobody, and where cells are counted for their owner.
MISSING = {"", "na", "n/a", "nan", "none", "null", "?", "<na>", "nat", "#n/a"}
EPOCH = datetime.datetime(1970, 1, 1)
_DAY = datetime.timedelta(days=1)
# Units of datetime64 in a day.
_PER_DAY = {"W": 1 / 7, "D": 1, "h": 24, "m": 1_440, "s": 86_400, "ms": 86_400 * 10**3}
_PER_DAY |= {name: 86_400 * 10**power for name, power in (("us", 6), ("ns", 9), ("ps", 12))}
_PER_DAY |= {name: 86_400 * 10**power for name, power in (("fs", 15), ("as", 18))}
_FARTHEST = 12 * 100_000  # months from 1970 that datetime64[D] holds; no bounds reach there
# What looks like a number; whole numbers as integers are written, or floats where one is missing;
# and as any program writes them.
_NUMERIC = re.compile(r"[-+]?[.,]?\d[\d,]*(\.\d*)?(e[-+]?\d+)?", re.IGNORECASE)
_PLAIN = re.compile(r"-?(0|[1-9][0-9]*)(\.0*)?")
_WRITTEN = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?(e[-+]?[0-9]+)?", re.IGNORECASE)
_OF_PYTHON = {str, float, int, bool}  # millions of cells are of these
_MOST_DIGITS = 300  # of a whole number; Python neither reads nor prints thousands


def kind_of(column: Any) -> Kind:
    """Returns how a column of a data frame, or an array, is stored; of a list nothing is known."""
    dtype = getattr(column, "dtype", getattr(column, "type", None))
    if isinstance(dtype, np.dtype):
        return _OF_DTYPE.get(dtype.kind, Kind.OTHER)
    if dtype is None:
        return Kind.MIXED
    # pandas writes Sparse[float64, nan].
    name = stated(column).lower().removeprefix("sparse[")
    return next((kind for pattern, kind in _OF_NAME.items() if re.match(pattern, name)), Kind.OTHER)


def stated(column: Any) -> str:
    """Returns the name of a column's dtype, "" if it has none."""
    dtype: Any = getattr(column, "dtype", getattr(column, "type", ""))
    encoded = str(dtype).startswith(("dictionary<", "run_end_encoded<"))  # of pyarrow
    return str(dtype.value_type if encoded else dtype)


def may_be_numbers(kind: Kind, dtype: str) -> bool:
    """Returns whether a column may hold numbers, by its dtype alone; categories may not."""
    return dtype != "category" and kind in (Kind.NUMBERS, Kind.BOOLEANS, Kind.MIXED)


def check_names(said: str, kind: Kind, dtype: str, unit_type: str | None = None) -> None:
    """Raises if a column is stored as what cannot name units, by dtype and declared type alone."""
    numbers = unit_type == "number"
    if unit_type is not None:
        _validate.choice("type of units", unit_type, ("number", "text"))
    if kind in (Kind.OTHER, Kind.BOOLEANS) or (numbers and kind == Kind.DATES):
        raise ValueError(f"{said} must hold whole numbers or strings, got {dtype}: convert them.")
    if kind == Kind.NUMBERS and not numbers and re.search("float|double", dtype.lower()):
        raise ValueError(
            f"{said} is stored as {dtype}, in which large whole numbers are not told apart: store "
            "whole numbers as integers (pandas: 'Int64', which may lack some) or text; or declare "
            "that they are numbers (unit_type='number', or type = \"number\" under [unit]): those "
            "from 2^53 on, or 2^24 in float32, then name nobody."
        )


def never_raises(default: Any) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Decorates a function of a cell, which may raise anything: an error would tell of the cell."""

    def decorated(function: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(function)
        def guarded(cell: Any, *more: Any) -> T:
            try:
                return function(cell, *more)
            except Exception:  # a cell may be anything
                return default

        return guarded

    return decorated


@never_raises("")
def unit_name(cell: Any, unit_type: str | None = None) -> str:
    """Returns the name that a cell gives to a unit, as text; "" if it is none.

    Two names for one person would protect each half by itself; one name for two persons would
    protect neither whole. So a cell that the two types read as different names, such as ``007``,
    is none until the type is declared. Only ``7.0``, as pandas writes 7 where another is missing,
    is 7.

    ``unit_type`` is the declared one: ``"number"``, ``"text"`` or None.
    """
    # Most names: digits that are alike as a number and as text.
    if isinstance(cell, str) and cell.isascii() and cell.isdecimal() and cell[0] != "0":
        return cell if len(cell) <= _MOST_DIGITS or unit_type == "text" else ""
    if isinstance(cell, bytes):
        cell = cell.decode("utf-8", "surrogateescape")  # distinct bytes are distinct people
    if isinstance(cell, np.datetime64):
        cell = "" if np.isnat(cell) else str(cell)
    if isinstance(cell, str):
        # The same name typed on two systems may differ in its code points.
        text = unicodedata.normalize("NFC", cell).strip()
        if text.lower() in MISSING:
            return ""
        if unit_type == "text" or (unit_type is None and not _NUMERIC.fullmatch(text)):
            return text
        pattern = _PLAIN if unit_type is None else _WRITTEN
        if len(text) > _MOST_DIGITS or not pattern.fullmatch(text):
            return ""
        cell = int(text) if text.lstrip("+-").isdecimal() else float(text)
    if isinstance(cell, float | np.floating) and unit_type != "text":
        kind = type(cell) if isinstance(cell, np.floating) else float
        largest = 2.0 ** (np.finfo(kind).nmant + 1)  # from there on, other integers round to it
        cell = int(cell) if abs(cell) < largest and cell == np.floor(cell) else None
    # Its size first: int() would write out thousands of digits.
    if isinstance(cell, decimal.Decimal) and cell.is_finite() and cell.adjusted() < _MOST_DIGITS:
        cell = int(cell) if cell == cell.to_integral_value() else None
    # True and a duration are integers too, and name nobody.
    if not isinstance(cell, int | np.integer) or isinstance(cell, bool | np.timedelta64):
        return ""
    return str(int(cell)) if abs(int(cell)) < 10**_MOST_DIGITS else ""


def check_unmasked(name: str, column: Any) -> None:
    """Raises for a masked array of NumPy: what is hidden in it would count."""
    if isinstance(column, np.ma.MaskedArray):
        raise ValueError(
            f"{name} is a masked array, whose mask would be lost: pass floats with NaN in its "
            "place, array.astype(float).filled(numpy.nan)."
        )


def cells_of(column: Any) -> np.ndarray:
    """Returns the cells (n,) of a column in memory.

    Privacy: raw data. The dtype depends on that of the column alone. What NumPy would choose for a
      list, or for a nullable column, can depend on a single cell.
    """
    check_unmasked("a column", column)
    # Of pyarrow, whose own conversion to NumPy depends on what its cells are.
    if hasattr(column, "to_pylist"):
        return arrow_cells(column)
    # As two columns of one name have them.
    if (axes := getattr(column, "ndim", 1)) != 1:
        raise ValueError(f"a column must be (n,), one cell for each record, got {axes} axes.")
    stated = hasattr(column, "dtype")
    if stated and (isinstance(column.dtype, np.dtype) or kind_of(column) == Kind.DATES):
        return np.asarray(column)
    return np.fromiter(column, dtype=object)


def arrow_cells(column: Any) -> np.ndarray:
    """Returns the cells (n,) of a pyarrow column: floats and dates by their dtype, else objects.

    Privacy: raw data. Text that is not UTF-8 raises no error, which would depend on a record.
    """
    from pyarrow import types

    kind = column.type
    if types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if types.is_floating(kind) or types.is_date(kind) or types.is_timestamp(kind):
        return np.asarray(column)
    # With a missing cell NumPy would take floats, which round large integers.
    if types.is_integer(kind) and not column.null_count:
        return np.asarray(column)
    try:
        values = column.to_pylist()
    except UnicodeDecodeError:
        import pyarrow

        large = types.is_large_string(kind)
        held = column.cast(pyarrow.large_binary() if large else pyarrow.binary()).to_pylist()
        values = [
            None if cell is None else cell.decode("utf-8", "surrogateescape") for cell in held
        ]
    return np.fromiter(values, object, len(values))


def is_no_number(cell: Any) -> bool:
    """Whether a cell is none that NumPy would make a number of: masked, complex, date, array."""
    if type(cell) in _OF_PYTHON:
        return False
    kind = getattr(getattr(cell, "dtype", None), "kind", "")
    none = isinstance(cell, (np.ma.MaskedArray, complex)) or getattr(cell, "ndim", 0) > 0
    # NumPy would make numbers of dates and durations, and drop an imaginary part.
    return none or kind in tuple("mMcV")


@never_raises(np.nan)
def to_number(cell: Any) -> float:
    """Returns a cell as a float, NaN if it is not a number."""
    return np.nan if is_no_number(cell) else float(cell)


def to_numbers(cells: np.ndarray, number: Callable[[Any], float] = to_number) -> np.ndarray:
    """Returns cells (n,) as float64, NaN for each that is not a finite ``number``."""
    if cells.dtype.kind in "biuf":
        with np.errstate(all="ignore"):
            # A warning of an overflow would tell that such a record is there.
            values = cells.astype(np.float64)
    else:
        values = of_each(number, cells)
    values[~np.isfinite(values)] = np.nan
    return values


def to_days(cells: np.ndarray) -> np.ndarray:
    """Returns dates (n,) as days since 1970-01-01 in float64, NaN for each that is no date."""
    return _days_of(cells) if cells.dtype.kind == "M" else of_each(to_day, cells)


class _Remembered(dict):
    def __init__(self, function: Callable[[Any], Any]):
        self._function = function

    def __missing__(self, cell: Any) -> Any:
        self[cell] = value = self._function(cell)
        return value


def of_each(function: Callable[[Any], Any], cells: Any, dtype: Any = np.float64) -> np.ndarray:
    """Returns a function of each cell (n,), which is called once for each text that occurs."""
    remembered = _Remembered(function)
    if isinstance(cells, np.ndarray) and cells.dtype == object:
        cells = cells.tolist()  # the same objects, which a list gives sooner
    # Strings alone are remembered: other cells may be unhashable, and 1 == True.
    if {*map(type, cells)} <= {str}:
        values: Any = map(remembered.__getitem__, cells)
    else:
        values = (remembered[c] if isinstance(c, str) else function(c) for c in cells)
    return np.fromiter(values, dtype, len(cells))


@never_raises(np.nan)
def to_day(cell: Any) -> float:
    """Returns a date as days since 1970-01-01, NaN if it is none; one with a zone is in UTC."""
    if isinstance(cell, np.datetime64):
        return float(_days_of(np.array([cell]))[0])
    if isinstance(cell, str):
        text = cell.strip()
        of_day = len(text) <= len("2015-01-31")  # which takes less time without a clock
        cell = (datetime.date if of_day else datetime.datetime).fromisoformat(text)
    # A datetime is a date too, whose time the other order would drop.
    if not isinstance(cell, datetime.datetime):
        days = cell.toordinal() - EPOCH.toordinal() if isinstance(cell, datetime.date) else None
        return np.nan if days is None else float(days)
    if cell.tzinfo is not None:
        cell = cell.astimezone(datetime.UTC).replace(tzinfo=None)
    return float((cell - EPOCH) / _DAY)


def _days_of(cells: np.ndarray) -> np.ndarray:
    # NaT is the least integer, which the arithmetic below would take for a date.
    missing = np.isnat(cells)
    unit, count = np.datetime_data(cells.dtype)
    # A view reads bytes as they lie.
    steps = cells.astype(cells.dtype.newbyteorder("=")).view(np.int64)
    if unit in ("Y", "M"):
        # Months differ in length, and a cast of those far away would overflow.
        months = np.clip(steps, -_FARTHEST, _FARTHEST) * count * (12 if unit == "Y" else 1)
        months = np.clip(months, -_FARTHEST, _FARTHEST).view("datetime64[M]")
        steps, unit, count = months.astype("datetime64[D]").view(np.int64), "D", 1
    per_day = _PER_DAY.get(unit, np.nan)
    days = steps * (count / per_day)
    if count == 1 and 1 < per_day < 2**62:  # without rounding of whole days
        days = steps // per_day + (steps % per_day) / per_day
    return np.where(missing, np.nan, days)
