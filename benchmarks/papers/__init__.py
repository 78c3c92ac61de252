"""NOT PRIVATE: the papers whose tables and figures are reproduced, each one an ``Experiment``."""

import dataclasses

from benchmarks.papers import dpagem, erm, files, perturbed, spider, trust_region
from benchmarks.papers.spec import Experiment, Plan, choice

PAPERS: dict[str, Experiment] = {
    paper.EXPERIMENT.name: paper.EXPERIMENT
    for paper in (trust_region, erm, perturbed, spider, dpagem)
}
"""The papers, by name. One joins by one line."""


def plan(name: str, figure: str = "all", *, quick: bool = False, seeds: int | None = None) -> Plan:
    """Returns what is to be made of a paper, or raises ``ValueError`` before anything is computed.

    >>> plan("trust-region", "fig6").trainings
    450
    """
    chosen = files.plan(PAPERS[choice("paper", name, PAPERS)], figure, quick=quick, seeds=seeds)
    return dataclasses.replace(chosen, words="python -m benchmarks.papers")


__all__ = ["PAPERS", "plan"]
