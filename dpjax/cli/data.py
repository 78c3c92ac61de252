"""``dpjax data``: available data sets, their sources, and the owner's check of a file."""

import argparse
import csv
import io
import os
import shlex
import sys

import dpjax
from dpjax import _validate
from dpjax.cli import problem
from dpjax.datasets.raw import is_table_path


def command(arguments: argparse.Namespace) -> int:
    """Prints the table of data sets, or what is known of one; returns 1 if a check finds fault."""
    if arguments.check:
        if arguments.name is None:
            raise ValueError("--check needs the name of a data set or a file.")
        report = dpjax.datasets.check(
            arguments.name,
            label=arguments.label,
            bounds=arguments.bounds,
            classes=problem.classes(arguments.classes),
        )
        print("warning: exact counts of the data follow, NOT PRIVATE", file=sys.stderr)
        print("\n".join(report.lines()))
        print(_next(arguments, report))
        return 1 if report.exact_problems else 0
    infos = dpjax.datasets.describe()
    if arguments.name is None:
        for info in infos:
            here = "here" if info.available else "not here"
            print(f"{info.name:12} {info.rows:>8,} x {info.features:<3} {here:9} {info.task}")
        print(
            "\n`dpjax data NAME` shows details; a path to a CSV, NPZ, NPY or Parquet file works in "
            "place of a name."
        )
        return 0
    if os.path.isfile(arguments.name):
        raise ValueError(
            f"{arguments.name} is a file, not a named data set; count its problems with --check."
        )
    _validate.choice("data set", arguments.name, [info.name for info in infos])
    (info,) = (info for info in infos if info.name == arguments.name)
    for field in ("name", "rows", "features", "unit", "task", "source", "available", "checksum"):
        print(f"{field:10} {getattr(info, field)}")
    print(f"{'note':10} {info.note}")
    return 0


def _next(arguments: argparse.Namespace, report: dpjax.datasets.CheckReport) -> str:
    """Returns the command to go on with: the check with what it lacks, or the training."""
    label, bounds, classes = arguments.label, arguments.bounds, arguments.classes
    is_file = is_table_path(arguments.name)
    if report.exact_problems:
        unknown = classes is None or report.exact_other_labels
        two = report.exact_classes is not None and len(report.exact_classes) == 2
        if is_file and unknown and two and report.exact_classes is not None:
            classes = _joined(report.exact_classes)
        bounds = bounds or ("bounds.json" if is_file else None)
        start, end = ["dpjax", "data", arguments.name, "--check"], []
    else:
        start, end = ["dpjax", "run", "--data", arguments.name], ["--save", "model"]
    options = {"--label": label, "--classes": classes, "--bounds": bounds}
    given = ["--intercept"] * arguments.intercept
    for name, value in options.items():
        if value:  # one word where the value would be taken for an option
            given += [f"{name}={value}"] if value.startswith("-") else [name, value]
    return f"next: {shlex.join([*start, *given, *end])}"


def _joined(classes: tuple[str, ...]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(classes)
    return line.getvalue().strip()
