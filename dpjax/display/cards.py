"""How objects print: three lines of text for a REPL and a small table in HTML for a notebook."""

from collections.abc import Callable
from html import escape
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

_WIDTH = 100
# Inline, because a notebook that is not trusted keeps no style sheet; no colour of a background or
# of text, because the notebook may be light or dark.
_BOX = (
    "display: inline-block; max-width: 60em; padding: 0.5em 0.8em; "
    "border: 1px solid #8888; border-radius: 4px"
)
_CELL = "text-align: left; vertical-align: top; padding: 0.1em 1.2em 0.1em 0"
_NAME = f"{_CELL}; font-weight: normal; white-space: nowrap; opacity: 0.7"


# What is read off an object raises while other things stand in its fields: a debugger prints one
# that is half built, and ``in_axes`` of ``vmap`` is an algorithm with axes or None in its fields.
INCOMPLETE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class Card(NamedTuple):
    """What a person wants to see of an object.

    Args:
      title: one line.
      rows: names and values, the most important ones first; the text may lack the last ones.
      warning: a sentence that stands before the rows, or nothing.
    """

    title: str
    rows: tuple[tuple[str, str], ...]
    warning: str = ""


class HasCard:
    """Prints by its ``_card()``, which a subclass defines; frozen dataclasses too.

    Privacy: a card holds public and released values only; it never holds an array, a key, secret
      state or an exact value.
    """

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        # ``dataclass`` gives a repr of all fields to a class that does not define one itself.
        if "__repr__" not in vars(cls):
            cls.__repr__ = cls.__repr__

    def _card(self) -> Card:
        raise NotImplementedError

    def __repr__(self) -> str:
        return to_text(card_of(self))

    def _repr_html_(self) -> str:
        return to_html(card_of(self))


def card_of(value: Any) -> Card:
    """Returns the card of an object, or one that says that the object is half built."""
    try:
        return value._card()
    except INCOMPLETE:
        return Card(f"{type(value).__name__}, incomplete", ())


def to_text(card: Card) -> str:
    """Returns a card as three lines of 100 characters at most; what does not fit is left out."""
    head = [one_line(card.title)]
    if card.warning:
        head.append("  " + one_line(card.warning))
    # Title and warning are among the three lines.
    lines, room = [""], 3 - len(head)
    for name, value in card.rows:
        row = one_line(f"{name}: {value}")
        longer = f"{lines[-1]}; {row}" if lines[-1] else f"  {row}"
        if len(longer) > _WIDTH and lines[-1]:
            if len(lines) == room:
                # Half a row is worth its place, a name alone is not.
                if len(lines[-1]) < _WIDTH - 30:
                    lines[-1] = longer
                break
            lines.append("")
            longer = f"  {row}"
        lines[-1] = longer
    return "\n".join(map(_shortened, [*head, *filter(None, lines)]))


def to_html(card: Card) -> str:
    """Returns a card as a title, a warning in bold and a table of two columns, all escaped."""
    rows = "".join(
        f'<tr><th style="{_NAME}">{_escaped(name)}</th>'
        f'<td style="{_CELL}">{_escaped(value)}</td></tr>'
        for name, value in card.rows
    )
    return _box(card.title, card.warning, f"<table>{rows}</table>" if rows else "")


def text_to_html(title: str, text: str, warning: str = "") -> str:
    """Returns a box that holds ``text`` with its line breaks, all of it escaped."""
    style = "white-space: pre-wrap; margin: 0.4em 0 0 0; padding: 0; font-size: 0.9em"
    return _box(title, warning, f'<pre style="{style}">{escape(text)}</pre>')


def history_html(history: Any) -> str:
    """Returns the first and the last value of each quantity of a history; all of it released."""
    rows = []
    for name, values in history._asdict().items():
        show = number(values)
        if is_known(values) and np.ndim(values) == 1:
            held = np.asarray(values)[~np.isnan(values)]  # NaN stands after the last step
            show = " to ".join(f"{end:.4g}" for end in (*held[:1], *held[-1:]))
        rows.append((name, show))
    return to_html(Card("History of released values", tuple(rows)))


def number(value: Any, show: Callable[[Any], str] = str) -> str:
    """Returns a number in words; of a batch and of what JAX is tracing it is the shape."""
    shape = getattr(value, "shape", ())
    if isinstance(value, Tracer):
        return f"traced {tuple(shape)}" if shape else "traced"
    if shape:
        return f"batched {tuple(shape)}"
    known = _has_values(value) and not np.isnan(value)
    return show(value) if known else "unknown"


def is_known(tree: Any) -> bool:
    """Returns whether every leaf of ``tree`` has its values: none is traced, or a stand-in."""
    return all(map(_has_values, jax.tree.leaves(tree)))


def counted(count: int, singular: str) -> str:
    """Returns a count and its noun."""
    return f"{count:,} {singular}{'s' * (count != 1)}"


def ceil(value: float, digits: int = 4) -> str:
    """Returns a value in decimal, rounded up but for a part in 10^7, which float32 cannot tell."""
    text = f"{value:.{digits}g}"
    if float(text) < value - 1e-7 * abs(value):
        # The exponent as it is printed: a logarithm may round past a power of ten.
        unit = 10.0 ** (float(f"{value:e}".split("e")[1]) - digits + 1)
        text = f"{float(text) + unit:.{digits}g}"
    return text


def floor(value: float, digits: int = 4) -> str:
    """Returns ``value`` in decimal, rounded down as ``ceil`` rounds up."""
    text = ceil(-value, digits)
    return text[1:] if text.startswith("-") else "0" if text == "0" else f"-{text}"


def printable(words: str) -> str:
    """Returns words without what would change the rest of a terminal or a page, line by line."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in words)


def one_line(words: str) -> str:
    """Returns words in one line, so that no value begins a paragraph, a table or a heading."""
    # A model may come from anybody, and a name in it hold what changes a terminal.
    return " ".join(printable(words).split())


def _has_values(leaf: Any) -> bool:
    if isinstance(leaf, jax.Array):
        # An array that was donated has no values any more.
        return not isinstance(leaf, Tracer) and not leaf.is_deleted()
    return isinstance(leaf, int | float | np.number | np.bool_ | np.ndarray)


def _shortened(line: str) -> str:
    if len(line) <= _WIDTH:
        return line
    cut = line[: _WIDTH - 4]
    words = cut.rpartition(" ")[0]
    # A line without a space has no word to end at.
    return (words if words.strip() else cut) + " ..."


def _escaped(words: str) -> str:
    return escape(one_line(words))


def _box(title: str, warning: str, content: str) -> str:
    red = '<div style="color: #d32f2f; font-weight: bold; margin-top: 0.3em">'
    return (
        f'<div style="{_BOX}"><strong>{_escaped(title)}</strong>'
        + (f"{red}{_escaped(warning)}</div>" if warning else "")
        + f"{content}</div>"
    )
