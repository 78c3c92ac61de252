"""NOT PRIVATE: files and lines of the DPageEM paper's figures."""

import math
import pathlib
from collections.abc import Sequence

from dpjax.reproduce import dpagem, dpagem_claims, dpagem_figure, page, tables
from dpjax.reproduce.accuracies import FIELDS, Accuracies
from dpjax.reproduce.page import number
from dpjax.reproduce.study import Figure


def files(
    folder: pathlib.Path,
    name: str,
    one: Figure,
    every: Sequence[Accuracies],
    methods: Sequence[dpagem.Method],
) -> list[pathlib.Path]:
    """Writes the picture and the tables of one figure, and returns their paths.

    Args:
      folder: where to.
      name: of the figure.
      one: the figure.
      every: the results on its problems.
      methods: all that are compared.
    """
    del methods
    numbers = folder / f"{name}.csv"
    rows = gap_rows if one.kind == "gap" else look_rows
    tables.write_csv(numbers, [row for found in every for row in rows(found)])
    written = [*draw(folder, name, one), numbers]
    tried = [row for found in every for row in tuning_rows(found)]
    if tried and one.kind != "gap":
        written.append(folder / f"{name}-steps.csv")
        tables.write_csv(written[-1], tried)
    said: list[dict[str, object]] = [
        {"verdict": c.verdict, "claim": c.text, "exact_measured": c.detail}
        for c in dpagem_claims.claims(one, every)
    ]
    if said:
        written.append(folder / f"{name}-claims.csv")
        tables.write_csv(written[-1], said)
    return written


def draw(folder: pathlib.Path, name: str, one: Figure) -> list[pathlib.Path]:
    """Draws the picture of one figure from its table in ``folder``, and returns its path.

    Args:
      folder: where the table is.
      name: of the figure.
      one: the figure.

    Raises:
      FileNotFoundError: if the table is missing.
    """
    picture = folder / f"{name}.png"
    plot = dpagem_figure.plot_gap if one.kind == "gap" else dpagem_figure.plot_accuracy
    plot(tables.read_csv(folder / f"{name}.csv"), picture)
    return [picture]


def look_rows(found: Accuracies) -> list[dict[str, object]]:
    """Returns one row for each method, epsilon, seed and iteration looked at."""
    rows = []
    for (label, epsilon), point in found.points.items():
        shared = {
            "data": found.problem.data,
            "network": found.problem.title.split(", ")[-1],
            "n": found.rows,
            "method": label,
            "relation": found.problem.relation,
            "delta": dpagem.DELTA,
            "batch_size": f"{point['batch_size']:g}",
            "step_size": point["step_size"],
            "noise_multiplier": _six(point["noise_multiplier"]),
            "epsilon": epsilon if point["epsilon"] is not None else "NOT PRIVATE",
            "drawn_beside_epsilon": epsilon,
            "epsilon_of_the_noise": _six(point["epsilon"]) or "NOT PRIVATE",
        }
        for seed in range(found.seeds):
            for i, iteration in enumerate(point["iterations"]):
                rows.append(
                    shared
                    | {"seed": seed, "iteration": iteration}
                    | {f"exact_{field}_accuracy": _six(point[field][seed][i]) for field in FIELDS}
                )
    return rows


def tuning_rows(found: Accuracies) -> list[dict[str, object]]:
    """Returns one row for each method and step size that was tried."""
    rows, told = [], set()
    for (label, _), point in found.points.items():
        if label in told:
            continue
        told.add(label)
        rows += [
            {
                "data": found.problem.data,
                "method": label,
                "step_size": step,
                "exact_train_accuracy": _six(share),
                "taken": int(step == point["step_size"]),
            }
            for step, share in point["tried"]
        ]
    return rows


def gap_rows(found: Accuracies) -> list[dict[str, object]]:
    """Returns one row for each private method: how far it is behind non-private training."""
    rows = []
    for label in found.labels:
        if label != dpagem.SGD_STAGE and dpagem.SGD_STAGE in found.labels:
            row: dict[str, object] = {
                "data": found.problem.data,
                "n": found.rows,
                "method": label,
                "epsilon": max(found.epsilons),
                "relation": found.problem.relation,
            }
            for field in FIELDS:
                one = dpagem_claims.gap(found, label, field)
                row |= {
                    f"exact_{field}_gap": _six(one.value),
                    f"standard_error_{field}": "" if math.isnan(one.error) else _six(one.error),
                }
            rows.append(row)
    return rows


def lines(one: Figure, every: Sequence[Accuracies], methods: Sequence[dpagem.Method]) -> list[str]:
    """Returns the tables of one figure as lines of Markdown."""
    del methods
    if one.kind == "gap":
        return _gap_lines(every)
    return [line for found in every for line in [*_accuracy_lines(found), *_noise_lines(found)]]


def _accuracy_lines(found: Accuracies) -> list[str]:
    rows = []
    for label in found.labels:
        point = found.points[label, found.epsilons[-1]]
        row = {
            "exact accuracy of the last iterate": label,
            "iterations x batch": f"{point['iterations'][-1]:,} x {point['batch_size']:g}",
            "step size": f"{point['step_size']:g}",
        }
        private = point["epsilon"] is not None
        for epsilon in found.epsilons[::-1]:
            for field in FIELDS:
                name = f"{field}, epsilon {epsilon:g}"
                if private or epsilon == found.epsilons[-1]:
                    row[name] = _mean(found, label, epsilon, field)
                else:
                    row[name] = "as at left"
        if not private:
            row["exact accuracy of the last iterate"] += " (NOT PRIVATE, no epsilon)"
        rows.append(row)
    steps = max(point["iterations"][-1] for point in found.points.values())
    text = [
        f"{steps:,} iterations are {steps * _batch(found) / found.rows:.2f} epochs of expected "
        "batches, the same for all methods of the paper; a recipe with another batch ends at "
        "another iteration. Mean of the seeds, +- their standard deviation. Every number of an "
        "accuracy is exact: NOT PRIVATE.",
        "",
        *page.table(rows),
        "",
    ]
    tried = [
        f"{row['method']} {row['step_size']:g}: {float(str(row['exact_train_accuracy'])):.2%}"
        for row in tuning_rows(found)
    ]
    if tried:
        epsilon = found.epsilons[-1]
        text += [
            f"Step sizes tried at epsilon {epsilon:g} with a seed of their own, and the exact "
            f"training accuracy reached (NOT PRIVATE): {'; '.join(tried)}.{_edges(found)}",
            "",
        ]
    return text


def _edges(found: Accuracies) -> str:
    """Says which methods took the smallest or largest step size that was tried."""
    at = []
    for label in found.labels:
        point = found.points[label, found.epsilons[-1]]
        steps = sorted(step for step, _ in point["tried"])
        if steps and point["step_size"] in (steps[0], steps[-1]):
            at.append(label)
    return f" At an edge, and perhaps better beyond it: {', '.join(at)}." if at else ""


def _noise_lines(found: Accuracies) -> list[str]:
    batch = _batch(found)
    alike = [point for point in found.points.values() if point["batch_size"] == batch]
    steps = max(point["iterations"][-1] for point in alike)
    rows = []
    for budget in found.budgets[::-1]:
        epsilon = budget["epsilon"]
        ours = next(
            (
                point["noise_multiplier"]
                for (_, at), point in found.points.items()
                if at == epsilon and point["epsilon"] and point["batch_size"] == batch
            ),
            None,
        )
        for run in budget["runs"]:
            rows.append(
                {
                    "epsilon asked for": f"{epsilon:g}",
                    "steps": f"{run['steps']:,}",
                    "our noise multiplier": f"{ours:.4f}" if ours and run["steps"] == steps else "",
                    "the paper's, c2 = 2": f"{run['noise_multiplier']:.4f}",
                    "its true epsilon, replace_one": number(run["replace_one"]),
                    "zero_out": number(run["zero_out"]),
                }
            )
    return [
        "The noise, as standard deviation over the clip norm on the sum of a batch, and what the "
        f"paper's own accounting would really give at delta = {dpagem.DELTA:g}: the noise of its "
        "equation 4 with c2 = 2, in Poisson batches of the same expected size, by an exact "
        "accountant. The accounting known for batches of fixed size, as the paper draws them, "
        "gives more still.",
        "",
        *page.table(rows),
        "",
    ]


def _gap_lines(every: Sequence[Accuracies]) -> list[str]:
    text = [
        f"Points of exact accuracy (NOT PRIVATE) by which each method is behind {dpagem.SGD_STAGE} "
        "at the paper's epsilon, last iterates, +- the standard error of the difference:",
        "",
    ]
    for found in every:
        rows = []
        for row in gap_rows(found):
            cells: dict[str, str] = {
                f"{found.problem.title}, epsilon {max(found.epsilons):g}": str(row["method"])
            }
            for field in FIELDS:
                one = dpagem_claims.gap(found, str(row["method"]), field)
                spread = "" if math.isnan(one.error) else f" +- {100 * one.error:.2f}"
                cells[field] = f"{100 * one.value:.2f}{spread}"
            rows.append(cells)
        text += [*page.table(rows), ""]
    if len(every) == 1:
        text += ["The other data set is left out, so there is nothing to compare.", ""]
    return text


def _batch(found: Accuracies) -> float:
    own = [p["batch_size"] for p in found.points.values() if p["epsilon"] is None]
    return own[0] if own else next(iter(found.points.values()))["batch_size"]


def _mean(found: Accuracies, label: str, epsilon: float, field: str) -> str:
    last = found.final(label, epsilon, field)
    spread = f" +- {100 * last.std(ddof=1):.2f}" if len(last) > 1 else ""
    return f"{100 * last.mean():.2f}{spread} %"


def _six(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
