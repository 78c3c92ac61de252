"""NOT PRIVATE: exact values, for benchmarks and for those who may see the records."""

from dpjax.diagnostics.optimum import (
    exact_certified_optimum,
    exact_descent,
    exact_gradient_norms,
    exact_optimum,
    exact_values,
)
from dpjax.diagnostics.stationarity import (
    exact_accuracy,
    exact_escape,
    exact_gradient_norm,
    exact_hessian,
    exact_landscape,
    exact_min_eigenvalue,
    exact_objective,
    exact_saddle,
)

__all__ = [
    "exact_accuracy",
    "exact_certified_optimum",
    "exact_descent",
    "exact_escape",
    "exact_gradient_norm",
    "exact_gradient_norms",
    "exact_hessian",
    "exact_landscape",
    "exact_min_eigenvalue",
    "exact_objective",
    "exact_optimum",
    "exact_saddle",
    "exact_values",
]
