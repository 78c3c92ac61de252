"""Attacks on single-pass methods and their correlated noise; NOT PRIVATE, synthetic data."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._typing import Array
from dpjax.accounting import Event, PrivacyBudget, Release
from dpjax.algorithms import stochastic_spider
from dpjax.algorithms.spider import Spider
from dpjax.auditing import canaries, games
from dpjax.auditing.canaries import NeighbouringPair
from dpjax.auditing.claims import Claim
from dpjax.auditing.games import Game
from dpjax.baselines import fixed_batch_spider, gauss_psgd, spider_boost
from dpjax.mechanisms import PrefixNoise

DELTA = 1e-5
_PLAIN = {"kick": 0.0, "candidates": 0}


def spider(
    horizon: int = 4, segments: int = 4, make: Callable[..., Spider] | None = None, **more: Any
) -> Game:
    """Returns the attack on Stochastic Spider: refreshes and differences, for a canary anywhere.

    Steps have length 1 and differences of five records, at which the canary, whose gradient turns
    around at every step, may move as much as in a gradient of ten.

    Args:
      horizon: increments of a segment.
      segments: number of segments in the pass.
      make: the factory; ``stochastic_spider``, or a variant with the same schedule.
      **more: further arguments of the factory.
    """
    clip, batch = 1e-3, 10
    size = segments * (batch + (horizon - 1) * batch // 2)
    if make is None:
        make = functools.partial(
            stochastic_spider, horizon=horizon, drift_threshold=1e6, kick=0.0, candidates=0
        )
    algorithm = make(
        canaries.alternating(),
        PrivacyBudget(4.0, DELTA),
        data_size=size,
        dimension=2,
        batch_size=batch,
        step_size=1.0,
        steps=segments * horizon,
        clip_norm=clip,
        smoothness=0.495 * clip,
        hessian_lipschitz=1.0,
        initial_gap=1.0,
        **more,
    )
    return games.training(algorithm, canaries.records(null=size - 1))


def fixed_batches() -> Game:
    """Returns the attack on Spider with fixed batches, refreshed every third step by its drift."""
    return spider(make=fixed_batch_spider, difference_size=5, drift_threshold=6e-7, **_PLAIN)


def boost() -> Game:
    """Returns the attack on SpiderBoost, refreshed every fourth step."""
    return spider(make=spider_boost, difference_size=5, period=4, candidates=0)


def gauss_psgd_near_saddle() -> Game:
    """Returns the attack on Gauss-PSGD, always near a saddle and without perturbations."""
    more = {"drift_threshold": 1e6, "kick": 0.0, "escape_steps": 100}
    return spider(make=functools.partial(gauss_psgd, horizon=4, **more))


def prefix_sums(noise: PrefixNoise | None = None, stddev: float = 2.5) -> Game:
    """Returns the attack on a tree's prefix sums: the canary is the first leaf.

    Args:
      noise: of the tree.
      stddev: of a node.
    """
    noise = PrefixNoise("tree", 31) if noise is None else noise
    release = Release("tree", 1, stddev / noise.sensitivity)
    pair = NeighbouringPair(jnp.zeros(1), jnp.ones(1), "zero_out")
    # The sums over 1, 2, 4, ... leaves are each one node that holds the canary.
    nodes = np.array([2**level - 1 for level in range(noise.levels)])

    def run(key: Array, canary: Array) -> Array:
        def increment(leaf: Array) -> Array:
            value = jnp.where(leaf == 0, canary, 0.0)
            return noise.perturb(key, value, stddev, leaf)[0]

        increments = jax.lax.map(increment, jnp.arange(nodes[-1] + 1))
        return jnp.sum(jnp.cumsum(increments)[nodes])

    return Game(Claim(Event((release,), "zero_out")), pair, run)
