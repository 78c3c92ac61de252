"""``dp_svrg`` and ``dp_svrg_plus_plus``: from a budget to epochs, steps and noise."""

import math
from typing import NamedTuple

from dpjax.accounting import (
    Event,
    PrivacyBudget,
    calibrate,
    check_spent,
    compose,
    gaussian_multiplier,
    round_up,
)
from dpjax.algorithms import base
from dpjax.algorithms import svrg_theory as theory
from dpjax.algorithms.common import LONGEST
from dpjax.algorithms.svrg import VarianceReduced, epochs_of
from dpjax.algorithms.svrg_printed import PrintedVarianceReduced, printed
from dpjax.objectives import Objective
from dpjax.oracles import AnchorQuery, DifferenceQuery, poisson_sampler
from dpjax.oracles.difference import LEAST


class _Schedule(NamedTuple):
    """Epochs of m steps or 2^s m, of which the last may end early, and all their steps."""

    epoch_length: int
    steps: int


def dp_svrg(
    objective: Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    epochs: int | None = None,
    epoch_length: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    step_size: float | None = None,
    clip_norm: float | None = None,
    smoothness: float | None = None,
    strong_convexity: float | None = None,
    initial_gap: float | None = None,
    anchor: str = "noisy",
    anchor_share: float = 0.6,
    capacity: int | None = None,
    accountant: str = "pld",
    unsafe_fast_noise: bool = False,
) -> VarianceReduced | PrintedVarianceReduced:
    """Returns DP-SVRG, calibrated to the budget: for strongly convex objectives with a prox.

    Args:
      objective: what to minimise; its regularizer enters by its proximal operator.
      budget: what a whole run may spend.
      data_size: the declared public number of records n.
      dimension: number of parameters p.
      epochs: T; by default theorem 4.2's, log2(gap n^2 epsilon^2 mu / (p G^2 ln(1/delta))): each
        epoch halves the gap, until the noise is left.
      epoch_length: m; by default the least of inequality (4), about 2 / (eta mu).
      steps: inner steps in all, instead of ``epochs``; the last epoch may then end early.
      batch_size: expected size of a Poisson batch; by default n / (2 m), at least 128 and at most
        16,384, so that the steps of an epoch read as much as its anchor. ``data_size`` asks every
        record at every step.
      step_size: eta; by default 1 / L, for batches below 32 records b / (32 L).
      clip_norm: bound on one record's gradient; by default the objective's Lipschitz constant G.
      smoothness: L of the data term; by default the objective's constant. Clipping enforces it.
      strong_convexity: mu; by default the regularizer's.
      initial_gap: public bound on F(x0) - min F, used for T; by default phi(0) of a margin loss.
      anchor: ``"noisy"``: the anchor's gradient is a release of its own. ``"exact"``: the printed
        form, whose exact gradient at the anchor is secret state of the run and enters every step
        before the noise; more noise, and for ``"pld"`` without ``replace_one`` alone.
      anchor_share: part of mu^2, the square of the budget's Gaussian mu, for the anchors.
      capacity: the most records a batch holds; by default the fewest that delta hardly notices.
      accountant: ``"pld"`` or ``"rdp"``; the paper's noise formula is not private, see Reference.
      unsafe_fast_noise: plain float32 noise, see ``mechanisms.perturb``; NOT for a release.

    Returns:
      A frozen pytree for ``solve``; its output is the mean of the iterates of the last epoch.

    Raises:
      ValueError: for an argument out of range, a constant that is missing, a regularizer without a
        proximal operator, or a budget that no noise reaches.

    Warns:
      UserWarning: if ``step_size`` is above the theorem's bound.

    Privacy: releases T clipped mean gradients and, at every inner step, the clipped difference to
      the anchor on a Poisson batch of its own, with Gaussian noise; every iterate is covered. With
      ``anchor="exact"`` a step releases the sum of both, a mixture of Gaussians.

    Reference: Wang, Ye and Xu (2017), algorithm 1 and theorem 4.2, with the noise split in two:
      noise in one piece has to hide the anchor's exact gradient at every step. For batches the
      variance in inequality (4) is divided by b, as in Konecny, Liu, Richtarik and Takac,
      "Mini-batch semi-stochastic gradient descent in the proximal setting" (2016).

    >>> from dpjax import objectives
    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dp_svrg(
    ...     objectives.logistic_l2(1e-2), budget, data_size=10_000, dimension=10, epochs=4)
    >>> [(release.name, release.count) for release in algorithm.event.releases]
    [('anchor', 4), ('difference', 248)]
    """
    problem = theory.check_problem(objective, budget, data_size, dimension, accountant, anchor)
    asked = theory.asked(objective, clip_norm, smoothness, batch_size, capacity, anchor_share)
    asked = asked._replace(unsafe_fast_noise=unsafe_fast_noise)
    mu = theory.strong_convexity(objective, strong_convexity)
    length = theory.optional_count("epoch_length", epoch_length)
    usual = length
    if usual is None:
        first = theory.first_step_size(asked, step_size)
        usual = 2 / (first * theory.needed(objective, mu, "epoch_length"))
    asked = asked.sized(problem.data_size, usual)
    eta = theory.step_size(asked, problem.data_size, step_size, (12, 32))
    if length is None:
        length = theory.contracting_length(asked, problem.data_size, eta, mu)
    if steps is None and epochs is None:
        gap = base.initial_gap(objective, initial_gap)
        noise = theory.noise(problem, asked.clip_norm) ** 2 / theory.needed(objective, mu, "epochs")
        epochs = max(1, math.ceil(math.log2(max(gap / noise, 1.0))))
    steps = theory.all_steps(epochs, steps, lambda count: count * length)
    return _configured(problem, asked, _Schedule(length, steps), eta, False, anchor)


def dp_svrg_plus_plus(
    objective: Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    epochs: int | None = None,
    epoch_length: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    step_size: float | None = None,
    clip_norm: float | None = None,
    smoothness: float | None = None,
    initial_gap: float | None = None,
    anchor: str = "noisy",
    anchor_share: float = 0.6,
    capacity: int | None = None,
    accountant: str = "pld",
    unsafe_fast_noise: bool = False,
) -> VarianceReduced | PrintedVarianceReduced:
    """Returns DP-SVRG++, calibrated to the budget: for convex objectives, strongly or not.

    Epoch s has 2^s m steps and goes on where the one before ended; only the anchor is an average.

    Args:
      objective: as ``dp_svrg``.
      budget: what a whole run may spend.
      data_size: the declared public number of records n.
      dimension: number of parameters p.
      epochs: T; by default theorem 4.4's, log2(gap n epsilon / (G sqrt(p ln(1/delta)))).
      epoch_length: m; by default 1 / eta, theorem 4.4's order of L.
      steps: inner steps in all, instead of ``epochs``; the last epoch may then end early.
      batch_size: expected size of a Poisson batch; by default such that all steps together read as
        much as all anchors, if eta is 1 / L or what is given; at least 128 and at most 16,384.
      step_size: eta; by default 1 / L, for batches below 13 records b / (13 L).
      clip_norm: as ``dp_svrg``.
      smoothness: as ``dp_svrg``.
      initial_gap: as ``dp_svrg``.
      anchor: as ``dp_svrg``.
      anchor_share: as ``dp_svrg``.
      capacity: as ``dp_svrg``.
      accountant: as ``dp_svrg``.
      unsafe_fast_noise: as ``dp_svrg``.

    Returns:
      A frozen pytree for ``solve``; its output is the mean of the iterates of the last epoch.

    Raises:
      ValueError: as ``dp_svrg``.

    Warns:
      UserWarning: if ``step_size`` is above the theorem's bound.

    Privacy: as ``dp_svrg``.

    Reference: Wang, Ye and Xu (2017), algorithm 2 and theorem 4.4, after Allen-Zhu and Yuan (2016);
      noise and batches as in ``dp_svrg``.

    >>> from dpjax import objectives
    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dp_svrg_plus_plus(
    ...     objectives.logistic(), budget, data_size=10_000, dimension=10, epochs=4)
    >>> [(release.name, release.count) for release in algorithm.event.releases]
    [('anchor', 4), ('difference', 30)]
    """
    problem = theory.check_problem(objective, budget, data_size, dimension, accountant, anchor)
    asked = theory.asked(objective, clip_norm, smoothness, batch_size, capacity, anchor_share)
    asked = asked._replace(unsafe_fast_noise=unsafe_fast_noise)
    if steps is None and epochs is None:
        gap = base.initial_gap(objective, initial_gap)
        ratio = gap / theory.noise(problem, asked.clip_norm)
        epochs = max(1, math.ceil(math.log2(max(ratio, 1.0))))
    length = theory.optional_count("epoch_length", epoch_length)

    def planned(length: int) -> int:
        return theory.all_steps(epochs, steps, lambda count: (2 ** (count + 1) - 2) * length)

    first = length or math.ceil(1 / theory.first_step_size(asked, step_size))
    usual = planned(first) / epochs_of(planned(first), first, True)
    asked = asked.sized(problem.data_size, usual)
    eta = theory.step_size(asked, problem.data_size, step_size, (13, 13))
    length = length or math.ceil(1 / eta)
    return _configured(problem, asked, _Schedule(length, planned(length)), eta, True, anchor)


def _configured(
    problem: base.Problem,
    asked: theory.Asked,
    schedule: _Schedule,
    step_size: float,
    doubling: bool,
    anchored: str,
) -> VarianceReduced | PrintedVarianceReduced:
    objective, budget, n, dimension, accountant = problem
    max_steps = max(1 << (schedule.steps - 1).bit_length(), LONGEST)
    if anchored == "exact":
        return printed(
            problem, asked, schedule, step_size=step_size, doubling=doubling, max_steps=max_steps
        )
    epochs = epochs_of(schedule.steps, schedule.epoch_length, doubling)
    anchors = gaussian_multiplier(budget, epochs, accountant)
    anchors = round_up(anchors / math.sqrt(asked.anchor_share))
    anchor = AnchorQuery(anchors, asked.clip_norm, objective, n, budget.relation)
    size = asked.batch_size or n
    sampler = poisson_sampler(size, n, budget, schedule.steps, asked.capacity)

    def difference(multiplier: float) -> DifferenceQuery:
        norms = (asked.clip_norm, asked.smoothness)
        return DifferenceQuery(multiplier, *norms, objective, n, budget.relation, sampler)

    def event(multiplier: float) -> Event:
        differences = difference(multiplier).event(schedule.steps)
        return compose([anchor.event(epochs), differences])

    query = difference(calibrate(event, budget, accountant))
    anchor, query = base.fast_noise((anchor, query), asked.unsafe_fast_noise)
    made = VarianceReduced(
        anchor=anchor,
        difference=query,
        step_size=base.positive_leaf("step_size", step_size),
        epoch_length=schedule.epoch_length,
        steps=schedule.steps,
        declared=base.Declared(budget.epsilon, budget.delta),
        doubling=doubling,
        max_steps=max_steps,
        dimension=dimension,
        accountant=accountant,
    )
    base.check_noise(anchor.event(epochs))
    base.check_noise(query.event(schedule.steps), LEAST)
    check_spent(made.event, budget, accountant, "use 'pld'.")
    return made
