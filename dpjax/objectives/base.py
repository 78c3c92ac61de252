"""``Objective``: the loss of one example, its regularizer, and the constants theory needs."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpjax._typing import Array, Loss, Params
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
