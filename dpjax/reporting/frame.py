"""The frame of every page in HTML: head, style sheet, banners, and sections with pictures."""

import datetime
import functools
import importlib.metadata
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jinja2
from markupsafe import Markup, escape

from dpjax import plotting
from dpjax.display.cards import printable
from dpjax.results.guarantee import open_template

_FOLDER = pathlib.Path(__file__).parent
_VERSIONS = ("dpjax", "jax", "jaxlib", "numpy", "scipy")


class Picture(NamedTuple):
    """An SVG that ``reporting.pictures`` draws, its title, note, and class and name of curves."""

    title: str
    note: str
    svg: Markup
    keys: Sequence[tuple[str, str]] = ()


class Section(NamedTuple):
    """Heading, paragraphs, a table by head and rows, pictures, a list, and texts kept as they are.

    Rows without a head are names and values. Any part but the heading may be empty.
    """

    heading: str
    text: Sequence[str] = ()
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    pictures: Sequence[Picture] = ()
    items: Sequence[str] = ()
    code: Sequence[str] = ()


def page(
    kind: str,
    title: str,
    banners: Iterable[str] = (),
    sections: Iterable[Section] = (),
    note: str = "",
) -> str:
    """Returns a page of a kind and a title, with a note at its end.

    Privacy: as what it holds.
    """
    text = _opened().render(
        kind=kind,
        title=title,
        sections=list(sections),
        banners=[words.replace("\n", " ") for words in banners],
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        versions=[f"{name} {importlib.metadata.version(name)}" for name in _VERSIONS],
        # Our own, and the only text that is not escaped, but for pictures.
        style=Markup((_FOLDER / "style.css").read_text(encoding="utf-8")),
        pictured=plotting.is_available(),
        note=note,
    )
    return text.strip() + "\n"


def breakable(name: str) -> Markup:
    """Returns a name that may go on in the next line after each of its parts.

    >>> str(breakable("soil_type=<1>"))
    'soil_<wbr>type=<wbr>&lt;1&gt;'
    """
    # Escaped first, so that <wbr> is the only markup in it.
    return Markup(re.sub(r"([_.=:/])(?=.)", r"\1<wbr>", str(escape(printable(name)))))


@functools.cache
def _opened() -> jinja2.Template:
    return open_template(
        _FOLDER / "frame.html",
        # A character that is not printable may change how the rest is shown.
        finalize=lambda value: printable(value) if type(value) is str else value,
        autoescape=True,
        breakable=breakable,
        digits=lambda value, digits: f"{value:.{digits}g}",
        thousands="{:,}".format,
    )
