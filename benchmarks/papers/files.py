"""NOT PRIVATE: from an experiment to its table, its pictures and its page in a folder."""

import dataclasses
import os
import pathlib
from collections.abc import Callable

from benchmarks.papers import figures, page, results
from benchmarks.papers.results import Results
from benchmarks.papers.runner import problem_rows
from benchmarks.papers.spec import QUICK_SEEDS, Experiment, Plan, choice
from dpjax import plotting


def plan(
    chosen: Experiment,
    figure: str = "all",
    *,
    quick: bool = False,
    seeds: int | None = None,
) -> Plan:
    """Returns what is to be made, or raises before anything is computed.

    Args:
      chosen: the experiment.
      figure: one of its figures and tables, or ``"all"``.
      quick: few rows, seeds and epsilons; ``"all"`` is then what few problems serve, and data that
        are not on this machine are replaced.
      seeds: runs of each point; by default the experiment's, quick 2.

    Raises:
      ValueError: for an unknown figure, naming those there are, or a bad number.
      ImportError: if matplotlib is not installed.
    """
    choice("figure", figure, [*chosen.figures, "all"])
    default = QUICK_SEEDS if quick else chosen.seeds
    if seeds is not None and seeds < 1:
        raise ValueError(f"seeds must be a whole number from 1 on, got {seeds}.")
    plotting.require()
    wanted = chosen.figures if figure == "all" else {figure: chosen.figures[figure]}
    made = dict(wanted)
    for name, one in wanted.items() if quick else ():
        kept = [p for p in one.problems
                if figure != "all" or chosen.quick is None or p.name in chosen.quick]  # fmt: skip
        every = {problem.name: problem for problem in (p.made_quick() for p in kept)}
        made[name] = dataclasses.replace(one, problems=tuple(every.values()))
        if one.problems and not kept:
            del made[name]
    left_out = tuple(name for name in wanted if name not in made)
    return Plan(chosen, made, seeds or default, quick, left_out)


def run(
    chosen: Plan | Experiment,
    out: str | os.PathLike | None = None,
    *,
    advance: Callable[[str, int], None] = lambda what, trainings: None,
) -> Results:
    """Trains what is not on the disk yet, and writes table, pictures and page.

    Results go to ``out/cache`` as soon as they are there: after an interruption the same call goes
    on, and what was computed is not computed again. Remove that folder after a change of code.

    Args:
      chosen: what to make, from ``plan``, or an experiment.
      out: folder, made if it is absent; None writes nothing.
      advance: told what is being done and how many more trainings are done.

    Returns:
      The table.

    Raises:
      FileNotFoundError: if a data set is not on this machine, naming how to get it.
      OSError: if ``out`` cannot be written.

    Privacy: NOT PRIVATE; gaps, gradient norms and accuracies are exact values of the records.
    """
    chosen = chosen if isinstance(chosen, Plan) else plan(chosen)
    folder = None if out is None else pathlib.Path(out, "cache")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    computed = chosen.experiment.computed
    rows = [] if computed is None else computed(chosen.quick)
    for problem in chosen.problems:
        rows += problem_rows(chosen, problem, folder, advance)
    found = Results(rows)
    if out is not None:
        results.write(chosen.paths(out)[-2], found)
        redraw(chosen, out)
    return found


def redraw(chosen: Plan, out: str | os.PathLike) -> list[pathlib.Path]:
    """Makes pictures and page again from the table in a folder, without training.

    Args:
      chosen: whose figures, from ``plan``.
      out: folder that ``run`` wrote to.

    Returns:
      The paths of the pictures, the table and the page.

    Raises:
      FileNotFoundError: if the table is missing.

    Privacy: NOT PRIVATE, as the table is.
    """
    *pictures, numbers, text = chosen.paths(out)
    found = results.read(numbers)
    drawn = [figure for figure in chosen.figures.values() if figure.picture is not None]
    for path, figure in zip(pictures, drawn, strict=True):
        figures.draw(figure.picture, figure.problems, found, path)
    text.write_text(page.write(chosen, found))
    return [*pictures, numbers, text]
