"""The options that several commands share, each declared once, and the files that options name."""

import argparse
import os
import secrets
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from typing import Any

import dpjax
from dpjax import _durable
from dpjax.accounting import RELATIONS
from dpjax.reporting.facts import to_json
from dpjax.reporting.page import check_path

Options = Mapping[str, dict[str, Any]]
"""What ``add_argument`` is told of each option, by its flag."""


class Output(str):
    """A path that a command writes to, which ``check`` looks at before any budget is spent."""

    shown = "FILE"


class Folder(str):
    """A folder that a command writes to."""

    shown = "DIR"


class Input(str):
    """A path that a command reads, which no output may replace, or the name of a data set."""

    shown = "FILE"


class Operand(Input):
    """Such a path that is named without a flag."""


def taking(parameter: str) -> list[str]:
    """Returns the names of the algorithms whose factories have this parameter."""
    factories = dpjax.ALGORITHMS.items()
    return [name for name, factory in factories if parameter in signature(factory).parameters]


def listed(names: Iterable[str]) -> str:
    """Returns what a help says of algorithms, above its examples."""
    lines = ["algorithms, and what a step asks of the data:"]
    for name in names:
        words = f"  {name:15} {dpjax.algorithms.ALL[name].asks}".replace("`", "")
        lines.append(textwrap.fill(words, 80, subsequent_indent=" " * 18, break_on_hyphens=False))
    return "\n".join([*lines, "\n"])


def destination(flag: str, how: Mapping[str, Any]) -> str:
    """Returns the name that an option has among the arguments."""
    return how.get("dest", flag.lstrip("-").replace("-", "_"))


def values(arguments: argparse.Namespace, *groups: Options) -> dict[str, Any]:
    """Returns the values of those options of the groups that the command has, by name."""
    names = [destination(*option) for group in groups for option in group.items()]
    return {name: getattr(arguments, name) for name in names if name in arguments}


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        # argparse takes the word after --count for its value: so does `--count dp-tr`.
        raise argparse.ArgumentTypeError(
            f"SHARE must be a number, got {text!r}; write --count after the algorithm."
        ) from None


FILES = "a CSV, Excel, NPZ, NPY or Parquet file"
# dpjax checks names, and suggests the nearest one; argparse only lists them.
ALGORITHM: Options = {
    "algorithm": {
        "nargs": "?",
        "default": "dp-tr",
        "metavar": "ALGORITHM",
        "help": "one of those listed below (default: dp-tr)",
    }
}
DATA: Options = {
    "--data": {
        "type": Input,
        "metavar": "DATA",
        "default": "randhie",
        "help": f"a name, or {FILES} (default: randhie)",
    }
}
TABLE: Options = {  # all of it are arguments of dpjax.datasets.load
    "--schema": {
        "type": Input,
        "help": "what each column of a file is, declared in TOML; `dpjax data FILE --template` "
        "begins one. Use it instead of --label, --classes, --bounds and --intercept, which are for "
        "tables of numbers",
    },
    "--label": {"metavar": "COLUMN", "help": "label column of a file"},
    "--classes": {
        "metavar": "A,B",
        "help": "declared labels of a file, negative first, such as No,Yes",
    },
    "--bounds": {"type": Input, "help": "declared feature ranges of a file"},
    "--intercept": {"action": "store_true", "help": "append a constant feature"},
}
UNIT: Options = {  # and of this
    "--unit": {
        "metavar": "COLUMN",
        "help": "column of a file that says whose a record is, such as patient: all records of one "
        "are protected together (default: each record by itself)",
    },
    "--max-records": {
        "type": int,
        "metavar": "K",
        "help": "the first K records of a unit count; required with --unit, a declared number",
    },
    "--unit-type": {
        "choices": ("number", "text"),
        "help": "read ids as whole numbers (7, 7.0 and 007 are one) or as text (default: only ids "
        "that both read alike)",
    },
}
MEMORY: Options = {
    "--memory-limit": {
        "metavar": "SIZE",
        "help": "leave the rows of an NPY, Parquet or uncompressed NPZ file on disk where they "
        "need more, such as 2GB, and read them in chunks; the result is the same. Each pass scales "
        "them again, unless `dpjax data FILE --write` did",
    }
}
CHECKPOINT: Options = {
    "--checkpoint": {
        "type": Folder,
        "help": "save the run as it goes, or resume the run saved there; SECRET: it holds the key",
    }
}
OBJECTIVE: Options = {
    "--objective": {
        "help": f"one of softmax, {', '.join(dpjax.objectives.OBJECTIVES)} (default: by the "
        "labels, logistic-nonconvex for two classes, softmax for more, least-squares for numbers); "
        f"{', '.join(dpjax.objectives.SADDLES)} start at their saddle (all parameters 0)"
    },
    "--regularization": {
        "type": float,
        "help": "strength of the objective's penalty, a public number (default: the objective's; "
        "for welsch, the one published for the data)",
    },
    "--class-weight": {
        "metavar": "A=1,B=5",
        "help": "how much a record's loss counts by its class: declared numbers, in ratio",
    },
}
RELATION: Options = {
    "--relation": {
        "default": "zero_out",
        "help": f"neighbouring relation: {', '.join(RELATIONS)} (default: zero_out)",
    }
}
DELTA: Options = {
    "--delta": {"type": float, "help": "of the budget (default: 1/(10 n))"},
    **RELATION,
}
BUDGET: Options = {
    "--epsilon": {"type": float, "default": 1.0, "help": "of the budget (default: 1)"},
    **DELTA,
    "--accountant": {"default": "pld", "help": "pld or rdp (default: pld)"},
    "--data-size": {
        "type": int,
        "help": "declared number of records n (required under add_or_remove_one; default: that of "
        "the data)",
    },
}
ANSWERS: Options = {
    "--estimate": {
        "type": float,
        "metavar": "EPSILON",
        "help": "also release the accuracy on the training records, with noise; EPSILON, such as "
        "0.1, is the part of --epsilon that the accuracy spends",
    },
    "--count": {
        "type": _share,
        "nargs": "?",
        "const": 0.02,
        "metavar": "SHARE",
        "help": "also release how many records count, that is are not null, with noise; it spends "
        "SHARE of the budget (default: 0.02, by which the training's noise grows by 1 percent)",
    },
}
SETTINGS: Options = {  # each is an argument of some factories; the others say so
    "--steps": {"type": int, "help": "number of iterations (default: the algorithm's)"},
    "--batch-size": {
        "type": int,
        "help": "expected number of records in a batch, for algorithms that sample",
    },
    "--learning-rate": {
        "type": float,
        # As the factories call it, which take values by the names of destinations.
        "dest": "step_size",
        "metavar": "RATE",
        "help": "step size, for algorithms that take one (default: the algorithm's)",
    },
    "--clip-norm": {
        "type": float,
        "metavar": "C",
        "help": "bound on one record's gradient (default: the objective's Lipschitz constant)",
    },
    "--radius": {
        "type": float,
        "help": "trust radius of the first step, or radius of the noise ball, for "
        f"{', '.join(taking('radius'))} (default: the algorithm's)",
    },
    "--domain": {
        "metavar": "BALL:RADIUS",
        "help": "ball that the parameters stay in, such as l1:10 or l2:10, for "
        f"{', '.join(taking('domain'))}",
    },
}
JSON: Options = {"--json": {"type": Output, "help": "write the result as JSON"}}
TRAINING: Options = {
    "--seed": {"type": int, "help": "research only: reproducible, not for release"},
    "--dry-run": {"action": "store_true", "help": "print guarantee, noise and cost; spend nothing"},
    **JSON,
    "--save": {"type": Output, "help": "write parameters and guarantee"},
    "--ledger": {
        "type": Input,
        "help": "record the training or search in this ledger, if it fits the budget declared "
        "there",
    },
    "--part": {"metavar": "NAME", "help": "the part of the ledger's data that it reads"},
}
REPORT: Options = {
    "--report": {
        "type": Output,
        "help": "write what an officer asks, guarantee, releases, coefficients and certificate: as "
        "a page, .html, a model card, .md, or .json",
    },
    "--author": {"default": "", "help": "for the report: who trains it and answers questions"},
}
MODEL: Options = {
    "model": {"type": Operand, "metavar": "MODEL", "help": "a file that run --save wrote"}
}
PROBLEM = (ALGORITHM, DATA, OBJECTIVE, BUDGET, SETTINGS, TABLE, UNIT)
"""What is trained on what, at which budget."""


def check(arguments: argparse.Namespace) -> None:
    """Raises if a path cannot be written to at the end, is another's, or one that is read."""
    values = vars(arguments)
    if values.get("part") and not values.get("ledger"):
        raise ValueError("--part is a part that a ledger declares: give --ledger FILE too.")
    taken = {
        # A link may name the same file.
        os.path.realpath(path): name.upper() if isinstance(path, Operand) else f"--{name}"
        for name, path in values.items()
        # A named data set is no file, and no output can overwrite it.
        if isinstance(path, Input) and os.path.exists(path)
    }
    for name, path in values.items():
        if isinstance(path, Output | Folder) and path:
            _check_writable(f"--{name} {path} cannot be written", path)
        if isinstance(path, Output) and path:
            target = os.path.realpath(path)
            if target in taken:
                raise ValueError(
                    f"--{name} and {taken[target]} both name {path}; choose another file."
                )
            taken[target] = f"--{name}"
    # Before the budget is spent, and not when the picture is drawn.
    if values.get("plot"):
        dpjax.plotting.check_path(arguments.plot)
    if values.get("report"):
        check_path(arguments.report)


def _check_writable(refused: str, path: Output | Folder) -> None:
    is_folder = os.path.isdir(path)
    if isinstance(path, Folder):
        if os.path.exists(path) and not is_folder:
            raise ValueError(f"{refused}: it is a file, but must be a folder.")
    elif is_folder:
        raise ValueError(f"{refused}: it is a folder.")
    # A device or a pipe is no file: results would not go into it but take its place.
    elif os.path.exists(path) and not (os.path.isfile(path) and os.access(path, os.W_OK)):
        raise ValueError(f"{refused}: it exists and may not be overwritten.")
    # A file is written beside its old version and renamed, so that its folder must be writable.
    folder = path if is_folder else os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise ValueError(f"{refused}: its folder does not exist.")
    try:
        # ``os.access`` knows neither full disks nor file systems that are read-only.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"{refused}: {error.strerror}.") from error


def write(*outputs: tuple[str | None, Callable[[str], object]]) -> int:
    """Writes each file that is asked for and says so; returns 2 if any could not be written.

    Each is a path, or None, and what writes there. The first is what the budget was spent on: where
    it cannot be written at its path, it is kept among temporary files.
    """
    status = 0
    # All are tried: what one of them lacks is no reason to lose the others.
    for number, (path, writer) in enumerate(outputs):
        if not path:
            continue
        try:
            writer(path)
            print(f"wrote {path}")
        except OSError as error:
            status = 2
            print(f"dpjax: {path} could not be written: {error}", file=sys.stderr)
            if number == 0:
                # A name that nobody can foresee: others may write to this folder too.
                rescued = os.path.join(tempfile.gettempdir(), f"dpjax-{secrets.token_hex(8)}")
                writer(rescued)
                print(f"dpjax: it is kept as {rescued}", file=sys.stderr)
    return status


def write_training(
    arguments: argparse.Namespace, trained: Any, content: dict[str, Any], *more: Any, **page: Any
) -> int:
    """Writes model, JSON and report, where they are asked for, and ``more``, see ``write``."""
    author, model = arguments.author, os.path.basename(arguments.save or "model")
    page = {"model": model, "author": author, "ledger": arguments.ledger} | page
    return write(
        (arguments.save, lambda path: dpjax.save(path, trained, author=author)),
        (arguments.json, lambda path: write_json(path, content)),
        (arguments.report, lambda path: dpjax.report(trained, path, **page)),
        *more,
    )


def write_json(path: str, content: dict[str, Any]) -> None:
    """Writes ``content`` all or nothing; a number that is not finite becomes null."""
    with _durable.replacing(path) as file:
        file.write(to_json(content).encode())
