"""Samplers: they draw batches on device, and describe the sampled release for accounting."""

from dpjax.sampling.factories import fixed_size, full_batch, poisson
from dpjax.sampling.poisson_batches import Poisson
from dpjax.sampling.samplers import Batch, FixedSize, FullBatch, Sampler
from dpjax.sampling.single_pass import Ordered, SinglePass, as_ordered, ordered

__all__ = [
    "Batch",
    "FixedSize",
    "FullBatch",
    "Ordered",
    "Poisson",
    "Sampler",
    "SinglePass",
    "as_ordered",
    "fixed_size",
    "full_batch",
    "ordered",
    "poisson",
]
