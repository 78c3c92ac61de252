"""``dpjax evaluate``: how good a saved model is on held-out records, by one private release."""

import argparse

import dpjax
from dpjax.cli import options, problem
from dpjax.datasets.scaled import is_scaled
from dpjax.datasets.sources import is_table_path
from dpjax.display.cards import printable
from dpjax.reporting.statistics import evaluation_sections

HELP = """
Release AUC, calibration, confusion matrix and accuracy of a saved model on records that it was not
trained on, or the errors of a regression, with noise; of persons by the mean of their records. The
guarantee covers all that is printed.

dpjax evaluate model held-out.csv --schema schema.toml --epsilon 0.5
dpjax evaluate model held-out.csv --schema schema.toml --epsilon 0.5 --ledger l --report e.html
"""
_BOOKED = {flag: options.TRAINING[flag] for flag in ("--seed", "--ledger", "--part")}
_OPTIONS: options.Options = {
    "data": {
        "type": options.Operand,
        "metavar": "DATA",
        "help": f"{options.FILES} of other records than trained on, declared as those were; or a "
        "name, whose test records are taken if it has some",
    },
    "--epsilon": {"type": float, "required": True, "help": "of this release"},
    "--data-size": options.BUDGET["--data-size"],
    "--report": {"type": options.Output, "help": "write the model's page with this on it, .html"},
    **options.DELTA,
}
OPTIONS = options.MODEL, _OPTIONS, _BOOKED, options.JSON, options.TABLE, options.UNIT


def command(arguments: argparse.Namespace) -> int:
    """Evaluates and returns 0; whatever is wrong raises before anything is spent."""
    options.check(arguments)
    model = dpjax.load(arguments.model)
    declared = arguments.schema or arguments.label or model.preprocessing is None
    if not declared and is_table_path(arguments.data) and not is_scaled(arguments.data):
        raise ValueError("pass --schema FILE, the one that the model was trained with.")
    # Rows are scaled for effects, and levels compared, as for those of the training.
    arguments.inference = getattr(model.error_bars, "kind", None)
    held = problem.load(arguments)
    data = held if held.test_x is None else held.test
    budget = problem.budget(arguments, data.size)
    size = data.size if arguments.data_size is None else arguments.data_size
    # One of the two: a seed says that the result is for research.
    key = dpjax.random_key() if arguments.seed is None else None
    how = options.values(arguments, _BOOKED) | {"key": key, "data_size": size}
    found = dpjax.statistics.evaluate(model, data, budget, **how)
    sections = evaluation_sections(found)
    # Names of classes are a model's, which may come from anybody.
    print(printable("\n".join(found.lines())))
    try:
        return options.write(
            (arguments.json, lambda path: options.write_json(path, found.to_json())),
            (arguments.report, lambda path: dpjax.report(model, path, sections=sections)),
        )
    finally:  # what is spent is said, whether or not it could be written
        print(f"\n{found.solution.guarantee()}")
