"""``dpjax reproduce``: a paper's table or figure as CSV, picture and page, with ours beside it."""

import argparse
import time

import dpjax
from dpjax._bar import Bar
from dpjax.cli.main import COMMANDS


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
        help="few rows, seeds and epsilons, under a minute; the numbers are not results",
    )
    one.add_argument(
        "--redraw",
        action="store_true",
        help="draw the pictures again from the tables in --out, without training",
    )
    one.add_argument(
        "--out", metavar="DIR", help="folder to write to (default: dpjax-reproduce/PAPER)"
    )
    one.add_argument(
        "--seeds", type=int, help="runs for each point (default: 10, spider 20, dpagem 3, quick 2)"
    )


def command(arguments: argparse.Namespace) -> int:
    """Makes what was asked for, says where it is, and returns 0."""
    reproduce = dpjax.reproduce
    chosen = reproduce.plan(
        arguments.paper, arguments.figure, quick=arguments.quick, seeds=arguments.seeds
    )
    folder = arguments.out or f"dpjax-reproduce/{chosen.paper}{'-quick' * chosen.quick}"
    if arguments.redraw:
        for path in reproduce.redraw(chosen, folder):
            print(f"wrote {path}")
        return 0
    begin = time.perf_counter()
    for wanted, found in dict.fromkeys((p.stands_for, p.substitute) for p in chosen.problems):
        if wanted:
            print(f"{wanted} is not on this machine (set DPJAX_DATA); {found} for it.")
    if chosen.left_out:
        print(f"left out of the quick run: {', '.join(chosen.left_out)}")
    with Bar(chosen.paper, chosen.trainings, shown=True, keep=False) as bar:
        try:
            paths = reproduce.reproduce(
                chosen, folder, advance=lambda what, more: bar.advance(more, what)
            )
        except KeyboardInterrupt:
            words = "interrupted; run the same command again to continue."
            raise KeyboardInterrupt(words) from None
    for path in paths:
        print(f"wrote {path}")
    print(f"{chosen.trainings:,} trainings in {time.perf_counter() - begin:.0f} s; NOT PRIVATE")
    return 0
