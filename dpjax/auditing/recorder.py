"""NOT PRIVATE: an algorithm in a wrapper that scores each noisy answer as it is released."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpjax._typing import Array, Params, PyTree, pytree_dataclass, static
from dpjax.algorithms import Algorithm
from dpjax.algorithms.base import Ask
from dpjax.auditing.ball_claim import ball_log_density
from dpjax.derivatives import clipped_grad, clipped_hessian, joint_clipped, subspace_clipped
from dpjax.oracles import (
    AccuracyQuery,
    AnchoredQuery,
    AnchorQuery,
    BallQuery,
    DifferenceQuery,
    GradientQuery,
    HessianQuery,
    JointQuery,
    MinimizerQuery,
    NewtonQuery,
    ObjectiveQuery,
    Query,
    SelectionQuery,
    SubspaceQuery,
    bind,
)
from dpjax.sampling import Poisson


class Scored(NamedTuple):
    """History of a recorded run."""

    log_ratio: Array
    """Log-likelihood ratio, D' to D, of the answers of one step."""


@pytree_dataclass
class Recorder:
    """An algorithm that does as the one it wraps, and scores what that one is told.

    Args:
      algorithm: what is attacked.
      without: examples of D.
      canary: examples of D'.
      max_steps: the algorithm's planned steps.
    """

    algorithm: Algorithm
    without: PyTree
    canary: PyTree
    max_steps: int = static()

    def __getattr__(self, name: str) -> Any:
        # What is not said here, the algorithm says. While a copy is being made it has none yet.
        return getattr(object.__getattribute__(self, "algorithm"), name)

    def step(self, key: Array, state: Any, ask: Ask) -> tuple[Any, Scored]:
        """Returns the algorithm's next state, and the score of all it asked on the way."""
        queries = {query.name: query for query in self.algorithm.queries}
        scores = []

        def listen(key: Array, name: str, params: Params, **public: Any) -> PyTree:
            answer = ask(key, name, params, **public)
            worlds = (self.without, self.canary)
            scores.append(log_ratio(queries[name], answer, params, worlds, **public))
            return answer

        state, _ = self.algorithm.step(key, state, listen)
        return state, Scored(jnp.sum(jnp.stack(scores)))

    def certify(self, key: Array, state: Any, ask: Ask, unit_rows: bool) -> tuple[None, None]:
        """Returns nothing: a bound from answers that are scored already."""
        del key, state, ask, unit_rows
        return None, None


def log_ratio(query: Query, answer: PyTree, params: Params, worlds: tuple, **public: Any) -> Array:
    """Returns log p(answer | D') - log p(answer | D), up to rounding.

    Args:
      query: one of the oracles; of one with Poisson batches the records of D must contribute
        nothing, and those of D' nothing but the canary.
      answer: what it released at ``params``.
      params: where it was asked.
      worlds: examples of D, then of D'.
      **public: what else it was asked with.

    Raises:
      ValueError: for a query whose law is not known here.

    >>> from dpjax.auditing import canaries
    >>> query = GradientQuery(1.0, 1.0, canaries.bowl(), 2, "zero_out")
    >>> worlds = canaries.records()
    >>> print(log_ratio(query, jnp.zeros(2), jnp.zeros(2), worlds).round(2))
    -0.5
    """
    if isinstance(query, SelectionQuery):
        return _selection_ratio(query, answer, params, worlds, **public)
    if isinstance(query, ObjectiveQuery):
        return _objective_ratio(query, answer, worlds)
    if isinstance(query, BallQuery):
        return _ball_ratio(query, answer, params, worlds)
    if isinstance(query, AnchoredQuery):
        return _anchored_ratio(query, answer, params, worlds, **public)
    without, canary = (
        _exact_parts(query, bind(query, examples), params, **public) for examples in worlds[:2]
    )
    total = jnp.zeros(())
    seen_parts = _parts(query, answer)
    stddevs = _stddevs(query, seen_parts, params, **public)
    for seen, mean, other, stddev in zip(seen_parts, without, canary, stddevs, strict=True):
        total += jnp.vdot((other - mean) / stddev, (seen - (mean + other) / 2) / stddev)
    if isinstance(query.sampler, Poisson):
        # Of D' the canary is in one batch in 1 / q; of D no batch holds anything.
        q = query.sampler.expected / query.data_size
        return jnp.logaddexp(jnp.log1p(-q), jnp.log(q) + total)
    return total


def _anchored_ratio(
    query: AnchoredQuery, answer: PyTree, params: Params, worlds: tuple, anchor: Params
) -> Array:
    # Of D all is noise; of D' the canary is in every answer by its gradient at the anchor.
    clipped = clipped_grad(query.objective.data_term, clip_norm=query.clip_norm)
    records = bind(query, worlds[1])
    here, there = (ravel_pytree(clipped(at, records))[0] for at in (params, anchor))
    seen, q = ravel_pytree(answer)[0], query.divisor / query.data_size
    idle = there / query.data_size
    logs = [
        jnp.vdot(move / query.stddev, (seen - move / 2) / query.stddev)
        for move in (idle, idle + (here - there) / query.divisor)
    ]
    return jnp.logaddexp(jnp.log1p(-q) + logs[0], jnp.log(q) + logs[1])


def _ball_ratio(query: BallQuery, answer: PyTree, params: Params, worlds: tuple) -> Array:
    seen, logs = ravel_pytree(answer)[0], []
    for examples in worlds[:2]:
        (mean,) = _exact_parts(query, bind(query, examples), params)
        logs.append(ball_log_density(seen, mean, query.radius))
    if isinstance(query.sampler, Poisson):
        q = query.sampler.expected / query.data_size
        return jnp.logaddexp(jnp.log1p(-q) + logs[0], jnp.log(q) + logs[1]) - logs[0]
    return logs[1] - logs[0]


def _selection_ratio(
    query: SelectionQuery,
    chosen: Array,
    params: Params,
    worlds: tuple,
    gradient_norms: Array,
    filled: Array,
) -> Array:
    logs = []
    for examples in worlds[:2]:
        scores = query.exact_scores(bind(query, examples), params, gradient_norms, filled).leading
        scores = jnp.where(filled > 0, scores, 0.0) / query.gumbel_scale.astype(scores.dtype)
        logs.append(jax.nn.log_softmax(scores)[chosen])
    return logs[1] - logs[0]


def _objective_ratio(query: ObjectiveQuery, answer: Array, worlds: tuple) -> Array:
    # The tilt that makes a point the minimum is minus the gradient there. Up to the determinants of
    # the Hessians, which are alike, and the little noise that is added afterwards.
    objective, squares = query.objective, []
    for examples in worlds[:2]:
        total = clipped_grad(objective.data_term, clip_norm=query.unit)(
            answer, bind(query, examples)
        )
        tilt = objective.regularize_gradient(total / query.data_size, answer)
        squares.append(jnp.sum((tilt / query.stddev) ** 2) / 2)
    return squares[0] - squares[1]


def _exact_parts(query: Any, records: PyTree, params: Params, **public: Any) -> list[Array]:
    if isinstance(query, NewtonQuery | MinimizerQuery):
        return [query.exact(records, params, **public).leading]
    if isinstance(query, AccuracyQuery):
        return [query.exact_count(records, params).leading / query.data_size]
    if isinstance(query, JointQuery):
        weights = {
            "gradient_weight": query.gradient_weight,
            "hessian_weight": query.hessian_weight,
        }
        if isinstance(query, SubspaceQuery):
            total = subspace_clipped(query.objective.data_term, **weights)(
                params, records, **public
            )
        else:
            total = joint_clipped(query.objective.data_term, **weights)(params, records)
    elif isinstance(query, DifferenceQuery):
        total = query.clipped(params, public["anchor"], records)
    elif isinstance(query, GradientQuery):
        total = clipped_grad(query.objective.data_term, clip_norm=query.clip_norm)(params, records)
    elif isinstance(query, HessianQuery):
        total = clipped_hessian(query.objective.data_term, clip_norm=query.clip_norm)(
            params, records
        )
    else:
        raise ValueError(f"the law of {query!r} is not known; add it to dpjax.auditing.recorder.")
    # A step that renews no anchor reads nothing, so its answer tells no world from the other.
    asked = public["renew"] if isinstance(query, AnchorQuery) else True
    return [jnp.where(asked, part, 0) / query.divisor for part in _parts(query, total)]


def _parts(query: Query, answer: PyTree) -> list[Array]:
    if isinstance(query, GradientQuery | DifferenceQuery):
        return [ravel_pytree(answer)[0]]
    if isinstance(query, JointQuery):
        return [answer.gradient, answer.hessian]
    return [answer]


def _stddevs(query: Any, parts: list[Array], params: Params, **public: Any) -> list[Array | float]:
    if isinstance(query, DifferenceQuery):
        return [query.stddev_at(params, public["anchor"])]
    # Entries of the isometric form, all p^2 of them, weigh alike: the density falls with the
    # Frobenius norm. In the other form those off the diagonal count twice and weigh half.
    if isinstance(query, JointQuery):
        return [query.stddev, query.hessian_stddev]
    if isinstance(query, HessianQuery) and not query.isometric:
        return [query.stddev * jnp.sqrt(2.0 - jnp.eye(parts[0].shape[0]))]
    return [query.stddev]
