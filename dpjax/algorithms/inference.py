"""Standard errors that cover the sampling of records and the privacy noise alike."""

from __future__ import annotations

import numpy as np

from dpjax._typing import Array, pytree_dataclass
from dpjax.algorithms.certificate import Bars, deviations

CURVATURE = 0.1
"""Most that a quadratic model may leave out, over the gradient's standard deviation."""


@pytree_dataclass
class PopulationBars(Bars):
    """A normal approximation to the spread of parameters over samples of records and noise.

    The last step goes from w to w~ = w - B^-1 (g + z) by the noisy Hessian B = H + E, with noise z
    on the gradient g. Off the population's minimum w* it is

        w~ - w* = -B^-1 (g(w*) + z + E (w* - w) + r),

    so that given B its covariance is B^-1 (S / n + noise) B^-1, S the released covariance of
    gradients. No inverse of an unknown matrix appears. What a quadratic model leaves out is r.

    Args:
      estimate: w~, (p,).
      covariance: over samples and noise, (p, p).
      noise_covariance: over the noise alone, (p, p).
      strength: the smallest eigenvalue of B over the spectral norm of its noise, shape ().
      curvature: the size of r over the standard deviation of the gradient, shape ().
      unclipped: whether clipping moves no gradient by more than was allowed for.

    Privacy: post-processing of released values.

    >>> bars = PopulationBars(np.zeros(1), np.full((1, 1), 4.0), np.ones((1, 1)), 3.0, 0.0, True)
    >>> bars.stddev, bars.noise_stddev, bars.refusal
    (array([2.]), array([1.]), None)
    """

    kind = "population"
    about = "the population's coefficients"

    estimate: Array
    covariance: Array
    noise_covariance: Array
    strength: Array
    curvature: Array
    unclipped: Array

    @property
    def noise_stddev(self) -> np.ndarray:
        return deviations(self.noise_covariance)

    @property
    def refusal(self) -> str | None:
        # A comparison with NaN is false, so that NaN is refused.
        strength, curvature = float(self.strength), float(self.curvature)
        if not bool(self.unclipped):
            return (
                "gradients may have been clipped: intervals need a Dataset whose rows have norm at "
                "most 1, n public, and clip norms that are left at their defaults"
            )
        if not strength > 1:
            return (
                "some combination of columns varies too little beside the privacy noise (its "
                f"curvature is {max(strength, 0):.2g} of what the noise alone makes): raise "
                "epsilon, take more records or fewer columns, leave out columns that follow from "
                "others, or declare narrower bounds for columns whose values fill little of them"
            )
        if not curvature <= CURVATURE:
            return (
                "the last step was too long for a quadratic model of the loss (what it leaves out "
                f"may be {curvature:.2g} of the standard deviation, above {CURVATURE}): raise "
                "epsilon, take more records or one more step"
            )
        return None
