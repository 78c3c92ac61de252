"""``dpjax reproduce``: hands over to the papers' reproductions, which stand beside the package."""

import argparse
import importlib.metadata
import os
import pathlib
import sys

from dpjax import _validate

_PAPERS = ("trust-region", "erm", "perturbed", "spider", "dpagem")
# Where the package is a checkout's, this is beside it.
_CHECKOUT = pathlib.Path(__file__).parents[2]

HELP = f"""
Reproduce a paper's tables and figures: {", ".join(_PAPERS)}. In a checkout of dpjax this is
`python -m benchmarks.papers PAPER ...`, whose --help has the options; the package itself has no
papers. NOT PRIVATE.

dpjax reproduce erm table1 --quick
dpjax reproduce trust-region --out pictures
"""
_OPTIONS = {
    "paper": {"metavar": "PAPER", "help": ", ".join(_PAPERS)},
    "more": {"nargs": argparse.REMAINDER, "metavar": "...", "help": "figure and options"},
}
OPTIONS = (_OPTIONS,)


def command(arguments: argparse.Namespace) -> int:
    """Becomes the papers' own command, or says where it is."""
    _validate.choice("paper", arguments.paper, _PAPERS)
    if not (_CHECKOUT / "benchmarks" / "papers" / "__main__.py").exists():
        # The repository's address, where pyproject.toml names it.
        urls = importlib.metadata.metadata("dpjax").get_all("Project-URL") or []
        address = [f" ({url.partition(', ')[2]})" for url in urls if "repo" in url.lower()]
        raise ValueError(
            "the papers' reproductions are no part of the installed package: run `python -m "
            f"benchmarks.papers {arguments.paper}` in a checkout of dpjax{''.join(address[:1])}."
        )
    path = os.pathsep.join(filter(None, [str(_CHECKOUT), os.environ.get("PYTHONPATH")]))
    # -P: a folder named benchmarks where the user stands must not hide the checkout's.
    words = ["-P", "-m", "benchmarks.papers", arguments.paper, *arguments.more]
    os.execve(sys.executable, [sys.executable, *words], os.environ | {"PYTHONPATH": path})
