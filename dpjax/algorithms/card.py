"""``AlgorithmBase``: what a configuration says of itself, its card and the epsilon it spends."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from dpjax.accounting import Event, Release, epsilon
from dpjax.display.cards import INCOMPLETE, Card, HasCard, is_known, number
from dpjax.oracles import Query

REPRODUCIBLE = "NOT FOR RELEASE: reproducible noise, from a seed or a key that may come from one."


class AlgorithmBase(HasCard):
    """Shows what an algorithm declares and the noise calibrated for it, and accounts for it.

    While JAX traces the algorithm, or where it is a batch, shapes stand for the numbers.
    """

    title: str
    """Name for people."""
    queries: tuple[Query, ...]
    """All queries, of different names; ``ask`` takes these objects."""
    event: Event
    """Everything a whole run releases; on the host."""

    def epsilon(self, delta: float | None = None) -> float | list:
        """Returns the epsilon that a whole run spends at ``delta``, by default the declared one.

        On the host, else it raises, under the budget's relation; of stacked algorithms a list.
        """
        check_on_host(self)
        # Of a batch of algorithms, which ``jax.vmap`` or stacking makes, steps have axes.
        algorithm: Any = self
        return for_each(self, np.shape(algorithm.steps), lambda single: _epsilon(single, delta))

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


class Wraps:
    """What a wrapper of ``algorithm`` does not define, the algorithm does."""

    def __getattr__(self, name: str) -> Any:
        # While a copy of the wrapper is being made, it has no algorithm yet: no recursion then.
        return getattr(object.__getattribute__(self, "algorithm"), name)


def _epsilon(algorithm: Any, delta: float | None) -> float:
    at = float(algorithm.declared.delta) if delta is None else delta
    return epsilon(algorithm.event, at, algorithm.relation, algorithm.accountant)


def check_on_host(tree: Any) -> None:
    """Raises while JAX traces any number of ``tree``."""
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree)):
        raise ValueError(
            "epsilon, event and guarantee are computed on the host; call them outside of jit and "
            "vmap."
        )


def for_each(algorithm: Any, batch: tuple[int, ...], read: Callable[[Any], Any]) -> Any:
    """Returns ``read`` of an algorithm, or nested lists of it for the axes of a batch."""
    if not batch:
        return read(algorithm)
    leaves, structure = jax.tree.flatten(algorithm)
    # A leaf that vmap did not batch has no axis to take from.
    rows = [np.asarray(leaf) for leaf in leaves]
    return [
        for_each(
            jax.tree.unflatten(structure, [row[i] if row.ndim else row for row in rows]),
            batch[1:],
            read,
        )
        for i in range(batch[0])
    ]


def noise_words(event: Event) -> str:
    """Returns the multiplier and the standard deviations of each release, on one line."""
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
