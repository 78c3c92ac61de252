"""Correlated noise for prefix sums: square-root factorisation, binary tree, or independent."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from dpjax import _validate
from dpjax._typing import Array, pytree_dataclass, static
from dpjax._wide import Expansion, float64, widen
from dpjax.mechanisms.base import check_threefry, fold
from dpjax.mechanisms.gaussian import add_on_grid
from dpjax.mechanisms.normal import normal_from_bits

if TYPE_CHECKING:
    from jaxtyping import Float, Float64, Integer, Key, Real

KINDS = ("square_root", "tree", "independent")
# Draws of the square-root factorisation that are held at once: 32 MB of random bits.
_DRAWS = 2**22
# Longer ones are no run, and their weights do not fit in memory.
_LONGEST = 2**20


@pytree_dataclass
class PrefixNoise:
    """Noise on increments that stays small on their sums; ``prefix_noise`` makes one.

    The increments G are released as G + C^-1 Z, with Z independent normal vectors: their prefix
    sums A G then hold the noise A C^-1 Z. All of Z is a function of one key, so nothing is kept
    between steps, and a segment with another key starts afresh.

    Args:
      kind: ``"square_root"``, C the square root of A with its columns scaled to norm 1; ``"tree"``,
        all partial sums of a binary tree; ``"independent"``, C = I.
      horizon: K, the most increments of one segment.

    Privacy: a record that moves one increment of one segment by s moves C G by ``sensitivity`` * s:
      one Gaussian mechanism of multiplier stddev / (``sensitivity`` * s), however the increments
      were chosen after seeing those before.

    Reference: Dwork, Naor, Pitassi and Rothblum (2010) and Chan, Shi and Song (2011) for the tree;
      Henzinger, Upadhyay and Upadhyay (2023) for the square root; Denisov, McMahan, Rush, Smith and
      Thakurta (2022), theorem 2.1, for adaptive increments.
    """

    kind: str = static()
    horizon: int = static()

    @property
    def is_independent(self) -> bool:
        """Whether every increment has a draw of its own, so that none tells of another's noise."""
        return self.kind == "independent"

    @property
    def sensitivity(self) -> float:
        """Norm of what one increment of norm 1 adds to C G: 1, or the root of a tree's height."""
        return math.sqrt(self.levels) if self.kind == "tree" else 1.0

    @property
    def levels(self) -> int:
        """Height of a tree over K leaves, ceil(log2(K + 1))."""
        return self.horizon.bit_length()

    def stddevs(self) -> Float64[np.ndarray, " {self.horizon}"]:
        """Returns the noise on each prefix sum at stddev 1, (K,), in closed form; on the host.

        >>> PrefixNoise("tree", 4).stddevs().round(3)
        array([1.   , 1.   , 1.414, 1.   ])
        >>> print(PrefixNoise("square_root", 64).stddevs().max().round(2))
        2.21
        """
        steps = np.arange(1, self.horizon + 1)
        if self.is_independent:
            return np.sqrt(steps)
        if self.kind == "tree":
            return np.sqrt([int(step).bit_count() for step in steps])
        norms, inverse = _square_root(self.horizon)
        # Row t of A C^-1 is what z_j has come to by then: norm_i g_(i - j), summed over i.
        sums = np.zeros(self.horizon)
        for j in range(self.horizon):
            sums[j:] += np.cumsum(norms[j:] * inverse[: self.horizon - j]) ** 2
        return np.sqrt(sums)

    def strategy(self) -> Float64[np.ndarray, "{self.horizon} {self.horizon}"]:
        """Returns the lower triangular matrix that makes released increments' noise independent.

        It is C, (K, K); of a tree, whose nodes outnumber its leaves, a matrix that does the same.

        >>> (PrefixNoise("square_root", 3).strategy() ** 2).sum(axis=0).round(6)
        array([1., 1., 1.])
        """
        if self.is_independent:
            return np.eye(self.horizon)
        if self.kind == "tree":
            nodes = _nodes(self.horizon)
            return np.linalg.inv(np.linalg.cholesky(nodes @ nodes.T))
        norms, inverse = _square_root(self.horizon)
        places = np.subtract.outer(np.arange(self.horizon), np.arange(self.horizon))
        back = np.where(places >= 0, inverse[np.maximum(places, 0)], 0.0)
        return np.linalg.inv(norms[:, None] * back)

    def increment(
        self, key: Key[Array, ""], leaf: Integer[Array, ""] | int, shape: tuple[int, ...]
    ) -> Float64[Array, "..."]:
        """Returns the noise on increment ``leaf`` at stddev 1, float64 of ``shape``.

        Args:
          key: of the segment; used for nothing else, and the same for all its increments.
          leaf: from 0 to K - 1, shape ().
          shape: of one increment.

        Raises:
          ValueError: past the horizon. A leaf that is traced cannot raise: its noise is then NaN,
            never a draw that was used before.
        """
        check_threefry(key)
        if not isinstance(leaf, Tracer) and not 0 <= int(leaf) < self.horizon:
            raise ValueError(
                f"leaf {int(leaf)} is past the horizon: a segment has {self.horizon} increments; "
                "begin another one with a key of its own."
            )
        leaf = jnp.asarray(leaf, jnp.int32)
        draw = {
            "square_root": self._from_square_root,
            "tree": self._from_tree,
            "independent": self._alone,
        }
        noise = draw[self.kind](key, leaf, shape)
        inside = (leaf >= 0) & (leaf < self.horizon)
        with jax.enable_x64(True):
            return lax.select(lax.broadcast(inside, shape), noise, lax.full_like(noise, math.nan))

    def perturb(
        self,
        key: Key[Array, ""],
        value: Float[Array | Expansion, "*shape"],
        stddev: Real[Array, ""] | float,
        leaf: Integer[Array, ""] | int,
        **fast: bool,
    ) -> Float[Array, "*shape"]:
        """Returns the increment ``value`` with its noise of scale ``stddev``; see ``perturb``.

        Args:
          key: of the segment.
          value: floating array, or an ``Expansion`` sum.
          stddev: of the independent draws Z, shape ().
          leaf: which increment.
          **fast: ``unsafe_fast_noise``, which here rounds the noise to float32; NOT for a release.
        """
        wide = value if isinstance(value, Expansion) else widen(value)
        dtype = wide.leading.dtype if isinstance(value, Expansion) else value.dtype
        noise = self.increment(key, leaf, wide.leading.shape)
        if fast.get("unsafe_fast_noise", False):
            with jax.enable_x64(True):
                plain = lax.convert_element_type(noise, wide.leading.dtype)
            return (wide.leading + jnp.asarray(stddev, plain.dtype) * plain).astype(dtype)
        with jax.enable_x64(True):
            scale = float64(stddev)
            return add_on_grid(value, scale * noise, scale)

    def _from_square_root(self, key: Array, leaf: Array, shape: tuple[int, ...]) -> Array:
        size = math.prod(shape)
        drawn = normal_from_bits(jax.random.bits(key, (2, self.horizon, size), jnp.uint32))
        norms, inverse = _square_root(self.horizon)
        with jax.enable_x64(True):
            # g_(leaf - j) for j = 0 .. K - 1, and 0 for draws of later increments.
            table = jnp.asarray(np.concatenate([inverse[::-1], np.zeros(self.horizon - 1)]))
            place = jnp.clip(leaf, 0, self.horizon - 1)
            row = lax.dynamic_slice_in_dim(table, self.horizon - 1 - place, self.horizon)
            row = row * lax.dynamic_index_in_dim(jnp.asarray(norms), place, keepdims=False)
            noise = lax.dot_general(row, drawn, (((0,), (0,)), ((), ())), lax.Precision.HIGHEST)
            return lax.reshape(noise, shape)

    def _from_tree(self, key: Array, leaf: Array, shape: tuple[int, ...]) -> Array:
        # Adding leaf t completes the node that ends there and replaces the smaller ones before it.
        end = leaf + 1
        levels = jnp.arange(self.levels, dtype=jnp.int32)
        completed = jnp.sum((end & ((1 << (levels + 1)) - 1)) == 0).astype(jnp.int32)
        ends = jnp.where(levels == completed, end, end - (1 << levels))
        signs = jnp.where(levels == completed, 1.0, jnp.where(levels < completed, -1.0, 0.0))
        words = jnp.stack([levels, ends], axis=1).astype(jnp.uint32)
        keys = jax.vmap(lambda word: fold(key, word))(words)
        bits = jax.vmap(lambda one: jax.random.bits(one, (2, *shape), jnp.uint32))(keys)
        drawn = normal_from_bits(jnp.moveaxis(bits, 1, 0))
        with jax.enable_x64(True):
            weights = float64(signs)
            return lax.dot_general(weights, drawn, (((0,), (0,)), ((), ())), lax.Precision.HIGHEST)

    def _alone(self, key: Array, leaf: Array, shape: tuple[int, ...]) -> Array:
        own = fold(key, leaf.astype(jnp.uint32)[None])
        return normal_from_bits(jax.random.bits(own, (2, *shape), jnp.uint32))


def prefix_noise(horizon: int, dimension: int, kind: str | None = None) -> PrefixNoise:
    """Returns the noise for sums of at most ``horizon`` increments of ``dimension`` numbers.

    Args:
      horizon: K, at least 1; declared, and an error to step past.
      dimension: d.
      kind: see ``PrefixNoise``; by default the square root, which has the least noise and holds K d
        draws at once, or the tree where these are more than 2^22. The tree holds d log2 K.

    Raises:
      ValueError: for a number below 1 or an unknown kind.

    >>> prefix_noise(64, 22).kind, prefix_noise(1024, 26_010).kind
    ('square_root', 'tree')
    """
    if (horizon := _validate.positive_int("horizon", horizon)) > _LONGEST:
        raise ValueError(f"horizon, or period, must be at most {_LONGEST:,}, got {horizon}.")
    dimension = _validate.positive_int("dimension", dimension)
    if kind is None:
        kind = "square_root" if horizon * dimension <= _DRAWS else "tree"
    return PrefixNoise(_validate.choice("kind", kind, KINDS), horizon)


@functools.lru_cache(maxsize=32)
def _square_root(horizon: int) -> tuple[Any, Any]:
    """Norms of the columns of the square root of A, and the first column of its inverse."""
    k = np.arange(1, horizon)
    root = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
    inverse = np.concatenate([[1.0], np.cumprod((2 * k - 3) / (2 * k))])
    norms = np.sqrt(np.cumsum(root**2)[::-1])
    return norms, inverse


def _nodes(horizon: int) -> np.ndarray:
    """Which nodes of a tree each increment's noise adds and takes away, (K, nodes)."""
    places: dict[tuple[int, int], int] = {}
    matrix = np.zeros((horizon, 2 * horizon * horizon.bit_length()))
    for leaf in range(horizon):
        for steps, sign in ((leaf + 1, 1.0), (leaf, -1.0)):
            end = steps
            while end:  # the nodes that add up to the first ``steps`` leaves
                size = end & -end
                matrix[leaf, places.setdefault((size, end), len(places))] += sign
                end -= size
    return matrix
