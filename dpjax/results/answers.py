"""What a training may release of its records at its end: noisy fractions of them, in words."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._typing import Array, Relation

ANSWERS = {"accuracy": "accuracy", "counted": "count"}
"""Field of a solution -> name of the query whose answer it is, and of its release."""
ENDS = "estimate", "lower", "upper"
"""Names of an answer and of the ends of its confidence interval."""


def interval(value: Any, stddev: Any, relation: Relation, confidence: float) -> tuple[Array, Array]:
    """Returns the confidence interval of a fraction, which exceeds 1 only where n is private."""
    # The noise is normal, of a known standard deviation.
    level = (1 + _validate.open_unit("confidence", confidence)) / 2
    half = jax.scipy.special.ndtri(level) * stddev
    most = jnp.inf if relation == "add_or_remove_one" else 1
    return jnp.clip(value - half, 0, most), jnp.clip(value + half, 0, most)


def line(
    field: str,
    n: int,
    numbers: Mapping[str, Any],
    each: Callable[..., str] = lambda number, show: show(number),
) -> str:
    """Returns the answer of n records and the ends of its 95 % interval, for people."""
    # Noise may carry a fraction out of [0, 1]; what is shown stays within.
    title, of, show = "accuracy on the training records", "", lambda x: f"{max(min(x, 1), 0):.3f}"
    if field == "counted":
        title, of, show = "records that count", f" of {n:,}", lambda x: f"{max(n * x, 0):,.0f}"
    estimate, low, high = (each(numbers[name], show) for name in ENDS)
    spread = f"95% confidence interval {low} to {high}; released with noise"
    return f"{title}: {estimate}{of} ({spread})"
