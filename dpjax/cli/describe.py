"""``dpjax describe``: a first look at a table, within a small part of its budget."""

import argparse
import functools

import dpjax
from dpjax import statistics
from dpjax.cli import options, problem
from dpjax.display.cards import printable
from dpjax.results.guarantee import statement

HELP = """
Take a first look at a table, privately: records that count, missing cells, means, quantiles,
histograms and counts of levels. Bins are made of what is declared.

dpjax describe people.csv --schema schema.toml --report look.html
dpjax describe visits.csv --schema schema.toml --epsilon 0.2 --ledger visits.ledger
dpjax describe people.csv --schema schema.toml --correlation age,income --dry-run
"""
_LIST = {"type": lambda text: text.split(","), "metavar": "A,B"}
_OPTIONS: options.Options = {
    "file": {"type": options.Operand, "metavar": "FILE", "help": options.FILES},
    "--epsilon": {"type": float, "default": 0.1, "help": "to spend (default: 0.1)"},
    **options.DELTA,
    "--data-size": options.BUDGET["--data-size"],
    "--bins": {"type": int, "default": 20, "help": "of a range (default: 20)"},
    "--geometric": {
        **_LIST,
        "help": "columns with geometric bins (default: numbers whose bounds are wide, by a ratio "
        "of 100, or reach from 0 to 1,000)",
    },
    "--correlation": {
        **_LIST,
        "default": [],
        "help": "numbers whose correlations are released too, for 1.4 times the noise",
    },
    "--report": {"type": options.Output, "help": "write a page with a picture of each column"},
    **{name: options.TRAINING[name] for name in ("--dry-run", "--json", "--ledger", "--part")},
}
OPTIONS = _OPTIONS, options.TABLE, options.UNIT


def command(arguments: argparse.Namespace) -> int:
    """Looks once and returns 0; whatever is wrong raises before anything is spent."""
    options.check(arguments)
    chosen = options.values(arguments, options.TABLE, options.UNIT)
    chosen["classes"] = problem.classes(arguments.classes)
    own = ("data_size", "bins", "geometric", "correlation")
    chosen |= {name: getattr(arguments, name) for name in own}
    budget = functools.partial(problem.budget, arguments)
    planned = statistics.plan(arguments.file, budget, **chosen)
    if arguments.dry_run:
        print(statement(planned.algorithm, planned.data.unit, part=arguments.part))
        problem.check_spending(arguments, planned.algorithm.event)
        print("dry run: nothing was spent.")
        return 0
    look = planned.run(dpjax.random_key(), arguments.ledger, arguments.part)
    print(printable(repr(look)))
    try:
        return options.write(
            (arguments.json, lambda path: options.write_json(path, look.to_json())),
            (arguments.report, lambda path: dpjax.report(look, path)),
        )
    finally:
        print(f"\n{look.solution.guarantee()}")
