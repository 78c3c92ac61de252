"""Noise multipliers of the exponential mechanism with Gumbel noise."""

import math
from typing import Any

from dpjax import _validate

GUMBEL = math.pi / math.sqrt(6)
"""Standard deviation of Gumbel noise of scale 1."""


def gumbel_multiplier(log_range: float) -> float:
    """Returns the noise multiplier of a selection whose log-ratios spread over ``log_range``.

    Args:
      log_range: the pure epsilon of one selection, above 0.

    Raises:
      ValueError: if it is not a finite number above 0.

    >>> round(gumbel_multiplier(1.0), 4)
    2.5651
    """
    return 2 * GUMBEL / _validate.positive("log_range", log_range)


def gumbel_scale(noise_multiplier: Any) -> Any:
    """Returns the scale of the Gumbel noise over the sensitivity, also of a traced multiplier.

    >>> round(gumbel_scale(gumbel_multiplier(1.0)), 9)
    2.0
    """
    return noise_multiplier / GUMBEL
