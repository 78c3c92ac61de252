"""A Kalman filter along the steps of a run: what all answers so far say of the last point."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax._typing import Array
from dpjax.oracles import SecondOrderAnswer

# Least weight of a new Hessian beside the average of those before. The three numbers were tuned on
# subsamples and seeds of their own: docs/benchmarks.md.
_NEW_HESSIAN = 0.1
# How much of an innovation beyond its known variance counts as an error of the prediction.
_SURPRISE = 0.5
# Least weight of a new gradient, so that a small variance cannot fix an error that it leaves out.
_NEW_GRADIENT = 0.1


class FilteredModel(NamedTuple):
    """Estimates of the data term's derivatives at one point, with their variances; released."""

    gradient: Array
    """Shape (p,)."""
    hessian: Array
    """A weighted average over the points so far, shape (p, p)."""
    gradient_variance: Array
    """Of a coordinate, as far as it is known, shape ()."""
    hessian_variance: Array
    """Of the noise on a diagonal entry, shape ()."""


def unfiltered(
    answer: SecondOrderAnswer, stddevs: tuple[Array | float, Array | float]
) -> FilteredModel:
    """Returns an answer with the standard deviations of its own noise."""
    dtype = answer.gradient.dtype
    return FilteredModel(*answer, *(jnp.square(jnp.asarray(s, dtype)) for s in stddevs))


# By default accelerators multiply matrices in 8 to 11 bits, and predictions would be as inexact.
@jax.default_matmul_precision("highest")
def filtered(
    before: FilteredModel,
    iteration: Array,
    move: Array,
    answer: SecondOrderAnswer,
    stddevs: tuple[Array | float, Array | float],
) -> FilteredModel:
    """Returns the model at a new point, from the one before and the answer there.

    The gradient is predicted along the move s by the averaged Hessian B, as g + B s. The noise of
    B, isometric and of variance v on the diagonal, adds (v / 2) (|s|^2 I + s s^T) to the variance,
    of which the first term is counted. What the move leaves out beside, by third derivatives and
    by Hessians of earlier points, is seen in the innovation: half of the mean square by which that
    exceeds its known variance is added. Prediction and answer are then weighed by their variances,
    and so are the average of Hessians, which predicts the next one, and the Hessian there.

    The variances are guides for weights and damping. They are no bounds: answers chose the points.

    Args:
      iteration: number of answers before, shape (); where it is 0 the answer is returned.
      move: from the point of ``before`` to that of the answer, (p,).
      stddevs: of the noise on a coordinate of the answer's gradient, and on a diagonal entry of its
        Hessian.

    Privacy: post-processing of released values.
    """
    new = unfiltered(answer, stddevs)
    change, p = new.hessian - before.hessian, move.size
    # A matrix of isometric noise has p (p + 1) / 2 times the variance on its diagonal.
    seen = 2 * jnp.sum(change**2) / (p * (p + 1)) - before.hessian_variance - new.hessian_variance
    drifted = before.hessian_variance + _SURPRISE * jnp.maximum(seen, 0)
    weight = _gain(iteration, drifted, new.hessian_variance, _NEW_HESSIAN)
    hessian = before.hessian + weight * change
    hessian_variance = (1 - weight) ** 2 * before.hessian_variance
    hessian_variance = hessian_variance + weight**2 * new.hessian_variance
    innovation = new.gradient - (before.gradient + before.hessian @ move)
    known = before.gradient_variance + before.hessian_variance * (move @ move) / 2
    surprise = innovation @ innovation / p - known - new.gradient_variance
    predicted = known + _SURPRISE * jnp.maximum(surprise, 0)
    gain = _gain(iteration, predicted, new.gradient_variance, _NEW_GRADIENT)
    variance = (1 - gain) ** 2 * predicted + gain**2 * new.gradient_variance
    gradient = new.gradient - (1 - gain) * innovation
    return FilteredModel(gradient, hessian, variance, hessian_variance)


def _gain(iteration: Array, predicted: Array, new: Array, least: float) -> Array:
    total = predicted + new
    gain = jnp.maximum(predicted / jnp.where(total > 0, total, 1), least)
    return jnp.where((iteration == 0) | (total == 0), 1, gain)  # squares of small noise are 0
