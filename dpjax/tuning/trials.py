"""The trainings of a search as one program: all of them are made, one is released.

SECRET until ``choose`` has seen all: the number of trainings that count, their settings, scores and
parameters.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._typing import Array, Params, PyTree
from dpjax.accounting import NumberOfTrials
from dpjax.algorithms import Algorithm
from dpjax.driver import loop
from dpjax.mechanisms import derive
from dpjax.results import Solution


class Draw(NamedTuple):
    """The trainings of a search, drawn from its key; SECRET. Leading axis: one entry a training."""

    keys: Array
    settings: Array
    """Number of the setting, int32."""
    live: Array
    """Whether the training counts, bool."""


class Best(NamedTuple):
    """The training with the largest score so far; released once all have been seen."""

    score: Array
    setting: Array
    solution: Solution


def draw(
    stacked: Algorithm,
    records: PyTree,
    root: Array,
    params: Params,
    number: NumberOfTrials,
    settings: int,
    slots: int,
) -> Draw:
    """Returns ``slots`` trainings, of which the first K count; K is drawn from ``number``.

    By the stacked algorithms another search with the same root key draws otherwise. Each training
    draws one of so many ``settings``, with replacement; K is at most ``slots``.

    Privacy: SECRET; it depends on the key and on public numbers alone.
    """
    key = loop.configuration_key(root, stacked, records, params)
    # Integer thresholds: in float32 the distribution of K would be rounded.
    word = jax.random.bits(derive(key, "number of trials", 0), (), jnp.uint32)
    # The last threshold is 2^32, which no word reaches.
    thresholds = np.cumsum(number.weights)[:-1].astype(np.uint32)
    trials = 1 + jnp.sum(word >= thresholds)
    places = jnp.arange(slots)
    # By its place, so that a training does not depend on K.
    return Draw(
        jax.vmap(functools.partial(derive, key, "trial"))(places),
        # With replacement, as the theorem's trainings are independent (Papernot and Steinke 2022).
        jax.random.randint(derive(key, "settings", 0), (slots,), 0, settings, jnp.int32),
        places < trials,
    )


def stack(algorithms: Sequence[Algorithm]) -> Algorithm:
    """Returns algorithms of one structure as one, whose numbers have a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(list(map(jnp.asarray, leaves))), *algorithms)


def begin(stacked: Algorithm, drawn: Draw, records: PyTree, params: Params) -> loop.Carry:
    """Returns the carries of all trainings before their first step."""

    def one(key: Array, setting: Array) -> loop.Carry:
        bound = _bind(stacked, key, setting, records, params)
        return loop.start(bound, params)

    return jax.vmap(one)(drawn.keys, drawn.settings)


def advance(
    stacked: Algorithm,
    drawn: Draw,
    carries: loop.Carry,
    records: PyTree,
    params: Params,
    rounds: Array | int,
) -> loop.Carry:
    """Returns the carries ``rounds`` steps later, as ``loop.advance_always``."""

    def one(key: Array, setting: Array, carry: loop.Carry) -> loop.Carry:
        bound = _bind(stacked, key, setting, records, params)
        return loop.advance_always(bound, carry, rounds)

    return jax.vmap(one)(drawn.keys, drawn.settings, carries)


def choose(
    stacked: Algorithm,
    drawn: Draw,
    carries: loop.Carry,
    records: PyTree,
    params: Params,
    score: Any,
    before: Best | None,
    unit: str,
    bounded_rows: bool,
) -> Best:
    """Returns the training with the largest score among these that count, and ``before``.

    Ties go to the training drawn first, which is one of them at random. ``carries`` are after the
    last step, and ``score`` is None for the noisy accuracy of a solution.

    Privacy: the result is the release of ``SearchRelease`` if ``before`` and these are all the
      trainings of one draw.
    """

    def one(key: Array, setting: Array, carry: loop.Carry) -> tuple[Solution, Array]:
        bound = _bind(stacked, key, setting, records, params)
        solution = loop.finish(bound, carry, unit, bounded_rows)
        # A training that failed has the score minus infinity, and wins only if all failed.
        value = solution.accuracy if score is None else score(solution.params)
        value = jnp.asarray(value, jnp.float32).reshape(())
        return solution, jnp.where(jnp.isnan(value), -jnp.inf, value)

    solutions, scores = jax.vmap(one)(drawn.keys, drawn.settings, carries)
    # Those that count come first, so that of equal scores, minus infinity too, one of them wins.
    scores = jnp.where(drawn.live, scores, -jnp.inf)
    place = jnp.argmax(scores)
    found = Best(*jax.tree.map(lambda leaf: leaf[place], (scores, drawn.settings, solutions)))
    if before is None:
        return found
    # Strictly above, so that ties stay with the training drawn first.
    better = found.score > before.score
    return jax.tree.map(lambda new, old: jnp.where(better, new, old), found, before)


def search(
    algorithms: Sequence[Algorithm],
    records: PyTree,
    key: Array,
    params: Params,
    number: NumberOfTrials,
    score: Any = None,
    unit: str = "row",
    bounded_rows: bool = False,
) -> Best:
    """Returns the release of a whole search, of all its trainings at once; pure."""
    stacked = stack(algorithms)
    drawn = draw(stacked, records, key, params, number, len(algorithms), number.cap)
    carries = begin(stacked, drawn, records, params)
    carries = advance(stacked, drawn, carries, records, params, rounds_of(algorithms))
    return choose(stacked, drawn, carries, records, params, score, None, unit, bounded_rows)


def rounds_of(algorithms: Sequence[Algorithm]) -> int:
    """Returns the steps of the longest training: so many are computed for each."""
    return max(min(int(algorithm.steps), algorithm.max_steps) for algorithm in algorithms)


def _bind(
    stacked: Algorithm, key: Array, setting: Array, records: PyTree, params: Params
) -> loop.BoundAlgorithm:
    # Indexed under ``vmap``: one program serves every setting.
    algorithm = jax.tree.map(lambda leaf: leaf[setting], stacked)
    return loop.bind_training(algorithm, records, key, params)
