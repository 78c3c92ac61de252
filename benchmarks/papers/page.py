"""NOT PRIVATE: the page of an experiment and its tables, all from the results."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from benchmarks.papers.claims import RULES, number, seeds
from benchmarks.papers.results import Results
from benchmarks.papers.spec import Figure, Plan, Problem
from dpjax import datasets

# Fewer seeds than these decide nothing, or little.
_FEW = 5
# Of the points among which a certified optimum is the least, where none exists.
WIDEST = 1_000.0

Cell = Callable[[Results], str]
"""From the rows of one method, at one epsilon or n, to a cell of a table."""


def table(rows: Sequence[Mapping[str, object]], words: str = "") -> list[str]:
    """Returns rows as lines of a Markdown table, with words above it.

    >>> table([{"a": 1, "b": "x"}])
    ['| a | b |', '|---|---|', '| 1 | x |', '']
    """
    above, head = [words, ""] if words else [], list(rows[0])
    body = [f"| {' | '.join(str(row[name]) for name in head)} |" for row in rows]
    return [*above, f"| {' | '.join(head)} |", "|" + "---|" * len(head), *body, ""]


def mean(metric: str, form: Callable[[float], str] = number, error: bool = False) -> Cell:
    """Returns what writes the mean over the seeds, perhaps with its standard error."""

    def cell(found: Results) -> str:
        value, spread = found.mean(metric), found.error(metric)
        more = f" ({number(spread)})" if error and spread == spread else ""
        return form(value) + more if value == value else ""

    return cell


@dataclasses.dataclass(frozen=True)
class Grid:
    """A table of methods by epsilon, or by n.

    Args:
      words: above it.
      cell: what is in it.
      columns: ``"epsilon"`` or ``"rows"``.
      corner: head of the column of methods.
      more: further columns: head and, from all rows of a method, the cell.
      epsilons: the only ones that are shown; empty for all.
      about: head of a column with each method's ``about``; empty for none.
    """

    words: str
    cell: Cell
    columns: str = "epsilon"
    corner: str = ""
    more: tuple[tuple[str, Cell], ...] = ()
    epsilons: tuple[float, ...] = ()
    about: tuple[str, Mapping[str, str]] | None = None

    def __call__(self, results: Results, problems: Sequence[Problem]) -> list[str]:
        """Returns the lines, problem after problem."""
        return [line for problem in problems for line in self._of(problem, results)]

    def _of(self, problem: Problem, results: Results) -> list[str]:
        only = {"epsilon": self.epsilons} if self.epsilons else {}
        found, rows = results.where(problem=problem.name, **only), []
        head = "epsilon {:g}" if self.columns == "epsilon" else "n = {:,.0f}"
        for label in found.each("method"):
            own = found.where(method=label)
            about = {} if self.about is None else {self.about[0]: self.about[1].get(label, "")}
            cells = {head.format(value): self.cell(own.where(**{self.columns: value}))
                     for value in own.each(self.columns)}  # fmt: skip
            more = {name: cell(own) for name, cell in self.more}
            rows.append({self.corner: label} | about | cells | more)
        return table(rows, self.words.format(problem=problem.name))


def write(plan: Plan, results: Results) -> str:
    """Returns the page of a plan, from all rows. NOT PRIVATE."""
    lines = _head(plan, results)
    for name, figure in plan.figures.items():
        lines += [f"## {name}: {figure.caption}{_few(plan, figure)}", ""]
        lines += [] if figure.picture is None else [f"![{name}]({name}.png)", ""]
        lines += [line for part in figure.sections for line in part(results, figure.problems)]
        said = [str(one) for claim in figure.claims for one in claim(results, figure.problems)]
        if said:
            lines += ["What the paper says, held against these numbers:", "", *said, ""]
    return "\n".join(lines) + "\n"


def _few(plan: Plan, figure: Figure) -> str:
    count = min(map(plan.seeds_on, figure.problems), default=_FEW)
    if count >= _FEW:
        return ""
    return " ONE SEED DECIDES NOTHING." if count == 1 else f" {count} SEEDS DECIDE LITTLE."


def _source(problem: Problem) -> str:
    """Which rows and classes a problem has, in the words of the data's registry."""
    known = {info.name: info for info in datasets.describe()}
    if problem.note or problem.records or problem.data not in known:
        return ""
    info = known[problem.data]
    rows = f"its first {problem.rows:,}" if problem.rows else f"all {info.rows:,}"
    return f"- {info.name}: {info.source}; {info.task}; {rows} rows. {info.note}"


def _head(plan: Plan, results: Results) -> list[str]:
    experiment, values, runs, few = plan.experiment, "", "", "draws"
    if plan.problems:
        values = (
            " Gaps, gradient norms and accuracies are exact values of the records: NOT PRIVATE."
        )
        counts = sorted({plan.seeds_on(problem) for problem in plan.problems}, reverse=True)
        runs = f" {' or '.join(map(seeds, counts))}; {experiment.trained}."
        few = "rows, seeds and epsilons"
    source = f"{experiment.reference}. " if experiment.reference else ""
    lines = [
        f"# {experiment.title} (NOT PRIVATE)", "",
        f"{source}Made by `{plan.command}`, with every number in `{plan.name}.csv`.{values}", "",
        f"{experiment.conventions}{runs}".strip(), "", experiment.settings, "",
    ]  # fmt: skip
    if any(figure.claims for figure in plan.figures.values()):
        lines += [RULES, ""]
    if plan.quick:
        lines += [f"**A quick run: few {few}. Its numbers are no results.**", ""]
    if plan.left_out:
        lines += [f"Left out of the quick run: {', '.join(plan.left_out)}.", ""]
    for problem in plan.problems:
        found = results.where(problem=problem.name)
        n, p = found.shape
        note = problem.note(n) if problem.note else ""
        words = f"- {problem.name}: n = {n:,}, p = {p}. {about_reference(problem, found)} {note}"
        lines.append(words.rstrip().replace("  ", " "))
        there = found.each("method")
        if absent := [m.label for m in experiment.methods_on(problem) if m.label not in there]:
            lines.append(f"  **Not measured on it: {'; '.join(absent)}.**")
        if problem.stands_for:
            absent = f"  {problem.stands_for} is not on this machine (set DPJAX_DATA); "
            lines.append(f"{absent}{problem.data} stands in for it.")
    return [*lines, *filter(None, dict.fromkeys(map(_source, plan.problems))), ""]


# By the name of the reference, what its numbers are.
_REFERENCES = {
    "certified": "The optimum{among} is {optimum:.8f} (float64), proven to be the least value up "
    "to {suboptimality:.0e}.",
    "landscape": "The saddle has the value {saddle:.5f} and lambda_min {saddle_min_eigenvalue:.4f},"
    " the minimum {optimum:.5f} and {minimum_min_eigenvalue:.4f}; rho = {hessian_lipschitz:.3g}, so"
    " the saddle itself is an alpha-SOSP for alpha = {saddle_alpha:.2g}.",
    "descents": "L* = {optimum:.5f}, the least value found by {starts} exact descents from fixed "
    "starts ({searched:.5f}) and from every output.",
}


def about_reference(problem: Problem, found: Results) -> str:
    """Returns where the best value comes from, and whether it is the one known before."""
    at = {row.metric.removeprefix("exact_"): row.value for row in found.where(method="").rows()}
    # What is less is rounding.
    at["suboptimality"] = max(at.get("suboptimality", 0.0), 1e-12)
    among = "" if problem.loss.regularizer else f" of all points of norm at most {WIDEST:g}"
    words = _REFERENCES.get(problem.reference, "").format(among=among, starts=problem.starts, **at)
    if problem.known is None:
        return words
    off = at["optimum"] - problem.known
    if abs(off) <= 1e-4:
        return f"{words} It agrees with the known {problem.known:.5f}."
    return f"{words} It does NOT agree with the known {problem.known:.5f}: off by {off:+.5f}."
