"""Correlated noise for prefix sums: square-root factorisation, binary tree, or independent."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from dpjax import _validate
from dpjax._lazy import signal
from dpjax._typing import Array, Float, Float64, Integer, Key, Real, pytree_dataclass, static
from dpjax._wide import Expansion
from dpjax.mechanisms import lattice
from dpjax.mechanisms.fixed_point import FRACTION, standard_normal
from dpjax.mechanisms.keys import check_threefry, fold

KINDS = ("square_root", "tree", "independent")
# Draws of the square-root factorisation that are held at once: 32 MB of random bits.
_DRAWS = 2**22
# Longer ones are no run, and their weights do not fit in memory.
_MAX_STEPS = 2**20
_FRACTION = 52
# Of the coefficients of the square root, so that their products with halves of a draw fit.
_BITS = 30


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
        """Norm of what one increment of norm 1 adds to C G: the root of a tree's height, or 1.

        Of the square root it is 1 but for its coefficients, accounted as multiples of 2^-30.
        """
        if self.kind == "tree":
            return math.sqrt(self.levels)
        return 1.0 if self.is_independent else _square_root(self.horizon).sensitivity

    @property
    def levels(self) -> int:
        """Height of a tree over K leaves, ceil(log2(K + 1))."""
        return self.horizon.bit_length()

    def stddevs(self) -> Float64[np.ndarray, " {self.horizon}"]:
        """Returns the noise on each prefix sum at stddev 1, (K,), in closed form; on the host."""
        steps = np.arange(1, self.horizon + 1)
        if self.is_independent:
            return np.sqrt(steps)
        if self.kind == "tree":
            return np.sqrt([int(step).bit_count() for step in steps])
        norms, inverse, _ = _square_root(self.horizon)
        # Row t of A C^-1 is what z_j has come to by then: norm_i g_(i - j), summed over i.
        sums = np.zeros(self.horizon)
        for j in range(self.horizon):
            sums[j:] += np.cumsum(norms[j:] * inverse[: self.horizon - j]) ** 2
        return np.sqrt(sums)

    def strategy(self) -> Float64[np.ndarray, "{self.horizon} {self.horizon}"]:
        """Returns the lower triangular matrix that makes released increments' noise independent.

        It is C, (K, K); of a tree, whose nodes outnumber its leaves, a matrix that does the same.
        """
        if self.is_independent:
            return np.eye(self.horizon)
        if self.kind == "tree":
            nodes = _nodes(self.horizon)
            # Noise of covariance N N^T is whitened by the inverse of that matrix's Cholesky factor.
            return np.linalg.inv(np.linalg.cholesky(nodes @ nodes.T))
        norms, inverse, _ = _square_root(self.horizon)
        places = np.subtract.outer(np.arange(self.horizon), np.arange(self.horizon))
        back = np.where(places >= 0, inverse[np.maximum(places, 0)], 0.0)
        return np.linalg.inv(norms[:, None] * back)

    def _increment(
        self, key: Key[Array, ""], leaf: Integer[Array, ""] | int, shape: tuple[int, ...]
    ) -> Integer[Array, "..."]:
        """Returns the noise on increment ``leaf`` at stddev 1, int64 multiples of 2^-52."""
        check_threefry(key)
        if not isinstance(leaf, Tracer) and not 0 <= int(leaf) < self.horizon:
            raise ValueError(
                f"leaf {int(leaf)} is past the horizon: a segment has {self.horizon} increments; "
                "begin another one with a key of its own."
            )
        with jax.enable_x64(True):
            leaf = jnp.asarray(leaf, jnp.int32)
            if self.is_independent:
                return _draws(fold(key, leaf.astype(jnp.uint32)[None]), shape)
            draw = self._from_tree if self.kind == "tree" else self._from_square_root
            return draw(key, leaf, shape)

    def perturb(
        self,
        key: Key[Array, ""],
        value: Float[Array | Expansion, "*shape"],
        stddev: Real[Array, ""] | float,
        leaf: Integer[Array, ""] | int,
    ) -> Float[Array, "*shape"]:
        """Returns the increment ``value`` with its noise of scale ``stddev``; see ``perturb``.

        The key is the segment's, and ``stddev`` that of the independent draws Z. Past the horizon
        the answer is NaN, never with a draw that was used before.
        """
        inside = (jnp.asarray(leaf) >= 0) & (jnp.asarray(leaf) < self.horizon)
        scale = lattice.scale_of(jnp.where(inside, lattice.in_float32(stddev), jnp.nan))
        with jax.enable_x64(True):
            noise = lattice.in_units(self._increment(key, leaf, value.shape), scale, _FRACTION)
            return lattice.release(value, noise, scale)

    def _from_square_root(self, key: Array, leaf: Array, shape: tuple[int, ...]) -> Array:
        # Every increment draws the whole segment anew, so that nothing is kept between steps.
        drawn = _draws(key, (self.horizon, *shape))
        norms, inverse, _ = _square_root(self.horizon)
        # g_(leaf - j) for j = 0 .. K - 1, and 0 for draws of later increments.
        row = np.concatenate([inverse[::-1], np.zeros(self.horizon - 1)])
        table = jnp.asarray((row * 2.0**_BITS).astype(np.int64))
        # A slice past the end would be shifted silently; ``perturb`` returns NaN for such a leaf.
        place = jnp.clip(leaf, 0, self.horizon - 1)
        row = lax.dynamic_slice_in_dim(table, self.horizon - 1 - place, self.horizon)
        row = row.reshape((-1,) + (1,) * len(shape))
        # A coefficient of 30 bits times half of a draw fits into 64 bits; times a whole draw it
        # does not.
        low = (1 << _BITS) - 1
        inner = jnp.sum(row * (drawn >> _BITS), axis=0)
        inner = inner + (jnp.sum(row * (drawn & low), axis=0) >> _BITS)
        scaled = jnp.asarray((norms * 2.0**_BITS).astype(np.int64))
        norm = lax.dynamic_index_in_dim(scaled, place, keepdims=False)
        return (inner >> _BITS) * norm + (((inner & low) * norm) >> _BITS)

    def _from_tree(self, key: Array, leaf: Array, shape: tuple[int, ...]) -> Array:
        # Adding leaf t completes the node that ends there and replaces the smaller ones before it.
        end = leaf + 1
        levels = jnp.arange(self.levels, dtype=jnp.int32)
        completed = jnp.sum((end & ((1 << (levels + 1)) - 1)) == 0).astype(jnp.int32)
        ends = jnp.where(levels == completed, end, end - (1 << levels))
        signs = jnp.where(levels == completed, 1, jnp.where(levels < completed, -1, 0))
        words = jnp.stack([levels, ends], axis=1).astype(jnp.uint32)
        drawn = jax.vmap(lambda word: _draws(fold(key, word), shape))(words)
        return jnp.sum(signs.reshape((-1,) + (1,) * len(shape)) * drawn, axis=0)


def _draws(key: Array, shape: tuple[int, ...]) -> Array:
    """Standard normal draws in multiples of 2^-52: sums of them have eight bits more to grow."""
    cut = FRACTION - _FRACTION
    return (standard_normal(key, shape) + (1 << (cut - 1))) >> cut


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
    if (horizon := _validate.positive_int("horizon", horizon)) > _MAX_STEPS:
        raise ValueError(f"horizon, or period, must be at most {_MAX_STEPS:,}, got {horizon}.")
    dimension = _validate.positive_int("dimension", dimension)
    if kind is None:
        kind = "square_root" if horizon * dimension <= _DRAWS else "tree"
    return PrefixNoise(_validate.choice("kind", kind, KINDS), horizon)


class _SquareRoot(NamedTuple):
    """Norms of the columns of the square root of A, and the first column of its inverse.

    Both are whole numbers of 2^-30: what is accounted is the matrix of these very numbers.
    """

    norms: np.ndarray
    inverse: np.ndarray
    sensitivity: float


@functools.lru_cache(maxsize=32)
def _square_root(horizon: int) -> _SquareRoot:
    k = np.arange(1, horizon)
    # Coefficients of (1 - x)^(-1/2), whose square has all ones, and of its inverse (1 - x)^(1/2).
    root = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
    inverse = np.concatenate([[1.0], np.cumprod((2 * k - 3) / (2 * k))])
    # Column j holds the first K - j coefficients: cumulative sums, reversed.
    norms = np.round(np.sqrt(np.cumsum(root**2)[::-1]) * 2.0**_BITS) / 2.0**_BITS
    inverse = np.round(inverse * 2.0**_BITS) / 2.0**_BITS
    # The square root of these numbers: one step of Newton's for the inverse of a power series
    # squares what is wrong with it, 2^-31 a coefficient.
    for _ in range(2):
        rest = -signal.fftconvolve(root, inverse)[:horizon]
        rest[0] += 2
        root = signal.fftconvolve(root, rest)[:horizon]
    columns = np.sqrt(np.cumsum(root**2)[::-1]) / norms
    return _SquareRoot(norms, inverse, float(columns.max()) * (1 + 1e-12))


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
