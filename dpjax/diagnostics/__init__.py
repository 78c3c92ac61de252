"""NOT PRIVATE: exact values, for benchmarks and for whoever may see the records."""

from dpjax.diagnostics.stationarity import (
    exact_accuracy,
    exact_gradient_norm,
    exact_min_eigenvalue,
    exact_objective,
)

__all__ = ["exact_accuracy", "exact_gradient_norm", "exact_min_eigenvalue", "exact_objective"]
