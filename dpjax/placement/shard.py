"""Records over several devices: each holds its share, and sums of integers join them.

The only file that names a collective. What crosses devices is integers alone: the integers of a
clipped sum, and the bit patterns of records that were drawn. Integers add up to the same bits on
any number of devices, so a training releases the same on all.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dpjax._typing import Array, PyTree, pytree_dataclass, static
from dpjax.placement.stream import Streamed, is_streamed, stream

AXIS = "records"
"""The one axis of the mesh."""
SHARE = 4096
"""A device's share is a multiple of so many rows, which all chunks of rows divide."""


@pytree_dataclass
class Spread:
    """Records over the devices of a mesh; secret.

    Args:
      rows: pytree of arrays whose leading axis is cut into equal shares, the last ones padded.
      mask: bool, cut as the rows are: those that count; None for all.
      padded: whether rows after the last record hold something, and are to be masked.
    """

    rows: PyTree
    mesh: Mesh = static()
    size: int = static()
    mask: Array | None = None
    padded: bool = static(default=True)

    def over(self, function: Callable[..., PyTree], *public: PyTree) -> PyTree:
        """Returns ``function(rows, keep, *public)``, which each device computes on its share.

        Its clipped sums are those over all shares, and what it returns must be the same on all
        devices. ``keep`` is bool, the rows that hold a record, or None for all.
        """

        def local(cut: tuple[PyTree, Array | None], public: tuple) -> PyTree:
            rows, mask = cut
            return function(rows, self._keep(rows, mask), *public)

        return self._mapped(local, P())((self.rows, self.mask), public)

    def map(self, function: Callable[..., PyTree]) -> "Spread":
        """Returns ``function(rows, keep)`` of each share, where it stays; it must use ``keep``."""

        def local(rows: PyTree, _: tuple) -> PyTree:
            return function(rows, self._keep(rows, None))

        # By its use of `keep` the function makes null rows of padding, which need no mask.
        rows = self._mapped(local, P(AXIS))(self.rows, ())
        return Spread(rows, self.mesh, self.size, padded=False)

    def _mapped(self, local: Callable[..., PyTree], out: P) -> Callable[..., PyTree]:
        # Unchecked: a loss may hold loops that start from a constant, which the check refuses.
        return jax.shard_map(
            local, mesh=self.mesh, in_specs=(P(AXIS), P()), out_specs=out, check_vma=False
        )

    def _keep(self, rows: PyTree, mask: Array | None) -> Array | None:
        if not self.padded:
            return mask
        share = jax.tree.leaves(rows)[0].shape[0]
        # A row's number among those of all shares; padding comes after the last record.
        keep = lax.axis_index(AXIS) * share + jnp.arange(share) < self.size
        return keep if mask is None else keep & mask


def over_shares(
    function: Callable[..., PyTree], records: PyTree, mask: Array | None, *public: PyTree
) -> PyTree:
    """Returns ``function(records, mask, *public)``, by ``Spread.over`` where records are spread."""
    if isinstance(records, Spread):
        return records.over(function, *public)
    return function(records, mask, *public)


def is_inside() -> bool:
    """Whether this is traced for one device's share."""
    return AXIS in jax.sharding.get_abstract_mesh().manual_axes


def add_up(integers: list[Array]) -> list[Array]:
    """Returns the sums over all shares of arrays of int64, by one collective; inside a share."""
    with jax.enable_x64(True):
        # In one collective, as each costs a round trip between the devices.
        flat = jnp.concatenate([array.ravel() for array in integers])
        ends = np.cumsum([array.size for array in integers])[:-1].tolist()
        parts = jnp.split(lax.psum(flat, AXIS), ends)
        return [part.reshape(array.shape) for part, array in zip(parts, integers, strict=True)]


def length(records: PyTree) -> int:
    """Returns the number of records, which may be spread."""
    if isinstance(records, Spread | Streamed):
        return records.size
    return jax.tree.leaves(records)[0].shape[0]


def take(records: PyTree, indices: Array) -> PyTree:
    """Returns the records at ``indices``, on every device."""
    if isinstance(records, Streamed):
        return records.at(indices)
    if not isinstance(records, Spread):
        return jax.tree.map(lambda leaf: leaf[indices], records)
    return records.over(lambda rows, _, indices: _gathered(rows, indices), indices)


def draw(records: PyTree, indices: Array, mask: Array) -> tuple[PyTree, Array | None]:
    """Returns the records at ``indices`` and which of them count, spread again if they are many."""
    slots = indices.shape[0]
    # A small batch is on every device, as spreading it costs more than its sums.
    if not isinstance(records, Spread) or slots <= SHARE:
        return take(records, indices), mask
    share, devices = _share(slots, records.mesh), records.mesh.size
    # Slots of padding name record 0, and are masked.
    indices, mask = (jnp.pad(array, (0, share * devices - slots)) for array in (indices, mask))

    def of_share(rows: PyTree, public: tuple[Array, Array]) -> tuple[PyTree, Array]:
        indices, mask = (array.reshape(devices, share) for array in public)
        me = lax.axis_index(AXIS)

        # One device's share after the other, so that none holds the whole batch.
        def gather_for(device: Array, held: PyTree) -> PyTree:
            gathered = _gathered(rows, indices[device])
            return jax.tree.map(lambda new, old: jnp.where(device == me, new, old), gathered, held)

        nothing = jax.tree.map(lambda leaf: jnp.zeros((share, *leaf.shape[1:]), leaf.dtype), rows)
        return lax.fori_loop(0, devices, gather_for, nothing), mask[me]

    rows, mask = records._mapped(of_share, P(AXIS))(records.rows, (indices, mask))
    return Spread(rows, records.mesh, slots, mask, padded=False), None


def _gathered(rows: PyTree, indices: Array) -> PyTree:
    """The records at ``indices`` of all shares; for one device's share, on every device."""
    share = jax.tree.leaves(rows)[0].shape[0]
    place = indices - lax.axis_index(AXIS) * share
    is_mine = (place >= 0) & (place < share)
    # Where another share has the record any row will do: it is set to 0 below.
    place = jnp.where(is_mine, place, 0)

    def gather(leaf: Array) -> Array:
        bits = leaf[place]
        mine = is_mine.reshape(-1, *(1,) * (bits.ndim - 1))
        with jax.enable_x64(leaf.dtype.itemsize == 8):
            # Not the numbers: added to 0, -0 becomes 0, and a NaN may become another.
            if not jnp.issubdtype(leaf.dtype, jnp.integer):
                bits = bits.view(f"uint{8 * leaf.dtype.itemsize}")
            # All shares but one add 0, so that the sum is the record's bits.
            return lax.psum(jnp.where(mine, bits, jnp.zeros_like(bits)), AXIS).view(leaf.dtype)

    return jax.tree.map(gather, rows)


def check_sums(records: PyTree, numbers: int) -> None:
    """Raises if the devices of spread records do not add up as one does.

    What they add are made-up integers, as many ``numbers`` as a clipped sum holds: a wrong sum
    would be a wrong guarantee, and backends have returned some.
    """
    if not isinstance(records, Spread):
        return

    def made_up(device: Any, place: Any) -> Any:
        # Of some 60 bits: a device that adds in 32 bits, or in floats, gives another sum.
        return (place * 2654435761 + device * 40503) % 2**61 - 2**60

    def local(_: Array, __: tuple) -> Array:
        with jax.enable_x64(True):
            device = lax.axis_index(AXIS).astype(jnp.int64)
            return add_up([made_up(device, jnp.arange(numbers, dtype=jnp.int64))])[0]

    with jax.enable_x64(True):
        sums = np.asarray(
            jax.jit(records._mapped(local, P()))(jax.tree.leaves(records.rows)[0], ())
        )
    # Sums of int64 wrap around, on a device as here.
    with np.errstate(over="ignore"):
        devices = np.arange(records.mesh.size, dtype=np.int64)[:, None]
        expected = made_up(devices, np.arange(numbers, dtype=np.int64)).sum(axis=0)
    if not np.array_equal(sums, expected):
        raise RuntimeError(
            f"{records.mesh.size} devices do not add up integers as one does, so no sum of theirs "
            "has a guarantee; nothing was asked. Run on one device, and report the versions of jax "
            "and of the devices' drivers."
        )


def _share(rows: int, mesh: Mesh) -> int:
    return SHARE * math.ceil(rows / (SHARE * mesh.size))


def own_rows(n: int, mesh: Mesh) -> list[range]:
    """Returns which of n records, that are spread over a mesh, lie on devices of this process."""
    share, me = _share(n, mesh), jax.process_index()
    return [
        range(min(place * share, n), min((place + 1) * share, n))
        for place, device in enumerate(mesh.devices.flat)
        if device.process_index == me
    ]


def shares(records: PyTree) -> PyTree:
    """Returns the arrays of spread records, padded at the end, or the shapes of streamed ones."""
    if isinstance(records, Streamed):
        return records.shapes
    return records.rows if isinstance(records, Spread) else records


def replicate(tree: PyTree, records: PyTree) -> PyTree:
    """Returns ``tree``, the same in every process, on all devices where ``records`` are spread."""
    if not isinstance(records, Spread):
        return tree
    sharding = NamedSharding(records.mesh, P())
    if sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)

    def copied(leaf: Array) -> Array:
        # NumPy holds the words of a key, but no key.
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            implementation = jax.random.key_impl(leaf)
            return jax.random.wrap_key_data(copied(jax.random.key_data(leaf)), impl=implementation)
        held = np.asarray(leaf)
        return jax.make_array_from_callback(held.shape, sharding, lambda index: held[index])

    return jax.tree.map(copied, tree)


def to_host(tree: PyTree) -> PyTree:
    """Returns arrays that all devices hold alike as those of one device of this process."""

    def local(leaf: Any) -> Any:
        if not isinstance(leaf, Array) or isinstance(leaf, Tracer):
            return leaf
        return leaf if len(leaf.sharding.device_set) == 1 else leaf.addressable_data(0)

    return jax.tree.map(local, tree)


def put(examples: PyTree, mesh: Mesh | None) -> PyTree:
    """Returns ``examples`` spread over a mesh, or on one device where they are few.

    Privacy: reads shapes; rows of padding are 0 and masked.
    """
    n = length(examples)
    if mesh is None:
        return stream(examples) if is_streamed(examples) else examples
    if mesh.size == 1 or n <= SHARE:
        return jax.tree.map(np.asarray, examples)
    share = _share(n, mesh)
    sharding = NamedSharding(mesh, P(AXIS))

    def spread(leaf: Any) -> Array:
        # What float64 becomes without x64, on several devices as on one.
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)

        def part(index: Any) -> np.ndarray:
            start, stop = index[0].start or 0, index[0].stop
            # A warning of an overflow would tell that such a record is there.
            with np.errstate(all="ignore"):
                # A process is asked for the shares of its own devices, and reads no others.
                rows = np.asarray(leaf[start : min(stop, n)]).astype(dtype, copy=False)
            missing = share - len(rows)
            return np.concatenate([rows, np.zeros((missing, *leaf.shape[1:]), dtype)])

        shape = (share * mesh.size, *leaf.shape[1:])
        return jax.make_array_from_callback(shape, sharding, part)

    return Spread(jax.tree.map(spread, examples), mesh, n)
