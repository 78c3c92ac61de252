"""``Objective``: the loss of one example, its regularizer, and the constants theory needs."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpjax._typing import Array, Loss, Params
from dpjax._units import REDUCTIONS, UnitLoss
from dpjax.objectives.proximal import prox_zero
from dpjax.objectives.regularizers import PENALTIES

Regularizer = Callable[[Params], Array]
SIGNS = "-1, +1"
"""The labels of a loss that tells two apart, in words."""


class Constants(NamedTuple):
    """Bounds on the data term for one record with |x| <= 1; the regularizer is excluded."""

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


class Model(Protocol):
    """What the parameters are; ``score(params, x)``, if it has one, predicts labels by its sign."""

    def parameters(self, features: int) -> int:
        """Returns the number of parameters for so many features."""
        ...


@dataclasses.dataclass(frozen=True)
class Unlabelled:
    """``columns`` weights for each feature, which predict no label.

    >>> Unlabelled(columns=2).parameters(5)
    10
    """

    columns: int = 1

    def parameters(self, features: int) -> int:
        """Returns the number of parameters for so many features."""
        return features * self.columns


@dataclasses.dataclass(frozen=True)
class LinearModel:
    """One weight for each feature, whose inner product with a row is its score.

    >>> LinearModel().parameters(3)
    3
    """

    def parameters(self, features: int) -> int:
        """Returns the number of parameters for so many features."""
        return features

    def score(self, params: Array, x: Array) -> Array:
        """Returns the scores (n,) of rows (n, p)."""
        return x @ params


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True)
class Objective:
    """The average over records of ``loss``, plus ``regularizer``.

    Frozen and hashable, and equal when rebuilt from the same functions, so that rebuilding one does
    not compile anything again. As a pytree its leaves are the strengths of ``L1``, ``L2``,
    ``ElasticNet`` or ``Nonconvex``: numbers like a step size, so another one compiles nothing anew.

    Args:
      loss: ``loss(params, example) -> scalar``, sees one record.
      regularizer: ``regularizer(params) -> scalar``, reads no record; hashable. It enters value,
        gradient and Hessian after the noise, exactly, and is never clipped. One of your own is
        structure, with the numbers in it.
      margin: where the loss is ``phi(y <x, w>)`` with example ``(x, y)`` and y in {-1, +1}: the
        scalar function phi, which turns on the closed form.
      constants: bounds used as default clip norms and step sizes. Clipping runs all the same.
      name: what people call it.
      model: what the parameters are; None for one weight a feature, which a margin predicts by.
      defaults: clip norms and the like, used where there are no constants.

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

    def __post_init__(self):
        if not callable(self.loss):
            raise ValueError(f"loss must be a function (params, example) -> scalar: {self.loss!r}.")
        for name, kind in (("constants", Constants), ("defaults", Defaults)):
            given = getattr(self, name)
            if given is None:
                continue
            numbers = kind(*map(float, given))
            if not all(0 < value < float("inf") for value in numbers):
                raise ValueError(f"{name} must be finite and above 0, got {numbers}.")
            object.__setattr__(self, name, numbers)

    def __call__(self, params: Params, example: Any) -> Array:
        """Returns the loss of one example, without the regularizer. NOT PRIVATE."""
        return self.loss(params, example)

    def tree_flatten(self) -> tuple[tuple, "Objective"]:
        """Returns the regularizer, if its numbers are leaves, and everything else."""
        if isinstance(self.regularizer, PENALTIES):
            return (self.regularizer,), self.data_term
        return (), self

    @classmethod
    def tree_unflatten(cls, structure: "Objective", children: tuple) -> "Objective":
        """Returns the objective of a regularizer whose numbers may be tracers."""
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
        same = reduction == "mean"
        return dataclasses.replace(
            self,
            loss=UnitLoss(self.loss, reduction, self.margin),
            margin=None,
            constants=self.constants if same else None,
            defaults=self.defaults if same else None,
            name=f"{self.name} of units ({reduction})",
            model=LinearModel() if self.model is None and self.margin is not None else self.model,
        )

    @property
    def averaged_margin(self) -> Callable[[Array], Array] | None:
        """The phi of a loss that is phi of a record's margin, or its mean over a unit's records."""
        if isinstance(self.loss, UnitLoss) and self.loss.reduction == "mean":
            return self.loss.margin
        return self.margin

    @property
    def smoothness(self) -> float | None:
        """Smoothness of the whole objective, or None if it is not known."""
        if self.constants is None:
            return None
        own = 0.0 if self.regularizer is None else getattr(self.regularizer, "smoothness", None)
        return None if own is None else self.constants.smoothness + own

    @property
    def prox(self) -> Callable[[Params, Array | float], Params]:
        """``(params, step_size) -> params``, the proximal operator of the regularizer.

        Raises:
          ValueError: if the regularizer has none.
        """
        if self.regularizer is None:
            return prox_zero
        found = getattr(self.regularizer, "prox", None)
        if found is None:
            raise ValueError(
                f"this method needs a regularizer with a proximal operator, but {self.name} has "
                f"{self.regularizer!r}: use L1, L2, ElasticNet or a convex set of "
                "dpjax.objectives, or add a method prox(params, step_size) to yours."
            )
        return found

    def regularize_gradient(self, gradient: Params, params: Params) -> Params:
        """Returns ``gradient`` plus the regularizer's exact gradient; post-processing."""
        if self.regularizer is None:
            return gradient
        own = jax.grad(self.regularizer)(params)
        return jax.tree.map(lambda g, r: g + r.astype(g.dtype), gradient, own)

    def regularize_hessian(self, hessian: Array, params: Params) -> Array:
        """Returns the (p, p) ``hessian`` plus the regularizer's exact one; post-processing."""
        if self.regularizer is None:
            return hessian
        regularizer = self.regularizer
        flat, unravel = ravel_pytree(params)
        own = jax.hessian(lambda w: regularizer(unravel(w)))(flat)
        return hessian + own.astype(hessian.dtype)

    def parameters(self, features: int) -> int:
        """Returns the number of parameters for rows of so many ``features``."""
        return features if self.model is None else self.model.parameters(features)

    @property
    def predicts(self) -> bool:
        """Whether its parameters predict labels."""
        return hasattr(self.model, "score") or (self.model is None and self.margin is not None)

    @property
    def labels(self) -> str | None:
        """The labels that count, in words; None where the loss does not say. Others are null."""
        if self.predicts or self.margin is not None:
            return SIGNS
        return getattr(self.loss, "labels", None)

    def predict(self, params: Array, x: Array) -> Array:
        """Returns the labels in {-1, +1} of the rows of ``x``, shape (n,); ties go to +1.

        Raises:
          ValueError: if a prediction has no meaning: no margin, or both labels are the same to it.
        """
        if not self.predicts:
            why = "has no margin" if self.margin is None else "is the same for both labels"
            raise ValueError(f"{self.name} {why}, so it predicts no label.")
        score = x @ params if self.model is None else self.model.score(params, x)  # pyright: ignore
        return jnp.where(score >= 0, 1.0, -1.0)
