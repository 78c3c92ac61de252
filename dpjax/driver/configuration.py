"""Identifies a training: its settings by name, its functions by the programs that JAX traces."""

import dataclasses
import itertools
import operator
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax._program import CallsPython, sha256, trace
from dpjax._typing import Array, Params, PyTree
from dpjax._wide import at_least_float32
from dpjax.algorithms import Algorithm
from dpjax.algorithms.base import proximal
from dpjax.objectives import LossOfScores, Objective, margin
from dpjax.objectives.linear import Weighted
from dpjax.objectives.regularizers import PENALTIES

FUNCTION = "function #"
"""What the value of a setting begins with that is a function: the hash of its program follows."""
_JITTED: Any = type(jax.jit(operator.neg))
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
# What a loss raises that is handed parameters or a record of another shape than it expects.
_REFUSALS = (TypeError, ValueError, LookupError, AttributeError, NotImplementedError)


class Configuration(NamedTuple):
    """A training without its data."""

    settings: dict[str, str]
    """Name and value of all that is public and chosen; of a function the hash of its program."""
    traced: tuple[Array, ...] = ()
    """Numbers that a function holds and that a transformation around it runs over."""
    foreign: bool = False
    """Whether a class or function takes part that is not dpjax's own and that is called in ways
    unknown here: then the program of the whole training counts."""

    @property
    def digest(self) -> str:
        """One hash of all settings, the same in every process."""
        return sha256(*(word for pair in sorted(self.settings.items()) for word in pair))


def configuration(algorithm: Algorithm, examples: PyTree, params: Params) -> Configuration:
    """Returns what is trained and how.

    Functions count by what they compute. Of examples one row's shapes and dtypes are read, never
    how many there are, and of ``params`` shapes and dtypes.
    """
    reader = _Reader(examples, params)
    settings = dict(reader.read("", algorithm))
    return Configuration(settings, tuple(reader.traced), reader.foreign)


# By an objective's structure, which is what JAX keeps a compiled program by.
_PROGRAMS: dict[Any, dict[str, Any]] = {}


def drop_outdated(objective: Objective, examples: PyTree, params: Params) -> None:
    """Checks an objective's functions, and drops what dpjax compiled before one of them changed.

    JAX compiles a function once. One that reads an attribute or a variable of its module would go
    on computing with the old value.
    """
    if _never_changes(objective):
        return
    reader = _Reader(examples, params)
    programs = dict(reader.functions("", objective))
    held = _PROGRAMS.setdefault(jax.tree.structure(objective), {})
    place = str((reader.params, reader.example))
    if held.get(place, programs) != programs:
        _forget_compiled()
        held.clear()
    held[place] = programs


def _forget_compiled() -> None:
    # Functions of dpjax alone: what the rest of the process has compiled is not dpjax's to drop.
    # Lists, since another thread may import meanwhile.
    rooms = [room for name, room in list(sys.modules.items()) if f"{name}.".startswith("dpjax.")]
    for function in itertools.chain.from_iterable(list(vars(room).values()) for room in rooms):
        if isinstance(function, _JITTED):
            function.clear_cache()


def _never_changes(objective: Objective) -> bool:
    """Whether it is of functions of dpjax's own modules alone: tracing them takes 30 ms a call."""
    if not (objective.regularizer is None or isinstance(objective.regularizer, PENALTIES)):
        return False
    loss, form, phi = objective.loss, objective.linear, objective.margin
    if not (isinstance(loss, LossOfScores) and loss.form == form and _is_of_this_version(form)):
        return False
    while isinstance(form, Weighted):
        form = form.form
        phi = getattr(form, "phi", None)
        if not _is_of_this_version(form):
            return False
    if phi is not None and getattr(phi, "__module__", None) != margin.__name__:
        return False
    return objective.model is None or _is_of_this_version(objective.model)


def difference(was: dict[str, str], is_: dict[str, str]) -> str:
    """Returns words for the first setting that differs since a checkpoint was made."""

    def derived(name: str) -> tuple[bool, int]:
        # What a caller chose is at the top, and most often no flag; the rest follows from it.
        return was.get(name) in ("True", "False"), len(re.findall(r"[.\[]", _as_given(name)))

    changed = [name for name in {**was, **is_} if was.get(name) != is_.get(name)]
    name = min(changed, key=derived)
    before, after = was.get(name, "absent"), is_.get(name, "absent")
    name = _as_given(name)
    # Printing two hashes would not help.
    if FUNCTION in before + after:
        return (
            f"{name} computes something else than when this checkpoint was made (its traced "
            "program differs)"
        )
    return f"{name} was {before} when this checkpoint was made, and is {after} now"


def _as_given(name: str) -> str:
    # A query's setting and the rule of a step hold a factory's own arguments.
    return re.sub(r"\b(setting|rule)\.", "", name)


class _Reader:
    """Reads names and values off an algorithm; traces the functions that it knows how to call."""

    def __init__(self, examples: PyTree, params: Params):
        self.params = jax.tree.map(lambda leaf: _shaped(leaf, jnp.shape(leaf)), params)
        # The shape of one row, because the number of rows may be private.
        self.example = jax.tree.map(lambda leaf: _shaped(leaf, jnp.shape(leaf)[1:]), examples)
        self.traced: list[Array] = []
        self.foreign = False
        self._objective: Objective | None = None

    def read(self, path: str, value: Any) -> Iterator[tuple[str, str]]:
        """Yields the names and values of all that ``value`` holds."""
        if isinstance(value, Objective):
            yield from self._read_objective(path, value)
        elif isinstance(value, optax.GradientTransformation):
            yield path, FUNCTION + self._optimizer(value)
        elif isinstance(value, _PLAIN):
            yield path, _words(value)
        elif isinstance(value, np.ndarray | np.generic | jax.Array):
            array = np.asarray(value)
            long = f"{array.dtype}{array.shape} #{sha256(array.tobytes().hex())}"
            yield path, long if array.ndim else _words(array.item())
        elif (fields := _fields(value)) is not None:
            # The methods of a foreign class are only seen in the program of the whole training.
            self.foreign |= not _is_of_this_version(value)
            yield path or "algorithm", type(value).__qualname__
            for name in fields:
                # What was declared goes by its own name, such as epsilon.
                below = name if path in ("", "declared") else f"{path}.{name}"
                yield from self.read(below, getattr(value, name))
        elif isinstance(value, tuple | list):
            yield path, f"{type(value).__name__} of {len(value)}"
            for place, item in enumerate(value):
                yield from self.read(f"{path}[{place}]", item)
        else:
            self.foreign = True
            yield path, type(value).__qualname__

    def functions(self, path: str, objective: Objective) -> Iterator[tuple[str, str]]:
        """Yields the names and programs of all that an objective computes."""
        yield path + "loss", FUNCTION + self._loss(objective)
        number = jax.ShapeDtypeStruct((), jnp.float32)
        if objective.margin is not None:
            slope = self._differentiated(jax.grad(objective.margin), number)
            whole = sha256(self._program(objective.margin, number), slope)
            yield path + "margin", FUNCTION + whole
        elif (linear := objective.linear) is not None:
            # A scalar for one score, a vector for several: the slice is empty if there is one.
            score = jax.ShapeDtypeStruct((linear.outputs,)[: linear.outputs > 1], jnp.float32)
            label = jax.ShapeDtypeStruct((2,)[: linear.labels.axes], jnp.float32)
            yield path + "linear", FUNCTION + self._program(linear.derivatives, score, label)
        if objective.regularizer is not None:
            yield path + "regularizer", FUNCTION + self._regularizer(objective, number)
        if (score := getattr(objective.model, "score", None)) is not None:
            # What an estimate of the accuracy releases.
            yield path + "model", FUNCTION + self._score(score)

    def _regularizer(self, objective: Objective, number: jax.ShapeDtypeStruct) -> str:
        # Strengths are arguments: they count as the numbers they are, and may be left out here.
        numbers, structure = jax.tree.flatten(objective, is_leaf=lambda leaf: leaf is None)
        shapes = [number] * len(numbers)

        def penalty(params: Params, *numbers: Array) -> Array:
            return structure.unflatten(numbers).regularizer(params)

        def prox(params: Params, step: Array, *numbers: Array) -> Params:
            return structure.unflatten(numbers).regularizer.prox(params, step)

        read = self._program if proximal(objective) else self._differentiated
        digest = read(penalty, self.params, *shapes)
        if hasattr(objective.regularizer, "prox"):
            digest = sha256(digest, self._program(prox, self.params, number, *shapes))
        return digest

    def _read_objective(self, path: str, objective: Objective) -> Iterator[tuple[str, str]]:
        # Most often all queries ask about one, which is that of the algorithm.
        if self._objective is None:
            self._objective, path = objective, "objective"
        elif is_same(objective, self._objective):
            return
        self.foreign |= type(objective) is not Objective
        yield from self.functions(f"{path}.", objective)
        for name in ("name", "constants", "defaults"):
            yield from self.read(f"{path}.{name}", getattr(objective, name))
        if _is_of_this_version(objective.regularizer):
            for name in _fields(objective.regularizer) or ():
                found = getattr(objective.regularizer, name)
                yield from self.read(f"{path}.regularizer.{name}", found)

    def _loss(self, objective: Objective) -> str:
        try:
            # First without derivatives, which callbacks do not have.
            self._program(objective.loss, self.params, self.example)
            return self._differentiated(objective.loss, self.params, self.example)
        except CallsPython:
            raise
        except _REFUSALS as error:
            raise ValueError(
                f"the loss of {objective.name} and its gradient cannot be computed for params "
                f"{_shapes(self.params)} and a record {_shapes(self.example)}: {error} Without "
                "params=, the start is zeros of shape (dimension,); for parameters of another "
                "structure or shape, pass a public starting point as params=."
            ) from error

    def _score(self, score: Callable[[Params, Array], Array]) -> str:
        x = self.example[0] if isinstance(self.example, tuple) else self.example
        try:
            return self._program(lambda params, row: score(params, row[None]), self.params, x)
        except CallsPython:
            raise
        except _REFUSALS:
            return "does not score these records"  # so that no accuracy is released

    def _optimizer(self, optimizer: optax.GradientTransformation) -> str:
        wide = jax.eval_shape(at_least_float32, self.params)
        state = jax.eval_shape(optimizer.init, wide)
        update = self._program(optimizer.update, wide, state, wide)
        return sha256(self._program(optimizer.init, wide), update)

    def _differentiated(self, function: Callable[..., Array], *arguments: PyTree) -> str:
        """The program with its gradient, in which rules of its own for derivatives are seen."""
        slope = jax.grad(function)
        first = trace(jax.value_and_grad(function), *arguments)
        self.traced += first.traced
        if not first.rules_left:
            return first.digest
        # A rule may have another inside, for its own derivative, which a Hessian takes.
        at, *rest = arguments

        def along(at: PyTree, step: PyTree, *rest: PyTree) -> tuple[PyTree, PyTree]:
            return jax.jvp(lambda point: slope(point, *rest), (at,), (step,))

        try:
            curvature = self._program(along, at, at, *rest)
        except _REFUSALS:
            return first.digest  # there is none, so no method takes it
        return sha256(first.digest, curvature)

    def _program(self, function: Callable[..., Any], *arguments: PyTree) -> str:
        program = trace(function, *arguments)
        self.traced += program.traced
        return program.digest


def _is_of_this_version(value: Any) -> bool:
    """Whether dpjax's version, which a checkpoint compares, tells the code of its class."""
    return type(value).__module__.split(".")[0] == "dpjax"


def is_same(value: PyTree, other: PyTree) -> bool:
    """Whether they have one structure and the very same numbers, or none in place of them."""
    (first, structure), (second, others) = jax.tree.flatten(value), jax.tree.flatten(other)
    # By identity: equal numbers may be tracers, which cannot be compared.
    return structure == others and all(map(operator.is_, first, second))


def _fields(value: Any) -> tuple[str, ...] | None:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(field.name for field in dataclasses.fields(value))
    return getattr(value, "_fields", None) if isinstance(value, tuple) else None


def _words(value: Any) -> str:
    """A value in words; a float as float32 has it, which is what a leaf becomes in a program."""
    if isinstance(value, float):
        with np.errstate(over="ignore"):
            short = np.float32(value)
        return str(short) if float(short) == value else repr(value)
    return repr(value)


def _shaped(leaf: Any, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.result_type(leaf))


def _shapes(tree: PyTree) -> str:
    return str(jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", tree)).replace("'", "")
