"""``dpjax calibrate``: the noise for a budget, and the epsilon of that noise."""

import argparse
import contextlib
import textwrap

import dpjax
from dpjax.accounting import epsilon
from dpjax.cli import options, problem
from dpjax.display.cards import ceil
from dpjax.results import guarantee

HELP = """
Compute the noise for a budget, and recompute epsilon from it. Only the shape of the data is used;
with --data-size and --dimension the data are not read.

dpjax calibrate dp-tr --data-size 35000 --dimension 22 --epsilon 1 --delta 1e-6
dpjax calibrate dp-adam --data randhie --batch-size 500 --steps 200
"""
# Without a name the shape is that of the embedded data only where none of it is given.
_DATA: options.Options = {"--data": {**options.DATA["--data"], "default": None}}
_PROBLEM = [_DATA if group is options.DATA else group for group in options.PROBLEM]
_OPTIONS: options.Options = {
    "--dimension": {"type": int, "help": "number of parameters (default: that of the data)"},
}
OPTIONS = (*_PROBLEM, options.ANSWERS, _OPTIONS, options.JSON)
LISTED = options.listed(dpjax.ALGORITHMS)


def command(arguments: argparse.Namespace) -> int:
    """Prints the calibration and returns 0."""
    declared = arguments.data_size is not None, arguments.dimension is not None
    # One number of a shape, and the other from data that nobody named, would be no answer.
    if arguments.data is None and any(declared) and not all(declared):
        flag, other = ("--data-size", "--dimension")[:: 1 if declared[0] else -1]
        raise ValueError(
            f"{flag} alone does not give the shape of the data: add {other}, or name the data with "
            "--data."
        )
    if arguments.data is None and not any(declared):
        arguments.data = "randhie"
    options.check(arguments)
    unit, objective = "row", problem.objective(arguments)
    # Nothing is read: noise depends on the data by their shape alone.
    if all(declared):
        n, dimension = arguments.data_size, arguments.dimension
    else:
        data = problem.load(arguments)
        n, unit = data.size, data.unit
        dimension = arguments.dimension
        if dimension is None:
            dimension = objective.parameters(data.dimension)
    setting = problem.configure(arguments, objective, n, dimension)
    algorithm, budget = setting.algorithm, setting.budget
    problem.warn(algorithm)
    spent = {"pld": epsilon(algorithm.event, budget.delta, budget.relation)}
    looser = "no bound by Renyi accounting"
    # None is known for Poisson batches under replace_one.
    with contextlib.suppress(ValueError):
        spent["rdp"] = epsilon(algorithm.event, budget.delta, budget.relation, "rdp")
        looser = f"{ceil(spent['rdp'], 6)} by Renyi accounting"
    print(
        f"{algorithm.title}, n = {setting.data_size:,} (declared), p = {dimension}, "
        f"{int(algorithm.steps)} steps"
    )
    print(f"budget: epsilon {budget.epsilon:g}, delta {budget.delta:g}, {budget.relation}")
    for release in algorithm.event.releases:
        print(textwrap.indent(guarantee.describe(release), "  "))
    print(f"epsilon of this noise, per {unit}: {ceil(spent['pld'], 6)} exact, {looser}")
    found = {"unit": unit, "epsilon": spent[arguments.accountant], "steps": int(algorithm.steps)}
    content = problem.header(arguments, setting) | found
    return options.write((arguments.json, lambda path: options.write_json(path, content)))
