"""The only loops: ``solve`` as one program, and ``run`` from the host."""

from dpjax.driver.checkpoint import ResumeMismatch, holds_run
from dpjax.driver.checks import check_data
from dpjax.driver.keys import root_key
from dpjax.driver.prepare import starting_point
from dpjax.driver.program import Trajectory, solve, trajectory
from dpjax.driver.progress import Watch, run, seconds_per_step

__all__ = [
    "ResumeMismatch",
    "Trajectory",
    "Watch",
    "check_data",
    "holds_run",
    "root_key",
    "run",
    "seconds_per_step",
    "solve",
    "starting_point",
    "trajectory",
]
