"""Noisy Newton steps for inference (Avella-Medina, Bradshaw and Loh 2023)."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax import _validate, objectives, oracles
from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax._wide import at_least_float32
from dpjax.accounting import Event, PrivacyBudget, compose, gaussian_multiplier, round_up
from dpjax.algorithms import base
from dpjax.algorithms.base import StepInfo
from dpjax.algorithms.certificate import PopulationBars
from dpjax.algorithms.model_queries import joint_weights
from dpjax.algorithms.trust_region import start
from dpjax.objectives.linear import Weighted, unweighted
from dpjax.objectives.regression import Residual, Reweighted
from dpjax.objectives.units import UnitLoss

# Parts of mu^2: of the histogram, the covariance, and the steps but the last, which takes the rest.
_NORMS, _COVARIANCE = 0.03, 0.1
# Of the steps before the last, of a squared loss; of others of the first ones and of the one before
# the last. From step to step an error shrinks to its square, so that the first need little:
# measured, shares alike leave the last step too long where a class is rare.
_SQUARED, _FAR, _NEAR = 0.37, 0.12, 0.27
# Where slopes and curvature may both be largest: what of the last step's part the Hessian takes.
_OF_HESSIAN = 0.6
# So few clipped records bias the gradient by far less than its standard deviation.
_CLIPPED = 1e-3
# Of a loss of scores, third derivatives of records have both signs, and rows are shorter than 1:
# measured, what a quadratic model leaves out is a tenth of its bound or less.
_CANCELS = 1 / 7

# A variance known with a relative error e, as by 2 / e^2 degrees of freedom: Student's interval of
# 95 % is as that of a variance 1 + 1.21 e^2 times as large.
_TAIL = 1.21


class NoisyNewtonState(NamedTuple):
    """The state of noisy Newton; all of it released."""

    params: Params
    point: Params
    """Where the last gradient and Hessian were asked."""
    answer: oracles.SecondOrderAnswer
    covariance: Array
    """Of a record's gradient, (p, p)."""
    fitted: Array
    """The clip norm that fits the gradients over the largest."""


@pytree_dataclass
class NoisyNewton(base.FieldsAlgorithm):
    """Configuration of noisy Newton; made by ``noisy_newton``."""

    approach: oracles.JointQuery
    penultimate: oracles.JointQuery | None
    norms: oracles.NormsQuery | None
    last: oracles.FittedQuery
    covariance: oracles.CovarianceQuery
    fits: bool = static()
    """Whether the last step, too, has the clip norm that fits."""
    unclipped: bool = static()

    title = "Noisy Newton"

    @property
    def objective(self) -> objectives.Objective:
        return self.last.objective

    @property
    def event(self) -> Event:
        first, *others = self.queries
        return compose([first.event(int(self.steps)), *(query.event(1) for query in others)])

    def init(self, params: Params) -> NoisyNewtonState:
        answer = start(params).answer
        one = jnp.ones((), answer.hessian.dtype)
        return NoisyNewtonState(params, params, answer, answer.hessian, one)

    def step(
        self, key: Array, state: NoisyNewtonState, ask: base.Ask
    ) -> tuple[NoisyNewtonState, StepInfo]:
        return self._moved(state, ask(self.approach, state.params), self.approach)

    def finalize(self, key: Array, state: NoisyNewtonState, ask: base.Ask) -> NoisyNewtonState:
        if self.penultimate is not None:
            state, _ = self._moved(state, ask(self.penultimate, state.params), self.penultimate)
        if self.norms is not None:
            counts = ask(self.norms, state.params)
            fitted = self.norms.exceeded(counts, _CLIPPED)
            state = state._replace(fitted=fitted.astype(state.fitted.dtype))
        answer = ask(self.last, state.params, fitted=self._of_last(state))
        state, _ = self._moved(state, answer, self.last)
        return state._replace(covariance=ask(self.covariance, state.params, fitted=state.fitted))

    def _of_last(self, state: NoisyNewtonState) -> Array | float:
        return state.fitted if self.fits else 1.0

    @jax.default_matmul_precision("highest")
    def _moved(
        self, state: NoisyNewtonState, answer: oracles.SecondOrderAnswer, query: oracles.JointQuery
    ) -> tuple[NoisyNewtonState, StepInfo]:
        """The state after a Newton step on noisy data terms at ``state.params``."""
        unravel = ravel_pytree(at_least_float32(state.params))[1]
        gradient, inverse, _, _ = self._model(state.params, answer, query)
        move = -(inverse @ gradient)
        params = jax.tree.map(
            lambda w, m: (at_least_float32(w) + m).astype(w.dtype), state.params, unravel(move)
        )
        info = StepInfo(jnp.linalg.norm(gradient), jnp.linalg.norm(move))
        return state._replace(params=params, point=state.params, answer=answer), info

    def _model(
        self, params: Params, answer: oracles.SecondOrderAnswer, query: oracles.JointQuery
    ) -> tuple[Array, Array, Array, Array]:
        """Gradient, inverse Hessian, Hessian, and its smallest eigenvalue over the noise's norm.

        Eigenvalues below the noise's norm are raised to it.
        """
        wide = at_least_float32(params)
        unravel = ravel_pytree(wide)[1]
        gradient = self.objective.regularize_gradient(unravel(answer.gradient), wide)
        hessian = self.objective.regularize_hessian(answer.hessian, wide)
        basis = self._basis(hessian.dtype)
        hessian = hessian if basis is None else basis.T @ hessian @ basis
        # The typical spectral norm of isometric noise.
        floor = query.hessian_stddev * math.sqrt(2 * len(hessian))
        values, vectors = jnp.linalg.eigh(hessian)
        vectors = vectors if basis is None else basis @ vectors
        inverse = (vectors / jnp.maximum(values, floor)[None]) @ vectors.T
        hessian = (vectors * values[None]) @ vectors.T
        return ravel_pytree(gradient)[0], inverse, hessian, values[0] / floor

    def _basis(self, dtype: Any) -> Array | None:
        """Orthonormal columns for scores that add up to 0: adding to all of them changes nothing.

        None for one score.
        """
        form = self.objective.of_scores
        if form is None or form.outputs == 1:
            return None
        contrasts = np.linalg.qr(np.eye(form.outputs)[:, 1:] - 1 / form.outputs)[0]
        return jnp.asarray(np.kron(contrasts, np.eye(self.dimension // form.outputs)), dtype)

    @jax.default_matmul_precision("highest")
    def error_bars(self, state: NoisyNewtonState, bounded_rows: bool) -> PopulationBars | None:
        form, objective = self.objective.averaged, self.objective
        if form is None:
            return None
        _, inverse, hessian, strength = self._model(state.point, state.answer, self.last)
        of_gradient, of_hessian = self.last.stddevs(state.point, fitted=self._of_last(state))
        of_gradient, of_hessian = (s / self.last.divisor for s in (of_gradient, of_hessian))
        flat = ravel_pytree(at_least_float32(state.params))[0]
        move = flat - ravel_pytree(at_least_float32(state.point))[0]
        identity = jnp.eye(flat.size, dtype=flat.dtype)
        noise = (of_gradient**2 + of_hessian**2 * (move @ move) / 2) * identity
        noise = noise + of_hessian**2 / 2 * move[:, None] * move[None]
        values, vectors = jnp.linalg.eigh(state.covariance)
        sampled = (vectors * jnp.maximum(values, 0)[None]) @ vectors.T / self.last.data_size
        bend = form.concordance
        if bend is None:  # over a range of residuals curvature may change by all of itself
            assert objective.constants is not None
            bend = 1 / objective.constants.lipschitz
        spread = jnp.sqrt(jnp.trace(sampled + noise) / flat.size)
        # The variance is itself known with noise, by which a normal interval would be too short.
        (of_covariance,) = self.covariance.stddevs(state.params, fitted=state.fitted)
        of_covariance = of_covariance / (self.last.divisor * self.last.data_size)
        values, vectors = jnp.linalg.eigh(sampled + noise)
        values = values + _TAIL * of_covariance**2 / values
        total = (vectors * values[None]) @ vectors.T
        left_out = bend * _CANCELS * jnp.maximum(move @ (hessian @ move), 0) / 2
        return PopulationBars(
            estimate=flat,
            covariance=inverse @ total @ inverse,
            noise_covariance=inverse @ noise @ inverse,
            strength=strength,
            curvature=left_out / spread,
            unclipped=jnp.asarray(self.unclipped and bounded_rows),
        )


def _of_a_row(objective: objectives.Objective) -> objectives.Objective:
    """The objective whose constants a mean over a unit's records has too."""
    loss = objective.loss
    if not isinstance(loss, UnitLoss) or objective.averaged is None:
        return objective
    margin = getattr(loss.linear, "phi", None)
    return dataclasses.replace(objective, loss=loss.loss, linear=loss.linear, margin=margin)


def _approached(objective: objectives.Objective) -> objectives.Objective:
    """The same, but for robust losses, whose own curvature is no guide from far away."""
    weighted, loss = objective.of_scores, objective.loss
    form = unweighted(weighted)
    if not isinstance(form, Residual) or form.constants is None:
        return objective
    linear: Any = Reweighted(form)
    if isinstance(weighted, Weighted):
        linear = dataclasses.replace(weighted, form=linear)
    if isinstance(loss, UnitLoss):
        return dataclasses.replace(objective, loss=dataclasses.replace(loss, linear=linear))
    return dataclasses.replace(objective, linear=linear)


def noisy_newton(
    objective: objectives.Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    steps: int | None = None,
    clip_norm: float | None = None,
    hessian_clip_norm: float | None = None,
    accountant: str = "pld",
) -> NoisyNewton:
    """Returns noisy Newton, whose solution has standard errors for a population.

    Args:
      objective: a loss of linear scores, for the standard errors; rows have norm at most 1.
      steps: Newton steps before the last two, by default 2; of a squared loss before the last one,
        by default 1. More for strong effects, where the start is far. Of a robust loss all but the
        last are of reweighted least squares.
      clip_norm: bound on one record's gradient; by default the Lipschitz constant. For the
        covariance, and the last step of a squared loss, a smaller one is found from a noisy
        histogram of gradients' norms.
      the others: the same in all factories, see ``help(dpjax.algorithms)``.

    Privacy: releases gradient and Hessian of all records as one Gaussian at each step, the last
      with half of the privacy as mu^2 and the one before it with a quarter; a histogram of norms,
      unless ``clip_norm`` is given; and the covariance of clipped gradients at the output.
      ``error_bars`` are post-processing.

    Reference: Avella-Medina, Bradshaw and Loh, "Differentially private inference via noisy
      optimization" (2023); the joint release, the fitted clip norm, and the covariance given the
      released Hessian, are ours.

    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = noisy_newton(objectives.logistic(), budget, data_size=10_000, dimension=10)
    >>> [release.name for release in algorithm.event.releases][2:]
    ['gradient_norms', 'last_gradient_and_hessian', 'gradient_covariance']
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    base.check_smooth(objective, "Noisy Newton")
    form = objective.averaged
    # One step from 0 is all that a quadratic loss needs.
    bends = form is None or form.concordance != 0
    steps = _validate.int32_count("steps", 1 + bends if steps is None else steps)
    # Bounds that hold for every record are far above most: a squared loss has none.
    fitted, fits = clip_norm is None and form is not None, objective.constants is None
    clip = base.clip_norms(objective, clip_norm, hessian_clip_norm)[0]
    of_gradient, of_hessian, _ = joint_weights(objective, clip_norm, hessian_clip_norm)
    # The Hessian is not free beside the gradient: it gets more than the default of others.
    if form is not None and of_gradient > 1.01 * clip:
        curvature = base.clip_norms(objective, clip, None)[1]
        of_gradient = round_up(clip / math.sqrt(1 - _OF_HESSIAN))
        of_hessian = round_up(curvature / math.sqrt(_OF_HESSIAN))
    count = steps + bends + 2 + fitted
    draws = problem.dimension * (problem.dimension + 1) + 16  # of the largest release, at most
    # mu^2 = 1 / multiplier^2 adds up over releases: of a part, so much of what all have.
    whole = gaussian_multiplier(budget, count, accountant, noise_draws=draws) / math.sqrt(count)

    # But at an epsilon of hundreds: noise ends at 10 deviations, and that ends what parts may have.
    even = whole < 0.99 * gaussian_multiplier(budget, 1, accountant, noise_draws=draws)

    def asked(kind: Any, part: float, **fields: Any) -> Any:
        multiplier = round_up(whole * math.sqrt(count) if even else whole / math.sqrt(part))
        return kind(**{"setting": problem.setting, "noise_multiplier": multiplier} | fields)

    weights = {"gradient_weight": of_gradient, "hessian_weight": of_hessian}
    setting = dataclasses.replace(problem.setting, objective=_approached(problem.objective))
    approach = functools.partial(asked, oracles.JointQuery, setting=setting, **weights)
    far, near = (_FAR, _NEAR) if bends else (_SQUARED, 0.0)
    last = 1 - far - near - _NORMS * fitted - _COVARIANCE
    unclipped = base.never_clips(_of_a_row(objective), budget.relation, clip)
    if fitted and fits:  # so few records are clipped that their bias is far below the noise
        unclipped = budget.relation != "add_or_remove_one"
    algorithm = NoisyNewton(
        approach=approach(far / steps),
        penultimate=approach(near, label="penultimate_gradient_and_hessian") if near else None,
        norms=asked(oracles.NormsQuery, _NORMS, clip_norm=clip) if fitted else None,
        last=asked(oracles.FittedQuery, last, label="last_gradient_and_hessian", **weights),
        covariance=asked(oracles.CovarianceQuery, _COVARIANCE, clip_norm=clip),
        fits=fitted and fits,
        unclipped=unclipped,
        **problem.plan(steps, 1),
    )
    problem.check_spent(algorithm.event)
    return algorithm
