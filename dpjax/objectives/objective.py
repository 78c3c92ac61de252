"""``Objective``: the loss of one example, its regularizer, and the constants theory needs."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax import _validate
from dpjax._typing import Array, Loss, Params
from dpjax.datasets.rows import Rows
from dpjax.display.cards import Card, HasCard
from dpjax.objectives.keyed import KeyedLoss, takes_key
from dpjax.objectives.linear import LinearLoss, Margin, Signs, Weighted
from dpjax.objectives.model import LinearModel, Model
from dpjax.objectives.regularizers import L2, PENALTIES, ExceptIntercept, prox_zero
from dpjax.objectives.units import REDUCTIONS, UnitLoss

Regularizer = Callable[[Params], Array]
_WEIGHTS = (
    "class weights are one declared number above 0 for each class, of a loss of linear scores, not "
    "of {}: those balanced by the labels would read them, so take private counts by `dpjax "
    "describe`; of a network weight your own loss. Weights of records come last, before units."
)


class Constants(NamedTuple):
    """Bounds on the data term for one record with |x| <= 1; the regularizer is excluded.

    ``hessian_lipschitz`` is infinite where the Hessian jumps.
    """

    lipschitz: float
    smoothness: float
    hessian_lipschitz: float


class Defaults(NamedTuple):
    """Public numbers to start from where no constants hold for all parameters.

    Args:
      clip_norm: bound on one record's gradient that leaves curvature and minima in place.
      hessian_clip_norm: the same for the Frobenius norm of one record's Hessian.
      step_size: of gradient descent.
      initial_gap: bound on L(0) - min L.
    """

    clip_norm: float
    hessian_clip_norm: float
    step_size: float
    initial_gap: float


@dataclasses.dataclass(frozen=True)
class LossOfScores:
    """The loss of one record (x, y) that a ``LinearLoss`` has at the scores of its features.

    A record with a label that does not count has the loss NaN, hence contributes nothing.

    Args:
      form: the loss of the scores.
    """

    form: LinearLoss

    def __call__(self, params: Array, example: tuple[Array, Array]) -> Array:
        """Returns the loss, shape (), of features (p,) and a label ()."""
        x, y = example
        labels, outputs = self.form.labels, self.form.outputs
        counts = labels.accepts(y)
        # 1 is a label of all kinds: another would reach the derivative of the branch not taken.
        known = labels.known(y, counts, 1).astype(x.dtype)
        score = jnp.dot(params.reshape(outputs, -1), x) if outputs > 1 else jnp.dot(params, x)
        value = self.form.value(labels.sign(known) * score, labels.beside(known))
        return jnp.where(counts, value, jnp.nan)


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True)
class Objective:
    """The average over records of ``loss``, plus ``regularizer``.

    Frozen and hashable, and equal when rebuilt from the same functions, so that rebuilding one does
    not compile anything again. As a pytree its leaves are the strengths of ``L1``, ``L2``,
    ``ElasticNet`` or ``Nonconvex``: numbers like a step size, so another one compiles nothing anew.

    Args:
      loss: ``loss(params, example) -> scalar``, sees one record. ``loss(params, example, key)`` may
        draw, such as dropout: each record has a key of its own in each step, and None where it is
        evaluated.
      regularizer: ``regularizer(params) -> scalar``, reads no record; hashable. It enters value,
        gradient and Hessian after the noise, exactly, and is never clipped. One of your own is
        structure, with the numbers in it; it may state ``smoothness`` and ``hessian_lipschitz``.
      margin: where the loss is ``phi(y <x, w>)`` with example ``(x, y)`` and y in {-1, +1}: the
        scalar function phi, which turns on the closed form.
      constants: bounds used as default clip norms and step sizes. Clipping runs all the same.
      name: what people call it.
      model: what the parameters are; None for one weight a feature, which a margin predicts by.
      defaults: clip norms and the like, used where there are no constants.
      linear: the loss of the scores of a linear model, of which a margin is one kind; turns on the
        closed form.

    Raises:
      ValueError: if the loss is not callable, or a constant or default is not above 0.

    Privacy: NOT a mechanism; ``objective(params, example)`` reads a raw record and is for
      diagnostics.

    >>> import jax.numpy as jnp
    >>> objective = Objective(lambda w, example: jnp.sum((w - example) ** 2), name="mean")
    >>> objective.constants is None
    True
    """

    loss: Loss
    regularizer: Regularizer | None = None
    margin: Callable[[Array], Array] | None = None
    constants: Constants | None = None
    name: str = "objective"
    model: Model | None = None
    defaults: Defaults | None = None
    linear: LinearLoss | None = None

    def __post_init__(self):
        if not callable(self.loss):
            raise ValueError(f"loss must be a function (params, example) -> scalar: {self.loss!r}.")
        if takes_key(self.loss):
            if self.margin is not None or self.linear is not None:
                raise ValueError(
                    "a loss with key draws, and a closed form cannot: leave margin out."
                )
            object.__setattr__(self, "loss", KeyedLoss(self.loss))
        for name, kind in (("constants", Constants), ("defaults", Defaults)):
            if (values := getattr(self, name)) is None:
                continue
            numbers = kind(*map(float, values))
            # An infinite one says that the Hessian jumps.
            bounded = numbers._replace(hessian_lipschitz=1.0) if kind is Constants else numbers
            if not (min(numbers) > 0 and all(value < float("inf") for value in bounded)):
                raise ValueError(f"{name} must be finite and above 0, got {numbers}.")
            object.__setattr__(self, name, numbers)
        # A margin is the closed form where there is one, also after ``dataclasses.replace``.
        if self.margin is not None or isinstance(self.linear, Margin):
            form = None if self.margin is None else Margin(self.margin)
            object.__setattr__(self, "linear", form)

    def __call__(self, params: Params, example: Any) -> Array:
        """Returns the loss of one example, without the regularizer. NOT PRIVATE."""
        return self.loss(params, example)

    # In a notebook alone: what ``repr`` returns enters digests.
    _repr_html_ = HasCard._repr_html_

    def _card(self) -> Card:
        rows = {"labels": self.labels, "regularizer": self.regularizer, "bounds": self.constants}
        return Card(f"Objective {self.name}", tuple((name, str(rows[name])) for name in rows))

    def tree_flatten(self) -> tuple[tuple, "Objective"]:
        """Returns the regularizer, if its numbers are leaves, and everything else."""
        # Of one that a user wrote nobody knows which numbers it holds.
        if isinstance(self.regularizer, PENALTIES):
            # Structure is compared and hashed, so it holds none of the penalty's numbers.
            return (self.regularizer,), self.data_term
        return (), self

    @classmethod
    def tree_unflatten(cls, structure: "Objective", children: tuple) -> "Objective":
        """Returns the objective of a regularizer whose numbers may be tracers."""
        # Only the regularizer may hold tracers, and ``__post_init__`` does not look at it.
        return dataclasses.replace(structure, regularizer=children[0]) if children else structure

    @property
    def data_term(self) -> "Objective":
        """The same without the regularizer: all of it that reads records, and no numbers."""
        return dataclasses.replace(self, regularizer=None)

    def of_units(self, reduction: str = "mean") -> "Objective":
        """Returns the objective of units of several records, see ``dpjax.datasets.group``.

        One example is then a unit ``(records, present)``; its loss is the mean, or the sum, of the
        losses of the records that are present. What is clipped, drawn, accounted and protected is
        the unit.

        Args:
          reduction: ``"mean"``: every unit weighs the same, and the constants of one record hold
            for a unit. ``"sum"``: a unit weighs as much as it has records, and is clipped the more;
            it has no constants, so clip norms have to be given.

        Raises:
          ValueError: for another reduction, or an objective that is one of units already.

        >>> units = Objective(lambda w, x: w * x, constants=(1.0, 1.0, 1.0)).of_units()
        >>> units.name, units.constants.lipschitz
        ('objective of units (mean)', 1.0)
        """
        if reduction not in REDUCTIONS:
            raise ValueError(f"reduction must be one of {REDUCTIONS}, got {reduction!r}.")
        if isinstance(self.loss, UnitLoss):
            raise ValueError(f"{self.name} is an objective of units already.")
        # A sum of K losses has K times the constants, and K is a unit's own.
        same = reduction == "mean"
        return dataclasses.replace(
            self,
            loss=UnitLoss(self.loss, reduction, self.linear),
            margin=None,
            linear=None,
            constants=self.constants if same else None,
            defaults=self.defaults if same else None,
            name=f"{self.name} of units ({reduction})",
            # Without its margin the objective would not know that it predicts.
            model=LinearModel() if self.model is None and self.margin is not None else self.model,
        )

    def free_intercept(self) -> "Objective":
        """Returns the objective of a linear model with no penalty on its last feature's weight."""
        form, penalty = self.of_scores, self.regularizer
        known = isinstance(penalty, PENALTIES) and not isinstance(penalty, ExceptIntercept)
        # An objective without scores, or the same for both labels, has no intercept.
        if form is None or not known or not self._scores:
            return self
        return dataclasses.replace(self, regularizer=ExceptIntercept(penalty, form.outputs))

    def weighted(self, weights: Sequence[float] | None = None) -> "Objective":
        """Returns the objective in which the loss of a record counts by its class, or by itself.

        Args:
          weights: a declared number above 0 for each class, in their order; only their ratios
            count, as they are divided by the largest. None for a weight of each record, over a
            declared number: labels are then (n, 2), with a weight above 0 and at most 1, or else
            the record contributes nothing. The penalty stays what it is.

        Raises:
          ValueError: for weights that do not fit the loss; ``"balanced"`` would read the labels.

        >>> from dpjax.objectives import logistic
        >>> rare = logistic().weighted((1, 5))
        >>> round(float(rare(jnp.zeros(2), (jnp.ones(2), -1.0)) / jnp.log(2)), 3)
        0.2
        """
        form, kind, shares, words = self.linear, self.label_kind, None, "sample weights"
        size = None if weights is None else 0 if isinstance(weights, str) else len(weights)
        if form is None or kind is None or kind.axes or size not in (None, kind.classes):
            raise ValueError(_WEIGHTS.format(self.name))
        if weights is not None:
            numbers = [_validate.normal("a class weight", weight) for weight in weights]
            shares = tuple(float(np.float32(weight / max(numbers))) for weight in numbers)
            words = f"class weights {', '.join(f'{share:.4g}' for share in shares)}"
        return dataclasses.replace(
            self,
            loss=LossOfScores(weighted := Weighted(form, shares)),
            margin=None,
            linear=weighted,
            name=f"{self.name} with {words}",
            # Without its margin the objective would not know that it predicts.
            model=LinearModel() if self.model is None else self.model,
        )

    @property
    def draws(self) -> bool:
        """Whether the loss draws random numbers in training, from a key of each record."""
        loss = self.loss.loss if isinstance(self.loss, UnitLoss) else self.loss
        return isinstance(loss, KeyedLoss)

    @property
    def of_scores(self) -> LinearLoss | None:
        """The loss of the scores of a record, also of one of a unit's."""
        return self.loss.linear if isinstance(self.loss, UnitLoss) else self.linear

    @property
    def averaged(self) -> LinearLoss | None:
        """That loss, unless it is summed over a unit's records."""
        return None if getattr(self.loss, "reduction", None) == "sum" else self.of_scores

    @property
    def hessian_lipschitz(self) -> float | None:
        """Hessian-Lipschitz constant of the whole objective, or None if it is not known.

        For radii and tolerances. That of the data term, for sensitivities, is in ``constants``.
        """
        return self._with_regularizer("hessian_lipschitz")

    @property
    def smoothness(self) -> float | None:
        """Smoothness of the whole objective, or None if it is not known."""
        return self._with_regularizer("smoothness")

    def _with_regularizer(self, name: str) -> float | None:
        # A user's regularizer need not state its constants; then that of the sum is not known.
        added = 0.0 if self.regularizer is None else getattr(self.regularizer, name, None)
        # Infinite says that the Hessian jumps, and no constant exists.
        known = float("inf") if self.constants is None else getattr(self.constants, name)
        return None if added is None or known == float("inf") else known + added

    @property
    def prox(self) -> Callable[[Params, Array | float], Params]:
        """``(params, step_size) -> params``, the proximal operator of the regularizer.

        Raises:
          ValueError: if the regularizer has none.
        """
        if self.regularizer is None:
            return prox_zero
        operator = getattr(self.regularizer, "prox", None)
        if operator is None:
            raise ValueError(
                f"this method needs a regularizer with a proximal operator, but {self.name} has "
                f"{self.regularizer!r}: use L1, L2, ElasticNet or a convex set of "
                "dpjax.objectives, on the command line --objective logistic-l2 or logistic-l1, or "
                "add a method prox(params, step_size) to yours."
            )
        return operator

    def regularize_gradient(self, gradient: Params, params: Params) -> Params:
        """Returns ``gradient`` plus the regularizer's exact gradient; post-processing."""
        if self.regularizer is None:
            return gradient
        added = jax.grad(self.regularizer)(params)
        # In the dtype of the noisy gradient, which may be wider than the parameters'.
        return jax.tree.map(lambda g, r: g + r.astype(g.dtype), gradient, added)

    def regularize_hessian(self, hessian: Array, params: Params) -> Array:
        """Returns the (p, p) ``hessian`` plus the regularizer's exact one; post-processing."""
        if self.regularizer is None:
            return hessian
        regularizer = self.regularizer
        flat, unravel = ravel_pytree(params)
        added = jax.hessian(lambda w: regularizer(unravel(w)))(flat)
        return hessian + added.astype(hessian.dtype)

    def parameters(self, features: int) -> int:
        """Returns the number of parameters for rows of so many ``features``."""
        return features if self.model is None else self.model.parameters(features)

    @property
    def predicts(self) -> bool:
        """Whether its parameters predict labels, rather than numbers or nothing."""
        return self._scores and not self.predicts_numbers

    @property
    def predicts_numbers(self) -> bool:
        """Whether its parameters predict numbers."""
        return getattr(self.model, "numeric", False)

    @property
    def _scores(self) -> bool:
        # A margin predicts by its sign and needs no model for that.
        return hasattr(self.model, "score") or (self.model is None and self.margin is not None)

    @property
    def label_kind(self) -> Signs | None:
        """Which labels count, in the arrays that are trained on; None where the loss decides."""
        if self.of_scores is not None:
            return self.of_scores.labels
        return Signs() if self.predicts else None

    def read(self, examples: Any) -> Any:
        """Returns examples whose labels have one number for each class; others as they are.

        Privacy: each label depends on its own record.
        """
        if not (isinstance(examples, tuple) and len(examples) == 2):
            return examples
        x, y = examples
        # Records come first in a unit: their labels are read as those of single records.
        if isinstance(loss := self.loss, UnitLoss):
            return dataclasses.replace(self, loss=loss.loss, linear=loss.linear).read(x), y
        kind = self.label_kind
        if kind is None or not jnp.issubdtype(getattr(y, "dtype", object), jnp.generic):
            return examples
        return x, Rows(y, kind.read) if isinstance(y, Rows) else kind.read(y)

    @property
    def labels(self) -> str | None:
        """The labels that count, in words; None where the loss does not say. Others are null."""
        kind = self.label_kind
        return getattr(self.loss, "labels", None) if kind is None else kind.words

    def predict(self, params: Array, x: Array) -> Array:
        """Returns a prediction for each row of ``x``, shape (n,).

        A label in {-1, +1}, where ties go to +1; the number of a class; or a number.

        Raises:
          ValueError: if a prediction has no meaning: no margin, or both labels are the same to it.
        """
        if not self._scores:
            why = "has no margin" if self.margin is None else "is the same for both labels"
            raise ValueError(f"{self.name} {why}, so it predicts no label.")
        score = x @ params if self.model is None else self.model.score(params, x)  # pyright: ignore
        decide = getattr(self.model, "decide", None)
        return jnp.where(score >= 0, 1.0, -1.0) if decide is None else decide(score)


def of_scores(
    form: Any, name: str, model: Model, regularization: float, defaults: Defaults | None = None
) -> Objective:
    """Returns the objective of a loss of scores plus ``regularization`` / 2 times |w|^2."""
    penalty = L2(regularization)
    # Without strength there is nothing to add or to differentiate.
    regularizer, loss = penalty if penalty.strength else None, LossOfScores(form)
    return Objective(loss, regularizer, None, form.constants, name, model, defaults, form)
