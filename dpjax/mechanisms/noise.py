"""``Noise``: the laws of noise that a query may add, each with the attacker's best test of it."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._typing import Array, PyTree
from dpjax._wide import Expansion, float64, from_float64
from dpjax.mechanisms.ball import GRID_BITS, add_ball
from dpjax.mechanisms.fixed_point import FRACTION, standard_normal
from dpjax.mechanisms.gaussian import perturb
from dpjax.mechanisms.gumbel import noisy_argmax
from dpjax.mechanisms.symmetric import add_symmetric_gaussian
from dpjax.mechanisms.tree import PrefixNoise

# Stands for log 0, but finite, so that scores can be added and subtracted.
_NEVER = -1e3


@dataclasses.dataclass(frozen=True)
class Noise:
    """A law of noise; subclass it for one of your own.

    Privacy: sees one value and no record. What its standard deviation means for epsilon is for the
      release of the query to say that adds it.
    """

    mechanism: ClassVar[str] = "gaussian"
    """Names the kind of release, which has a subclass of ``accounting.Release`` of that name."""
    is_charged: ClassVar[bool] = True
    """Whether epsilon is charged for how its numbers are drawn, see ``Query.noise_draws``."""

    def add(self, key: Array, value: Array | Expansion, stddev: Any) -> Array:
        """Returns ``value`` with noise.

        Args:
          key: a key used for nothing else, shape ().
          value: floating array or ``Expansion`` sum.
          stddev: public, shape ().
        """
        raise NotImplementedError

    def add_tree(self, key_of: Callable[[int], Array], tree: PyTree, stddev: Any) -> PyTree:
        """Returns ``tree`` with noise on every leaf.

        Args:
          key_of: the number of a leaf -> a key used for nothing else, shape (). Where the noise of
            all leaves is one draw, its key is that of leaf 0.
          tree: pytree of floating arrays.
          stddev: as ``add``.

        Raises:
          ValueError: if a leaf is not floating.

        >>> keys = jax.random.split(jax.random.key(0))
        >>> noisy = Gaussian().add_tree(lambda i: keys[i], {"a": jnp.zeros(2), "b": 0.0}, 1.0)
        >>> jax.tree.map(jnp.shape, noisy)
        {'a': (2,), 'b': ()}
        """
        leaves, structure = jax.tree.flatten(tree)
        for leaf in leaves:
            if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
                raise ValueError(f"noise needs floating leaves, got {jnp.result_type(leaf)}.")
        noisy = [self.add(key_of(i), jnp.asarray(leaf), stddev) for i, leaf in enumerate(leaves)]
        return jax.tree.unflatten(structure, noisy)

    def log_ratio(self, answer: Array, mean: Array, neighbour_mean: Array, stddev: Any) -> Array:
        """Returns log p(answer | neighbour_mean) - log p(answer | mean), for audits.

        ``mean`` is the value without noise on D, and ``neighbour_mean`` that on D'.
        """
        raise NotImplementedError

    def excess(self, noise: Array, stddev: Any) -> tuple[Any, Any]:
        """Returns |noise|^2 / stddev^2 less its degrees of freedom, and these, here all entries.

        Their sum must be chi-square or have a lighter upper tail, as that of a ball has.
        """
        scaled = noise.astype(jnp.float32) / lax.convert_element_type(stddev, jnp.float32)
        # Less 1 each: float32 would lose a square among millions.
        return jnp.sum(scaled**2 - 1), float(noise.size)

    def initial_score(self, size: int) -> PyTree:
        """Returns what ``score`` needs of the answers before the first: nothing, as here.

        Args:
          size: number of entries of an answer.
        """
        return ()

    def score(
        self, seen: PyTree, answer: Array, mean: Array, neighbour_mean: Array, stddev: Any
    ) -> tuple[Array, PyTree]:
        """Returns ``log_ratio`` given all earlier answers, and ``seen`` with this one.

        ``seen`` is from the answer before, or ``initial_score``. By default noise is independent.
        """
        return self.log_ratio(answer, mean, neighbour_mean, stddev), seen


class Gaussian(Noise):
    """Independent N(0, stddev^2) on every entry.

    >>> bool(Gaussian().add(jax.random.key(0), jnp.zeros(()), 0.0) == 0)
    True
    """

    def add(self, key: Array, value: Array | Expansion, stddev: Any) -> Array:
        return perturb(key, value, stddev)

    def alone(self, key: Array, shape: tuple[int, ...], stddev: Any, dtype: jnp.dtype) -> Expansion:
        """Returns noise by itself, which goes into what is minimised and never leaves.

        It is not rounded to the grid of ``perturb``: on it the minimisers of neighbours would
        differ otherwise than is proved.

        Args:
          key: as in ``add``.
          shape: of the noise.
          stddev: as in ``add``.
          dtype: of the terms.
        """
        with jax.enable_x64(True):
            drawn = float64(standard_normal(key, shape)) * 2.0**-FRACTION
            return from_float64(float64(stddev) * drawn, dtype)

    def log_ratio(self, answer: Array, mean: Array, neighbour_mean: Array, stddev: Any) -> Array:
        moved = (neighbour_mean - mean) / stddev
        # From the midpoint: a difference of two squared distances would lose digits if the means
        # are close.
        return jnp.vdot(moved, (answer - (mean + neighbour_mean) / 2) / stddev)


@dataclasses.dataclass(frozen=True)
class SymmetricGaussian(Gaussian):
    """Symmetric Gaussian noise on a matrix; ``stddev`` is that of a diagonal entry.

    Args:
      isometric: as in ``add_symmetric_gaussian``.

    >>> noisy = SymmetricGaussian().add(jax.random.key(0), jnp.zeros((2, 2)), 1.0)
    >>> bool(noisy[0, 1] == noisy[1, 0])
    True
    """

    isometric: bool = True

    def add(self, key: Array, value: Array | Expansion, stddev: Any) -> Array:
        return add_symmetric_gaussian(key, value, stddev, self.isometric)

    def log_ratio(self, answer: Array, mean: Array, neighbour_mean: Array, stddev: Any) -> Array:
        if not self.isometric:
            # The two entries off the diagonal are one draw: each counts half.
            stddev = stddev * jnp.sqrt(2.0 - jnp.eye(answer.shape[0]))
        return super().log_ratio(answer, mean, neighbour_mean, stddev)

    def excess(self, noise: Array, stddev: Any) -> tuple[Any, Any]:
        """Returns that of the p (p + 1) / 2 independent entries."""
        # An off-diagonal draw appears twice but counts once: through half the variance if the noise
        # is isometric, else through this weight.
        half = (1 + jnp.eye(len(noise))) / 2
        squares = (noise / stddev) ** 2 * (1 if self.isometric else half)
        return jnp.sum(squares - half), len(noise) * (len(noise) + 1) / 2


class SegmentSeen(NamedTuple):
    """What an audit has seen of a segment of correlated noise, one row an increment."""

    residuals: Array
    """Answer minus the exact value on D, in standard deviations of the draws, (K, p)."""
    shifts: Array
    """Exact value on D' minus that on D, in the same unit, (K, p)."""


@dataclasses.dataclass(frozen=True)
class Prefix(Gaussian):
    """Noise on one increment of a segment, correlated with that of the others.

    Args:
      of: the law of a whole segment.
      leaf: which increment, shape (); public.
      divisor: of a value that is a sum, shape (); public. Answers and ``stddev`` are those of the
        quotient.

    Privacy: the key is the segment's, the same for all its increments. In units of its own noise a
      sum moves as its mean does, and dividing it afterwards is post-processing.
    """

    of: PrefixNoise = dataclasses.field(kw_only=True)
    leaf: Any = dataclasses.field(kw_only=True)
    divisor: Any = dataclasses.field(kw_only=True, default=1)

    def add(self, key: Array, value: Array | Expansion, stddev: Any) -> Array:
        """Returns the increment with its noise; ``stddev`` is that of the independent draws."""
        noisy = self.of.perturb(key, value, stddev * self.divisor, self.leaf)
        # By itself: fused with what it is made of, it rounds otherwise in another program.
        divisor = jnp.broadcast_to(jnp.asarray(self.divisor, noisy.dtype), noisy.shape)
        noisy, divisor = lax.optimization_barrier((noisy, divisor))
        return lax.optimization_barrier(noisy / divisor)

    def log_ratio(self, answer: Array, mean: Array, neighbour_mean: Array, stddev: Any) -> Array:
        """Raises ``NotImplementedError``: ``score`` compares an increment with those before."""
        raise NotImplementedError("an increment is scored with those before it: call score.")

    def excess(self, noise: Array, stddev: Any) -> tuple[Any, Any]:
        """Returns that of a segment's first increment: later ones' noise depends on it."""
        # The first increment is the first prefix sum.
        pair = super().excess(noise, stddev * self.of.stddevs()[0])
        alone = jnp.equal(self.leaf, 0) | self.of.is_independent
        return tuple(jnp.where(alone, one, 0.0) for one in pair)  # pyright: ignore

    def initial_score(self, size: int) -> SegmentSeen:
        rows = jnp.zeros((self.of.horizon, size))
        return SegmentSeen(rows, rows)

    def score(
        self, seen: SegmentSeen, answer: Array, mean: Array, neighbour_mean: Array, stddev: Any
    ) -> tuple[Array, SegmentSeen]:
        """Returns the log-likelihood ratio of an increment, given those before in its segment.

        The matrix that whitens the noise makes both worlds Gaussians of variance 1, that are apart
        by what it makes of the shifts.
        """
        # A new segment forgets the one before, whose noise comes from another key.
        residuals, shifts = (jnp.where(jnp.equal(self.leaf, 0), 0, rows) for rows in seen)
        mean, moved = mean / self.divisor, (neighbour_mean - mean) / self.divisor
        residuals = residuals.at[self.leaf].set((answer - mean).ravel() / stddev)
        shifts = shifts.at[self.leaf].set(moved.ravel() / stddev)
        row = jnp.asarray(self.of.strategy(), residuals.dtype)[self.leaf]
        residual, shift = row @ residuals, row @ shifts
        return jnp.vdot(shift, residual - shift / 2), SegmentSeen(residuals, shifts)


class Ball(Noise):
    """Noise uniform in a ball; ``stddev`` is that of one of the d coordinates.

    >>> noisy = Ball().add(jax.random.key(0), jnp.zeros(2), 0.5)
    >>> bool(jnp.linalg.norm(noisy) <= ball_reach(1.0, 2))
    True
    """

    mechanism: ClassVar[str] = "ball"
    is_charged: ClassVar[bool] = False

    def add(self, key: Array, value: Array | Expansion, stddev: Any) -> Array:
        return self._add(key, value, stddev)

    def add_tree(self, key_of: Callable[[int], Array], tree: PyTree, stddev: Any) -> PyTree:
        return self._add(key_of(0), tree, stddev)

    def _add(self, key: Array, tree: PyTree, stddev: Any) -> PyTree:
        leaves = jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, Expansion))
        arrays = (leaf.leading if isinstance(leaf, Expansion) else leaf for leaf in leaves)
        with jax.enable_x64(True):  # in float32 the ball could be smaller than accounted
            radius = float64(stddev) * math.sqrt(sum(map(jnp.size, arrays)) + 2)
        return add_ball(key, tree, radius)

    def log_ratio(self, answer: Array, mean: Array, neighbour_mean: Array, stddev: Any) -> Array:
        """Returns 0 where the balls overlap, and a number of large size where they do not."""
        scale = lax.convert_element_type(stddev, answer.dtype)  # of float64 where x64 is off
        radius = scale * math.sqrt(answer.size + 2)
        here, there = (
            jnp.where(jnp.linalg.norm(answer - at) > ball_reach(radius, answer.size), _NEVER, 0.0)
            for at in (mean, neighbour_mean)
        )
        return there - here


class Gumbel(Noise):
    """Of scores with Gumbel noise only the index of the largest; ``stddev`` is the noise's scale.

    >>> Gumbel().add(jax.random.key(0), jnp.array([0.0, 100.0]), 1.0)
    Array(1, dtype=int32)
    """

    mechanism: ClassVar[str] = "exponential"
    is_charged: ClassVar[bool] = False

    def add(self, key: Array, value: Array | Expansion, stddev: Any) -> Array:
        """Returns the index, int32 (), see ``noisy_argmax``; no noisy score leaves."""
        return noisy_argmax(key, value, stddev)

    def log_ratio(self, answer: Array, mean: Array, neighbour_mean: Array, stddev: Any) -> Array:
        here, there = (
            jax.nn.log_softmax(scores / lax.convert_element_type(stddev, scores.dtype))[answer]
            for scores in (mean, neighbour_mean)
        )
        return there - here


def ball_reach(radius: Array | float, dimension: int) -> Array | float:
    """Returns how far answers are from the exact sum at most, nearly always.

    Rounding to the grid moves one out of the ball by a third of a cell, typically; 1.5 are allowed.

    >>> bool(1 < ball_reach(1.0, 2) < 1.0002)
    True
    """
    cell = 2.0**-GRID_BITS * radius / math.sqrt(dimension + 2)
    return radius * (1 + 1e-6) + 1.5 * cell
