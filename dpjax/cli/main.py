"""Entry point of the command line: the overview without importing JAX, commands, errors."""

import argparse
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Sequence

from dpjax.cli.options import Parser

COMMANDS = {
    "run": "train privately and print the guarantee",
    "tune": "choose settings by a private random search, whose whole cost is the budget",
    "calibrate": "compute the noise for a budget, and the epsilon of that noise",
    "predict": "predict labels of a table by a saved model, as CSV",
    "show": "print a saved model: guarantee, releases, certificate, coefficients",
    "data": "list the data sets; begin and check the schema of a table of your own",
    "ledger": "declare a budget for some data, and show what was spent",
    "audit": "attack dpjax's own guarantees: claimed epsilon, audited lower bound, ratio",
    "compare": "train algorithms side by side on a table and print exact values: NOT PRIVATE",
    "reproduce": "reproduce a paper's tables and figures on public data, beside the published ones",
}
"""Every command, and what it does in a line."""
_NO_READER = 141  # what a shell reports of a program that SIGPIPE ended


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its status.

    0, or 1 for a failed audit or check, 2 for a bad request, 130 for Ctrl-C, 141 where what reads
    the output, such as ``head``, has ended.

    >>> main(["data", "no-such-set"])
    2
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] not in COMMANDS:
        whole, commands = overview()
        for name, line in COMMANDS.items():
            commands.add_parser(name, help=line)
        if words:
            whole.parse_args(words)  # prints the help or an error, and exits
        whole.print_help()
        return 0
    try:
        # Its options name what dpjax has, and so take seconds to import.
        arguments = parser().parse_args(words)
        status = arguments.command(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Python writes what is left when it ends, and would print a trace.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _NO_READER
    except (ValueError, ImportError, OSError) as error:
        said = importlib.import_module("dpjax.display.cards").printable(str(error))
        print(f"dpjax: {said}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"dpjax: {str(stop) or 'interrupted'}", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands and their options."""
    return importlib.import_module("dpjax.cli.arguments").parser()


def overview() -> tuple[argparse.ArgumentParser, argparse._SubParsersAction]:
    """Returns the parser of the whole command line, and where its commands are added."""
    whole = Parser(prog="dpjax", description="Train models with differential privacy.")
    version = importlib.metadata.version("dpjax")
    whole.add_argument("--version", action="version", version=f"dpjax {version}")
    return whole, whole.add_subparsers(required=True, metavar="COMMAND")
