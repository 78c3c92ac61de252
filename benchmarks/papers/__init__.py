"""NOT PRIVATE: the papers whose tables and figures are reproduced, each one an ``Experiment``."""

import dataclasses
import difflib

from benchmarks.papers import dpagem, erm, perturbed, spider, trust_region
from dpjax import experiments
from dpjax.experiments import Experiment, Plan

PAPERS: dict[str, Experiment] = {
    paper.EXPERIMENT.name: paper.EXPERIMENT
    for paper in (trust_region, erm, perturbed, spider, dpagem)
}
"""The papers, by name. One joins by one line."""


def plan(name: str, figure: str = "all", *, quick: bool = False, seeds: int | None = None) -> Plan:
    """Returns what is to be made of a paper, or raises ``ValueError`` before anything is computed.

    >>> plan("trust-region", "fig6").trainings
    350
    """
    if name not in PAPERS:
        near = difflib.get_close_matches(name, PAPERS, n=1)
        guess = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(f"unknown paper {name!r}{guess} Choose from: {', '.join(PAPERS)}.")
    chosen = experiments.plan(PAPERS[name], figure, quick=quick, seeds=seeds)
    return dataclasses.replace(chosen, words="python -m benchmarks.papers")


__all__ = ["PAPERS", "plan"]
