"""The only loops: ``solve`` as one program, ``run`` from the host, and what they return."""

from dpjax.driver.checkpoint import ResumeMismatch, holds_run
from dpjax.driver.checks import check_data
from dpjax.driver.keys import root_key
from dpjax.driver.prepare import starting_point
from dpjax.driver.program import Trajectory, solve, trajectory
from dpjax.driver.progress import Watch, run, seconds_per_step
from dpjax.results.coefficients import Coefficients
from dpjax.results.description import Description
from dpjax.results.persistence import SavedSolution, load, save
from dpjax.results.predict_table import PredictedRows, PredictedTable, predict_table
from dpjax.results.prediction import training_rows
from dpjax.results.solution import Solution

__all__ = [
    "Coefficients",
    "Description",
    "PredictedRows",
    "PredictedTable",
    "ResumeMismatch",
    "SavedSolution",
    "Solution",
    "Trajectory",
    "Watch",
    "check_data",
    "holds_run",
    "load",
    "predict_table",
    "root_key",
    "run",
    "save",
    "seconds_per_step",
    "solve",
    "starting_point",
    "training_rows",
    "trajectory",
]
