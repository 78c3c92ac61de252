"""Who is in a batch: samplers that draw on device, and make the release that their draw is."""

from dpjax.sampling.factories import fixed_size, full_batch, poisson
from dpjax.sampling.samplers import Batch, FixedSize, FullBatch, Poisson, Sampler

__all__ = [
    "Batch",
    "FixedSize",
    "FullBatch",
    "Poisson",
    "Sampler",
    "fixed_size",
    "full_batch",
    "poisson",
]
