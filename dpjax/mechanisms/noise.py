"""``Noise``: the laws of noise that a query may add, each with the attacker's best test of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from dpjax._typing import Array, Float, Int32, Key, PyTree, Real
from dpjax._wide import Expansion, float64, from_float64
from dpjax.mechanisms import lattice
from dpjax.mechanisms.ball import GRID_BITS, add_ball
from dpjax.mechanisms.fixed_point import FRACTION, standard_gumbel, standard_normal
from dpjax.mechanisms.gaussian import add_symmetric_gaussian, perturb
from dpjax.mechanisms.keys import check_threefry, fold
from dpjax.mechanisms.tree import PrefixNoise

# Between the choice below and that of real arithmetic, a score, see ``selection_error``.
_ERROR_BITS = 44


def noisy_argmax(
    key: Key[Array, ""],
    scores: Float[Array | Expansion, " k"],
    scale: Real[Array, ""] | float,
) -> Int32[Array, ""]:
    """Returns the place of the largest score after adding Gumbel noise: i with P ~ e^(s_i / scale).

    Args:
      key: a key used for nothing else, shape ().
      scores: floating, shape (K,); only finite ones are chosen, unless there is none.
      scale: public, shape (), above 0.

    Returns:
      int32, shape ().

    Raises:
      ValueError: for a key that is not threefry.

    Privacy: where neighbours move every score by D at most, log-ratios of outcomes spread over
      2 D / scale: pure differential privacy of that epsilon, and rho = (2 D / scale)^2 / 8. No
      noisy score leaves, so there are no low bits to read; what floating point changes is which
      place wins a near tie, with probability ``selection_error`` at most.

    Reference: McSherry and Talwar, "Mechanism design via differential privacy" (2007); Dong, Durfee
      and Rogers (2020), lemma 4.2, for the noise.

    >>> noisy_argmax(jax.random.key(0), jnp.array([0.0, 100.0, -jnp.inf]), 1.0)
    Array(1, dtype=int32)
    """
    check_threefry(key)
    with jax.enable_x64(True):
        noise = standard_gumbel(key, scores.shape)
        unit = lattice.scale_of(scale)
        # Scores and noise as pairs of integers, upper and lower digits, which add without rounding.
        grids, rest = lattice.split(scores, unit.exponent)
        rest = rest + lattice.in_units(noise, unit, FRACTION)
        # After the carry, upper digits decide first and lower digits break ties.
        grids, rest = lattice.carried(grids, rest)
        leading = scores.leading if isinstance(scores, Expansion) else scores
        usable = jnp.isfinite(leading)
        usable = usable | ~jnp.any(usable)
        for digits in (grids, rest):
            best = jnp.max(jnp.where(usable, digits, jnp.iinfo(jnp.int64).min))
            usable = usable & (digits == best)
    # lax.argmax of 64-bit integers does not lower where x64 is off.
    return jnp.argmax(usable).astype(jnp.int32)


def selection_error(count: int) -> float:
    """Returns a bound on the total variation between ``noisy_argmax`` and real arithmetic.

    Its scale is the one that is used, which is the given one or up to 2^-20 of it more. In units of
    it each noisy score is wrong by at most e: the table by 2^-50, its 63 bits by 2^-50 (they leave
    the tail open to a relative 2^-50 where no second word is read), the product and at most three
    terms of a score by 2^-53 each. That a place wins then implies that it wins in real arithmetic
    with its score raised by 2 e, which changes the logarithm of its probability by 2 e at most,
    together below 2^-47. Tails are cut at 2^-64 a score. The bound is eight times the sum.

    Args:
      count: number of scores.

    >>> selection_error(32) == 2.0**-39
    True
    """
    return count * 2.0**-_ERROR_BITS


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
        """Returns what ``score`` needs before the first answer of ``size`` entries: nothing."""
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
        differ otherwise than is proved. Its terms are of ``dtype``.
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
    """``add_symmetric_gaussian``: ``stddev`` is that of a diagonal entry."""

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


@dataclasses.dataclass(frozen=True)
class Prefix(Gaussian):
    """Noise on increment ``leaf``, shape (), of a segment, correlated with that of the others.

    Answers and ``stddev`` are those of a value over its ``divisor``, shape (). Both are public.

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
        raise NotImplementedError("an increment is scored with those before it: call score.")

    def excess(self, noise: Array, stddev: Any) -> tuple[Any, Any]:
        """Returns that of a segment's first increment: later ones' noise depends on it."""
        # The first increment is the first prefix sum.
        pair = super().excess(noise, stddev * self.of.stddevs()[0])
        alone = jnp.equal(self.leaf, 0) | self.of.is_independent
        return tuple(jnp.where(alone, one, 0.0) for one in pair)  # pyright: ignore

    def initial_score(self, size: int) -> tuple[Array, Array]:
        rows = jnp.zeros((self.of.horizon, size))
        return rows, rows

    def score(
        self, seen: PyTree, answer: Array, mean: Array, neighbour_mean: Array, stddev: Any
    ) -> tuple[Array, PyTree]:
        """Returns the log-likelihood ratio of an increment, given those before in its segment.

        The matrix that whitens the noise makes both worlds Gaussians of variance 1, that are apart
        by what it makes of the shifts. Seen is, one row an increment and in standard deviations of
        the draws, (K, p), the answer minus the mean, and what the neighbour's mean is moved by.
        """
        # A new segment forgets the one before, whose noise comes from another key.
        residuals, shifts = (jnp.where(jnp.equal(self.leaf, 0), 0, rows) for rows in seen)
        mean, moved = mean / self.divisor, (neighbour_mean - mean) / self.divisor
        residuals = residuals.at[self.leaf].set((answer - mean).ravel() / stddev)
        shifts = shifts.at[self.leaf].set(moved.ravel() / stddev)
        row = jnp.asarray(self.of.strategy(), residuals.dtype)[self.leaf]
        residual, shift = row @ residuals, row @ shifts
        return jnp.vdot(shift, residual - shift / 2), (residuals, shifts)


class Ball(Noise):
    """Noise uniform in a ball; ``stddev`` is that of one of the d coordinates."""

    mechanism: ClassVar[str] = "ball"
    is_charged: ClassVar[bool] = False

    def add_tree(self, key_of: Callable[[int], Array], tree: PyTree, stddev: Any) -> PyTree:
        return self.add(key_of(0), tree, stddev)

    def add(self, key: Array, value: Any, stddev: Any) -> Any:
        leaves = jax.tree.leaves(value, is_leaf=lambda leaf: isinstance(leaf, Expansion))
        arrays = (leaf.leading if isinstance(leaf, Expansion) else leaf for leaf in leaves)
        with jax.enable_x64(True):  # in float32 the ball could be smaller than accounted
            radius = float64(stddev) * math.sqrt(sum(map(jnp.size, arrays)) + 2)
        return add_ball(key, value, radius)

    def log_ratio(self, answer: Array, mean: Array, neighbour_mean: Array, stddev: Any) -> Array:
        """Returns 0 where the balls overlap, and a number of large size where they do not."""
        scale = lax.convert_element_type(stddev, answer.dtype)  # of float64 where x64 is off
        root = math.sqrt(answer.size + 2)
        # How far answers are from the exact sum at most, nearly always: rounding to the grid moves
        # one out of the ball by a third of a cell, typically; 1.5 are allowed.
        radius = scale * root
        reach = radius * (1 + 1e-6) + 1.5 * (2.0**-GRID_BITS * radius / root)
        here, there = (
            jnp.where(jnp.linalg.norm(answer - at) > reach, _NEVER, 0.0)
            for at in (mean, neighbour_mean)
        )
        return there - here


class Gumbel(Noise):
    """Of scores with Gumbel noise only the index of the largest; ``stddev`` is the scale."""

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


def add_gaussian(
    key: Key[Array, ""],
    tree: PyTree[Float[ArrayLike, "?*shape"], "PyTree"],
    stddev: Real[Array, ""] | float,
) -> PyTree[Float[Array, "?*shape"], "PyTree"]:
    """Returns ``tree`` with independent N(0, stddev^2) noise on every entry of every leaf.

    Args:
      key: a key used for nothing else, shape ().
      tree: pytree of floating arrays.
      stddev: scalar standard deviation, in the units of the leaves.

    Returns:
      A pytree like ``tree``. Leaf i is drawn with ``fold_in(key, i)``: no two share their noise.

    Raises:
      ValueError: if a leaf is not floating.

    Privacy: with l2 sensitivity D of the whole tree this is the Gaussian mechanism of noise
    multiplier stddev / D. The caller answers for D.

    Reference: Dwork and Roth (2014), appendix A; here as one mechanism over the flattened tree.

    >>> noisy = add_gaussian(jax.random.key(0), {"a": jnp.zeros(2), "b": jnp.zeros(2)}, 1.0)
    >>> bool((noisy["a"] == noisy["b"]).any())
    False
    """
    return Gaussian().add_tree(lambda i: fold(key, jnp.uint32([i])), tree, stddev)
