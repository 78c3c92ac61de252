"""Problems with a strict saddle at 0 that is known in closed form: start there and escape.

``welsch`` (beside the other losses of the margin), ``phase_retrieval``, ``pca``, ``low_rank`` and
``two_layer``. At params = 0 the gradient of every record is exactly 0, so that nothing but the
curvature, or noise, leads away; each docstring states the smallest eigenvalue of the Hessian there.
All are even, L(w) = L(-w): minima come in pairs.
``dpjax.diagnostics.exact_landscape`` computes these facts from raw data.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._typing import Array, Params
from dpjax.objectives.model import Model, Unlabelled
from dpjax.objectives.objective import Defaults, Objective
from dpjax.objectives.regularizers import L2, Quartic

# Midway between the two largest eigenvalues of X'X/n of the data as ``datasets.load`` scales them,
# computed once by numpy.linalg.eigvalsh in float64 and rounded to 4 digits. Published numbers, like
# the bounds of the features: the guarantee takes them as constants. Half the distance between the
# two eigenvalues is how negative the curvature at w = 0 then is.
_WELSCH_REGULARIZATION = {
    "randhie": 0.3223,  # 0.51656 and 0.12810, n = 20,190: curvature -0.1943
    "ijcnn1": 0.1045,  # 0.11451 and 0.09442, n = 35,000: curvature -0.0100
    "covtype": 0.3729,  # 0.63594 and 0.10984, n = 581,012: curvature -0.2630
    "covtype-12": 0.3729,  # the same features
}


def welsch_regularization(data: str) -> float:
    """Returns the public strength at which ``welsch`` has one negative direction at w = 0.

    Args:
      data: name of a data set.

    Raises:
      ValueError: if none is stored. Reading it off private data would be a release.

    Privacy: published constants; reads no data.

    >>> welsch_regularization("ijcnn1")
    0.1045
    """
    if data not in _WELSCH_REGULARIZATION:
        known = ", ".join(_WELSCH_REGULARIZATION)
        raise ValueError(
            f"the Welsch loss has no public regularization for {data!r}, only for {known}: "
            "give one between the two largest eigenvalues of X'X/n that is not read off private "
            "records: welsch(regularization=...), or --regularization on the command line."
        )
    return _WELSCH_REGULARIZATION[data]


@dataclasses.dataclass(frozen=True)
class PhaseLoss:
    """(<a, w>^2 - |b|)^2 / 4 of the record (a, b)."""

    def __call__(self, params: Array, example: tuple[Array, Array]) -> Array:
        a, b = example
        return (jnp.dot(a, params) ** 2 - jnp.abs(b)) ** 2 / 4


def phase_retrieval() -> Objective:
    """Returns (<a, w>^2 - |b|)^2 / 4 of records (a, b): find w from intensities without phase.

    The labels -1 and +1 of an ordinary data set mean intensity 1; ``datasets.planted_phases`` makes
    records with a known solution. At w = 0 the gradient is 0 and the Hessian minus the mean of
    |b| a a': its smallest eigenvalue is minus the largest of that matrix. Planted minima are +-w*,
    of value 0.

    Its derivatives grow without bound, so there are no constants. The default clip norms, 2 and 4,
    and the other defaults are for intensities of 1 and |a| <= 1: even clipping both jointly changes
    no record with |<a, w>| <= 5/4. For others scale them: at w = 0 one Hessian has norm |b| |a|^2,
    and a clip norm far below that erases the negative curvature.

    Reference: Sun, Qu and Wright (2018), A geometric analysis of phase retrieval.

    >>> loss = phase_retrieval()
    >>> print(loss(jnp.array([2.0]), (jnp.ones(1), jnp.array(-1.0))))
    2.25
    """
    defaults = Defaults(clip_norm=2.0, hessian_clip_norm=4.0, step_size=0.5, initial_gap=0.25)
    return Objective(PhaseLoss(), name="phase-retrieval", model=Unlabelled(), defaults=defaults)


@dataclasses.dataclass(frozen=True)
class LowRankLoss:
    """-|U'x|^2 / 2 of one record, for U of shape (p, rank), or flat."""

    rank: int

    def __call__(self, params: Array, example: tuple[Array, Array]) -> Array:
        x, y = example
        value = -jnp.sum((x @ params.reshape(x.size, self.rank)) ** 2) / 2
        # As of every margin loss, an impossible label makes a null record.
        return jnp.where(jnp.abs(y) == 1, value, jnp.nan)


def _minus_half_square(m: Array) -> Array:
    return -m * m / 2


def pca() -> Objective:
    """Returns |S - u u'|^2 / 4 with S = X'X/n, less the constant |S|^2 / 4: the first component.

    The data term is -<x, u>^2 / 2 of each record, a loss of the margin, and |u|^4 / 4 reads no
    record. With eigenvalues l1 > l2 >= ... of S and unit eigenvectors v1, v2, ..., the stationary
    points are 0 and +-sqrt(li) vi. At 0 the smallest eigenvalue of the Hessian is -l1, at
    sqrt(li) vi it is li - l1, and at the minima +-sqrt(l1) v1 it is the lesser of l1 - l2 and
    2 l1; their value is -l1^2 / 4. It is the same for both labels and predicts none.

    The gradient of a record is at most |u|, so there are constants only where |u| is bounded. The
    default clip norms, both the root of 2, change no record with |x| <= 1 and |u| <= 1, not even by
    clipping both jointly; and |u| <= 1 at every stationary point.

    >>> objective = pca()
    >>> u = jnp.array([1.0, 1.0])
    >>> print(objective(u, (u, jnp.array(1.0))), objective.regularizer(u))
    -2.0 1.0
    """
    defaults = low_rank(1).defaults
    return Objective(
        LowRankLoss(1), Quartic(), _minus_half_square, None, "pca", Unlabelled(), defaults
    )


def low_rank(rank: int) -> Objective:
    """Returns |S - U U'|^2 / 4 in the Frobenius norm, less |S|^2 / 4: ``rank`` components.

    ``pca`` for parameters U of shape (p, rank), or flat as (p * rank,). At U = 0 the smallest
    eigenvalue of the Hessian is minus the largest of S = X'X/n, ``rank`` times. The minima are
    V sqrt(D) Q for the first ``rank`` eigenvectors V and eigenvalues D of S and every rotation Q,
    so that for a rank above 1 the smallest eigenvalue there is 0.

    Args:
      rank: number of columns of U.

    Raises:
      ValueError: if rank is not a whole number of at least 1.

    >>> low_rank(2).parameters(10)
    20
    """
    rank = _validate.positive_int("rank", rank)
    # One Hessian is minus the identity of size rank times x x', of norm sqrt(rank) |x|^2, and one
    # gradient at most 1 where U is at most 1; the root of 2 is for both in one joint norm.
    defaults = Defaults(math.sqrt(2), math.sqrt(2 * rank), step_size=1 / 3, initial_gap=0.25)
    return Objective(
        LowRankLoss(rank), Quartic(rank), name="low-rank", model=Unlabelled(rank), defaults=defaults
    )


@dataclasses.dataclass(frozen=True)
class TwoLayer(Model):
    """The network f(x) = sum of a_j tanh(<w_j, x>), its parameters all w_j, then all a_j, flat.

    >>> print(TwoLayer(2).score(jnp.array([1.0, 2.0, 1.0, -1.0]), jnp.zeros((3, 1))))
    [0. 0. 0.]
    """

    hidden: int

    def parameters(self, features: int) -> int:
        return self.hidden * (features + 1)

    def score(self, params: Array, x: Array) -> Array:
        """Returns f of the rows of ``x``, (n,), or of one row, ()."""
        inner, outer = params[: -self.hidden], params[-self.hidden :]
        return jnp.tanh(x @ inner.reshape(self.hidden, x.shape[-1]).T) @ outer


@dataclasses.dataclass(frozen=True)
class TwoLayerLoss:
    """The logistic loss of y f(x)."""

    network: TwoLayer

    def __call__(self, params: Params, example: tuple[Array, Array]) -> Array:
        x, y = example
        possible = jnp.abs(y) == 1
        margin = jnp.where(possible, y, 1) * self.network.score(params, x)
        # As in the margin losses, an impossible label makes the loss NaN and its derivatives 0.
        return jnp.where(possible, jax.nn.softplus(-margin), jnp.nan)


def two_layer(hidden: int = 4, regularization: float = 1e-2) -> Objective:
    """Returns the logistic loss of a network with one layer of ``hidden`` tanh neurons.

    Its parameters are one vector: ``hidden`` rows of p inner weights, then ``hidden`` outer ones.
    At 0 all neurons are duplicates of one that does nothing: the gradient is 0, and the smallest
    eigenvalue of the Hessian is ``regularization`` - |mean of y x| / 2, ``hidden`` times. Only the
    products a_j w_j have a mixed derivative there.

    The gradient grows with the outer weights, so there are no constants. The default clip norms, 2
    and the root of 2 ``hidden``, are for |x| <= 1: a Hessian at 0 has half that norm, and with the
    default regularization few records of the data sets here exceed either at a minimum.

    Args:
      hidden: number of neurons.
      regularization: strength of an l2 penalty, so that minima exist.

    Raises:
      ValueError: if hidden is not a whole number of at least 1.

    >>> objective = two_layer(hidden=3)
    >>> objective.parameters(10)
    33
    """
    network = TwoLayer(_validate.positive_int("hidden", hidden))
    defaults = Defaults(2.0, math.sqrt(2 * hidden), step_size=1.0, initial_gap=math.log(2))
    penalty = L2(regularization)
    return Objective(
        TwoLayerLoss(network), penalty, name="two-layer", model=network, defaults=defaults
    )
