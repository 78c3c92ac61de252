"""The only loop: ``solve`` runs a whole private training as one XLA program."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from dpjax._program import trace
from dpjax._typing import Array, Params, PyTree
from dpjax._wide import on_device, wide_dtype
from dpjax.algorithms import Algorithm, Status
from dpjax.algorithms.base import Ask
from dpjax.datasets import Dataset, Preprocessing
from dpjax.driver.checks import check_data
from dpjax.driver.configuration import FUNCTION, Configuration, configuration, drop_outdated
from dpjax.driver.keys import ADVICE, root_key, training_key
from dpjax.driver.secrets import Secrets, renew, unknown
from dpjax.driver.solution import Solution
from dpjax.mechanisms import derive
from dpjax.mechanisms.used_keys import check_traced, claimed, guessable
from dpjax.oracles import bind


class Carry(NamedTuple):
    """What one iteration hands to the next."""

    step: Array
    state: Any
    history: Any
    secrets: Secrets | None
    """None unless a query remembers any."""


class Bound(NamedTuple):
    """An algorithm, the key and the data it may ask, ready to run."""

    algorithm: Algorithm
    records: PyTree
    key: Array


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
        tuple ``(x, y)``, x (n, p) floating, y (n,) in {-1, +1}. No other label counts, 0 neither:
        ``dpjax.datasets.encode_labels(y, classes=(0, 1))`` maps labels 0 and 1. Scale
        rows to norm 1 at most, by declared bounds: the constants of margin losses, and so their
        default clip norms, are for such rows. Of longer ones the derivatives are clipped, which
        keeps the guarantee, and biases the training; no error says so, for norms are private.
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
    params = starting_point(algorithm, params)
    root = root_key(key, seed)
    check_data(algorithm, data, params)
    examples, unit, unit_rows = unpack(data)
    drop_outdated(algorithm.objective, examples, params)
    records = on_device(examples)
    check_traced(root, records)
    with claimed(root, ADVICE):
        solution = _solve(algorithm, records, root, params, unit=unit, unit_rows=unit_rows)
    return dataclasses.replace(
        solution,
        reproducible=seed is not None or guessable(root),
        preprocessing=preprocessing_of(data),
    )


@functools.partial(jax.jit, static_argnames=("unit", "unit_rows"))
def _solve(
    algorithm: Algorithm, examples: PyTree, key: Array, params: Params, unit: str, unit_rows: bool
) -> Solution:
    bound = bind_training(algorithm, examples, key, params)
    carry = advance(bound, start(bound, params), algorithm.steps)
    return finish(bound, carry, unit, unit_rows)


def unpack(data: Dataset | PyTree) -> tuple[PyTree, str, bool]:
    """Returns examples, the unit of privacy, and whether every row is known to have norm <= 1."""
    if isinstance(data, Dataset):
        return data.examples, data.unit, data.max_norm is not None and data.max_norm <= 1
    return data, "row", False


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


def bind_records(algorithm: Algorithm, examples: PyTree) -> PyTree:
    """Returns the data in the form the queries read; one copy, since they share an objective."""
    return bind(algorithm.queries[0], examples)


def bind_training(algorithm: Algorithm, examples: PyTree, key: Array, params: Params) -> Bound:
    """Returns the algorithm with its records, and with a key for this configuration alone."""
    own = own_key(key, algorithm, examples, params)
    return Bound(algorithm, arrange(algorithm, bind_records(algorithm, examples), own), own)


def own_key(key: Array, algorithm: Algorithm, examples: PyTree, params: Params) -> Array:
    """Returns the key of a training of this configuration alone, made of the root key.

    Args:
      key: root key.
      algorithm: what is trained; a function in it counts by its traced program.
      examples: of which one row's shapes and dtypes count.
      params: the public starting point.

    Privacy: secret like the root key.
    """
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
        records = arrange(algorithm, bind_records(algorithm, records), key)
        bound = Bound(algorithm, records, key)
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


def arrange(algorithm: Algorithm, records: PyTree, key: Array) -> PyTree:
    """Returns bound records as the sampler reads them, such as in the order of a single pass."""
    sampler = algorithm.queries[0].sampler
    return records if sampler is None else sampler.prepare(derive(key, "order", 0), records)


def start(bound: Bound, params: Params) -> Carry:
    """Returns the carry before the first step, its history filled with NaN."""
    algorithm = bound.algorithm
    state = algorithm.init(params)
    secrets = unknown(algorithm, bound.records, params)
    _, info = jax.eval_shape(
        lambda key, state: algorithm.step(key, state, _ask(bound, jnp.array(0), secrets)),
        bound.key,
        state,
    )
    history = jax.tree.map(
        lambda leaf: jnp.full((algorithm.max_steps, *leaf.shape), jnp.nan, leaf.dtype), info
    )
    return Carry(jnp.array(0), state, history, secrets)


def advance(bound: Bound, carry: Carry, until: Array | int) -> Carry:
    """Returns the carry after step ``until``, or where the algorithm was done before.

    The exit looks only at the counter and at released values.
    """
    algorithm = bound.algorithm
    last = jnp.minimum(jnp.minimum(until, algorithm.steps), algorithm.max_steps)

    def going_on(carry: Carry) -> Array:
        return (carry.step < last) & ~algorithm.done(carry.state)

    def one_step(carry: Carry) -> Carry:
        secrets = carry.secrets
        if secrets is not None:
            secrets = renew(algorithm, bound.records, secrets, carry.state)
        ask = _ask(bound, carry.step, secrets)
        state, info = algorithm.step(bound.key, carry.state, ask)
        history = jax.tree.map(lambda all, new: all.at[carry.step].set(new), carry.history, info)
        return Carry(carry.step + 1, state, history, secrets)

    return jax.lax.while_loop(going_on, one_step, carry)


def finish(bound: Bound, carry: Carry, unit: str, unit_rows: bool) -> Solution:
    """Returns the solution, certified at a step number that no iteration used."""
    algorithm = bound.algorithm
    ask = _ask(bound, jnp.array(algorithm.max_steps))
    state = algorithm.close(bound.key, carry.state, ask)
    certificate, certified_params = algorithm.certify(bound.key, state, ask, unit_rows)
    params = algorithm.output(state)
    finite = functools.reduce(
        jnp.logical_and, [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(params)]
    )
    ended = jnp.where(carry.step < algorithm.steps, algorithm.stopped(state), Status.FIXED_HORIZON)
    return Solution(
        params=params,
        history=carry.history,
        steps=carry.step.astype(jnp.int32),
        status=jnp.where(finite, ended, Status.NOT_FINITE).astype(jnp.int32),
        certificate=certificate,
        certified_params=certified_params,
        accuracy=algorithm.accuracy(state),
        algorithm=algorithm,
        unit=unit,
    )


def _ask(bound: Bound, step: Array, secrets: Secrets | None = None) -> Ask:
    queries = {query.name: query for query in bound.algorithm.queries}

    def ask(key: Array, name: str, params: Params, **public: Any) -> PyTree:
        kept = secrets.of(name) if secrets is not None else {}
        # Noise that is correlated over a segment is all made of the segment's one key.
        own = derive(key, name, public.get("segment", step))
        answer = queries[name].answer(own, bound.records, params, **public, **kept)
        # Post-processing: the dtype follows the parameters, whatever that of the data.
        wide = wide_dtype(params)
        return jax.tree.map(
            lambda leaf: leaf.astype(wide) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf,
            answer,
        )

    return ask
