"""DP-SVRG and DP-SVRG++ (Wang, Ye and Xu 2017, algorithms 1 and 2), noise split in two."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax.accounting import Event, compose
from dpjax.algorithms import base
from dpjax.algorithms.certificate import widen
from dpjax.algorithms.common import Common
from dpjax.oracles import AnchorQuery, DifferenceQuery, Query


class State(NamedTuple):
    """What the next step needs; all of it released."""

    params: Params
    anchor: Params
    """The point of this epoch where the gradient was asked of all records."""
    gradient: Params
    """The noisy answer there, without the regularizer."""
    average: Params
    """Mean of the iterates of this epoch."""
    taken: Array
    """Steps taken in this epoch."""
    length: Array
    """Steps of this epoch in all; 0 before the first."""


class Info(NamedTuple):
    """What a person watches; all of it released."""

    gradient_norm: Array
    """Norm of the variance-reduced noisy gradient, without the regularizer."""
    step_norm: Array
    """Length of the step taken."""
    distance: Array
    """From the anchor to where the difference was asked; its noise is in proportion."""


def epochs_of(steps: int, epoch_length: int, doubling: bool) -> int:
    """Returns how many epochs of m steps, or of 2 m, 4 m and so on, begin within ``steps``.

    >>> epochs_of(60, 20, False), epochs_of(61, 20, False), epochs_of(60, 20, True)
    (3, 4, 2)
    """
    whole = -(-steps // epoch_length)
    # The first T epochs have (2^(T + 1) - 2) m steps.
    return (whole + 1).bit_length() - 1 if doubling else whole


class Epochs(Common):
    """The steps of algorithms 1 and 2, whatever becomes of the gradient at the anchor."""

    step_size: Array | float
    epoch_length: Array | int
    steps: Array | int
    doubling: bool

    @property
    def epochs(self) -> int:
        """T, the epochs that the planned steps begin; on the host.

        What the driver reads alone: each of them is an anchor that is paid for.
        """
        return epochs_of(int(self.steps), int(self.epoch_length), self.doubling)

    def init(self, params: Params) -> State:
        """Returns the state at ``params``, before the first epoch."""
        wide = widen(params)
        zero = jnp.zeros((), jnp.int32)
        return State(params, params, jax.tree.map(jnp.zeros_like, wide), wide, zero, zero)

    def step(self, key: Array, state: State, ask: base.Ask) -> tuple[State, Info]:
        """One inner step (lines 5 to 7); where an epoch begins, the anchor first (lines 2 to 4)."""
        state, renew = self._entered(state)
        known, estimate = self._estimate(key, state, renew, ask)
        moved = jax.tree.map(
            lambda w, v: w - (self.step_size * v).astype(w.dtype), state.params, estimate
        )
        params = self.objective.prox(moved, self.step_size)
        taken = state.taken + 1
        average = jax.tree.map(
            lambda mean, w: mean + (w.astype(mean.dtype) - mean) / taken.astype(mean.dtype),
            state.average,
            params,
        )
        info = Info(
            _norm(estimate), _distance(params, state.params), _distance(state.params, state.anchor)
        )
        return State(params, state.anchor, known, average, taken, state.length), info

    def output(self, state: State) -> Params:
        """Returns the mean of the iterates of the last epoch."""
        return jax.tree.map(lambda mean, w: mean.astype(w.dtype), state.average, state.params)

    def _entered(self, state: State) -> tuple[State, Array]:
        """The state in the epoch of the next step, and whether that step begins it."""
        renew = state.taken == state.length
        entered = jax.tree.map(
            lambda new, old: jnp.where(renew, new, old), self._next_epoch(state), state
        )
        return entered, renew

    def _estimate(
        self, key: Array, state: State, renew: Array, ask: base.Ask
    ) -> tuple[Params, Params]:
        """The released gradient at the anchor, and v_t."""
        raise NotImplementedError

    def _next_epoch(self, state: State) -> State:
        anchor = self.output(state)
        first = jnp.asarray(self.epoch_length).astype(jnp.int32)
        if self.doubling:
            # Epoch s has 2^s m steps, and goes on where the one before ended.
            length = jnp.where(state.length == 0, 2 * first, 2 * state.length)
            params = state.params
        else:
            length, params = first, anchor
        zeros = jnp.zeros_like(state.taken)
        return State(params, anchor, state.gradient, state.average, zeros, length)


@pytree_dataclass
class VarianceReduced(Epochs):
    """Configuration of DP-SVRG and DP-SVRG++; see the calibration.

    In the paper's notation, ``epochs`` is T, ``epoch_length`` m and ``step_size`` eta. What it
    draws noise for in one piece, v_t, is here the sum of two answers: the gradient at the anchor,
    asked once per epoch, and at every step how the batch's gradient changed from there.
    """

    anchor: AnchorQuery
    difference: DifferenceQuery
    step_size: Array | float
    epoch_length: Array | int
    steps: Array | int
    declared: base.Declared
    doubling: bool = static()
    max_steps: int = static()
    dimension: int = static()
    accountant: str = static()

    @property
    def title(self) -> str:
        """Name for people."""
        return "DP-SVRG++" if self.doubling else "DP-SVRG"

    @property
    def queries(self) -> tuple[Query, ...]:
        """The difference, which fixes the form of the records, and the gradient at the anchor."""
        return (self.difference, self.anchor)

    @property
    def event(self) -> Event:
        """``epochs`` noisy gradients of all records and ``steps`` noisy differences of batches."""
        anchors = self.anchor.event(self.epochs)
        return compose([anchors, self.difference.event(int(self.steps))])

    def _estimate(
        self, key: Array, state: State, renew: Array, ask: base.Ask
    ) -> tuple[Params, Params]:
        answer = ask(key, self.anchor.name, state.anchor, renew=renew)
        known = jax.tree.map(lambda new, old: jnp.where(renew, new, old), answer, state.gradient)
        change = ask(key, self.difference.name, state.params, anchor=state.anchor)
        return known, jax.tree.map(jnp.add, change, known)


def _norm(tree: Params) -> Array:
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


def _distance(here: Params, there: Params) -> Array:
    return _norm(jax.tree.map(jnp.subtract, widen(here), widen(there)))
