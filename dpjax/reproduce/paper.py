"""NOT PRIVATE: from a paper's name to pictures, tables and a page in a folder."""

import dataclasses
import os
import pathlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from dpjax import _validate, plotting
from dpjax.reproduce import (
    dpagem,
    dpagem_page,
    dpagem_results,
    erm,
    erm_page,
    erm_results,
    page,
    perturbed,
    perturbed_page,
    spider,
    spider_page,
    spider_results,
    trust_region,
    trust_region_page,
)
from dpjax.reproduce.cache import Cache
from dpjax.reproduce.results import results
from dpjax.reproduce.study import TRACED_EPSILON, Curve, Figure, Problem

_SEEDS, _QUICK_SEEDS = 10, 2


class Parts(NamedTuple):
    """What a paper is made of."""

    study: ModuleType
    """Title, problems, curves, conventions, claims, and what a quick run is."""
    results: Callable[..., Any]
    """From a problem and the curves to the results; see ``results.results``."""
    pages: ModuleType
    """``files`` and ``lines`` of a figure, from the results; ``draw``, from its tables."""
    seeds: int = _SEEDS
    """Runs of each point, unless asked for otherwise."""
    trained: str = "every training starts at 0 and is private at its epsilon by an exact accountant"
    """Where trainings start, and which of them are private."""


# A paper joins by one line.
PAPERS = {
    "trust-region": Parts(trust_region, results, trust_region_page),
    "erm": Parts(erm, erm_results.results, erm_page),
    # Closed forms: no problem, and so no results.
    "perturbed": Parts(perturbed, results, perturbed_page),
    "spider": Parts(spider, spider_results.results, spider_page, seeds=20),
    "dpagem": Parts(
        dpagem,
        dpagem_results.results,
        dpagem_page,
        seeds=3,
        trained="every training starts at a network drawn anew, and all but those called "
        f"{dpagem.SGD_STAGE} are private at their epsilon by an exact accountant",
    ),
}
"""The papers and what makes their pages, by name."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What will be made, checked before anything is computed.

    Args:
      paper: name in ``PAPERS``.
      figures: by name.
      seeds: runs of each point.
      quick: whether this is the small version.
      left_out: figures that the small version leaves out, by name.
    """

    paper: str
    figures: dict[str, Figure]
    seeds: int
    quick: bool
    left_out: tuple[str, ...] = ()

    @property
    def parts(self) -> Parts:
        """What the paper is made of."""
        return PAPERS[self.paper]

    @property
    def study(self) -> ModuleType:
        """The paper's file."""
        return self.parts.study

    @property
    def curves(self) -> tuple[Curve, ...]:
        """The methods."""
        return self.study.curves()

    def curves_on(self, problem: Problem) -> tuple[Curve, ...]:
        """The methods that there are results of on ``problem``."""
        return tuple(curve for curve in self.curves if curve.drawn(problem))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Each problem once, in the order of the figures."""
        return tuple(dict.fromkeys(p for one in self.figures.values() for p in one.problems))

    @property
    def whole(self) -> bool:
        """Whether all of the paper's figures were asked for."""
        return len(self.figures) + len(self.left_out) == len(self.study.FIGURES)

    @property
    def command(self) -> str:
        """The command that makes this."""
        chosen = "all" if self.whole else next(iter(self.figures))
        words = ["dpjax reproduce", self.paper, chosen]
        if self.quick:
            words.append("--quick")
        if self.seeds != (_QUICK_SEEDS if self.quick else self.parts.seeds):
            words.append(f"--seeds {self.seeds}")
        return " ".join(words)

    def epsilons(self, problem: Problem) -> tuple[float, ...]:
        """Returns where ``problem`` is needed: a table alone takes one epsilon."""
        drawn = any(
            problem in one.problems and one.kind != "table" for one in self.figures.values()
        )
        return problem.epsilons if drawn else (TRACED_EPSILON,)

    @property
    def trainings(self) -> int:
        """How many trainings that is, if nothing is on the disk."""
        return sum(
            len(self.epsilons(problem)) * curve.trainings(problem, self.seeds)
            for problem in self.problems
            for curve in self.curves_on(problem)
        )


def plan(
    paper: str = "trust-region",
    figure: str = "all",
    *,
    quick: bool = False,
    seeds: int | None = None,
) -> Plan:
    """Returns what is to be made, or raises before anything is computed.

    Args:
      paper: name in ``PAPERS``.
      figure: one of the paper's figures and tables, or ``"all"``.
      quick: few rows, seeds and epsilons; ``"all"`` is then what one problem serves, and
        data that are not on this machine are replaced by the embedded ones.
      seeds: runs of each point; by default the paper's, 10, 20 or 3, quick 2.

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
    study = PAPERS[_validate.choice("paper", paper, PAPERS)].study
    _validate.choice("figure", figure, [*study.FIGURES, "all"])
    default = _QUICK_SEEDS if quick else PAPERS[paper].seeds
    seeds = default if seeds is None else _validate.positive_int("seeds", seeds)
    plotting.require()
    figures = study.FIGURES if figure == "all" else {figure: study.FIGURES[figure]}
    if not quick:
        return Plan(paper, dict(figures), seeds, quick)
    small, left_out = {}, []
    for name, one in figures.items():
        if not one.problems:
            small[name] = study.quick(one)
            continue
        kept = [p for p in one.problems if figure != "all" or (p.data, p.objective) in study.QUICK]
        if kept:
            problems = tuple(dict.fromkeys(study.quick(p) for p in kept))
            small[name] = dataclasses.replace(one, problems=problems)
        else:
            left_out.append(name)
    return Plan(paper, small, seeds, quick, tuple(left_out))


def reproduce(
    chosen: Plan,
    out: str | os.PathLike,
    *,
    advance: Callable[[str, int], None] = lambda what, trainings: None,
) -> list[pathlib.Path]:
    """Makes the pictures, the tables and the page, and returns their paths.

    Results of each point go to ``out/cache`` as soon as they are there: after an interruption the
    same call goes on, and what was computed is not computed again. Remove that folder after a
    change of dpjax's code.

    Args:
      chosen: what to make, from ``plan``.
      out: folder, made if it is absent.
      advance: told what is being done and how many more trainings are done.

    Raises:
      FileNotFoundError: if a data set is not on this machine, naming how to get it.
      OSError: if ``out`` cannot be written.

    Privacy: NOT PRIVATE; gaps, gradient norms and accuracies are exact values of the data.
    """
    folder = pathlib.Path(out)
    cache = Cache(folder / "cache")
    found = {
        problem: chosen.parts.results(
            problem,
            chosen.curves_on(problem),
            cache,
            seeds=chosen.seeds,
            one_by_one=chosen.quick,
            epsilons=chosen.epsilons(problem),
            advance=advance,
        )
        for problem in chosen.problems
    }
    written, sections = [], []
    for name, one in chosen.figures.items():
        every = tuple(found[problem] for problem in one.problems)
        advance(f"drawing {name}", 0)
        files = chosen.parts.pages.files(folder, name, one, every, chosen.curves)
        written += files
        sections += _section(chosen, name, one, every, files)
    # One figure has a page of its own, so that it leaves that of all as it was.
    name = chosen.paper if chosen.whole else "-".join(chosen.figures)
    text = folder / f"{name}.md"
    text.write_text("\n".join(_head(chosen, found) + sections) + "\n")
    return [*written, text]


def redraw(chosen: Plan, out: str | os.PathLike) -> list[pathlib.Path]:
    """Draws the pictures again from the tables in a folder, without training, and returns them.

    Args:
      chosen: whose figures, from ``plan``.
      out: folder that ``reproduce`` wrote to.

    Raises:
      FileNotFoundError: if a table is missing.

    Privacy: NOT PRIVATE, as the tables are.
    """
    draw, folder = chosen.parts.pages.draw, pathlib.Path(out)
    return [path for figure in chosen.figures.items() for path in draw(folder, *figure)]


def _head(chosen: Plan, found: dict[Problem, Any]) -> list[str]:
    study, values, trained = chosen.study, "", ""
    if chosen.problems:
        values = (
            " Gaps, gradient norms and accuracies are exact values of public benchmark data: NOT "
            "PRIVATE."
        )
        trained = f" {chosen.seeds} seeds; {chosen.parts.trained}."
    lines = [
        f"# {study.TITLE} (NOT PRIVATE)",
        "",
        f"{study.REFERENCE}. Made by `{chosen.command}`.{values}",
        "",
        f"{study.CONVENTIONS}{trained}",
        "",
        study.SETTINGS,
        "",
    ]
    if chosen.quick:
        few = "rows, seeds and epsilons" if chosen.problems else "draws"
        lines += [f"**A quick run: few {few}. Its numbers are no results.**", ""]
    if chosen.left_out:
        lines += [f"Left out of the quick run: {', '.join(chosen.left_out)}.", ""]
    for problem, one in found.items():
        lines.append(f"- {problem.title}: n = {one.rows:,}, p = {one.dimension}. ")
        lines[-1] += one.optimum_line
        if problem.stands_for:
            lines.append(
                f"  {problem.stands_for} is not on this machine (set DPJAX_DATA); "
                f"{problem.substitute} for it."
            )
    return [*lines, ""]


def _section(chosen: Plan, name: str, one: Figure, every, files) -> list[str]:
    lines = [f"## {name}: {one.caption}", ""]
    lines += [f"![{name}]({path.name})" for path in files if path.suffix == ".png"]
    lines += ["", "Numbers: " + ", ".join(f"`{p.name}`" for p in files if p.suffix == ".csv"), ""]
    lines += chosen.parts.pages.lines(one, every, chosen.curves)
    said = page.claim_lines(chosen.study.claims(one, every))
    if not said:
        return [*lines, ""]
    return [*lines, "", "What the paper says, held against these numbers:", "", *said, ""]
