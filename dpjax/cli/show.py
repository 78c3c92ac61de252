"""``dpjax show``: what a saved model is, guarantees and found."""

import argparse
import textwrap
from typing import Any

import numpy as np

import dpjax
from dpjax.cli import options
from dpjax.cli.main import Parser
from dpjax.display.cards import printable
from dpjax.reporting import Facts, facts_of
from dpjax.results.remarks import ANSWERS

_EXAMPLES = """
dpjax show model
dpjax show model --json model.json
"""


def add_options(parser: Parser) -> None:
    """Adds what the command takes."""
    options.add(parser, options.MODEL, options.JSON)
    parser.describe(
        command,
        "Print what a saved model is and guarantees, all of it released or public.",
        _EXAMPLES,
    )


def command(arguments: argparse.Namespace) -> int:
    """Prints what there is to say of the model, and returns 0."""
    options.check(arguments)
    facts = facts_of(dpjax.load(arguments.model))
    # A model may come from anybody, and a name in it hold what changes a terminal.
    print(printable("\n".join(lines(facts))))
    if arguments.json:
        options.write_json(arguments.json, fields(facts))
        print(f"wrote {arguments.json}")
    return 0


def lines(facts: Facts) -> list[str]:
    """Returns what there is to say as lines for a person."""
    # Before any number that may not be relied on.
    words = [facts.warning] if facts.warning else []
    words.append(f"model: {facts.title}, {facts.parameters:,} parameters")
    words += [facts.claim, *_filled(facts.meaning)]
    status = "" if facts.status is None else f": {facts.status.message}"
    words.append(f"steps: {facts.steps:,} of {facts.description.steps:,}{status}")
    if facts.description.penalty:
        words.append(f"penalty: {facts.description.penalty}")
    words += facts.answer_lines
    words += ["", "certificate:", *_filled(facts.certificate_words, "  ")]
    words += ["", "history, first to last step:", *_history(facts)]
    words += ["", "coefficients:", *_coefficient_lines(facts)]
    return [*words, "", facts.guarantee]


def _coefficient_lines(facts: Facts) -> list[str]:
    if (held := facts.coefficients) is None:
        return ["  none by name: the model is not a linear one"]
    return [f"  {line}".rstrip() for line in held.summary().splitlines()]


def _filled(words: str, indent: str = "") -> list[str]:
    return textwrap.wrap(words, 100, initial_indent=indent, subsequent_indent=indent)


def _history(facts: Facts) -> list[str]:
    words = []
    for name, values in facts.history.items():
        # A quantity may be a vector at each step, or NaN where a step had none.
        known = values[np.isfinite(values)] if values.ndim == 1 else values[:0]
        if len(known):
            words.append(f"  {name.replace('_', ' ')}: {known[0]:.4g} to {known[-1]:.4g}")
    return words


def fields(facts: Facts) -> dict[str, Any]:
    """Returns what there is to say as numbers, words and lists; None for what is not known."""
    named = facts.description._asdict()
    certificate = facts.certificate
    return {
        "algorithm": named["algorithm"],
        "objective": named["objective"],
        "penalty": named["penalty"],
        "unit": named["unit"],
        "n": named["records"],
        "p": facts.parameters,
        "epsilon": facts.epsilon,
        "delta": named["delta"],
        "relation": facts.relation,
        # A guarantee begins with a warning only where it may not be relied on.
        "releasable": not facts.warning,
        "noise": [release.to_json() for release in facts.releases],
        "steps": facts.steps,
        "planned_steps": named["steps"],
        "status": None if facts.status is None else facts.status.name.lower(),
        "certificate": certificate,
        **{field: facts.answers.get(field) for field in ANSWERS},
        "classes": None if facts.classes is None else list(facts.classes),
        "coefficients": facts.coefficients and facts.coefficients.to_dict(),
        "history": {name: values.tolist() for name, values in facts.history.items()},
        "guarantee": facts.guarantee,
    }
