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
from dpjax._lazy import linalg
from dpjax._typing import Array, Float, Float64, Integer, Key, Real, pytree_dataclass, static
from dpjax._wide import Expansion
from dpjax.mechanisms import lattice
from dpjax.mechanisms.fixed_point import FRACTION, standard_normal
from dpjax.mechanisms.keys import check_threefry, fold

KINDS = ("square_root", "tree", "independent")
# Above it the square root's rows of draws take more memory than gradients do.
_MAX_DIMENSION = 2**16
# Longer ones are no run.
_MAX_STEPS = 2**20
# Of the square root, whose strategy matrix is inverted, as one with weights left out is no Toeplitz
# matrix any more: 5 seconds.
_MAX_INVERTED = 2**12
_FRACTION = 52
# Of the square root's weights, so that their products with halves of a draw fit.
_BITS = 30


@pytree_dataclass
class PrefixNoise:
    """Noise on increments that stays small on their sums; ``prefix_noise`` makes one.

    The increments G are released as G + C^-1 Z, with Z independent normal vectors: their prefix
    sums A G then hold the noise A C^-1 Z. All of Z is a function of one key, so nothing is kept
    between steps, and a segment with another key starts afresh.

    Args:
      kind: ``"square_root"``, C the square root of A with its columns scaled to norm 1, where the
        smallest of an increment's weights on the draws are left out; ``"tree"``, all partial sums
        of a binary tree; ``"independent"``, C = I.
      horizon: K, the most increments of one segment.

    Privacy: a record that moves one increment of one segment by s moves C G by ``sensitivity`` * s:
      one Gaussian mechanism of multiplier stddev / (``sensitivity`` * s), however the increments
      were chosen after seeing those before. For that C has to be lower triangular. Where draws
      outnumber increments, or weights are left out, C^-1 is the Cholesky factor of the noise's own
      covariance, so the law is that of such a C, and ``sensitivity`` its largest column norm.

    Reference: Dwork, Naor, Pitassi and Rothblum (2010) and Chan, Shi and Song (2011) for the tree;
      Henzinger, Upadhyay and Upadhyay (2023) for the square root; Beylkin, Coifman and Rokhlin
      (1991) for wavelets, in which its inverse has few large weights; Denisov, McMahan, Rush, Smith
      and Thakurta (2022), theorem 2.1, for adaptive increments.
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

        Of the square root it is above 1 for the weights left out: 1.008 where K is 512.
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
        # Row t of A times the matrix is what each draw has come to by then.
        return np.linalg.norm(np.cumsum(_square_root(self.horizon).matrix(), axis=0), axis=1)

    def strategy(self) -> Float64[np.ndarray, "{self.horizon} {self.horizon}"]:
        """Returns C, (K, K), lower triangular, which makes the noise of increments independent."""
        if self.is_independent:
            return np.eye(self.horizon)
        tree = self.kind == "tree"
        return _strategy(_nodes(self.horizon) if tree else _square_root(self.horizon).matrix())

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
        # Every increment draws anew what it shares with others, so that nothing is kept between
        # steps. An index past the end would be shifted silently; ``perturb`` returns NaN there.
        places, weights, _ = _square_root(self.horizon)
        row = functools.partial(lax.dynamic_index_in_dim, index=leaf, keepdims=False)
        words = row(jnp.asarray(places.astype(np.uint32)))
        drawn = _draws(jax.vmap(lambda word: fold(key, word[None]))(words), shape)
        weight = row(jnp.asarray(weights)).reshape((-1,) + (1,) * len(shape))
        # Weights of 30 bits, in all below 8, times half of a draw fit into 64 bits; times a whole
        # draw they do not.
        low = (1 << _BITS) - 1
        inner = jnp.sum(weight * (drawn >> _BITS), axis=0)
        return inner + (jnp.sum(weight * (drawn & low), axis=0) >> _BITS)

    def _from_tree(self, key: Array, leaf: Array, shape: tuple[int, ...]) -> Array:
        # Adding leaf t completes the node that ends there and replaces the smaller ones before it.
        end = leaf + 1
        levels = jnp.arange(self.levels, dtype=jnp.int32)
        completed = jnp.sum((end & ((1 << (levels + 1)) - 1)) == 0).astype(jnp.int32)
        ends = jnp.where(levels == completed, end, end - (1 << levels))
        signs = jnp.where(levels == completed, 1, jnp.where(levels < completed, -1, 0))
        words = jnp.stack([levels, ends], axis=1).astype(jnp.uint32)
        drawn = _draws(jax.vmap(lambda word: fold(key, word))(words), shape)
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
      kind: see ``PrefixNoise``; by default the square root, which has the least noise and holds
        from 32 d to 44 d draws at once, for K at most 4,096 and d at most 2^16; or else the tree,
        which holds d log2 K.

    Raises:
      ValueError: for a number below 1, an unknown kind, or a square root of a larger K.

    >>> prefix_noise(64, 22).kind, prefix_noise(1024, 262_010).kind
    ('square_root', 'tree')
    """
    if (horizon := _validate.positive_int("horizon", horizon)) > _MAX_STEPS:
        raise ValueError(f"horizon, or period, must be at most {_MAX_STEPS:,}, got {horizon}.")
    dimension = _validate.positive_int("dimension", dimension)
    if kind is None:
        small = horizon <= _MAX_INVERTED and dimension <= _MAX_DIMENSION
        kind = "square_root" if small else "tree"
    if kind == "square_root" and horizon > _MAX_INVERTED:
        most = f"at most {_MAX_INVERTED:,}, got {horizon:,}"
        raise ValueError(f'a square root takes a horizon of {most}: choose kind="tree" beyond.')
    return PrefixNoise(_validate.choice("kind", kind, KINDS), horizon)


class _SquareRoot(NamedTuple):
    """Which draws an increment adds, (K, m), with which weights, int64 multiples of 2^-30."""

    places: np.ndarray
    weights: np.ndarray
    sensitivity: float

    def matrix(self) -> np.ndarray:
        """Returns the weights of all draws on each increment, (K, N)."""
        horizon = len(self.places)
        matrix = np.zeros((horizon, 1 << (horizon - 1).bit_length()))
        np.put_along_axis(matrix, self.places, self.weights * 2.0**-_BITS, axis=1)
        return matrix


@functools.lru_cache(maxsize=32)
def _square_root(horizon: int) -> _SquareRoot:
    k = np.arange(1, horizon)
    # Coefficients of (1 - x)^(-1/2), whose square has all ones, and of its inverse (1 - x)^(1/2).
    root = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
    inverse = np.concatenate([[1.0], np.cumprod((2 * k - 3) / (2 * k))])
    # Column j of C holds the first K - j coefficients: cumulative sums, reversed.
    norms = np.sqrt(np.cumsum(root**2)[::-1])
    # The draws Z are the Haar wavelets' sum of others: one draw for all of them, and one for the
    # difference of both halves of each block of 2^k. Far back the inverse changes slowly, so that
    # all but the short blocks near an increment and a few long ones have next to no weight.
    levels = (horizon - 1).bit_length()
    size = 1 << levels
    sums = np.concatenate([np.zeros(size + 1), np.cumsum(inverse)])
    steps = np.arange(size + 1, size + 1 + horizon)[:, None]
    columns, lengths = [sums[steps] / math.sqrt(size)], [float(size)]
    for length in (1 << np.arange(levels, 0, -1)).tolist():
        after = steps - np.arange(0, size, length)
        ends = (np.maximum(after - back, 0) for back in (0, length // 2, length))
        first, middle, last = (sums[end] for end in ends)
        columns.append((first - 2 * middle + last) / math.sqrt(length))
        lengths += [float(length)] * (size // length)
    weights = np.concatenate(columns, axis=1)
    # In sums of increments long blocks count for more. A stable sort takes the same everywhere.
    order = np.argsort(-np.abs(weights) * np.sqrt(lengths), axis=1, kind="stable")
    places = order[:, : max(32, 4 * (levels - 1))]
    weights = norms[:, None] * np.take_along_axis(weights, places, axis=1)
    found = _SquareRoot(places, np.round(weights * 2.0**_BITS).astype(np.int64), math.nan)
    # What is accounted is the matrix of the very numbers that multiply.
    columns = np.linalg.norm(_strategy(found.matrix()), axis=0)
    return found._replace(sensitivity=float(columns.max()) * (1 + 1e-12))


def _strategy(matrix: np.ndarray) -> np.ndarray:
    """Returns the lower triangular C for which C times the matrix, (K, N), is orthogonal."""
    # Noise of covariance N N^T is whitened by the inverse of that matrix's Cholesky factor.
    factor = np.linalg.cholesky(matrix @ matrix.T)
    return linalg.solve_triangular(factor, np.eye(len(factor)), lower=True)


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
