"""What a run prints and writes: released values, ``exact_`` fields only with ``--exact``."""

import argparse
import importlib.metadata
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import dpjax
from dpjax import _durable
from dpjax.accounting import Event, epsilon
from dpjax.algorithms import Algorithm
from dpjax.cli import problem
from dpjax.cli.problem import Setting
from dpjax.display.cards import ceil, floor
from dpjax.reporting.facts import ITERATES, certificate_fields
from dpjax.results import guarantee
from dpjax.results.answers import ANSWERS, ENDS, line
from dpjax.results.remarks import remarks

EXACT = ("exact_objective", "exact_gradient_norm", "exact_min_eigenvalue", "exact_accuracy")
_CONFIDENCE = 0.95


def warn(algorithm: Algorithm) -> None:
    """Prints what the budget leaves to be desired, before it is spent."""
    for remark in remarks(algorithm):
        print(f"warning: {remark}", file=sys.stderr)


def statement(arguments: argparse.Namespace, algorithm: Algorithm, data: dpjax.Dataset) -> str:
    """Returns the guarantee of a training as text."""
    # A dry run draws no noise that a seed could repeat: its text is that of a release.
    scale, seeded = data.preprocessing, arguments.seed is not None and not arguments.dry_run
    declared = (None, None) if scale is None else (scale.classes or (), scale.label_bounds)
    return guarantee.statement(algorithm, data.unit, seeded, *declared, arguments.part)


def dry_run(
    arguments: argparse.Namespace,
    algorithm: Algorithm,
    data: dpjax.Dataset,
    costs: Sequence[str] = (),
) -> int:
    """Prints the guarantee and what a training costs; returns 1 if quotes of a CSV are wrong."""
    print(statement(arguments, algorithm, data), *costs, sep="\n")
    print("dry run: nothing was spent.")
    return problem.flag_quotes(arguments.data, arguments.schema)


def header(arguments: argparse.Namespace, setting: Setting) -> dict[str, Any]:
    """Returns the fields that do not depend on the run."""
    return {
        "algorithm": setting.name,
        "data": arguments.data,
        "n": setting.data_size,
        "p": setting.algorithm.dimension,
        "objective": arguments.objective,
        "epsilon_budget": setting.budget.epsilon,
        "delta": setting.budget.delta,
        "relation": setting.budget.relation,
        "accountant": arguments.accountant,
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("dpjax", "jax", "jaxlib", "optax", "dp-accounting", "numpy")
        },
    }


def result(
    arguments: argparse.Namespace,
    setting: Setting,
    data: dpjax.Dataset,
    solution: dpjax.Solution,
    seconds: tuple[float, float],
) -> dict[str, Any]:
    """Returns the whole result; under ``--repeats`` every per-run field is a list."""
    event, delta = setting.algorithm.event, setting.budget.delta
    runs = arguments.repeats or 1
    # All repeats ask the same records, so their losses add up.
    together = Event(event.releases * runs, event.relation)
    statuses = np.vectorize(lambda code: dpjax.Status(code).name.lower())
    # Time grows with the true number of records, which this relation keeps private.
    private = setting.budget.relation == "add_or_remove_one"
    seconds_compile, seconds_run = (None, None) if private else seconds
    return {
        **header(arguments, setting),
        "unit": data.unit,
        "epsilon": solution.epsilon(delta),
        "epsilon_all_repeats": epsilon(together, delta, event.relation, arguments.accountant),
        # One training's guarantee covers neither repeats nor exact values.
        "releasable": solution.releasable
        and not (arguments.exact or arguments.repeats or arguments.seed is not None),
        "noise": [release.to_json() for release in event.releases],
        "gradient_evaluations": setting.algorithm.evaluations._asdict(),
        "steps": np.asarray(solution.steps).tolist(),
        "max_steps": setting.algorithm.max_steps,
        "planned_steps": int(setting.algorithm.steps),
        "status": statuses(np.asarray(solution.status)).tolist(),
        "certificate": _certificate(solution.certificate),
        "remarks": solution.remarks,
        **{field: _answer(solution, field) for field in ANSWERS},
        **_exact(arguments, setting, data, solution),
        "seconds_compile": seconds_compile,
        "seconds_run": seconds_run,
    }


def write_json(path: str, content: dict[str, Any]) -> None:
    """Writes ``content`` all or nothing; a number that is not finite becomes null."""
    with _durable.replacing(path) as file:
        file.write(json.dumps(_finite(content), indent=2).encode() + b"\n")


def summary(content: dict[str, Any]) -> list[str]:
    """Returns the result as lines for a person."""
    lines = []
    if isinstance(content["steps"], list):
        lines.append(
            f"all {len(content['steps'])} runs together: epsilon "
            f"{ceil(content['epsilon_all_repeats'])} at the same delta"
        )
    lines += [
        f"steps: {_each(content['steps'], str)} of {content['planned_steps']}",
        *(
            f"status {name}: {dpjax.Status[name.upper()].message}"
            for name in sorted({*np.ravel(content["status"]).tolist()})
        ),
        *(f"warning: {remark}" for remark in sorted(set(jax.tree.leaves(content["remarks"])))),
    ]
    for field in ANSWERS:
        if (answer := content[field]) is not None:
            lines.append(line(field, content["n"], answer, _each))
    counted = content["gradient_evaluations"]
    lines.append(
        f"per-record gradients: {counted['declared']:,} planned, {counted['padded']:,} computed, "
        "padding rows included"
    )
    certificate = content["certificate"]
    if certificate is not None:
        held = floor(100 * (1 - np.max(certificate["beta"])))
        lines.append(
            f"certificate (holds with probability {held}% at "
            f"{ITERATES[certificate['iterate']]}, for the {certificate['scope']}):"
        )
        # The worst of several runs: a mean of bounds need not bound any of them.
        upper = _each(certificate["gradient_norm_upper"], _upper, np.max)
        lines.append(f"  gradient norm <= {upper}")
        if certificate["min_eigenvalue_lower"] is not None:
            lower = _each(certificate["min_eigenvalue_lower"], _lower, np.min)
            lines.append(f"  smallest eigenvalue of the Hessian >= {lower}")
    if content["seconds_run"] is not None:
        lines.append(
            f"time: {content['seconds_compile']:.2f} s to compile, "
            f"{content['seconds_run']:.2f} s to run"
        )
    for name in EXACT:
        if content[name] is not None:
            lines.append(f"{name}: {_each(content[name], _number)}  (NOT PRIVATE)")
    return lines


def _certificate(certificate: dpjax.Certificate | None) -> dict[str, Any] | None:
    if (fields := certificate_fields(certificate)) is not None:
        fields["beta"] = np.round(fields["beta"], 7).tolist()  # float32 holds no more digits
    return fields


def _answer(solution: dpjax.Solution, field: str) -> dict[str, Any] | None:
    if (estimate := getattr(solution, field)) is None:
        return None
    lower, upper = getattr(solution, f"{field}_interval")(_CONFIDENCE)
    named = dict(zip(ENDS, (estimate, lower, upper), strict=True))
    numbers = {name: np.asarray(value).tolist() for name, value in named.items()}
    return {**numbers, "confidence": _CONFIDENCE}


def _exact(
    arguments: argparse.Namespace,
    setting: Setting,
    data: dpjax.Dataset,
    solution: dpjax.Solution,
) -> dict[str, Any]:
    unknown: dict[str, Any] = dict.fromkeys(EXACT)
    if not arguments.exact:
        return unknown
    objective = setting.algorithm.objective
    examples = jax.tree.map(jax.numpy.asarray, data.examples)
    tested = examples
    if data.present is not None:
        (x, y), present = examples
        # An accuracy is of records, and absent ones are padding.
        tested = x[present], y[present]
    if data.test_x is not None and data.test_y is not None:
        tested = (jax.numpy.asarray(data.test_x), jax.numpy.asarray(data.test_y))

    # What predicts no label has no accuracy.
    of_labels = [dpjax.diagnostics.exact_accuracy] if objective.predicts else []

    def measure(params: jax.Array) -> list[float]:
        of_all = (
            dpjax.diagnostics.exact_objective(objective, params, examples),
            dpjax.diagnostics.exact_gradient_norm(objective, params, examples),
            dpjax.diagnostics.exact_min_eigenvalue(objective, params, examples),
            *(exact(objective, params, *tested) for exact in of_labels),
        )
        return [float(value) for value in of_all]

    if arguments.repeats:
        rows = [measure(params) for params in solution.params]
        # Accuracy is the last name, and stays None where nothing predicts.
        return unknown | dict(zip(EXACT, map(list, zip(*rows, strict=True)), strict=False))
    return unknown | dict(zip(EXACT, measure(solution.params), strict=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    # JSON has no NaN.
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _each(value: Any, show: Callable[[Any], str], summarize: Callable = np.mean) -> str:
    if not isinstance(value, list):
        return show(value)
    # Compared as text, since NaN does not equal itself.
    if len(set(map(str, value))) == 1:
        return show(value[0])
    if isinstance(value[0], str):
        return ", ".join(sorted(set(value)))
    return f"{show(float(summarize(value)))} ({summarize.__name__} of {len(value)} runs)"


def _number(value: float) -> str:
    return f"{value:.6g}" if np.isfinite(value) else "none"


def _upper(value: float) -> str:
    # Rounded outwards: a bound that is printed below itself is none.
    return ceil(value, 6) if np.isfinite(value) else "none"


def _lower(value: float) -> str:
    return floor(value, 6) if np.isfinite(value) else "none"
