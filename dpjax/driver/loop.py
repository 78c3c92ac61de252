"""The only loop: ``solve`` runs a whole private training as one XLA program."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from dpjax import _validate
from dpjax._program import trace
from dpjax._typing import Array, Params, PyTree
from dpjax._wide import on_device
from dpjax.algorithms import Algorithm, Status
from dpjax.datasets import Dataset, Preprocessing
from dpjax.distributed import mesh_of
from dpjax.driver.asking import Asking, Bound, Secrets, bind_records, bind_with_key
from dpjax.driver.checks import check_alike, check_data
from dpjax.driver.configuration import FUNCTION, Configuration, configuration, drop_outdated
from dpjax.driver.keys import ADVICE, key_of_first, root_key, training_key
from dpjax.driver.self_test import check_devices
from dpjax.mechanisms.used_keys import check_traced, claimed, guessable
from dpjax.oracles import prepare_on_disk
from dpjax.placement import processes
from dpjax.placement.shard import everywhere, here, place, shares
from dpjax.placement.stream import finished, reading
from dpjax.results.solution import Solution, settled

_HESSIAN = 2**22  # numbers of the largest sum that is tried before a run


class Carry(NamedTuple):
    """What one iteration hands to the next."""

    step: Array
    state: Any
    history: Any
    secrets: Secrets | None
    """None unless a query remembers any."""


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
        tuple ``(x, y)``, x (n, p) floating, y (n,) in {-1, +1}, for which 0 and False stand for -1
        and True for 1; no other label counts. Scale
        rows to norm 1 at most, by declared bounds: the constants of margin losses, and so their
        default clip norms, are for such rows. Of longer ones the derivatives are clipped, which
        keeps the guarantee, and biases the training; no error says so, for norms are private. Over
        several devices, with the same bits: ``distributed.shard`` of either.
      key: ``dpjax.random_key()``, for one training; required unless ``seed`` is given. The
        configuration is folded into it, so that another one with the same key draws other noise.
        Only with a key that ``random_key`` returned in this process is the result ``releasable``:
        of any other one, such as a key that was folded or split, nobody can see whether it comes
        from a seed. Under ``jit`` and ``vmap`` a key that is repeated cannot be noticed, nor where
        one of 128 bits comes from.
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

    Takes what ``solve`` does; the key is used, and no ``solve`` of the solution beside is needed.
    ``at``, shape (m,), says after which steps, not falling, from 0, the start, to the algorithm's
    steps. After a step that a run does not reach, because it stops before, it is where it stopped.

    Returns:
      The iterates, a pytree like ``params`` with leading axis m, and the solution. Iterates are
      where the steps led: averages, and what is chosen among them, are in the solution alone.

    Raises:
      ValueError: as ``solve``; or for steps that are not growing whole numbers of the plan.

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
        raise ValueError(f"at must be a sequence of step numbers, got {_validate.shown(at)}.")
    if not isinstance(steps, Tracer):
        given = [int(step) for step in steps]
        if given != sorted(given) or any(step < 0 for step in given):
            raise ValueError(f"at must hold step numbers from 0 on that do not fall, got {given}.")
        planned = algorithm.steps
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
    """What ``program`` returns of a training whose arguments and key are checked."""
    data, mesh = mesh_of(data)
    params = starting_point(algorithm, params)
    root = root_key(key, seed)
    check_data(algorithm, data, params)
    examples, unit, unit_rows = unpack(data, algorithm)
    drop_outdated(algorithm.objective, examples, params)
    team = processes.team(mesh)
    check_alike(team, lambda: describe(algorithm, examples, params).digest, examples, params, root)
    root = key_of_first(team, root)
    with processes.reaching_others(team):
        records = on_device(place(examples, mesh))
        check_devices(records, numbers_of(algorithm))
        check_traced(root, records)
        with reading(records), claimed(root, ADVICE):
            if not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(algorithm)):
                records = prepare_on_disk(algorithm.queries[0], records, int(algorithm.steps))
            found, solution = here(
                program(
                    algorithm,
                    records,
                    *everywhere((root, params), records),
                    *more,
                    unit=unit,
                    unit_rows=unit_rows,
                )
            )
            finished(records, solution)
    known = seed is not None or guessable(root)
    return found, settled(solution, known, preprocessing_of(data))


@functools.partial(jax.jit, static_argnames=("unit", "unit_rows"))
def _solve(
    algorithm: Algorithm, examples: PyTree, key: Array, params: Params, unit: str, unit_rows: bool
) -> tuple[None, Solution]:
    bound = bind_training(algorithm, examples, key, params)
    carry = advance(bound, start(bound, params), algorithm.steps)
    return None, finish(bound, carry, unit, unit_rows)


@functools.partial(jax.jit, static_argnames=("unit", "unit_rows"))
def _follow(
    algorithm: Algorithm,
    examples: PyTree,
    key: Array,
    params: Params,
    at: Array,
    unit: str,
    unit_rows: bool,
) -> tuple[Params, Solution]:
    bound = bind_training(algorithm, examples, key, params)

    def until(carry: Carry, step: Array) -> tuple[Carry, Params]:
        carry = advance(bound, carry, step)
        return carry, algorithm.iterate(carry.state)

    carry, seen = jax.lax.scan(until, start(bound, params), at)
    return seen, finish(bound, advance(bound, carry, algorithm.steps), unit, unit_rows)


def unpack(data: Dataset | PyTree, algorithm: Algorithm) -> tuple[PyTree, str, bool]:
    """Returns examples, the unit of privacy, and whether every row is known to have norm <= 1."""
    read = algorithm.objective.read
    if isinstance(data, Dataset):
        return read(data.examples), data.unit, data.max_norm is not None and data.max_norm <= 1
    return read(data), "row", False


def preprocessing_of(data: Dataset | PyTree) -> Preprocessing | None:
    """Returns how the rows and labels of ``data`` were made, if that is known."""
    return data.preprocessing if isinstance(data, Dataset) else None


def starting_point(algorithm: Algorithm, params: Params | None) -> Params:
    """Returns ``params`` as arrays, or zeros, after checking their size.

    Raises:
      ValueError: if they are not ``algorithm.dimension`` floating, finite numbers.
    """
    if params is None:
        return jnp.zeros(algorithm.dimension)
    params = jax.tree.map(jnp.asarray, params)
    leaves = jax.tree.leaves(params)
    size = sum(leaf.size for leaf in leaves)
    if size != algorithm.dimension:
        raise ValueError(f"params hold {size} numbers, but dimension={algorithm.dimension}.")
    for leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(f"params must be floating, got {leaf.dtype}.")
        if not isinstance(leaf, Tracer) and not jnp.isfinite(leaf).all():
            raise ValueError(
                "params must be finite; they are public, so this error reveals nothing about the "
                "records."
            )
    return params


def numbers_of(algorithm: Algorithm) -> int:
    """Returns how many numbers a sum over devices holds at most: those of gradient and Hessian."""
    most = algorithm.dimension * (algorithm.dimension + 1)
    return most if most <= _HESSIAN else algorithm.dimension


def bind_training(algorithm: Algorithm, examples: PyTree, key: Array, params: Params) -> Bound:
    """Returns the algorithm with its records, and with a key for this configuration alone."""
    own = own_key(key, algorithm, examples, params)
    return bind_with_key(algorithm, bind_records(algorithm, examples), own)


def own_key(key: Array, algorithm: Algorithm, examples: PyTree, params: Params) -> Array:
    """Returns the key of a training of this configuration alone, made of the root key.

    A function in the algorithm counts by its traced program; of examples one row's shapes and
    dtypes.

    Privacy: secret like the root key.
    """
    examples = shares(examples)
    structure = jax.tree.map(lambda leaf: None, algorithm)
    chosen = configuration(structure, examples, params)
    return training_key(key, algorithm, params, _with_program(chosen, algorithm, examples, params))


def describe(algorithm: Algorithm, examples: PyTree, params: Params) -> Configuration:
    """Returns what is trained and how, its numbers included; on the host."""
    chosen = configuration(algorithm, examples, params)
    return _with_program(chosen, algorithm, examples, params)


def _with_program(
    chosen: Configuration, algorithm: Algorithm, examples: PyTree, params: Params
) -> Configuration:
    """Returns ``chosen`` with the program of the training, if something in it is not dpjax's."""
    if not chosen.foreign:
        return chosen

    def training(algorithm: Algorithm, records: PyTree, key: Array, params: Params) -> Solution:
        bound = bind_with_key(algorithm, bind_records(algorithm, records), key)
        return finish(bound, advance(bound, start(bound, params), algorithm.steps), "row", False)

    # As many rows as are declared: how many there are may be private.
    rows = algorithm.queries[0].data_size
    records = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((rows, *jnp.shape(leaf)[1:]), jnp.result_type(leaf)),
        examples,
    )
    # One key is like another, and a number in a batch like one that is alone.
    key = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))
    numbers, start_at = jax.tree.map(_shape_alone, (algorithm, params))
    program = trace(training, numbers, records, key, start_at)
    settings = chosen.settings | {"program": FUNCTION + program.digest}
    return Configuration(settings, chosen.traced + program.traced)


def _shape_alone(leaf: Any) -> jax.ShapeDtypeStruct:
    dtype = jnp.result_type(leaf)
    weak = jnp.ndim(leaf) == 0 and dtype != jnp.uint32 and jnp.issubdtype(dtype, jnp.number)
    return jax.ShapeDtypeStruct(jnp.shape(leaf), dtype, weak_type=weak)


def start(bound: Bound, params: Params) -> Carry:
    """Returns the carry before the first step, its history filled with NaN."""
    algorithm = bound.algorithm
    state = algorithm.init(params)

    _, info, secrets = jax.eval_shape(_taken, bound, jnp.array(0), state, None)
    history = jax.tree.map(
        lambda leaf: jnp.full((algorithm.max_steps, *leaf.shape), jnp.nan, leaf.dtype), info
    )
    # Not known yet: the first step computes them, and the first after a resume.
    secrets = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), secrets)
    return Carry(jnp.array(0), state, history, secrets)


def advance(bound: Bound, carry: Carry, until: Array | int) -> Carry:
    """Returns the carry after step ``until``, or where the algorithm was done before.

    The exit looks only at the counter and at released values.
    """
    last = _last(bound, until)

    def going_on(carry: Carry) -> Array:
        return (carry.step < last) & ~bound.algorithm.done(carry.state)

    return jax.lax.while_loop(going_on, functools.partial(_one_step, bound), carry)


def advance_always(bound: Bound, carry: Carry, rounds: Array | int) -> Carry:
    """Returns the carry ``rounds`` steps later; all are computed, also where a run is over.

    A run that is over keeps its carry. So the number of steps computed tells nothing of the run.
    """

    def one_round(_: Array, carry: Carry) -> Carry:
        live = (carry.step < _last(bound, bound.algorithm.steps)) & ~bound.algorithm.done(
            carry.state
        )
        after = _one_step(bound, carry)
        return jax.tree.map(lambda new, old: jnp.where(live, new, old), after, carry)

    return jax.lax.fori_loop(0, rounds, one_round, carry)


def _last(bound: Bound, until: Array | int) -> Array:
    algorithm = bound.algorithm
    return jnp.minimum(jnp.minimum(until, algorithm.steps), algorithm.max_steps)


def _one_step(bound: Bound, carry: Carry) -> Carry:
    state, info, secrets = _taken(bound, carry.step, carry.state, carry.secrets)
    history = jax.tree.map(lambda all, new: all.at[carry.step].set(new), carry.history, info)
    return Carry(carry.step + 1, state, history, secrets)


@functools.partial(jax.jit, inline=True)
def _taken(
    bound: Bound, step: Array, state: Any, secrets: Secrets | None
) -> tuple[Any, Any, Secrets | None]:
    """Returns the state after a step, what it and its answers tell, and what queries remember.

    By ``jit``, so that programs with the same step trace it once; the shape of the history is
    found by the same trace.
    """
    ask = Asking(bound, step, secrets)
    state, info = bound.algorithm.step(ask.key, state, ask)
    evidence = jnp.array(ask.evidence, jnp.float32).reshape(-1, 2)
    return state, (info, evidence), ask.secrets


@functools.partial(jax.jit, static_argnames=("unit", "unit_rows"), inline=True)
def finish(bound: Bound, carry: Carry, unit: str, unit_rows: bool) -> Solution:
    """Returns the solution, certified at a step number that no iteration used."""
    algorithm, (history, evidence) = bound.algorithm, carry.history
    ask = Asking(bound, jnp.array(algorithm.max_steps), carry.secrets)
    state = algorithm.close(ask.key, carry.state, ask)
    certificate, certified_params = algorithm.certify(ask.key, state, ask, unit_rows)
    params, answers = algorithm.output(state), algorithm.answers(state)
    finite = functools.reduce(
        jnp.logical_and, [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(params)]
    )
    ended = jnp.where(carry.step < algorithm.steps, algorithm.stopped(state), Status.FIXED_HORIZON)
    return Solution(
        params=params,
        history=history,
        evidence=evidence,
        steps=carry.step.astype(jnp.int32),
        status=jnp.where(finite, ended, Status.NOT_FINITE).astype(jnp.int32),
        certificate=certificate,
        certified_params=certified_params,
        accuracy=answers.get("accuracy"),
        counted=answers.get("count"),
        error_bars=algorithm.error_bars(state, unit_rows),
        algorithm=algorithm,
        unit=unit,
    )
