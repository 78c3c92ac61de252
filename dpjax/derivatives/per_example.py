"""Clipped sums of per-example gradients and Hessians of any loss, in chunks of bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from jax.typing import ArrayLike

from dpjax import _validate
from dpjax._linear import linear_of
from dpjax._typing import Array, Loss, Params, Relation, pytree_dataclass, static
from dpjax._wide import Expansion, on_device
from dpjax.derivatives import clipping, closed_form, general, methods, rounding

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, PyTree, Real, Shaped


class JointSum(NamedTuple):
    """Sums of jointly clipped contributions: gradient (k,) and symmetric Hessian (k, k).

    k is p, the number of parameters, or the dimension of a subspace.
    """

    gradient: Float[Array, " k"]
    hessian: Float[Array, "k k"]


class JointExpansion(NamedTuple):
    """The sums of a ``JointSum`` in float64, as ``Expansion``."""

    gradient: Float[Expansion, " k"]
    hessian: Float[Expansion, "k k"]


class _Clipped:
    """A sum of what each record contributes, clipped to one norm."""

    clip_norm: Any
    loss: Any
    any_order: bool

    def sensitivity(self, relation: Relation, *, rows: int) -> Real[Array, ""] | float:
        """Returns the l2 sensitivity of the sum of at most ``rows`` rows, rounding included.

        Of a Hessian it is in the Frobenius norm, of both together in that of (g / gradient_weight,
        svec(H) / hessian_weight). It is above ``clip_norm``, since a float32 sum is rounded: see
        ``rounding.sum_slack`` for the proof, and for what a query charges, whose noise comes before
        the rounding to float32.

        Args:
          relation: the neighbouring relation. Under ``add_or_remove_one`` the rows behind a removed
            one are added in another order, which costs more.
          rows: the largest number of rows of a batch, a public number.
        """
        return rounding.sum_sensitivity(self.clip_norm, relation, rows, self.any_order)

    def _sums(self, params: Any, batch: Any, mask: Any, *weights: Any) -> tuple[Any, Any]:
        """Returns the sums of gradients and of Hessians, each of a weight or left out with None."""
        batch = on_device(batch)
        found = closed_form.sums(
            self.loss,
            params,
            batch,
            mask,
            gradient_weight=weights[0],
            hessian_weight=weights[1],
            clip_norm=self.clip_norm,
            any_order=self.any_order,
        )
        return found or general.second_order_sums(
            self.loss, params, batch, mask, weights, self.clip_norm, self.any_order
        )


@pytree_dataclass
class ClippedGrad(_Clipped):
    """The function that ``clipped_grad`` returns."""

    clip_norm: Real[Array, ""] | float
    loss: Any = static()
    per_layer: bool = static(default=False)
    method: str = static(default="auto")
    memory_limit: int | None = static(default=None)
    any_order: bool = static(default=False)

    def __call__(
        self,
        params: PyTree[Float[ArrayLike, "?*leaf"], "Params"],
        batch: PyTree[Shaped[ArrayLike, "n ..."]],
        mask: Bool[ArrayLike, " n"] | None = None,
    ) -> PyTree[Float[Array, "?*leaf"], "Params"]:
        """Returns the sum of clipped per-example gradients, a pytree like ``params``."""
        total = self.wide(params, batch, mask).leading
        if linear_of(self.loss) is not None:
            return total
        return general.flatten(params)[1](total, as_sum=True)

    def wide(
        self,
        params: PyTree[Float[ArrayLike, "?*leaf"], "Params"],
        batch: PyTree[Shaped[ArrayLike, "n ..."]],
        mask: Bool[ArrayLike, " n"] | None = None,
    ) -> Float[Expansion, " p"]:
        """Returns the sum (p,) over the flattened parameters in float64, as an ``Expansion``."""
        batch = on_device(batch)
        found = closed_form.sums(
            self.loss,
            params,
            batch,
            mask,
            gradient_weight=1.0,
            clip_norm=self.clip_norm,
            any_order=self.any_order,
        )
        if found is not None:
            return cast(Expansion, found[0])
        return methods.gradient_sum(
            self.loss,
            params,
            batch,
            mask,
            self.clip_norm,
            any_order=self.any_order,
            per_layer=self.per_layer,
            method=self.method,
            memory_limit=self.memory_limit,
        )


@pytree_dataclass
class ClippedHessian(_Clipped):
    """The function that ``clipped_hessian`` returns."""

    clip_norm: Real[Array, ""] | float
    loss: Any = static()
    any_order: bool = static(default=False)

    def __call__(
        self,
        params: PyTree[Float[ArrayLike, "?*leaf"], "Params"],
        batch: PyTree[Shaped[ArrayLike, "n ..."]],
        mask: Bool[ArrayLike, " n"] | None = None,
    ) -> Float[Array, "p p"]:
        """Returns the sum (p, p) of Frobenius-clipped per-example Hessians."""
        return self.wide(params, batch, mask).leading

    def wide(
        self,
        params: PyTree[Float[ArrayLike, "?*leaf"], "Params"],
        batch: PyTree[Shaped[ArrayLike, "n ..."]],
        mask: Bool[ArrayLike, " n"] | None = None,
    ) -> Float[Expansion, "p p"]:
        """Returns the result of a call in float64, as ``Expansion``."""
        return self._sums(params, batch, mask, None, 1.0)[1]


@pytree_dataclass
class JointClipped(_Clipped):
    """The function that ``joint_clipped`` returns."""

    gradient_weight: Real[Array, ""] | float
    hessian_weight: Real[Array, ""] | float
    clip_norm: Real[Array, ""] | float
    loss: Any = static()
    any_order: bool = static(default=False)

    def __call__(
        self,
        params: PyTree[Float[ArrayLike, "?*leaf"], "Params"],
        batch: PyTree[Shaped[ArrayLike, "n ..."]],
        mask: Bool[ArrayLike, " n"] | None = None,
    ) -> JointSum:
        """Returns the sums of gradient (p,) and Hessian (p, p) of the flattened parameters."""
        total = self.wide(params, batch, mask)
        return JointSum(total.gradient.leading, total.hessian.leading)

    def wide(
        self,
        params: PyTree[Float[ArrayLike, "?*leaf"], "Params"],
        batch: PyTree[Shaped[ArrayLike, "n ..."]],
        mask: Bool[ArrayLike, " n"] | None = None,
    ) -> JointExpansion:
        """Returns the result of a call in float64, as ``Expansion``."""
        weights = self.gradient_weight, self.hessian_weight
        return JointExpansion(*self._sums(params, batch, mask, *weights))


def clipped_grad(
    loss: Loss,
    *,
    clip_norm: Real[Array, ""] | float,
    per_layer: bool = False,
    method: str = "auto",
    memory_limit: int | None = None,
    any_order: bool = False,
) -> ClippedGrad:
    """Returns ``f(params, batch, mask=None)``: the sum of clipped per-example gradients.

    Args:
      loss: ``loss(params, example) -> scalar`` sees one example, row i of every leaf of ``batch``;
        or an ``Objective``, whose margin turns on the closed form.
      clip_norm: C, above 0.
      per_layer: clip each of the L leaves to C / sqrt(L), instead of the full gradient to C.
      method: ``"book_keeping"`` finds the layers of a network and clips without materialising
        per-example gradients where shapes allow it; ``"per_example"`` materialises all of them;
        ``"auto"`` takes the cheaper for these shapes on a CPU, and elsewhere materialises, as
        norms without the gradients need float64. A loss with a margin uses its closed form instead.
      memory_limit: bytes beside batch and parameters, an estimate from shapes. A batch is computed
        in pieces that fit; by default 1 GiB, or one record.
      any_order: add blocks in float64 too, for neighbours whose common rows lie elsewhere, as under
        ``add_or_remove_one``; slower, with a smaller ``.sensitivity`` there.

    Returns:
      A callable with ``.sensitivity(relation, rows=)``. ``mask`` (n,) bool leaves rows out.

    Raises:
      ValueError: if ``clip_norm`` is not above 0, or an option is not known; when it is called, if
        one record needs more than ``memory_limit``.

    Privacy: NOT a mechanism: the sum is exact but for rounding. Its l2 sensitivity is that of
      ``.sensitivity`` whatever the data: C, or 2 C for replace-one, and what rounding adds, which
      is up to 0.3 % of C at 10,000 rows and 12 % at a million. A gradient that is not finite
      contributes zero. One whose terms over the positions of an image or a sequence cancel to less
      than 2^-12 may be clipped to less than C.

    Reference: Abadi et al. (2016), algorithm 1, without the noise; Bu, Wang, Zha and Karypis
      (2023), "Differentially private optimization on large foundation models at small cost", for
      book-keeping.

    >>> import jax.numpy as jnp
    >>> total = clipped_grad(lambda w, x: w @ x, clip_norm=1.0)
    >>> summed = total(jnp.zeros(2), jnp.array([[3.0, 4.0], [0.3, 0.4]]))
    >>> print([round(float(entry), 3) for entry in summed])
    [0.9, 1.2]
    >>> print(round(total.sensitivity("replace_one", rows=2), 2))
    2.0
    """
    _validate.choice("method", method, methods.METHODS)
    if memory_limit is not None:
        memory_limit = _validate.positive_int("memory_limit", memory_limit)
    if per_layer and method == "per_example":
        raise ValueError("method='per_example' clips full gradients; per_layer needs another.")
    clip_norm = clipping.positive_number("clip_norm", clip_norm)
    return ClippedGrad(clip_norm, loss, per_layer, method, memory_limit, any_order)


def clipped_hessian(
    loss: Loss, *, clip_norm: Real[Array, ""] | float, any_order: bool = False
) -> ClippedHessian:
    """Returns ``f(params, batch, mask=None)``: the sum of Frobenius-clipped Hessians.

    ``loss`` and ``any_order`` are as ``clipped_grad`` takes them.

    Returns:
      A callable with ``.sensitivity(relation, rows=)``; its result is (p, p) over the flattened
      parameters.

    Raises:
      ValueError: if ``clip_norm`` is not above 0.

    Privacy: NOT a mechanism. Its sensitivity is in the Frobenius norm, which is the one that
      isotropic noise on a symmetric matrix needs; a spectral bound would be too small by up to
      sqrt(p).

    >>> import jax.numpy as jnp
    >>> total = clipped_hessian(lambda w, x: (w @ x) ** 2 / 2, clip_norm=1.0)
    >>> total(jnp.zeros(2), jnp.array([[0.0, 2.0]])).round(3)
    Array([[0., 0.],
           [0., 1.]], dtype=float32)
    """
    return ClippedHessian(clipping.positive_number("clip_norm", clip_norm), loss, any_order)


def joint_clipped(
    loss: Loss,
    *,
    gradient_weight: Real[Array, ""] | float,
    hessian_weight: Real[Array, ""] | float,
    clip_norm: Real[Array, ""] | float = 1.0,
    any_order: bool = False,
) -> JointClipped:
    """Returns ``f(params, batch, mask=None)``: gradient and Hessian clipped as one vector.

    One record's vector is (g / gradient_weight, svec(H) / hessian_weight), of squared norm
    |g|^2 / gradient_weight^2 + |H|_F^2 / hessian_weight^2; one factor brings it to ``clip_norm``.

    ``loss`` and ``any_order`` are as ``clipped_grad`` takes them; the numbers are above 0.

    Returns:
      A callable with ``.sensitivity(relation, rows=)``; its result is a ``JointSum`` in natural
      units.

    Raises:
      ValueError: if a number is not above 0.

    Privacy: NOT a mechanism. The sensitivity is that of the weighted vector, so noise of std s on
      it is s * w_g on the gradient and s * w_h on the Hessian: one Gaussian, one event.

    >>> import jax.numpy as jnp
    >>> def loss(w, x):
    ...     return (w @ x) ** 2 / 2
    >>> total = joint_clipped(loss, gradient_weight=1.0, hessian_weight=1.0)
    >>> total(jnp.ones(1), jnp.array([[2.0]])).hessian.round(3)
    Array([[0.707]], dtype=float32)
    """
    return JointClipped(
        clipping.positive_number("gradient_weight", gradient_weight),
        clipping.positive_number("hessian_weight", hessian_weight),
        clipping.positive_number("clip_norm", clip_norm),
        loss,
        any_order,
    )
