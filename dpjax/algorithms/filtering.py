"""A Kalman filter along the steps of a run: what all answers so far say of the last point."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax._typing import Array
from dpjax.oracles import SecondOrderAnswer

# Weight of a new Hessian beside the average of those before; the first ones are averaged evenly.
# Tuned, as the two below, on subsamples and seeds of their own; see docs/benchmarks.md.
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
    """An average over the points so far, shape (p, p)."""
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
    exceeds its known variance is added. Prediction and answer are then weighed by their variances.

    The variances are guides for weights and damping. They are no bounds: answers chose the points.

    Args:
      iteration: number of answers before, shape (); where it is 0 the answer is returned.
      move: from the point of ``before`` to that of the answer, (p,).
      stddevs: of the noise on a coordinate of the answer's gradient, and on a diagonal entry of its
        Hessian.

    Privacy: post-processing of released values.
    """
    new = unfiltered(answer, stddevs)
    weight = jnp.maximum(_NEW_HESSIAN, 1 / (iteration + 1)).astype(move.dtype)
    hessian = before.hessian + weight * (new.hessian - before.hessian)
    hessian_variance = (1 - weight) ** 2 * before.hessian_variance
    hessian_variance = hessian_variance + weight**2 * new.hessian_variance
    innovation = new.gradient - (before.gradient + before.hessian @ move)
    known = before.gradient_variance + before.hessian_variance * (move @ move) / 2
    surprise = innovation @ innovation / move.size - known - new.gradient_variance
    predicted = known + _SURPRISE * jnp.maximum(surprise, 0)
    total = predicted + new.gradient_variance
    gain = jnp.maximum(predicted / jnp.where(total > 0, total, 1), _NEW_GRADIENT)
    gain = jnp.where((iteration == 0) | (total == 0), 1, gain)  # squares of small noise are 0
    variance = (1 - gain) ** 2 * predicted + gain**2 * new.gradient_variance
    gradient = new.gradient - (1 - gain) * innovation
    return FilteredModel(gradient, hessian, variance, hessian_variance)
