"""``solve`` runs a whole private training as one XLA program; ``trajectory`` adds its iterates."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from dpjax._typing import Array, Params, PyTree
from dpjax.algorithms import Algorithm
from dpjax.datasets import Dataset
from dpjax.driver.keys import ADVICE, root_key
from dpjax.driver.loop import Carry, advance, bind_training, finish, start
from dpjax.driver.prepare import prepare
from dpjax.mechanisms.keys import claimed
from dpjax.placement.shard import replicate, to_host
from dpjax.placement.stream import Streamed
from dpjax.results.solution import Solution


def solve(
    algorithm: Algorithm,
    data: Dataset | PyTree,
    *,
    key: Array | None = None,
    seed: int | None = None,
    params: Params | None = None,
) -> Solution:
    """Runs a whole private training as one XLA program.

    Pure: it may be called under ``jit`` and ``vmap``, over keys (many seeds) and over stacked
    algorithms (an epsilon sweep). A change of epsilon, radius, key, or of data of the same shape
    does not compile again.

    Args:
      algorithm: made by a factory such as ``dp_trust_region``.
      data: a ``Dataset``, or a pytree whose leaves share their leading axis; for margin losses the
        tuple ``(x, y)``, x (n, p) floating, y (n,) in {-1, +1}, where 0 and False mean -1 and
        True means 1; a record with any other label contributes zero. Scale
        rows to norm 1 at most, by declared bounds: the constants of margin losses, and so their
        default clip norms, are for such rows. The derivatives of longer rows are clipped: the
        guarantee holds, the training is biased, and no error says so, since norms are private. Over
        several devices, with the same bits: ``distributed.shard`` of either.
      key: ``dpjax.random_key()``, for one training; required unless ``seed`` is given. The
        configuration is folded into it, so that another one with the same key draws other noise.
        Only with a key that ``random_key`` returned in this process is the result ``releasable``:
        of any other one, such as a key that was folded or split, nobody can see whether it comes
        from a seed. Under ``jit`` and ``vmap`` neither the reuse nor the origin of a key can be
        checked.
      seed: from 0 to 2^64 - 1, in place of a key: a research run that can be repeated. Its solution
        says that it is not for release.
      params: public starting point; by default zeros of shape (dimension,), in JAX's default
        float dtype.

    Returns:
      A ``Solution``. A record with a non-finite feature or an impossible label contributes exactly
      zero, at the same cost.

    Raises:
      ValueError: before anything is spent, for data, params, key and declared numbers that do not
        fit together, or a key of ``random_key`` that another training or optimizer chain of this
        process has used, in whichever thread.

    Privacy: the guarantee of ``algorithm.event`` holds for everything returned.

    >>> import jax, dpjax
    >>> x = jnp.ones((50, 2)) / 2 ** 0.5
    >>> budget = dpjax.PrivacyBudget(epsilon=1.0, delta=1e-3)
    >>> algorithm = dpjax.dp_trust_region(
    ...     dpjax.objectives.logistic(), budget, data_size=50, dimension=2, steps=4)
    >>> solution = solve(algorithm, (x, jnp.ones(50)), key=jax.random.key(0))
    >>> solution.epsilon(1e-3) <= 1.0
    True
    """
    return _trained(_solve, algorithm, data, key, seed, params)[1]


class Trajectory(NamedTuple):
    """Where a training was on its way, and where it ended."""

    params: Params
    """The iterate after each of the steps ``at``, along a new leading axis."""
    solution: Solution
    """That of ``solve`` with the same arguments."""


def trajectory(
    algorithm: Algorithm,
    data: Dataset | PyTree,
    *,
    at: Sequence[int] | Array,
    key: Array | None = None,
    seed: int | None = None,
    params: Params | None = None,
) -> Trajectory:
    """Runs the training of ``solve``, as one XLA program too, and returns iterates on its way.

    Takes what ``solve`` does, and returns its solution too, so that no second training is needed.
    ``at``, shape (m,), holds nondecreasing numbers of steps, from 0 (the start) to the algorithm's
    steps. After an early stop the last iterate is repeated.

    Returns:
      The iterates, a pytree like ``params`` with leading axis m, and the solution. Iterates are
      where the steps led: averages, and what is chosen among them, are in the solution alone.

    Raises:
      ValueError: as ``solve``; or for steps that decrease, are negative or exceed the plan.

    Privacy: costs nothing more than ``solve``. The guarantee of ``algorithm.event`` is for all
      noisy answers together, and every iterate is computed from them: post-processing.

    >>> import jax, dpjax
    >>> x = jnp.ones((50, 2)) / 2 ** 0.5
    >>> algorithm = dpjax.dp_gradient_descent(
    ...     dpjax.objectives.logistic(), dpjax.PrivacyBudget(epsilon=1.0, delta=1e-3),
    ...     data_size=50, dimension=2, steps=4)
    >>> path = trajectory(algorithm, (x, jnp.ones(50)), at=[0, 2, 4], seed=0)
    >>> path.params.shape, bool((path.params[-1] == path.solution.params).all())
    ((3, 2), True)
    """
    return Trajectory(*_trained(_follow, algorithm, data, key, seed, params, _steps(algorithm, at)))


def _steps(algorithm: Algorithm, at: Sequence[int] | Array) -> Array:
    steps = jnp.asarray(at)
    if steps.ndim != 1 or not jnp.issubdtype(steps.dtype, jnp.integer):
        raise ValueError(
            f"at must be a sequence of whole numbers, at least one, got {steps.dtype} of shape "
            f"{steps.shape}: take at=[0] for the start."
        )
    if not isinstance(steps, Tracer):
        given = [int(step) for step in steps]
        if given != sorted(given) or any(step < 0 for step in given):
            raise ValueError(f"at must be nondecreasing step numbers >= 0, got {given}: sort them.")
        planned = algorithm.steps
        # A traced plan has no number to compare with, and the loop ends at it anyway.
        if not isinstance(planned, Tracer) and max(given, default=0) > int(planned):
            raise ValueError(f"at={given} goes past the algorithm's steps={int(planned)}.")
    return steps


def _trained(
    program: Callable[..., tuple[PyTree, Solution]],
    algorithm: Algorithm,
    data: Dataset | PyTree,
    key: Array | None,
    seed: int | None,
    params: Params | None,
    *more: Array,
) -> tuple[PyTree, Solution]:
    """Prepares a training and runs ``program`` on it."""
    training = prepare(algorithm, data, root_key(key, seed), params, seeded=seed is not None)
    assert training.key is not None
    # A run that raises has returned nothing, so its key is given back.
    with training.open_readers(), claimed(training.key, ADVICE):
        records = training.records
        start_at = replicate((training.key, training.params), records)
        # Fetched inside the claim, with the readers open: JAX returns before it has computed, and
        # reports errors of a device here.
        result, solution = to_host(
            program(algorithm, records, *start_at, *more, **training.unit_of_privacy)
        )
        # Streamed records are read while the program runs, so the readers stay open until it has
        # ended.
        if isinstance(records, Streamed):
            jax.block_until_ready(solution)
    return result, training.settled(solution)


@functools.partial(jax.jit, static_argnames=("unit", "bounded_rows"))
def _solve(
    algorithm: Algorithm, examples: PyTree, key: Array, params: Params, **scope: Any
) -> tuple[None, Solution]:
    bound = bind_training(algorithm, examples, key, params)
    carry = advance(bound, start(bound, params), algorithm.steps)
    return None, finish(bound, carry, **scope)


@functools.partial(jax.jit, static_argnames=("unit", "bounded_rows"))
def _follow(
    algorithm: Algorithm, examples: PyTree, key: Array, params: Params, at: Array, **scope: Any
) -> tuple[Params, Solution]:
    bound = bind_training(algorithm, examples, key, params)

    def until(carry: Carry, step: Array) -> tuple[Carry, Params]:
        carry = advance(bound, carry, step)
        return carry, algorithm.iterate(carry.state)

    # The loop of ``solve`` in stretches; keys depend on the step number, so the noise is the same.
    carry, seen = jax.lax.scan(until, start(bound, params), at)
    return seen, finish(bound, advance(bound, carry, algorithm.steps), **scope)
