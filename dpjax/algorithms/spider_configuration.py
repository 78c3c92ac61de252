"""From a problem and settings to a configured Spider: noise, batches, thresholds and scores."""

import math
from typing import Any

from scipy import stats

from dpjax import _validate
from dpjax.accounting import PrivacyBudget, check_spent, gaussian_multiplier, round_up
from dpjax.algorithms import base
from dpjax.algorithms.common import check_smooth
from dpjax.algorithms.spider import Spider, score_bounds
from dpjax.algorithms.spider_settings import LONGEST, Constants, Norms, Selection, Settings, pace
from dpjax.algorithms.spider_theory import Scale, target
from dpjax.mechanisms import PrefixNoise, prefix_noise
from dpjax.objectives import Objective
from dpjax.oracles import LEAST, EstimateQuery, ScoreQuery, single_passes

_HORIZON = 512
_BATCHES = 8
# Hessians of more parameters than this are not formed by default.
_LARGEST = 512
_CANDIDATES = 8


def configure(
    problem: base.Problem,
    name: str,
    settings: Settings,
    selection: Selection,
    norms: Norms,
    alpha: float | None,
    unsafe_fast_noise: bool,
    kind: Any = Spider,
    **more: Any,
) -> Any:
    """Returns the configuration that ``stochastic_spider`` and its variants share.

    Args:
      problem: checked.
      name: for people.
      settings: see ``Settings``.
      selection: see ``Selection``.
      norms: clip norms and constants that were given.
      alpha: as in ``stochastic_spider``.
      unsafe_fast_noise: likewise.
      kind: ``Spider`` or a subclass of it.
      **more: its own fields.
    """
    objective, budget = problem.objective, problem.budget
    check_smooth(objective, name)
    _check_relation(budget, name)
    constants = _constants(objective, norms)
    estimate, score, scale, alpha = _queries(problem, settings, selection, constants, alpha)
    estimate, *scores = base.fast_noise(
        (estimate,) if score is None else (estimate, score), unsafe_fast_noise
    )
    curvature = math.sqrt(constants.hessian_lipschitz * alpha)
    steps = _validate.positive_int("steps", LONGEST if settings.steps is None else settings.steps)
    beta = _validate.open_unit("beta", selection.beta)
    made = kind(
        estimate=estimate,
        score=scores[0] if scores else None,
        **pace(settings, scale, alpha, estimate, curvature, objective),
        difference_size=_difference_size(settings, estimate),
        tolerances=(base.positive_leaf("alpha", alpha), base.positive_leaf("curvature", curvature)),
        bounds=score_bounds(scores[0], _quantile(beta, scores[0].candidates)) if scores else None,
        beta=beta,
        steps=steps,
        declared=base.Declared(budget.epsilon, budget.delta),
        name=name,
        squared_drift=settings.squared_drift,
        max_steps=max(steps, LONGEST),
        dimension=problem.dimension,
        unclipped=_never_clips(objective, constants),
        accountant=problem.accountant,
        **more,
    )
    independent = estimate.noise.kind == "independent"
    # Independent noise falls with what a difference can move, to that share at least.
    base.check_noise(made.event, LEAST if independent else 1.0)
    advice = "use accountant='pld'."
    check_spent(made.event, budget, base.recount_accountant(problem.accountant), advice)
    return made


def _queries(
    problem: base.Problem,
    settings: Settings,
    selection: Selection,
    constants: Constants,
    alpha: float | None,
) -> tuple[EstimateQuery, ScoreQuery | None, Scale, float]:
    """Both queries, how loud the noise is, and the target."""
    n, relation = problem.data_size, problem.budget.relation
    candidates = _candidates(selection, problem.dimension)
    train, last = single_passes(n, _kept(selection, candidates, n))
    noise = _noise(settings, problem)
    multiplier = _multiplier(problem, noise)
    moved = train.scale(1.0, relation) * train.expected
    loudness = multiplier * noise.sensitivity * float(noise.stddevs().max())
    scale = Scale(
        constants.clip_norm,
        constants.smoothness,
        constants.initial_gap,
        moved * loudness * math.sqrt(problem.dimension),
    )
    batch = _batch(settings, scale, alpha, int(train.expected))
    estimate = EstimateQuery(
        multiplier,
        constants.clip_norm,
        constants.smoothness,
        batch,
        noise,
        problem.objective,
        n,
        relation,
        train,
    )
    score = None
    if last is not None:
        score = ScoreQuery(
            multiplier,
            constants.clip_norm,
            constants.hessian_clip_norm,
            problem.objective,
            n,
            relation,
            last,
            problem.dimension,
            candidates,
        )
    return estimate, score, scale, target(scale, int(train.expected), alpha)


def _check_relation(budget: PrivacyBudget, name: str) -> None:
    if budget.relation == "add_or_remove_one":
        raise ValueError(
            f"{name} reads each record once, in order, and has no accounting under "
            "relation='add_or_remove_one': removing a record shifts later ones into other "
            "batches. Declare zero_out or replace_one, for which n is public."
        )


def _constants(objective: Objective, norms: Norms) -> Constants:
    clip, _ = base.clip_norms(objective, norms.clip_norm, 1.0)
    smoothness = norms.smoothness
    if smoothness is None and (smoothness := _usual(objective, "smoothness")) is None:
        raise ValueError(f"smoothness is required: {objective.name} has no constants.")
    hessian_clip = norms.hessian_clip_norm
    rho = norms.hessian_lipschitz
    if rho is None and (rho := _usual(objective, "hessian_lipschitz")) is None:
        raise ValueError(f"hessian_lipschitz is required: {objective.name} has no constants.")
    return Constants(
        clip,
        base.positive_leaf("smoothness", smoothness),
        base.positive_leaf(
            "hessian_clip_norm", smoothness if hessian_clip is None else hessian_clip
        ),
        _validate.normal("hessian_lipschitz", rho),
        base.initial_gap(objective, norms.initial_gap),
    )


def _candidates(selection: Selection, dimension: int) -> int:
    if selection.candidates is None:
        return _CANDIDATES if dimension <= _LARGEST else 0
    if selection.candidates == 0:
        return 0
    return _validate.positive_int("candidates", selection.candidates)


def _quantile(beta: float, candidates: int) -> float:
    # All 2 K numbers must hold at once: which are certified is chosen by looking at them.
    return float(stats.norm.isf(beta / (2 * candidates)))


def _never_clips(objective: Objective, constants: Constants) -> bool:
    """Whether neither gradients nor Hessians are clipped on rows |x| <= 1, provably."""
    if objective.constants is None or not base.never_clips(objective, constants.clip_norm):
        return False
    return constants.hessian_clip_norm >= base.to_leaf(objective.constants.smoothness)


def _usual(objective: Objective, constant: str) -> float | None:
    """A constant of the objective; where it has none, its usual Hessian clip norm."""
    if objective.constants is not None:
        return getattr(objective.constants, constant)
    return None if objective.defaults is None else objective.defaults.hessian_clip_norm


def _kept(selection: Selection, candidates: int, n: int) -> int:
    if candidates == 0:
        return 0
    share = _validate.open_unit("kept", selection.kept)
    kept = max(1, round(share * n))
    if kept >= n:
        raise ValueError(f"kept={share:g} of data_size={n} leaves no record to train on; lower it.")
    return kept


def _noise(settings: Settings, problem: base.Problem) -> PrefixNoise:
    horizon = _HORIZON if settings.horizon is None else settings.horizon
    kind = settings.noise
    if problem.accountant == "paper":
        if kind not in (None, "tree"):
            raise ValueError(
                f"accountant='paper' assumes the noise of a binary tree, got noise={kind!r}; pass "
                "noise='tree'."
            )
        kind = "tree"
    return prefix_noise(horizon, problem.dimension, kind)


def _multiplier(problem: base.Problem, noise: PrefixNoise) -> float:
    """Standard deviation over the sensitivity of all that one record enters."""
    budget = problem.budget
    if problem.accountant != "paper":
        return gaussian_multiplier(budget, 1, problem.accountant)
    # Theorem 2.2: sigma = 4 s sqrt(ln K ln(1 / delta)) / epsilon on every node.
    logs = math.log(max(noise.horizon, 2)) * math.log(1 / budget.delta)
    return round_up(4 * math.sqrt(logs) / budget.epsilon / noise.sensitivity)


def _batch(settings: Settings, scale: Scale, alpha: float | None, records: int) -> int:
    batch = settings.batch_size
    if batch is None:
        batch = max(1, records // _BATCHES)
        if alpha is not None:
            batch = min(math.ceil(scale.batch(_validate.normal("alpha", alpha))), records)
    batch = _validate.positive_int("batch_size", batch)
    if batch > records:
        raise ValueError(
            f"the first batch takes batch_size={batch:,} records, and there are {records:,} to "
            "train on; lower it, or hold out fewer for the selection."
        )
    return batch


def _difference_size(settings: Settings, estimate: EstimateQuery) -> int | None:
    if not settings.fixed:
        return None
    if settings.difference_size is None:
        return max(1, int(estimate.batch_size) // 8)
    return _validate.positive_int("difference_size", settings.difference_size)
