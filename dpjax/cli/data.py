"""``dpjax data``: what is available, where it comes from, and the owner's check of a file."""

import argparse
import os
import sys

import dpjax
from dpjax import _validate


def command(arguments: argparse.Namespace) -> int:
    """Prints the table of data sets, or what is known of one, and returns 0."""
    if arguments.check:
        if arguments.name is None:
            raise ValueError("--check needs the name of a data set or a file.")
        report = dpjax.datasets.check(
            arguments.name, label=arguments.label, bounds=arguments.bounds
        )
        print("warning: exact counts of the data follow, NOT PRIVATE", file=sys.stderr)
        print("\n".join(report.lines()))
        return 0
    infos = dpjax.datasets.describe()
    if arguments.name is None:
        for info in infos:
            here = "here" if info.available else "not here"
            print(f"{info.name:12} {info.rows:>8,} x {info.features:<3} {here:9} {info.task}")
        print(
            "\n`dpjax data NAME` tells more; a path to a CSV or NPZ file works in place of a name."
        )
        return 0
    if os.path.isfile(arguments.name):
        raise ValueError(
            f"{arguments.name} is a file of yours; see what is odd in it with --check."
        )
    _validate.choice("data set", arguments.name, [info.name for info in infos])
    (info,) = (info for info in infos if info.name == arguments.name)
    for field in ("name", "rows", "features", "unit", "task", "source", "available", "checksum"):
        print(f"{field:10} {getattr(info, field)}")
    print(f"{'note':10} {info.note}")
    return 0
