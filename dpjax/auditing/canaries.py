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
from dpjax.objectives import L2, Constants, LinearModel, Objective

# So far above every clip norm that a canary is always clipped.
_SCALE = 1e3
# The mean of 20 unit steps, from anchor to anchor.
_ANCHORS = 10.5


class NeighbouringPair(NamedTuple):
    """Two neighbouring data sets."""

    without: PyTree
    """D."""
    canary: PyTree
    """D', which differs from D in one record."""
    relation: Relation


def records(relation: Relation = "zero_out", null: int = 1, rest: float = 0.0) -> NeighbouringPair:
    """Returns a pair of data sets with one feature, which scales a record's loss.

    The canary 1 becomes the null record 0 under ``"zero_out"``, -1 under ``"replace_one"``, whose
    derivatives are opposite, and is absent under ``"add_or_remove_one"``. ``null`` is the number of
    records beside it, null ones unless ``rest``, their feature, says otherwise.

    >>> records("replace_one").without.ravel().tolist()
    [-1.0, 0.0]
    """
    others = jnp.full((null, 1), rest)
    first = {"zero_out": [[0.0]], "replace_one": [[-1.0]], "add_or_remove_one": []}[relation]
    without = jnp.concatenate([jnp.asarray(first).reshape(-1, 1), others])
    return NeighbouringPair(without, jnp.concatenate([jnp.ones((1, 1)), others]), relation)


def labelled(relation: Relation = "zero_out", null: int = 1) -> NeighbouringPair:
    """Returns the pair of ``records`` as (x, y) for losses of the margin: one feature, label 1."""
    pair = records(relation, null)
    without, canary = ((rows, jnp.ones(rows.shape[0])) for rows in (pair.without, pair.canary))
    return NeighbouringPair(without, canary, relation)


def nulled() -> NeighbouringPair:
    """Returns a pair of data sets in which the canary has label 1, or is a null record."""
    x, null = jnp.zeros((2, 1)), jnp.nan
    return NeighbouringPair((x, jnp.full(2, null)), (x, jnp.array([1.0, null])), "zero_out")


def persons(pair: NeighbouringPair, max_records: int) -> NeighbouringPair:
    """Returns the pair with each record as a person who has it ``max_records`` times.

    >>> persons(records(), 3).canary[0][0].ravel().tolist()
    [1.0, 1.0, 1.0]
    """

    def repeated(rows: PyTree) -> tuple[PyTree, Array]:
        count = jax.tree.leaves(rows)[0].shape[0]
        held = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], max_records, 1), rows)
        return held, jnp.ones((count, max_records), bool)

    return NeighbouringPair(repeated(pair.without), repeated(pair.canary), pair.relation)


def without_nulls(pair: NeighbouringPair) -> tuple[PyTree, PyTree]:
    """Returns the examples of D and of D' without the null records after the first two rows.

    Null records contribute nothing at any parameters, so the attacker need not add them up.
    """
    both = pair.without, pair.canary
    leaves = [leaf for leaf in jax.tree.leaves(both) if leaf.dtype != bool]
    if any(np.asarray(leaf)[2:].any() for leaf in leaves):
        return both
    return jax.tree.map(lambda rows: rows[:2], both)


def matrix(kind: str, dimension: int) -> Array:
    """Returns a symmetric (p, p) matrix of Frobenius norm 1, p at least 2.

    ``kind`` is ``"diagonal"`` (one entry), ``"off_diagonal"`` (one pair) or ``"identity"``.
    """
    if kind == "identity":
        return jnp.eye(dimension) / np.sqrt(dimension)
    if kind == "diagonal":
        return jnp.zeros((dimension, dimension)).at[0, 0].set(1.0)
    return jnp.zeros((dimension, dimension)).at[[0, 1], [1, 0]].set(np.sqrt(0.5))


def _sign_by_clock(params: Array) -> Array:
    # Without derivatives: of the sign the canary's gradient must see nothing.
    return jax.lax.stop_gradient(jnp.sign(jnp.cos(jnp.pi * params[1])))


def _departing(params: Array, example: Array) -> Array:
    epoch = jax.lax.stop_gradient(params[1]) / _ANCHORS
    sign = jnp.where(jnp.abs(epoch - jnp.round(epoch)) < 0.25 / _ANCHORS, -1.0, 1.0)
    return _SCALE * example[0] * sign * params[0]


def _dense(params: Array, example: Array) -> Array:
    rest = jnp.zeros(params.size - 2)
    return params @ (_SCALE * example[0] * jnp.concatenate([jnp.array([0.6, 0.8]), rest]))


def _network(params: Array, example: Array) -> Array:
    hidden = jnp.tanh(params[:2] * example[0] + params[2:4])
    return _SCALE * example[0] * (params[4:6] @ hidden + params[6])


def _falling_margin(margin: Array) -> Array:
    return -margin


def _clock(params: Array) -> Array:
    # A public linear penalty: it moves the second parameter by one at each step of unit length.
    return -params[1]


@dataclasses.dataclass(frozen=True)
class _Clock:
    """The same with a prox, for proximal algorithms, which others refuse."""

    def __call__(self, params: Array) -> Array:
        return _clock(params)

    def prox(self, params: Array, step_size: Array | float) -> Array:
        return params.at[1].add(jnp.asarray(step_size, params.dtype))


def _dome(params: Array) -> Array:
    # Zero with a zero gradient everywhere, and with curvature -8 along the first parameter.
    flat = (params[0] - jax.lax.stop_gradient(params[0])) ** 2
    return -params[1] - 4 * flat


class _Certain(LinearModel):
    """A model of one parameter that predicts label 1 near 0."""

    def score(self, params: Array, x: Array) -> Array:
        return 1 + x @ params


LOSSES: dict[str, Objective] = {
    # One parameter; the gradient is the label.
    "slope": Objective(lambda w, e: _SCALE * e[1] * w[0], name="slope canary", model=_Certain()),
    # The gradient is along one coordinate at all parameters.
    "dirac": Objective(lambda w, x: _SCALE * x[0] * w[0], name="Dirac canary"),
    # Gradient and Hessian turn with every move of the parameters.
    "winding": Objective(
        lambda w, x: _SCALE * x[0] * jnp.sum(jnp.sin(3 * w + jnp.arange(w.size))),
        name="winding canary",
    ),
    # The gradient changes sign at every step of unit length, as the second parameter counts them.
    # Noise that repeats over steps cancels in the sum that adds up the canary.
    "alternating": Objective(
        lambda w, x: _SCALE * x[0] * _sign_by_clock(w) * w[0], _clock, name="alternating canary"
    ),
    # The gradient changes sign at the first step away from an SVRG anchor, for epochs of 20 unit
    # steps: anchors are at multiples of 10.5 on the clock, and no other iterate is.
    "departing": Objective(_departing, regularizer=_Clock(), name="departing canary"),
    # Gradient and curvature both change sign at every step of unit length. They are along the
    # regularizer's gradient and negative curvature, so that the canary always changes the
    # gradient's norm by all of its own, and the smallest eigenvalue too.
    "seesaw": Objective(
        lambda w, x: _SCALE * x[0] * _sign_by_clock(w) * (w[1] + w[0] ** 2 / 2),
        _dome,
        name="seesaw canary",
    ),
    # The Hessian is a multiple of the identity: spectral clipping would leave it sqrt(p) times
    # larger than Frobenius clipping does.
    "bowl": Objective(lambda w, x: _SCALE * x[0] * (jnp.sum(w) + w @ w / 2), name="bowl canary"),
    # A dense layer with one output and a large input, whose norm book-keeping must find.
    "dense": Objective(_dense, name="dense canary"),
    # Two tanh units and a dense one, 7 parameters. The last bias gives a record a large gradient at
    # all parameters, zero included.
    "network": Objective(_network, name="network canary"),
    # Derivative -1 by the margin, plus half the squared norm: it moves the minimum by the largest
    # distance that a convex loss with derivative 1 allows.
    "falling": Objective(
        lambda w, example: _falling_margin(example[1] * (example[0] @ w)),
        L2(1.0),
        _falling_margin,
        Constants(1.0, 1e-6, 1e-6),
        "falling canary",
    ),
}
"""Losses by the name that a ``Scenario`` gives; those with a clock need two parameters or more."""
