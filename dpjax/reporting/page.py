"""``report``: what there is to say of a training, as a page, a model card or JSON."""

import os
import pathlib
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dpjax import _durable, plotting
from dpjax.display.cards import printable
from dpjax.reporting import frame, officer, pictures
from dpjax.reporting.facts import Facts, Place, facts_of, fields, to_json
from dpjax.results import Coefficients

_EXACT = (
    "NOT FOR RELEASE: this page holds exact values of the data, which no guarantee covers. Write a "
    "page without them for a release."
)
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
      solution: a ``Solution``; what ``load``, ``fit`` or ``tune`` returned; or an estimator.
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
    facts = facts_of(solution, author, ledger)
    shown = {} if exact is None else {name: v for name, v in exact.items() if v is not None}
    banners = [words for words in (facts.warning, _EXACT * bool(shown)) if words]
    held = [*officer.sections(facts, model, shown), *sections]
    if target.suffix.lower() == ".html":
        text = _page(facts, title or facts.title, banners, held)
    elif target.suffix.lower() == ".md":
        text = card(title or facts.title, banners, held)
    else:
        text = to_json({"title": title or facts.title, **fields(facts, held)})
    with _durable.replacing(target) as file:
        file.write(text.encode())


def check_path(path: str | os.PathLike) -> pathlib.Path:
    """Returns the path of a report."""
    target = pathlib.Path(path)
    if target.suffix.lower() not in (".html", ".md", ".json"):
        raise ValueError(f"a report must end in .html, .md or .json, got {str(path)!r}.")
    return target


def _page(facts: Facts, title: str, banners: list[str], sections: Sequence[frame.Section]) -> str:
    pictured = plotting.is_available()
    held = facts.coefficients
    rows, scale = ([], "") if held is None else _coefficients(held, pictured)
    shown = []
    for one in sections:
        # Its own table and pictures are in place of the text.
        shown.append(one._replace(code=()) if one.heading == "Coefficients" else one)
        shown += _history(facts, pictured) if one.heading == "Coefficients" else ()
    return frame.page(
        "report.html",
        "Privacy report",
        title,
        banners,
        sections=shown,
        held=held,
        coefficients=rows,
        scale=scale,
        pictured=pictured,
    )


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


def _coefficients(held: Coefficients, pictured: bool) -> tuple[list[dict[str, Any]], str]:
    """Returns rows of numbers, their intervals and pictures, and the numbers of the scale."""
    # A name has a coefficient for each class.
    shown = _MOST // len(held.classes or ("",))
    rows, effects = [], []
    for (name, per, values, ends), span in list(zip(held.rows(), held.spans, strict=True))[:shown]:
        cells = []
        for at, value in enumerate(values):
            interval = None if ends is None else ends[:, at]
            text = f"{value:+.4g}" if np.isfinite(value) else "not finite"
            between = "" if interval is None else f"{interval[0]:.4g} to {interval[1]:.4g}"
            cells.append({"value": text, "interval": between, "picture": ""})
            # Over the range of its column, so that one scale serves all of a model.
            effects.append((value * span, None if interval is None else tuple(span * interval)))
        rows.append({"name": name, "per": per, "cells": cells})
    if not (pictured and any(np.isfinite(value) for value, _ in effects)):
        return rows, ""
    drawn, scale = pictures.effects(effects)
    for cell, picture in zip((cell for row in rows for cell in row["cells"]), drawn, strict=True):
        cell["picture"] = picture
    return rows, scale


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
