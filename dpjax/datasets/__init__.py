"""Named data sets, synthetic ones, and users' own tables: ``load``, ``describe``, ``check``."""

from dpjax.datasets.check import CheckReport, check
from dpjax.datasets.dataset import Dataset, Preprocessing
from dpjax.datasets.labels import encode_labels
from dpjax.datasets.loaders import describe, load
from dpjax.datasets.registry import COVTYPE_RANGES, RANDHIE_RANGES, DatasetInfo
from dpjax.datasets.scaled import write
from dpjax.datasets.schema import Schema
from dpjax.datasets.synthetic import Planted, planted_phases, sparse_high_dimensional
from dpjax.datasets.template import template
from dpjax.datasets.units import group

__all__ = [
    "COVTYPE_RANGES",
    "RANDHIE_RANGES",
    "CheckReport",
    "Dataset",
    "DatasetInfo",
    "Planted",
    "Preprocessing",
    "Schema",
    "check",
    "describe",
    "encode_labels",
    "group",
    "load",
    "planted_phases",
    "sparse_high_dimensional",
    "template",
    "write",
]
