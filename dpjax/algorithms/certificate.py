"""What is said of an output from released values alone: certificate and error bars."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.scipy.special import ndtri

from dpjax import _validate
from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax._wide import at_least_float32
from dpjax.display.cards import Card, HasCard, ceil, floor, number
from dpjax.objectives import Objective

# Rounding in norms and in eigvalsh; far below any useful noise.
_SLACK = 1e-6
# In units of the clip norm: clipping stops 2^-17 short of it, so it acts by that much even where it
# never should, and a float32 sum of n terms of that size is rounded.
CLIP_SLACK = 1.1e-5


ITERATES = {"last_query": "the iterate before the last", "output": "the output"}
"""What is said of where a certificate holds."""


@pytree_dataclass
class Certificate(HasCard):
    """Bounds that hold together with probability at least 1 - beta over the noise.

    Args:
      gradient_norm_upper: bound on the l2 norm of the gradient at the certified iterate.
      min_eigenvalue_lower: bound on the Hessian's smallest eigenvalue there; None if no Hessian
        was released.
      beta: probability that a bound fails.
      iterate: which iterate: ``"last_query"`` (w_{T-1}, where the last answers were asked) or
        ``"output"``.
      scope: which function: ``"objective"`` where clipping provably never acts (a loss of dpjax's
        own with clip norms at its constants, n public, and a ``Dataset`` that declares its rows to
        have norm at most 1), else ``"clipped objective"``, divided by the declared n.

    Privacy: post-processing of released values.
    """

    gradient_norm_upper: Array
    min_eigenvalue_lower: Array | None
    beta: Array | float
    iterate: str = static()
    scope: str = static()

    def _card(self) -> Card:
        lower = self.min_eigenvalue_lower
        rows = [("gradient norm", f"<= {number(self.gradient_norm_upper, ceil)}")]
        if lower is not None:
            rows.append(("smallest eigenvalue", f">= {number(lower, floor)}"))
        held = number(self.beta, lambda beta: f"probability {floor(100 * (1 - beta))} %")
        return Card(
            f"Certificate of the {self.scope} at {ITERATES[self.iterate]}, {held}", tuple(rows)
        )


@pytree_dataclass
class NoiseBounds:
    """Quantiles of the noise of one answer, found on the host.

    The norm of the gradient's noise exceeds ``gradient``, and the largest eigenvalue of the
    Hessian's ``hessian``, with probability at most beta / 2 each. Without a Hessian it is None, and
    the first has all of beta.
    """

    gradient: Array | float
    hessian: Array | float | None


def certify(
    algorithm: Any,
    params: Params,
    answer: tuple[Params, Array | None],
    iterate: str,
    bounded_rows: bool,
) -> tuple[Certificate | None, Params | None]:
    """Returns |g + grad r| + bound, and lambda_min(H + hess r) - bound, at ``params``, and these.

    ``answer`` holds g and H (p, p) or None, noisy derivatives of the data term there, undamped; r
    is the objective's regularizer, which is exact. ``bounds``, ``beta`` and ``unclipped`` are the
    algorithm's.

    Privacy: post-processing.
    """
    objective, bounds, (gradient, hessian) = algorithm.objective, algorithm.bounds, answer
    if objective.draws:  # a derivative of what was drawn bounds none of the objective
        return None, None
    # In half precision the squares of a small gradient underflow, and the bound with them.
    wide, lower = at_least_float32(params), None
    norm = optax.tree.norm(objective.regularize_gradient(at_least_float32(gradient), wide))
    upper = (norm + bounds.gradient) * (1 + _SLACK)
    if hessian is not None and bounds.hessian is not None:
        eigenvalues = jnp.linalg.eigvalsh(objective.regularize_hessian(hessian, wide))
        # eigvalsh is off by a part of the largest eigenvalue, which the smallest may be far below.
        rounding = _SLACK * jnp.max(jnp.abs(eigenvalues))
        lower = eigenvalues[0] - bounds.hessian * (1 + _SLACK) - rounding
    scope = scope_of(algorithm.unclipped and bounded_rows)
    return Certificate(upper, lower, algorithm.beta, iterate, scope), params


def scope_of(unclipped: bool) -> str:
    """Returns the name of the function that the bounds speak of."""
    return "objective" if unclipped else "clipped objective"


SHIFT = 0.6
"""Largest bound on the norm of the terms that are left out, over the noise of the gradient. Were it
attained, it would make 90.8 % of a coverage of 95 % in one direction; 93 to 97 % is seen."""
TRAVELLED = 3.0
"""Most that the last step may be, in the norm of B and squared, over what noise alone makes of it:
of one that is noise alone about 1 in 50 is longer."""


class Bars:
    """What the error bars of a training share: a normal law with an estimate and a covariance.

    Privacy: post-processing of released values.
    """

    kind: ClassVar[str]
    """``"privacy"`` for the effect of noise alone, ``"population"`` for sampling and noise."""
    about: ClassVar[str]
    """What an interval is for, in words."""
    estimate: Array
    covariance: Array

    @property
    def stddev(self) -> np.ndarray:
        """Standard deviation of each parameter, (p,) in float64; on the host."""
        return deviations(self.covariance)

    @property
    def noise_stddev(self) -> np.ndarray:
        """What privacy noise alone makes of it; also where no interval is given."""
        return self.stddev

    def mapped(self, matrix: np.ndarray, offset: np.ndarray) -> Any:
        """Returns those of ``matrix`` (k, p) times the parameters plus ``offset`` (k,), in float64.

        A bound on what is left out holds for each: |a^T B^-1 r| is at most |B^-1 a| |r|, and the
        standard deviation of a^T w~ at least |B^-1 a| times the noise's.

        >>> bars = ErrorBars(np.ones(2), np.eye(2), 0.0, 0.0, True, True, True)
        >>> bars.mapped(np.array([[3.0, 4.0]]), np.array([10.0])).stddev
        array([5.])
        """
        held = {name: np.asarray(value, np.float64) for name, value in vars(self).items()}
        mapped = {name: matrix @ v @ matrix.T for name, v in held.items() if v.ndim == 2}
        estimate = matrix @ held["estimate"] + offset
        return dataclasses.replace(self, estimate=estimate, **mapped)  # pyright: ignore

    @property
    def refusal(self) -> str | None:
        """Why there are no intervals, or None if there are; on the host, of one training."""
        return next((why for why, holds in self._conditions().items() if not bool(holds)), None)

    def _conditions(self) -> dict[str, Any]:
        # What is said where it does not hold: a comparison with NaN is false, so NaN is refused.
        raise NotImplementedError

    def intervals(self, confidence: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Returns lower and upper ends (p,), each of about this coverage by itself.

        Where the approximation does not hold, a ``ValueError`` says why.

        Privacy: post-processing.
        """
        if (why := self.refusal) is not None:
            raise ValueError(f"no intervals for {self.about}: {why}.")
        level = (1 + _validate.open_unit("confidence", confidence)) / 2
        half = float(ndtri(level)) * self.stddev
        centre = np.asarray(self.estimate, np.float64)
        return centre - half, centre + half


def deviations(covariance: Array) -> np.ndarray:
    """Returns the square roots of the diagonal, in float64; on the host."""
    return np.sqrt(np.diagonal(np.asarray(covariance, np.float64), axis1=-2, axis2=-1))


@pytree_dataclass
class ErrorBars(Bars):
    """A normal approximation to how privacy noise spread the parameters of one training.

    The last step asks gradient and Hessian at w, with noise z and E. With B = (Hessian + E) and H
    that of the objective, w~ = w - B^-1 (gradient + z) is off the minimum w* without privacy by

        w~ - w* = B^-1 (-z + E (w - w*) + r),

    where r is what a quadratic model leaves out: of a loss whose third derivative is at most k
    times its second, at most k / 2 times (w - w*)^T H (w - w*). Given w, both z and E (w - w*) are
    normal. As w is an iterate with noise of the same size, or of ``before`` times it, w - w* is
    about as large as w~ - w*, or so many times it, which says how large r is. Sampling error is no
    part of it.

    Args:
      estimate: w~, (p,): the undamped step on the last answers alone. A filtered output is another
        point, whose errors are smaller where the filter helps, and is not what intervals are about.
      covariance: of the noise's effect on them, (p, p).
      shift: the bound on |r| over the noise's standard deviation, shape ().
      travelled: length of the last step, squared in the norm of B, over what noise makes of it.
      interior: whether the last step was not cut off by the trust region.
      definite: whether B is positive definite.
      unclipped: whether no record can have been clipped at w.

    Privacy: post-processing of released values.
    """

    kind = "privacy"
    about = "the effect of privacy noise"

    estimate: Array
    covariance: Array
    shift: Array
    travelled: Array
    interior: Array
    definite: Array
    unclipped: Array

    @property
    def noise_stddev(self) -> np.ndarray:
        # Along a direction without curvature the noise has no bound.
        return self.stddev if bool(self.definite) else np.full(self.stddev.shape, np.inf)

    def _conditions(self) -> dict[str, Any]:
        travelled, shift = float(self.travelled), float(self.shift)
        return {
            "records may have been clipped at the last query: intervals need a loss with proven "
            "constants, clip norms at them, and rows of norm at most 1; of the squared loss, a "
            "training of one step": self.unclipped,
            "the last step was cut off by the trust region: reduce the noise (by a larger epsilon, "
            "fewer steps or more records), or raise final_radius (in Python)": self.interior,
            "the last noisy Hessian has a direction without curvature: raise epsilon or the "
            "regularization, or take more records": self.definite,
            "the last step was longer than noise makes it: take more steps": travelled <= TRAVELLED,
            f"the loss is curved too much over the range of the noise ({shift:.2g} of the noise, "
            f"above {SHIFT}): raise epsilon or the regularization, or take fewer steps or more "
            "records": shift <= SHIFT,
        }


CURVATURE = 0.1
"""Most that a quadratic model may leave out, over the gradient's standard deviation."""


@pytree_dataclass
class PopulationBars(Bars):
    """A normal approximation to the spread of parameters over samples of records and noise.

    The last step goes from w to w~ = w - B^-1 (g + z) by the noisy Hessian B = H + E, with noise z
    on the gradient g. Off the population's minimum w* it is

        w~ - w* = -B^-1 (g(w*) + z + E (w* - w) + r),

    so that given B its covariance is B^-1 (S / n + noise) B^-1, S the released covariance of
    gradients. No inverse of an unknown matrix appears. What a quadratic model leaves out is r.

    Args:
      estimate: w~, (p,).
      covariance: over samples and noise, (p, p).
      noise_covariance: over the noise alone, (p, p).
      strength: the smallest eigenvalue of B over the spectral norm of its noise, shape ().
      curvature: the size of r over the standard deviation of the gradient, shape ().
      unclipped: whether clipping moves no gradient by more than was allowed for.

    Privacy: post-processing of released values.

    >>> bars = PopulationBars(np.zeros(1), np.full((1, 1), 4.0), np.ones((1, 1)), 3.0, 0.0, True)
    >>> bars.stddev, bars.noise_stddev, bars.refusal
    (array([2.]), array([1.]), None)
    """

    kind = "population"
    about = "the population's coefficients"

    estimate: Array
    covariance: Array
    noise_covariance: Array
    strength: Array
    curvature: Array
    unclipped: Array

    @property
    def noise_stddev(self) -> np.ndarray:
        return deviations(self.noise_covariance)

    def _conditions(self) -> dict[str, Any]:
        strength, curvature = float(self.strength), float(self.curvature)
        return {
            "gradients may have been clipped: intervals need a Dataset whose rows have norm at "
            "most 1, n public, and clip norms that are left at their defaults": self.unclipped,
            "some combination of columns varies too little beside the privacy noise (its curvature "
            f"is {max(strength, 0):.2g} of what the noise alone makes): raise epsilon, take more "
            "records or fewer columns, leave out rare levels and columns that follow from others, "
            "or declare narrower bounds for columns whose values fill little of them": strength > 1,
            "the last step was too long for a quadratic model of the loss (what it leaves out may "
            f"be {curvature:.2g} of the standard deviation, above {CURVATURE}): raise epsilon, "
            "take more records or one more step": curvature <= CURVATURE,
        }


# By default accelerators multiply matrices in 8 to 11 bits: too few to invert B by.
@jax.default_matmul_precision("highest")
def error_bars(
    algorithm: Any, state: Any, unclipped: Array | bool, before: Array | float = 1.0
) -> ErrorBars | None:
    """Returns the error bars of a last step, or None for a loss about which too little is known.

    ``state.answer`` holds the noisy data terms at ``state.query_point``, w, gradient (p,) and
    undamped Hessian (p, p), to which the exact regularizer is added; ``state.multiplier`` is the
    dual variable of the step's subproblem. ``before`` is the noise of the answer that led to w over
    that of the last one, at least 1.

    Privacy: post-processing.
    """
    objective = algorithm.objective
    if objective.averaged is None or not _is_smooth(objective):
        return None
    gradient, hessian = state.answer
    # Of a coordinate of the gradient, and of a diagonal entry of the isometric Hessian.
    of_gradient, of_hessian = algorithm.queries[0].stddev, algorithm.queries[-1].hessian_stddev
    wide = at_least_float32(state.query_point)
    flat, unravel = ravel_pytree(wide)
    slope = ravel_pytree(objective.regularize_gradient(unravel(gradient), wide))[0]
    values, vectors = jnp.linalg.eigh(objective.regularize_hessian(hessian, wide))
    definite = values[0] > 0
    # No step along directions without curvature, where there are no intervals anyway.
    inverse = 1 / jnp.where(values > 0, values, jnp.inf)
    step = -(vectors @ (inverse * (vectors.T @ slope)))
    # Where noise alone moves w, this is its distance to the minimum, squared; a first step has come
    # all the way.
    of_point = of_gradient * before
    noisy = of_point**2 * jnp.array([jnp.sum(inverse), jnp.sum(inverse**2)])
    moved = jnp.array([step @ (vectors @ (values * (vectors.T @ step))), step @ step])
    square = jnp.maximum(noisy[1], moved[1] - noisy[1] / before**2)
    # Of E (w - w*), whose direction is about that of the step: t^2 / 2 (|d|^2 I + d d^T).
    along = step / jnp.sqrt(jnp.maximum(moved[1], jnp.finfo(step.dtype).tiny))
    of_product = of_hessian**2 * square / 2
    inverted = (vectors * inverse[None]) @ vectors.T  # B^-1
    squared = inverted @ inverted
    moving = inverted @ along
    covariance = (of_gradient**2 + of_product) * squared
    covariance = covariance + of_product * moving[:, None] * moving[None]
    rest = _third_order(objective, flat, noisy, of_point**2 * squared)  # the bound on |r|
    return ErrorBars(
        estimate=flat + step,
        covariance=covariance,
        shift=rest / of_gradient,
        # Of a quadratic loss nothing is left out, however long the step was.
        travelled=jnp.where(rest > 0, moved[0] / ((1 + before**-2) * noisy[0]), 0.0),
        interior=state.multiplier == 0,
        definite=definite,
        unclipped=jnp.asarray(unclipped),
    )


def _is_smooth(objective: Objective) -> bool:
    """Whether the third derivatives of loss and regularizer are known."""
    form, regularizer = objective.averaged, objective.regularizer
    smooth = regularizer is None or hasattr(regularizer, "smoothness")
    bounded = objective.data_term.hessian_lipschitz is not None
    return smooth and form is not None and (bounded or form.concordance is not None)


def _third_order(objective: Objective, params: Array, noisy: Array, covariance: Array) -> Array:
    """Bound on r for d = w - w* of this covariance: of the loss from d^T H d and |d|^2."""
    form, regularizer = objective.averaged, objective.regularizer
    assert form is not None
    factors = form.concordance, objective.data_term.hessian_lipschitz
    bounds = [
        factor * size / 2 for factor, size in zip(factors, noisy, strict=True) if factor is not None
    ]
    of_loss = jnp.minimum(bounds[0], bounds[-1])  # one bound may be all there is
    if regularizer is None:
        return of_loss

    # Third derivatives contracted with the covariance: the gradient of one number.
    def curved(point: Array) -> Array:
        return jnp.sum(covariance * jax.hessian(regularizer)(point))

    return of_loss + jnp.linalg.norm(jax.grad(curved)(params)) / 2
