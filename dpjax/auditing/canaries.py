"""Worst-case neighbouring data sets, and losses that expose them; NOT PRIVATE by design.

The loss is public, so the attacker chooses it: one record, the canary, contributes the full clip
norm at all parameters, and all others contribute nothing.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._typing import Array, PyTree, Relation
from dpjax.objectives import L2, Constants, Objective

_SCALE = 1e3
# The mean of 20 unit steps, from anchor to anchor.
_ANCHORS = 10.5


class NeighbouringPair(NamedTuple):
    """Two neighbouring data sets.

    Attributes:
      without: D.
      canary: D', which differs from D in one record.
      relation: their neighbouring relation.
    """

    without: PyTree
    canary: PyTree
    relation: Relation


def records(relation: Relation = "zero_out", null: int = 1) -> NeighbouringPair:
    """Returns a pair of data sets with one feature, which scales a record's loss.

    Args:
      relation: ``"zero_out"`` (the canary 1 becomes the null record 0), ``"replace_one"`` (it
        becomes -1, whose derivatives are opposite), ``"add_or_remove_one"`` (it is absent).
      null: number of null records beside the canary.

    >>> records("replace_one").without.ravel().tolist()
    [-1.0, 0.0]
    """
    rest = jnp.zeros((null, 1))
    first = {"zero_out": [[0.0]], "replace_one": [[-1.0]], "add_or_remove_one": []}[relation]
    without = jnp.concatenate([jnp.asarray(first).reshape(-1, 1), rest])
    return NeighbouringPair(without, jnp.concatenate([jnp.ones((1, 1)), rest]), relation)


def persons(pair: NeighbouringPair, max_records: int) -> NeighbouringPair:
    """Returns the pair with each record as a person who has it ``max_records`` times.

    >>> persons(records(), 3).canary[0][0].ravel().tolist()
    [1.0, 1.0, 1.0]
    """

    def repeated(rows: Array) -> tuple[Array, Array]:
        count = rows.shape[0]
        return jnp.repeat(rows[:, None], max_records, 1), jnp.ones((count, max_records), bool)

    return NeighbouringPair(repeated(pair.without), repeated(pair.canary), pair.relation)


def without_nulls(pair: NeighbouringPair) -> tuple[PyTree, PyTree]:
    """Returns the examples of D and of D' without the null records after the first two rows.

    Null records contribute nothing at any parameters, so the attacker need not add them up.

    >>> [len(rows) for rows in without_nulls(records(null=9))]
    [2, 2]
    """
    both = pair.without, pair.canary
    leaves = [leaf for leaf in jax.tree.leaves(both) if leaf.dtype != bool]
    if any(np.asarray(leaf)[2:].any() for leaf in leaves):
        return both
    return jax.tree.map(lambda rows: rows[:2], both)


def nulled() -> NeighbouringPair:
    """Returns a pair of data sets in which the canary has label 1, or is a null record.

    >>> nulled().without[1].tolist()
    [nan, nan]
    """
    x, null = jnp.zeros((2, 1)), jnp.nan
    return NeighbouringPair((x, jnp.full(2, null)), (x, jnp.array([1.0, null])), "zero_out")


@dataclasses.dataclass(frozen=True)
class _Certain:
    def parameters(self, features: int) -> int:
        return features

    def score(self, params: Array, x: Array) -> Array:
        return 1 + x @ params


def slope() -> Objective:
    """Returns the loss of one parameter whose gradient is the label; near 0 it predicts label 1.

    >>> jax.grad(slope().loss)(jnp.zeros(1), (jnp.zeros(1), 1.0)).tolist()
    [1000.0]
    """
    return Objective(_slope_loss, name="slope canary", model=_Certain())


def alternating() -> Objective:
    """Returns a loss whose gradient changes sign at every step of unit length; p is at least 2.

    The public regularizer moves the second parameter by one each step, which the canary's loss
    uses as a clock. Noise that repeats over steps then cancels in the sum that adds up the canary.

    >>> objective = alternating()
    >>> jax.grad(objective.loss)(jnp.array([0.0, 1.0]), jnp.ones(1)).tolist()
    [-1000.0, 0.0]
    """
    return Objective(_alternating_loss, regularizer=_clock, name="alternating canary")


def winding() -> Objective:
    """Returns a loss whose gradient and Hessian turn with every move of the parameters.

    >>> bool(jnp.linalg.norm(jax.grad(winding().loss)(jnp.zeros(3), jnp.ones(1))) > 1000)
    True
    """
    return Objective(_winding_loss, name="winding canary")


def dirac() -> Objective:
    """Returns a loss whose gradient is along one coordinate at all parameters.

    >>> jax.grad(dirac().loss)(jnp.ones(3), jnp.ones(1)).tolist()
    [1000.0, 0.0, 0.0]
    """
    return Objective(_dirac_loss, name="Dirac canary")


def dense() -> Objective:
    """Returns a dense layer with one output and a large input, whose norm book-keeping must find.

    >>> jax.grad(dense().loss)(jnp.zeros(2), jnp.ones(1)).tolist()
    [600.0, 800.0]
    """
    return Objective(_dense_loss, name="dense canary")


def network() -> Objective:
    """Returns the output of a network of 7 parameters: two tanh units and a dense one.

    Its last bias gives a record a large gradient at all parameters, including zero.

    >>> jax.grad(network().loss)(jnp.zeros(7), jnp.ones(1)).tolist()[-1]
    1000.0
    """
    return Objective(_network_loss, name="network canary")


def bowl() -> Objective:
    """Returns a loss whose Hessian is a multiple of the identity.

    Spectral clipping would leave it sqrt(p) times larger than Frobenius clipping does.

    >>> jax.hessian(bowl().loss)(jnp.zeros(2), jnp.ones(1)).tolist()
    [[1000.0, 0.0], [0.0, 1000.0]]
    """
    return Objective(_bowl_loss, name="bowl canary")


def seesaw() -> Objective:
    """Returns a loss whose gradient and curvature both change sign at every step of unit length.

    Like ``alternating``, but along the gradient of the public regularizer, so that the canary
    always changes the gradient's norm by all of its own. The regularizer also adds constant
    negative curvature along the first parameter, so that it always changes the smallest eigenvalue.

    >>> jax.hessian(seesaw().loss)(jnp.array([0.0, 1.0]), jnp.ones(1))[0, 0].item()
    -1000.0
    >>> jax.hessian(seesaw().regularizer)(jnp.zeros(2))[0, 0].item()
    -8.0
    """
    return Objective(_seesaw_loss, regularizer=_dome, name="seesaw canary")


def falling() -> Objective:
    """Returns a loss of the margin with derivative -1, plus half the squared norm.

    It moves the minimum by the largest distance that a convex loss with derivative 1 allows.

    >>> falling().margin(jnp.array(2.0)).item()
    -2.0
    """
    return Objective(_falling_loss, L2(1.0), _falling, Constants(1.0, 1e-6, 1e-6), "falling canary")


def labelled(relation: Relation = "zero_out", null: int = 1) -> NeighbouringPair:
    """Returns the pair of ``records`` as (x, y) for losses of the margin: one feature, label 1.

    The arguments are those of ``records``.

    >>> labelled().canary[0].ravel().tolist()
    [1.0, 0.0]
    """
    pair = records(relation, null)
    without, canary = ((rows, jnp.ones(rows.shape[0])) for rows in (pair.without, pair.canary))
    return NeighbouringPair(without, canary, relation)


def departing() -> Objective:
    """Returns a loss whose gradient changes sign at the first step away from an SVRG anchor.

    For epochs of 20 unit steps and p of at least 2. The public regularizer, by its proximal
    operator, moves the second parameter by one each step, so that anchors are at multiples of 10.5
    and no other iterate is.

    >>> gradient = jax.grad(departing().loss)
    >>> [gradient(jnp.array([0.0, at]), jnp.ones(1))[0].item() for at in (10.5, 11.5, 21.0)]
    [-1000.0, 1000.0, -1000.0]
    """
    return Objective(_departing_loss, regularizer=_Clock(), name="departing canary")


def matrix(kind: str, dimension: int) -> Array:
    """Returns a symmetric matrix of Frobenius norm 1.

    Args:
      kind: ``"diagonal"`` (one entry), ``"off_diagonal"`` (one pair) or ``"identity"``.
      dimension: p, at least 2.

    >>> matrix("identity", 4)[0, 0].item()
    0.5
    """
    if kind == "identity":
        return jnp.eye(dimension) / np.sqrt(dimension)
    if kind == "diagonal":
        return jnp.zeros((dimension, dimension)).at[0, 0].set(1.0)
    return jnp.zeros((dimension, dimension)).at[[0, 1], [1, 0]].set(np.sqrt(0.5))


def _falling(margin: Array) -> Array:
    return -margin


def _falling_loss(params: Array, example: tuple[Array, Array]) -> Array:
    x, y = example
    return _falling(y * (x @ params))


def _alternating_loss(params: Array, example: Array) -> Array:
    sign = jnp.sign(jnp.cos(jnp.pi * params[1]))
    return _SCALE * example[0] * jax.lax.stop_gradient(sign) * params[0]


@dataclasses.dataclass(frozen=True)
class _Clock:
    """The linear penalty of ``alternating`` with a prox, for proximal algorithms."""

    def __call__(self, params: Array) -> Array:
        return _clock(params)

    def prox(self, params: Array, step_size: Array | float) -> Array:
        return params.at[1].add(jnp.asarray(step_size, params.dtype))


def _departing_loss(params: Array, example: Array) -> Array:
    epoch = jax.lax.stop_gradient(params[1]) / _ANCHORS
    sign = jnp.where(jnp.abs(epoch - jnp.round(epoch)) < 0.25 / _ANCHORS, -1.0, 1.0)
    return _SCALE * example[0] * sign * params[0]


def _seesaw_loss(params: Array, example: Array) -> Array:
    sign = jax.lax.stop_gradient(jnp.sign(jnp.cos(jnp.pi * params[1])))
    return _SCALE * example[0] * sign * (params[1] + params[0] ** 2 / 2)


def _dome(params: Array) -> Array:
    flat = (params[0] - jax.lax.stop_gradient(params[0])) ** 2
    return -params[1] - 4 * flat


def _clock(params: Array) -> Array:
    return -params[1]


def _winding_loss(params: Array, example: Array) -> Array:
    return _SCALE * example[0] * jnp.sum(jnp.sin(3 * params + jnp.arange(params.size)))


def _slope_loss(params: Array, example: tuple[Array, Array]) -> Array:
    return _SCALE * example[1] * params[0]


def _dirac_loss(params: Array, example: Array) -> Array:
    return _SCALE * example[0] * params[0]


def _dense_loss(params: Array, example: Array) -> Array:
    rest = jnp.zeros(params.size - 2)
    return params @ (_SCALE * example[0] * jnp.concatenate([jnp.array([0.6, 0.8]), rest]))


def _network_loss(params: Array, example: Array) -> Array:
    hidden = jnp.tanh(params[:2] * example[0] + params[2:4])
    return _SCALE * example[0] * (params[4:6] @ hidden + params[6])


def _bowl_loss(params: Array, example: Array) -> Array:
    return _SCALE * example[0] * (jnp.sum(params) + params @ params / 2)
