"""Step sizes by the number of the update: halved from stage to stage, or falling as its power."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from dpjax import _validate
from dpjax._typing import Array

StageSteps = Array | int | tuple[Array | int, ...]
"""T0, where stage k lasts T0 2^k updates; or the length of each stage; the last one goes on."""


def stage_of(count: Array | int, first_steps: StageSteps) -> tuple[Array, Array]:
    """Returns in which stage an update is, and its position there, both from 0; exact integers.

    Args:
      count: number of updates before this one, at least 0 and below 2^31 - 1; any shape.
      first_steps: T0, for stages of T0, 2 T0, 4 T0, ... updates; or a tuple with the length of each
        stage, the last of which goes on. Numbers may be traced.

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
        passed = jnp.searchsorted(ends, count, side="right").astype(count.dtype)
        stage = jnp.minimum(passed, len(first_steps) - 1)
        return stage, count - (ends - lengths)[stage]
    first = jnp.asarray(first_steps, count.dtype)
    # Stage k holds the counts with count // T0 + 1 from 2^k to below 2^(k + 1): its highest bit.
    stage = jnp.iinfo(count.dtype).bits - 1 - jax.lax.clz(count // first + 1)
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
        return jnp.ldexp(jnp.asarray(step_size, jnp.result_type(float)), -stage)

    return schedule


def inverse_power(step_size: Array | float, power: Array | float) -> Callable[[Any], Array]:
    """Returns the schedule c / t^power for the updates t = 1, 2, ...

    Args:
      step_size: c, of the first update.
      power: 1 and 0.5 are what stagewise steps are compared with; 0 is a constant.

    Returns:
      An optax schedule, count -> step size.

    Raises:
      ValueError: for a number that is known and out of range.

    Privacy: post-processing; no data.

    >>> schedule = inverse_power(1.0, 0.5)
    >>> [round(float(schedule(count)), 3) for count in (0, 3, 99)]
    [1.0, 0.5, 0.1]
    """
    _check_known(_validate.positive, "step_size", step_size)
    _check_known(_validate.non_negative, "power", power)

    def schedule(count: Any) -> Array:
        kind = jnp.result_type(float)
        updates = (jnp.asarray(count) + 1).astype(kind)
        return jnp.asarray(step_size, kind) * updates ** -jnp.asarray(power, kind)

    return schedule


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


def _check_known(check: Any, name: str, value: Any) -> None:
    if not isinstance(value, Tracer):
        check(name, value)
