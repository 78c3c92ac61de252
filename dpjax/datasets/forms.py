"""How numbers and dates are written in cells of text: what a schema declares of that."""

import datetime
import functools
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dpjax.datasets.cells import MISSING, never_raises, to_day, to_number

# Programs write a thin space, or one that breaks no line, for a space, and ’ for '.
_ALIKE = {" ": " \u00a0\u2009\u202f", "'": "'’"}  # noqa: RUF001
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# Those of `strptime` that are the same in every locale, but for English names of months.
_DIRECTIVES = {
    "d": "(?P<d>[0-9]{1,2})",
    "m": "(?P<m>[0-9]{1,2})",
    "b": "(?P<b>[A-Za-z]{3})",
    "Y": "(?P<Y>[0-9]{4})",
    "y": "(?P<y>[0-9]{2})",
    "H": "(?P<H>[0-9]{1,2})",
    "M": "(?P<M>[0-9]{1,2})",
    "S": "(?P<S>[0-9]{1,2})",
    "%": "%",
}
# As files hold them, for readers that compare letter by letter.
NO_NUMBERS = sorted({form(w) for w in MISSING for form in (str, str.upper, str.title)} | {"NaN"})


class NumberForm(NamedTuple):
    """How numbers are written.

    Args:
      decimal: the mark before decimals; of several characters each is one. "" is a point, or
        either mark in a file that has semicolons between cells.
      thousands: what may stand between groups of three digits.
      suffix: what may stand behind the number, such as ``kg``.
    """

    decimal: str = ""
    thousands: str = ""
    suffix: str = ""

    @property
    def declared(self) -> dict[str, str]:
        """What a schema has to declare of it."""
        return {key: text for key, text in self._asdict().items() if text != getattr(PLAIN, key)}

    @property
    def pattern(self) -> str:
        """Matches a number in this form, for ``re`` and for pyarrow."""
        digits, mark = "[0-9]+", f"[{re.escape(self.decimal or '.')}]"
        if self.thousands:
            # Elsewhere than before three digits the mark may be a decimal one.
            between = f"[{re.escape(_ALIKE.get(self.thousands, self.thousands))}]"
            digits = f"(?:[0-9]{{1,3}}(?:{between}[0-9]{{3}})+|[0-9]+)"
        number = rf"[-+]?(?:{digits}(?:{mark}[0-9]*)?|{mark}[0-9]+)(?:[eE][-+]?[0-9]+)?"
        return rf"^\s*{number}\s*(?:{re.escape(self.suffix)})?\s*$"

    @property
    def replaced(self) -> list[tuple[str, str]]:
        """What to replace in such a text, in order, for it to be one that Python reads."""
        removed = [self.suffix, *_ALIKE.get(self.thousands, self.thousands)]
        pairs = [(text, "") for text in removed if text]
        return pairs + [(mark, ".") for mark in self.decimal if mark != "."]

    def is_plain(self, mark: str) -> bool:
        """Whether numbers with this decimal mark, and no others, are in this form."""
        return mark in (self.decimal or ".") and not (self.thousands or self.suffix)

    def between(self, separator: str) -> "NumberForm":
        """Returns the form in a file with such a separator."""
        either = separator == ";" and not self.decimal and self.thousands != ","
        return self._replace(decimal=",.") if either else self

    def number(self, cell: Any) -> float:
        """Returns a cell as a float, NaN if it is text in another form, or no number."""
        if self == PLAIN or not isinstance(cell, str):
            return to_number(cell)
        if not _compiled(self).fullmatch(cell):
            return np.nan
        for written, read in self.replaced:
            cell = cell.replace(written, read)
        return to_number(cell)


PLAIN = NumberForm()


@functools.cache
def _compiled(form: NumberForm) -> re.Pattern[str]:
    return re.compile(form.pattern)


def number_form(said: str, declared: Mapping[str, Any], usual: NumberForm = PLAIN) -> NumberForm:
    """Returns the form that a part of a schema declares, ``said`` in errors; else the usual one."""
    given = {key: declared[key] for key in NumberForm._fields if key in declared}
    for key, value in given.items():
        if not isinstance(value, str) or (key == "decimal" and value not in (".", ",")):
            wanted = "'.' or ','" if key == "decimal" else "text"
            raise ValueError(f"{key} of {said} must be {wanted}, got {value!r}.")
    form = usual._replace(**given)._replace(suffix=given.get("suffix", usual.suffix).strip())
    mark = form.decimal or "."
    if form.thousands in (mark, "+", "-") or not re.fullmatch(r"|\W", form.thousands):
        raise ValueError(
            f"thousands of {said} must be one mark, as '.' that is not decimal, "
            f"{mark!r} (or '' for none), got {form.thousands!r}."
        )
    if any(mark.isdecimal() for mark in form.suffix):
        raise ValueError(f"suffix of {said} must hold no digits, got {form.suffix!r}.")
    return form


class DateForm(NamedTuple):
    """How dates are written, by the directives of ``strptime``; "" is ISO 8601."""

    format: str = ""

    @property
    def declared(self) -> dict[str, str]:
        """What a schema has to declare of it."""
        return {"format": self.format} if self.format else {}

    def number(self, cell: Any) -> float:
        """Returns a date as days since 1970-01-01; NaN if it is text in another form, or none."""
        return _day(cell, self.format) if self.format and isinstance(cell, str) else to_day(cell)


Form = NumberForm | DateForm


def date_form(said: str, declared: Mapping[str, Any]) -> DateForm:
    """Returns the form that a part of a schema declares, ``said`` in errors."""
    form = declared.get("format", "%Y-%m-%d")
    parts = re.findall("%(.)", form) if isinstance(form, str) else []
    known = len({*parts}) == len(parts) and {*parts} <= {*_DIRECTIVES}
    if not known or any(len({*parts} & {*one}) != 1 for one in ("d", "mb", "Yy")):
        raise ValueError(
            f"format of {said} must say how dates are written, by %d, %m (or %b for Jan) and %Y "
            f"(or %y for two digits), and perhaps %H, %M and %S, as in '%d.%m.%Y'; got {form!r}."
        )
    return DateForm(declared.get("format", ""))


@never_raises(np.nan)
def _day(text: str, form: str) -> float:
    match = _dates(form).fullmatch(text.strip())
    assert match  # else there is no day
    held = match.groupdict()
    # As `strptime` reads two digits: from 1969 to 2068.
    year = int(held.get("Y") or (int(held["y"]) + 31) % 100 + 1969)
    month = int(held["m"]) if "m" in held else _MONTHS.index(held["b"].lower()) + 1
    hour, minute, second = (int(held.get(part) or 0) for part in "HMS")
    return to_day(datetime.datetime(year, month, int(held["d"]), hour, minute, second))


@functools.cache
def _dates(form: str) -> re.Pattern[str]:
    parts = enumerate(re.split("%(.)", form))
    # Every second part is a directive.
    return re.compile("".join(_DIRECTIVES[p] if i % 2 else re.escape(p) for i, p in parts))


def separator_of(where: str, mark: Any) -> str | None:
    """Returns what a schema declares to stand between cells."""
    if mark is None or (isinstance(mark, str) and len(mark) == 1 and mark not in '"\r\n'):
        return mark
    raise ValueError(
        f"separator of {where} must be the one character between cells, such as ';' or '\\t', got "
        f"{mark!r}."
    )
