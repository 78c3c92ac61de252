"""Radius, damping and step size of second-order methods: numbers, or schedules of the step."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import objectives
from dpjax._program import trace
from dpjax._typing import Array
from dpjax.algorithms import base
from dpjax.objectives.linear import Region

_FINAL_RADIUS = 0.5


def scheduled(
    name: str, value: Any, problem: base.Problem, steps: int, check: Callable[[str, Any], float]
) -> Any:
    """Returns a number as ``check`` does, or the values of a schedule at steps 0 to T - 1.

    A schedule is a function of the step alone that JAX can trace, such as optax's. Its values,
    float32 (T,), are leaves: a configuration, its digest and a checkpoint hold all of them.

    Raises:
      ValueError: for a schedule that takes more than the step, calls Python while it runs, holds a
        traced value or an array with an entry for each record, or has a value that ``check``
        refuses.

    Privacy: the values must be public. Numbers that were read off records before cannot be told
      from others.
    """
    if not callable(value):
        return check(name, value)
    what = f"{name} must be a number or a schedule, step -> number, of public numbers alone"
    try:
        held = trace(value, jax.ShapeDtypeStruct((), jnp.int32))
        of_records = held.traced or (problem.data_size,) in (shape[:1] for shape in held.shapes)
        with jax.ensure_compile_time_eval():  # also where a transformation traces the factory
            at = jnp.arange(0 if of_records else steps)
            numbers = jax.vmap(lambda step: jnp.float32(value(step)))(at)
    # Too many arguments, Python's branches, NumPy's view of a tracer, no number.
    except (TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{what}, that JAX can trace: {reason}") from error
    if of_records:
        raise ValueError(f"{what}; this one holds an array of records or a traced value.")
    if numbers.shape != (steps,):
        raise ValueError(f"{what}; this one returns an array of shape {numbers.shape[1:]}.")
    for step, number in enumerate(values := np.asarray(numbers)):
        check(f"{name} at step {step}", float(number))
    return values


def at_step(value: Any, step: Array) -> Any:
    """Returns a number, or the value that a schedule has at a step."""
    return value if jnp.ndim(value) == 0 else jnp.asarray(value)[step]


def region_of(objective: objectives.Objective) -> Region:
    """Returns the default steps, radius and damping of a trust-region method."""
    return Region() if objective.averaged is None else objective.averaged.region


def check_radii(
    problem: base.Problem, radius: Any, final_radius: float | None, steps: int
) -> tuple[Any, Any]:
    """Returns the radii of the first and the last iteration, or raises for ones that grow.

    Of a schedule both are its values, (T,).
    """
    radius = region_of(problem.objective).radius if radius is None else radius
    first = scheduled("radius", radius, problem, steps, base.positive_leaf)
    if callable(radius):
        if final_radius is not None:
            raise ValueError("final_radius is for a number as radius: a schedule has its own end.")
        return first, first
    if final_radius is None:
        return first, min(first, _FINAL_RADIUS)
    last = base.positive_leaf("final_radius", final_radius)
    if last > first:
        raise ValueError(
            f"final_radius must be at most radius={radius:g}, got {final_radius:g}: the radius "
            "shrinks as the steps go on. Lower it, or leave it out."
        )
    return first, last


def shrinking(radii: tuple[Any, Any], steps: int) -> dict[str, Any]:
    """Returns the radius and the factor that takes it to the final one in ``steps`` iterations."""
    # T iterations have T - 1 steps between them; a single one has the first radius.
    first, last = radii
    decay = base.to_leaf(float(np.mean(last / first)) ** (1 / max(steps - 1, 1)))
    return {"radius": first, "radius_decay": decay}


def typical_radius(radii: tuple[Any, Any]) -> float:
    """Returns the length of a step, to split the noise by."""
    return float(np.mean(np.sqrt(math.prod(radii))))


def radius_at(algorithm: Any, iteration: Array, dtype: Any) -> Array:
    """Returns the radius of an iteration, which shrinks or is that of a schedule."""
    radius = at_step(algorithm.radius, iteration)
    return radius * algorithm.radius_decay ** iteration.astype(dtype)
