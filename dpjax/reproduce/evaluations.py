"""NOT PRIVATE in use: how many gradients of one record a training evaluates, from its queries."""

from typing import NamedTuple

from dpjax.algorithms import Algorithm
from dpjax.oracles import MinimizerQuery

# Gradients of each record asked; a second derivative is counted beside its gradient, as none.
_EACH = {"difference": 2, "anchored": 2, "hessian": 0, "newton_direction": 0}


class Evaluations(NamedTuple):
    """Gradient evaluations of a whole training."""

    declared: float
    """Batches counted by their expected size."""
    padded: float
    """As they are computed: batches padded to the most records they hold."""


def evaluations(algorithm: Algorithm) -> Evaluations:
    """Returns the gradient evaluations of a training, declared and computed; on the host.

    Args:
      algorithm: calibrated.

    Reference: the gradient complexity of Wang, Ye and Xu (2017): calls of one record's gradient.
      DP-SVRG takes n T + 2 b m T for T epochs of m steps on batches of b.

    >>> import dpjax
    >>> budget = dpjax.PrivacyBudget(1.0, 1e-3)
    >>> algorithm = dpjax.dp_gradient_descent(
    ...     dpjax.objectives.logistic(), budget, data_size=50, dimension=2, steps=4)
    >>> evaluations(algorithm)
    Evaluations(declared=200.0, padded=200.0)
    """
    counts = {release.name: release.count for release in algorithm.event.releases}
    declared = padded = 0.0
    for query in algorithm.queries:
        each = float(_EACH.get(query.name, 1) * counts.get(query.name, 0))
        if isinstance(query, MinimizerQuery):
            each *= float(query.iterations)
        sampler = query.sampler
        declared += each * float(query.data_size if sampler is None else sampler.expected)
        padded += each * float(query.data_size if sampler is None else sampler.capacity)
        if query.name == "anchored":
            # Its exact gradient at the anchor is no release, and asks all records once an epoch.
            declared += query.data_size * int(algorithm.epochs)  # pyright: ignore
            padded += query.data_size * int(algorithm.epochs)  # pyright: ignore
    return Evaluations(declared, padded)
