"""Stochastic Spider (Liu and Talwar 2024, algorithm 2): one pass, batches grow with the step."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate, objectives
from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax._wide import at_least_float32
from dpjax.accounting import Event, PrivacyBudget, parallel
from dpjax.algorithms import base
from dpjax.algorithms import spider_theory as theory
from dpjax.algorithms.certificate import Certificate, NoiseBounds, scope_of
from dpjax.oracles import LEAST, EstimateQuery, ScoreQuery, Scores


class SpiderState(NamedTuple):
    """The state of Spider; all of it released."""

    params: Params
    previous: Params
    """The iterate before, to which the estimate belongs."""
    estimate: Params
    """Sum of the noisy increments of this segment: the gradient there, without the regularizer."""
    drift: Array
    """M times the length of the path since the estimate was renewed; infinite before the first."""
    used: Array
    """Number of records read: the position of the next one in the random order."""
    refresh: Array
    """Whether the next step asks for the gradient itself, and not for how it changed."""
    reached: Array
    """Whether that is because b_t has reached b alone."""
    size: Array
    """How many records the next step reads."""
    segment: Array
    leaf: Array
    """Index of the last increment in its segment."""
    count: Array
    """Steps taken; int32."""
    escape: Any
    """The state of the escape rule."""
    candidates: Params
    """Candidates for the output, stacked: the last iterate of each span of records."""
    newest: Array
    """Index of the newest candidate."""
    span_start: Array
    """Records that were read before its span."""
    scores: Scores
    """Noisy scores of the candidates, released when the steps are over."""
    chosen: Array


class SpiderInfo(NamedTuple):
    """Metrics of a step; all of it released."""

    _repr_html_ = base.history_html
    gradient_norm: Array
    """Norm of the estimated gradient, regularizer included, before any kick."""
    step_norm: Array
    """Length of the step taken."""
    batch: Array
    """Records that this step read."""
    used: Array
    """Records read so far."""
    drift: Array
    """M times the length of the path since the estimate was renewed, before this step."""
    refreshed: Array
    """1 where the gradient itself was asked, 0 where its change was."""
    reached: Array
    """1 where it was asked because b_t had reached b, and for no other reason."""
    kicked: Array
    """1 where noise was added to leave a saddle."""


@pytree_dataclass
class Spider(base.FieldsAlgorithm):
    """Configuration of Stochastic Spider; made by ``stochastic_spider``.

    In the paper's notation ``drift_threshold`` is kappa, and ``difference_size`` is b_t.

    Privacy: the event is the same whatever b_t is, as a rule sees the released state alone. A
      record enters one answer at most, since each reads the next unused places, and moves it by
      C / b at most, since a difference is clipped to C b_t / b and divided by b_t (independent
      noise follows what it moves). At most n answers draw noise, since each reads a place.
    """

    estimate: EstimateQuery
    score: ScoreQuery | None
    step_size: Array | float
    drift_threshold: Array | float
    difference_size: Array | int | theory.BatchRule | None
    escape: theory.EscapeRule
    tolerances: tuple[Array | float, Array | float]
    bounds: NoiseBounds | None
    beta: Array | float
    name: str = static()
    unclipped: bool = static()

    @property
    def title(self) -> str:
        return self.name if self.score is not None else f"{self.name} (last iterate)"

    @property
    def event(self) -> Event:
        """To each record one Gaussian mechanism, as it enters one answer at most."""
        (release,) = self.estimate.event(1).releases
        if self.score is not None:
            (scores,) = self.score.event(1).releases
            # The scores read separate records, so only the larger of the two losses counts.
            release = parallel("single_pass", (release, scores))
        return Event((release,), self.relation)

    def init(self, params: Params) -> SpiderState:
        wide = at_least_float32(params)
        dtype = jnp.result_type(*jax.tree.leaves(wide))
        zero, k = jnp.zeros((), jnp.int32), self._candidates
        names = "used", "leaf", "count", "newest", "span_start", "chosen"
        return SpiderState(
            params=params,
            # The first step asks for the gradient itself, so nothing is differenced with the start.
            previous=params,
            estimate=jax.tree.map(jnp.zeros_like, wide),
            drift=jnp.array(jnp.inf, dtype),
            refresh=jnp.array(True),
            reached=jnp.array(False),
            size=jnp.asarray(self.estimate.batch_size, jnp.int32),
            segment=zero - 1,  # the first step opens segment 0
            escape=self.escape.init(params),
            # Unused slots hold the start, and are never chosen.
            candidates=jax.tree.map(lambda w: jnp.broadcast_to(w, (k, *w.shape)), params),
            scores=Scores(jnp.zeros(k, dtype), jnp.zeros(k, dtype)),
            **dict.fromkeys(names, zero),
        )

    def step(self, key: Array, state: SpiderState, ask: base.Ask) -> tuple[SpiderState, SpiderInfo]:
        # Lines 4 to 15: renew or update the estimate, kick at a saddle, and move.
        # Both were settled by the step before, so that ``done`` could see if records are left.
        refresh, size = state.refresh, state.size
        segment = state.segment + refresh.astype(jnp.int32)
        leaf = jnp.where(refresh, 0, state.leaf + 1)
        increment = ask(
            self.estimate,
            state.params,
            anchor=state.previous,
            refresh=refresh,
            start=state.used,
            size=size,
            segment=segment,
            leaf=leaf,
        )
        # A gradient replaces the estimate, a difference adds to it.
        estimate = jax.tree.map(
            lambda old, new: jnp.where(refresh, 0, old) + new.astype(old.dtype),
            state.estimate,
            increment,
        )
        old = at_least_float32(state.params)
        gradient = self.objective.regularize_gradient(estimate, old)
        push, kicked, escape = self.escape.update(key, gradient, state.escape, state.params)
        forgets = refresh | (kicked & self.escape.forgets_drift)
        drift = jnp.where(forgets, 0, state.drift)
        move = jax.tree.map(lambda g, z: -self.step_size * (g + z).astype(g.dtype), gradient, push)
        moved = jax.tree.map(lambda w, m: w + m.astype(w.dtype), state.params, move)
        # Of the parameters as they are rounded: the next difference is taken between these.
        length = optax.tree.norm(jax.tree.map(jnp.subtract, at_least_float32(moved), old))
        used = state.used + size
        newest, span_start = self._candidate(state, used)
        metrics = (size, used, drift, refresh, state.reached, kicked)
        metrics = (value.astype(length.dtype) for value in metrics)
        info = SpiderInfo(optax.tree.norm(gradient), length, *metrics)
        state = state._replace(
            params=moved,
            previous=state.params,
            estimate=estimate,
            drift=drift + self.drift_of(length),
            used=used,
            segment=segment,
            leaf=leaf,
            count=state.count + 1,
            escape=escape,
            candidates=jax.tree.map(lambda all, w: all.at[newest].set(w), state.candidates, moved),
            newest=newest,
            span_start=span_start,
        )
        refresh, reached, size = self._next(state)
        return state._replace(refresh=refresh, reached=reached, size=size), info

    def drift_of(self, length: Array) -> Array:
        """Returns what a step of that length adds to the drift."""
        return self.estimate.smoothness * length

    def done(self, state: SpiderState) -> Array:
        return self.escape.ended(state.escape) | (state.size > self._last - state.used)

    def termination_status(self, state: SpiderState) -> Array:
        ended = self.escape.ended(state.escape)
        return jnp.where(ended, base.Status.STOPPED, base.Status.EXHAUSTED)

    def finalize(self, key: Array, state: SpiderState, ask: base.Ask) -> SpiderState:
        if self.score is None:
            return state
        filled = state.newest + 1
        scores = ask(self.score, state.candidates, filled=filled)
        scores = jax.tree.map(lambda new, old: new.astype(old.dtype), scores, state.scores)
        gradient, curvature = self.tolerances
        # At most 1 for an alpha-SOSP, up to noise: |g| <= alpha, lambda_min >= -sqrt(rho alpha).
        worst = jnp.maximum(scores.gradient_norm / gradient, -scores.min_eigenvalue / curvature)
        index = jnp.arange(self._candidates)
        worst = jnp.where(index < filled, worst, jnp.inf)
        # Theory knows no better or worse among alpha-SOSPs; descent does, and the last is lowest.
        # If none looks like one, the nearest to it is chosen.
        last = jnp.max(jnp.where(worst <= 1, index, -1))
        chosen = jnp.where(last >= 0, last, jnp.argmin(worst)).astype(jnp.int32)
        return state._replace(scores=scores, chosen=chosen)

    def output(self, state: SpiderState) -> Params:
        if self.score is None:
            return self.escape.output(state.escape, state.params)
        return jax.tree.map(lambda all: all[state.chosen], state.candidates)

    def certify(
        self, key: Array, state: SpiderState, ask: base.Ask, bounded_rows: bool
    ) -> tuple[Certificate | None, Params | None]:
        # The scores are means over the records kept for them, and so is what the bounds hold for.
        if self.bounds is None or self.bounds.hessian is None:
            return None, None
        upper = state.scores.gradient_norm[state.chosen] + self.bounds.gradient
        lower = state.scores.min_eigenvalue[state.chosen] - self.bounds.hessian
        count = self.estimate.data_size - self._last
        scope = f"{scope_of(self.unclipped and bounded_rows)} on the {count:,} records kept for it"
        return Certificate(upper, lower, self.beta, "output", scope), self.output(state)

    @property
    def _last(self) -> int:
        return self.estimate.sampler.last  # pyright: ignore

    @property
    def _candidates(self) -> int:
        return 1 if self.score is None else self.score.candidates

    def _next(self, state: SpiderState) -> tuple[Array, Array, Array]:
        """Whether the next step asks for the gradient, also by its size, and how many it reads."""
        batch, rule = jnp.asarray(self.estimate.batch_size, jnp.int32), self.difference_size
        if rule is None or callable(rule):
            size = self.estimate.needed(state.params, state.previous)
            size = size if rule is None else theory.records_by(rule, state, size, batch)
            # Where a difference would need as many records, the gradient itself says more.
            reached = size >= batch
        else:
            size, reached = jnp.asarray(rule, jnp.int32), jnp.asarray(False)
        # The correlated noise of a segment is made for this many increments.
        full = state.leaf + 1 >= self.estimate.correlation.horizon
        renewed = (state.drift >= self.drift_threshold) | full
        refresh = renewed | reached
        return refresh, reached & ~renewed, jnp.where(refresh, batch, size)

    def _candidate(self, state: SpiderState, used: Array) -> tuple[Array, Array]:
        """The new iterate's index among the candidates, and the records read before that span."""
        # Spans of records, not of steps, whose number is not known before the records are used up.
        span = -(-self._last // self._candidates)
        crossed = (used - state.span_start > span) & (state.count > 0)
        index = jnp.minimum(state.newest + crossed.astype(jnp.int32), self._candidates - 1)
        return index, jnp.where(crossed, state.used, state.span_start)


def stochastic_spider(
    objective: objectives.Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    alpha: float | None = None,
    batch_size: int | None = None,
    difference_size: int | str | theory.BatchRule | None = None,
    drift_threshold: float | None = None,
    step_size: float | None = None,
    horizon: int | None = None,
    noise: str | None = None,
    kick: float | None = None,
    kick_threshold: float | None = None,
    frozen_steps: int | None = None,
    steps: int | None = None,
    candidates: int | None = None,
    kept: float = theory.KEPT,
    clip_norm: float | None = None,
    hessian_clip_norm: float | None = None,
    smoothness: float | None = None,
    hessian_lipschitz: float | None = None,
    initial_gap: float | None = None,
    accountant: str = "pld",
    beta: float = 0.05,
) -> Spider:
    """Returns Stochastic Spider, which reads each record once and leaves saddles by kicks.

    An estimate of the gradient is renewed where the iterate has drifted. At other steps it is
    updated by how the gradient changed, on a batch that grows with the step, so that noise of one
    size hides both.

    Args:
      budget: what a whole run may spend; ``"zero_out"`` or ``"replace_one"``.
      alpha: target, |gradient| <= alpha and lambda_min >= -sqrt(rho alpha); by default the least
        that theory promises for n.
      batch_size: b, records of a renewed gradient; by default an eighth of the records, or from
        alpha where that is given (lemma 3.8).
      difference_size: b_t, records of a difference; by default the fewest that its noise needs, in
        proportion to the step: b min(2, M |step| / C), rounded up. ``"lemma_3.8"`` for that or the
        lemma's kappa M |step| / alpha^2, whichever is larger; a whole number; or a function
        ``f(state, needed)`` of the last ``SpiderState`` and the default's b_t. Fewer clip harder.
        But for a whole number, a b_t that reaches b asks for a fresh gradient of b records instead
        (``history.reached``), where the paper goes on with the difference.
      drift_threshold: kappa, the sum of M |step| at which the estimate is renewed; by default half
        of theorem 3.11's for alpha.
      step_size: eta; by default 1 / smoothness of the whole objective.
      horizon: K, the most increments of a segment; by default 512.
      noise: ``"square_root"`` (the default while K is at most 4,096 and p at most 2^16), ``"tree"``
        as in the paper, or ``"independent"``.
      kick: zeta, root mean square length of the noise added to the gradient at a possible saddle;
        by default that of an estimate's own noise.
      kick_threshold: gradient norm at which a saddle is possible; by default twice the error of an
        estimate, by noise and sampling.
      frozen_steps: Gamma, steps without another kick; by default M / sqrt(rho alpha), times 4.
      steps: cap on the steps; by default 4,096. The run ends where the records do.
      candidates: how many iterates the output is chosen from, with a private certificate: the last
        that looks like an alpha-SOSP, else the nearest to one. A run that ``steps`` ends on a slope
        may so return a saddle it came from, if that is an alpha-SOSP. 0 for the last iterate, the
        default above 512 parameters and on a TPU, where there is no float64 for scores; else 8.
      kept: fraction of the records that only the choice reads.
      hessian_clip_norm: bound on one record's Hessian, for the choice; by default the smoothness.
      smoothness: M, to which a record's difference is clipped; by default the objective's.
      hessian_lipschitz: rho; by default the objective's, its regularizer included.
      the others: the same in all factories, see ``help(dpjax.algorithms)``.

    Privacy: to each record all questions together are one Gaussian mechanism, because it enters one
      of them at most, in an order and by batch sizes, restarts and an end that depend on released
      values alone.

    Reference: Liu and Talwar (2024), algorithms 1 to 3, with a fresh mechanism for each segment,
      the sensitivity and noise corrected, and the output chosen.

    >>> budget = PrivacyBudget(epsilon=2.0, delta=1e-6)
    >>> algorithm = stochastic_spider(
    ...     objectives.sigmoid_l2(), budget, data_size=35_000, dimension=22)
    >>> [part.name for part in algorithm.event.releases[0].disjoint_parts]
    ['estimate', 'scores']
    """
    name = "Stochastic Spider"
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    objective = problem.objective
    base.check_smooth(objective, name)
    scale = theory.scale(
        objective, clip_norm, hessian_clip_norm, smoothness, hessian_lipschitz, initial_gap
    )
    draws, choice = (horizon, noise), (candidates, kept)
    estimate, score, scale = theory.queries(problem, scale, draws, choice, batch_size, alpha)
    alpha = theory.target(scale, int(estimate.sampler.expected), alpha)
    drift = theory.drift_threshold(scale, alpha, drift_threshold)
    curvature = math.sqrt(scale.hessian_lipschitz * alpha)
    kicks = theory.kicks(scale, estimate, curvature, kick, kick_threshold, frozen_steps)
    clips = scale.lipschitz, scale.hessian_clip_norm
    beta = _validate.open_unit("beta", beta)
    steps = _validate.int32_count("steps", theory.MAX_STEPS if steps is None else steps)
    spider = Spider(
        estimate=estimate,
        score=score,
        step_size=theory.step_size(objective, scale, step_size),
        drift_threshold=drift,
        difference_size=theory.batch_rule(difference_size, drift * scale.smoothness / alpha**2),
        escape=kicks,
        tolerances=(base.positive_leaf("alpha", alpha), base.positive_leaf("curvature", curvature)),
        bounds=None if score is None else theory.score_bounds(score, beta),
        beta=beta,
        name=name,
        unclipped=base.never_clips(objective, budget.relation, *clips),
        **problem.plan(steps, theory.MAX_STEPS),
    )
    # Independent noise falls with what a difference can move, to that share at least.
    problem.check_spent(spider.event, LEAST if estimate.correlation.is_independent else 1.0)
    return spider
