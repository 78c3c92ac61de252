"""Trust-region subproblem solvers, and tail quantiles of Gaussian noise."""

from dpjax.linalg.tails import chi_quantile, symmetric_top_eigenvalue_quantile
from dpjax.linalg.trust_region import SOLVERS, TrustRegionStep, trust_region_step

__all__ = [
    "SOLVERS",
    "TrustRegionStep",
    "chi_quantile",
    "symmetric_top_eigenvalue_quantile",
    "trust_region_step",
]
