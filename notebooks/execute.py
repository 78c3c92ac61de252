"""Runs every notebook from its text source; ``--write`` stores the outputs in the .ipynb file."""

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from traitlets.config import Config

HERE = Path(__file__).resolve().parent
SECONDS_PER_CELL = 300
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
# They have no place in a committed output.
OWN_FOLDERS = (str(HERE.parent), str(Path.home()), sys.prefix, tempfile.gettempdir())


ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Failed(Exception):
    """Why one notebook does not pass; the message is for people."""


def main() -> int:
    """Returns how many notebooks failed, 1 at most."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="store outputs in the .ipynb files")
    write = parser.parse_args().write
    failed = False
    for source in sorted(HERE.glob("*.py")):
        if source == Path(__file__).resolve():
            continue
        start = time.perf_counter()
        try:
            check(source, write)
            outcome = "written" if write else "ok"
        except Failed as reason:
            failed, outcome = True, f"FAILED: {reason}"
        print(f"{source.stem}: {time.perf_counter() - start:.1f} s, {outcome}", flush=True)
    return int(failed)


def check(source: Path, write: bool) -> None:
    """Compares a source with its notebook, runs it, and perhaps writes the notebook anew."""
    notebook = jupytext.read(source)
    paired = source.with_suffix(".ipynb")
    if not write:
        compare(notebook, paired)
    run(notebook)
    if write:
        clean(notebook)
        nbformat.write(notebook, paired)


def compare(notebook: nbformat.NotebookNode, paired: Path) -> None:
    """Fails unless the committed notebook has the cells of its source, and outputs."""
    advice = "run `python notebooks/execute.py --write`"
    if not paired.exists():
        raise Failed(f"{paired.name} is missing; {advice}.")
    committed = jupytext.read(paired)
    if cells_of(committed) != cells_of(notebook):
        raise Failed(f"{paired.name} has other cells than its source; {advice}.")
    if not any(cell.get("outputs") for cell in committed.cells):
        raise Failed(f"{paired.name} holds no outputs; {advice}.")


def cells_of(notebook: nbformat.NotebookNode) -> list[tuple[str, str]]:
    """Returns kind and source of each cell."""
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def run(notebook: nbformat.NotebookNode) -> None:
    """Executes the cells in a fresh kernel whose working folder and settings are thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        # Sockets in that folder instead of ports that others on the machine could read.
        kernel = {"transport": "ipc", "connection_file": f"{folder}/kernel.json"}
        client = NotebookClient(
            notebook,
            config=Config(KernelManager=kernel),
            kernel_name=KERNEL["name"],
            timeout=SECONDS_PER_CELL,
            resources={"metadata": {"path": folder}},
            record_timing=False,
        )
        try:
            # What stands in the repository, and not in the wheel, is found by a notebook beside it.
            own = {"IPYTHONDIR": folder, "MPLCONFIGDIR": folder, "PYTHONPATH": str(HERE.parent)}
            client.execute(env={**os.environ, **own})
        except CellTimeoutError as error:
            raise Failed(f"a cell took more than {SECONDS_PER_CELL} s.") from error
        except (CellExecutionError, DeadKernelError) as error:
            raise Failed(ANSI.sub("", str(error))) from error


def clean(notebook: nbformat.NotebookNode) -> None:
    """Leaves only sources and outputs; fails for outputs that should not be published."""
    notebook.metadata = nbformat.from_dict(
        {
            "jupytext": {"formats": "ipynb,py:percent"},
            "kernelspec": KERNEL,
            "language_info": {"name": "python"},
        }
    )
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02d}"
        cell.metadata = nbformat.from_dict({})
        for output in cell.get("outputs", []):
            if "metadata" in output:
                output.metadata = nbformat.from_dict({})
            printed = output.get("text", "") + str(output.get("data", {}).get("text/plain", ""))
            if output.get("name") == "stderr":
                raise Failed(f"cell {number} wrote to stderr: {printed}")
            if any(folder in printed for folder in OWN_FOLDERS):
                raise Failed(f"cell {number} prints a path of this machine: {printed}")


if __name__ == "__main__":
    sys.exit(main())
