"""What the options that commands share make: data, objective, algorithm, and what is said of it."""

import argparse
import contextlib
import csv
import functools
import importlib.metadata
import inspect
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import dpjax
from dpjax import _validate
from dpjax.accounting import Event
from dpjax.algorithms import Algorithm
from dpjax.cli import options
from dpjax.datasets.delimited import SUFFIXES, CsvFile
from dpjax.datasets.labels import Label, labels_counted
from dpjax.datasets.registry import SPECS
from dpjax.datasets.scaled import declared_in, is_scaled
from dpjax.datasets.sources import existing, is_table_path
from dpjax.driver import root_key
from dpjax.driver.resume import RunFiles
from dpjax.results import guarantee
from dpjax.results.remarks import remarks
from dpjax.statistics import PrivateBounds


class Setting(NamedTuple):
    """A configured algorithm, its budget, its name on the command line, and the declared n."""

    algorithm: Algorithm
    budget: dpjax.PrivacyBudget
    name: str
    data_size: int


def load(arguments: argparse.Namespace, name: str | None = None) -> dpjax.Dataset:
    """Returns the data that the arguments declare, of the name among them or of another."""
    chosen = options.values(arguments, options.TABLE, options.UNIT)
    chosen["classes"] = classes(arguments.classes)
    chosen["memory_limit"] = memory(getattr(arguments, "memory_limit", None))
    chosen["inference"] = _infers(arguments)
    return dpjax.datasets.load(str(name or arguments.data), **chosen)


def private_bounds(arguments: argparse.Namespace) -> PrivateBounds | None:
    """Returns the training of a schema with private bounds, or None for any other."""
    path = arguments.schema
    if path is None or not dpjax.datasets.Schema.read(path).private:
        if arguments.bounds_epsilon is not None:
            raise ValueError('--bounds-epsilon is for a schema in which bounds = "private".')
        return None
    refused = ["checkpoint", "repeats", "distributed", "coordinator", "part"]
    for name in [*refused, *["inference"] * _infers(arguments)]:
        if getattr(arguments, name):
            raise ValueError(f'--{name} does not go with bounds = "private" in a schema.')
    limit = memory(arguments.memory_limit)
    return PrivateBounds.of(arguments.data, path, memory_limit=limit)


def _infers(arguments: argparse.Namespace) -> bool:
    """Whether coefficients are to be read with intervals for a population."""
    return getattr(arguments, "inference", None) == "population"


def memory(text: str | None) -> int | None:
    """Returns the number of bytes that ``text`` says."""
    if text is None:
        return None
    words = text.strip().upper().removesuffix("B").strip()
    # Powers of 1,000, the smaller reading of GB: what is held then exceeds neither.
    unit = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}.get(words[-1:], 1)
    try:
        size = round(float(words.rstrip("KMGT")) * unit)
    # An infinite size overflows where it is rounded to an integer.
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise ValueError(f"--memory-limit must be a size such as 500MB or 2GB, got {text!r}.")
    return size


def classes(text: str | None) -> list[Label] | None:
    """Returns the labels that ``--classes`` declares, as numbers if all of them are.

    >>> classes("No,Yes"), classes("0,1"), classes('"a, b",c')
    (['No', 'Yes'], [0, 1], ['a, b', 'c'])
    """
    if text is None:
        return None
    return _numbers(label.strip() for label in next(csv.reader([text], skipinitialspace=True), []))


def _numbers(words: Iterable[str]) -> list[Any]:
    """Returns words as numbers if all of them are, else as they are."""
    words = list(words)
    # Integers first, so that 0,1 are shown as they were typed and not as 0.0 and 1.0.
    for convert in (int, float):
        with contextlib.suppress(ValueError):
            return [convert(word) for word in words]
    return words


def flag_quotes(table: str, schema: str | None) -> int:
    """NOT PRIVATE: says what is wrong with the quotes of a CSV, and returns 1 if anything is."""
    if not table.lower().endswith(SUFFIXES):
        return 0
    known = None if schema is None else dpjax.datasets.Schema.read(schema)
    breaks, separator = (known.quoted_line_breaks, known.separator) if known else (False, None)
    problems, _ = CsvFile(existing(table), breaks, separator).exact_faults()
    for problem in problems:
        print(f"wrong (exact counts, NOT PRIVATE): {problem}", file=sys.stderr)
    return int(bool(problems))


def say_labels(
    arguments: argparse.Namespace, objective: dpjax.Objective, data: dpjax.Dataset
) -> None:
    """Prints which labels of a file count, before anything is spent."""
    scale = data.preprocessing
    if not is_table_path(arguments.data) or scale is None:
        return
    counted = None if objective.labels is None else labels_counted(scale.classes)
    if scale.label_bounds is not None:
        low, high = scale.label_bounds
        counted = f"numbers from {low:.15g} (as -1) to {high:.15g} (as +1)"
    if counted is not None:
        print(
            f"accepted labels: {counted}; a record with any other label is a null record",
            flush=True,
        )
    # Its cells are scaled, and can no longer be held against what was declared.
    if is_scaled(arguments.data):
        print("not checked: whether records count; --check of the table that was scaled shows it")
        return
    words = ["dpjax", "data", arguments.data, "--check"]
    for option in ("schema", "label", "classes", "bounds"):
        if (value := getattr(arguments, option)) is not None:
            # As one word: classes such as -1,1 would be taken for an option.
            words.append(f"--{option}={value}")
    said = f"the data's owner can see by {shlex.join(words)}"
    # `dpjax data --check` takes no --unit, only a schema that declares one.
    if getattr(arguments, "unit", None):
        said = f"with a schema, `dpjax data {arguments.data} --template`, its owner can see"
    print(f"not checked: whether records count; {said}")


def objective(arguments: argparse.Namespace, n: int | None = None) -> dpjax.Objective:
    """Returns the objective that the arguments name, or that fits the labels they declare.

    The Welsch loss takes the public strength that is stored for named data. Where ``--unit`` or the
    schema names a unit it is the objective of units. Of a table with n records or units the default
    penalty is ``default_penalty``, and never on the intercept, unless the algorithm needs a
    strongly convex objective. Sets ``arguments.objective`` to its name.
    """
    # ``compare`` has no such option.
    unit, labels = getattr(arguments, "unit", None), classes(arguments.classes)
    intercept = arguments.intercept
    # Undeclared are the labels of a column of booleans, which are two.
    count = 2 if labels is None else len(labels)
    if arguments.schema is not None:
        schema = dpjax.datasets.Schema.read(arguments.schema)
        unit, labels, intercept = schema.unit, schema.label.classes, schema.intercept
        # Of a number there are no classes.
        count = 0 if labels is None else len(labels)
    elif arguments.data in SPECS:
        # What is published of a named set takes the place of declarations.
        count = SPECS[arguments.data].classes
    elif is_scaled(arguments.data):
        unit, held = declared_in(arguments.data)
        intercept = held is not None and held.intercept
        labels = None if held is None else held.classes
        if held is not None and held.label_bounds is not None:
            count = 0
        elif labels is not None:
            count = len(labels)
    if arguments.objective is None:
        # Intervals need a convex objective.
        two = "logistic-l2" if _infers(arguments) else "logistic-nonconvex"
        arguments.objective = {0: "least-squares", 2: two}.get(count, "softmax")
    row = _of_rows(arguments, count, None if arguments.data in SPECS else n)
    if (text := getattr(arguments, "class_weight", None)) is not None:
        # Undeclared classes are known by their numbers alone.
        row = row.weighted(_weights(text, labels or ((-1, 1) if count == 2 else range(count))))
    entry = _entry(arguments)
    if intercept and not (entry is not None and entry.strongly_convex):
        row = row.free_intercept()
    return row if unit is None else row.of_units()


def _weights(text: str, labels: Iterable[Label]) -> list[float]:
    """Returns the weights of ``--class-weight`` in the order of the classes."""
    parts = (word.strip().rpartition("=") for word in next(csv.reader([text]), []))
    held = {name: weight for name, _, weight in parts}
    names = list(map(str, labels))
    with contextlib.suppress(ValueError):
        if sorted(held) == sorted(names):
            return [float(held[name]) for name in names]
    raise ValueError(
        f"--class-weight must be {'=1,'.join([*names, ''])[:-1]} or other declared numbers, got "
        f"{text!r}. Weights balanced by the labels would read them: see `dpjax describe`."
    )


def _entry(arguments: argparse.Namespace) -> Any:
    # ``compare`` has several algorithms, and none of this name.
    return dpjax.algorithms.ALL.get(getattr(arguments, "algorithm", None) or "")


def _of_rows(arguments: argparse.Namespace, count: int, n: int | None) -> dpjax.Objective:
    """The objective of rows with so many classes, 0 where labels are numbers."""
    objectives = dpjax.objectives.OBJECTIVES | {"softmax": dpjax.objectives.softmax}
    others = {"mse": "least-squares", "bce": "logistic", "cross-entropy": "softmax"}
    chosen = objectives[_validate.choice("objective", arguments.objective, objectives, others)]
    # Only softmax has parameters by the number of classes, and no default for it.
    required = {"classes": count} if chosen is dpjax.objectives.softmax else {}
    factory: Callable[..., dpjax.Objective] = functools.partial(chosen, **required)
    strength = arguments.regularization
    if strength is None and chosen is dpjax.objectives.welsch:
        strength = dpjax.objectives.welsch_regularization(arguments.data)
    penalised = "regularization" in inspect.signature(factory).parameters
    of_table = n is not None and penalised and arguments.objective not in dpjax.objectives.SADDLES
    if strength is None and of_table:
        # Under add-or-remove the number of records is private; without a declared one it raises.
        size: Any = arguments.data_size or n
        strength = dpjax.objectives.default_penalty(
            size, arguments.epsilon, count > 0, _infers(arguments)
        )
        if (entry := _entry(arguments)) is not None and entry.unpenalized:
            strength = 0.0
    if strength is None:
        return factory()
    if not penalised:
        raise ValueError(
            f"{arguments.objective} has no regularization to set; leave --regularization out."
        )
    return factory(regularization=strength)


def configure(
    arguments: argparse.Namespace,
    objective: dpjax.Objective,
    n: int,
    dimension: int,
    private: PrivateBounds | None = None,
) -> Setting:
    """Returns the algorithm for n records and ``dimension`` parameters."""
    name, budget, size = declared(arguments, n)
    make = functools.partial(_factory(arguments, name, size), objective, dimension=dimension)
    if arguments.estimate is not None:
        make = functools.partial(dpjax.with_accuracy, make, epsilon=arguments.estimate)
    if arguments.count is not None:
        make = functools.partial(dpjax.with_count, make, share=arguments.count)
    if private is not None:
        share = arguments.bounds_epsilon or budget.epsilon / 10
        return Setting(private.configure(make, budget, share, size), budget, name, size)  # pyright: ignore[reportArgumentType] # by ``Wraps``
    return Setting(make(budget), budget, name, size)


def declared(arguments: argparse.Namespace, n: int) -> tuple[str, dpjax.PrivacyBudget, int]:
    """Returns the algorithm's name on the command line, the budget, and the declared n."""
    factories = dpjax.ALGORITHMS
    if arguments.algorithm in dpjax.algorithms.ALL.keys() - factories.keys():
        function = dpjax.algorithms.ALL[arguments.algorithm].factory.__name__
        raise ValueError(f"{arguments.algorithm} runs in Python alone: dpjax.{function}.")
    # The name in Python is taken too, as a hint: dp_trust_region is dp-tr.
    functions = {factory.__name__: name for name, factory in factories.items()}
    name = _validate.choice("algorithm", arguments.algorithm, factories, functions)
    size = n if arguments.data_size is None else arguments.data_size
    return name, budget(arguments, n), size


def budget(arguments: argparse.Namespace, n: int) -> dpjax.PrivacyBudget:
    """Returns the budget that the arguments declare for n records."""
    delta = arguments.delta
    if arguments.relation == "add_or_remove_one":
        if delta is None or arguments.data_size is None:
            raise ValueError(
                "under add_or_remove_one n is private: declare --data-size and --delta yourself."
            )
    elif delta is None:
        delta = 1 / (10 * _validate.positive_int("data_size", n))
    with warnings.catch_warnings(action="ignore"):  # `warn` says it, with the number of records
        return dpjax.PrivacyBudget(arguments.epsilon, delta, arguments.relation)


def warn(algorithm: Algorithm) -> None:
    """Prints what the budget leaves to be desired, before it is spent."""
    for remark in remarks(algorithm):
        print(f"warning: {remark}", file=sys.stderr)


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
        "noise": [release.to_json() for release in setting.algorithm.event.releases],
        "max_steps": setting.algorithm.max_steps,
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("dpjax", "jax", "jaxlib", "optax", "dp-accounting", "numpy")
        },
    }


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
    return flag_quotes(arguments.data, arguments.schema)


def check_spending(arguments: argparse.Namespace, event: Event) -> None:
    """Raises where a training would, for a seed that is none or a ledger that does not admit it."""
    # Raises for one that is none; ``describe`` takes no seed.
    if getattr(arguments, "seed", None) is not None:
        root_key(None, arguments.seed)
    folder = getattr(arguments, "checkpoint", None)
    RunFiles(folder, arguments.ledger, part=arguments.part).check(event)


def maker(
    arguments: argparse.Namespace, data: dpjax.Dataset, name: str, size: int
) -> Callable[..., Algorithm]:
    """Returns ``make(budget, **setting)`` of an algorithm, also for settings of its objective.

    What ``arguments`` set is the same in every training; of the data the number of features counts.
    """
    factory = _factory(arguments, name, size)

    def make(budget: dpjax.PrivacyBudget, **setting: Any) -> Algorithm:
        # Of the objective, not of the factory; a copy, as each training has another.
        changed = argparse.Namespace(**vars(arguments))
        changed.regularization = setting.pop("regularization", arguments.regularization)
        loss = objective(changed, size)
        return factory(loss, budget, dimension=loss.parameters(data.dimension), **setting)

    return make


def _factory(arguments: argparse.Namespace, name: str, size: int) -> Callable[..., Algorithm]:
    """Returns the factory of an algorithm with what the arguments set, by its names for it."""
    settings: dict[str, Any] = {"accountant": arguments.accountant, "data_size": size}
    for flag, how in options.SETTINGS.items():
        parameter = options.destination(flag, how)
        value: Any = getattr(arguments, parameter)
        if value is None:
            continue
        # A setting that an algorithm ignores would seem to be in force.
        names = options.taking(parameter)
        if name not in names:
            raise ValueError(
                f"{name} takes no {flag[2:].replace('-', ' ')}; leave {flag} out, or take one of: "
                f"{', '.join(names)}."
            )
        if parameter == "domain":
            value = ball(value)
        # Rates, norms and radii; counts are integers, which the factory checks.
        elif isinstance(value, float):
            _validate.positive(flag, value)
        settings[parameter] = value
    return functools.partial(dpjax.ALGORITHMS[name], **settings)


def grid(words: list[str] | None, name: str) -> dict[str, list[Any]]:
    """Returns the settings that ``--grid`` declares, by the names that the factory has for them.

    Words are such as ``["learning_rate=0.1,0.3,1", "clip_norm=0.5,1"]``; None for the default.
    """
    if words is None:
        return dpjax.tuning.default_settings(dpjax.algorithms.ALL[name].grid, name)
    takes = [*inspect.signature(dpjax.ALGORITHMS[name]).parameters, "regularization"]
    settings: dict[str, list[Any]] = {}
    for word in words:
        option, equals, values = word.partition("=")
        option = option.strip().replace("_", "-")
        if not equals or not values.strip():
            raise ValueError(
                f"--grid must be NAME=VALUES, such as learning_rate=0.1,0.3,1, got {word!r}."
            )
        how = options.SETTINGS.get(f"--{option}", {})
        parameter = options.destination(option, how)
        parameter = _validate.choice(f"setting of {name}", parameter, takes)
        if parameter in settings:
            raise ValueError(
                f"--grid names {option.replace('-', '_')} twice; give all its values at once."
            )
        settings[parameter] = [_numbers([text.strip()])[0] for text in values.split(",")]
    return settings


def ball(text: str) -> dpjax.objectives.L1Ball | dpjax.objectives.L2Ball:
    """Returns the ball that ``text`` names."""
    shape, _, radius = text.partition(":")
    try:
        length = float(radius)
    except ValueError:
        said = "domain must be l1:RADIUS or l2:RADIUS, and RADIUS must be a number, such as l1:10"
        raise ValueError(f"{said}, got {text!r}.") from None
    balls = {"l1": dpjax.objectives.L1Ball, "l2": dpjax.objectives.L2Ball}
    return balls[_validate.choice("domain", shape, balls)](_validate.positive("radius", length))
