"""Claims of Gaussian releases by their numbers; NOT PRIVATE."""

from dpjax._typing import Relation
from dpjax.accounting import Event
from dpjax.accounting.claims import Claim
from dpjax.sampling import FullBatch, Poisson

GaussianClaim = Claim
"""The claim of Gaussian releases; it is one class, whose curve is exact for them."""


class SampledGaussianClaim(Claim):
    """Gaussian releases of Poisson samples, by their numbers.

    Args:
      noise_multiplier: standard deviation over the norm of one record's contribution.
      sampling_probability: q, of each record in each release; 1 for no sampling.
      count: number of releases.
      relation: one record more or less: ``"add_or_remove_one"`` or ``"zero_out"``.

    >>> claim = SampledGaussianClaim(0.5, 0.1, 1)
    >>> round(claim.epsilon(1e-5), 2), round(float(claim.curve()(0.02)), 3)
    (6.58, 0.934)
    """

    def __init__(
        self,
        noise_multiplier: float,
        sampling_probability: float,
        count: int,
        relation: Relation = "add_or_remove_one",
    ):
        if relation == "replace_one":
            raise ValueError(
                "relation='replace_one' moves two records of a sample, which this claim does not "
                "cover; use 'zero_out' or 'add_or_remove_one'."
            )
        sampler = FullBatch(1)
        if sampling_probability < 1:
            # As the sampler holds it, an integer over 2^64.
            threshold = round(sampling_probability * 2**64)
            sampler = Poisson.of(threshold, 1.0, max_batch_size=1, data_size=1)
        release = sampler.release(
            "gaussian", count, noise_multiplier=noise_multiplier, relation=relation
        )
        super().__init__(Event((release,), relation))
