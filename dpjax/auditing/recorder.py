"""NOT PRIVATE: an algorithm in a wrapper that scores each noisy answer as it is released."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax._typing import Array, Params, PyTree, pytree_dataclass, static
from dpjax.algorithms import Algorithm
from dpjax.algorithms.base import Ask
from dpjax.oracles import Query, bind


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
        scores = []

        def listen(query: Query, params: Params, **public: Any) -> PyTree:
            answer = ask(query, params, **public)
            worlds = (self.without, self.canary)
            scores.append(log_ratio(query, answer, params, worlds, **public))
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
      query: of one with Poisson batches the records of D must contribute nothing, and those of D'
        nothing but the canary.
      answer: what it released at ``params``.
      params: where it was asked.
      worlds: examples of D, then of D'.
      **public: what else it was asked with.

    >>> from dpjax.auditing import canaries
    >>> from dpjax.oracles import GradientQuery, Setting
    >>> setting = Setting(canaries.bowl(), 2, "zero_out")
    >>> query = GradientQuery(setting=setting, noise_multiplier=1.0, clip_norm=1.0)
    >>> worlds = canaries.records()
    >>> print(log_ratio(query, jnp.zeros(2), jnp.zeros(2), worlds).round(2))
    -0.5
    """
    pair = [bind(query, examples) for examples in worlds[:2]]
    memories = [query.memory(records, params, **public) for records in pair]

    def law(records: PyTree, memory: PyTree | None, mask: Array | None) -> tuple:
        kept = {} if memory is None else {"memory": memory}
        return query.likelihood(answer, records, params, mask, **public, **kept)

    def ratio(mask: Array | None) -> Array:
        here, there = (law(*world, mask) for world in zip(pair, memories, strict=True))
        return sum(
            (
                noise.log_ratio(seen, mean, other, stddev)
                for (noise, seen, mean, stddev), (_, _, other, _) in zip(here, there, strict=True)
            ),
            jnp.zeros(()),
        )

    total = ratio(None)
    if not query.sampler.reads_all:
        # What a record that is not drawn contributes through what the query remembers of all.
        undrawn = jnp.zeros(())
        if memories[0] is not None:
            undrawn = ratio(jnp.zeros(jax.tree.leaves(pair[0])[0].shape[0], bool))
        total = query.sampler.mixture(total, undrawn)
    # A step that is not asked reads nothing, so its answer tells no world from the other.
    asked = query.is_asked(**public)
    return total if asked is None else jnp.where(asked, total, 0.0)
