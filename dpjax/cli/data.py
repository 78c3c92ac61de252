"""``dpjax data``: available data sets, their sources, and the owner's check of a file."""

import argparse
import csv
import io
import os
import shlex
import sys

import dpjax
from dpjax import _validate
from dpjax.cli import options, problem
from dpjax.datasets.sources import existing, is_table_path

HELP = """
List the data sets, or show one. For a table of your own begin a schema with --template, fill it in,
and count what it leaves out with --check.

dpjax data
dpjax data covtype
dpjax data people.csv --template --label income --out schema.toml
dpjax data people.csv --check --schema schema.toml
dpjax data patients.csv --label sick --bounds ranges.json --check
dpjax data people.csv --schema schema.toml --write scaled.npz
"""
_OPTIONS: options.Options = {
    "name": {
        "nargs": "?",
        "type": options.Operand,
        "metavar": "NAME",
        "help": f"a name, or {options.FILES}",
    },
    "--check": {
        "action": "store_true",
        "help": "for the owner of the data: count problems in them; NOT PRIVATE",
    },
    "--template": {
        "action": "store_true",
        "help": "print a schema to fill in: the names of a file's columns, and whether each holds "
        "numbers, dates or words",
    },
    "--out": {"metavar": "FILE", "help": "write the template to a new file"},
    "--write": {
        "type": options.Output,
        "help": "write the rows, scaled and encoded, with all that is declared of them to an NPZ "
        "that run --data takes without declarations; it HOLDS THE RECORDS",
    },
    **options.MEMORY,
}
OPTIONS = _OPTIONS, options.TABLE, options.UNIT


def command(arguments: argparse.Namespace) -> int:
    """Prints the table of data sets, or what is known of one; returns 1 if a check finds fault."""
    actions = [action for action in ("check", "template", "write") if getattr(arguments, action)]
    if actions and arguments.name is None:
        raise ValueError(f"--{actions[0]} needs the name of a file.")
    if len(actions) > 1:
        raise ValueError(f"--{actions[0]} and --{actions[1]} are two commands: leave one out.")
    if arguments.out and not arguments.template:
        raise ValueError("--out is for --template: it names the schema to write.")
    # An option that does nothing would seem to be in force.
    for flag in () if arguments.write else (*options.UNIT, *options.MEMORY):
        if getattr(arguments, options.destination(flag, {})) is not None:
            raise ValueError(f"{flag} is for --write, which names the file of scaled rows.")
    if arguments.name is not None:
        _check_name(arguments.name)
    if arguments.write:
        return _write(arguments)
    if arguments.template:
        return _template(arguments)
    if arguments.check:
        declared = options.values(arguments, options.TABLE)
        declared["classes"] = problem.classes(arguments.classes)
        # Here, since `check` takes no intercept and could not refuse the two.
        if declared.pop("intercept") and arguments.schema:
            raise ValueError("--intercept must be left out beside --schema, which declares it.")
        report = dpjax.datasets.check(arguments.name, **declared)
        # On standard error, where it is seen even if the counts go to a file.
        print("warning: exact counts of the data follow, NOT PRIVATE", file=sys.stderr)
        print("\n".join(report.lines()))
        print(_next(arguments, report))
        return 1 if report.exact_problems else 0
    infos = dpjax.datasets.describe()
    if arguments.name is None:
        for info in infos:
            where = "here" if info.available else "not here"
            print(f"{info.name:12} {info.rows:>8,} x {info.features:<3} {where:9} {info.task}")
        print(
            "\n`dpjax data NAME` shows details. For a table of your own, a CSV, Excel, NPZ, NPY or "
            "Parquet file,\nbegin a schema: `dpjax data FILE --template --out schema.toml`."
        )
        return 0
    if is_table_path(arguments.name):
        raise ValueError(
            f"{arguments.name} is a file, not a named data set: begin its schema with --template, "
            "or count its problems with --check."
        )
    (info,) = (info for info in infos if info.name == arguments.name)
    for field in ("name", "rows", "features", "unit", "task", "source", "available", "checksum"):
        print(f"{field:10} {getattr(info, field)}")
    print(f"{'note':10} {info.note}")
    return 0


def _check_name(name: str) -> None:
    """Raises unless a name is that of a data set, or of a file of a kind that is read."""
    names = [info.name for info in dpjax.datasets.describe()]
    if is_table_path(name):
        existing(name)
    # A named data set wins over a file of its name.
    elif os.path.isfile(name) and name not in names:
        raise ValueError(f"{name} is not a CSV, Excel, NPZ, NPY or Parquet file.")
    else:
        _validate.choice("data set", name, names)


def _write(arguments: argparse.Namespace) -> int:
    """Writes scaled rows to a file that a training reads."""
    options.check(arguments)
    dpjax.datasets.write(problem.load(arguments, arguments.name), arguments.write)
    print(f"wrote {arguments.write}: it HOLDS THE RECORDS, keep it as secret as {arguments.name}")
    print(f"next: {shlex.join(['dpjax', 'run', '--data', arguments.write, '--save', 'model'])}")
    return problem.flag_quotes(arguments.name, arguments.schema)


def _template(arguments: argparse.Namespace) -> int:
    for option in ("schema", "classes", "bounds", "intercept"):
        if getattr(arguments, option):
            raise ValueError(f"--{option} does not go with --template: leave it out.")
    text = dpjax.datasets.template(arguments.name, arguments.label)
    # The owner sees it here, before a schema is built on lines that are no records.
    flagged = problem.flag_quotes(arguments.name, None)
    if not arguments.out:
        print(text, end="")
        return flagged
    try:
        # Never over a schema that was filled in.
        with open(arguments.out, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ValueError(
            f"--out {arguments.out} exists, and may be filled in already: name another file."
        ) from None
    print(f"wrote {arguments.out}: fill it in, then")
    check = ["dpjax", "data", arguments.name, "--check", "--schema", arguments.out]
    print(f"next: {shlex.join(check)}")
    return flagged


def _next(arguments: argparse.Namespace, report: dpjax.datasets.CheckReport) -> str:
    """Returns the command to go on with: the check with what it lacks, or the training."""
    start, end = ["run", "--data", arguments.name], ["--save", "model"]
    bounds, classes = arguments.bounds, arguments.classes
    if report.exact_problems:
        start, end = ["data", arguments.name, "--check"], []
        # A named data set has its declarations, and so has a schema.
        if is_table_path(arguments.name) and not arguments.schema:
            bounds, found = bounds or "bounds.json", report.exact_classes or ()
            if len(found) == 2 and (classes is None or report.exact_other_labels):
                # As --classes is read, by csv: a label may hold a comma or a quote.
                csv.writer(line := io.StringIO()).writerow(found)
                classes = line.getvalue().strip()
    options = {"--schema": arguments.schema, "--label": arguments.label}
    options |= {"--classes": classes, "--bounds": bounds}
    declared = ["--intercept"] * arguments.intercept
    for name, value in options.items():
        if value:  # one word where the value would be taken for an option
            declared += [f"{name}={value}"] if value.startswith("-") else [name, value]
    return f"next: {shlex.join(['dpjax', *start, *declared, *end])}"
