"""A parser that shows examples below its help and suggests the option nearest to an unknown one."""

import argparse
import difflib
import textwrap
from collections.abc import Sequence
from typing import Any

# What other libraries, or people, call an option of ours.
_OTHER_NAMES = {
    "--epochs": "--steps",
    "--iterations": "--steps",
    "--l2-norm-clip": "--clip-norm",
    "--lr": "--learning-rate",
    "--max-grad-norm": "--clip-norm",
    "--output": "--save",
    "--target": "--label",
}


class Parser(argparse.ArgumentParser):
    """An argument parser, also of every subcommand.

    Args:
      examples: commands, one a line, to show below the help.
      **kwargs: as ``argparse.ArgumentParser``.
    """

    def __init__(self, *, examples: str = "", **kwargs: Any):
        lines = textwrap.indent(textwrap.dedent(examples).strip(), "  ")
        kwargs["description"] = textwrap.fill(kwargs.get("description") or "", 80)
        super().__init__(
            epilog=f"examples:\n{lines}" if lines else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **kwargs,
        )

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] # as it is called
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As the base class; an unknown option is an error that suggests the nearest one."""
        found, rest = super().parse_known_args(args, namespace)
        unknown = [word for word in rest if word.startswith("-")]
        if unknown:
            self.error(f"unknown option {unknown[0]}{self._suggestion(unknown[0])}")
        return found, rest

    def _suggestion(self, word: str) -> str:
        word = word.partition("=")[0].casefold().replace("_", "-")
        options = [text for action in self._actions for text in action.option_strings]
        other = _OTHER_NAMES.get(word)
        near = [other] if other in options else difflib.get_close_matches(word, options, n=2)
        return f"; did you mean {' or '.join(near)}?" if near else "; see --help"
