"""NOT PRIVATE: an algorithm in a wrapper that scores each noisy answer as it is released."""

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._typing import Array, Params, PyTree, pytree_dataclass
from dpjax.accounting import Event
from dpjax.algorithms import Algorithm
from dpjax.algorithms.base import Ask
from dpjax.oracles import Query, bind

Answers = dict[str, dict[str, Any]]
"""Where it is asked, such as ``"step"`` -> name of a query -> number of answers."""


class SegmentScores(NamedTuple):
    """What the answers of a run tell an attacker."""

    log_ratio: Array
    """Log-likelihood ratio, D' to D, of all answers, each given those before."""
    answers: Answers


class Watched(NamedTuple):
    """State of a recorded run."""

    state: Any
    """That of the algorithm."""
    scored: SegmentScores
    """All answers so far."""
    seen: dict[str, PyTree]
    """Of each query, what the score of its next answer needs of those before."""


@pytree_dataclass
class Recorder:
    """An algorithm that does as the one it wraps, and scores each answer that one gets.

    Noise that is correlated within a segment is scored within it: noise that two segments share
    would be missed.
    """

    algorithm: Algorithm
    without: PyTree
    canary: PyTree

    def __getattr__(self, name: str) -> Any:
        # What is not said here, the algorithm says. While a copy is being made it has none yet.
        member = getattr(object.__getattribute__(self, "algorithm"), name)
        return _of_its_state(member) if inspect.ismethod(member) else member

    def init(self, params: Params) -> Watched:
        """Returns the algorithm's state, before anything is seen."""
        queries = self.algorithm.queries
        answers = {
            phase: {query.name: jnp.zeros((), jnp.int32) for query in queries}
            for phase in ("begin", "step", "finalize", "certify")
        }
        seen = {query.name: query.initial_score(params) for query in queries}
        return Watched(self.algorithm.init(params), SegmentScores(jnp.zeros(()), answers), seen)

    def begin(self, key: Array, state: Watched, ask: Ask) -> Watched:
        """Returns the algorithm's state before the first step, with the score of all it asked."""
        return self._recorded("begin", self.algorithm.begin, key, state, ask)

    def step(self, key: Array, state: Watched, ask: Ask) -> tuple[Watched, None]:
        """Returns the algorithm's next state, with the score of all it asked on the way."""
        watched = self._recorded("step", self.algorithm.step, key, state, ask)
        return watched._replace(state=watched.state[0]), None

    def finalize(self, key: Array, state: Watched, ask: Ask) -> Watched:
        """Returns the algorithm's last state, with the score of all it asked."""
        return self._recorded("finalize", self.algorithm.finalize, key, state, ask)

    def certify(
        self, key: Array, state: Watched, ask: Ask, bounded_rows: bool
    ) -> tuple[SegmentScores, None]:
        """Returns the score of the whole run, in place of a certificate."""
        watched = self._recorded("certify", self.algorithm.certify, key, state, ask, bounded_rows)
        return watched.scored, None

    def _recorded(
        self, phase: str, method: Callable, key: Array, state: Watched, ask: Ask, *more: Any
    ) -> Watched:
        """Returns what ``method`` does, with the score of all answers that it gets on the way."""
        (total, answers), seen = state.scored, dict(state.seen)
        counts, examples = dict(answers[phase]), (self.without, self.canary)

        def recorded_ask(query: Query, params: Params, **public: Any) -> PyTree:
            nonlocal total
            answer = ask(query, params, **public)
            before = seen[query.name]
            ratio, seen[query.name] = score(query, before, answer, params, examples, **public)
            total += ratio.astype(total.dtype)
            asked = query.is_asked(**public)
            counts[query.name] += 1 if asked is None else asked.astype(jnp.int32)
            # Handed on as it is, so that the attack does not change the run.
            return answer

        result = method(key, state.state, recorded_ask, *more)
        return Watched(result, SegmentScores(total, answers | {phase: counts}), seen)


def _of_its_state(method: Callable) -> Callable:
    """A method of the algorithm, which reads its own state in place of a recorder's."""

    @functools.wraps(method)
    def of_its_state(*arguments: Any) -> Any:
        return method(*(a.state if isinstance(a, Watched) else a for a in arguments))

    return of_its_state


def score(
    query: Query, seen: PyTree, answer: PyTree, params: Params, examples: tuple, **public: Any
) -> tuple[Array, PyTree]:
    """Returns log p(answer | D') - log p(answer | D) given what was ``seen``, up to rounding.

    Also returns ``seen`` with this answer; before the first it is ``query.initial_score``.
    ``examples`` are of D, then of D'; of a query with Poisson batches the records of D must
    contribute nothing, and those of D' nothing but the canary.
    """
    if query.objective.draws:
        raise ValueError(
            f"the loss of {query.objective.name} draws random numbers, and an attack knows one "
            "loss: audit the algorithm with a loss without key, which is clipped alike."
        )
    # What a sampler draws beforehand it has been told, so the key is not used:
    # ``Sampler.with_known_order``.
    key = jax.random.key(0)
    pair = [query.sampler.prepare(key, bind(query, side)) for side in examples[:2]]

    def compare(mask: Array | None) -> tuple[Array, tuple]:
        on_d, on_other = (
            query.likelihood_terms(answer, records, params, mask, **public) for records in pair
        )
        scores = [
            noise.score(before, reply, mean, other, _above_zero(stddev))
            for before, (noise, reply, mean, stddev), (_, _, other, _) in zip(
                seen, on_d, on_other, strict=True
            )
        ]
        ratios, after = zip(*scores, strict=True)
        return sum(ratios, jnp.zeros(())), after

    total, after = compare(None)
    if not query.sampler.reads_all:
        # What a record that is not drawn contributes through what is secret of all records.
        undrawn = jnp.zeros(())
        if type(query).secret_arguments is not Query.secret_arguments:
            undrawn, _ = compare(jnp.zeros(jax.tree.leaves(pair[0])[0].shape[0], bool))
        total = query.sampler.log_mixture(total, undrawn)
    # A step that is not asked reads nothing, so its answer does not tell D from D'.
    asked = query.is_asked(**public)
    if asked is None:
        return total, after
    return jax.tree.map(lambda new, old: jnp.where(asked, new, old), (total, after), (0.0, seen))


def _above_zero(stddev: Any) -> Array:
    # Without noise the score would be 0 / 0 on both data sets, and nothing would be seen.
    narrow = jnp.result_type(float)  # x64 may be off where the scale is of float64
    return jnp.maximum(lax.convert_element_type(stddev, narrow), jnp.finfo(narrow).tiny)


def differences(queries: Sequence[Query], event: Event, answers: Answers) -> tuple[str, ...]:
    """Returns which releases ``event`` counts and no run makes, or of which runs make more."""
    counted, attacked = Counter[str](), Counter[str]()
    for part in (part for release in event.releases for part in release.parts()):
        counted[part.name] += part.count
    for query in queries:
        if times := sum(counts.get(query.name, 0) for counts in answers.values()):
            for release in query.event(times).releases:
                attacked[release.name] += release.count
    return tuple(
        f"releases of {name!r} that the event counts: {counted[name]}; that were attacked: "
        f"{attacked[name]}"
        for name in (counted | attacked)
        if not attacked[name] or attacked[name] > counted[name]
    )
