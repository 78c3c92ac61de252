"""``report``: what there is to say of a training, as a page, a model card or JSON."""

import datetime
import functools
import importlib.metadata
import os
import pathlib
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from dpjax import _durable, plotting, statistics
from dpjax.display.cards import one_line, printable
from dpjax.reporting import facts as _facts
from dpjax.reporting import officer, pictures
from dpjax.reporting.facts import Facts, Picture, Place, Section
from dpjax.reporting.statistics import description_sections
from dpjax.results import Coefficients
from dpjax.results.guarantee import COLUMNS, open_template

_FOLDER = pathlib.Path(__file__).parent
_VERSIONS = ("dpjax", "jax", "jaxlib", "numpy", "scipy")
_CELL = Markup('<span class="{}">{}</span><small>{}</small><small>{}</small>')
_EXACT = (
    "NOT FOR RELEASE: this page holds exact values of the data, which no guarantee covers. Write a "
    "page without them for a release."
)
# More coefficients would make a page that nobody reads; ``dpjax show --json`` has all of them.
_MOST = 400
_NORMS = {
    "gradient_norm": "noisy gradient",
    "data_gradient_norm": "noisy gradient without the regularizer",
}
# Title, note, and names of what the history holds.
_CURVES = (
    ("Norm of the gradient", "at each step; 0 at a minimum.", _NORMS),
    ("Length of each step", "in the units of the parameters.",
     {"step_norm": "step", "radius": "trust radius"}),
)  # fmt: skip


def _escaped(text: str) -> str:
    """Returns text in which nothing is markup of Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>|#~&])", r"\\\1", one_line(text))


def report(
    solution: Any,
    path: str | os.PathLike,
    *,
    title: str = "",
    model: str = "model",
    author: str = "",
    ledger: Place | None = None,
    exact: Mapping[str, float | None] | None = None,
    sections: Sequence[Section] = (),
) -> None:
    """Writes what there is to say of a training, for who has to trust it or to decide on it.

    A page in HTML answers what a data protection officer asks, with the guarantee, releases,
    coefficients and certificate. It needs no network and no script, and shows light or dark, on a
    phone or on paper. Its pictures need matplotlib; without it a page has the numbers alone. A
    model card in Markdown says the same without pictures, and JSON for programs.

    Args:
      solution: a ``Solution``; what ``load``, ``fit``, ``tune`` or ``statistics.describe``
        returned; or an estimator.
      path: file to write or replace; it ends in .html, .md or .json.
      title: of the page; by default the names of algorithm and objective.
      model: the path that the commands for predictions name.
      author: who trained the model and answers questions, such as a name and an address; by
        default as ``save`` was told.
      ledger: a ``Ledger`` or its file: what is left of the budget for these records.
      exact: values by name that stand in a section marked NOT PRIVATE, on a page that is then not
        for release.
      sections: more of the page, below the training; what they tell of records must be covered.

    Raises:
      ValueError: for another ending, a batch of solutions, or another object.

    Privacy: released and public values only, but for ``exact``. A ledger tells of other trainings
      that they were booked, and what they cost.

    >>> import dpjax, pathlib, tempfile
    >>> data = dpjax.datasets.load("randhie")
    >>> algorithm = dpjax.dp_gradient_descent(
    ...     dpjax.objectives.logistic(), dpjax.PrivacyBudget(1.0, 1e-6),
    ...     data_size=data.size, dimension=data.dimension, steps=2)
    >>> solution = dpjax.solve(algorithm, data, key=dpjax.random_key())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "report.html")
    ...     report(solution, path)
    ...     "differentially private" in path.read_text()
    True
    """
    target = check_path(path)
    if isinstance(solution, statistics.Description):
        title, held = title or f"{len(solution.columns)} columns", description_sections(solution)
        banners, content = list[str](), {"sections": _facts.by_heading(held)}
        page = functools.partial(_html, "A first look", title, held)
    else:
        facts = _facts.facts_of(solution, author, ledger)
        shown = {} if exact is None else {name: v for name, v in exact.items() if v is not None}
        banners = [words for words in (facts.warning, _EXACT * bool(shown)) if words]
        title, held = title or facts.title, [*officer.sections(facts, model, shown), *sections]
        content = _facts.fields(facts, held)
        page = functools.partial(_page, facts, title, banners, held)
    write = {
        ".html": page,
        ".md": lambda: card(title, banners, held),
        ".json": lambda: _facts.to_json({"title": title, **content}),
    }[target.suffix.lower()]
    with _durable.replacing(target) as file:
        file.write(write().encode())


def check_path(path: str | os.PathLike) -> pathlib.Path:
    """Returns the path of a report."""
    target = pathlib.Path(path)
    if target.suffix.lower() not in (".html", ".md", ".json"):
        raise ValueError(f"a report must end in .html, .md or .json, got {str(path)!r}.")
    return target


def _page(facts: Facts, title: str, banners: list[str], sections: Sequence[Section]) -> str:
    pictured, shown = plotting.is_available(), []
    for one in sections:
        shown.append(one)
        if one.heading == "Coefficients":
            # A table with pictures is in place of the text.
            table = {} if facts.coefficients is None else _effects(facts.coefficients, pictured)
            shown[-1] = one._replace(code=(), **table)
            # One step is no curve.
            if pictured and facts.steps > 1 and (drawn := list(_curves(facts))):
                text = ["Released values, covered by the guarantee."]
                shown.append(Section("The training, step by step", text, pictures=drawn))
    return _html("Privacy report", title, shown, banners)


def _html(kind: str, title: str, sections: Sequence[Section], banners: Sequence[str] = ()) -> str:
    """Returns a page of a kind and a title; its first section stands in a box.

    Privacy: as the sections.
    """
    text = open_template(_FOLDER / "page.html", breakable=_breakable).render(
        kind=kind,
        title=title,
        sections=sections,
        banners=[words.replace("\n", " ") for words in banners],
        date=datetime.date.today().isoformat(),
        versions=[f"{name} {importlib.metadata.version(name)}" for name in _VERSIONS],
        # Our own, and the only text that is not escaped, but for pictures.
        style=Markup((_FOLDER / "style.css").read_text(encoding="utf-8")),
        pictured=plotting.is_available(),
    )
    return text.strip() + "\n"


def _breakable(name: str) -> Markup:
    """Returns a name that may go on in the next line after each of its parts."""
    # Escaped first, so that <wbr> is the only markup in it.
    return Markup(re.sub(r"([_.=:/])(?=.)", r"\1<wbr>", str(escape(printable(name)))))


def card(title: str, banners: Sequence[str], sections: Sequence[Section]) -> str:
    """Returns a model card in Markdown, without pictures."""
    lines = [f"# {_escaped(title)}", *map(_escaped, banners)]
    for one in sections:
        lines += [f"## {_escaped(one.heading)}", *map(_escaped, one.text)]
        lines.append("\n".join(f"- {_escaped(words)}" for words in one.items))
        width = len(one.rows[0]) if one.rows else 0
        table = [one.head or ("",) * width, ("-",) * width, *one.rows] if width else []
        lines.append("\n".join(f"| {' | '.join(map(_escaped, row))} |" for row in table))
        # A block of code, in which nothing is markup.
        lines += [textwrap.indent(printable(text), "    ") for text in one.code]
    return "\n\n".join(filter(None, lines)) + "\n"


def text(facts: Facts, model: str) -> str:
    """Returns what a card says as a terminal shows it, without markup."""
    fill = functools.partial(textwrap.fill, width=COLUMNS, break_long_words=False)
    lines = [one_line(facts.title), fill(one_line(facts.warning))]
    for one in officer.sections(facts, model):
        lines += [f"{one.heading}\n{'-' * len(one.heading)}", *map(fill, one.text)]
        lines.append("\n".join(fill(f"- {words}", subsequent_indent="  ") for words in one.items))
        table = [[*map(one_line, row)] for row in (one.head, *one.rows) if row]
        widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
        rows = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)
        lines += ["\n".join(rows), *map(printable, one.code)]
    return "\n\n".join(filter(None, [*lines[:-1], printable(facts.guarantee)]))


def _effects(held: Coefficients, pictured: bool) -> dict[str, Any]:
    """Returns a table, by class of a value and its interval, and a picture of all of them."""
    # A name has a coefficient for each class.
    classes = held.classes or ("value, with an interval" if held.refusal is None else "value",)
    shown, rows = list(held.rows())[: _MOST // len(classes)], []
    noise, within = np.atleast_2d(held.noise if held.noise is not None else 0), held.within_noise
    for i, (name, per, values, ends) in enumerate(shown):
        row: list[str] = [f"{name}, per {per}" if per else name]
        for at, value in enumerate(values):
            text = f"{value:+.4g}" if np.isfinite(value) else "not finite"
            between = "" if ends is None else f"{ends[0, at]:.4g} to {ends[1, at]:.4g}"
            alone = "" if held.noise is None else f"noise alone gives +- {noise[at, i]:.3g}"
            grey = "muted" * bool(np.atleast_2d(within)[at, i])
            text = f"({text})" if grey else text
            row.append(_CELL.format(grey, text, between, alone))
        rows.append(row)
    more = len(held.names) - len(shown)
    rows += [[f"{more:,} more: dpjax show MODEL --json", *[""] * len(classes)]] * bool(more)
    svg = pictures.forest(held) if pictured else ""
    note = "on one scale; grey in the band that noise alone gives."
    drawn = [Picture("Effects", note, svg)] if svg else []
    return {"head": ("coefficient", *classes), "rows": rows, "pictures": drawn}


def _curves(facts: Facts) -> Iterator[Picture]:
    history, bound = facts.history, facts.certificate
    for title, note, names in _CURVES:
        # The certified bound is drawn beside the curve that it is about.
        level = bound["gradient_norm_upper"] if bound and "gradient_norm" in names else None
        values = {name: history[key] for key, name in names.items() if key in history}
        keys = [(f"c{at}", name) for at, name in enumerate(values)]
        if level is not None:
            keys.append(("level", f"certified bound at the end: {level:.4g}"))
        if svg := pictures.curves(values, level):
            yield Picture(title, note, svg, keys)
