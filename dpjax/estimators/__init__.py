"""Estimators for scikit-learn: the same trainings behind ``fit`` and ``predict``."""

try:
    from dpjax.estimators.linear import DPLinearRegression, DPLogisticRegression, DPRobustRegression
except ImportError as error:
    raise ImportError(
        "dpjax.estimators needs scikit-learn 1.6 or newer: pip install 'dpjax[sklearn]'."
    ) from error

__all__ = ["DPLinearRegression", "DPLogisticRegression", "DPRobustRegression"]
