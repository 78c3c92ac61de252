"""``report``: what there is to say of a training, as a page, a model card or JSON."""

import functools
import os
import pathlib
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from dpjax import _durable, plotting, statistics
from dpjax.display.cards import printable
from dpjax.reporting import frame, officer, pictures
from dpjax.reporting.description import sections_of
from dpjax.reporting.facts import Facts, Place, by_heading, facts_of, fields, to_json
from dpjax.results import Coefficients

_CELL = Markup('<span class="{}">{}</span><small>{}</small><small>{}</small>')
_EXACT = (
    "NOT FOR RELEASE: this page holds exact values of the data, which no guarantee covers. Write a "
    "page without them for a release."
)
_NOTE = " The guarantee names the versions that the training ran with."
# More coefficients would make a page that nobody reads; ``dpjax show --json`` has all of them.
_MOST = 400
# Title, note, whether logarithmic, and names of what the history holds.
_CURVES = (
    (
        "Norm of the gradient",
        "at each step; 0 at a minimum.",
        True,
        {
            "gradient_norm": "noisy gradient",
            "data_gradient_norm": "noisy gradient without the regularizer",
        },
    ),
    (
        "Length of each step",
        "in the units of the parameters.",
        True,
        {"step_norm": "step", "radius": "trust radius"},
    ),
)


def _escaped(text: str) -> str:
    r"""Returns text in which nothing is markup of Markdown.

    >>> print(_escaped("a|b <i>\n"))
    a\|b \<i\>
    """
    return re.sub(r"([\\`*_{}\[\]<>|#~&])", r"\\\1", officer.one_line(text))


def report(
    solution: Any,
    path: str | os.PathLike,
    *,
    title: str = "",
    model: str = "model",
    author: str = "",
    ledger: Place | None = None,
    exact: Mapping[str, float | None] | None = None,
    sections: Sequence[frame.Section] = (),
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
        title, held = title or f"{len(solution.columns)} columns", sections_of(solution)
        banners, content = list[str](), {"sections": by_heading(held)}
        page = functools.partial(frame.page, "A first look", title, sections=held)
    else:
        facts = facts_of(solution, author, ledger)
        shown = {} if exact is None else {name: v for name, v in exact.items() if v is not None}
        banners = [words for words in (facts.warning, _EXACT * bool(shown)) if words]
        title, held = title or facts.title, [*officer.sections(facts, model, shown), *sections]
        page, content = functools.partial(_page, facts, title, banners, held), fields(facts, held)
    write = {
        ".html": page,
        ".md": lambda: card(title, banners, held),
        ".json": lambda: to_json({"title": title, **content}),
    }[target.suffix.lower()]
    with _durable.replacing(target) as file:
        file.write(write().encode())


def check_path(path: str | os.PathLike) -> pathlib.Path:
    """Returns the path of a report."""
    target = pathlib.Path(path)
    if target.suffix.lower() not in (".html", ".md", ".json"):
        raise ValueError(f"a report must end in .html, .md or .json, got {str(path)!r}.")
    return target


def _page(facts: Facts, title: str, banners: list[str], sections: Sequence[frame.Section]) -> str:
    pictured = plotting.is_available()
    shown = []
    for one in sections:
        if one.heading == "Coefficients":
            # A table with pictures is in place of the text.
            table = {} if facts.coefficients is None else _effects(facts.coefficients, pictured)
            shown += [one._replace(code=(), **table), *_history(facts, pictured)]
        else:
            shown.append(one)
    return frame.page("Privacy report", title, banners, shown, _NOTE)


def card(
    title: str,
    banners: Sequence[str],
    sections: Sequence[frame.Section],
    escape: Callable[[str], str] = _escaped,
) -> str:
    """Returns a model card in Markdown, without pictures."""
    lines = [f"# {escape(title)}", *(escape(words) for words in banners)]
    for one in sections:
        lines += [f"## {escape(one.heading)}", *map(escape, one.text)]
        lines.append("\n".join(f"- {escape(words)}" for words in one.items))
        width = len(one.rows[0]) if one.rows else 0
        table = [one.head or ("",) * width, ("-",) * width, *one.rows] if width else []
        lines.append("\n".join(f"| {' | '.join(map(escape, row))} |" for row in table))
        # A block of code, in which nothing is markup.
        lines += [textwrap.indent(printable(text), "    ") for text in one.code]
    return "\n\n".join(filter(None, lines)) + "\n"


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
    drawn = [frame.Picture("Effects", note, svg)] if svg else []
    return {"head": ("coefficient", *classes), "rows": rows, "pictures": drawn}


def _history(facts: Facts, pictured: bool) -> Iterator[frame.Section]:
    # One step is no curve.
    shown = list(_curves(facts)) if pictured and facts.steps > 1 else []
    if shown:
        text = ["Released values, covered by the guarantee."]
        yield frame.Section("The training, step by step", text, pictures=shown)


def _curves(facts: Facts) -> Iterator[frame.Picture]:
    history, bound = facts.history, facts.certificate
    for title, note, logarithmic, names in _CURVES:
        # The certified bound is drawn beside the curve that it is about.
        level = bound["gradient_norm_upper"] if bound and "gradient_norm" in names else None
        values = {name: history[key] for key, name in names.items() if key in history}
        keys = [(f"c{at}", name) for at, name in enumerate(values)]
        if level is not None:
            keys.append(("level", f"certified bound at the end: {level:.4g}"))
        if svg := pictures.curves(values, logarithmic, level):
            yield frame.Picture(title, note, svg, keys)
