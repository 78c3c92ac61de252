"""NOT PRIVATE: the papers whose tables and figures are reproduced, each one an ``Experiment``."""

from dpjax.experiments.papers import dpagem, erm, perturbed, spider, trust_region
from dpjax.experiments.spec import Experiment

PAPERS: dict[str, Experiment] = {
    paper.EXPERIMENT.name: paper.EXPERIMENT
    for paper in (trust_region, erm, perturbed, spider, dpagem)
}
"""The papers, by name. One joins by one line."""

__all__ = ["PAPERS"]
