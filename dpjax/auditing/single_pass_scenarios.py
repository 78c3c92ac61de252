"""Attacks on single-pass methods, which whiten their correlated noise; NOT PRIVATE."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax._typing import Array, Params, PyTree, pytree_dataclass, static
from dpjax.accounting import Event, Release
from dpjax.algorithms.base import Ask
from dpjax.algorithms.spider import Spider
from dpjax.auditing.canaries import NeighbouringPair
from dpjax.auditing.claims import GaussianClaim, claim_of
from dpjax.auditing.games import Game, Train
from dpjax.driver import solve
from dpjax.mechanisms import PrefixNoise, derive
from dpjax.oracles import EstimateQuery
from dpjax.sampling import Ordered, SinglePass, ordered


class SegmentScores(NamedTuple):
    """The increments of the current segment, as the attacker scores them, one row each."""

    state: Any
    """State of the attacked algorithm."""
    residuals: Array
    """Answer minus the exact value on D, in standard deviations of the draws, (K, p)."""
    shifts: Array
    """Exact value on D' minus that on D, in the same unit, (K, p)."""


@pytree_dataclass
class KnownOrder(SinglePass):
    """A single pass in an order that is drawn beforehand, so that the attacker knows it.

    Args:
      order: int32 (n,), uniformly random.
    """

    order: Array = dataclasses.field(kw_only=True)

    def prepare(self, key: Array, records: PyTree) -> Ordered:
        """Returns the records in that order."""
        del key
        return Ordered(records, self.order)


class LogRatio(NamedTuple):
    """Score of one increment of a recorded run."""

    log_ratio: Array
    """Log-likelihood ratio, D' to D, of each answer given those before."""


@pytree_dataclass
class PassRecorder:
    """A wrapper around Spider that scores each increment as it is released.

    It scores each segment separately, so it would miss noise that two segments share.

    Args:
      algorithm: the attacked algorithm.
      without: records of D, ``Ordered`` as they are read.
      canary: records of D'.
      max_steps: the algorithm's planned steps.
    """

    algorithm: Spider
    without: PyTree
    canary: PyTree
    max_steps: int = static()

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "algorithm"), name)

    def init(self, params: Params) -> SegmentScores:
        """Returns the algorithm's state and an empty segment."""
        rows = jnp.zeros((self.estimate.noise.horizon, self.dimension))
        return SegmentScores(self.algorithm.init(params), rows, rows)

    def step(self, key: Array, state: SegmentScores, ask: Ask) -> tuple[SegmentScores, LogRatio]:
        """Returns the algorithm's next state, and the score of its increment."""
        increments = []

        def record(query: EstimateQuery, params: Params, **public: Any) -> PyTree:
            answer = ask(query, params, **public)
            increments.append(self._whiten(state, answer, params, public))
            return answer

        inner, _ = self.algorithm.step(key, state.state, record)
        residuals, shifts, leaf = increments[0]
        row = jnp.asarray(self.estimate.noise.strategy(), residuals.dtype)[leaf]
        residual, shift = row @ residuals, row @ shifts
        ratio = jnp.vdot(shift, residual - shift / 2)
        return SegmentScores(inner, residuals, shifts), LogRatio(ratio)

    def done(self, state: SegmentScores) -> Array:
        """Returns whether the algorithm is done."""
        return self.algorithm.done(state.state)

    def stopped(self, state: SegmentScores) -> Array:
        """Returns the algorithm's termination status."""
        return self.algorithm.stopped(state.state)

    def close(self, key: Array, state: SegmentScores, ask: Ask) -> SegmentScores:
        """Returns the state; no further query is needed."""
        del key, ask
        return state

    def iterate(self, state: SegmentScores) -> Params:
        """Returns the last iterate."""
        return state.state.params

    def output(self, state: SegmentScores) -> Params:
        """Returns the last iterate."""
        return state.state.params

    def certify(
        self, key: Array, state: SegmentScores, ask: Ask, unit_rows: bool
    ) -> tuple[None, None]:
        """Returns no certificate."""
        del key, state, ask, unit_rows
        return None, None

    def _whiten(
        self,
        state: SegmentScores,
        answer: PyTree,
        params: Params,
        public: dict[str, Any],
    ) -> tuple[Array, Array, Array]:
        query: EstimateQuery = self.estimate
        without, canary = (
            query.exact(records, params, **public)[0].leading
            for records in (self.without, self.canary)
        )
        stddev = query.stddev_at(public["refresh"], public["size"], params, public["anchor"])
        leaf = public["leaf"]
        fresh = leaf == 0
        residuals = jnp.where(fresh, 0, state.residuals)
        shifts = jnp.where(fresh, 0, state.shifts)
        residual = (ravel_pytree(answer)[0] - without) / stddev
        return (
            residuals.at[leaf].set(residual),
            shifts.at[leaf].set((canary - without) / stddev),
            leaf,
        )


def one_pass(algorithm: Spider, pair: NeighbouringPair, train: Train = solve) -> Game:
    """Returns the attack on a full pass, by an attacker who sees every increment and the order.

    Args:
      algorithm: its event is the claim.
      pair: the neighbouring data sets.
      train: as in ``games.training``.
    """

    def run(key: Array, examples: PyTree) -> Array:
        told = ordered(derive(key, "audited order", 0), (pair.without, pair.canary))
        without, canary = (Ordered(rows, told.order) for rows in told.rows)
        sampler = KnownOrder(**vars(algorithm.estimate.sampler), order=told.order)
        asked = dataclasses.replace(algorithm.estimate, sampler=sampler)
        known = dataclasses.replace(algorithm, estimate=asked)
        recorder = PassRecorder(known, without, canary, int(algorithm.steps))
        solution = train(recorder, examples, key=key)
        done = jnp.arange(recorder.max_steps) < solution.steps
        return jnp.sum(solution.history.log_ratio, where=done)

    return Game(claim_of(algorithm.event), pair, run, 2**10)


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

    return Game(GaussianClaim(Event((release,), "zero_out")), pair, run)
