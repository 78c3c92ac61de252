"""Heavy-ball momentum for the first updates of every stage, and none after them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

from dpjax import _validate
from dpjax._typing import Array, PyTree
from dpjax.transforms.schedules import StageSteps, check_stages, stage_of, updates_in


class EarlyMomentumState(NamedTuple):
    """What the next update needs; post-processing of the updates that arrived."""

    count: Array
    """Number of updates so far, int32; it decides the stage."""
    previous: PyTree
    """The displacement before, w_t - w_{t-1}, like the parameters."""


def early_momentum(
    momentum: Array | float, first_steps: StageSteps, first_on_steps: StageSteps
) -> optax.GradientTransformation:
    """Returns heavy-ball momentum, on at the start of every stage and then off; last in a chain.

    What arrives must be the displacement itself, step size and sign included, so it stands *after*
    the learning rate: out_t = u_t + rho_t out_{t-1}. The step size of an old displacement is then
    not rescaled by the new one's, as the paper writes it.

    Args:
      momentum: rho, at least 0.
      first_steps: T0; stage k lasts T0 2^k updates. A tuple gives the length of each stage, and the
        last goes on. The same as for ``stagewise``.
      first_on_steps: t_on, from 0; rho_t is rho for the first t_on 2^k updates of stage k and 0
        after. For a tuple of lengths, a tuple with the number of each stage.

    Returns:
      An optax transformation. A stage starts without a displacement before it. Its state is of the
      parameters' shapes and dtypes.

    Raises:
      ValueError: for a number that is known and out of range, or a momentum that is on for longer
        than the stage.

    Privacy: post-processing, where it stands after the noise. Before it, or before clipping, no
      accounting holds.

    Reference: Zhang et al. (2021), algorithm 2, line 4.

    >>> chain = optax.chain(optax.sgd(1.0), early_momentum(0.5, 3, 2))
    >>> state = chain.init(jnp.zeros(()))
    >>> moves = []
    >>> for _ in range(5):
    ...     move, state = chain.update(jnp.ones(()), state)
    ...     moves.append(float(move))
    >>> moves
    [-1.0, -1.5, -1.0, -1.0, -1.5]
    """
    if not isinstance(momentum, Tracer):
        _validate.non_negative("momentum", momentum)
    check_stages(first_steps)
    check_on_steps(first_on_steps, first_steps)

    def init(params: PyTree) -> EarlyMomentumState:
        return EarlyMomentumState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params))

    def update(
        updates: PyTree, state: Any, params: PyTree | None = None
    ) -> tuple[PyTree, EarlyMomentumState]:
        del params
        stage, position = stage_of(state.count, first_steps)
        on = (position > 0) & (position < updates_in(stage, first_on_steps))

        def move(update: Array, before: Array) -> Array:
            pushed = update + jnp.asarray(momentum, update.dtype) * before.astype(update.dtype)
            return jnp.where(on, pushed, update)

        moves = jax.tree.map(move, updates, state.previous)
        # The dtype of the state must not change from one update to the next.
        previous = jax.tree.map(lambda m, old: m.astype(old.dtype), moves, state.previous)
        return moves, EarlyMomentumState(state.count + 1, previous)

    return optax.GradientTransformation(init, update)


def check_on_steps(first_on_steps: StageSteps, first_steps: StageSteps) -> None:
    """Raises if the momentum is on for fewer than 0 updates or longer than a stage, where known.

    Raises:
      ValueError: naming both numbers.
    """
    pairs: Any = [("first_on_steps", first_on_steps, first_steps)]
    if isinstance(first_steps, tuple) or isinstance(first_on_steps, tuple):
        if not (isinstance(first_steps, tuple) and isinstance(first_on_steps, tuple)) or (
            len(first_steps) != len(first_on_steps)
        ):
            raise ValueError(
                f"first_on_steps={first_on_steps!r} must be given as the stages are, here "
                f"{first_steps!r}: a number, or a tuple with one number for each stage."
            )
        triples = enumerate(zip(first_on_steps, first_steps, strict=True))
        pairs = [(f"first_on_steps[{k}]", on, whole) for k, (on, whole) in triples]
    for name, on, whole in pairs:
        if isinstance(on, Tracer) or isinstance(whole, Tracer):
            continue
        if _validate.non_negative(name, on) % 1 or on > whole:
            raise ValueError(
                f"{name}={on!r} must be a whole number from 0 to {whole!r}, the length of the "
                "stage: lower it, or lengthen the stage."
            )
