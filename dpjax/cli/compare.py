"""``dpjax compare``: algorithms side by side on a table, by exact values. NOT PRIVATE."""

import argparse
import sys
import time

import dpjax
from dpjax import comparison
from dpjax.cli import options, problem
from dpjax.display.bar import Bar

_WARNING = (
    "warning: NOT PRIVATE: dpjax compare prints exact values of the data. Use it only on data that "
    "may be looked at; an algorithm chosen by it on private data is a release."
)

HELP = """
Train algorithms with their defaults at several epsilons, and write a CSV, a picture and a page of
exact values. NOT PRIVATE: for data that may be looked at. After an interruption, the same command
continues where it stopped.

dpjax compare --algorithms dp-tr,dp-adam --epsilons 0.5,1,2
dpjax compare --data patients.csv --label sick --classes no,yes --bounds b.json
"""
_OPTIONS: options.Options = {
    "--algorithms": {
        "default": "dp-tr,dp-adam",
        "metavar": "A,B",
        "help": "some of those listed below (default: dp-tr,dp-adam)",
    },
    "--epsilons": {
        "default": "0.5,1,2",
        "metavar": "E,F",
        "help": "of the budgets (default: 0.5,1,2)",
    },
    "--seeds": {"type": int, "default": 10, "help": "runs for each point (default: 10)"},
    "--out": {
        "default": "dpjax-compare",
        "metavar": "DIR",
        "help": "folder to write to (default: dpjax-compare)",
    },
    "--json": {"type": options.Output, "help": "write means and standard errors as JSON"},
}
# The others need a domain, which no option of this command sets.
_NAMES = [name for name in dpjax.ALGORITHMS if name not in options.taking("domain")]
LISTED = options.listed(_NAMES)
OPTIONS = _OPTIONS, options.DATA, options.OBJECTIVE, options.DELTA, options.TABLE


def command(arguments: argparse.Namespace) -> int:
    """Trains all that is compared, prints a table, and returns 0."""
    options.check(arguments)
    chosen = [name.strip() for name in arguments.algorithms.split(",")]
    if without := next((name for name in chosen if name in options.taking("domain")), None):
        raise ValueError(
            f"{without} needs a domain, which no option sets here: compare it in Python, as "
            "functools.partial(FACTORY, domain=...) among dpjax.comparison.Comparison's algorithms."
        )
    try:
        epsilons = [float(word) for word in arguments.epsilons.split(",")]
    except ValueError:
        said = f"--epsilons must be numbers such as 0.5,1,2, got {arguments.epsilons!r}."
        raise ValueError(said) from None
    data, objective = problem.load(arguments), problem.objective(arguments)
    problem.say_labels(arguments, objective, data)
    how = options.values(arguments, options.DELTA) | {"seeds": arguments.seeds}
    compared = comparison.Comparison(data, objective, chosen, epsilons, **how)
    # Before anything exact is printed.
    print(_WARNING, file=sys.stderr, flush=True)
    begin = time.perf_counter()
    with Bar("compare", compared.trainings, shown=True, keep=False) as bar:
        try:
            results = compared.run(arguments.out, lambda what, more: bar.advance(more, what))
        except KeyboardInterrupt:
            # Results are kept as they are computed.
            words = "interrupted; run the same command again to continue."
            raise KeyboardInterrupt(words) from None
    for path in compared.paths(arguments.out):
        print(f"wrote {path}")
    print(f"{compared.trainings:,} trainings in {time.perf_counter() - begin:.0f} s; NOT PRIVATE")
    rows = results.summary()
    print("\nNOT PRIVATE: exact values, mean (standard error) over the seeds")
    print("  ".join(f"{name:>24}" for name in ("algorithm", "epsilon", *results.exact_metrics)))
    for method, epsilon in compared.algorithms:
        at = [r for r in rows if (r["algorithm"], r["epsilon"]) == (method, epsilon)]
        # One seed alone has no standard error, which is NaN.
        cells = [f"{r['mean']:.4g} ({r['standard_error']:.1g})".replace(" (nan)", "") for r in at]
        print("  ".join(f"{cell:>24}" for cell in (method, f"{epsilon:g}", *cells)))
    content = {"releasable": False, "data": data.name, "n": data.size, "p": data.dimension,
               "objective": objective.name, "relation": arguments.relation,
               "delta": compared.delta, "seeds": compared.seeds, "exact_results": rows}  # fmt: skip
    return options.write((arguments.json, lambda path: options.write_json(path, content)))
