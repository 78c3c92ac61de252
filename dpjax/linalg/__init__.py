"""Trust-region subproblem solvers, and tail quantiles of Gaussian noise."""

from dpjax.linalg.tails import chi_quantile, symmetric_top_eigenvalue_quantile
from dpjax.linalg.trust_region import (
    BySize,
    Exact,
    Lanczos,
    Solver,
    TrustRegionStep,
    trust_region_step,
)

__all__ = [
    "BySize",
    "Exact",
    "Lanczos",
    "Solver",
    "TrustRegionStep",
    "chi_quantile",
    "symmetric_top_eigenvalue_quantile",
    "trust_region_step",
]
