"""How many runs a ledger admits, one chosen after the other, of those that compose exactly.

    python benchmarks/ledger.py

Runs take a third or a seventh of epsilon, in batches of 0.5, 2.5 and 10 % of the data, one pass or
ten, or in 40 steps on all of it. *alike* is a history of such runs alone; *mixed* one that begins
with a run of another kind, unsampled with a hundredth of epsilon, after which they are booked by
Renyi DP. A plan admits the exact number.
"""

import argparse
import contextlib
import itertools
import pathlib
import tempfile

from dpjax.accounting import (
    Event,
    Ledger,
    PoissonRelease,
    PrivacyBudget,
    Release,
    calibrate,
    compose,
    epsilon,
)

SHAPES = ((0.005, 1), (0.005, 10), (0.025, 1), (0.025, 10), (0.1, 1), (0.1, 10), (None, 40))
N = 1_000_000


def run(part, passes, budget):
    """The event of a run that takes all of ``budget``."""

    def make(noise):
        if part is None:
            return Event((Release("gradient", passes, noise),), budget.relation)
        drawn = {"sampling_probability": part, "max_batch_size": N, "data_size": N}
        steps = round(passes / part)
        return Event((PoissonRelease("gradient", steps, noise, **drawn),), budget.relation)

    return make(calibrate(make, budget))


def exact(event, budget):
    """The number of such runs that compose to the budget."""
    return next(
        number - 1
        for number in itertools.count(1)
        if epsilon(compose([event] * number), budget.delta, budget.relation) > budget.epsilon
    )


@contextlib.contextmanager
def opened(budget):
    """A new ledger in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "ledger")
        with Ledger.create(path, budget) as ledger:
            yield ledger


def admitted(event, budget, first=None):
    """The number that a ledger admits, after a run ``first``."""
    with opened(budget) as ledger:
        named = {"label": "made up", "config_hash": "0"}
        if first is not None:
            ledger.reserve(run_id="first", event=first, **named)
        for number in itertools.count():
            try:
                ledger.reserve(run_id=str(number), event=event, **named)
            except ValueError:
                return number


def planned(event, budget, number):
    """Whether a ledger admits a plan of so many runs."""
    with opened(budget) as ledger:
        ledger.plan([event] * number, label="made up")
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--delta", type=float, default=1e-6)
    arguments = parser.parse_args()
    budget = PrivacyBudget(arguments.epsilon, arguments.delta)
    small = run(None, 1, PrivacyBudget(budget.epsilon / 100, budget.delta))
    print("batches passes    run  exact  planned  alike      mixed")
    for (part, passes), share in itertools.product(SHAPES, (3, 7)):
        event = run(part, passes, PrivacyBudget(budget.epsilon / share, budget.delta))
        most = exact(event, budget)
        alike, mixed = admitted(event, budget), admitted(event, budget, small)
        batch = "whole" if part is None else f"{100 * part:g} %"
        print(
            f"{batch:>7} {passes:6}  eps/{share} {most:6} {most * planned(event, budget, most):8} "
            f"{alike:6} ({alike / most:.2f}) {mixed:4} ({mixed / most:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
