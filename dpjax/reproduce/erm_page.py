"""NOT PRIVATE: files and lines of the convex ERM paper's tables."""

import math
import pathlib
from collections.abc import Sequence

from dpjax.reproduce import erm_claims, page, risk_figure, tables
from dpjax.reproduce.erm import Method
from dpjax.reproduce.page import number
from dpjax.reproduce.risks import Risks
from dpjax.reproduce.study import TRACED_EPSILON, Figure


def files(
    folder: pathlib.Path,
    name: str,
    one: Figure,
    every: Sequence[Risks],
    methods: Sequence[Method],
) -> list[pathlib.Path]:
    """Writes the picture and the tables of one figure, and returns their paths.

    Args:
      folder: where to.
      name: of the figure.
      one: the figure.
      every: the results on its problems.
      methods: all of the paper's.
    """
    del methods
    means, seeds = folder / f"{name}.csv", folder / f"{name}-seeds.csv"
    tables.write_csv(means, [row for found in every for row in mean_rows(found)])
    tables.write_csv(seeds, [row for found in every for row in seed_rows(found)])
    return [*draw(folder, name, one), means, seeds]


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
    means = tables.read_csv(folder / f"{name}.csv")
    seeds = len(tables.read_csv(folder / f"{name}-seeds.csv").words("seed"))
    risk_figure.plot_risks(means, one.epsilons, seeds, picture)
    return [picture]


def mean_rows(found: Risks) -> list[dict[str, object]]:
    """Returns one row for each method and epsilon."""
    return [
        {
            **_problem(found),
            "method": label,
            "epsilon": epsilon,
            "epsilon_of_the_noise": f"{point['epsilon']:.6g}",
            "exact_excess_risk": f"{found.mean(label, epsilon):.6g}",
            "standard_error": f"{found.error(label, epsilon):.3g}",
            "gradient_evaluations": f"{point['declared']:.0f}",
            "gradient_evaluations_computed": f"{point['padded']:.0f}",
            "steps": point["steps"],
            "settings": _words(point["settings"]),
        }
        for (label, epsilon), point in found.points.items()
    ]


def seed_rows(found: Risks) -> list[dict[str, object]]:
    """Returns one row for each method, epsilon and seed."""
    return [
        {
            **_problem(found),
            "method": label,
            "epsilon": epsilon,
            "seed": seed,
            "exact_excess_risk": f"{gap:.6g}",
        }
        for label, epsilon in found.points
        for seed, gap in enumerate(found.gaps(label, epsilon))
    ]


def lines(one: Figure, every: Sequence[Risks], methods: Sequence[Method]) -> list[str]:
    """Returns the tables of one figure as lines of Markdown."""
    del one
    text = []
    for found in every:
        text += [f"### {found.problem.title}", "", "Excess risk, mean (standard error):", ""]
        text += [*page.table([_risks(found, label) for label in found.methods]), ""]
        text += ["Gradient evaluations over n, declared (computed):", ""]
        text += [*page.table([_passes(found, label) for label in found.methods]), ""]
        text += [_dominated(found), ""]
        text += _absent(found, methods)
        text += ["The paper's bounds, and the exponent of epsilon measured here:", ""]
        text += [*page.table(_bounds(found)), ""]
    return text


def _problem(found: Risks) -> dict[str, object]:
    problem = found.problem
    return {
        "data": problem.data,
        "n": found.rows,
        "p": found.dimension,
        "objective": problem.what,
        "relation": problem.relation,
    }


def _risks(found: Risks, label: str) -> dict[str, str]:
    row = {"": label}
    for epsilon in found.epsilons:
        mean, error = found.mean(label, epsilon), found.error(label, epsilon)
        spread = "" if math.isnan(error) else f" ({number(error)})"
        row[f"epsilon {epsilon:g}"] = number(mean) + spread
    return row


def _passes(found: Risks, label: str) -> dict[str, str]:
    row = {"": label}
    for epsilon in found.epsilons:
        declared, padded = found.declared(label, epsilon), found.padded(label, epsilon)
        more = "" if padded == declared else f" ({padded / found.rows:.3g})"
        row[f"epsilon {epsilon:g}"] = f"{declared / found.rows:.3g}{more}"
    epsilon = TRACED_EPSILON if TRACED_EPSILON in found.epsilons else found.epsilons[-1]
    point = found.points[label, epsilon]
    settings, tried = _words(point["settings"]) or "from theory", len(point["tried"])
    return row | {
        f"settings at {epsilon:g}": f"{settings} (best of {tried})" if tried else settings
    }


def _dominated(found: Risks) -> str:
    said = []
    for epsilon in found.epsilons:
        worse = erm_claims.dominated(found, epsilon)
        best = [label for label in found.methods if label not in worse]
        said.append(f"at epsilon {epsilon:g}: {', '.join(best)}")
    return (
        "Not beaten in risk by any method of no more gradient evaluations, " + "; ".join(said) + "."
    )


def _absent(found: Risks, methods: Sequence[Method]) -> list[str]:
    problem = found.problem
    absent = [
        f"- {method.label}: n/a, {method.refused[problem.kind]}."
        for method in methods
        if problem.kind in method.refused and method.label in problem.methods
    ]
    return [*absent, ""] if absent else []


def _bounds(found: Risks) -> list[dict[str, object]]:
    rows = []
    for bound in erm_claims.bounds(found):
        measured = found.exponent(bound.method)
        rows.append(
            {
                "method": bound.method,
                "whose bound": bound.source,
                "excess risk": bound.risk,
                "exponent": f"{bound.exponent:.2g}",
                "measured": "" if measured is None else f"{measured:.2f}",
                "gradient evaluations": bound.evaluations,
                "non-smooth": bound.non_smooth,
            }
        )
    return rows


def _words(settings: dict[str, object]) -> str:
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in settings.items()
    )
