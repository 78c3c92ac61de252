"""NOT PRIVATE: from an experiment to its table, its pictures and its page in a folder."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping

from dpjax import _validate, plotting
from dpjax.experiments import figures, page, results
from dpjax.experiments.cache import Cache
from dpjax.experiments.papers import PAPERS
from dpjax.experiments.results import Results
from dpjax.experiments.run import problem_rows
from dpjax.experiments.spec import Experiment, Figure, Problem

_QUICK_SEEDS = 2


@dataclasses.dataclass(frozen=True)
class Plan:
    """What will be made, checked before anything is computed.

    Args:
      experiment: what it is a part of.
      figures: by name.
      seeds: runs of each point.
      quick: whether this is the small version.
      left_out: figures that the small version leaves out, by name.
      command: what makes this.
    """

    experiment: Experiment
    figures: Mapping[str, Figure]
    seeds: int
    quick: bool = False
    left_out: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether all figures were asked for."""
        return len(self.figures) + len(self.left_out) == len(self.experiment.figures)

    @property
    def name(self) -> str:
        """Of table and page; one figure has its own, so that it leaves those of all as they are."""
        return self.experiment.name if self.whole else "-".join(self.figures)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Each problem once, in the order of the figures."""
        every = {problem.name: problem for f in self.figures.values() for problem in f.problems}
        return tuple(every.values())

    @property
    def command(self) -> str:
        """What makes this."""
        if PAPERS.get(self.experiment.name) is not self.experiment:
            return "dpjax.experiments.run"
        words = ["dpjax reproduce", self.experiment.name, "all" if self.whole else self.name]
        words += ["--quick"] * self.quick
        if self.seeds != (_QUICK_SEEDS if self.quick else self.experiment.seeds):
            words.append(f"--seeds {self.seeds}")
        return " ".join(words)

    def paths(self, folder: str | os.PathLike) -> list[pathlib.Path]:
        """Returns the pictures, the table and the page in a folder."""
        drawn = [f"{name}.png" for name, one in self.figures.items() if one.picture is not None]
        return [pathlib.Path(folder, name) for name in (*drawn, f"{self.name}.csv", f"{self.name}.md")]

    def epsilons(self, problem: Problem) -> tuple[float, ...]:
        """Returns where ``problem`` is needed: a figure may take few epsilons."""
        needs = [f.epsilons for f in self.figures.values() if problem in f.problems]
        return problem.epsilons if () in needs else tuple(sorted(set().union(*needs)))

    @property
    def trainings(self) -> int:
        """How many trainings that is, if nothing is on the disk."""
        tuning = self.experiment.tuning
        total = 0
        for problem in self.problems:
            seeds = min(self.seeds, problem.most_seeds or self.seeds)
            for method in self.experiment.methods_on(problem):
                tried = len(method.grid(problem))
                tuned = tuning.seeds * tried if tuning is not None and tried > 1 else 0
                total += len(self.epsilons(problem)) * len(problem.sizes) * (seeds + tuned)
        return total


def plan(
    experiment: str | Experiment = "trust-region",
    figure: str = "all",
    *,
    quick: bool = False,
    seeds: int | None = None,
) -> Plan:
    """Returns what is to be made, or raises before anything is computed.

    Args:
      experiment: one of your own, or a name in ``PAPERS``.
      figure: one of its figures and tables, or ``"all"``.
      quick: few rows, seeds and epsilons; ``"all"`` is then what few problems serve, and data that
        are not on this machine are replaced.
      seeds: runs of each point; by default the experiment's, quick 2.

    Raises:
      ValueError: for an unknown paper or figure, naming those there are, or a bad number.
      ImportError: if matplotlib is not installed.

    >>> plan("trust-region", "fig6").trainings > 0
    True
    >>> plan("trust-region", "fig3")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: unknown figure 'fig3'; did you mean ... Choose from: fig2, fig4, ...
    """
    if not isinstance(experiment, Experiment):
        experiment = PAPERS[_validate.choice("paper", experiment, PAPERS)]
    _validate.choice("figure", figure, [*experiment.figures, "all"])
    default = _QUICK_SEEDS if quick else experiment.seeds
    seeds = default if seeds is None else _validate.positive_int("seeds", seeds)
    plotting.require()
    wanted = experiment.figures if figure == "all" else {figure: experiment.figures[figure]}
    if not quick:
        return Plan(experiment, dict(wanted), seeds)
    small, left_out = {}, []
    for name, one in wanted.items():
        kept = [p for p in one.problems if figure != "all" or _kept(experiment, p)]
        if one.problems and not kept:
            left_out.append(name)
            continue
        every = {problem.name: problem for problem in (p.made_quick() for p in kept)}
        small[name] = dataclasses.replace(one, problems=tuple(every.values()))
    return Plan(experiment, small, seeds, quick, tuple(left_out))


def _kept(experiment: Experiment, problem: Problem) -> bool:
    return experiment.quick is None or problem.name in experiment.quick


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
    folder = None if out is None else pathlib.Path(out)
    cache, experiment = Cache(folder and folder / "cache"), chosen.experiment
    rows = [] if experiment.computed is None else experiment.computed(chosen.quick)
    for problem in chosen.problems:
        rows += problem_rows(
            experiment,
            problem,
            chosen.epsilons(problem),
            cache,
            seeds=chosen.seeds,
            together=not chosen.quick,
            advance=advance,
        )
    found = Results(rows)
    if folder is not None:
        results.write(folder / f"{chosen.name}.csv", found)
        redraw(chosen, folder)
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
