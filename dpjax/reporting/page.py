"""``report``: what a training guarantees and found, as one self-contained page in HTML."""

import importlib.metadata
import os
import pathlib
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dpjax import _durable
from dpjax.accounting import Release
from dpjax.accounting.wording import ceil
from dpjax.reporting.charts import curves
from dpjax.reporting.coefficients import coefficient_section
from dpjax.reporting.facts import Facts, facts_of
from dpjax.reporting.html import Html, element, joined, table
from dpjax.reporting.style import STYLE

_VERSIONS = ("dpjax", "jax", "jaxlib", "numpy", "scipy")
# A guarantee is filled to so many.
_COLUMNS = 100
# Nothing is fetched, and no script runs, whatever a name holds.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_EXACT = (
    "NOT FOR RELEASE: this page holds exact values of the data, which no guarantee covers. Write a "
    "page without them for a release."
)
_NOT_COVERED = (
    "Other trainings, counts or pictures from the same data: their guarantees must be composed "
    "with this one.",
    "A choice of settings, columns, bounds or levels that was made with a look at the records.",
    "Predictions for records that the model was trained on: they are computed from the features of "
    "those records.",
    "What follows about a person from what holds of people: a model may learn that smokers fall "
    "ill, and would have learned it without any one of them.",
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

    It needs no network and no script, and shows light or dark, on a phone or on paper.

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
    """Returns the path of a report.

    >>> check_path("report.pdf")
    Traceback (most recent call last):
    ...
    ValueError: a report must end in .html, got 'report.pdf'.
    """
    target = pathlib.Path(path)
    if target.suffix.lower() != ".html":
        raise ValueError(f"a report must end in .html, got {str(path)!r}.")
    return target


def _page(facts: Facts, title: str, model: str, exact: dict[str, float]) -> str:
    sections = [
        element("p", "Privacy report", class_="muted"),
        element("h1", title),
        *_banner(facts, exact),
        element(
            "div",
            element("p", element("strong", facts.claim)),
            element("p", facts.meaning),
            class_="claim",
        ),
        _numbers(facts),
        *(element("p", f"Warning: {remark}") for remark in facts.remarks),
        *_exact_values(exact),
        *_released(facts),
        *coefficient_section(facts),
        *_history(facts),
        element("h2", "Certificate"),
        element("p", facts.certificate_words),
        *_prediction(facts, model),
        *_declared(facts),
        element("h2", "The guarantee in full"),
        element("pre", _unfilled(facts.guarantee)),
        element("h2", "What is not covered"),
        element("ul", *(element("li", words) for words in _NOT_COVERED)),
        _footer(),
    ]
    head = joined(
        [
            element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("title", f"Privacy report: {title}"),
            element("style", Html(STYLE)),
        ]
    )
    body = element("body", element("main", *sections))
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n{body}</html>\n'


def _banner(facts: Facts, exact: dict[str, float]) -> Iterator[Html]:
    for words in (facts.warning.replace("\n", " "), _EXACT if exact else ""):
        if words:
            yield element("div", element("p", words), class_="banner", role="alert")


def _numbers(facts: Facts) -> Html:
    what = facts.description
    rows = [
        ("epsilon", ceil(facts.epsilon)),
        ("delta", ceil(what.delta)),
        ("protected", f"one {what.unit}"),
        ("records declared", f"{what.records:,}"),
        ("algorithm", what.algorithm),
        ("objective", what.objective),
        ("steps", f"{facts.steps:,} of {what.steps:,}"),
    ]
    if facts.status is not None:
        rows.append(("status", facts.status.message.rstrip(".")))
    rows.append(("parameters", f"{facts.parameters:,}"))
    rows += [tuple(line.split(": ", 1)) for line in facts.answer_lines]
    return element(
        "dl",
        *(element("div", element("dt", name), element("dd", value)) for name, value in rows),
        class_="numbers",
    )


def _exact_values(exact: dict[str, float]) -> Iterator[Html]:
    if exact:
        rows = [[name, _number(value)] for name, value in exact.items()]
        heading = element("h2", "Exact values: NOT PRIVATE")
        yield element("section", heading, table(["value", "exact"], rows), class_="exact")


def _released(facts: Facts) -> Iterator[Html]:
    yield element("h2", "What was released")
    yield element(
        "p",
        "The training saw the records only through these answers, each with random noise. The "
        "sensitivity is the most by which one record can move an answer, or, where records are "
        "drawn, the most that a drawn one adds; the noise multiplier is the noise over it.",
        class_="note",
    )
    for one in facts.releases:
        if one.choice_words:
            yield element("p", one.choice_words, class_="note")
    head = [
        "answer",
        "times",
        "records",
        "sensitivity",
        "multiplier",
        "standard deviation of noise",
    ]
    rows = [_release(part) for one in facts.releases for part in one.parts()]
    yield table(head, rows, class_="numeric")


def _release(release: Release) -> list[str]:
    noise = [element("div", f"{name}: {std:.4g}") for name, std in release.components]
    return [
        release.name.replace("_", " "),
        f"{release.count:,}",
        release.records_words,
        ceil(release.sensitivity),
        f"{release.noise_multiplier:.5g}",
        joined(noise) if noise else f"{release.stddev:.4g}",
    ]


def _history(facts: Facts) -> Iterator[Html]:
    held, bound = facts.history, facts.certificate
    level = None
    if bound is not None:
        level = ("certified bound at the end", bound["gradient_norm_upper"])
    norms = {
        name: held[key]
        for key, name in (
            ("gradient_norm", "noisy gradient"),
            ("data_gradient_norm", "noisy gradient without the regularizer"),
        )
        if key in held
    }
    lengths = {
        name: held[key]
        for key, name in (("step_norm", "step"), ("radius", "trust radius"))
        if key in held
    }
    multiplier = {"multiplier": held["multiplier"]} if "multiplier" in held else {}
    pictures = [
        curves("Norm of the gradient", "at each step; 0 at a minimum.", norms, True, level),
        curves("Length of each step", "in the units of the parameters.", lengths, True),
        curves(
            "Multiplier of the trust region",
            "0 where the step stays inside the radius.",
            multiplier,
            False,
        ),
    ]
    if facts.steps > 1 and any(pictures):
        yield element("h2", "The training, step by step")
        yield element("p", "Released values, covered by the guarantee.", class_="note")
        yield element("div", *pictures, class_="pictures")


def _prediction(facts: Facts, model: str) -> Iterator[Html]:
    yield element("h2", "Predict with this model")
    if facts.classes is None:
        yield element("p", "The file of a network holds its parameters, not its code: rebuild the "
                      "model and call it at dpjax.load(path).params.")  # fmt: skip
        return
    if facts.preprocessing is None:
        yield element("p", "The model was trained on arrays; it predicts rows that are scaled "
                      "alike:")  # fmt: skip
        yield element("pre", f"dpjax.load({model!r}).predict(rows)")
        return
    command = shlex.join(["dpjax", "predict", model, "new.csv", "--out", "predictions.csv"])
    yield element("pre", command)
    columns = ", ".join(facts.preprocessing.columns[:12])
    columns += ", ..." * (len(facts.preprocessing.columns) > 12)
    yield element("p", f"new.csv needs the columns {columns}; a label and others may be there.")
    yield element("p", "In Python:")
    yield element("pre", f"dpjax.load({model!r}).predict('new.csv')")


def _declared(facts: Facts) -> Iterator[Html]:
    scale = facts.preprocessing
    if scale is None or not scale.columns:
        return
    yield element("h2", "What was declared of the data")
    yield element("p", "Public knowledge that the training was told; none of it was read off the "
                  "records.", class_="note")  # fmt: skip
    rows = []
    if scale.classes is not None:
        rows.append(["label", f"classes {', '.join(map(str, scale.classes))}"])
    if scale.label_bounds is not None:
        rows.append(["label", f"a number from {_range(scale.label_bounds)}"])
    for column in scale.encoders:
        declared = column.declaration()
        rows.append([column.name, _declaration(declared) if declared else "used unchanged"])
    if scale.intercept:
        rows.append(["intercept", "a feature that is 1 in every record"])
    yield table(["column", "declared"], rows)


def _declaration(declared: dict[str, Any]) -> str:
    words = []
    if "bounds" in declared:
        words.append(f"from {_range(declared['bounds'])}")
    if "order" in declared:
        words.append(f"in order {', '.join(map(str, declared['order']))}")
    if "levels" in declared:
        words.append(f"one of {', '.join(map(str, declared['levels']))}")
    if declared.get("other"):
        words.append("any other level counts as other")
    if "missing" in declared:
        words.append(f"an empty cell counts as {_plain(declared['missing'])}")
    return "; ".join(words)


def _range(pair: Any) -> str:
    return " to ".join(map(_plain, pair))


def _plain(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _footer() -> Html:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _VERSIONS)
    return element("footer", f"Written by {versions}. The guarantee names the versions that the "
                   "training ran with.")  # fmt: skip


def _unfilled(text: str) -> str:
    r"""Returns sentences that were filled to 100 columns as one line each, for any screen.

    >>> _unfilled("x" * 99 + "\nmore\nNext.") == "x" * 99 + " more\nNext."
    True
    >>> _unfilled("Released:\n  - one,\n    with its noise\n  - two")
    'Released:\n  - one, with its noise\n  - two'
    """
    lines, before = [""], ""
    for line in text.splitlines():
        word = line.partition(" ")[0]
        full = len(before) <= _COLUMNS < len(before) + 1 + len(word)
        if line.startswith("    ") or (full and word and not before.startswith(" ")):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
        before = line
    return "\n".join(lines[1:])


def _number(value: float) -> str:
    return f"{value:.6g}" if np.isfinite(value) else "not finite"
