"""NOT PRIVATE: algorithms side by side on a table of your own, as an experiment."""

import itertools
from collections.abc import Sequence

from dpjax._typing import Relation
from dpjax.datasets import Dataset
from dpjax.experiments import page
from dpjax.experiments.claims import number, percent
from dpjax.experiments.figures import Lines, Picture
from dpjax.experiments.metrics import POINT
from dpjax.experiments.spec import Experiment, Figure, Method, Problem
from dpjax.objectives import Objective

_WORDS = (
    "All settings are the algorithms' defaults, untuned: on other data the order may be another. "
    "Nothing here is private: all values are exact values of the records, and choosing an "
    "algorithm by them is a release. Look only at data that may be looked at."
)


def against_epsilon(problem: Problem, caption: str = "") -> Figure:
    """Returns the figure of a problem: each exact metric against epsilon, and its table.

    Args:
      problem: with ``metrics``.
      caption: one line.

    >>> figure = against_epsilon(Problem("mine", "logistic", reference="descents"))
    >>> [panel.y for panel in figure.picture.panels]
    ['exact_gap']
    """
    panels, tables = [], []
    for metric in (name for name in problem.metrics if name in POINT):
        share, gap = metric.endswith("accuracy"), metric == "exact_value" and problem.reference
        name = "exact_gap" if gap else metric
        words = name.removeprefix("exact_").replace("_", " ")
        panels.append(Lines(name, words.capitalize(), ylabel=f"exact {words}", percent=share,
                            yscale="log" if gap or "norm" in name else "linear"))  # fmt: skip
        cell = page.mean(name, percent if share else number, error=not share)
        spread = "" if share else ", mean (standard error)"
        tables.append(page.Grid(f"{words.capitalize()}{spread}:", cell))
    title = "{problem}: n = {n:,}, p = {p}, {relation}; {exact}\nmean of {seeds}, band: the "
    picture = Picture(f"{title}middle 80 %", tuple(panels))
    return Figure(caption or "Exact values against epsilon.", (problem,), picture, tuple(tables))


def compare(
    data: Dataset,
    objective: Objective | str = "logistic-nonconvex",
    algorithms: Sequence[str] = ("dp-tr", "dp-adam"),
    epsilons: Sequence[float] = (0.5, 1.0, 2.0),
    *,
    delta: float | None = None,
    relation: Relation = "zero_out",
    seeds: int = 10,
) -> Experiment:
    """Returns the experiment of algorithms with their defaults on records that may be looked at.

    Args:
      data: as ``dpjax.datasets.load`` gives it.
      objective: what is minimised; a name in ``OBJECTIVES``, or one of your own.
      algorithms: names as in ``dpjax run``.
      epsilons: where.
      delta: of every budget; None for 1/(10 n).
      relation: the neighbours.
      seeds: runs of each point.

    Raises:
      ValueError: before anything is trained: for an unknown name, a budget that cannot be met, an
        algorithm that needs more than its defaults, or data that are grouped into units.

    Privacy: NOT PRIVATE: what ``run`` makes of it holds exact values of the records.

    >>> import dpjax
    >>> data = dpjax.datasets.load("randhie")
    >>> experiment = compare(data, "logistic", ["dp-gd", "dp-tr"], [1.0], seeds=3)
    >>> dpjax.experiments.plan(experiment).trainings
    6
    """
    if not algorithms or not epsilons:
        raise ValueError("algorithms and epsilons must name one at least.")
    if data.present is not None:
        raise ValueError(
            f"a comparison is of single records, and a row of the data is a {data.unit} with "
            "several: load the table without a unit."
        )
    methods = tuple(Method(name, name) for name in dict.fromkeys(algorithms))
    loss = Problem(data.name, objective).loss
    metrics = ("exact_value", *(["exact_accuracy"] if loss.predicts else []))
    problem = Problem(
        data.name, objective, records=data, epsilons=tuple(sorted(set(map(float, epsilons)))),
        delta=delta, relation=relation, reference="descents" if loss.margin is not None else "",
        metrics=(*metrics, "exact_gradient_norm", "steps", "passes", "epsilon_of_the_noise"),
    )  # fmt: skip
    sizes = {"data_size": data.size, "dimension": loss.parameters(data.dimension)}
    for method, epsilon in itertools.product(methods, problem.epsilons):
        method.make(loss, problem.budget(epsilon, data.size), **sizes)
    return Experiment(
        "compare", f"{', '.join(m.label for m in methods)} on {data.name}", methods,
        {"compare": against_epsilon(problem)}, settings=_WORDS, seeds=seeds,
        conventions=f"Neighbours are {relation}, delta = "
        f"{problem.budget(1.0, data.size).delta:.3g}; the unit of privacy is one {data.unit}.",
    )  # fmt: skip
