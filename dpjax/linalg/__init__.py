"""The trust-region subproblem, solved exactly, and tail quantiles of the noise."""

from dpjax.linalg.tails import chi_quantile, symmetric_top_eigenvalue_quantile
from dpjax.linalg.trust_region import TrustRegionStep, trust_region_step

__all__ = [
    "TrustRegionStep",
    "chi_quantile",
    "symmetric_top_eigenvalue_quantile",
    "trust_region_step",
]
