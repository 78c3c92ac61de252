"""NOT PRIVATE: ``python -m benchmarks.papers PAPER``: tables and figures as CSV, PNG and a page."""

import argparse
import sys
import time
from collections.abc import Sequence

from benchmarks.papers import PAPERS, files, plan


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command."""
    figures = "; ".join(f"{name}: {', '.join(paper.figures)}" for name, paper in PAPERS.items())
    one = argparse.ArgumentParser(
        prog="python -m benchmarks.papers",
        description="Reproduce a paper's tables and figures as CSV, PNG and a Markdown page. NOT "
        "PRIVATE: they hold exact values of public benchmark data. After an "
        "interruption, the same command continues where it stopped.",
    )
    one.add_argument("paper", metavar="PAPER", help=", ".join(PAPERS))
    one.add_argument(
        "figure", nargs="?", default="all", metavar="FIGURE", help=f"{figures}; or all (default)"
    )
    one.add_argument(
        "--quick",
        action="store_true",
        help="few rows, seeds and epsilons, about a minute; the numbers are not results",
    )
    one.add_argument(
        "--redraw",
        action="store_true",
        help="make the pictures and the page again from the table in --out, without training",
    )
    one.add_argument(
        "--out", metavar="DIR", help="folder to write to (default: dpjax-reproduce/PAPER)"
    )
    one.add_argument(
        "--seeds", type=int, help="runs for each point (default: 10, spider 20, dpagem 3, quick 2)"
    )
    return one


def main(argv: Sequence[str] | None = None) -> int:
    """Makes what is asked for and returns 0; 2 for a bad request, 130 for Ctrl-C."""
    arguments = parser().parse_args(argv)
    try:
        make(arguments)
        return 0
    except (ValueError, ImportError, OSError) as error:
        print(f"benchmarks.papers: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; run the same command again to continue.", file=sys.stderr)
        return 130


def make(arguments: argparse.Namespace) -> None:
    """Makes what was asked for, and says where it is."""
    begin = time.perf_counter()
    chosen = plan(arguments.paper, arguments.figure, quick=arguments.quick, seeds=arguments.seeds)
    folder = arguments.out or f"dpjax-reproduce/{arguments.paper}{'-quick' * chosen.quick}"
    if arguments.redraw:
        for path in files.redraw(chosen, folder):
            print(f"wrote {path}")
        return
    for absent, found in dict.fromkeys((p.stands_for, p.data) for p in chosen.problems):
        if absent:
            print(f"{absent} is not on this machine (set DPJAX_DATA); {found} stands in for it.")
    if chosen.left_out:
        print(f"left out of the quick run: {', '.join(chosen.left_out)}")
    done = 0

    def advance(what: str, trainings: int) -> None:
        nonlocal done
        done += trainings
        if not trainings:
            print(f"[{done:,}/{chosen.trainings:,}] {what}", file=sys.stderr, flush=True)

    files.run(chosen, folder, advance=advance)
    for path in chosen.paths(folder):
        print(f"wrote {path}")
    print(f"{chosen.trainings:,} trainings in {time.perf_counter() - begin:.0f} s; NOT PRIVATE")


if __name__ == "__main__":
    sys.exit(main())
