"""A declared schema: what each column of a table is, known without a look at its records."""

import dataclasses
import datetime
import json
import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpjax import _validate
from dpjax.datasets import cells, encoders, labels
from dpjax.datasets.dataset import Preprocessing
from dpjax.datasets.forms import PLAIN, NumberForm, date_form, number_form, separator_of
from dpjax.datasets.source import text_of

ROW_NUMBERS = ("", "Unnamed: 0", "__index_level_0__")
"""Names of the column that pandas or R writes beside those of a table."""


@dataclasses.dataclass(frozen=True)
class Schema:
    """The declared, hence public, meaning of each column of a table. ``Schema.read`` makes one.

    ``load`` encodes a table by it, and each record by itself. With classes as the label, numbers
    and ordered levels become features from 0 to 1, a level an indicator, and a row is divided by
    its own norm: the direction of a row decides which class it is in. With a number as the label,
    numbers and ordered levels become features from -1 to 1, and all rows are divided by one
    constant, the square root of the number of columns that are features, plus 1 with an intercept:
    then no row has a norm above 1 and a linear model is linear in the columns, which it would not
    be if rows were divided by norms of their own. With classes ``rows="constant"`` does the same,
    so that coefficients are log-odds per unit of a column; inference always does.

    Args:
      label: the label's column, and its classes or bounds.
      columns: all other columns, but for the unit's.
      unit: the column that says whose a record is, or None if each record is protected by itself.
      max_records: the largest number of records that a unit contributes.
      intercept: whether a feature that is 1 is appended. By default it is: where a level is 0 and
        where a range begins is a convention, and without it a model has to predict 0 there.
      unit_type: how the unit's cells are compared, see ``group``: ``"number"``, ``"text"`` or None.
      quoted_line_breaks: of a CSV, whether cells in quotes may hold line breaks. A record is then
        what RFC 4180 parses as one; else it is a line.
      separator: what stands between the cells of a CSV; by default the header tells.
      rows: ``"own_norm"`` or ``"constant"``, what divides rows; None for the default by the label.
      max_norm: norm of a row, features from -1 to 1 and an intercept of 1, to which longer ones are
        scaled down. The constant is then the smaller of both.
      private: columns declared with ``bounds = "private"``, whose bounds are their ``limits`` until
        ``dpjax.statistics.PrivateBounds`` finds them.

    Privacy: must be written from public knowledge, not from the records.

    >>> schema = Schema.read({
    ...     "label": {"column": "income", "classes": ["<=50K", ">50K"]},
    ...     "columns": {"age": {"bounds": [17, 90]}, "sex": {"levels": ["F", "M"], "other": True}},
    ... })
    >>> schema.features
    ('age', 'sex=F', 'sex=M', 'sex=other', 'intercept')
    """

    label: encoders.AnyLabel
    columns: tuple[encoders.Column, ...]
    unit: str | None = None
    max_records: int | None = None
    intercept: bool = True
    unit_type: str | None = None
    quoted_line_breaks: bool | None = None
    separator: str | None = None
    rows: str | None = None
    max_norm: float | None = None
    private: tuple[str, ...] = ()

    @classmethod
    def read(cls, declared: "Schema | str | os.PathLike[str] | Mapping[str, Any]") -> "Schema":
        """Returns a schema from a TOML file, or a mapping like one.

        Args:
          declared: ``[label]`` with ``column``, and ``classes`` or ``bounds``; for each other
            column ``[columns.NAME]`` with one of ``bounds`` (numbers or dates, which may have
            ``missing``), ``levels`` (which may have ``other``, and a ``reference`` that gets no
            feature), ``order`` and ``ignore = true``, where ``NAME`` may be a pattern of other
            columns, such as ``"c*"``; ``[unit]`` with ``column``, ``max_records`` and perhaps
            ``type`` where a person has several records; ``intercept``; ``rows`` and ``max_norm``;
            ``quoted_line_breaks``, required for a CSV with a column that may hold any text, by
            ``other`` or ``ignore``; and ``separator``. A column of dates may have their ``format``,
            such as ``"%d.%m.%Y"``, and one of numbers ``decimal``, ``thousands`` and ``suffix``,
            which ``[numbers]`` declares for all columns that do not. A schema is returned as it is.

        Raises:
          FileNotFoundError: if there is no such file.
          ValueError: naming what is not declared, twice, or not valid, and what to declare.

        >>> Schema.read({"label": {"column": "y", "bounds": [0, 1]}, "columns": {"x": {}}})
        Traceback (most recent call last):
        ...
        ValueError: columns.x of the schema declares nothing: choose one of bounds, levels, ...
        """
        if isinstance(declared, Schema):
            return declared
        where, content = "the schema", declared
        if isinstance(declared, str | os.PathLike):
            where, content = repr(str(declared)), _parse(declared)
        if not isinstance(content, Mapping):
            got = _validate.shown(content)
            raise ValueError(f"schema must be the path of a TOML file or a mapping, got {got}.")
        return _schema(where, content)

    @property
    def preprocessing(self) -> Preprocessing:
        """The mapping of features and labels that is declared."""
        # Ignored columns have no features, so that tables to predict need not have them.
        encoders = tuple(column for column in self.columns if column.features)
        label, constant = self.label, self.rows == "constant" or self.max_norm is not None
        # What a report says of the columns that are no features.
        names = {"label": label.column, "unit": self.unit, "max_records": self.max_records}
        ignored = tuple(column.name for column in self.columns if not column.features)
        ends = label.classes, label.bounds, None, constant, self.max_norm
        return Preprocessing(encoders, self.intercept, *ends, **names, ignored=ignored)

    def for_inference(self) -> "Schema":
        """Returns the schema by which coefficients can be read and told apart.

        A constant divides all rows, and each column of levels has a reference, by default its
        first: all its indicators would add up to the intercept, or to those of another column.
        """
        # Without an intercept one column may keep all of its levels.
        complete, columns = self.intercept, []
        for column in self.columns:
            if isinstance(column, encoders.Categorical):
                named = column.reference is not None or not complete
                first = column.reference if named else column.levels[0]
                column, complete = dataclasses.replace(column, reference=first), True
            columns.append(column)
        # Numbers without bounds have no largest norm: of published data rows stay as they are.
        unscaled = any(isinstance(column, encoders.Unscaled) for column in columns)
        rows = self.rows if unscaled else "constant"
        return dataclasses.replace(self, columns=tuple(columns), rows=rows)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features that a row has, the intercept's included."""
        return self.preprocessing.features

    @property
    def patterns(self) -> tuple[str, ...]:
        """Names that are patterns, such as ``c*``, if no column is called so."""
        return tuple(column.name for column in self.columns if set("*?[") & set(column.name))


def check_features(where: str, names: Sequence[str]) -> None:
    """Raises if two features have one name."""
    # A column may be called as an indicator or the intercept is, such as `sex=F`.
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(
            f"{where} gives two features the name {twice[0]!r}: rename a column or level."
        )


def key_of(name: str) -> str:
    """Returns a column's name as a key of TOML."""
    # What TOML takes without quotes.
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else quoted(name)


def quoted(text: str) -> str:
    """Returns text as a string of TOML."""
    # A string of JSON is one of TOML, but for DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def column_of(
    name: str, declaration: Mapping[str, Any], where: str = "the schema", usual: NumberForm = PLAIN
) -> encoders.Column:
    """Returns the column declared under ``[columns.NAME]``, or by ``Column.declaration``."""
    said = f"columns.{key_of(name)} of {where}"
    # TOML reads [columns.a.b] as a table b within a, not as a column named a.b.
    if inner := [key for key, value in declaration.items() if isinstance(value, Mapping)]:
        quoted = key_of(f"{name}.{inner[0]}")
        raise ValueError(
            f"{said} holds a table {inner[0]!r}: a name with a point needs quotes, as in "
            f"[columns.{quoted}]."
        )
    kinds = [key for key in _KINDS if key in declaration]
    if len(kinds) != 1:
        declared = " and ".join(kinds or map(repr, declaration)) or "nothing"
        raise ValueError(f"{said} declares {declared}: choose one of {', '.join(_KINDS)}.")
    (key,) = kinds
    if key == "bounds":
        column = _ranged(said, name, declaration, usual)
    elif key == "levels":
        column = _leveled(said, name, declaration)
    elif key == "order":
        levels = labels.check_labels(f"order of {said}", declaration[key], 2)
        column = encoders.Ordinal(name, levels)
    elif declaration[key] is True:
        column = encoders.Ignored(name)
    else:
        # ignore = false leaves open how the column is to be used.
        raise ValueError(f"ignore of {said} must be true; leave it out to use the column.")
    # Last, since the kind of column decides which options are known.
    _check_keys(said, declaration, (key, *column.options))
    return column


def _ranged(said: str, name: str, part: Mapping[str, Any], usual: NumberForm) -> encoders.Numeric:
    low, high, of_dates = _bounds(f"bounds of {said}", part["bounds"])
    if (missing := part.get("missing")) is not None:
        read = _day if of_dates else _validate.finite
        missing = read(f"missing of {said}", missing)
        # It is filled in before the clamping, which would move it to an end in silence.
        if not low <= missing <= high:
            raise ValueError(f"missing of {said} must lie within its bounds.")
    if of_dates:
        return encoders.Dates(name, low, high, missing, date_form(said, part))
    return encoders.Numeric(name, low, high, missing, number_form(said, part, usual))


def _is_private(part: Mapping[str, Any]) -> bool:
    return isinstance(part.get("bounds"), str) and part["bounds"] == "private"


def _outer(name: str, part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a declaration with its limits in the place of private bounds."""
    if not _is_private(part):
        return part
    if "limits" not in part:
        raise ValueError(
            f'bounds = "private" of columns.{key_of(name)} needs public outer limits, within which '
            "bounds are found: declare limits = [low, high], from what the column can hold at all."
        )
    return {key: value for key, value in part.items() if key != "limits"} | {
        "bounds": part["limits"]
    }


def _leveled(said: str, name: str, declaration: Mapping[str, Any]) -> encoders.Categorical:
    levels = labels.check_labels(f"levels of {said}", declaration["levels"], 1)
    other = _validate.flag(f"other of {said}", declaration.get("other", False))
    reference = declaration.get("reference")
    if reference is not None and reference not in levels:
        raise ValueError(
            f"reference of {said} must be one of its levels, got {reference!r}: the others are "
            "compared with it."
        )
    return encoders.Categorical(name, levels, other, reference)


_PARTS = ("intercept", "quoted_line_breaks", "rows", "max_norm", "separator")
_PARTS += ("numbers", "label", "unit", "columns")
_KINDS = ("bounds", "levels", "order", "ignore")


def _bounds(said: str, pair: Any) -> tuple[float, float, bool]:
    # A string of two letters is a sequence of length 2.
    if isinstance(pair, str) or not isinstance(pair, Sequence | np.ndarray) or len(pair) != 2:
        raise ValueError(
            f"{said} must be two numbers or two dates, [low, high], got {_validate.shown(pair)}."
        )
    # TOML has dates of its own; JSON, and what a saved model declares, hold them as text.
    of_dates = [isinstance(end, datetime.date | np.datetime64 | str) for end in pair]
    if any(of_dates) != all(of_dates):
        raise ValueError(f"{said} must be two numbers or two dates, got one of each.")
    low, high = (_day(said, end) if all(of_dates) else _validate.finite(said, end) for end in pair)
    # Ends at those of float64 would be divided by infinity.
    if not (low < high and math.isfinite(high - low)):
        raise ValueError(f"{said} must be finite with low < high, got {list(map(str, pair))}.")
    return low, high, all(of_dates)


def _day(said: str, value: Any) -> float:
    day = cells.to_day(value)
    if math.isnan(day):
        raise ValueError(f"{said} must be a date such as 2015-01-31, got {value!r}.")
    return day


def _schema(where: str, content: Mapping[str, Any]) -> Schema:
    """Returns the schema that a TOML file or a mapping holds; errors call it ``where``."""
    _check_keys(where, content, _PARTS)
    label, unit, columns, numbers = (
        _table(f"{name} of {where}", content.get(name, {}), f", [{name}]")
        for name in ("label", "unit", "columns", "numbers")
    )
    _check_keys(f"numbers of {where}", numbers, NumberForm._fields)
    usual = number_form(f"numbers of {where}", numbers)
    columns = {
        # In a mapping of Python names may be numbers, as in a data frame without a header.
        str(name): _table(
            f"columns.{key_of(str(name))} of {where}", part, " such as {bounds = [0, 1]}"
        )
        for name, part in columns.items()
    }
    # Before any part is read: a template that is not filled in should say that, and all of it.
    named = {f"columns.{key_of(name)}": part for name, part in columns.items()}
    _check_filled(where, {"label": label, "unit": unit} | named)
    declared = _label(f"label of {where}", label, usual)
    unit_column = max_records = None
    if "unit" in content:
        unit_column, max_records = _unit(f"unit of {where}", unit)
    if (breaks := content.get("quoted_line_breaks")) is not None:
        _validate.flag(f"quoted_line_breaks of {where}", breaks)
    for role, column in (("label", declared.column), ("unit", unit_column)):
        if column in columns:
            raise ValueError(
                f"{where} declares {column!r} as the {role} and under [columns]: a "
                f"{role} is no feature, so remove [columns.{key_of(column)}]."
            )
    if unit_column == declared.column:
        raise ValueError(f"{where} declares {unit_column!r} as label and unit: choose one.")
    rows, most = content.get("rows"), content.get("max_norm")
    if most is not None:
        most = _validate.positive(f"max_norm of {where}", most)
    if rows is not None:
        # A norm of all rows, and a number as the label, go with a constant.
        own = ("own_norm",) * (most is None and declared.bounds is None)
        rows = _validate.choice(f"rows of {where}", rows, (*own, "constant"))
    schema = Schema(
        declared,
        tuple(column_of(name, _outer(name, part), where, usual) for name, part in columns.items()),
        unit_column,
        max_records,
        _validate.flag(f"intercept of {where}", content.get("intercept", True)),
        # Checked beside the stored column, by `check_names`.
        unit.get("type"),
        breaks,
        separator_of(where, content.get("separator")),
        rows,
        most,
        tuple(name for name, part in columns.items() if _is_private(part)),
    )
    check_features(where, schema.features)
    if not any(column.features for column in schema.columns):
        raise ValueError(f"{where} declares no feature: declare a column beside the label.")
    return schema


def _table(said: str, part: Any, example: str) -> Mapping[str, Any]:
    if not isinstance(part, Mapping):
        raise ValueError(f"{said} must be a table{example}, got {_validate.shown(part)}.")
    return part


def _check_filled(where: str, parts: Mapping[str, Mapping[str, Any]]) -> None:
    # A template leaves empty lists and an empty column name to its reader.
    empty = [
        f"{name}.{key}"
        for name, part in parts.items()
        for key, value in part.items()
        if (isinstance(value, str) and not value.strip() and key == "column")
        or (isinstance(value, Sequence) and not isinstance(value, str) and not len(value))
    ]
    if empty:
        raise ValueError(
            f"{where} is still to be filled in, from public knowledge and not from the records: "
            f"{', '.join(empty)}. What does not apply is removed."
        )


def _label(said: str, part: Mapping[str, Any], usual: NumberForm) -> encoders.AnyLabel:
    written = NumberForm._fields if "bounds" in part else ()
    column = _column(said, part, ("column", "classes", "bounds", *written))
    if ("classes" in part) == ("bounds" in part):
        raise ValueError(
            f'{said} must declare classes, such as ["no", "yes"], or the bounds of a number: '
            f"it declares {'both' if 'bounds' in part else 'neither'}."
        )
    if "classes" in part:
        classes = labels.check_labels(f"classes of the {said}", part["classes"], 2)
        return encoders.ClassLabel(column, classes)
    low, high, of_dates = _bounds(f"bounds of the {said}", part["bounds"])
    if of_dates:
        raise ValueError(f"bounds of the {said} must be numbers: a date cannot be a label.")
    return encoders.NumberLabel(column, low, high, number_form(said, part, usual))


def _unit(said: str, part: Mapping[str, Any]) -> tuple[str, int]:
    column = _column(said, part, ("column", "max_records", "type"))
    if "max_records" not in part:
        raise ValueError(
            f"max_records of the {said} must say how many records of one {column} count at "
            "most: declare a number without looking at the data."
        )
    return column, _validate.positive_int(f"max_records of the {said}", part["max_records"])


def _column(said: str, part: Mapping[str, Any], known: Sequence[str]) -> str:
    _check_keys(said, part, known)
    column = part.get("column")
    if not isinstance(column, str):
        raise ValueError(f"{said} must name its column, got {_validate.shown(column)}.")
    return column


def _check_keys(said: str, part: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in part:
        if key in known:
            continue
        near = _validate.nearest(str(key), {name: name for name in known})
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(f"{said} has the unknown key {key!r}{hint} Known are {', '.join(known)}.")


def _parse(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    try:
        return tomllib.loads(text_of(path, "schema"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"the schema {str(path)!r} is not valid TOML: {error}.") from None
