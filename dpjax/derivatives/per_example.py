"""Clipped sums of per-example gradients and Hessians of any loss, in chunks of bounded memory."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpjax import _validate
from dpjax._typing import Array, Loss, Params, PyTree, Relation
from dpjax.accounting.budget import records_moved
from dpjax.derivatives import clipping, linear_model

# A chunk of per-example Hessians of this many numbers stays in a core's cache.
_HESSIAN_CHUNK = 2**17
_GRADIENT_CHUNK = 2**20


class JointSum(NamedTuple):
    """Sums of jointly clipped contributions: gradient (p,) and symmetric Hessian (p, p)."""

    gradient: Array
    hessian: Array


def _static() -> Any:
    return dataclasses.field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ClippedGrad:
    """What ``clipped_grad`` returns."""

    clip_norm: Array | float
    loss: Any = _static()

    def __call__(self, params: Params, batch: PyTree, mask: Array | None = None) -> Params:
        """Returns the sum of clipped per-example gradients, a pytree like ``params``."""
        if (phi := _margin(self.loss)) is not None:
            records = _prepared(batch, mask)
            return linear_model.gradient_sum(phi, records, params, self.clip_norm)
        gradient = jax.grad(self.loss)

        def contribution(example: PyTree) -> Params:
            return clipping.clip_tree(gradient(params, example), self.clip_norm)

        size = ravel_pytree(params)[0].size
        return _sum(contribution, batch, mask, _GRADIENT_CHUNK // max(size, 1))

    def sensitivity(self, relation: Relation) -> Array | float:
        """Returns the l2 sensitivity of the sum under ``relation``."""
        return self.clip_norm * records_moved(relation)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ClippedHessian:
    """What ``clipped_hessian`` returns."""

    clip_norm: Array | float
    loss: Any = _static()

    def __call__(self, params: Params, batch: PyTree, mask: Array | None = None) -> Array:
        """Returns the sum (p, p) of Frobenius-clipped per-example Hessians."""
        if (phi := _margin(self.loss)) is not None:
            records = _prepared(batch, mask)
            return linear_model.hessian_sum(phi, records, params, self.clip_norm)
        flat, of_example = _second_order(self.loss, params)

        def contribution(example: PyTree) -> Array:
            return clipping.clip_tree(of_example(example)[1], self.clip_norm)

        total = _sum(contribution, batch, mask, _HESSIAN_CHUNK // flat.size**2)
        return (total + total.T) / 2

    def sensitivity(self, relation: Relation) -> Array | float:
        """Returns the Frobenius sensitivity of the sum under ``relation``."""
        return self.clip_norm * records_moved(relation)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class JointClipped:
    """What ``joint_clipped`` returns."""

    gradient_weight: Array | float
    hessian_weight: Array | float
    clip_norm: Array | float
    loss: Any = _static()

    def __call__(self, params: Params, batch: PyTree, mask: Array | None = None) -> JointSum:
        """Returns the sums of gradient (p,) and Hessian (p, p) of the flattened parameters."""
        if (phi := _margin(self.loss)) is not None:
            gradient, hessian = linear_model.linear_sums(
                phi,
                _prepared(batch, mask),
                params,
                gradient_weight=self.gradient_weight,
                hessian_weight=self.hessian_weight,
                clip_norm=self.clip_norm,
            )
            return JointSum(gradient, hessian)
        flat, of_example = _second_order(self.loss, params)

        def contribution(example: PyTree) -> tuple[Array, Array]:
            gradient, hessian = of_example(example)
            parts = ((gradient, self.gradient_weight), (hessian, self.hessian_weight))
            return clipping.clip_parts(parts, self.clip_norm)

        gradient, hessian = _sum(contribution, batch, mask, _HESSIAN_CHUNK // flat.size**2)
        return JointSum(gradient, (hessian + hessian.T) / 2)

    def sensitivity(self, relation: Relation) -> Array | float:
        """Returns the sensitivity of (g / gradient_weight, svec(H) / hessian_weight)."""
        return self.clip_norm * records_moved(relation)


def clipped_grad(loss: Loss, *, clip_norm: Array | float) -> ClippedGrad:
    """Returns ``f(params, batch, mask=None)``: the sum of clipped per-example gradients.

    Args:
      loss: ``loss(params, example) -> scalar`` sees one example, row i of every leaf of ``batch``;
        or an ``Objective``, whose margin turns on the closed form.
      clip_norm: C, above 0.

    Returns:
      A callable with ``.sensitivity(relation)``. ``mask`` (n,) bool leaves rows out.

    Raises:
      ValueError: if ``clip_norm`` is not above 0.

    Privacy: NOT a mechanism: the sum is exact. Its l2 sensitivity is C, or 2 C for replace-one,
      whatever the data: a gradient that is not finite contributes zero.

    Reference: Abadi et al. (2016), algorithm 1, without the noise.

    >>> total = clipped_grad(lambda w, x: w @ x, clip_norm=1.0)
    >>> summed = total(jnp.zeros(2), jnp.array([[3.0, 4.0], [0.3, 0.4]]))
    >>> print([round(float(entry), 3) for entry in summed])
    [0.9, 1.2]
    >>> total.sensitivity("replace_one")
    2.0
    """
    return ClippedGrad(_checked("clip_norm", clip_norm), loss)


def clipped_hessian(loss: Loss, *, clip_norm: Array | float) -> ClippedHessian:
    """Returns ``f(params, batch, mask=None)``: the sum of Frobenius-clipped Hessians.

    Args:
      loss: as in ``clipped_grad``.
      clip_norm: C, above 0, on the Frobenius norm of one record's Hessian.

    Returns:
      A callable with ``.sensitivity(relation)``; its result is (p, p) over the flattened
      parameters.

    Raises:
      ValueError: if ``clip_norm`` is not above 0.

    Privacy: NOT a mechanism. Its sensitivity is in the Frobenius norm, which is the one that
      isotropic noise on a symmetric matrix needs; a spectral bound would be too small by up to
      sqrt(p).

    >>> total = clipped_hessian(lambda w, x: (w @ x) ** 2 / 2, clip_norm=1.0)
    >>> total(jnp.zeros(2), jnp.array([[0.0, 2.0]])).round(3)
    Array([[0., 0.],
           [0., 1.]], dtype=float32)
    """
    return ClippedHessian(_checked("clip_norm", clip_norm), loss)


def joint_clipped(
    loss: Loss,
    *,
    gradient_weight: Array | float,
    hessian_weight: Array | float,
    clip_norm: Array | float = 1.0,
) -> JointClipped:
    """Returns ``f(params, batch, mask=None)``: gradient and Hessian clipped as one vector.

    One record's vector is (g / gradient_weight, svec(H) / hessian_weight), of squared norm
    |g|^2 / gradient_weight^2 + |H|_F^2 / hessian_weight^2; one factor brings it to ``clip_norm``.

    Args:
      loss: as in ``clipped_grad``.
      gradient_weight: w_g, above 0.
      hessian_weight: w_h, above 0.
      clip_norm: bound on the joint norm.

    Returns:
      A callable with ``.sensitivity(relation)``; its result is a ``JointSum`` in natural units.

    Raises:
      ValueError: if a number is not above 0.

    Privacy: NOT a mechanism. The sensitivity is that of the weighted vector, so noise of std s on
      it is s * w_g on the gradient and s * w_h on the Hessian: one Gaussian, one event.

    >>> def loss(w, x):
    ...     return (w @ x) ** 2 / 2
    >>> total = joint_clipped(loss, gradient_weight=1.0, hessian_weight=1.0)
    >>> total(jnp.ones(1), jnp.array([[2.0]])).hessian.round(3)
    Array([[0.707]], dtype=float32)
    """
    return JointClipped(
        _checked("gradient_weight", gradient_weight),
        _checked("hessian_weight", hessian_weight),
        _checked("clip_norm", clip_norm),
        loss,
    )


def _checked(name: str, value: Array | float) -> Array | float:
    return value if isinstance(value, jax.core.Tracer) else _validate.positive(name, value)


def _margin(loss: Any) -> Callable | None:
    return getattr(loss, "margin", None)


def _prepared(batch: PyTree, mask: Array | None) -> linear_model.PreparedLinear:
    if isinstance(batch, linear_model.PreparedLinear):
        if mask is not None:
            raise ValueError("prepared records take no mask; pass it to prepare.")
        return batch
    return linear_model.prepare(batch, mask)


def _second_order(loss: Loss, params: Params) -> tuple[Array, Callable]:
    flat, unravel = ravel_pytree(params)
    basis = jnp.eye(flat.size, dtype=flat.dtype)

    def of_example(example: PyTree) -> tuple[Array, Array]:
        gradient, push = jax.linearize(jax.grad(lambda w: loss(unravel(w), example)), flat)
        return gradient, jax.vmap(push)(basis)

    return flat, of_example


def _sum(contribution: Callable, batch: PyTree, mask: Array | None, rows: int) -> PyTree:
    n = jax.tree.leaves(batch)[0].shape[0]
    rows = min(max(rows, 1), n)

    def slice_of(leaf: Array, start: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(leaf, start, rows)

    def add(i: Array, total: PyTree) -> PyTree:
        start = jnp.minimum(i * rows, n - rows)
        clipped = jax.vmap(contribution)(jax.tree.map(lambda leaf: slice_of(leaf, start), batch))
        # The last chunk starts early enough to be full; what came before is not counted twice.
        keep = start + jnp.arange(rows) >= i * rows
        if mask is not None:
            keep = keep & slice_of(mask, start)
        return jax.tree.map(
            lambda sum, leaf: sum + jnp.tensordot(keep.astype(leaf.dtype), leaf, 1), total, clipped
        )

    batch = jax.tree.map(jnp.asarray, batch)
    first = jax.tree.map(lambda leaf: leaf[0], batch)
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(contribution, first))
    return jax.lax.fori_loop(0, -(-n // rows), add, zero)
