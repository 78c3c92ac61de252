"""A parser that shows examples below its help and suggests the option nearest to an unknown one."""

import argparse
import difflib
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

# What other libraries, or people, call an option of ours.
_OTHER_NAMES = {
    "--epochs": "--steps",
    "--iterations": "--steps",
    "--l2-norm-clip": "--clip-norm",
    "--lr": "--learning-rate",
    "--max-grad-norm": "--clip-norm",
    "--output": "--save",
    "--step-size": "--learning-rate",
    "--target": "--label",
}


class Parser(argparse.ArgumentParser):
    """The parser of ``dpjax`` and of each of its commands."""

    def __init__(self, **kwargs: Any):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)

    def describe(
        self,
        command: Callable[[argparse.Namespace], int] | None,
        description: str,
        examples: str,
        listed: str = "",
    ) -> None:
        """Sets what runs, and what the help says above and below the options."""
        self.set_defaults(command=command)
        self.description = textwrap.fill(description, 80)
        lines = textwrap.indent(textwrap.dedent(examples).strip(), "  ")
        self.epilog = f"{listed}examples:\n{lines}"

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] # as it is called
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As the base class; an unknown option is an error that suggests the nearest one."""
        arguments, rest = super().parse_known_args(args, namespace)
        # argparse would report a missing command or value first.
        unknown = [word for word in rest if word.startswith("-")]
        if unknown:
            self.error(f"unknown option {unknown[0]}{self._suggestion(unknown[0])}")
        return arguments, rest

    def _suggestion(self, word: str) -> str:
        word = word.partition("=")[0].casefold().replace("_", "-")
        options = [text for action in self._actions for text in action.option_strings]
        other = _OTHER_NAMES.get(word)
        near = [other] if other in options else difflib.get_close_matches(word, options, n=1)
        return f"; did you mean {near[0]}?" if near else "; see --help"
