"""Samplers: they draw batches on device, and describe the sampled release for accounting."""

from dpjax.sampling.factories import full_batch, poisson, without_replacement
from dpjax.sampling.samplers import Batch, FullBatch, Poisson, Sampler, WithoutReplacement
from dpjax.sampling.single_pass import ShuffledRecords, SinglePass, as_shuffled, ordered

__all__ = [
    "Batch",
    "FullBatch",
    "Poisson",
    "Sampler",
    "ShuffledRecords",
    "SinglePass",
    "WithoutReplacement",
    "as_shuffled",
    "full_batch",
    "ordered",
    "poisson",
    "without_replacement",
]
