"""What users would compare with: methods of other papers, run like any algorithm."""

from dpjax.baselines.gradient_descent_selected_calibration import (
    dp_gradient_descent_with_selection,
)
from dpjax.baselines.newton import dp_newton

# The command line and the contract tests read this table beside ``dpjax.ALGORITHMS``.
BASELINES = {
    "dp-gd-selected": dp_gradient_descent_with_selection,
    "dp-newton": dp_newton,
}

__all__ = ["BASELINES", "dp_gradient_descent_with_selection", "dp_newton"]
