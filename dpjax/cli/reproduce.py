"""``dpjax reproduce``: a paper's table or figure as CSV, picture and page, with ours beside it."""

import argparse
import time

import dpjax
from dpjax.cli.main import COMMANDS
from dpjax.display.bar import Bar


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Adds the command to the parser."""
    one = commands.add_parser(
        "reproduce",
        help=COMMANDS["reproduce"],
        description="Reproduce a paper's tables and figures as CSV, PNG and a Markdown page. NOT "
        "PRIVATE: they hold exact values of public benchmark data. After an "
        "interruption, the same command continues where it stopped.",
    )
    one.set_defaults(command=command)
    one.add_argument(
        "paper", metavar="PAPER", help="trust-region, erm, perturbed, spider or dpagem"
    )
    one.add_argument(
        "figure",
        nargs="?",
        default="all",
        metavar="FIGURE",
        help="trust-region: fig2, fig4, fig6, fig8, fig10, table1; erm: table1, table2, table3; "
        "perturbed: fig2; spider: escape, rates; dpagem: fig1, fig2, gap; or all (default: all)",
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


def command(arguments: argparse.Namespace) -> int:
    """Makes what was asked for, says where it is, and returns 0."""
    experiments = dpjax.experiments
    chosen = experiments.plan(
        arguments.paper, arguments.figure, quick=arguments.quick, seeds=arguments.seeds
    )
    name = chosen.experiment.name
    folder = arguments.out or f"dpjax-reproduce/{name}{'-quick' * chosen.quick}"
    if arguments.redraw:
        for path in experiments.redraw(chosen, folder):
            print(f"wrote {path}")
        return 0
    for absent, found in dict.fromkeys((p.stands_for, p.data) for p in chosen.problems):
        if absent:
            print(f"{absent} is not on this machine (set DPJAX_DATA); {found} stands in for it.")
    if chosen.left_out:
        print(f"left out of the quick run: {', '.join(chosen.left_out)}")
    make(chosen, folder)
    return 0


def make(chosen: dpjax.experiments.Plan, folder: str) -> dpjax.experiments.Results:
    """Runs a plan under a progress bar, and says where its files are."""
    begin = time.perf_counter()
    with Bar(chosen.experiment.name, chosen.trainings, shown=True, keep=False) as bar:
        try:
            results = dpjax.experiments.run(
                chosen, folder, advance=lambda what, more: bar.advance(more, what)
            )
        except KeyboardInterrupt:
            words = "interrupted; run the same command again to continue."
            raise KeyboardInterrupt(words) from None
    for path in chosen.paths(folder):
        print(f"wrote {path}")
    print(f"{chosen.trainings:,} trainings in {time.perf_counter() - begin:.0f} s; NOT PRIVATE")
    return results
