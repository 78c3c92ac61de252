"""Tail quantiles of Gaussian noise: norms of vectors, eigenvalues of symmetric matrices."""

import math

from scipy import special

from dpjax import _validate


def chi_quantile(dimension: int, probability: float) -> float:
    """Returns a bound on the norm of standard Gaussian noise that holds with ``probability``.

    Args:
      dimension: p, the length of the noise vector N(0, I_p), at least 1.
      probability: strictly between 0 and 1.

    Returns:
      The quantile of the chi distribution with p degrees of freedom, rounded up.

    Raises:
      ValueError: naming the argument that is out of range.

    Privacy: a property of the noise distribution; no data are involved.

    >>> round(chi_quantile(22, 0.975), 3)
    6.065
    """
    dimension = _validate.positive_int("dimension", dimension)
    probability = _validate.open_unit("probability", probability)
    return math.sqrt(2 * special.gammaincinv(dimension / 2, probability)) * (1 + _ROUNDING)


def symmetric_top_eigenvalue_quantile(
    dimension: int, probability: float, isometric: bool = True
) -> float:
    """Returns a bound on lambda_max of symmetric Gaussian noise that holds with ``probability``.

    In isometric coordinates lambda_max is convex and 1-Lipschitz in a standard Gaussian vector, so
    its median is at most its mean, which is at most sqrt(2 p) (Sudakov-Fernique), and above its
    median its tail is at most that of N(0, 1). By symmetry -lambda_min has the same bound; for
    both at once, hence for the spectral norm, take ``probability`` = 1 - beta/2.

    Args:
      dimension: p, of a (p, p) matrix, at least 1.
      probability: at least 1/2 and below 1; below 1/2 the argument does not hold.
      isometric: True for diagonal N(0, 1) and off-diagonal N(0, 1/2), the noise that is spherical
        in the Frobenius norm; False for N(0, 1) everywhere on and above the diagonal, for which
        the bound is sqrt(2) times as large.

    Returns:
      sqrt(2 p) + Phi^-1(probability) if isometric. An upper bound on the quantile, not an
      estimate of it: 20 % above it at p = 22 and 0.975. At p = 1 the exact normal quantile.

    Raises:
      ValueError: naming the argument that is out of range.

    Privacy: a property of the noise distribution; no data are involved.

    Reference: Boucheron, Lugosi and Massart (2013), Concentration Inequalities, theorems 5.6
    and 10.17; Kwapień (1994) for the median of a convex function.

    >>> round(symmetric_top_eigenvalue_quantile(22, 0.975), 3)
    8.593
    """
    dimension = _validate.positive_int("dimension", dimension)
    probability = _validate.open_unit("probability", probability)
    if probability < 0.5:
        raise ValueError(f"probability must be at least 0.5, got {probability!r}.")
    tail = float(special.ndtri(probability))
    if dimension == 1:
        return tail * (1 + _ROUNDING)
    bound = math.sqrt(2 * dimension) + tail
    return (bound if isometric else math.sqrt(2) * bound) * (1 + _ROUNDING)


_ROUNDING = 1e-12  # far above the error of SciPy's inverses, so that no bound falls below its value
