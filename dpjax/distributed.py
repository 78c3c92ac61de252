"""Records over several devices: the same bits as on one, and each device holds its share alone."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding

from dpjax._sharding import AXIS


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


def mesh_of(data: Any) -> tuple[Any, Mesh | None]:
    """Returns the data alone, and the mesh over which their records are to be spread, if any.

    Args:
      data: from ``shard``, or anything ``solve`` takes: arrays whose leading axis lies on several
        devices by a ``NamedSharding`` are spread over these.
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
    if not sharding.spec or sharding.spec[0] is None or sharding.mesh.size == 1:
        return None
    return Mesh(np.array(list(sharding.mesh.devices.flat)), (AXIS,))  # pyright: ignore
