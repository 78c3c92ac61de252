"""``Objective`` and metrics of a network and a loss of its outputs."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._program import program_hash, trace
from dpjax._typing import Array, Params, PyTree
from dpjax.objectives import Objective, cross_entropy
from dpjax.objectives.linear import Classes
from dpjax.training.network import Network

LossOfOutputs = Callable[[Any, Any], Array]
Measures = tuple[tuple[str, LossOfOutputs], ...]
"""Names and functions ``(outputs, y) -> number`` of one example."""


@dataclasses.dataclass(frozen=True)
class _Loss:
    """A loss of parameters from a loss of outputs; equal for the same functions."""

    network: Network
    loss: LossOfOutputs
    program: str

    def __call__(self, params: Params, example: tuple[PyTree, PyTree]) -> Array:
        x, y = example
        return self.loss(self.network(params, x), y)


def objective_of(
    net: Network,
    loss: str | LossOfOutputs,
    params: Params,
    record: tuple[PyTree, PyTree],
    regularizer: Any = None,
    metrics: Mapping[str, LossOfOutputs] | None = None,
) -> tuple[Objective, Measures]:
    """Returns the objective, and the measures: the loss, accuracy for classes, and metrics.

    ``net`` is of one example, ``params`` may be their shapes, and ``record`` holds shapes and
    dtypes of one ``(x, y)``. The other arguments are those of ``fit``.

    Raises:
      ValueError: for a loss or metric that is not one number of one example.

    Privacy: NOT a mechanism.
    """
    outputs = jax.eval_shape(net, params, record[0])
    if loss == "cross_entropy":
        objective = cross_entropy(net, regularizer)
        measures: Measures = (("loss", _logits_loss), ("accuracy", _correct))
        jax.eval_shape(objective.loss, params, record)  # raises where outputs are no logits
    elif callable(loss):
        _check_number("loss", loss, outputs, record[1], jnp.floating)
        program = program_hash((loss, (outputs, record[1])))
        name = getattr(loss, "__name__", "loss")
        objective = Objective(_Loss(net, loss, program), regularizer, name=name)
        measures = (("loss", loss),)
    else:
        raise ValueError(f"loss must be 'cross_entropy' or a function (outputs, y), got {loss!r}.")
    more = dict(metrics or {})
    for name, metric in more.items():
        _check_number(f"the metric {name!r}", metric, outputs, record[1], jnp.generic)
    # A metric of the same name takes the place of the default one.
    return objective, tuple({**dict(measures), **more}.items())


def check_closures(
    objective: Objective, params: Params, record: tuple[PyTree, PyTree], rows: int
) -> None:
    """Raises if loss, model or regularizer hold an array with one row per training record.

    Such an array is not clipped: through it a record would reach every gradient. The check finds
    the records themselves, but not arrays computed from them, nor subsets of rows.

    ``rows`` is the number of training records; if it is private, the declared one.
    """
    functions: dict[str, tuple[Callable[..., Array], tuple[PyTree, ...]]] = {
        "loss or model": (objective.loss, (params, record))
    }
    if objective.regularizer is not None:
        functions["regularizer"] = objective.regularizer, (params,)
    # A number that is also a size of the model is inconclusive.
    sizes = {size for leaf in jax.tree.leaves((params, record)) for size in jnp.shape(leaf)}
    for name, (function, arguments) in functions.items():
        shapes = trace(function, *arguments).shapes
        if rows not in sizes and any(shape[:1] == (rows,) for shape in shapes):
            raise ValueError(
                f"the {name} holds an array with as many rows as the training data. If it is made "
                "of their records, it reaches every gradient without being clipped, and the "
                "guarantee does not hold. What belongs to one record goes into the data, as a part "
                "of x or y; give a public table another row, which nothing reads."
            )


def _check_number(name: str, function: Any, outputs: PyTree, y: PyTree, kind: Any) -> None:
    value = jax.eval_shape(function, outputs, y)
    if getattr(value, "shape", None) != () or not jnp.issubdtype(value.dtype, kind):
        raise ValueError(f"{name} must give one number for one example, got {value}.")


def _logits_loss(logits: Array, y: Array) -> Array:
    # The loss of a network that returns the logits it is given.
    return cross_entropy(lambda _, logits: logits)(None, (logits, y))


def _correct(logits: Array, y: Array) -> Array:
    # Of two logits -1 stands for 0, as in the loss.
    return jnp.argmax(logits) == Classes(logits.size).read(y)
