"""Arguments of every command."""

import argparse
import textwrap
from collections.abc import Iterable

import dpjax
from dpjax.accounting import RELATIONS
from dpjax.cli import (
    audit,
    calibrate,
    compare,
    data,
    ledger,
    predict,
    problem,
    processes,
    reproduce,
    run,
    show,
    tune,
)
from dpjax.cli.main import COMMANDS, overview

_FILES = "a CSV, NPZ, NPY or Parquet file"


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    whole, commands = overview()
    _run_parser(commands)
    _tune_parser(commands)
    _calibrate_parser(commands)
    _predict_parser(commands)
    _show_parser(commands)
    _data_parser(commands)
    _ledger_parser(commands)
    audit.add_parser(commands)
    _compare_parser(commands)
    reproduce.add_parser(commands)
    return whole


def _run_parser(commands: argparse._SubParsersAction) -> None:
    one = commands.add_parser(
        "run",
        help=COMMANDS["run"],
        description="Train privately. The guarantee covers all that is printed but the times; "
        "--exact adds what it does not cover.",
    )
    one.set_defaults(command=run.command)
    _problem_arguments(one)
    one.add_argument(
        "--repeats", type=int, help="research only: this many runs, seeds vmapped in one compile"
    )
    one.add_argument(
        "--exact", action="store_true", help="add exact values of the data: NOT PRIVATE"
    )
    one.add_argument("--plot", metavar="FILE", help="draw the released history")
    one.add_argument(
        "--report",
        metavar="FILE",
        help="write guarantee, releases, coefficients and certificate as one page, .html",
    )
    one.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="save the run as it goes, or resume the run saved there; SECRET: it holds the key",
    )
    _training_arguments(one)
    one.add_argument(
        "--memory-limit",
        metavar="SIZE",
        help="leave the rows of an NPY, Parquet or uncompressed NPZ file on disk where they need "
        "more, such as 2GB, and read them in chunks; scaled rows are kept in a file without a name "
        "in the same folder, if it may be written to; the result is the same",
    )
    processes.add_arguments(one)


def _training_arguments(one: argparse.ArgumentParser) -> None:
    one.add_argument("--seed", type=int, help="research only: reproducible, not for release")
    one.add_argument(
        "--dry-run", action="store_true", help="print guarantee, noise and cost; spend nothing"
    )
    one.add_argument("--json", metavar="FILE", help="write the result as JSON")
    one.add_argument("--save", metavar="FILE", help="write parameters and guarantee")
    one.add_argument(
        "--ledger",
        metavar="FILE",
        help="record the training or search in this ledger, if it fits the budget declared there",
    )
    one.add_argument("--part", metavar="NAME", help="the part of the ledger's data that it reads")


def _tune_parser(commands: argparse._SubParsersAction) -> None:
    one = commands.add_parser(
        "tune",
        help=COMMANDS["tune"],
        description="Train with settings drawn at random, and release the training of the highest "
        "noisy accuracy. The budget covers the whole search: what is released, and that nothing "
        "else is. Prints what the search costs against one training and against all settings "
        "trained once.",
    )
    one.set_defaults(command=tune.command)
    _problem_arguments(one, estimate=False)
    one.add_argument(
        "--grid",
        nargs="+",
        metavar="NAME=VALUES",
        help="settings to draw from, such as learning_rate=0.1,0.3,1 clip_norm=0.5,1, by the names "
        "of the options or of the factory's arguments; regularization too (default: a grid of the "
        "algorithm's)",
    )
    one.add_argument(
        "--trials", type=float, default=10.0, help="expected number of trainings (default: 10)"
    )
    one.add_argument(
        "--cap",
        type=int,
        help="largest number of trainings; so many are always made (default: four times --trials)",
    )
    one.add_argument(
        "--shape",
        type=float,
        default=1.0,
        help="of the distribution of their number: 1 is geometric, 0 logarithmic (default: 1)",
    )
    one.add_argument(
        "--public",
        metavar="FILE",
        help="score each training by its accuracy on these public records, which costs no privacy, "
        "in place of a noisy accuracy on the training records",
    )
    _training_arguments(one)


def _calibrate_parser(commands: argparse._SubParsersAction) -> None:
    one = commands.add_parser(
        "calibrate",
        help=COMMANDS["calibrate"],
        description="Compute the noise for a budget, and recompute epsilon from it. Only the "
        "shape of the data is used; with --data-size and --dimension the data are "
        "not read.",
    )
    _problem_arguments(one)
    # Without a name the shape is that of the embedded data only where none of it is given.
    one.set_defaults(command=calibrate.command, data=None)
    one.add_argument(
        "--dimension", type=int, help="number of parameters (default: that of the data)"
    )
    one.add_argument("--json", metavar="FILE", help="write the result as JSON")


def _predict_parser(commands: argparse._SubParsersAction) -> None:
    one = commands.add_parser(
        "predict",
        help=COMMANDS["predict"],
        description="Predict labels by a saved model: CSV with one line for each record, in their "
        "order. A record with a missing value or an undeclared level gets an empty cell. The "
        "guarantee covers the model, but not predictions for the records it was trained on.",
    )
    one.set_defaults(command=predict.command)
    one.add_argument("model", metavar="MODEL", help="a file that run --save wrote")
    one.add_argument(
        "data",
        metavar="DATA",
        help=f"{_FILES} with the columns trained on, with or without labels; or a name",
    )
    one.add_argument("--out", metavar="FILE", help="write to a file (default: standard output)")
    one.add_argument(
        "--probabilities", action="store_true", help="add a column for each class with its chance"
    )


def _show_parser(commands: argparse._SubParsersAction) -> None:
    one = commands.add_parser(
        "show",
        help=COMMANDS["show"],
        description="Print what a saved model is and guarantees, all of it released or public.",
    )
    one.set_defaults(command=show.command)
    one.add_argument("model", metavar="MODEL", help="a file that run --save wrote")
    one.add_argument("--json", metavar="FILE", help="write it as JSON")


def _data_parser(commands: argparse._SubParsersAction) -> None:
    one = commands.add_parser(
        "data",
        help=COMMANDS["data"],
        description="List the data sets, or show one. For a table of your own begin a schema with "
        "--template, fill it in, and count what it leaves out with --check.",
    )
    one.set_defaults(command=data.command)
    one.add_argument("name", nargs="?", metavar="NAME", help=f"a name, or {_FILES}")
    one.add_argument(
        "--check",
        action="store_true",
        help="for the owner of the data: count problems in them; NOT PRIVATE",
    )
    one.add_argument(
        "--template",
        action="store_true",
        help="print a schema to fill in: the names of a file's columns, and whether each holds "
        "numbers, dates or words",
    )
    one.add_argument("--out", metavar="FILE", help="write the template to a new file")
    _table_arguments(one)


def _ledger_parser(commands: argparse._SubParsersAction) -> None:
    every = commands.add_parser("ledger", help=COMMANDS["ledger"])
    verbs = every.add_subparsers(required=True, metavar="VERB")
    one = verbs.add_parser("create", help="declare a budget in a new file")
    one.set_defaults(command=ledger.create)
    one.add_argument("file", metavar="FILE")
    one.add_argument("--epsilon", type=float, required=True, help="for all runs together")
    one.add_argument("--delta", type=float, required=True, help="for all runs together")
    one.add_argument(
        "--relation",
        default="zero_out",
        help=f"neighbouring relation: {', '.join(RELATIONS)} (default: zero_out)",
    )
    one.add_argument(
        "--renyi-order",
        type=float,
        metavar="ALPHA",
        help="account for runs of different kinds by Renyi DP at this order (default: the order "
        "that admits most)",
    )
    one.add_argument(
        "--unsampled",
        action="store_true",
        help="admit runs without sampling and selection only, and account for them without loss",
    )
    one.add_argument(
        "--parts",
        nargs="+",
        metavar="NAME",
        default=(),
        help="parts of the data that have no unit of privacy in common, by your declaration; runs "
        "with --part spend side by side",
    )
    one = verbs.add_parser(
        "show", help="print the declared budget, the cost of each run, and what remains"
    )
    one.set_defaults(command=ledger.show)
    one.add_argument("file", metavar="FILE")
    one = verbs.add_parser("verify", help="check every line of the file")
    one.set_defaults(command=ledger.verify)
    one.add_argument("file", metavar="FILE")
    one.add_argument(
        "--anchor", metavar="HASH", help="a hash noted earlier, which the file must contain"
    )


def _problem_arguments(one: argparse.ArgumentParser, estimate: bool = True) -> None:
    # Names are checked by dpjax, which suggests the nearest one; argparse only lists them.
    one.add_argument(
        "algorithm",
        nargs="?",
        default="dp-tr",
        metavar="ALGORITHM",
        help="one of those listed below (default: dp-tr)",
    )
    names = [*problem.algorithms()]
    one.epilog = f"algorithms, and what a step asks of the data:\n{_listed(names)}\n\n{one.epilog}"
    _objective_arguments(one)
    one.add_argument("--epsilon", type=float, default=1.0, help="of the budget (default: 1)")
    one.add_argument("--accountant", default="pld", help="pld or rdp (default: pld)")
    one.add_argument(
        "--data-size",
        type=int,
        help="declared number of records n (required under add_or_remove_one; default: that of "
        "the data)",
    )
    if estimate:
        one.add_argument(
            "--estimate",
            type=float,
            metavar="EPSILON",
            help="also release the accuracy on the training records, with noise; EPSILON, such as "
            "0.1, is that of the accuracy alone, and the whole run keeps to --epsilon",
        )
        one.add_argument(
            "--count",
            type=_share,
            nargs="?",
            const=0.02,
            metavar="SHARE",
            help="also release how many records count, that is are not null, with noise; it spends "
            "SHARE of the budget (default: 0.02, by which the training's noise grows by 1 percent)",
        )
    _step_arguments(one)
    _table_arguments(one)
    one.add_argument(
        "--unit",
        metavar="COLUMN",
        help="column of a file that says whose a record is, such as patient: all records of one "
        "are protected together (default: each record by itself)",
    )
    one.add_argument(
        "--max-records",
        type=int,
        metavar="K",
        help="the first K records of a unit count; required with --unit, a declared number",
    )
    one.add_argument(
        "--unit-type",
        choices=("number", "text"),
        help="ids as whole numbers, of which 7, 7.0 and 007 are one, or as text (default: what "
        "both read alike)",
    )


def _compare_parser(commands: argparse._SubParsersAction) -> None:
    one = commands.add_parser(
        "compare",
        help=COMMANDS["compare"],
        description="Train algorithms with their defaults at several epsilons, and write a CSV, a "
        "picture and a page of exact values. NOT PRIVATE: for data that may be looked at. After "
        "an interruption, the same command continues where it stopped.",
    )
    one.set_defaults(command=compare.command)
    names = [name for name in problem.algorithms() if name not in problem.taking("domain")]
    one.epilog = f"algorithms, and what a step asks of the data:\n{_listed(names)}\n\n{one.epilog}"
    one.add_argument(
        "--algorithms",
        default="dp-tr,dp-adam",
        metavar="A,B",
        help="some of those listed below (default: dp-tr,dp-adam)",
    )
    one.add_argument(
        "--epsilons", default="0.5,1,2", metavar="E,F", help="of the budgets (default: 0.5,1,2)"
    )
    one.add_argument("--seeds", type=int, default=10, help="runs for each point (default: 10)")
    one.add_argument(
        "--out",
        default="dpjax-compare",
        metavar="DIR",
        help="folder to write to (default: dpjax-compare)",
    )
    one.add_argument("--json", metavar="FILE", help="write means and standard errors as JSON")
    _objective_arguments(one)
    _table_arguments(one)


def _objective_arguments(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "--data",
        default="randhie",
        help=f"a name, or {_FILES} (default: randhie)",
    )
    one.add_argument(
        "--objective",
        help=f"one of softmax, {', '.join(dpjax.objectives.OBJECTIVES)} (default: by the labels, "
        "logistic-nonconvex for two classes, softmax for more, least-squares for numbers); "
        f"{', '.join(dpjax.objectives.SADDLES)} start at their saddle (all parameters 0)",
    )
    one.add_argument(
        "--regularization",
        type=float,
        help="strength of the objective's penalty, a public number (default: the objective's; for "
        "welsch, the one published for the data)",
    )
    one.add_argument("--delta", type=float, help="of the budget (default: 1/(10 n))")
    one.add_argument(
        "--relation",
        default="zero_out",
        help=f"neighbouring relation: {', '.join(RELATIONS)} (default: zero_out)",
    )


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"SHARE must be a number, got {text!r}; write --count after the algorithm."
        ) from None


def _listed(names: Iterable[str]) -> str:
    return "\n".join(
        textwrap.fill(
            dpjax.algorithms.ALL[name].asks.replace("`", ""),
            80,
            initial_indent=f"  {name:15} ",
            subsequent_indent=" " * 18,
            break_on_hyphens=False,
        )
        for name in names
    )


def _step_arguments(one: argparse.ArgumentParser) -> None:
    # An algorithm that lacks one of them says so, and which have it.
    one.add_argument("--steps", type=int, help="number of iterations (default: the algorithm's)")
    one.add_argument(
        "--batch-size",
        type=int,
        help="expected number of records in a batch, for algorithms that sample",
    )
    one.add_argument(
        "--learning-rate",
        type=float,
        metavar="RATE",
        help="step size, for algorithms that take one (default: the algorithm's)",
    )
    one.add_argument(
        "--clip-norm",
        type=float,
        metavar="C",
        help="bound on one record's gradient (default: the objective's Lipschitz constant)",
    )
    one.add_argument(
        "--radius",
        type=float,
        help="trust radius of the first step, or radius of the noise ball, for "
        f"{', '.join(problem.taking('radius'))} (default: the algorithm's)",
    )
    one.add_argument(
        "--domain",
        metavar="BALL:RADIUS",
        help="ball that the parameters stay in, such as l1:10 or l2:10, for "
        f"{', '.join(problem.taking('domain'))}",
    )


def _table_arguments(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "--schema",
        metavar="FILE",
        help="what each column of a file is, declared in TOML; `dpjax data FILE --template` begins "
        "one. Use it instead of --label, --classes, --bounds and --intercept, which are for tables "
        "of numbers",
    )
    one.add_argument("--label", metavar="COLUMN", help="label column of a file")
    one.add_argument(
        "--classes", metavar="A,B", help="declared labels of a file, negative first, such as No,Yes"
    )
    one.add_argument("--bounds", metavar="FILE", help="declared feature ranges of a file")
    one.add_argument("--intercept", action="store_true", help="append a constant feature")
