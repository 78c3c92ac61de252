"""Noise of DP-GD with selection, and its factory ``dp_gradient_descent_with_selection``."""

import math

from dpjax import _validate
from dpjax.accounting import (
    Event,
    PrivacyBudget,
    calibrate,
    check_spent,
    compose,
    gumbel_multiplier,
    round_up,
)
from dpjax.algorithms import base
from dpjax.algorithms.certificate import CLIP_SLACK, NoiseBounds
from dpjax.algorithms.common import proximal
from dpjax.algorithms.gradient_descent import (
    default_step_size,
    paper_multiplier,
    theory_steps,
)
from dpjax.baselines.gradient_descent_selected import SelectedGradientDescent
from dpjax.linalg import chi_quantile
from dpjax.objectives import Objective
from dpjax.oracles import GradientQuery, SelectionQuery


def dp_gradient_descent_with_selection(
    objective: Objective,
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
    unsafe_fast_noise: bool = False,
) -> SelectedGradientDescent:
    """Returns DP-GD that ends with the private selection of an alpha-SOSP among its iterates.

    Args:
      objective: what to minimise.
      budget: what a whole run may spend, selection included.
      data_size: the declared public number of records n.
      dimension: number of parameters p.
      steps: T; by default as ``dp_gradient_descent``. The last gradient is only for choosing.
      step_size: eta; by default 1 / smoothness of the whole objective.
      alpha: tolerance of the second-order point, |gradient| <= alpha and lambda_min >=
        -sqrt(rho alpha).
      selection_epsilon: pure epsilon of the selection, below that of the budget; by default a tenth
        of it and at most 1, which leaves about 97 % of the gradients' signal.
      candidates: K, how many iterates to choose from, evenly spaced. Each costs one pass for its
        Hessian; the privacy cost is that of one, for any K.
      clip_norm: bound on one record's gradient; by default the objective's Lipschitz constant.
      hessian_clip_norm: bound on one record's Hessian; by default its smoothness.
      hessian_lipschitz: rho; by default the objective's constant.
      initial_gap: public bound on L(w0) - min L, used for T; by default phi(0) of a margin loss.
      accountant: ``"pld"``, ``"rdp"``, or ``"paper"`` for the gradient noise of the
        paper's formula as in ``dp_gradient_descent``, with room left for the selection
        (replace-one); the epsilon of both is recomputed.
      certify: ``"output"`` or None.
      beta: probability that the certificate fails.
      unsafe_fast_noise: plain float32 noise, see ``mechanisms.perturb``; NOT for a release.

    Returns:
      A frozen pytree for ``solve``; ``output`` is the selected iterate, one of w_0 .. w_{T-1}.

    Raises:
      ValueError: for an argument out of range, a constant that is missing, or a budget that no
        noise reaches.

    Privacy: releases T clipped mean gradients with Gaussian noise and one place among K, chosen by
      the exponential mechanism. The gradient test reuses the released gradients and is free; only
      lambda_min reads records, with sensitivity C_H / n (``replace_one``: 2 C_H / n). The scores
      are wrong by (2 C_H / (n eps_s)) 2 ln(K / b) with probability b at most. Sparse vector would
      stop at the first success for four times the error: the descent is over when it is asked.

    Reference: Wang, Chen and Xu (ICML 2019), the descent and selection that Wang and Xu (2020),
      remark 2, compare with.

    >>> from dpjax import objectives
    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dp_gradient_descent_with_selection(
    ...     objectives.logistic(), budget, data_size=10_000, dimension=10)
    >>> [(release.name, release.count) for release in algorithm.event.releases]
    [('gradient', 440), ('selection', 1)]
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    clip, hessian_clip = base.clip_norms(objective, clip_norm, hessian_clip_norm)
    if certify not in (None, "output"):
        raise ValueError(f"certify must be 'output' or None, got {certify!r}.")
    usual = default_step_size(objective) if step_size is None else step_size
    step_size = _validate.normal("step_size", usual)
    if steps is None:
        steps = theory_steps(problem, clip, step_size, initial_gap)
    steps = _validate.positive_int("steps", steps)
    asked = SelectionQuery(
        _selection_multiplier(budget, selection_epsilon),
        hessian_clip,
        *_tolerances(objective, alpha, hessian_lipschitz),
        problem.objective,
        problem.data_size,
        budget.relation,
        problem.dimension,
        _validate.positive_int("candidates", candidates),
    )
    multiplier = _gradient_multiplier(budget, steps, asked, accountant)
    gradient = GradientQuery(multiplier, clip, asked.objective, asked.data_size, asked.relation)
    query, selection = base.fast_noise((gradient, asked), unsafe_fast_noise)
    event = compose([query.event(steps), selection.event(1)])
    base.check_noise(event)
    check_spent(event, budget, base.recount_accountant(accountant), "use 'pld'.")
    beta = _validate.open_unit("beta", beta)
    return SelectedGradientDescent(
        query=query,
        selection=selection,
        step_size=base.positive_leaf("step_size", step_size),
        bounds=_noise_bounds(query, problem.dimension, beta / asked.candidates),
        beta=beta,
        **problem.plan(steps),
        certified=certify is not None,
        unclipped=base.never_clips(objective, clip) and budget.relation != "add_or_remove_one",
    )


def _noise_bounds(query: GradientQuery, dimension: int, each: float) -> NoiseBounds:
    # One of the candidates is certified, chosen by looking at the noise: all must hold at once.
    noise = float(query.stddev) * chi_quantile(dimension, 1 - each)
    return NoiseBounds(round_up(noise + CLIP_SLACK * float(query.clip_norm)), None)


def _selection_multiplier(budget: PrivacyBudget, selection_epsilon: float | None) -> float:
    share = min(budget.epsilon / 10, 1.0) if selection_epsilon is None else selection_epsilon
    if _validate.positive("selection_epsilon", share) >= budget.epsilon:
        raise ValueError(
            f"selection_epsilon must be below the budget's epsilon={budget.epsilon:g}, "
            f"got {share!r}; the gradients need the rest."
        )
    return round_up(gumbel_multiplier(share))


def _tolerances(
    objective: Objective, alpha: float, hessian_lipschitz: float | None
) -> tuple[float, float]:
    if proximal(objective):
        raise ValueError(
            f"the regularizer of {objective.name} must be smooth: an alpha-SOSP is a point of "
            "small gradient, and a set or an l1 penalty has none; take dp_gradient_descent."
        )
    alpha = base.positive_leaf("alpha", alpha)
    if hessian_lipschitz is None:
        if objective.constants is None:
            raise ValueError(f"hessian_lipschitz is required: {objective.name} has no constants.")
        hessian_lipschitz = objective.constants.hessian_lipschitz
    rho = _validate.normal("hessian_lipschitz", hessian_lipschitz)
    return alpha, base.positive_leaf("sqrt(hessian_lipschitz alpha)", math.sqrt(rho * alpha))


def _gradient_multiplier(
    budget: PrivacyBudget, steps: int, asked: SelectionQuery, accountant: str
) -> float:
    if accountant == "paper":
        return paper_multiplier(budget, steps)
    selection = asked.event(1)

    def make_event(scale: float) -> Event:
        unit = GradientQuery(scale, 1.0, asked.objective, asked.data_size, asked.relation)
        return compose([unit.event(steps), selection])

    return calibrate(make_event, budget, accountant)
