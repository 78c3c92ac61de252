"""``dpjax predict``: predictions of a saved model for a table, as CSV."""

import argparse
import contextlib
import csv
import io
import math
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

import dpjax
from dpjax import _durable
from dpjax.cli import options
from dpjax.datasets.cells import to_number
from dpjax.display.bar import Bar
from dpjax.display.cards import printable
from dpjax.results import PredictedRows, predict_table

# Before that a bar would only flicker.
_QUIET_SECONDS = 2.0
# A cell that begins with one of these may be run as a formula by a spreadsheet.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")
_NOTE = (
    "note: the guarantee covers the model. It does not cover predictions for records that the "
    "model was trained on."
)

HELP = """
Predict labels by a saved model: CSV with one line for each record, in their order. A record with a
missing value or an undeclared level gets an empty cell. The guarantee covers the model, but not
predictions for the records it was trained on.

dpjax predict model new.csv --out predictions.csv
dpjax predict model new.csv --probabilities
"""
_OPTIONS: options.Options = {
    "data": {
        "type": options.Operand,
        "metavar": "DATA",
        "help": f"{options.FILES} with the columns trained on, with or without labels; or a name",
    },
    "--out": {"type": options.Output, "help": "write to a file (default: standard output)"},
    "--probabilities": {
        "action": "store_true",
        "help": "add a column for each class with its chance",
    },
}
OPTIONS = options.MODEL, _OPTIONS


def command(arguments: argparse.Namespace) -> int:
    """Writes the predictions and returns 0."""
    options.check(arguments)
    model = dpjax.load(arguments.model)
    chances = arguments.probabilities
    table = predict_table(model, arguments.data, probabilities=chances)
    header = ["prediction", *(f"probability_{name}" for name in model.class_names if chances)]
    # A cell may hold what changes the rest of a terminal; a file gets it as it is.
    shown = printable if arguments.out is None and sys.stdout.isatty() else str
    with _writing(arguments.out) as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(map(shown, header))
        unknown = 0
        # On a terminal a bar would stand among the predictions.
        bar = None if arguments.out or not sys.stdout.isatty() else False
        for block in _watched(table.blocks, table.size, bar):
            lines.writerows(map(shown, row) for row in _cells(block, len(header)))
            unknown += int((~block.known).sum())
    if arguments.out:
        print(f"wrote {arguments.out}")
    if unknown:
        print(
            f"warning: {unknown:,} of {table.size:,} records have no prediction, and an empty cell "
            "in its place: a value is missing or not a number, or a level is not declared",
            file=sys.stderr,
        )
    print(_NOTE, file=sys.stderr)
    return 0


def _cells(block: PredictedRows, width: int) -> Iterator[list[str]]:
    labels, chances = block.labels.tolist(), block.probabilities
    rows = [[]] * len(labels) if chances is None else chances.tolist()
    for label, known, row in zip(labels, block.known, rows, strict=True):
        yield [*map(_text, [label, *row])] if known else [""] * width


def _text(cell: Any) -> str:
    """A cell that a spreadsheet shows as it is: one that it would run gets an apostrophe."""
    text = f"{cell:.10g}" if isinstance(cell, float) else str(cell)
    # A lone sign runs nothing, and a negative number is one.
    runs = len(text) > 1 and text.startswith(_FORMULAS) and not math.isfinite(to_number(text))
    return f"'{text}" if runs else text


def _watched(
    blocks: Iterator[PredictedRows], size: int, shown: bool | None
) -> Iterator[PredictedRows]:
    """The blocks, with a progress bar once they have taken a while."""
    begun, done = time.monotonic(), 0
    with contextlib.ExitStack() as stack:
        bar = None
        for block in blocks:
            yield block
            # After the yield: by then the caller has written the block.
            done += len(block.known)
            if bar is None and time.monotonic() - begun > _QUIET_SECONDS:
                bar = stack.enter_context(Bar("predict", size, shown=shown, keep=False))
            if bar is not None:
                bar.update(done)


@contextlib.contextmanager
def _writing(path: str | None) -> Iterator[TextIO]:
    """A new file that appears when all is written, or standard output."""
    if path:
        with _durable.replacing(path) as file:
            text = io.TextIOWrapper(file, encoding="utf-8", newline="")
            yield text
            text.detach()  # which writes what is left; the file is closed once it is on the disk
        return
    yield sys.stdout
    sys.stdout.flush()
