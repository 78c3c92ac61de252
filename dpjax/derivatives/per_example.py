"""Clipped sums of per-example gradients and Hessians of any loss, in chunks of bounded memory."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpjax import _validate
from dpjax._typing import Array, Float, Loss, PyTree, Real, Relation, pytree_dataclass, static
from dpjax._wide import Expansion, on_device
from dpjax.derivatives import clipping, general, rounding
from dpjax.derivatives.chunks import common_length, even_rows
from dpjax.derivatives.general import Batch, Mask, Tree
from dpjax.derivatives.ghost import bookkeeping
from dpjax.derivatives.linear import clipped_sums
from dpjax.derivatives.primitives import bytes_alive, example_of
from dpjax.objectives.linear import linear_of


class JointSum(NamedTuple):
    """Sums of jointly clipped contributions: gradient (k,) and symmetric Hessian (k, k).

    k is p, the number of parameters, or the dimension of a subspace. Inside dpjax the sums are in
    float64, as ``Expansion``.
    """

    gradient: Float[Any, " k"]
    hessian: Float[Any, "k k"]


@pytree_dataclass
class ClippedSum:
    """The function ``(params, batch, mask=None) -> sum`` of contributions clipped to one norm.

    ``clipped_grad``, ``clipped_hessian`` and ``joint_clipped`` make one.

    Args:
      gradient_weight: of the gradient in a record's norm; None where there is no gradient.
      hessian_weight: of the Hessian; None where there is none.
      clip_norm: bound on sqrt(|g|^2 / gradient_weight^2 + |H|_F^2 / hessian_weight^2).
      loss: of one example, or an ``Objective``.
      permutation_invariant: whether blocks are added in float64 too.
      per_layer: whether each layer's gradient is clipped by itself.
      method: how gradients alone are computed.
      memory_limit: bytes for gradients alone, or None.
    """

    gradient_weight: Real[Array, ""] | float | None
    hessian_weight: Real[Array, ""] | float | None
    clip_norm: Real[Array, ""] | float
    # What decides the program is static; the numbers above are leaves and compile nothing anew.
    loss: Any = static()
    permutation_invariant: bool = static(default=False)
    per_layer: bool = static(default=False)
    method: str = static(default="auto")
    memory_limit: int | None = static(default=None)

    def __call__(self, params: Tree, batch: Batch, mask: Mask = None) -> Any:
        """Returns the sum over the records that ``mask`` leaves in.

        Of gradients it is a pytree like ``params``, of Hessians an array (p, p) of the flattened
        parameters, of both a ``JointSum``.
        """
        total = self.wide(params, batch, mask)
        if isinstance(total, JointSum):
            return JointSum(*(each.leading for each in total))
        # Hessians are of the flattened parameters, and those of a closed form are flat.
        if self.gradient_weight is None or linear_of(self.loss) is not None:
            return total.leading
        return general.flatten(params)[1](total.leading, as_sum=True)

    def piece(self, params: PyTree, batch: PyTree) -> Piece:
        """Returns how JAX's default device computes gradients of a batch, or of its shapes."""
        how = self.permutation_invariant, self.per_layer, self.method, self.memory_limit
        on_cpu, elsewhere = pieces_of(self.loss, params, batch, *how)
        return on_cpu if jax.default_backend() == "cpu" else elsewhere

    def wide(self, params: Tree, batch: Batch, mask: Mask = None) -> Any:
        """Returns the sum over the flattened parameters in float64, as ``Expansion``.

        (p,) of gradients, (p, p) of Hessians, or a ``JointSum``.
        """
        # On the device first, in silence: a warning of NumPy's would tell of one record's value.
        batch = on_device(batch)
        weights = self.gradient_weight, self.hessian_weight
        order, clip_norm = self.permutation_invariant, self.clip_norm
        # The closed form first: it needs no derivative of a record.
        sums = clipped_sums(self.loss, params, batch, mask, weights, clip_norm, order)
        if sums is None and self.hessian_weight is None:
            return gradient_sum(
                self.loss,
                params,
                batch,
                mask,
                clip_norm,
                permutation_invariant=order,
                per_layer=self.per_layer,
                method=self.method,
                memory_limit=self.memory_limit,
            )
        gradient, hessian = sums or general.second_order_sums(
            self.loss, params, batch, mask, weights, clip_norm, order
        )
        # Without a weight there is no sum: the joint norm would not bound it.
        if gradient is None or hessian is None:
            return hessian if gradient is None else gradient
        return JointSum(gradient, hessian)

    def sensitivity(self, relation: Relation, *, rows: int) -> Real[Array, ""] | float:
        """Returns the l2 sensitivity of the sum of at most ``rows`` rows, rounding included.

        Of a Hessian it is in the Frobenius norm, of both together in that of (g / gradient_weight,
        svec(H) / hessian_weight). It is above ``clip_norm``, since a float32 sum is rounded: see
        ``rounding.sum_rounding_error`` for the proof, and for what a query charges, whose noise
        comes before the rounding to float32. Under ``add_or_remove_one`` the rows behind a removed
        one are added in another order, which costs more; ``rows`` is a public number.
        """
        # Also by layer: L leaves within C / sqrt(L) each are within C together.
        return rounding.sum_sensitivity(self.clip_norm, relation, rows, self.permutation_invariant)


def clipped_grad(
    loss: Loss,
    *,
    clip_norm: Real[Array, ""] | float,
    per_layer: bool = False,
    method: str = "auto",
    memory_limit: int | None = None,
    permutation_invariant: bool = False,
) -> ClippedSum:
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
      memory_limit: bytes beside batch and parameters, by the values that the traced program holds
        at once. A batch is computed in pieces that fit; by default 1 GiB, or one record.
      permutation_invariant: add blocks in float64 too, for neighbours whose common rows lie
        elsewhere, as under ``add_or_remove_one``; slower, with a smaller ``.sensitivity`` there.

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
    _validate.choice("method", method, METHODS)
    if memory_limit is not None:
        memory_limit = _validate.positive_int("memory_limit", memory_limit)
    if per_layer and method == "per_example":
        raise ValueError("method='per_example' clips full gradients; per_layer needs another.")
    clip_norm = clipping.positive_number("clip_norm", clip_norm)
    # With the weight 1 the joint norm is that of the gradient.
    return ClippedSum(
        1.0, None, clip_norm, loss, permutation_invariant, per_layer, method, memory_limit
    )


def clipped_hessian(
    loss: Loss, *, clip_norm: Real[Array, ""] | float, permutation_invariant: bool = False
) -> ClippedSum:
    """Returns ``f(params, batch, mask=None)``: the sum of Frobenius-clipped Hessians.

    ``loss`` and ``permutation_invariant`` are as ``clipped_grad`` takes them.

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
    clip_norm = clipping.positive_number("clip_norm", clip_norm)
    # Without a weight for the gradient the Hessian's norm alone decides.
    return ClippedSum(None, 1.0, clip_norm, loss, permutation_invariant)


def joint_clipped(
    loss: Loss,
    *,
    gradient_weight: Real[Array, ""] | float,
    hessian_weight: Real[Array, ""] | float,
    clip_norm: Real[Array, ""] | float = 1.0,
    permutation_invariant: bool = False,
) -> ClippedSum:
    """Returns ``f(params, batch, mask=None)``: gradient and Hessian clipped as one vector.

    One record's vector is (g / gradient_weight, svec(H) / hessian_weight), of squared norm
    |g|^2 / gradient_weight^2 + |H|_F^2 / hessian_weight^2; one factor brings it to ``clip_norm``.

    ``loss`` and ``permutation_invariant`` are as ``clipped_grad`` takes them; the numbers are above
    0.

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
    return ClippedSum(
        clipping.positive_number("gradient_weight", gradient_weight),
        clipping.positive_number("hessian_weight", hessian_weight),
        clipping.positive_number("clip_norm", clip_norm),
        loss,
        permutation_invariant,
    )


METHODS = ("auto", "book_keeping", "per_example")
MEMORY_LIMIT = 2**30
"""Default memory of a clipped sum in bytes, beside data and parameters."""

# Gradients of fewer numbers are materialised for every record: they stay in the cache.
_SMALL = 2048
# Of gradients of more numbers so few fit the cache at once that the products in them are slow.
_LARGE = 2**16
# Bytes at once that use the caches of a CPU best, and records below which its products suffer.
_CACHED, _FEW = 2**23, 8


@functools.partial(
    jax.jit,
    static_argnames=("loss", "permutation_invariant", "per_layer", "method", "memory_limit"),
)
def gradient_sum(
    loss: Loss,
    params: Tree,
    batch: PyTree,
    mask: Array | None,
    clip_norm: Array | float,
    *,
    permutation_invariant: bool = False,
    per_layer: bool = False,
    method: str = "auto",
    memory_limit: int | None = None,
) -> Expansion:
    """Returns the sum (p,) of clipped gradients, of the arguments of ``clipped_grad``."""
    # For its errors, before a method is chosen from shapes.
    common_length(batch, mask)
    params, batch = (jax.tree.map(jnp.asarray, tree) for tree in (params, batch))
    pieces = pieces_of(loss, params, batch, permutation_invariant, per_layer, method, memory_limit)
    on_cpu, elsewhere = (_by(loss, piece, permutation_invariant) for piece in pieces)
    if per_layer:
        # L leaves within C / sqrt(L) each are within C together.
        leaves = len(jax.tree.leaves(params))
        clip_norm = jnp.full(leaves, clip_norm / math.sqrt(leaves))
    if pieces[0] == pieces[1]:
        return on_cpu(params, batch, mask, clip_norm)
    return lax.platform_dependent(params, batch, mask, clip_norm, cpu=on_cpu, default=elsewhere)


class Piece(NamedTuple):
    """How the gradients of a batch are computed, decided from shapes."""

    keeps_books: bool
    """Whether by book-keeping, or one gradient is materialised for each record."""
    most: int
    """Records at once, at most."""

    def cut(self, n: int, size: int) -> tuple[int, int]:
        """Returns how many of n records are computed at once, and how often in a step."""
        if self.keeps_books:
            rows, _, steps = even_rows(n, self.most)
            return rows, steps
        rows = general.rows_at_once(n, size, self.most)
        return rows, -(-n // rows)


def _by(loss: Loss, piece: Piece, permutation_invariant: bool) -> Any:
    how: Any = {"permutation_invariant": permutation_invariant}
    if piece.keeps_books:
        return functools.partial(bookkeeping.gradient_sum, loss, rows=piece.most, **how)
    return functools.partial(general.gradient_sum, loss, most=piece.most, **how)


def pieces_of(
    loss: Loss,
    params: PyTree,
    batch: PyTree,
    permutation_invariant: bool = False,
    per_layer: bool = False,
    method: str = "auto",
    memory_limit: int | None = None,
) -> tuple[Piece, Piece]:
    """Returns how ``gradient_sum`` computes on a CPU and on any other device, by shapes alone."""
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    if method == "auto" and size <= _SMALL and not per_layer and memory_limit is None:
        method = "per_example"
    if method == "per_example" and size <= _SMALL and memory_limit is None:
        return (few := Piece(False, rounding.CHUNK)), few
    reading = bookkeeping.read(loss, params, batch, permutation_invariant)
    batched = bool(reading.plan.layers) and size > _LARGE
    if method == "auto" and not (reading.saves or batched or per_layer):
        method = "per_example"
    held = functools.partial(bytes_alive, general.gradient_of_record(loss, params))
    if method == "per_example":
        whole = Piece(False, rows_within(held(example_of(batch)), memory_limit))
        return whole, whole
    needed = bookkeeping.bytes_per_record(loss, reading, params, batch)
    keeping = Piece(True, rows_within(needed, memory_limit))
    if per_layer or method == "book_keeping":
        return keeping, keeping
    # Norms without the gradients cancel, and need float64, which is fast on a CPU alone.
    most = max(1, (memory_limit or MEMORY_LIMIT) // held(example_of(batch)))
    return keeping, Piece(False, most)


def rows_within(needed: int, memory_limit: int | None) -> int:
    """Returns the number of records to compute at once, which take ``needed`` bytes each.

    ``memory_limit`` is in bytes, or None for ``MEMORY_LIMIT``, which a large record may exceed.
    """
    if memory_limit is not None and memory_limit < needed:
        raise ValueError(
            f"memory_limit={memory_limit} bytes is below what one example needs; raise it to "
            f"{needed} at least."
        )
    rows = max(1, (memory_limit or MEMORY_LIMIT) // needed)
    # The limit below is for the caches of a CPU.
    if jax.default_backend() != "cpu":
        return rows
    return min(rows, max(_FEW, _CACHED // needed))
