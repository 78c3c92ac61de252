"""What an algorithm shows of itself in a REPL or a notebook: budget, steps and noise."""

from collections.abc import Callable
from typing import Any

from dpjax.accounting import Event, Release
from dpjax.display.cards import INCOMPLETE, Card, HasCard, is_known, number

REPRODUCIBLE = "NOT FOR RELEASE: reproducible noise, from a seed or a key that may come from one."


class AlgorithmCard(HasCard):
    """Shows an ``Algorithm``: what it declares, and the noise that was calibrated for it.

    While JAX traces the algorithm, or where it is a batch, shapes stand for the numbers.
    """

    def _card(self) -> Card:
        algorithm: Any = self
        declared = algorithm.declared
        rows = (
            ("budget", f"epsilon {_six(declared.epsilon)}, delta {_six(declared.delta)}"),
            ("relation", algorithm.relation),
            ("steps", number(algorithm.steps, "{:,}".format)),
            ("parameters", f"{algorithm.dimension:,}"),
            ("noise", of_event(algorithm, noise_words)),
            ("records declared", f"{algorithm.queries[0].data_size:,}"),
            ("objective", algorithm.objective.name),
            ("accountant", algorithm.accountant),
        )
        return Card(f"Algorithm {algorithm.title}", rows)


def noise_words(event: Event) -> str:
    """Returns the multiplier and the standard deviations of each kind of release, on one line.

    >>> noise_words(Event((Release("gradient", 16, noise_multiplier=20.0),), "zero_out"))
    'gradient 16 times, multiplier 20'
    """
    return "; ".join(_release(part) for release in event.releases for part in release.parts())


def of_event(algorithm: Any, words: Callable[[Event], str]) -> str:
    """Returns ``words`` of all releases, or the shape of the algorithm where it is not one run."""
    for value in (algorithm.steps, *algorithm.declared):
        if (shape := number(value, lambda _: "")) != "":
            return shape
    if not is_known(algorithm):
        return "traced"
    try:
        return words(algorithm.event)
    except INCOMPLETE:  # such as a batch of multipliers beside one budget
        return "unknown"


def _release(release: Release) -> str:
    # A single pass is one release, however many answers it gives.
    times = f"{release.count:,} times, " if release.count > 1 else ""
    stds = ", ".join(f"{name} std {stddev:.4g}" for name, stddev in release.components)
    name = release.name.replace("_", " ")
    return f"{name} {times}multiplier {release.noise_multiplier:.5g}" + f" ({stds})" * bool(stds)


def _six(value: Any) -> str:
    return number(value, lambda known: f"{float(known):.6g}")
