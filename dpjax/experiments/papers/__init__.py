"""NOT PRIVATE: the papers whose tables and figures are reproduced, each one an ``Experiment``."""

from dpjax.experiments.papers import dpagem, erm, perturbed, spider, trust_region
from dpjax.experiments.spec import Experiment

PAPERS: dict[str, Experiment] = {
    one.name: one
    for one in (
        trust_region.EXPERIMENT,
        erm.EXPERIMENT,
        perturbed.EXPERIMENT,
        spider.EXPERIMENT,
        dpagem.EXPERIMENT,
    )
}
"""The papers, by name. One joins by one line."""

__all__ = ["PAPERS"]
