"""From arguments to a configured algorithm, shared by ``run`` and ``calibrate``."""

import argparse
import contextlib
import csv
import inspect
from typing import NamedTuple

import dpjax
from dpjax import _validate
from dpjax.algorithms import Algorithm
from dpjax.datasets.labels import Label, labels_counted
from dpjax.datasets.raw import is_table_path


class Setting(NamedTuple):
    """A configured algorithm and the names of what it was configured for."""

    algorithm: Algorithm
    budget: dpjax.PrivacyBudget
    name: str
    objective: str
    data_size: int
    dimension: int


def load(arguments: argparse.Namespace) -> dpjax.Dataset:
    """Returns the data set that the arguments name."""
    return dpjax.datasets.load(
        arguments.data,
        label=arguments.label,
        bounds=arguments.bounds,
        intercept=arguments.intercept,
        classes=classes(arguments.classes),
    )


def classes(text: str | None) -> list[Label] | None:
    """Returns the labels that ``--classes`` declares, as numbers if all of them are.

    >>> classes("No,Yes"), classes("0,1"), classes('"a, b",c')
    (['No', 'Yes'], [0, 1], ['a, b', 'c'])
    """
    if text is None:
        return None
    labels = [label.strip() for label in next(csv.reader([text], skipinitialspace=True), [])]
    for convert in (int, float):
        with contextlib.suppress(ValueError):
            return [convert(label) for label in labels]
    return list(labels)


def say_labels(
    arguments: argparse.Namespace, objective: dpjax.Objective, data: dpjax.Dataset
) -> None:
    """Prints which labels of a file count, before anything is spent."""
    if not is_table_path(arguments.data):
        return
    if objective.labels is not None and data.preprocessing is not None:
        counted = labels_counted(data.preprocessing.classes)
        print(f"labels counted: {counted}; every other value makes a null record", flush=True)


def objective(arguments: argparse.Namespace) -> dpjax.Objective:
    """Returns the objective that the arguments name.

    The Welsch loss takes the public strength that is stored for named data.

    Raises:
      ValueError: for an unknown name, or a regularization it has no use for or lacks.
    """
    objectives = dpjax.objectives.OBJECTIVES
    factory = objectives[_validate.choice("objective", arguments.objective, objectives)]
    strength = arguments.regularization
    if strength is None and factory is dpjax.objectives.welsch:
        strength = dpjax.objectives.welsch_regularization(arguments.data)
    if strength is None:
        return factory()
    if "regularization" not in inspect.signature(factory).parameters:
        raise ValueError(
            f"{arguments.objective} has no strength to choose; leave --regularization out."
        )
    return factory(regularization=strength)


def configure(
    arguments: argparse.Namespace, objective: dpjax.Objective, n: int, dimension: int
) -> Setting:
    """Returns the algorithm for n records and ``dimension`` parameters.

    Raises:
      ValueError: for unknown names, or a budget that cannot be met.
    """
    factories = dpjax.ALGORITHMS | dpjax.baselines.BASELINES
    name = _validate.choice("algorithm", arguments.algorithm, factories)
    delta, size = arguments.delta, arguments.data_size
    if arguments.relation == "add_or_remove_one":
        if delta is None or size is None:
            raise ValueError(
                "under add_or_remove_one n is private: declare --data-size and --delta yourself."
            )
    elif delta is None:
        delta = 1 / (10 * _validate.positive_int("data_size", n))
    size = n if size is None else size
    budget = dpjax.PrivacyBudget(arguments.epsilon, delta, arguments.relation)
    given = {
        "steps": arguments.steps,
        "batch_size": arguments.batch_size,
        "domain": None if arguments.domain is None else ball(arguments.domain),
    }
    more = {key: value for key, value in given.items() if value is not None}
    takes = inspect.signature(factories[name]).parameters
    if "batch_size" in more.keys() - takes.keys():
        raise ValueError(f"{name} asks every record at every step; leave --batch-size out.")
    if "domain" in more.keys() - takes.keys():
        raise ValueError(f"{name} stays in no ball; leave --domain out.")
    algorithm = factories[name](
        objective,
        budget,
        data_size=size,
        dimension=dimension,
        accountant=arguments.accountant,
        **more,
    )
    return Setting(algorithm, budget, name, arguments.objective, size, dimension)


def ball(text: str) -> dpjax.objectives.L1Ball | dpjax.objectives.L2Ball:
    """Returns the ball that ``text`` names.

    Raises:
      ValueError: if it is not l1 or l2, a colon, and a radius above 0.

    >>> ball("l1:2.5")
    L1Ball(radius=2.5)
    """
    shape, colon, radius = text.partition(":")
    if not colon:
        raise ValueError(f"domain must be l1:RADIUS or l2:RADIUS, such as l1:10, got {text!r}.")
    balls = {"l1": dpjax.objectives.L1Ball, "l2": dpjax.objectives.L2Ball}
    return balls[_validate.choice("domain", shape, balls)](_validate.positive("radius", radius))
