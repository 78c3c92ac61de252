"""A parser that shows examples below its help and suggests the option nearest to an unknown one."""

import argparse
import difflib
import textwrap
from collections.abc import Sequence
from typing import Any

_EXAMPLES = {
    "dpjax": """
        dpjax run                     trains on data that come with dpjax
        dpjax COMMAND --help          options and examples of a command
    """,
    "dpjax run": """
        dpjax run
        dpjax run dp-adam --epsilon 2 --learning-rate 1 --clip-norm 0.5 --plot run.png
        dpjax run --data people.csv --schema schema.toml --save model --report report.html
        dpjax run --data patients.csv --label sick --classes no,yes --bounds b.json --save model
        dpjax run dp-tr --ledger visits.ledger --checkpoint run-1
        dpjax run dp-tr --epsilon 1 --estimate 0.1
        dpjax run dp-tr --epsilon 0.5 --dry-run
    """,
    "dpjax tune": """
        dpjax tune --dry-run
        dpjax tune dp-gd --grid learning_rate=4,16,64 regularization=1e-4,1e-3
        dpjax tune dp-adam --trials 5 --grid learning_rate=1,2,4 clip_norm=0.25,1 --save model
    """,
    "dpjax calibrate": """
        dpjax calibrate dp-tr --data-size 35000 --dimension 22 --epsilon 1 --delta 1e-6
        dpjax calibrate dp-adam --data randhie --batch-size 500 --steps 200
    """,
    "dpjax predict": """
        dpjax predict model new.csv --out predictions.csv
        dpjax predict model new.csv --probabilities
    """,
    "dpjax show": """
        dpjax show model
        dpjax show model --json model.json
    """,
    "dpjax data": """
        dpjax data
        dpjax data covtype
        dpjax data people.csv --template --label income --out schema.toml
        dpjax data people.csv --check --schema schema.toml
        dpjax data patients.csv --label sick --bounds ranges.json --check
    """,
    "dpjax ledger": """
        dpjax ledger create visits.ledger --epsilon 3 --delta 1e-6
        dpjax run dp-tr --epsilon 1 --ledger visits.ledger
        dpjax ledger show visits.ledger
    """,
    "dpjax ledger create": """
        dpjax ledger create visits.ledger --epsilon 3 --delta 1e-6
        dpjax ledger create visits.ledger --epsilon 3 --delta 1e-6 --unsampled
    """,
    "dpjax ledger show": "dpjax ledger show visits.ledger",
    "dpjax ledger verify": "dpjax ledger verify visits.ledger",
    "dpjax audit": """
        dpjax audit dp-tr
        dpjax audit gaussian --seed 0 --plot audit.png
        dpjax audit --all --quick --json audits.json
    """,
    "dpjax compare": """
        dpjax compare --algorithms dp-tr,dp-adam --epsilons 0.5,1,2
        dpjax compare --data patients.csv --label sick --classes no,yes --bounds b.json
    """,
    "dpjax reproduce": """
        dpjax reproduce erm table1 --quick
        dpjax reproduce trust-region --out pictures
    """,
}

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
    """The parser of ``dpjax`` and of each of its commands, whose examples are found by its name."""

    def __init__(self, **kwargs: Any):
        kwargs["description"] = textwrap.fill(kwargs.get("description") or "", 80)
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)
        lines = textwrap.dedent(_EXAMPLES[self.prog]).strip()
        self.epilog = f"examples:\n{textwrap.indent(lines, '  ')}"

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
        near = [other] if other in options else difflib.get_close_matches(word, options, n=1)
        return f"; did you mean {near[0]}?" if near else "; see --help"
