"""The only loops: ``solve`` as one program, ``run`` with a progress bar, and what they return."""

from dpjax.driver.loop import solve
from dpjax.driver.persistence import SavedSolution, load, save
from dpjax.driver.progress import run, seconds_per_step
from dpjax.driver.solution import Solution

__all__ = ["SavedSolution", "Solution", "load", "run", "save", "seconds_per_step", "solve"]
