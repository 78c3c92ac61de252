"""A network's ``Objective`` and metrics and, NOT PRIVATE, their exact means on held-out records."""

import dataclasses
import functools
import itertools
import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _durable, _validate
from dpjax._program import program_hash, sha256, trace
from dpjax._typing import Array, Params, PyTree
from dpjax._wide import on_device
from dpjax.driver import ResumeMismatch, holds_run
from dpjax.driver.fingerprint import content
from dpjax.objectives import Objective, cross_entropy
from dpjax.objectives.keyed import Keyed, KeyedLoss, with_shape_of_key
from dpjax.objectives.linear import Classes
from dpjax.training.mixing import reads_first
from dpjax.training.network import Network
from dpjax.training.table import example_shape

LossOfOutputs = Callable[[Any, Any], Array]
Measures = tuple[tuple[str, LossOfOutputs], ...]
"""Names and functions ``(outputs, y) -> number`` of one example."""


# Our names of losses, among what others call them.
_NAMES = {name: name for name in ("cross_entropy", "bce", "mse")} | {
    "crossentropy": "cross_entropy", "ce": "cross_entropy", "binary_crossentropy": "bce",
    "binary_cross_entropy": "bce", "mean_squared_error": "mse", "squared_error": "mse",
}  # fmt: skip


def named(loss: Any) -> Any:
    """Returns a loss by our name of it; a function as it is."""
    return loss if callable(loss) else _NAMES[_validate.choice("loss", loss, _NAMES)]


@dataclasses.dataclass(frozen=True)
class _Loss:
    """A loss of parameters from a loss of outputs; equal for the same functions."""

    network: Network
    loss: LossOfOutputs
    program: str

    def __call__(self, params: Params, example: tuple[PyTree, PyTree]) -> Array:
        x, y = example
        return self.loss(self.network(params, x), y)


@dataclasses.dataclass(frozen=True)
class Drawn(KeyedLoss):
    """A loss of a network that draws in training, or of random views of a record.

    Args:
      loss: of parameters and ``(x, y)``, where x may be ``Keyed``.
      augment: ``augment(x, key) -> x``; None for x itself.
      views: how many are made of a record; the mean of their losses is that of the record.

    Reference: De et al. (2022), section 3.2, augmentation multiplicity.
    """

    augment: Callable[[Any, Array], Any] | None = None
    views: int = 1

    def drawn(self, params: Params, record: tuple[PyTree, PyTree], key: Array) -> Array:
        x, y = record

        def of_view(key: Array) -> Array:
            one, other = jax.random.split(key)
            view = x if self.augment is None else self.augment(x, one)
            return self.loss(params, (Keyed(view, jax.random.key_data(other)), y))

        if self.views == 1:
            return of_view(key)
        return jnp.mean(jax.vmap(of_view)(jax.random.split(key, self.views)))

    def evaluated(self, params: Params, record: tuple[PyTree, PyTree]) -> Array:
        return self.loss(params, record)


def objective_of(
    net: Network,
    loss: str | LossOfOutputs,
    params: Params,
    record: tuple[PyTree, PyTree],
    regularizer: Any = None,
    metrics: Mapping[str, LossOfOutputs] | None = None,
    augment: Callable[[Any, Array], Any] | None = None,
    views: int | None = None,
) -> tuple[Objective, Measures]:
    """Returns the objective, and the measures: the loss, accuracy for classes, and metrics.

    ``params`` may be their shapes, and ``record`` holds shapes and dtypes of one ``(x, y)``. The
    other arguments are those of ``fit``.
    """
    outputs = jax.eval_shape(net, params, record[0])
    if regularizer is not None and net.fixed is not None:
        try:
            jax.eval_shape(regularizer, params)
        except (TypeError, AttributeError) as error:
            raise ValueError(
                f"the regularizer cannot be computed: {error}. It is of the trained parameters, "
                "with None in place of those that are not."
            ) from error
    if (by_name := isinstance(loss, str)) and not hasattr(record[1], "shape"):
        raise ValueError(f"{loss!r} takes one array of labels: of several pass loss=f(outputs, y).")
    if loss == "cross_entropy":
        objective = cross_entropy(net, regularizer)
        measures: Measures = (("loss", _logits_loss), ("accuracy", _correct))
        jax.eval_shape(objective.loss, params, record)  # raises where outputs are no logits
    else:
        own: Any = {"mse": _squared_error, "bce": _binary_loss}[loss] if by_name else loss
        _check_number("loss", own, outputs, record[1], jnp.floating)
        program = program_hash((own, (outputs, record[1])))
        name = getattr(own, "__name__", "loss").strip("_").replace("_", " ")
        objective = Objective(_Loss(net, own, program), regularizer, name=name)
        measures = (("loss", own), *([("accuracy", _correct)] if loss == "bce" else []))
    views = _views(augment, views, net, params, record[0])
    if net.draws or augment is not None:
        objective = dataclasses.replace(objective, loss=Drawn(objective.loss, augment, views))
    more = dict(metrics or {})
    for name, metric in more.items():
        _check_number(f"the metric {name!r}", metric, outputs, record[1], jnp.generic)
    # A metric of the same name takes the place of the default one.
    return objective, tuple({**dict(measures), **more}.items())


def _views(augment: Any, views: int | None, net: Network, params: Params, x: PyTree) -> int:
    """Returns how many views a loss takes the mean of, after a check of what makes them."""
    if augment is None:
        if views is not None:
            raise ValueError("views= goes with augment=, a function (x, key) -> x of one record.")
        return 1
    shapes = jax.tree.map(lambda leaf: leaf.shape, x)
    what = f"augment is a function (x, key) -> x of one record's features, of shape {shapes}"
    try:
        view = jax.eval_shape(augment, x, jax.random.key(0))
        same = (made := jax.tree.map(lambda leaf: leaf.shape, view)) == shapes
        if same:
            jax.eval_shape(net, params, view)
        varies = reads_first(lambda key, x: augment(x, key), jax.random.key(0), x)
    # Whatever a function of one's own raises; it was traced with shapes, and no record is read.
    except Exception as error:
        raise ValueError(
            f"{what}, without a batch axis; it, or the model of it, cannot be computed: {error}"
        ) from error
    if not same:
        raise ValueError(f"{what}; it returns {made}.")
    if not varies:
        raise ValueError(f"{what}; it does not read its key: each step would have the same view.")
    return _validate.positive_int("views", 1 if views is None else views)


def check_closures(
    objective: Objective, params: Params, record: tuple[PyTree, PyTree], rows: int, fixed: PyTree
) -> None:
    """Raises if loss, model or regularizer hold an array with one row per training record.

    Such an array is not clipped: through it a record would reach every gradient. The check finds
    the records themselves, but not arrays computed from them, nor subsets of rows.

    ``rows`` is the number of training records; if it is private, the declared one. ``fixed`` are
    the parameters that are not trained: they reach every gradient too.
    """
    functions: dict[str, tuple[Callable[..., Array], tuple[PyTree, ...]]] = {
        "loss or model": (
            objective.loss,
            (params, with_shape_of_key(record) if objective.draws else record),
        )
    }
    if objective.regularizer is not None:
        functions["regularizer"] = objective.regularizer, (params,)
    # A number that is also a size of the model is inconclusive.
    sizes = {size for leaf in jax.tree.leaves((params, record)) for size in jnp.shape(leaf)}
    # Widths of layers are behind the first axis too, and records are not.
    sizes |= {size for leaf in jax.tree.leaves(fixed) for size in jnp.shape(leaf)[1:]}
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


def _squared_error(outputs: Array, y: Array) -> Array:
    if jnp.size(outputs) != jnp.size(y):
        raise ValueError(f"'mse' needs an output for each label: {outputs.shape}, {y.shape}.")
    return jnp.mean((jnp.ravel(outputs) - jnp.ravel(y)) ** 2)


def _binary_loss(outputs: Array, y: Array) -> Array:
    if jnp.size(outputs) != 1:
        raise ValueError(f"'bce' needs one logit, got {jnp.shape(outputs)}: take 'cross_entropy'.")
    return _logits_loss(two_logits(outputs), y)


def two_logits(outputs: Array) -> Array:
    """Returns the logits of two classes (2,) where there is one number; others as they are."""
    return jnp.ravel(outputs) * jnp.arange(2.0) if jnp.size(outputs) == 1 else outputs


def _correct(logits: Array, y: Array) -> Array:
    logits = two_logits(logits)
    # Of two logits -1 stands for 0, as in the loss.
    return jnp.argmax(logits) == Classes(logits.size).read(y)


CHUNK = 512
"""Records at once: bounds the memory, and leaves one shape to compile."""
_FILE = "evaluations.json"


class Evaluator:
    """Evaluates iterates, each step once, and stores the results.

    Args:
      sets: records ``(x, y)`` by name: ``"held_out"`` and, if requested, ``"training"``.
      checkpoint: folder of the run, where the table is stored beside it; None stores it in memory.
      root: returns the run's key; called only with a folder and records to measure on.

    Privacy: NOT PRIVATE with regard to the records it measures on. The table identifies
      them by a hash keyed by ``root``: without the key no guess at them can be confirmed.
    """

    def __init__(
        self,
        network: Network,
        measures: Measures,
        sets: dict[str, tuple[PyTree, PyTree]],
        steps_per_epoch: float,
        checkpoint: str | os.PathLike | None,
        root: Callable[[], Array],
        params: Params,
    ):
        self._network, self._measures, self._steps_per_epoch = network, measures, steps_per_epoch
        # Cut into chunks once, for all evaluations.
        self.sets = {name: _chunked(records) for name, records in sets.items()}
        self._results: dict[int, dict[str, dict[str, float]]] = {}
        self._path = None if checkpoint is None else pathlib.Path(checkpoint, _FILE)
        self._identity = ""
        if self._path is not None and sets:
            # In the keyed hash too: a metric may hold records in its closure.
            x, y = example_shape(next(iter(sets.values())))
            arguments = jax.eval_shape(network, params, x), y
            programs = ((name, program_hash((each, arguments))) for name, each in measures)
            described = sha256(*sets, *itertools.chain(*programs))
            description = np.frombuffer(described.encode(), np.uint8)
            self._identity = content((description, sets), root())
            if holds_run(self._path.parent) and self._path.exists():
                stored = json.loads(self._path.read_text())
                if stored["identity"] != self._identity:
                    raise ResumeMismatch(
                        "held_out or metrics are not those that the run in this checkpoint was "
                        "measured with. Put them back, or begin another run with another folder "
                        "and a new key."
                    )
                self._results = {int(step): result for step, result in stored["found"].items()}

    def __call__(self, step: int, params: Params) -> str:
        """Returns a summary of ``params``, the iterate after ``step`` steps, as text."""
        if not self.sets:
            return ""
        # A resumed run comes by steps that were measured before it stopped.
        if step not in self._results:
            self._results[step] = {
                name: self._exact_means(params, *records) for name, records in self.sets.items()
            }
            # At once, so that a crash loses no evaluation. The run has created and locked its
            # folder before the first one.
            if self._path is not None and self._path.parent.is_dir():
                content = {"identity": self._identity, "found": self._results}
                _durable.replace_private(self._path, json.dumps(content).encode())
        held_out = self._results[step].get("held_out", {})
        if "accuracy" in held_out:
            return f"held-out {100 * held_out['accuracy']:.1f} %"
        return f"held-out loss {held_out['loss']:.4g}" if held_out else ""

    def table(self, name: str) -> dict[str, np.ndarray] | None:
        """Returns steps, epochs and every measure over the set ``name``, as columns."""
        if name not in self.sets:
            return None
        steps = sorted(step for step in self._results if name in self._results[step])
        columns = {
            measure: np.array([self._results[step][name][measure] for step in steps])
            for measure, _ in self._measures
        }
        epochs = np.array(steps) / self._steps_per_epoch
        return {"step": np.array(steps, int), "epoch": epochs, **columns}

    def _exact_means(self, params: Params, chunks: PyTree, mask: np.ndarray) -> dict[str, float]:
        totals = jax.device_get(_totals(self._network, self._measures, params, chunks, mask))
        return {name: float(total) / float(np.sum(mask)) for name, total in totals.items()}


def outputs_of(network: Network, params: Params, x: PyTree) -> PyTree:
    """Returns the outputs for many examples, leading axis first, computed in chunks."""
    rows = len(jax.tree.leaves(x)[0])
    chunks, _ = _chunked(x)
    outputs = _outputs(network, params, chunks)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:rows], outputs)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _totals(
    network: Network, measures: Measures, params: Params, chunks: PyTree, masks: Array
) -> dict[str, Array]:
    def chunk_totals(chunk: tuple[PyTree, Array]) -> dict[str, Array]:
        (x, y), mask = chunk
        outputs = jax.vmap(lambda row: network(params, row))(x)
        values = {name: jax.vmap(measure)(outputs, y) for name, measure in measures}
        # Metrics may be bools or integers; sums are of floats.
        return {name: jnp.sum(jnp.where(mask, v * 1.0, 0)) for name, v in values.items()}

    return jax.tree.map(jnp.sum, jax.lax.map(chunk_totals, (chunks, masks)))


@functools.partial(jax.jit, static_argnums=0)
def _outputs(network: Network, params: Params, chunks: PyTree) -> PyTree:
    return jax.lax.map(jax.vmap(lambda row: network(params, row)), chunks)


def _chunked(records: PyTree) -> tuple[PyTree, np.ndarray]:
    """Returns records as (chunks, size, ...), the last chunk padded, and a mask of real records."""
    rows = len(jax.tree.leaves(records)[0])
    size = min(rows, CHUNK)
    chunks = -(-rows // size)

    def split(leaf: Any) -> Array:
        array = np.asarray(leaf)
        # Padded with the first record, which no network refuses; the mask leaves it out of means.
        padded = np.concatenate([array, array[:1].repeat(chunks * size - rows, axis=0)])
        return on_device(padded.reshape(chunks, size, *array.shape[1:]))

    mask = np.arange(chunks * size).reshape(chunks, size) < rows
    return jax.tree.map(split, records), mask
