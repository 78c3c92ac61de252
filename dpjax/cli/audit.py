"""``dpjax audit``: attacks on dpjax's mechanisms: claimed epsilon, audited lower bound, ratio."""

import argparse
import textwrap
import time
from collections.abc import Callable, Iterator

import jax

import dpjax
from dpjax.cli import options
from dpjax.display.bar import Bar

HELP = """
Play distinguishing games against dpjax's own mechanisms, on synthetic records. Exits with 1 if a
claim is refuted, or if an attack is inconclusive or too weak to be informative.

dpjax audit dp-tr
dpjax audit gaussian --seed 0 --plot audit.png
dpjax audit --all --quick --json audits.json
"""
_OPTIONS: options.Options = {
    "name": {"nargs": "?", "metavar": "NAME", "help": "one of those listed below"},
    "--all": {"action": "store_true", "help": "run every audit (some minutes)"},
    "--runs": {"type": int, "help": "total runs of each audit (default: the audit's own)"},
    "--quick": {"action": "store_true", "help": "fewer runs and lower gates, for CI"},
    "--seed": {"type": int, "help": "seed of the attack (default: a fresh one)"},
    "--json": {"type": options.Output, "help": "write the results as JSON"},
    "--plot": {"type": options.Output, "help": "draw measured errors over claimed curves"},
}
OPTIONS = (_OPTIONS,)
# Names have hyphens, and are to be copied whole.
_NAMES = textwrap.fill(", ".join(dpjax.auditing.AUDITS), 76, break_on_hyphens=False)
LISTED = f"audits:\n{textwrap.indent(_NAMES, '  ')}\n\n"


def command(arguments: argparse.Namespace) -> int:
    """Runs the audits, prints a table, and returns 0 or, if one failed, 1."""
    if arguments.all == (arguments.name is not None):
        raise ValueError(f"name one audit, or pass --all: {', '.join(dpjax.auditing.AUDITS)}.")
    # Without x64 JAX keeps 32 bits of a seed, so that two larger ones could be the same.
    if arguments.seed is not None and not 0 <= arguments.seed < 2**32:
        raise ValueError(f"--seed must be from 0 to 2^32 - 1, got {arguments.seed}.")
    names = list(dpjax.auditing.AUDITS) if arguments.all else [arguments.name]
    # Raises for a number of runs that an audit cannot use, before the first of them begins.
    for name in names:
        dpjax.auditing.plan(name, arguments.runs, arguments.quick)
    options.check(arguments)
    key = dpjax.random_key() if arguments.seed is None else jax.random.key(arguments.seed)
    begin, results = time.perf_counter(), []
    print(_HEADER)
    with Bar(arguments.name or "audits", len(names), shown=True, keep=False) as bar:
        for some in _results(arguments, names, key, bar):
            if some:
                with bar.away():
                    print(*map(_line, some), sep="\n", flush=True)
            results += some
    # Several run at once and end in any order.
    results.sort(key=lambda result: names.index(result.name))
    return _close(arguments, results, time.perf_counter() - begin)


def _results(
    arguments: argparse.Namespace, names: list[str], key: jax.Array, bar: Bar
) -> Iterator[tuple["dpjax.auditing.Audit", ...]]:
    how = {"runs": arguments.runs, "quick": arguments.quick}
    if arguments.all:
        for some in dpjax.auditing.audit_many(names, key=key, **how):
            bar.advance(len(some))
            yield some
        return
    total = dpjax.auditing.plan(names[0], **how)[0]
    # As `audit_many` folds in the place of an audit, here the first.
    audit_key = jax.random.fold_in(key, 0)
    yield (dpjax.auditing.audit(names[0], key=audit_key, **how, progress=_mover(bar, total)),)


def _mover(bar: Bar, total: int) -> Callable[[int], None]:
    """Returns what moves the bar by one for ``total`` runs, and no further if there are more."""
    done = 0

    def move(more: int) -> None:
        nonlocal done
        done += more
        bar.update(min(done / total, 1.0))

    return move


_HEADER = (
    f"{'audit':30} {'relation':18} {'runs':>9} {'measure':>8} {'claimed':>8} {'audited':>8} "
    f"{'ratio':>6} {'gate':>5} {'CP bound':>8} {'seconds':>8}"
)


def _line(result: "dpjax.auditing.Audit") -> str:
    gate = "-" if result.gate is None else f"{result.gate:.2f}"
    attacked = ", ".join(
        f"{name} {most} in {place}"
        for place, queries in result.attacked.items()
        for name, most in queries.items()
        if most
    )
    attacked = f"\n  attacked: {attacked}" if attacked else ""
    return (
        f"{result.name:30} {result.relation:18} {result.runs:>9,} {result.measure:>8} "
        f"{result.claimed:>8.3f} {result.audited:>8.3f} {result.ratio:>6.3f} {gate:>5} "
        f"{result.assumption_free:>8.3f} {result.seconds:>8.1f}"
        f"{'' if result.passed else f'  {result.outcome.upper()}'}{attacked}"
    )


def _close(
    arguments: argparse.Namespace, results: list["dpjax.auditing.Audit"], seconds: float
) -> int:
    failed = [result for result in results if not result.passed]
    deltas = sorted({f"epsilon at delta {result.delta:g}" for result in results if result.epsilon})
    deltas += ["delta(0): delta at epsilon 0, for noise in a ball"] * any(
        result.measure != "epsilon" for result in results
    )
    print(
        f"\n{'; '.join(deltas)}; audited: lower bound at 99.9 % confidence; "
        f"{len(results) - len(failed)} of {len(results)} passed in {seconds:.0f} s"
    )
    for result in failed:
        print(result.verdict)
    audits = [result.to_json() for result in results]
    content = {"audits": audits, "passed": not failed, "seed": arguments.seed, "seconds": seconds}
    status = options.write(
        (arguments.json, lambda path: options.write_json(path, content)),
        (arguments.plot, lambda path: dpjax.auditing.plot_audits(results, path)),
    )
    return status or int(bool(failed))
