"""What a training returns: solution, guarantee, coefficients, saved models and predictions."""

from dpjax.results.coefficients import Coefficients
from dpjax.results.prediction import PredictedRows, PredictedTable, predict_table, training_rows
from dpjax.results.remarks import Description
from dpjax.results.solution import SavedSolution, Solution, load, save

__all__ = [
    "Coefficients",
    "Description",
    "PredictedRows",
    "PredictedTable",
    "SavedSolution",
    "Solution",
    "load",
    "predict_table",
    "save",
    "training_rows",
]
