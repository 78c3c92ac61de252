"""The only loop: what a training computes, from its first step to its solution."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax._program import trace
from dpjax._typing import Array, Params, PyTree
from dpjax.algorithms import Algorithm, Status
from dpjax.driver.asking import Asking, BoundAlgorithm, bind_records, bind_with_key
from dpjax.driver.configuration import FUNCTION, Configuration, configuration
from dpjax.driver.keys import training_key
from dpjax.placement.shard import shares
from dpjax.results.solution import Solution


class Carry(NamedTuple):
    """What one iteration hands to the next."""

    step: Array
    state: Any
    history: Any


@jax.custom_jvp
def _refuse_derivatives(*leaves: Array) -> tuple[Array, ...]:
    return leaves


@_refuse_derivatives.defjvp
def _refuse(*_: Any) -> Any:
    raise ValueError(
        "a private training has no derivative, in forward or reverse mode: its settings and start "
        "are folded into its key, so that other ones draw other noise, and sums of records are "
        "whole numbers on a grid. Compare trainings of several settings, or choose them by "
        "dpjax.tune; objective(params, example) has derivatives."
    )


def bind_training(
    algorithm: Algorithm, examples: PyTree, key: Array, params: Params
) -> BoundAlgorithm:
    """Returns the algorithm with its records, and with a key for this configuration alone.

    Raises:
      ValueError: where a derivative is taken with respect to one of them.
    """
    _refuse_derivatives(*jax.tree.leaves((algorithm, examples, params)))
    of_configuration = configuration_key(key, algorithm, examples, params)
    return bind_with_key(algorithm, bind_records(algorithm, examples), of_configuration)


def configuration_key(key: Array, algorithm: Algorithm, examples: PyTree, params: Params) -> Array:
    """Returns the key of a training, derived from the root key and the configuration.

    Privacy: secret like the root key.
    """
    # The numbers may be traced; ``training_key`` reads them inside the program.
    structure = describe(algorithm, shares(examples), params, numbers=False)
    return training_key(key, algorithm, params, structure)


def describe(
    algorithm: Algorithm, examples: PyTree, params: Params, numbers: bool = True
) -> Configuration:
    """Returns what is trained and how, on the host, its numbers included unless told not to.

    If something in it is not dpjax's, the program of the training is in it too.
    """
    chosen = algorithm if numbers else jax.tree.map(lambda leaf: None, algorithm)
    found = configuration(chosen, examples, params)
    if not found.foreign:
        return found

    def training(algorithm: Algorithm, records: PyTree, key: Array, params: Params) -> Solution:
        bound = bind_with_key(algorithm, bind_records(algorithm, records), key)
        return finish(bound, advance(bound, start(bound, params), algorithm.steps), "row", False)

    # As many rows as are declared: how many there are may be private.
    rows = algorithm.queries[0].data_size
    records = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((rows, *jnp.shape(leaf)[1:]), jnp.result_type(leaf)),
        examples,
    )
    # An abstract key, and numbers without a batch axis: the digest depends on neither.
    key = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))
    leaves, start_at = jax.tree.map(_shape_alone, (algorithm, params))
    program = trace(training, leaves, records, key, start_at)
    settings = found.settings | {"program": FUNCTION + program.digest}
    return Configuration(settings, found.traced + program.traced)


def _shape_alone(leaf: Any) -> jax.ShapeDtypeStruct:
    dtype = jnp.result_type(leaf)
    # A Python float and an array of the same value must give the same digest.
    weak = jnp.ndim(leaf) == 0 and dtype != jnp.uint32 and jnp.issubdtype(dtype, jnp.number)
    return jax.ShapeDtypeStruct(jnp.shape(leaf), dtype, weak_type=weak)


def start(bound: BoundAlgorithm, params: Params) -> Carry:
    """Returns the carry before the first step, its history filled with NaN."""
    algorithm = bound.algorithm
    # No step has this number, nor has the end of the run.
    ask = Asking(bound, jnp.array(-1))
    state = algorithm.begin(ask.key, algorithm.init(params), ask)

    _, info = jax.eval_shape(_step_with_evidence, bound, jnp.array(0), state)
    # As long as the longest plan that shares this program, so that another T compiles nothing anew.
    history = jax.tree.map(
        lambda leaf: jnp.full((algorithm.max_steps, *leaf.shape), jnp.nan, leaf.dtype), info
    )
    return Carry(jnp.array(0), state, history)


def advance(bound: BoundAlgorithm, carry: Carry, until: Array | int) -> Carry:
    """Returns the carry after step ``until``, or at an earlier stop."""
    # Both ends are public or released, so the number of steps tells no more than the answers.
    last, bound = _last(bound, until), _arranged(bound, carry)

    def going_on(carry: Carry) -> Array:
        return (carry.step < last) & ~bound.algorithm.done(carry.state)

    return jax.lax.while_loop(going_on, functools.partial(_one_step, bound), carry)


def advance_always(bound: BoundAlgorithm, carry: Carry, steps: Array | int) -> Carry:
    """Returns the carry ``steps`` steps later; all are computed, even after the run has ended.

    A run that has ended keeps its carry, so that the time does not reveal when it stopped.
    """
    last, bound = _last(bound, bound.algorithm.steps), _arranged(bound, carry)

    def step_or_keep(_: Array, carry: Carry) -> Carry:
        live = (carry.step < last) & ~bound.algorithm.done(carry.state)
        after = _one_step(bound, carry)
        return jax.tree.map(lambda new, old: jnp.where(live, new, old), after, carry)

    return jax.lax.fori_loop(0, steps, step_or_keep, carry)


def _arranged(bound: BoundAlgorithm, carry: Carry) -> BoundAlgorithm:
    """The same, with the records as all steps read them, computed once."""
    records, fixed = bound.records, bound.algorithm.fixed(carry.state)
    for query in bound.algorithm.queries if fixed else ():
        records = query.arranged(records, **fixed)
    return bound._replace(records=records)


def _last(bound: BoundAlgorithm, until: Array | int) -> Array:
    algorithm = bound.algorithm
    return jnp.minimum(jnp.minimum(until, algorithm.steps), algorithm.max_steps)


def _one_step(bound: BoundAlgorithm, carry: Carry) -> Carry:
    state, info = _step_with_evidence(bound, carry.step, carry.state)
    history = jax.tree.map(lambda all, new: all.at[carry.step].set(new), carry.history, info)
    return Carry(carry.step + 1, state, history)


@functools.partial(jax.jit, inline=True)
def _step_with_evidence(bound: BoundAlgorithm, step: Array, state: Any) -> tuple[Any, Any]:
    """Returns the next state, and the step's info with the evidence of its answers."""
    # A ``jit`` of its own, so that the step is traced once, also where ``start`` asks for shapes.
    ask = Asking(bound, step)
    state, info = bound.algorithm.step(ask.key, state, ask)
    # The reshape keeps one shape for every step, also if no answer gives evidence.
    evidence = jnp.array(ask.evidence, jnp.float32).reshape(-1, 2)
    return state, (info, evidence)


@functools.partial(jax.jit, static_argnames=("unit", "bounded_rows"), inline=True)
def finish(bound: BoundAlgorithm, carry: Carry, unit: str, bounded_rows: bool) -> Solution:
    """Returns the solution, certified at a step number that no iteration used."""
    algorithm, (history, evidence) = bound.algorithm, carry.history
    # No iteration has this step number, so no noise is drawn twice.
    ask = Asking(bound, jnp.array(algorithm.max_steps))
    state = algorithm.finalize(ask.key, carry.state, ask)
    certificate, certified_params = algorithm.certify(ask.key, state, ask, bounded_rows)
    params, answers = algorithm.output(state), algorithm.answers(state)
    finite = functools.reduce(
        jnp.logical_and, [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(params)]
    )
    # An early end is the algorithm's own to explain.
    ended = jnp.where(
        carry.step < algorithm.steps, algorithm.termination_status(state), Status.FIXED_HORIZON
    )
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
        guesses=answers.get("canaries"),
        error_bars=algorithm.error_bars(state, bounded_rows),
        algorithm=algorithm,
        unit=unit,
    )
