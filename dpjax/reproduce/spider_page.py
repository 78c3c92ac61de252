"""NOT PRIVATE: files and lines of the Spider paper's figures."""

import pathlib
from collections.abc import Callable, Sequence

import numpy as np

from dpjax.reproduce import page, spider_bounds, spider_claims, spider_figure, tables
from dpjax.reproduce.escapes import Escapes, quartiles
from dpjax.reproduce.page import number
from dpjax.reproduce.spider import Method
from dpjax.reproduce.study import Figure


def files(
    folder: pathlib.Path,
    name: str,
    one: Figure,
    every: Sequence[Escapes],
    methods: Sequence[Method],
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
    seeds, saddles = folder / f"{name}.csv", folder / f"{name}-saddle.csv"
    tables.write_csv(seeds, [row for found in every for row in seed_rows(found)])
    tables.write_csv(saddles, [row for found in every for row in saddle_rows(found)])
    written = [*draw(folder, name, one), seeds, saddles]
    if one.kind == "rates":
        written.append(folder / f"{name}-slopes.csv")
        tables.write_csv(written[-1], [row for found in every for row in slope_rows(found)])
    return written


def draw(folder: pathlib.Path, name: str, one: Figure) -> list[pathlib.Path]:
    """Draws the picture of one figure from its tables in ``folder``, and returns its path.

    Args:
      folder: where the tables are.
      name: of the figure.
      one: the figure.

    Raises:
      FileNotFoundError: if a table is missing.
    """
    picture = folder / f"{name}.png"
    runs = tables.read_csv(folder / f"{name}.csv")
    saddles = tables.read_csv(folder / f"{name}-saddle.csv")
    plot = spider_figure.plot_escapes if one.kind == "escape" else spider_figure.plot_rates
    plot(runs, saddles, picture)
    return [picture]


def saddle_rows(found: Escapes) -> list[dict[str, object]]:
    """Returns what the saddle and the minimum are, one row for each n."""
    return [
        {
            "data": found.problem.data,
            "n": size,
            "exact_saddle_gap": f"{land['saddle'] - land['minimum']:.6g}",
            "exact_saddle_min_eigenvalue": f"{land['saddle_eigenvalue']:.6g}",
            "exact_minimum_min_eigenvalue": f"{land['minimum_eigenvalue']:.6g}",
            "exact_saddle_alpha": f"{found.saddle_alpha(size):.6g}",
        }
        for size, land in sorted(found.landscapes.items())
    ]


def seed_rows(found: Escapes) -> list[dict[str, object]]:
    """Returns one row for each method, epsilon, n and seed."""
    rows = []
    for (label, epsilon, size), point in found.points.items():
        numbers = {
            "escaped": [int(yes) for yes in point["escaped"]],
            "iterations_until_out": _ints(point["first_steps"]),
            "records_until_out": _ints(point["first_read"]),
            "steps": point["steps"],
            "records": _ints(point["read"]),
            "exact_gap": _six(found.gaps(label, epsilon, size)),
            "exact_gradient_norm": _six(found.norms(label, epsilon, size)),
            "exact_min_eigenvalue": _six(found.eigenvalues(label, epsilon, size)),
            "exact_alpha": _six(found.alphas(label, epsilon, size)),
            "exact_alpha_on_all_records": _six(found.alphas(label, epsilon, size, of_all=True)),
        }
        shared = {
            "data": found.problem.data,
            "n": size,
            "p": found.dimension,
            "objective": found.problem.objective,
            "relation": found.problem.relation,
            "method": label,
            "epsilon": epsilon,
            "epsilon_of_the_noise": f"{point['epsilon']:.6g}",
        }
        rows += [
            shared | {"seed": seed} | {name: values[seed] for name, values in numbers.items()}
            for seed in range(len(point["escaped"]))
        ]
    return rows


def slope_rows(found: Escapes) -> list[dict[str, object]]:
    """Returns the slope of each method that has one, as ``tables.write_csv`` takes them."""
    fits = {label: spider_claims.fitted(found, label) for label in found.labels}
    return [
        {
            "data": found.problem.data,
            "method": label,
            "epsilon": found.epsilons[-1],
            "slope_of_medians": f"{fit.value:.4g}",
            "slope_of_seeds_low": f"{fit.low:.4g}",
            "slope_of_seeds_high": f"{fit.high:.4g}",
            "share_escaped_at_largest_n": found.share(label, found.epsilons[-1]),
        }
        for label, fit in fits.items()
        if fit is not None
    ]


def lines(one: Figure, every: Sequence[Escapes], methods: Sequence[Method]) -> list[str]:
    """Returns the tables of one figure as lines of Markdown."""
    if one.kind == "escape":
        return [line for found in every for line in _escape_lines(found, methods)]
    return [line for found in every for line in _rate_lines(found)] + spider_bounds.theory_lines(
        every
    )


def _escape_lines(found: Escapes, methods: Sequence[Method]) -> list[str]:
    land = found.landscapes[found.rows]
    read = {method.label: method.records for method in methods}
    text = [
        "Share of the seeds that escaped; median (quartiles) of the first iterate below the "
        "value halfway, never where fewer than half were; and of the records read until then, "
        "over n:",
        "",
    ]
    for words, cell in (
        ("escaped", lambda m, e: f"{found.share(m, e):.0%}"),
        ("iterations until out", lambda m, e: _three(found.iterations(m, e), "{:.0f}")),
        ("records until out / n", lambda m, e: _three(found.read(m, e) / found.rows, "{:.3g}")),
    ):
        text += [
            *page.table(
                [
                    {words: label, "reads": read.get(label, "")}
                    | {f"epsilon {e:g}": cell(label, e) for e in found.epsilons}
                    for label in found.labels
                ]
            ),
            "",
        ]
    text += [
        f"Where the runs end, medians over seeds: gap to the minimum (the saddle's is "
        f"{number(land['saddle'] - land['minimum'])}), gradient norm, lambda_min (at the saddle "
        f"{land['saddle_eigenvalue']:.4f}, at the minimum {land['minimum_eigenvalue']:.4f}):",
        "",
        *page.table(
            [
                {"": label} | {f"epsilon {e:g}": _end(found, label, e) for e in found.epsilons}
                for label in found.labels
            ]
        ),
        "",
        _promised(found),
    ]
    return text


def _end(found: Escapes, label: str, epsilon: float, size: int = 0) -> str:
    gap = number(float(np.median(found.gaps(label, epsilon, size))))
    norm = float(np.median(found.norms(label, epsilon, size)))
    lowest = float(np.median(found.eigenvalues(label, epsilon, size)))
    return f"{gap}, {number(norm) if norm else '0'}, {lowest:+.4f}"


def _promised(found: Escapes) -> str:
    """What theory promises the Spiders, with constants 1, beside what they reach."""
    said = []
    for label in found.labels:
        point = found.points[label, found.epsilons[-1], found.rows]
        if point["promised"] is not None:
            reached = float(np.median(found.alphas(label, found.epsilons[-1])))
            said.append(f"{label} {number(point['promised'])}, reached {number(reached)}")
    return (
        f"The alpha that the single-pass methods are calibrated for at epsilon "
        f"{found.epsilons[-1]:g}, the least that their theory promises with constants 1: "
        + "; ".join(said)
        + ". The saddle itself is an alpha-SOSP for every alpha from "
        f"{number(found.saddle_alpha(found.rows))} on: where that is below the promise, theory "
        "does not say that a method leaves it."
    )


def _rate_lines(found: Escapes) -> list[str]:
    epsilon = found.epsilons[-1]
    text = [
        f"### {found.problem.title}, epsilon {epsilon:g}",
        "",
        "Median over seeds of the least alpha for which the output is an alpha-SOSP of the "
        "objective on the records it was trained on, and the share of seeds out of the saddle; "
        "then the slope, the exponent of 1/n (middle 80 % of the slopes of single seeds), and "
        "whether half of the seeds or more are not out even at the largest n: they compare with no "
        "rate. Each n is one random subset, the same for all seeds and methods.",
        "",
    ]
    fits = {label: spider_claims.fitted(found, label) for label in found.labels}
    rows = []
    for label in found.labels:
        row = {"": label}
        for size in found.sizes:
            alpha = number(float(np.median(found.alphas(label, epsilon, size))))
            row[f"n = {size:,}"] = f"{alpha} ({found.share(label, epsilon, size):.0%})"
        fit = fits[label]
        row["slope"] = "" if fit is None else f"{fit.value:.2f} ({fit.low:.2f} to {fit.high:.2f})"
        if found.share(label, epsilon) <= 0.5:
            row["slope"] += ", at the saddle"
        rows.append(row)
    saddle: dict[str, str] = {"": "the saddle itself"}
    saddle |= {f"n = {size:,}": number(found.saddle_alpha(size)) for size in found.sizes}
    text += [*page.table([*rows, saddle | {"slope": ""}]), ""]
    text += [
        "A method that stays at the saddle has the saddle's alpha, which may well be the least of "
        "all: alpha alone does not say that a minimum was reached.",
        "",
        "Iterations until out (records read by then, over n), medians; then gap, gradient norm and "
        "lambda_min at the end, medians:",
        "",
        *_by_size(found, lambda m, n: _until(found, m, epsilon, n)),
        "",
        *_by_size(found, lambda m, n: _end(found, m, epsilon, n)),
        "",
        f"The same outputs on all {found.rows:,} records, which stand for the population:",
        "",
        *_by_size(
            found,
            lambda m, n: number(float(np.median(found.alphas(m, epsilon, n, of_all=True)))),
        ),
        "",
    ]
    return text


def _by_size(found: Escapes, cell: Callable[[str, int], str]) -> list[str]:
    return page.table(
        [
            {"": label} | {f"n = {size:,}": cell(label, size) for size in found.sizes}
            for label in found.labels
        ]
    )


def _until(found: Escapes, label: str, epsilon: float, size: int) -> str:
    steps = quartiles(found.iterations(label, epsilon, size))[1]
    read = quartiles(found.read(label, epsilon, size))[1] / size
    return f"{steps:.0f} ({read:.3g})" if np.isfinite(steps) else "never"


def _three(values: np.ndarray, form: str) -> str:
    low, middle, high = (form.format(v) if np.isfinite(v) else "never" for v in quartiles(values))
    return "never" if middle == "never" else f"{middle} ({low} to {high})"


def _ints(values: list[float | None]) -> list[object]:
    return ["" if value is None else round(value) for value in values]


def _six(values: np.ndarray) -> list[str]:
    return [f"{value:.6g}" for value in values]
