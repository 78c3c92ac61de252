"""Quantiles of Gaussian noise, on the host: its norm, and its largest eigenvalue."""

import math

from scipy import stats

from dpjax import _validate


def chi_quantile(dimension: int, probability: float) -> float:
    """Returns the quantile of the norm of ``dimension`` independent standard normals.

    Args:
      dimension: number of normals, at least 1.
      probability: strictly between 0 and 1.

    Raises:
      ValueError: if an argument is out of range.

    >>> round(chi_quantile(1, 0.95), 4)
    1.96
    """
    dimension = _validate.positive_int("dimension", dimension)
    return float(stats.chi.ppf(_validate.open_unit("probability", probability), dimension))


def symmetric_top_eigenvalue_quantile(
    dimension: int, probability: float, isometric: bool = True
) -> float:
    """Returns a bound on the quantile of the largest eigenvalue of symmetric Gaussian noise.

    The mean is at most sqrt(2 p) (Sudakov-Fernique), the median of a convex function of a Gaussian
    at most its mean, and the eigenvalue is 1-Lipschitz in the isometric coordinates, so it exceeds
    its median by t with probability at most that of a normal. The other form is sqrt(2) times as
    rough in both respects.

    Args:
      dimension: p, at least 1.
      probability: at least 1/2 and below 1.
      isometric: True for variance 1 on the diagonal and 1/2 off it; False for 1 everywhere.

    Returns:
      An upper bound on the quantile; exact for p = 1.

    Raises:
      ValueError: if an argument is out of range.

    Reference: Ledoux, "The concentration of measure phenomenon" (2001); Kwapien (1994) for the
      median.

    >>> round(symmetric_top_eigenvalue_quantile(22, 0.975), 3)
    8.593
    """
    dimension = _validate.positive_int("dimension", dimension)
    probability = _validate.open_unit("probability", probability)
    if probability < 0.5:
        raise ValueError(f"probability must be at least 1/2, got {probability!r}.")
    normal = float(stats.norm.ppf(probability))
    if dimension == 1:
        return normal
    bound = math.sqrt(2 * dimension) + normal
    return bound if isometric else math.sqrt(2) * bound
