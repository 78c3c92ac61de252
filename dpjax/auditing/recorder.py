"""NOT PRIVATE: an algorithm in a wrapper that scores each noisy answer as it is released."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax._typing import Array, Params, PyTree, pytree_dataclass, static
from dpjax.algorithms import Algorithm
from dpjax.algorithms.base import Ask
from dpjax.oracles import Query, bind


class Watched(NamedTuple):
    """State of a recorded run."""

    state: Any
    """That of the algorithm."""
    seen: dict[str, PyTree]
    """Of each query, what the score of its next answer needs of those before."""


class Scored(NamedTuple):
    """History of a recorded run."""

    log_ratio: Array
    """Log-likelihood ratio, D' to D, of the answers of one step given those before."""


@pytree_dataclass
class Recorder:
    """An algorithm that does as the one it wraps, and scores what that one is told.

    Noise that is correlated within a segment is scored within it: noise that two segments share
    would be missed.

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
        found = getattr(object.__getattribute__(self, "algorithm"), name)
        return _of_its_state(found) if inspect.ismethod(found) else found

    def init(self, params: Params) -> Watched:
        """Returns the algorithm's state, before anything is seen."""
        seen = {query.name: query.nothing_seen(params) for query in self.algorithm.queries}
        return Watched(self.algorithm.init(params), seen)

    def step(self, key: Array, state: Watched, ask: Ask) -> tuple[Watched, Scored]:
        """Returns the algorithm's next state, and the score of all it asked on the way."""
        seen, scores = dict(state.seen), []

        def listen(query: Query, params: Params, **public: Any) -> PyTree:
            answer = ask(query, params, **public)
            scores.append(self._score(query, seen, answer, params, **public))
            return answer

        inner, _ = self.algorithm.step(key, state.state, listen)
        return Watched(inner, seen), Scored(jnp.sum(jnp.stack(scores)))

    def certify(self, key: Array, state: Any, ask: Ask, unit_rows: bool) -> tuple[None, None]:
        """Returns nothing: a bound from answers that are scored already."""
        del key, state, ask, unit_rows
        return None, None

    def _score(
        self, query: Query, seen: dict[str, PyTree], answer: PyTree, params: Params, **public: Any
    ) -> Array:
        worlds = (self.without, self.canary)
        ratio, seen[query.name] = score(query, seen[query.name], answer, params, worlds, **public)
        return ratio


def _of_its_state(method: Callable) -> Callable:
    """A method of the algorithm, which reads its own state where it is handed a recorder's."""

    @functools.wraps(method)
    def of_its_state(*arguments: Any) -> Any:
        return method(*(one.state if isinstance(one, Watched) else one for one in arguments))

    return of_its_state


def log_ratio(query: Query, answer: PyTree, params: Params, worlds: tuple, **public: Any) -> Array:
    """Returns log p(answer | D') - log p(answer | D) of a query's only answer, up to rounding.

    Args:
      query: as ``score``.
      answer: likewise.
      params: likewise.
      worlds: likewise.
      **public: likewise.

    >>> from dpjax.auditing import canaries
    >>> from dpjax.oracles import GradientQuery, Setting
    >>> setting = Setting(canaries.bowl(), 2, "zero_out")
    >>> query = GradientQuery(setting=setting, noise_multiplier=1.0, clip_norm=1.0)
    >>> worlds = canaries.records()
    >>> print(log_ratio(query, jnp.zeros(2), jnp.zeros(2), worlds).round(2))
    -0.5
    """
    return score(query, query.nothing_seen(params), answer, params, worlds, **public)[0]


def score(
    query: Query, seen: PyTree, answer: PyTree, params: Params, worlds: tuple, **public: Any
) -> tuple[Array, PyTree]:
    """Returns the log-likelihood ratio of an answer given those before, up to rounding.

    Args:
      query: of one with Poisson batches the records of D must contribute nothing, and those of D'
        nothing but the canary.
      seen: of the query's earlier answers, from the score before or ``query.nothing_seen``.
      answer: what it released at ``params``.
      params: where it was asked.
      worlds: examples of D, then of D'.
      **public: what else it was asked with.

    Returns:
      log p(answer | D') - log p(answer | D), and ``seen`` with this answer.
    """
    pair = [_as_read(query, examples) for examples in worlds[:2]]
    memories = [query.memory(records, params, **public) for records in pair]

    def law(records: PyTree, memory: PyTree | None, mask: Array | None) -> tuple:
        kept = {} if memory is None else {"memory": memory}
        return query.likelihood_terms(answer, records, params, mask, **public, **kept)

    def compare(mask: Array | None) -> tuple[Array, tuple]:
        here, there = (law(*world, mask) for world in zip(pair, memories, strict=True))
        found = [
            noise.score(before, reply, mean, other, stddev)
            for before, (noise, reply, mean, stddev), (_, _, other, _) in zip(
                seen, here, there, strict=True
            )
        ]
        ratios, after = zip(*found, strict=True)
        return sum(ratios, jnp.zeros(())), after

    total, after = compare(None)
    if not query.sampler.reads_all:
        # What a record that is not drawn contributes through what the query remembers of all.
        undrawn = jnp.zeros(())
        if memories[0] is not None:
            undrawn, _ = compare(jnp.zeros(jax.tree.leaves(pair[0])[0].shape[0], bool))
        total = query.sampler.mixture(total, undrawn)
    # A step that is not asked reads nothing, so its answer tells no world from the other.
    asked = query.is_asked(**public)
    if asked is None:
        return total, after
    return jax.tree.map(lambda new, old: jnp.where(asked, new, old), (total, after), (0.0, seen))


def _as_read(query: Query, examples: PyTree) -> PyTree:
    # What a sampler draws beforehand it has been told, so the key is not used: ``Sampler.told``.
    return query.sampler.prepare(jax.random.key(0), bind(query, examples))
