"""Stochastic Spider (Liu and Talwar 2024, algorithm 2): one pass, batches as long as the step."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax.accounting import Event, parallel
from dpjax.algorithms import base
from dpjax.algorithms.certificate import CLIP_SLACK, Certificate, NoiseBounds, widen
from dpjax.algorithms.common import Common
from dpjax.algorithms.spider_state import Info, Kicks, State
from dpjax.mechanisms import derive
from dpjax.oracles import EstimateQuery, Evaluations, Query, ScoreQuery, Scores


@pytree_dataclass
class Spider(Common):
    """Configuration of Stochastic Spider and its variants; see the calibration.

    In the paper's notation ``drift_threshold`` is kappa, ``kick`` zeta, ``kick_threshold`` gamma
    log^3 and ``frozen_steps`` Gamma. ``difference_size`` is a fixed batch for differences in place
    of b_t; ``squared_drift`` adds up squared lengths, as Ganesh et al. do.
    """

    estimate: EstimateQuery
    score: ScoreQuery | None
    step_size: Array | float
    drift_threshold: Array | float
    difference_size: Array | int | None
    kick: Array | float
    kick_threshold: Array | float
    frozen_steps: Array | int
    tolerances: tuple[Array | float, Array | float]
    bounds: NoiseBounds | None
    beta: Array | float
    steps: Array | int
    declared: base.Declared
    name: str = static()
    squared_drift: bool = static()
    max_steps: int = static()
    dimension: int = static()
    unclipped: bool = static()
    accountant: str = static()

    @property
    def title(self) -> str:
        """Name for people."""
        return self.name

    @property
    def queries(self) -> tuple[Query, ...]:
        """The estimate, and the scores of the records that are kept for them."""
        return (self.estimate,) if self.score is None else (self.estimate, self.score)

    @property
    def event(self) -> Event:
        """One Gaussian mechanism to each record, whichever question it is asked."""
        (whole,) = self.estimate.event(1).releases
        if self.score is not None:
            (scores,) = self.score.event(1).releases
            whole = parallel("single_pass", (whole, scores))
        return Event((whole,), self.relation)

    @property
    def evaluations(self) -> Evaluations:
        """The most gradients of one record that a run computes; on the host."""
        counted = [query.evaluations(1) for query in (self.estimate, self.score) if query]
        return Evaluations(*map(sum, zip(*counted, strict=True)))

    def init(self, params: Params) -> State:
        """Returns the state at ``params``, before the first gradient."""
        wide = widen(params)
        dtype = jnp.result_type(*jax.tree.leaves(wide))
        zero, room = jnp.zeros((), jnp.int32), self._candidates
        return State(
            params,
            params,
            jax.tree.map(jnp.zeros_like, wide),
            jnp.array(jnp.inf, dtype),
            jnp.array(jnp.inf, dtype),
            zero,
            jnp.array(True),
            jnp.asarray(self.estimate.batch_size, jnp.int32),
            zero - 1,
            zero,
            zero,
            self._first_escape(params),
            jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (room, *leaf.shape)), params),
            zero,
            zero,
            Scores(jnp.zeros(room, dtype), jnp.zeros(room, dtype)),
            zero,
        )

    def step(self, key: Array, state: State, ask: base.Ask) -> tuple[State, Info]:
        """Lines 4 to 15: renew or update the estimate, kick at a saddle, and move."""
        refresh, size = state.refresh, state.size
        segment = state.segment + refresh.astype(jnp.int32)
        leaf = jnp.where(refresh, 0, state.leaf + 1)
        increment = ask(
            key,
            self.estimate.name,
            state.params,
            anchor=state.previous,
            refresh=refresh,
            start=state.used,
            size=size,
            segment=segment,
            leaf=leaf,
        )
        estimate = jax.tree.map(
            lambda old, new: jnp.where(refresh, 0, old) + new.astype(old.dtype),
            state.estimate,
            increment,
        )
        whole = self.objective.regularize_gradient(estimate, widen(state.params))
        drift = jnp.where(refresh, 0, state.drift)
        push, kicked, escape, drift = self._escape(key, state, whole, drift)
        move = jax.tree.map(lambda g, z: -self.step_size * (g + z).astype(g.dtype), whole, push)
        moved = jax.tree.map(lambda w, m: w + m.astype(w.dtype), state.params, move)
        length = optax.tree.norm(jax.tree.map(jnp.subtract, widen(moved), widen(state.params)))
        gone = self.estimate.smoothness * length
        used = state.used + size
        place, since = self._candidate(state, used)
        info = Info(
            optax.tree.norm(whole),
            length,
            *(value.astype(length.dtype) for value in (size, used, drift, refresh, kicked)),
        )
        state = state._replace(
            params=moved,
            previous=state.params,
            estimate=estimate,
            gradient_norm=info.gradient_norm,
            drift=drift + (gone**2 if self.squared_drift else gone),
            used=used,
            segment=segment,
            leaf=leaf,
            taken=state.taken + 1,
            escape=escape,
            points=jax.tree.map(lambda all, new: all.at[place].set(new), state.points, moved),
            place=place,
            since=since,
        )
        refresh, size = self._next(state)
        return state._replace(refresh=refresh, size=size), info

    def done(self, state: State) -> Array:
        """Returns whether fewer records are left than the next question needs."""
        return state.size > self._last - state.used

    def stopped(self, state: State) -> Array:
        """Returns that the records ran out."""
        del state
        return jnp.asarray(base.Status.EXHAUSTED)

    def close(self, key: Array, state: State, ask: base.Ask) -> State:
        """Returns the state with all candidates' scores, and the last alpha-SOSP chosen.

        If none looks like one, the nearest to it: the least max(|g| / alpha, -lambda_min /
        sqrt(rho alpha)).
        """
        if self.score is None:
            return state
        filled = state.place + 1
        scores = ask(key, self.score.name, state.points, filled=filled)
        scores = jax.tree.map(lambda new, old: new.astype(old.dtype), scores, state.scores)
        gradient, curvature = self.tolerances
        worst = jnp.maximum(scores.gradient_norm / gradient, -scores.min_eigenvalue / curvature)
        place = jnp.arange(self._candidates)
        worst = jnp.where(place < filled, worst, jnp.inf)
        # Theory knows no better or worse among alpha-SOSPs; descent does, and the last is lowest.
        last = jnp.max(jnp.where(worst <= 1, place, -1))
        chosen = jnp.where(last >= 0, last, jnp.argmin(worst)).astype(jnp.int32)
        return state._replace(scores=scores, chosen=chosen)

    def output(self, state: State) -> Params:
        """Returns the chosen candidate; the last iterate without scores."""
        if self.score is None:
            return state.params
        return jax.tree.map(lambda all: all[state.chosen], state.points)

    def certify(
        self, key: Array, state: State, ask: base.Ask, unit_rows: bool
    ) -> tuple[Certificate | None, Params | None]:
        """Returns the bounds at the output, on the mean over the records kept for the scores."""
        del key, ask
        if self.bounds is None or self.bounds.hessian is None:
            return None, None
        upper = state.scores.gradient_norm[state.chosen] + self.bounds.gradient
        lower = state.scores.min_eigenvalue[state.chosen] - self.bounds.hessian
        whose = "objective" if self.unclipped and unit_rows else "clipped objective"
        scope = f"{whose} on the {self._kept:,} records kept for it"
        return Certificate(upper, lower, self.beta, "output", scope), self.output(state)

    @property
    def _last(self) -> int:
        return self.estimate.sampler.last  # pyright: ignore[reportOptionalMemberAccess]

    @property
    def _kept(self) -> int:
        return self.estimate.data_size - self._last

    @property
    def _candidates(self) -> int:
        return 1 if self.score is None else self.score.candidates

    def _next(self, state: State) -> tuple[Array, Array]:
        """Whether the next question is for the gradient, and how many records it reads."""
        whole = jnp.asarray(self.estimate.batch_size, jnp.int32)
        if self.difference_size is None:
            size = self.estimate.needed(state.params, state.previous)
            # Where a difference would need as many records, the gradient itself says more.
            dear = size >= whole
        else:
            size, dear = jnp.asarray(self.difference_size, jnp.int32), jnp.asarray(False)
        full = state.leaf + 1 >= self.estimate.noise.horizon
        refresh = (state.drift >= self.drift_threshold) | full | dear
        return refresh, jnp.where(refresh, whole, size)

    def _candidate(self, state: State, used: Array) -> tuple[Array, Array]:
        """The new iterate's place among the candidates, and the records read before that span."""
        span = -(-self._last // self._candidates)
        crossed = (used - state.since > span) & (state.taken > 0)
        place = jnp.minimum(state.place + crossed.astype(jnp.int32), self._candidates - 1)
        return place, jnp.where(crossed, state.used, state.since)

    def _first_escape(self, params: Params) -> Any:
        del params
        return Kicks(jnp.zeros((), jnp.int32) + 1)

    def _escape(
        self, key: Array, state: State, whole: Params, drift: Array
    ) -> tuple[Params, Array, Any, Array]:
        """The noise of a kick, whether it is one, what to remember, and the drift."""
        kicked = (state.gradient_norm <= self.kick_threshold) & (state.escape.frozen <= 0)
        frozen = jnp.where(kicked, self.frozen_steps, state.escape.frozen - 1).astype(jnp.int32)
        push = self._gaussian(key, state.taken, whole, jnp.where(kicked, self.kick, 0.0))
        # Line 10 also forgets the drift, so that no fresh gradient interrupts the way out.
        return push, kicked, Kicks(frozen), jnp.where(kicked, 0.0, drift)

    def _gaussian(self, key: Array, step: Array, like: Params, length: Array) -> Params:
        """Noise of expected squared norm ``length``^2; it hides nothing and is public coins."""
        leaves, tree = jax.tree.flatten(like)
        keys = jax.random.split(derive(key, "kick", step), len(leaves))
        scale = length / self.dimension**0.5
        drawn = [
            scale.astype(leaf.dtype) * jax.random.normal(one, leaf.shape, leaf.dtype)
            for one, leaf in zip(keys, leaves, strict=True)
        ]
        return jax.tree.unflatten(tree, drawn)


def score_bounds(score: ScoreQuery, quantile: float) -> NoiseBounds:
    """Returns what a noisy score may be off by, ``quantile`` standard deviations and rounding."""
    (_, gradient), (_, curvature) = score.components
    clip, hessian_clip = float(score.clip_norm), float(score.hessian_clip_norm)
    return NoiseBounds(
        quantile * gradient + CLIP_SLACK * clip, quantile * curvature + CLIP_SLACK * hessian_clip
    )
