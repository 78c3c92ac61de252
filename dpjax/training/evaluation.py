"""NOT PRIVATE: exact means of losses and metrics over held-out records, at steps of a run."""

import functools
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _durable
from dpjax._program import program_hash, sha256
from dpjax._typing import Array, Params, PyTree
from dpjax._wide import on_device
from dpjax.driver import ResumeMismatch, holds_run
from dpjax.driver.fingerprint import content
from dpjax.training.losses import Measures
from dpjax.training.network import Network
from dpjax.training.records import one_of

CHUNK = 512
"""Records at once: bounds the memory, and leaves one shape to compile."""
_FILE = "evaluations.json"


class Evaluator:
    """Measures the iterates it is shown, each step once, and remembers what it found.

    Args:
      network: of one example.
      measures: names and functions of outputs and label.
      sets: records ``(x, y)`` by name: ``"held_out"`` and, if asked for, ``"training"``.
      steps_per_epoch: to name epochs by.
      checkpoint: folder of the run, where the table is kept beside it; None keeps it in memory.
      root: gives the run's key; called where there is a folder and something to measure on.
      params: shapes and dtypes of the network's parameters are read off them.

    Raises:
      ResumeMismatch: if the run in ``checkpoint`` was measured on other records or otherwise.

    Privacy: NOT PRIVATE with regard to the records it measures on. The table says which ones they
      were by a hash that is keyed by ``root``: without the key no guess at them can be confirmed.
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
        self._sets = {name: _chunked(records) for name, records in sets.items()}
        self._found: dict[int, dict[str, dict[str, float]]] = {}
        self._path = None if checkpoint is None else pathlib.Path(checkpoint, _FILE)
        self._identity = ""
        if checkpoint is not None and sets:
            # In the keyed hash too: a metric may hold records in its closure.
            records = next(iter(sets.values()))
            described = sha256(*sets, *_programs(network, measures, params, records))
            words = np.frombuffer(described.encode(), np.uint8)
            self._identity = content((words, sets), root())
            if holds_run(checkpoint):
                self._read()

    @property
    def measures_any(self) -> bool:
        """Whether there are records to measure on."""
        return bool(self._sets)

    def __call__(self, step: int, params: Params) -> str:
        """Returns words about ``params``, the iterate after ``step`` steps."""
        if not self.measures_any:
            return ""
        if step not in self._found:
            self._found[step] = {
                name: exact_means(self._network, self._measures, params, *records)
                for name, records in self._sets.items()
            }
            self._write()
        held_out = self._found[step].get("held_out", {})
        if "accuracy" in held_out:
            return f"held-out {100 * held_out['accuracy']:.1f} %"
        return f"held-out loss {held_out['loss']:.4g}" if held_out else ""

    def table(self, name: str) -> dict[str, np.ndarray] | None:
        """Returns steps, epochs and every measure over the set ``name``, as columns."""
        if name not in self._sets:
            return None
        steps = sorted(step for step in self._found if name in self._found[step])
        columns = {
            measure: np.array([self._found[step][name][measure] for step in steps])
            for measure, _ in self._measures
        }
        epochs = np.array(steps) / self._steps_per_epoch
        return {"step": np.array(steps, int), "epoch": epochs, **columns}

    def _read(self) -> None:
        assert self._path is not None
        if not self._path.exists():
            return
        held = json.loads(self._path.read_text())
        if held["identity"] != self._identity:
            raise ResumeMismatch(
                "held_out or metrics are not those that the run in this checkpoint was measured "
                "with. Put them back, or begin another run with another folder and a new key."
            )
        self._found = {int(step): found for step, found in held["found"].items()}

    def _write(self) -> None:
        # In the folder of the run, which that has made and locked by the time of the first look.
        if self._path is not None and self._path.parent.is_dir():
            content = {"identity": self._identity, "found": self._found}
            _durable.replace_private(self._path, json.dumps(content).encode())


def exact_means(
    network: Network, measures: Measures, params: Params, chunks: PyTree, counted: np.ndarray
) -> dict[str, float]:
    """Returns the mean of every measure over records in chunks. NOT PRIVATE."""
    totals = jax.device_get(_totals(network, measures, params, chunks, counted))
    count = float(np.sum(counted))
    return {name: float(total) / count for name, total in totals.items()}


def outputs_of(network: Network, params: Params, x: PyTree) -> PyTree:
    """Returns the outputs for many examples, leading axis first, computed in chunks."""
    rows = len(jax.tree.leaves(x)[0])
    chunks, _ = _chunked(x)
    found = _outputs(network, params, chunks)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:rows], found)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _totals(
    network: Network, measures: Measures, params: Params, chunks: PyTree, counted: Array
) -> dict[str, Array]:
    def one(chunk: tuple[PyTree, Array]) -> dict[str, Array]:
        (x, y), kept = chunk
        outputs = jax.vmap(lambda row: network(params, row))(x)
        values = {name: jax.vmap(measure)(outputs, y) for name, measure in measures}
        return {name: jnp.sum(jnp.where(kept, v * 1.0, 0)) for name, v in values.items()}

    return jax.tree.map(jnp.sum, jax.lax.map(one, (chunks, counted)))


@functools.partial(jax.jit, static_argnums=0)
def _outputs(network: Network, params: Params, chunks: PyTree) -> PyTree:
    return jax.lax.map(jax.vmap(lambda row: network(params, row)), chunks)


def _programs(
    network: Network, measures: Measures, params: Params, records: tuple[PyTree, PyTree]
) -> list[str]:
    x, y = one_of(records)
    outputs = jax.eval_shape(network, params, x)
    hashes = ((name, program_hash((measure, (outputs, y)))) for name, measure in measures)
    return [word for pair in hashes for word in pair]


def _chunked(records: PyTree) -> tuple[PyTree, np.ndarray]:
    """Returns records as (chunks, size, ...), the last filled up, and which of them count."""
    rows = len(jax.tree.leaves(records)[0])
    size = min(rows, CHUNK)
    chunks = -(-rows // size)

    def split(leaf: Any) -> Array:
        array = np.asarray(leaf)
        whole = np.concatenate([array, array[:1].repeat(chunks * size - rows, axis=0)])
        return on_device(whole.reshape(chunks, size, *array.shape[1:]))

    counted = np.arange(chunks * size).reshape(chunks, size) < rows
    return jax.tree.map(split, records), counted
