"""``report``: what a training guarantees and found, as one self-contained page in HTML."""

import importlib.metadata
import os
import pathlib
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from dpjax import _durable, plotting
from dpjax.display.cards import ceil, printable
from dpjax.reporting import pictures
from dpjax.reporting.facts import Facts, facts_of
from dpjax.results import Coefficients
from dpjax.results.guarantee import COLUMNS, open_template

_VERSIONS = ("dpjax", "jax", "jaxlib", "numpy", "scipy")
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
    exact: Mapping[str, float | None] | None = None,
) -> None:
    """Writes one self-contained page in HTML: guarantee, releases, coefficients, certificate.

    It needs no network and no script, and shows light or dark, on a phone or on paper. Its pictures
    need matplotlib; without it a page has the numbers alone.

    Args:
      solution: a ``Solution``, or what ``load`` or ``fit`` returned.
      path: file to write or replace; it ends in .html.
      title: of the page; by default the names of algorithm and objective.
      model: the path that the commands for predictions name.
      exact: values by name that stand in a section marked NOT PRIVATE, on a page that is then not
        for release.

    Raises:
      ValueError: for another ending, or a batch of solutions.

    Privacy: released and public values only, but for ``exact``.

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
    facts = facts_of(solution)
    shown = {} if exact is None else {name: v for name, v in exact.items() if v is not None}
    text = _page(facts, title or facts.title, model, shown)
    with _durable.replacing(target) as file:
        file.write(text.encode())


def check_path(path: str | os.PathLike) -> pathlib.Path:
    """Returns the path of a report."""
    target = pathlib.Path(path)
    if target.suffix.lower() != ".html":
        raise ValueError(f"a report must end in .html, got {str(path)!r}.")
    return target


def _page(facts: Facts, title: str, model: str, exact: dict[str, float]) -> str:
    pictured = plotting.is_available()
    held = facts.coefficients
    rows, scale = ([], "") if held is None else _coefficients(held, pictured)
    command = ["dpjax", "predict", model, "new.csv", "--out", "predictions.csv"]
    text = _TEMPLATE.render(
        facts=facts,
        title=title,
        model=model,
        exact=exact,
        numbers=list(_numbers(facts)),
        held=held,
        coefficients=rows,
        scale=scale,
        pictured=pictured,
        # One step is no curve.
        pictures=list(_curves(facts)) if pictured and facts.steps > 1 else [],
        command=shlex.join(command),
        guarantee=_unfilled(facts.guarantee),
        versions=[f"{name} {importlib.metadata.version(name)}" for name in _VERSIONS],
        # Our own, and the only text that is not escaped, but for pictures.
        style=Markup((_FOLDER / "style.css").read_text(encoding="utf-8")),
    )
    return text.strip() + "\n"


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


def _curves(facts: Facts) -> Iterator[dict[str, Any]]:
    history, bound = facts.history, facts.certificate
    for title, note, logarithmic, names in _CURVES:
        # The certified bound is drawn beside the curve that it is about.
        level = bound["gradient_norm_upper"] if bound and "gradient_norm" in names else None
        values = {name: history[key] for key, name in names.items() if key in history}
        if svg := pictures.curves(values, logarithmic, level):
            yield {"title": title, "note": note, "names": values, "level": level, "svg": svg}


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


_FOLDER = pathlib.Path(__file__).parent


def _printable(value: Any) -> Any:
    # A character that is not printable may change how the rest is shown.
    return printable(value) if type(value) is str else value


def breakable(name: str) -> Markup:
    """Returns a name that may go on in the next line after each of its parts.

    >>> str(breakable("soil_type=<1>"))
    'soil_<wbr>type=<wbr>&lt;1&gt;'
    """
    # Escaped first, so that <wbr> is the only markup in it.
    return Markup(re.sub(r"([_.=:/])(?=.)", r"\1<wbr>", str(escape(printable(name)))))


_TEMPLATE = open_template(
    _FOLDER / "report.html",
    finalize=_printable,
    autoescape=True,
    breakable=breakable,
    digits=lambda value, digits: f"{value:.{digits}g}",
    number=lambda value: f"{value:.6g}" if np.isfinite(value) else "not finite",
    plain=lambda value: f"{value:.10g}" if isinstance(value, float) else str(value),
    thousands="{:,}".format,
)
