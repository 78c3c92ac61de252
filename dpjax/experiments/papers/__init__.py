"""NOT PRIVATE: the papers whose tables and figures are reproduced, each one an ``Experiment``."""

from dpjax.experiments.papers import erm, trust_region
from dpjax.experiments.spec import Experiment

PAPERS: dict[str, Experiment] = {
    one.name: one
    for one in (
        trust_region.EXPERIMENT,
        erm.EXPERIMENT,
    )
}
"""The papers, by name. One joins by one line."""

__all__ = ["PAPERS"]
