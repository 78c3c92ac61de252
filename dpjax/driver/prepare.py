"""``prepare`` checks a training's arguments and moves its records to the devices, once for all."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from dpjax import _validate
from dpjax._typing import Array, Params, PyTree
from dpjax._wide import on_device
from dpjax.accounting import Event
from dpjax.algorithms import Algorithm
from dpjax.datasets import Dataset
from dpjax.distributed import mesh_of
from dpjax.driver.asking import check_questions
from dpjax.driver.checks import check_alike, check_data, check_devices
from dpjax.driver.configuration import Configuration, drop_outdated
from dpjax.driver.keys import key_of_first
from dpjax.driver.loop import describe
from dpjax.mechanisms.keys import check_traced, guessable
from dpjax.oracles.keyed import placed
from dpjax.placement import processes
from dpjax.placement.shard import put
from dpjax.placement.stream import open_readers, shaped
from dpjax.results.solution import Solution, settled

_MAX_SELF_TEST_SIZE = 2**22


@dataclasses.dataclass(frozen=True)
class Training:
    """A training whose arguments are checked; nothing has been asked of the data yet.

    Privacy: raw data and the key.
    """

    algorithm: Algorithm
    data: Dataset | PyTree = dataclasses.field(repr=False)
    examples: PyTree = dataclasses.field(repr=False)
    """The records as the objective reads them, in the host's memory or wherever they were."""
    records: PyTree = dataclasses.field(repr=False)
    """The same, on the devices."""
    params: Params = dataclasses.field(repr=False)
    key: Array | None = dataclasses.field(repr=False)
    """The root key; None for that of a checkpoint. SECRET."""
    reproducible: bool
    """Whether the key may come from a seed."""
    unit_of_privacy: dict[str, Any]
    """Its name, ``unit``, and ``bounded_rows``: whether every row surely has norm 1 at most."""
    team: processes.Team

    @contextlib.contextmanager
    def open_readers(self) -> Iterator[None]:
        """Holds the records open, and tells the other processes if this one fails."""
        with processes.reaching_others(self.team), open_readers(self.records):
            yield

    @property
    def event(self) -> Event:
        """What a ledger books."""
        return self.algorithm.event

    @property
    def steps(self) -> int:
        """How many there are to save and show."""
        return int(self.algorithm.steps)

    def described(self) -> Configuration:
        """Returns what must be the same for it to go on."""
        return describe(self.algorithm, self.examples, self.params)

    def settled(self, solution: Solution, part: str | None = None) -> Solution:
        """Returns a solution of this training with what only the host knows of it."""
        made = self.data.preprocessing if isinstance(self.data, Dataset) else None
        return settled(solution, self.reproducible, made, part)


def prepare(
    algorithm: Algorithm,
    data: Dataset | PyTree,
    key: Array | None,
    params: Params | None,
    *,
    seeded: bool,
) -> Training:
    """Returns the training of ``solve``'s arguments, checked in all that is public.

    ``seeded`` says that the key is made of a seed; a traced key cannot be inspected for it.
    """
    if not hasattr(algorithm, "dimension"):
        raise ValueError(
            "algorithm must be what a factory such as dp_trust_region returns, got "
            f"{_validate.shown(algorithm)}: call it with objective, budget and sizes."
        )
    if not isinstance(algorithm.steps, Tracer):
        _validate.int32_count("steps", algorithm.steps)
    data, mesh = mesh_of(data)
    params = starting_point(algorithm, params)
    check_data(algorithm, data, params)
    examples, unit, bounded_rows = unpack(data, algorithm)
    # Before anything is traced: JAX would reuse the program of a function that has changed since.
    drop_outdated(algorithm.objective, examples, params)
    # Traced, not run: what an algorithm may not ask is refused before the key is used.
    check_questions(algorithm, shaped(examples), params)
    team = processes.team(mesh)
    check_alike(team, lambda: describe(algorithm, examples, params).digest, examples, params, key)
    # Asked of this process's own key: below, that of process 0 takes its place.
    reproducible = seeded or (key is not None and guessable(key))
    with processes.reaching_others(team):
        key = None if key is None else key_of_first(team, key)
        records = on_device(put(examples, mesh))
        # The self-test sums a gradient and Hessian; a gradient alone if those are too large.
        numbers = algorithm.dimension * (algorithm.dimension + 1)
        check_devices(records, numbers if numbers <= _MAX_SELF_TEST_SIZE else algorithm.dimension)
    if key is not None:
        check_traced(key, records)
    # Static arguments of the programs; the second decides the scope of a certificate.
    held = {"unit": unit, "bounded_rows": bounded_rows}
    return Training(algorithm, data, examples, records, params, key, reproducible, held, team)


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
        raise ValueError(
            f"params hold {size} numbers, but dimension={algorithm.dimension}: pass params of "
            f"{algorithm.dimension} numbers, or dimension={size} to the factory."
        )
    for leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(
                f"params must be floating, got {leaf.dtype}; convert by astype('float32')."
            )
        if not isinstance(leaf, Tracer) and not np.isfinite(np.asarray(leaf)).all():
            raise ValueError(
                "params must be finite; they are public, so this error reveals nothing about the "
                "records."
            )
    return params


def unpack(data: Dataset | PyTree, algorithm: Algorithm) -> tuple[PyTree, str, bool]:
    """Returns examples, the unit of privacy, and whether every row is known to have norm <= 1."""
    objective, is_set = algorithm.objective, isinstance(data, Dataset)
    examples = placed(objective, objective.read(data.examples if is_set else data))
    if not is_set:
        return examples, "row", False
    return examples, data.unit, data.max_norm is not None and data.max_norm <= 1
