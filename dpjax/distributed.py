"""Records over several devices: the same bits as on one, and each device holds its share alone."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding

from dpjax import _validate
from dpjax._messages import secret
from dpjax.datasets import Dataset
from dpjax.datasets.rows import Rows
from dpjax.objectives.units import is_grouped
from dpjax.placement.shard import AXIS

START_SECONDS = 40.0
"""How long processes wait for one another: with the imports before it, less than a minute."""

# A process that says nothing for so long is dead.
_HEARTBEAT_SECONDS = 30
_LONGEST_WAIT = 1e6  # seconds that timers take; eleven days


@dataclasses.dataclass(frozen=True)
class Sharded:
    """Data that a training is to spread over devices; ``shard`` makes them.

    Args:
      data: a ``Dataset``, or a pytree of arrays with one row a record.
      mesh: of the one axis ``"records"``.

    Privacy: raw data.
    """

    data: Any = dataclasses.field(repr=False)
    mesh: Mesh


def shard(data: Any, devices: Sequence[Any] | None = None) -> Sharded:
    """Returns ``data`` to be spread over devices: pass it to ``solve`` or ``run`` in their place.

    Nothing else changes in the call, and what is released is the same, bit for bit, as on one
    device: clipped sums are added as integers. A device's share is a multiple of 4,096 rows, so
    4,096 records or fewer stay on one device; where n is no such multiple, the last shares are
    filled with rows that contribute nothing.

    Args:
      data: a ``Dataset``, or a pytree of arrays with one row a record.
      devices: all of ``jax.devices()`` by default.

    Raises:
      ValueError: without a device.

    Privacy: of the records nothing is read here. How many rows are padding tells n, which is public
      but under ``add_or_remove_one``; it is nowhere printed.

    >>> shard((np.ones((3, 2)), np.ones(3)), jax.devices()[:1]).mesh.size
    1
    """
    chosen = jax.devices() if devices is None else list(devices)
    if not chosen:
        raise ValueError("devices is empty; pass at least one, or None for all.")
    return Sharded(data, Mesh(np.array(chosen), (AXIS,)))


def stream(data: Any) -> Any:
    """Returns ``data`` to be read in chunks while a training runs, and never held as a whole.

    For records on disk, ``np.load(path, mmap_mode="r")``, or in the host's memory beside a smaller
    one of a device. Nothing else changes in the call of ``solve``, ``run`` and ``fit``, and what is
    released is the same, bit for bit: while one chunk is worked on, the next is read. A method that
    draws batches reads their rows alone.

    Args:
      data: a ``Dataset``, or a pytree of arrays or memory maps with one row a record.

    Raises:
      ValueError: for records that are grouped into units.

    Privacy: of the records nothing is read here.

    >>> stream((np.ones((3, 2)), np.ones(3)))
    (Rows(row=(2,), dtype=float64), Rows(row=(), dtype=float64))
    """
    if is_grouped(data.examples if isinstance(data, Dataset) else data):
        raise ValueError(
            "records that are grouped into units cannot be streamed: pass them as they are, or "
            "spread them by distributed.shard."
        )
    if isinstance(data, Dataset):
        # A training reads these alone: held-out records stay as they are.
        return dataclasses.replace(data, x=_rows(data.x), y=_rows(data.y))
    return jax.tree.map(_rows, data)


def _rows(leaf: Any) -> Rows:
    return leaf if isinstance(leaf, Rows) else Rows(leaf)


def initialize(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    timeout: float = START_SECONDS,
) -> None:
    """Makes this one of several processes of a training; call it before anything else of JAX.

    ``jax.devices()``, and so ``shard``, then means the devices of all. Every process makes the same
    calls, in the same order. Process 0 owns the key, the checkpoint and the ledger: of the others
    a key of ``random_key`` is dropped, and their folders are not touched.

    JAX joins the processes. One that is missing after the timeout, ends, or is lost later makes it
    abort the others within a minute, with a trace of its own that says which timed out.

    Args:
      coordinator: ``"host:port"`` of process 0; None where Slurm, Open MPI or a TPU pod tell all.
      processes: how many there are.
      process: which this is, from 0 on.
      timeout: seconds to wait for the others, 40 by default; more where they start further apart.

    Raises:
      OSError: where JAX fails to join the processes and does not abort.
      ValueError: if the arguments do not fit together, or JAX has been used before.

    Privacy: drawn records and sums cross the network between the processes unencrypted: it has to
      be a private one. So does the root key, and whoever is process 0 is believed, unless all have
      one secret in the environment variable ``DPJAX_SECRET``, or in the file of mode 600 that
      ``DPJAX_SECRET_FILE`` names.
    """
    timeout = _validate.positive("timeout", timeout)
    if timeout > _LONGEST_WAIT:
        raise ValueError(f"timeout must be at most {_LONGEST_WAIT:g} seconds, got {timeout:g}.")
    secret()  # raises for one that cannot be used, before anybody waits
    if jax.distributed.is_initialized():
        raise ValueError("this process has joined others already; call initialize once.")
    if coordinator is not None and processes is not None and process is not None:
        _validate.positive_int("processes", processes)
        if process not in range(processes):
            raise ValueError(f"process must be from 0 to {processes - 1}, got {process!r}.")
        host, _, port = coordinator.rpartition(":")
        if not (host and port.isdecimal() and 0 < int(port) < 65536):
            raise ValueError(
                "coordinator must be HOST:PORT of process 0, such as node0:1234, got "
                f"{coordinator!r}."
            )
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process,
            # JAX takes whole seconds, and 0.5 must not become 0.
            initialization_timeout=math.ceil(timeout),
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=_HEARTBEAT_SECONDS,
        )
    # Of the network; what follows is of the arguments or the environment.
    except jax.errors.JaxRuntimeError as error:
        raise OSError(
            f"JAX could not join the processes at {coordinator or 'the coordinator'}: {error}"
        ) from error
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"several processes cannot be joined: {str(error).rstrip('.')}. Give coordinator, "
            "processes and process, or start all under Slurm, Open MPI or on a TPU pod; and join "
            "them before anything else of JAX."
        ) from error


def leads() -> bool:
    """Returns whether this is process 0, or the only one.

    >>> leads()
    True
    """
    return jax.process_index() == 0


def mesh_of(data: Any) -> tuple[Any, Mesh | None]:
    """Returns the data alone, and the mesh over which their records are to be spread, if any.

    Of ``shard``, or of arrays whose leading axis lies on several devices by a ``NamedSharding``.
    """
    if isinstance(data, Sharded):
        return data.data, data.mesh
    for leaf in jax.tree.leaves(data):
        if (mesh := _mesh(leaf)) is not None:
            return data, mesh
    return data, None


def _mesh(leaf: Any) -> Mesh | None:
    sharding = getattr(leaf, "sharding", None)
    if isinstance(leaf, Tracer) or not isinstance(sharding, NamedSharding):
        return None
    # A leading axis that is whole on each device is not spread.
    if not sharding.spec or sharding.spec[0] is None or sharding.mesh.size == 1:
        return None
    # Of one axis: records are cut over all devices, whatever axes the caller gave them.
    return Mesh(np.array(list(sharding.mesh.devices.flat)), (AXIS,))  # pyright: ignore
