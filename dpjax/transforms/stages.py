"""Stages of SGD, each twice as long as the one before: steps that halve, momentum at the start."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

from dpjax import _validate
from dpjax._typing import Array, PyTree

StageSteps = Array | int | tuple[Array | int, ...]
"""T0, where stage k lasts T0 2^k updates; or the length of each stage; the last one goes on."""


def stage_of(count: Array | int, first_steps: StageSteps) -> tuple[Array, Array]:
    """Returns in which stage an update is, and its position there, both from 0; exact integers.

    Args:
      count: number of updates before this one, at least 0 and below 2^31 - 1; any shape.
      first_steps: see ``StageSteps``; numbers may be traced.

    Returns:
      ``(stage, position)``, both of the shape and dtype of ``count``.

    Privacy: post-processing; both are public.

    >>> [tuple(map(int, stage_of(count, 3))) for count in (0, 2, 3, 8, 9)]
    [(0, 0), (0, 2), (1, 0), (1, 5), (2, 0)]
    >>> [tuple(map(int, stage_of(count, (2, 1, 4)))) for count in (1, 2, 3, 9)]
    [(0, 1), (1, 0), (2, 0), (2, 6)]
    """
    count = jnp.asarray(count)
    if isinstance(first_steps, tuple):
        lengths = jnp.stack([jnp.asarray(length, count.dtype) for length in first_steps])
        ends = jnp.cumsum(lengths, dtype=count.dtype)
        # From the right: a count at the end of one stage is the first of the next.
        passed = jnp.searchsorted(ends, count, side="right").astype(count.dtype)
        stage = jnp.minimum(passed, len(first_steps) - 1)
        return stage, count - (ends - lengths)[stage]
    first = jnp.asarray(first_steps, count.dtype)
    # Stage k holds the counts with count // T0 + 1 from 2^k to below 2^(k + 1): its highest bit.
    stage = jnp.iinfo(count.dtype).bits - 1 - jax.lax.clz(count // first + 1)
    # T0 (2^k - 1) updates come before stage k, by the geometric sum.
    return stage, count - first * ((1 << stage) - 1)


def updates_in(stage: Array, first_steps: StageSteps) -> Array:
    """Returns a stage's number of updates, of the dtype of ``stage``; a tuple's last goes on.

    >>> int(updates_in(jnp.array(3), 5)), int(updates_in(jnp.array(1), (2, 7)))
    (40, 7)
    """
    if isinstance(first_steps, tuple):
        return jnp.stack([jnp.asarray(length, stage.dtype) for length in first_steps])[stage]
    return jnp.asarray(first_steps, stage.dtype) << stage


def stagewise(step_size: Array | float, first_steps: StageSteps) -> Callable[[Any], Array]:
    """Returns the schedule of stagewise SGD: the step halves and the stage doubles.

    Args:
      step_size: eta0, of the first stage; stage k has eta0 / 2^k.
      first_steps: T0; stage k lasts T0 2^k updates. A tuple gives the length of each stage, and the
        last goes on.

    Returns:
      An optax schedule, count -> step size, for ``optax.scale_by_learning_rate`` or any optimizer.

    Raises:
      ValueError: for a number that is known and out of range.

    Privacy: post-processing; no data.

    Reference: Zhang et al. (2021), algorithm 1 with theorem 3.2's eta^k and T^k.

    >>> schedule = stagewise(0.8, 100)
    >>> [round(float(schedule(count)), 3) for count in (0, 99, 100, 299, 300)]
    [0.8, 0.8, 0.4, 0.4, 0.2]
    """
    _check_known(_validate.positive, "step_size", step_size)
    check_stages(first_steps)

    def schedule(count: Any) -> Array:
        stage, _ = stage_of(count, first_steps)
        # By the exponent, so that halving is exact.
        return jnp.ldexp(jnp.asarray(step_size, jnp.result_type(float)), -stage)

    return schedule


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
      first_steps: the same as for ``stagewise``.
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
    _check_known(_validate.non_negative, "momentum", momentum)
    check_stages(first_steps)
    check_on_steps(first_on_steps, first_steps)

    def init(params: PyTree) -> EarlyMomentumState:
        return EarlyMomentumState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params))

    def update(
        updates: PyTree, state: Any, params: PyTree | None = None
    ) -> tuple[PyTree, EarlyMomentumState]:
        stage, position = stage_of(state.count, first_steps)
        # A stage begins without a displacement before it.
        on = (position > 0) & (position < updates_in(stage, first_on_steps))

        def move(update: Array, before: Array) -> Array:
            pushed = update + jnp.asarray(momentum, update.dtype) * before.astype(update.dtype)
            return jnp.where(on, pushed, update)

        moves = jax.tree.map(move, updates, state.previous)
        # The dtype of the state must not change from one update to the next.
        previous = jax.tree.map(lambda m, old: m.astype(old.dtype), moves, state.previous)
        return moves, EarlyMomentumState(state.count + 1, previous)

    return optax.GradientTransformation(init, update)


def check_stages(first_steps: StageSteps, name: str = "first_steps") -> None:
    """Raises if a stage is not a whole number of at least 1 update, where the number is known.

    Raises:
      ValueError: naming the stage, or a tuple without any.
    """
    if not isinstance(first_steps, tuple):
        return _check_known(_validate.positive_int, name, first_steps)
    if not first_steps:
        raise ValueError(f"{name}=() has no stage; give the length of at least one.")
    for stage, length in enumerate(first_steps):
        _check_known(_validate.positive_int, f"{name}[{stage}]", length)
    return None


def check_on_steps(first_on_steps: StageSteps, first_steps: StageSteps) -> None:
    """Raises if the momentum is on for fewer than 0 updates or longer than a stage, where known.

    Raises:
      ValueError: naming both numbers.
    """
    given: Any = (first_on_steps, first_steps)
    lengths = [len(each) if isinstance(each, tuple) else None for each in given]
    if lengths[0] != lengths[1]:
        raise ValueError(
            f"first_on_steps={first_on_steps!r} must be given as the stages are, here "
            f"{first_steps!r}: a number, or a tuple with one number for each stage."
        )
    named = [("first_on_steps", *given)]
    if lengths[0] is not None:
        pairs = enumerate(zip(*given, strict=True))
        named = [(f"first_on_steps[{k}]", *pair) for k, pair in pairs]
    for name, on, whole in named:
        # A traced number has no value to check yet.
        if isinstance(on, Tracer) or isinstance(whole, Tracer):
            continue
        if _validate.non_negative(name, on) % 1 or on > whole:
            raise ValueError(
                f"{name}={on!r} must be a whole number from 0 to {whole!r}, the length of the "
                "stage: lower it, or lengthen the stage."
            )


def _check_known(check: Any, name: str, value: Any) -> None:
    if not isinstance(value, Tracer):
        check(name, value)
