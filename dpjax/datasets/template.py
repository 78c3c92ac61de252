"""``template``: a schema to fill in, with the names of a table's columns and how each is stored."""

import collections
import itertools
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from dpjax import _validate
from dpjax.datasets.cells import MISSING, Kind, of_each, to_days, to_numbers
from dpjax.datasets.delimited import CsvFile
from dpjax.datasets.forms import PLAIN, DateForm, Form, NumberForm
from dpjax.datasets.schema import ROW_NUMBERS, key_of, quoted
from dpjax.datasets.source import Source
from dpjax.datasets.sources import is_table_path, open_source

_HEAD = """\
# What each column of {name} is. Fill in every [] and "" from public knowledge, not from the
# records, and remove what does not apply. A column is one of:
#   bounds = [0, 120]            a number, or a date: clamped to these bounds and scaled. A record
#                                with an empty cell contributes nothing, unless missing = 40, say
#   levels = ["red", "green"]    one of several levels: an indicator for each. A record with any
#                                other cell contributes nothing, unless other = true, which is one
#                                more level: for --inference only where it is common
#   order = ["low", "high"]      levels in their order
#   ignore = true                not used

intercept = true  # a feature that is 1 in every record
quoted_line_breaks = {breaks}  # in a CSV; true where cells in quotes hold line breaks, as notes may
"""
_LABEL = """
[label]
column = {column}  # {said}
classes = []  # of two the first is -1, such as ["no", "yes"]; for a number: bounds = [0, 100]

# [unit]  # protects all records of a person together
# column = "person"  # says whose a record is; remove its part below
# max_records = 10  # of one person; further ones are left out
# type = "number"  # 7, 7.0 and 007 are one person; "text" compares as it is written
"""
_DECLARE = {
    Kind.NUMBERS: "bounds = []",
    Kind.BOOLEANS: "levels = [false, true]",
    Kind.DATES: "bounds = []  # such as [2015-01-01, 2025-12-31]",
    Kind.WORDS: "levels = []\nother = true",
    Kind.OTHER: "ignore = true  # a schema encodes numbers, words and dates",
}
_ROW_NUMBERS = "ignore = true  # row numbers, as pandas or R writes them"
_TRIED = 1_000  # cells of a column that are looked at
_NEARLY = 0.9  # of them are written as is guessed
_DATES = {
    "%d.%m.%Y": "day.month.year",
    "%d/%m/%Y": "day/month/year",
    "%m/%d/%Y": "month/day/year",
    "%Y/%m/%d": "year/month/day",
    "%d-%m-%Y": "day-month-year",
    "%m-%d-%Y": "month-day-year",
    "%d %b %Y": "day name-of-month year",
    "%d-%b-%Y": "day-name-of-month-year",
    "%b %d, %Y": "name-of-month day, year",
    "%d.%m.%y": "day.month.year of two digits",
}
_CLOCK = {"": "", " %H:%M": " and time", " %H:%M:%S": " and time"}
_MARKS = (("", ""), (",", ""), ("", ","), (",", "."), ("", "'"), (",", " "), ("", " "))
_BEHIND = re.compile(r".*\d\s*([^\d\s.,][^\d]*?)\s*")


def template(table: str | os.PathLike[str] | Any, label: str | None = None) -> str:
    """Returns a schema to fill in, as the text of a TOML file.

    Args:
      table: the path of a file that ``load`` reads, a data frame, or a mapping of columns.
      label: the label's column, if it is known.

    Returns:
      The text, which ``Schema.read`` refuses until it is filled in.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if it is no table, or has no such label.

    Privacy: names of columns and how each is stored, which are taken as public; no value, range or
      level of the data. Where that is not stated, as in a CSV, the majority of a column's cells
      decides what it is said to hold, and ``quoted_line_breaks`` is true where lines leave quotes
      open that later lines close. Both are NOT PRIVATE, for the owner of the data alone.

    >>> text = template({"age": np.array([30, 60]), "ill": ["no", "yes"]}, label="ill")
    >>> print(text[text.index("[label]"):])
    [label]
    column = "ill"  # words
    classes = []  # of two the first is -1, such as ["no", "yes"]; for a number: bounds = [0, 100]
    <BLANKLINE>
    # [unit]  # protects all records of a person together
    # column = "person"  # says whose a record is; remove its part below
    # max_records = 10  # of one person; further ones are left out
    # type = "number"  # 7, 7.0 and 007 are one person; "text" compares as it is written
    <BLANKLINE>
    [columns.age]  # numbers
    bounds = []
    <BLANKLINE>
    """
    # As RFC 4180 parses it; `_breaks_lines` compares that with one record a line.
    opened = open_source(table, quoted_line_breaks=True)
    source, label = opened.source, label or opened.label
    kinds, written = _kinds(source)
    column, said = '""', "what is to be predicted; remove its part below"
    if label is not None:
        column = quoted(_validate.choice("column for the label", label, source.names))
        said = "; ".join([kinds[label].value, *" ".join(written[label]).splitlines()])
    name = pathlib.Path(table).name if is_table_path(table) else "the table"
    # The name goes into a comment of TOML, which a line break in it would end.
    printable = "".join(letter if letter.isprintable() else "?" for letter in name)
    breaks = str(_breaks_lines(table, source)).lower()
    parts = [_HEAD.format(name=printable, breaks=breaks), _LABEL.format(column=column, said=said)]
    parts += [_column(each, kinds[each], written[each]) for each in source.names if each != label]
    return "".join(parts)


def _breaks_lines(table: Any, parsed: Source) -> bool:
    """Returns whether lines of a CSV leave quotes open that later lines close."""
    if not isinstance(parsed, CsvFile) or parsed.exact_faults()[0]:
        return False
    try:
        return bool(open_source(table).source.exact_faults()[0])
    except ValueError:  # the header is such a line
        return True


def _column(name: str, kind: Kind, written: Sequence[str]) -> str:
    declare = _ROW_NUMBERS if name in ROW_NUMBERS else "\n".join([_DECLARE[kind], *written])
    return f"\n[columns.{key_of(name)}]  # {kind.value}\n{declare}\n"


def _kinds(source: Source) -> tuple[dict[str, Kind], dict[str, list[str]]]:
    """Returns how each column is stored, and the keys that say how its cells are written."""
    kinds, written = dict(source.kinds), collections.defaultdict[str, list[str]](list)
    unstated = [name for name, kind in kinds.items() if kind in (Kind.MIXED, Kind.WORDS)]
    if not unstated:
        return kinds, written
    # Most cells decide, so that a few strange ones do not.
    numbers, dates, held = *np.zeros((2, len(unstated)), int), [list[str]() for _ in unstated]
    for block in source.blocks(unstated, dict.fromkeys(unstated, PLAIN)):
        numbers += [int(np.isfinite(to_numbers(cells)).sum()) for cells in block]
    # A second pass, since a column that is read as numbers has lost its text.
    for block in source.blocks(unstated):
        dates += [int(np.isfinite(to_days(cells)).sum()) for cells in block]
        held = held if any(held) else [_texts(cells) for cells in block]
    for place, name in enumerate(unstated):
        stated, kinds[name] = kinds[name], Kind.WORDS
        forms, days = _number_forms(held[place]), _date_forms(held[place])
        # Numbers win: 20150131 is a date of ISO 8601 too.
        if stated == Kind.MIXED and 2 * numbers[place] > source.size:
            kinds[name] = Kind.NUMBERS
        elif stated == Kind.MIXED and 2 * dates[place] > source.size:
            kinds[name] = Kind.DATES
        elif days:
            kinds[name], written[name] = Kind.DATES, _either(f"format = {quoted(f)}" for f in days)
        if forms and kinds[name] in (Kind.NUMBERS, Kind.WORDS):
            kinds[name], written[name] = Kind.NUMBERS, _either("\n".join(_toml(f)) for f in forms)
    return kinds, written


def _either(keys: Iterable[str]) -> list[str]:
    first, *others = keys
    return [first, *(f"# or {line}" for key in others for line in key.splitlines())]


def _texts(cells: np.ndarray) -> list[str]:
    """Returns the first texts that are not missing."""
    held = (cell.strip() for cell in cells if isinstance(cell, str))
    return list(itertools.islice((t for t in held if t.lower() not in MISSING), _TRIED))


def _number_forms(held: Sequence[str]) -> list[NumberForm]:
    """Returns the forms that read nearly all texts, and the most: two, where either is meant."""
    behind = collections.Counter(m[1] for text in held if (m := _BEHIND.fullmatch(text)))
    suffix = behind.most_common(1)[0][0] if behind else ""
    written = "\n".join(held)
    forms = [
        NumberForm(decimal, thousands, end)
        for end in dict.fromkeys(("", suffix))
        for decimal, thousands in _MARKS
        # What never occurs need not be declared.
        if decimal in written
        and (not thousands or re.search(rf"\d{re.escape(thousands)}\d{{3}}", written))
    ]
    read = {form: int(np.isfinite([*map(form.number, held)]).sum()) for form in forms}
    most = max([1, _NEARLY * len(held), *read.values()])
    return [] if _fits(held, PLAIN.number) else [form for form in forms if read[form] >= most]


def _date_forms(held: Sequence[str]) -> dict[str, str]:
    """Returns the forms, and their names, in which nearly all texts are dates."""
    forms = {f + clock: said + more for clock, more in _CLOCK.items() for f, said in _DATES.items()}
    return {form: named for form, named in forms.items() if _fits(held, DateForm(form).number)}


def exact_unread(name: str, form: Form, cells: np.ndarray) -> tuple[str, str]:
    """NOT PRIVATE: returns a problem and a remark on cells that are not written as declared."""
    held = _texts(cells[~np.isfinite(of_each(form.number, cells))])
    if isinstance(form, NumberForm) and (forms := _number_forms(held)):
        keys = " or ".join(", ".join(_toml(each)) for each in forms)
        return f"the column {name!r} holds numbers written as {held[0]!r}: declare {keys}.", ""
    if dates := _date_forms(held):
        keys = " or ".join(f"format = {quoted(each)}" for each in dates)
        more = ", and bounds that are dates" if isinstance(form, NumberForm) else ""
        return (
            f"the column {name!r} holds dates written as {' or '.join(dates.values())}, such as "
            f"{held[0]!r}, and such a record contributes nothing: declare {keys}{more}."
        ), ""
    counts = collections.Counter(held).most_common(4)
    shown = ", ".join(f"{text!r} {count} times" for text, count in counts)
    return "", shown and f"cells of {name!r} that are not written as is declared: {shown}"


def _toml(form: NumberForm) -> list[str]:
    """Returns what a schema has to declare of a form, as lines of TOML."""
    return [f"{key} = {quoted(text)}" for key, text in form.declared.items()]


def _fits(held: Sequence[str], parses: Callable[[Any], float]) -> bool:
    return bool(held) and np.isfinite([*map(parses, held)]).sum() >= _NEARLY * len(held)
