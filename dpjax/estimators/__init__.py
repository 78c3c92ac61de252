"""Estimators for scikit-learn: the same trainings behind ``fit`` and ``predict``."""

from dpjax import _validate

try:
    from dpjax.estimators.linear import DPLinearRegression, DPLogisticRegression, DPRobustRegression
except ImportError as error:
    raise ImportError(_validate.install("dpjax.estimators", "scikit-learn>=1.6") + ".") from error

__all__ = ["DPLinearRegression", "DPLogisticRegression", "DPRobustRegression"]
