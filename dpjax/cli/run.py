"""``dpjax run``: train privately, print the guarantee, write the result."""

import argparse
import contextlib
import functools
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from dpjax import _validate
from dpjax.accounting import Event, epsilon
from dpjax.algorithms import Algorithm
from dpjax.algorithms.certificate import ITERATES
from dpjax.cli import options, problem, processes
from dpjax.datasets.source import few
from dpjax.display.cards import ceil, floor, printable
from dpjax.driver import check_data, holds_run, root_key, seconds_per_step, starting_point
from dpjax.placement.processes import Team
from dpjax.reporting.facts import certificate_fields
from dpjax.results.remarks import ANSWERS, ENDS, answer_line

_COMPILE_EVENT = "/jax/core/compile/"
_TRIAL_ROWS = 65_536
EXACT = ("exact_objective", "exact_gradient_norm", "exact_min_eigenvalue", "exact_accuracy")
_CONFIDENCE = 0.95
HELP = """
Train privately. The guarantee covers all that is printed but the times; --exact adds what it does
not cover.

dpjax run
dpjax run dp-adam --epsilon 2 --learning-rate 1 --clip-norm 0.5 --plot run.png
dpjax run --data people.csv --schema schema.toml --save model --report report.html
dpjax run --data patients.csv --label sick --classes no,yes --bounds b.json --save model
dpjax run --data people.csv --schema schema.toml --epsilon 3 --inference
dpjax run dp-tr --ledger visits.ledger --checkpoint run-1
dpjax run dp-tr --epsilon 1 --estimate 0.1
dpjax run dp-tr --epsilon 0.5 --dry-run
"""
_OPTIONS: options.Options = {
    "--inference": {
        "nargs": "?",
        "const": "population",
        "choices": ("population", "privacy"),
        "help": "print coefficients with standard errors and intervals that cover the sampling of "
        "records and privacy noise, by noisy-newton; privacy: of the noise alone, by dp-tr",
    },
    "--repeats": {
        "type": int,
        "help": "research only: this many runs, seeds vmapped in one compile",
    },
    "--exact": {"action": "store_true", "help": "add exact values of the data: NOT PRIVATE"},
    "--plot": {"type": options.Output, "help": "draw the released history"},
    **options.REPORT,
    "--bounds-epsilon": {
        "type": float,
        "help": 'the part of --epsilon that finds bounds declared "private" in the schema '
        "(default: a tenth)",
    },
    **options.CHECKPOINT,
    **options.MEMORY,
}
OPTIONS = (*options.PROBLEM, options.ANSWERS, options.TRAINING, _OPTIONS, processes.OPTIONS)
LISTED = options.listed(dpjax.ALGORITHMS)


def command(arguments: argparse.Namespace) -> int:
    """Runs and returns 0; whatever is wrong raises before anything is spent."""
    _infer(arguments)
    if processes.asked_for(arguments):
        return processes.together(arguments, functools.partial(_work, arguments))
    return _work(arguments)


def _work(arguments: argparse.Namespace) -> int:
    everyone = Team(jax.process_count(), jax.process_index())
    # Files are looked at where they are written: in the first process.
    everyone.from_first(functools.partial(_check, arguments))
    # Before the data are read, for what is wrong with the arguments alone.
    problem.objective(arguments)
    private = problem.private_bounds(arguments)
    data = problem.load(arguments) if private is None else private.data
    objective = problem.objective(arguments, data.size)
    dimension = objective.parameters(data.dimension)
    setting = problem.configure(arguments, objective, data.size, dimension, private)
    algorithm = setting.algorithm
    # For a dry run too, which should fail where the training would.
    check_data(algorithm, data, starting_point(algorithm, None))
    problem.warn(algorithm)
    problem.say_labels(arguments, objective, data)
    if arguments.dry_run:
        everyone.from_first(functools.partial(problem.check_spending, arguments, algorithm.event))
        return problem.dry_run(arguments, algorithm, data, costs(algorithm, data))
    if arguments.exact:
        print("warning: --exact prints exact values of the data, NOT PRIVATE", file=sys.stderr)
    begin = time.perf_counter()
    ledger = arguments.ledger
    with _compile_seconds() as compiling:
        if private is not None:
            key = dpjax.random_key() if arguments.seed is None else None
            data = private.find(key=key, seed=arguments.seed, ledger=ledger)
            ledger = None  # it is booked as a whole by now
        solution = _train(arguments, algorithm, data, everyone, ledger)
        # JAX returns before it has computed; the time would be that of nothing.
        jax.block_until_ready(solution.params)
    if not everyone.leads:
        return 0
    passed = time.perf_counter() - begin
    # The clocks of JAX and of this function differ a little.
    compiled = min(_covered(compiling), passed)
    seconds = (compiled, passed - compiled)
    content = result(arguments, setting, data, solution, seconds)
    print("\n".join(summary(content)))
    if arguments.inference and arguments.repeats is None:
        print("", solution.coefficients().summary(), "", sep="\n")
    if not content["releasable"]:
        print("releasable: false (a research run: seeded, repeated, or with exact values)")
    try:
        status = _write(arguments, setting, solution, content)
        if not (arguments.save or arguments.checkpoint or arguments.repeats):
            print("the parameters were not saved: next time give --save FILE")
    finally:  # what is spent is said, whether or not it could be written
        print()
        print(problem.statement(arguments, algorithm, data))
    return status


def _infer(arguments: argparse.Namespace) -> None:
    """Takes the algorithm whose solutions have the intervals that are asked for."""
    if arguments.inference is None and arguments.algorithm == "noisy-newton":
        arguments.inference = "population"
    if arguments.inference is None:
        return
    needed = {"population": "noisy-newton", "privacy": "dp-tr"}[arguments.inference]
    if arguments.algorithm not in ("dp-tr", needed):
        raise ValueError(
            f"--inference {arguments.inference} trains by {needed}: leave out "
            f"{arguments.algorithm}."
        )
    arguments.algorithm = needed


def _check(arguments: argparse.Namespace) -> None:
    if arguments.repeats is not None:
        _validate.positive_int("repeats", arguments.repeats)
    for name in ("save", "report", "checkpoint", "ledger", "distributed", "coordinator"):
        if getattr(arguments, name) and arguments.repeats is not None:
            raise ValueError(f"--{name} is for one training; it does not go with --repeats.")
    options.check(arguments)


def costs(algorithm: Algorithm, data: dpjax.Dataset, trainings: int = 1) -> list[str]:
    """Returns memory and estimated time, from made-up rows of the same width.

    Of a search the time is that of all its trainings, made one after the other.

    Privacy: reads the shape of the data only.
    """
    # The declared n: the real one may be private.
    n, p = algorithm.queries[0].data_size, data.dimension
    most = 1 if data.present is None else data.present.shape[1]  # records of one unit
    arrays = 2 * n * most * (p + 1) * 4 + algorithm.max_steps * 40
    resident = arrays + 6 * algorithm.dimension**2 * 8
    # A batch that is drawn costs the same whatever n is, and is drawn from n.
    sampled = not all(query.sampler.reads_all for query in algorithm.queries)
    rows = n if sampled else min(n, _TRIAL_ROWS)
    leading = (rows,) if data.present is None else (rows, most)
    # Rows of norm 1, as those of a scaled table are.
    examples = (jnp.full((*leading, p), p**-0.5, jnp.float32), jnp.ones(leading))
    if data.present is not None:
        examples = examples, jnp.ones(leading, bool)
    # A pass takes time in proportion to its rows; a drawn batch was timed at n itself.
    seconds = seconds_per_step(algorithm, examples) * n / rows * int(algorithm.steps) * trainings
    return [
        f"memory: about {resident / 2**20:,.0f} MiB of arrays, data included",
        f"time: about {seconds:.2g} s after compiling",
    ]


def _train(
    arguments: argparse.Namespace,
    algorithm: Algorithm,
    data: dpjax.Dataset,
    everyone: Team,
    ledger: str | None,
) -> dpjax.Solution:
    seed, key, folder = arguments.seed, None, arguments.checkpoint
    # The checkpoint is the first process's: others may not see its folder.
    resumed = everyone.from_first(lambda: bool(folder) and holds_run(folder))
    # A run that goes on has its key in the checkpoint.
    if seed is None and not resumed:
        key = dpjax.random_key()
    if arguments.repeats is None:
        # Each process has the whole table, and puts on its devices the shares that are theirs.
        shared = data if everyone.size == 1 else dpjax.distributed.shard(data)
        booked: Any = {"ledger": ledger, "part": arguments.part}
        return dpjax.run(algorithm, shared, key=key, seed=seed, checkpoint=folder, **booked)
    root = root_key(key, seed)
    # One program for all, so that it compiles once.
    keys = jax.random.split(root, arguments.repeats)
    return jax.vmap(lambda key: dpjax.solve(algorithm, data, key=key))(keys)


def _write(
    arguments: argparse.Namespace, setting: problem.Setting, solution: dpjax.Solution, content: dict
) -> int:
    name, budget = os.path.basename(arguments.data), setting.budget
    title = (
        f"{setting.algorithm.title} on {arguments.data}: epsilon {budget.epsilon:g}, "
        f"delta {budget.delta:.2g}, {budget.relation}, per {solution.unit}"
    )
    plot = arguments.plot, lambda path: dpjax.plotting.plot_solution(solution, path, title)
    shown = {
        "title": f"{setting.algorithm.title} on {name}",
        "exact": {field: content[field] for field in EXACT},
    }
    status = options.write_training(arguments, solution, content, plot, **shown)
    scale, objective = solution.preprocessing, setting.algorithm.objective
    predicts = objective.predicts or objective.predicts_numbers
    if arguments.save and scale is not None and predicts:
        print(
            f"predict: {shlex.join(['dpjax', 'predict', arguments.save, 'new.csv'])}, or in "
            f"Python dpjax.load({arguments.save!r}).predict('new.csv'), for a table with the "
            f"columns {few(scale.columns, printable)}, with or without labels"
        )
    return status


def result(
    arguments: argparse.Namespace,
    setting: problem.Setting,
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
    if (certificate := certificate_fields(solution.certificate)) is not None:
        certificate["beta"] = np.round(certificate["beta"], 7).tolist()  # float32 holds no more
    seconds_compile, seconds_run = (None, None) if private else seconds
    inferred = arguments.inference and arguments.repeats is None
    return {
        **problem.header(arguments, setting),
        "unit": data.unit,
        "epsilon": solution.epsilon(delta),
        "epsilon_all_repeats": epsilon(together, delta, event.relation, arguments.accountant),
        # One training's guarantee covers neither repeats nor exact values.
        "releasable": solution.releasable
        and not (arguments.exact or arguments.repeats or arguments.seed is not None),
        "gradient_evaluations": setting.algorithm.evaluations._asdict(),
        "steps": np.asarray(solution.steps).tolist(),
        "planned_steps": int(setting.algorithm.steps),
        "status": statuses(np.asarray(solution.status)).tolist(),
        "certificate": certificate,
        "remarks": solution.remarks,
        "coefficients": solution.coefficients().to_dict() if inferred else None,
        **{field: _answer(solution, field) for field in ANSWERS},
        **_exact(arguments, setting, data, solution),
        "seconds_compile": seconds_compile,
        "seconds_run": seconds_run,
    }


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
            lines.append(answer_line(field, content["n"], answer, _each))
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
        # The worst of several runs, as a mean of bounds need not bound any of them; rounded
        # outwards, as a bound that is printed below itself is none.
        upper = _each(certificate["gradient_norm_upper"], _six_digits(ceil), np.max)
        lines.append(f"  gradient norm <= {upper}")
        if certificate["min_eigenvalue_lower"] is not None:
            lower = _each(certificate["min_eigenvalue_lower"], _six_digits(floor), np.min)
            lines.append(f"  smallest eigenvalue of the Hessian >= {lower}")
    if content["seconds_run"] is not None:
        lines.append(
            f"time: {content['seconds_compile']:.2f} s to compile, "
            f"{content['seconds_run']:.2f} s to run"
        )
    plain = _six_digits("{:.{}g}".format)
    for name in EXACT:
        if content[name] is not None:
            lines.append(f"{name}: {_each(content[name], plain)}  (NOT PRIVATE)")
    return lines


def _answer(solution: dpjax.Solution, field: str) -> dict[str, Any] | None:
    if (estimate := getattr(solution, field)) is None:
        return None
    lower, upper = getattr(solution, f"{field}_interval")(_CONFIDENCE)
    named = dict(zip(ENDS, (estimate, lower, upper), strict=True))
    numbers = {name: np.asarray(value).tolist() for name, value in named.items()}
    return {**numbers, "confidence": _CONFIDENCE}


def _exact(
    arguments: argparse.Namespace,
    setting: problem.Setting,
    data: dpjax.Dataset,
    solution: dpjax.Solution,
) -> dict[str, Any]:
    found: dict[str, Any] = dict.fromkeys(EXACT)
    if not arguments.exact:
        return found
    objective = setting.algorithm.objective
    examples = jax.tree.map(jnp.asarray, data.examples)
    tested = examples
    if data.present is not None:
        (x, y), present = examples
        # An accuracy is of records, and absent ones are padding.
        tested = x[present], y[present]
    if data.test_x is not None and data.test_y is not None:
        tested = (jnp.asarray(data.test_x), jnp.asarray(data.test_y))
    runs = solution.params if arguments.repeats else [solution.params]
    # What predicts no label has no accuracy.
    for name in EXACT if objective.predicts else EXACT[:-1]:
        read, exact = (examples,), getattr(dpjax.diagnostics, name)
        if name == "exact_accuracy":
            read = tested
        values = [float(exact(objective, params, *read)) for params in runs]
        found[name] = values if arguments.repeats else values[0]
    return found


def _each(value: Any, show: Callable[[Any], str], summarize: Callable = np.mean) -> str:
    if not isinstance(value, list):
        return show(value)
    # Compared as text, since NaN does not equal itself.
    if len(set(map(str, value))) == 1:
        return show(value[0])
    if isinstance(value[0], str):
        return ", ".join(sorted(set(value)))
    return f"{show(float(summarize(value)))} ({summarize.__name__} of {len(value)} runs)"


def _six_digits(rounded: Callable[[float, int], str]) -> Callable[[float], str]:
    return lambda value: rounded(value, 6) if np.isfinite(value) else "none"


def _covered(spans: list[tuple[float, float]]) -> float:
    """Returns the length of a union of spans: a function is traced within another's trace.

    >>> _covered([(2.0, 3.0), (1.0, 5.0), (6.0, 7.0)])
    5.0
    """
    length, reached = 0.0, -math.inf
    for begin, end in sorted(spans):
        length += max(end - max(begin, reached), 0.0)
        reached = max(end, reached)
    return length


@contextlib.contextmanager
def _compile_seconds() -> Iterator[list[tuple[float, float]]]:
    """Yields a list that fills with begin and end of what is traced and compiled."""
    spans: list[tuple[float, float]] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event.startswith(_COMPILE_EVENT):
            # JAX tells how long an event took, at its end.
            end = time.perf_counter()
            spans.append((end - duration_secs, end))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield spans
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
