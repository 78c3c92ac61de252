"""``report``: what there is to say of a training, as a page, a model card or JSON."""

import os
import pathlib
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from dpjax import _durable, plotting
from dpjax.display.cards import ceil, printable
from dpjax.reporting import frame, officer, pictures
from dpjax.reporting.facts import Facts, Place, facts_of, fields, to_json
from dpjax.results import Coefficients
from dpjax.results.guarantee import COLUMNS, open_template

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
    (
        "Multiplier of the trust region",
        "0 where the step stays inside the radius.",
        False,
        {"multiplier": "multiplier"},
    ),
)


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
    values = {
        "title": title or facts.title,
        "banners": [words for words in (facts.warning, _EXACT * bool(shown)) if words],
        "facts": facts,
        "numbers": list(_numbers(facts)),
        "answers": [*officer.sections(facts)],
        "more": sections,
        "guarantee": _unfilled(facts.guarantee),
    }
    write = {".html": _page, ".md": _card, ".json": _fields}[target.suffix.lower()]
    with _durable.replacing(target) as file:
        file.write(write(values, shown, model).encode())


def check_path(path: str | os.PathLike) -> pathlib.Path:
    """Returns the path of a report."""
    target = pathlib.Path(path)
    if target.suffix.lower() not in (".html", ".md", ".json"):
        raise ValueError(f"a report must end in .html, .md or .json, got {str(path)!r}.")
    return target


def _page(values: dict[str, Any], exact: dict[str, float], model: str) -> str:
    facts: Facts = values["facts"]
    pictured = plotting.is_available()
    held = facts.coefficients
    rows, scale = ([], "") if held is None else _coefficients(held, pictured)
    command = ["dpjax", "predict", model, "new.csv", "--out", "predictions.csv"]
    return frame.page(
        "report.html",
        "Privacy report",
        model=model,
        exact=exact,
        held=held,
        coefficients=rows,
        scale=scale,
        pictured=pictured,
        sections=[*_history(facts, pictured), *values["more"]],
        command=shlex.join(command),
        **values,
    )


def _card(values: dict[str, Any], exact: dict[str, float], model: str) -> str:
    rows = [(name, f"{value:.6g}") for name, value in exact.items()]
    unsafe = [frame.Section("Exact values: NOT PRIVATE", rows=rows)] * bool(exact)
    coefficients = values["facts"].coefficients
    return _CARD.render(
        values,
        sections=[*values["answers"], *values["more"], *unsafe],
        # Blocks of code, in which nothing is markup.
        coefficients=Markup(textwrap.indent(printable(repr(coefficients)), "    ")),
        guarantee=Markup(textwrap.indent(printable(values["guarantee"]), "    ")),
    )


def _fields(values: dict[str, Any], exact: dict[str, float], model: str) -> str:
    more = [one._asdict() | {"pictures": ()} for one in (*values["answers"], *values["more"])]
    content = {"title": values["title"], **fields(values["facts"]), "sections": more, **exact}
    return to_json(content)


def _escaped(value: Any) -> Any:
    r"""Returns text in which nothing is markup of Markdown.

    >>> print(_escaped("a|b <i>\n"))
    a\|b \<i\>
    """
    if type(value) is not str:
        return value
    return re.sub(r"([\\`*_{}\[\]<>|#~&])", r"\\\1", " ".join(printable(value).split()))


def _numbers(facts: Facts) -> Iterator[tuple[str, str]]:
    what = facts.description
    yield "epsilon", ceil(facts.epsilon)
    yield "delta", ceil(what.delta)
    yield "protected", f"one {what.unit}"
    yield "records declared", f"{what.records:,}"
    yield "algorithm", what.algorithm
    yield "objective", what.objective
    yield "steps", f"{facts.steps:,} of {what.steps:,}"
    if facts.status is not None:
        yield "status", facts.status.message.rstrip(".")
    yield "parameters", f"{facts.parameters:,}"
    for line in facts.answer_lines:
        name, _, value = line.partition(": ")
        yield name, value


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


def _unfilled(text: str) -> str:
    r"""Returns sentences that were filled to 100 columns as one line each, for any screen.

    >>> _unfilled("x" * 99 + "\nmore\nNext.") == "x" * 99 + " more\nNext."
    True
    >>> _unfilled("Released:\n  - one,\n    with its noise\n  - two")
    'Released:\n  - one, with its noise\n  - two'
    """
    # A line that ends because the next word did not fit is one sentence with the next line.
    lines, before = [""], ""
    for line in text.splitlines():
        word = line.partition(" ")[0]
        full = len(before) <= COLUMNS < len(before) + 1 + len(word)
        if line.startswith("    ") or (full and word and not before.startswith(" ")):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
        before = line
    return "\n".join(lines[1:])


_CARD = open_template(
    pathlib.Path(__file__).with_name("card.txt"),
    finalize=_escaped,
    autoescape=False,  # Markdown, whose own markup is escaped
)
