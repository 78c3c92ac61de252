"""NOT PRIVATE: how cells of text are written, guessed for the owner of a table."""

import collections
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dpjax.datasets.cells import MISSING, of_each
from dpjax.datasets.forms import PLAIN, DateForm, Form, NumberForm
from dpjax.datasets.schema import quoted

TRIED = 1_000  # cells of a column that are looked at
NEARLY = 0.9  # of them are written as is guessed
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


def texts(cells: np.ndarray) -> list[str]:
    """Returns the first texts that are not missing."""
    held = (cell.strip() for cell in cells if isinstance(cell, str))
    return list(itertools.islice((t for t in held if t.lower() not in MISSING), TRIED))


def number_forms(held: Sequence[str]) -> list[NumberForm]:
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
    most = max([1, NEARLY * len(held), *read.values()])
    return [] if _fits(held, PLAIN.number) else [form for form in forms if read[form] >= most]


def date_forms(held: Sequence[str]) -> dict[str, str]:
    """Returns the forms, and their names, in which nearly all texts are dates."""
    forms = {
        form + clock: named + clocked
        for clock, clocked in _CLOCK.items()
        for form, named in _DATES.items()
    }
    return {form: named for form, named in forms.items() if _fits(held, DateForm(form).number)}


def exact_dates(name: str, held: Sequence[str]) -> str:
    """NOT PRIVATE: what to do where most cells that are no dates are dates of another form."""
    forms = date_forms(held)
    if not forms:
        return ""
    keys = " or ".join(f"format = {quoted(form)}" for form in forms)
    return (
        f"the column {name!r} holds dates written as {' or '.join(forms.values())}, such as "
        f"{held[0]!r}, and such a record contributes nothing: declare {keys}"
    )


def exact_unread(name: str, form: Form, cells: np.ndarray) -> tuple[str, str]:
    """NOT PRIVATE: returns a problem and a remark on cells that are not written as declared."""
    held = texts(cells[~np.isfinite(of_each(form.number, cells))])
    dates = exact_dates(name, held)
    if isinstance(form, NumberForm) and (forms := number_forms(held)):
        keys = " or ".join(", ".join(toml(each)) for each in forms)
        return f"the column {name!r} holds numbers written as {held[0]!r}: declare {keys}.", ""
    if dates:
        more = ", and bounds that are dates" if isinstance(form, NumberForm) else ""
        return f"{dates}{more}.", ""
    counts = collections.Counter(held).most_common(4)
    shown = ", ".join(f"{text!r} {count} times" for text, count in counts)
    return "", shown and f"cells of {name!r} that are not written as is declared: {shown}"


def toml(form: NumberForm) -> list[str]:
    """Returns what a schema has to declare of a form, as lines of TOML."""
    return [f"{key} = {quoted(text)}" for key, text in form.declared.items()]


def _fits(held: Sequence[str], parses: Callable[[Any], float]) -> bool:
    return bool(held) and np.isfinite([*map(parses, held)]).sum() >= NEARLY * len(held)
