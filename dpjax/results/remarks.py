"""What is said of a training: what it was, that it may be worthless, and the answers at its end."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from dpjax import _validate, accounting
from dpjax._typing import Array, Relation
from dpjax.accounting import Event, epsilon
from dpjax.algorithms import Algorithm, Status
from dpjax.objectives import describe_penalty
from dpjax.objectives.units import UnitLoss

ANSWERS = {"accuracy": "accuracy", "counted": "count"}
"""Field of a solution -> name of the query whose answer it is, and of its release."""
ENDS = "estimate", "lower", "upper"
"""Names of an answer and of the ends of its confidence interval."""
NOISE_ALONE = (
    "the noisy gradients cannot be told from noise alone: no record contributed, or the gradients "
    "were truly smaller than the noise. Did any record count? The owner can see by "
    "`dpjax data FILE --check` or dpjax.datasets.check"
)
FEW = (
    "only about {:,.0f} of {:,} declared records count, and hardly more than {:,.0f}: the others "
    "are null, or all their features are 0. The owner can see it by `dpjax data FILE --check` or "
    "dpjax.datasets.check"
)
NO_CERTIFICATE = (
    "there is no certificate, because its bounds overflowed: lower the step size, the radius or "
    "the regularization, or start nearer to 0."
)


def remarks(algorithm: Algorithm) -> list[str]:
    """Returns one or two sentences for each weakness that declared numbers alone show.

    Privacy: reads declared numbers only.
    """
    epsilon, delta = map(float, algorithm.declared)
    n = algorithm.queries[0].data_size
    # Ball noise promises no epsilon, and its guarantee says which release meets its delta.
    event = algorithm.event
    if all(release.is_lossless for release in event.releases):
        return []
    sentences = accounting.remarks(epsilon, delta, n)
    p = getattr(algorithm, "subspace_dimension", algorithm.dimension)
    for query in algorithm.queries:
        stddevs = dict(query.components)
        # Of a pass: what a batch lacks in records, the number of batches makes up for.
        noise = stddevs.get("gradient", 0.0) * math.sqrt(p * float(query.divisor) / n)
        if noise and noise > (longest := float(query.bound())):
            sentences.append(
                f"the noise on the mean gradient of a pass over the records has norm {noise:.2g}, "
                f"and no clipped gradient is longer than {longest:.2g}: use fewer than {p:,} "
                "parameters or fewer steps, more records or a larger epsilon."
            )
        if "hessian" in stddevs and p >= 2**15:  # 4 GiB, of which a step holds several
            sentences.append(
                f"a Hessian of {p:,} x {p:,} numbers takes {4 * p**2 / 1e9:,.0f} GB: take "
                "dp_gradient_descent, or dp_subspace_trust_region."
            )
    return sentences


def remarks_of_released(
    evidence: Any, steps: Any, unbounded: bool, n: int = 0, counted: Any = None, most: Any = 1.0
) -> list[str]:
    """Returns what released values say against one training, see ``Solution.remarks``.

    If no record contributed, sums of squares of the answers are chi-square: of each part where it
    was first asked, as gradients are largest there, and of all steps, as small batches need.
    ``NOISE_ALONE`` is said unless one exceeds its quantile, with probability 1e-3 at most by noise
    alone. How long a gradient must be to prevent it: docs/quickstart.md. ``FEW`` is said where
    ``most``, below which noise brings the share ``counted`` of n records with probability 1e-3, is
    less than 0.95.
    """
    asked = (seen := np.asarray(evidence, float)[: int(steps)])[..., 1:] > 0
    first = asked & (np.cumsum(asked, axis=0) == 1)
    sums = np.concatenate([np.where(chosen, seen, 0).sum(axis=0) for chosen in (first, asked)])
    excess, degrees = sums[sums[:, 1] > 0].T
    # The chance of a false remark is shared among the sums.
    limits = special.chdtri(degrees, 1e-3 / max(degrees.size, 1))
    noise_alone = degrees.size and (excess + degrees <= limits).all()
    few = [FEW.format(max(n * counted, 0), n, n * most)] if most < 0.95 else []
    return [NOISE_ALONE] * bool(noise_alone) + few + [NO_CERTIFICATE] * bool(unbounded)


def interval(value: Any, stddev: Any, relation: Relation, confidence: float) -> tuple[Array, Array]:
    """Returns the confidence interval of a fraction, which exceeds 1 only where n is private."""
    # The noise is normal, of a known standard deviation.
    level = (1 + _validate.open_unit("confidence", confidence)) / 2
    half = jax.scipy.special.ndtri(level) * stddev
    most = jnp.inf if relation == "add_or_remove_one" else 1
    return jnp.clip(value - half, 0, most), jnp.clip(value + half, 0, most)


def answer_line(
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


_CLIPPED = "clip_norm", "gradient_weight", "hessian_clip_norm", "hessian_weight"


class Description(NamedTuple):
    """What was trained: names and declared numbers, none of them read off the data.

    ``Solution.description`` is one, and ``save`` writes it.

    Attributes:
      algorithm: its name for people.
      objective: its name.
      unit: what the guarantee protects, such as ``"row"`` or ``"'person' with all its rows"``.
      records: the declared number of them, n.
      delta: of the budget.
      steps: how many were planned.
      penalty: what is added to the loss, with its strength, in words; empty where it is not known.
      clip_norms: bounds on the gradient, and the Hessian, of one record, in words.
      author: who trained it, where that was declared; in a file alone, as the next.
      date: of the day on which it was saved, such as ``"2030-01-31"``.
    """

    algorithm: str
    objective: str
    unit: str
    records: int
    delta: float
    steps: int
    penalty: str = ""
    clip_norms: str = ""
    author: str = ""
    date: str = ""


def describe(algorithm: Algorithm, unit: str) -> Description:
    """Returns the description of one training.

    Privacy: holds public numbers only.
    """
    grouped = isinstance(algorithm.objective.loss, UnitLoss)
    return Description(
        algorithm=algorithm.title,
        objective=algorithm.objective.name,
        unit=f"{unit!r} with all its rows" if grouped else unit,
        records=algorithm.queries[0].data_size,
        # A leaf, so that it is an array once a compiled program has returned the algorithm.
        delta=float(np.asarray(algorithm.declared.delta)),
        steps=int(algorithm.steps),
        penalty=describe_penalty(algorithm.objective.regularizer),
        clip_norms=", ".join(_clip_norms(algorithm)),
    )


def _clip_norms(algorithm: Algorithm) -> Iterator[str]:
    seen: dict[str, set[str]] = {"gradient": set(), "Hessian": set()}
    # A histogram of norms clips none.
    for query in (query for query in algorithm.queries if query.name != "gradient_norms"):
        # These two clip Hessians alone.
        only_hessian = query.name in ("newton_direction", "selection")
        for field in _CLIPPED:
            if (bound := getattr(query, field, None)) is not None:
                of = "Hessian" if only_hessian or "hessian" in field else "gradient"
                said, others = f"{of} {float(np.asarray(bound)):.4g}", seen[of]
                if said not in others:
                    yield f"{said} ({query.name.replace('_', ' ')})" if others else said
                others.add(said)


def status_words(code: Any) -> str:
    """Returns the message of a ``Status``."""
    messages = {status.value: status.message.rstrip(".") for status in Status}
    return messages.get(int(code), "unknown")  # a file may hold any integer


# A card, a guarantee and a page all ask for the same number.
@functools.lru_cache(maxsize=8)
def recounted(event: Event, delta: float, accountant: str) -> float:
    """Returns the epsilon of what was released."""
    return epsilon(event, delta, event.relation, accountant)
