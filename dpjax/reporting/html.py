"""Elements of a page in HTML, in which every text is escaped."""

import re
from collections.abc import Iterable
from html import escape

from dpjax.display.cards import printable


class Html(str):
    """Markup, which is not escaped again.

    >>> element("b", Html("<i>x</i>"))
    '<b><i>x</i></b>'
    """

    __slots__ = ()


# They have no content and no end.
_EMPTY = {"br", "meta", "circle", "line", "polyline"}


def element(name: str, /, *children: str, **attributes: object) -> Html:
    """Returns an element with its children; every text in it is escaped.

    Args:
      name: of the element.
      children: texts, which are escaped, and ``Html``, which is not.
      attributes: ``_`` stands for ``-``, and a ``_`` at the end is left out, as of ``class_``;
        None leaves the attribute out.

    >>> element("p", "a < b", class_="note", id=None)
    '<p class="note">a &lt; b</p>'
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _EMPTY:
        return Html(f"<{name}{given}>" if name in ("br", "meta") else f"<{name}{given}/>")
    return Html(f"<{name}{given}>{joined(children)}</{name}>")


def joined(children: Iterable[str]) -> Html:
    """Returns texts and markup one after the other, texts escaped."""
    return Html("".join(c if isinstance(c, Html) else _escaped(c) for c in children))


def breakable(name: str) -> Html:
    """Returns a name that may go on in the next line after each of its parts.

    >>> breakable("soil_type=<1>")
    'soil_<wbr>type=<wbr>&lt;1&gt;'
    """
    return Html(re.sub(r"([_.=:/])(?=.)", r"\1<wbr>", _escaped(name)))


def table(head: list[str], rows: list[list[str]], **attributes: object) -> Html:
    """Returns a table in a box that scrolls where the screen is too narrow for it.

    The first cell of each row names it.
    """
    top = element("tr", *(element("th", name, scope="col") for name in head))
    body = [
        element(
            "tr",
            element("th", breakable(first), scope="row"),
            *(element("td", cell) for cell in rest),
        )
        for first, *rest in rows
    ]
    content = element("thead", top), element("tbody", *body)
    return element("div", element("table", *content, **attributes), class_="scroll")


def _escaped(text: str) -> str:
    # A character that is not printable may change how the rest is shown.
    return escape(printable(text))
