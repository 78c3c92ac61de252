"""Entry point of the command line: its parser, the overview without JAX, commands, errors."""

import argparse
import difflib
import importlib
import importlib.metadata
import os
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

COMMANDS = {
    "run": "train privately and print the guarantee",
    "tune": "choose settings by a private random search, whose whole cost is the budget",
    "calibrate": "compute the noise for a budget, and the epsilon of that noise",
    "predict": "predict labels of a table by a saved model, as CSV",
    "evaluate": "release AUC, calibration and accuracy of a saved model on held-out records",
    "show": "print a saved model: guarantee, releases, certificate, coefficients",
    "describe": "take a first look at a table, privately: counts, missing cells, quantiles",
    "data": "list the data sets; begin and check the schema of a table of your own",
    "ledger": "declare a budget for some data, and show what was spent",
    "audit": "attack dpjax's own guarantees: claimed epsilon, audited lower bound, ratio",
    "compare": "train algorithms side by side on a table and print exact values: NOT PRIVATE",
    "reproduce": "reproduce a paper's tables and figures on public data, from a checkout of dpjax",
}
"""Every command, which has a file of its name, and what it does in a line."""
_HELP = """
Train models with differential privacy.

dpjax run                     trains on data that come with dpjax
dpjax COMMAND --help          options and examples of a command
"""
# What other libraries, or people, call an option of ours; without hyphens.
_OTHER_NAMES = {
    "epochs": "--steps",
    "iterations": "--steps",
    "l2normclip": "--clip-norm",
    "lr": "--learning-rate",
    "maxgradnorm": "--clip-norm",
    "output": "--save",
    "stepsize": "--learning-rate",
    "target": "--label",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its status.

    0, or 1 for a failed audit or check, 2 for a bad request, 130 for Ctrl-C, 141 where what reads
    the output, such as ``head``, has ended.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        root = parser(words[:1])
        if not words:
            root.print_help()
            return 0
        arguments = root.parse_args(words)
        if not getattr(arguments, "no_cache", True):
            importlib.import_module("dpjax.cli.compiled").keep()
        status = arguments.command(arguments)
        # Here, so that a reader that has ended is noticed while it can be reported.
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Python writes what is left when it ends, and would print a trace.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # what a shell reports of a program that SIGPIPE ended
    except (ValueError, ImportError, OSError) as error:
        # Not at the top, as it imports JAX, which the overview does without.
        said = importlib.import_module("dpjax.display.cards").printable(str(error))
        print(f"dpjax: {said}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"dpjax: {str(stop) or 'interrupted'}", file=sys.stderr)
        return 130


def parser(named: Collection[str] = tuple(COMMANDS)) -> "Parser":
    """Returns the parser of all commands.

    Those that are named have their options, from the file of the command's name. The options tell
    what dpjax has, and so take seconds to import.
    """
    root = Parser(prog="dpjax")
    root.take(_HELP)
    version = importlib.metadata.version("dpjax")
    root.add_argument("--version", action="version", version=f"dpjax {version}")
    commands = root.add_subparsers(required=True, metavar="COMMAND")
    for name, line in COMMANDS.items():
        command = commands.add_parser(name, help=line)
        if name in named:
            file = importlib.import_module(f"dpjax.cli.{name}")
            command.take(file.HELP, file.command, file.OPTIONS, getattr(file, "LISTED", ""))
            if name == "ledger":
                file.add_verbs(command)
            # The others compile nothing worth keeping.
            if name not in ("data", "ledger", "reproduce", "show"):
                how = "keep no compiled programs for the next start"
                command.add_argument("--no-cache", action="store_true", help=how)
    return root


class Parser(argparse.ArgumentParser):
    """Parses the options; shows examples below its help, and suggests the nearest option."""

    def __init__(self, **kwargs: Any):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)

    def take(
        self,
        text: str,
        command: Callable[[argparse.Namespace], int] | None = None,
        groups: Sequence[Mapping[str, dict[str, Any]]] = (),
        listed: str = "",
    ) -> None:
        """Sets the help, a first paragraph and below it examples, what runs, and its options.

        An option that two groups declare is an error.
        """
        self.set_defaults(command=command)
        description, _, examples = text.strip().partition("\n\n")
        self.description = textwrap.fill(description, 80)
        self.epilog = f"{listed}examples:\n{textwrap.indent(examples, '  ')}"
        for flag, how in [option for group in groups for option in group.items()]:
            shown = getattr(how.get("type"), "shown", None)
            # The option's own metavar wins over that of its type.
            self.add_argument(flag, **({"metavar": shown} | how if shown else how))

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] # as it is called
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As the base class; an unknown option is an error that suggests the nearest one."""
        arguments, rest = super().parse_known_args(args, namespace)
        # argparse would report a missing command or value first.
        if unknown := [word for word in rest if word.startswith("-")]:
            self.error(f"unknown option {unknown[0]}{self._suggestion(unknown[0])}")
        return arguments, rest

    def _suggestion(self, word: str) -> str:
        word = word.partition("=")[0].casefold().replace("_", "-")
        if word == "--algorithm":
            return ": name the algorithm alone, as in dpjax run dp-adam"
        options = [text for action in self._actions for text in action.option_strings]
        other = _OTHER_NAMES.get(word.replace("-", ""))
        near = [other] if other in options else difflib.get_close_matches(word, options, 1, 0.85)
        return f"; did you mean {near[0]}?" if near else "; see --help"
