"""DP-GD with selection (Wang, Chen and Xu 2019): noisy descent, then the best of its iterates."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate, objectives
from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax._wide import at_least_float32
from dpjax.accounting import Event, PrivacyBudget, compose, gumbel_multiplier, round_up
from dpjax.algorithms import base
from dpjax.algorithms.base import StepInfo
from dpjax.algorithms.certificate import Certificate, NoiseBounds, certify
from dpjax.algorithms.gradient_descent import default_step_size, noise_bounds, theory_steps
from dpjax.oracles import GradientQuery, SelectionQuery


class SelectedState(NamedTuple):
    """The state of DP-GD with selection; all of it released."""

    params: Params
    count: Array
    candidates: Params
    """Iterates along the way, stacked."""
    gradients: Params
    """The noisy gradients at the candidates, without the regularizer."""
    norms: Array
    """Norms of these gradients with the regularizer."""
    selected: Array
    """Index of the selected candidate; known after the last step."""


@pytree_dataclass
class SelectedGradientDescent(base.FieldsAlgorithm):
    """Configuration of DP-GD with selection; made by ``dp_gradient_descent_with_selection``."""

    query: GradientQuery
    selection: SelectionQuery | None
    step_size: Array | float
    bounds: NoiseBounds
    beta: Array | float
    candidates: int = static()
    certified: bool = static()
    unclipped: bool = static()

    @property
    def title(self) -> str:
        return "DP-GD with selection" + " (by released gradients)" * (self.selection is None)

    @property
    def event(self) -> Event:
        return _event(self.query, int(self.steps), self.selection)

    def init(self, params: Params) -> SelectedState:
        size, wide = self.candidates, at_least_float32(params)
        candidates, gradients = jax.tree.map(
            lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), (params, wide)
        )
        norms = jnp.zeros(size, jnp.result_type(*jax.tree.leaves(wide)))
        zero = jnp.zeros((), jnp.int32)
        return SelectedState(params, zero, candidates, gradients, norms, zero)

    def step(
        self, key: Array, state: SelectedState, ask: base.Ask
    ) -> tuple[SelectedState, StepInfo]:
        gradient = ask(self.query, state.params)
        direction = self.objective.regularize_gradient(gradient, at_least_float32(state.params))
        norm = optax.tree.norm(direction)
        # Candidates are spread evenly: of every span of steps the last one stays. The loop ends at
        # ``max_steps``, also if a plan of more steps was put into the pytree.
        horizon = jnp.minimum(jnp.asarray(self.steps, jnp.int32), self.max_steps)
        filled = jnp.minimum(self.candidates, horizon)
        index = state.count * filled // horizon

        def put(stacked: Array, new: Array) -> Array:
            return stacked.at[index].set(new.astype(stacked.dtype))

        candidates = jax.tree.map(put, state.candidates, state.params)
        norms = put(state.norms, norm)
        last = state.count + 1 == horizon
        if self.selection is None:
            # A norm that is NaN is not comparable, so that argmin could return it.
            known = (jnp.arange(self.candidates) < filled) & (norms >= 0)
            selected = jnp.argmin(jnp.where(known, norms, jnp.inf)).astype(jnp.int32)
        else:
            # Asked about no candidate, before the last step, it reads no record and says nothing.
            asked = jnp.where(last, filled, 0)
            selected = ask(self.selection, candidates, gradient_norms=norms, filled=asked)
        # The step after the last gradient is taken as well, but its iterate is no candidate.
        params = jax.tree.map(
            lambda w, g: w - (self.step_size * g).astype(w.dtype), state.params, direction
        )
        gradients = jax.tree.map(put, state.gradients, gradient)
        count = state.count + 1
        after = SelectedState(params, count, candidates, gradients, norms, selected)
        return after, StepInfo(norm, self.step_size * norm)

    def output(self, state: SelectedState) -> Params:
        return jax.tree.map(lambda stacked: stacked[state.selected], state.candidates)

    def certify(
        self, key: Array, state: SelectedState, ask: base.Ask, bounded_rows: bool
    ) -> tuple[Certificate | None, Params | None]:
        if not self.certified:
            return None, None
        output = self.output(state)
        gradient = jax.tree.map(lambda stacked: stacked[state.selected], state.gradients)
        return certify(self, output, (gradient, None), "output", bounded_rows)


def dp_gradient_descent_with_selection(
    objective: objectives.Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    steps: int | None = None,
    step_size: float | None = None,
    alpha: float = 0.1,
    selection_epsilon: float | None = None,
    candidates: int = 32,
    clip_norm: float | None = None,
    hessian_clip_norm: float | None = None,
    hessian_lipschitz: float | None = None,
    initial_gap: float | None = None,
    accountant: str = "pld",
    certify: str | None = "output",
    beta: float = 0.05,
) -> SelectedGradientDescent:
    """Returns DP-GD that ends with the private selection of an alpha-SOSP among its iterates.

    Args:
      steps: T; by default as ``dp_gradient_descent``. The last gradient is only for the selection.
      step_size: eta; by default 1 / smoothness of the whole objective.
      alpha: tolerance of the second-order point, |gradient| <= alpha and lambda_min >=
        -sqrt(rho alpha).
      selection_epsilon: pure epsilon of the selection, below that of the budget; by default a tenth
        of it and at most 1, which leaves about 97 % of the gradients' signal. 0, the default on a
        TPU, where there is no float64 for eigenvalues, selects by the released gradients alone.
      candidates: K, how many iterates to choose from, evenly spaced. Each costs one pass for its
        Hessian; the privacy cost is that of one, for any K.
      hessian_clip_norm: bound on one record's Hessian; by default its smoothness.
      hessian_lipschitz: rho; by default the objective's, its regularizer included.
      certify: ``"output"`` or None.
      the others: the same in all factories, see ``help(dpjax.algorithms)``.

    Privacy: releases T clipped mean gradients with Gaussian noise and one index among K, chosen by
      the exponential mechanism. The gradient test reuses the released gradients and is free; only
      lambda_min reads records, with sensitivity C_H / n (``replace_one``: 2 C_H / n). The scores
      are wrong by (2 C_H / (n eps_s)) 2 ln(K / b) with probability b at most. Sparse vector would
      stop at the first success for four times the error, but save nothing: the descent is over.

    Reference: Wang, Chen and Xu (ICML 2019), the descent and selection that Wang and Xu (2020),
      remark 2, compare with.

    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dp_gradient_descent_with_selection(
    ...     objectives.logistic(), budget, data_size=10_000, dimension=10)
    >>> [(release.name, release.count) for release in algorithm.event.releases]
    [('gradient', 440), ('selection', 1)]
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    # An alpha-SOSP is a point of small gradient, and a set or an l1 penalty has none.
    base.check_smooth(objective, "DP-GD with selection")
    clip, hessian_clip = base.clip_norms(objective, clip_norm, hessian_clip_norm)
    if certify not in (None, "output"):
        raise ValueError(f"certify must be 'output' or None, got {certify!r}.")
    step_size = default_step_size(objective) if step_size is None else step_size
    step_size = _validate.normal("step_size", step_size)
    if steps is None:
        steps = theory_steps(problem, clip, step_size, initial_gap)
    steps = _validate.int32_count("steps", steps)
    candidates = _validate.positive_int("candidates", candidates)
    alpha, usual = base.positive_leaf("alpha", alpha), objective.hessian_lipschitz
    rho = base.required("hessian_lipschitz", hessian_lipschitz, usual, objective)
    curvature = math.sqrt(_validate.normal("hessian_lipschitz", rho) * alpha)
    selection = _selection(
        problem,
        selection_epsilon,
        clip_norm=hessian_clip,
        gradient_tolerance=alpha,
        curvature_tolerance=base.positive_leaf("sqrt(hessian_lipschitz alpha)", curvature),
        candidates=candidates,
    )
    unit = GradientQuery(setting=problem.setting, noise_multiplier=1.0, clip_norm=clip)
    query = problem.calibrated(unit, lambda query: _event(query, steps, selection))
    beta = _validate.open_unit("beta", beta)
    algorithm = SelectedGradientDescent(
        query=query,
        selection=selection,
        step_size=base.positive_leaf("step_size", step_size),
        # One of the candidates is certified, chosen by looking at the noise: all must hold at once.
        bounds=noise_bounds(query, problem.dimension, beta / candidates),
        beta=beta,
        candidates=candidates,
        certified=certify is not None,
        unclipped=base.never_clips(objective, budget.relation, clip),
        **problem.plan(steps),
    )
    problem.check_spent(algorithm.event)
    return algorithm


def _selection(
    problem: base.Problem, selection_epsilon: float | None, **fields: Any
) -> SelectionQuery | None:
    """Returns the query at the end; None where released gradients alone decide."""
    budget = problem.budget
    # A TPU has no float64, which the eigenvalues of the exact Hessians need.
    if selection_epsilon is None and jax.default_backend() != "tpu":
        selection_epsilon = min(budget.epsilon / 10, 1.0)
    if not selection_epsilon:
        return None
    if _validate.positive("selection_epsilon", selection_epsilon) >= budget.epsilon:
        raise ValueError(
            f"selection_epsilon must be below the budget's epsilon={budget.epsilon:g}, "
            f"got {selection_epsilon!r}; the gradients need the rest."
        )
    # It becomes a float32 leaf; rounded up first, it equals the number that is accounted.
    multiplier = round_up(gumbel_multiplier(selection_epsilon))
    if math.isinf(multiplier):
        raise ValueError(f"no noise reaches epsilon={selection_epsilon:g} of the selection.")
    return SelectionQuery(
        setting=problem.setting, noise_multiplier=multiplier, dimension=problem.dimension, **fields
    )


def _event(query: GradientQuery, steps: int, selection: SelectionQuery | None) -> Event:
    return compose([query.event(steps), *([] if selection is None else [selection.event(1)])])
