"""``output`` of the first-order factories: the last iterate, a random one, or an average."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax.algorithms.base import to_leaf
from dpjax.algorithms.certificate import widen
from dpjax.mechanisms import derive

OUTPUTS = ("last", "random", "average")


class OutputState(NamedTuple):
    """What the choice of the output remembers; released, or drawn without the data."""

    count: Array
    """Steps taken; int32."""
    mean: Params | None
    """Average of the iterates after the start; None unless it is the output."""
    drawn: Array | None
    """Number of the iterate that is the output; None unless it is drawn."""


@pytree_dataclass
class OutputRule:
    """Which iterate a run publishes; the same in every factory that has ``output``.

    ``"last"`` is the last iterate. ``"random"`` is one drawn uniformly from the T iterates after
    the start, of the first step's key: no step after it is taken, the noise is that
    of all T, and so is the event. ``"average"`` is the mean of the iterates after the start, each
    weighted alike; with a ``decay`` below 1 the weights fall off by that factor a step once the
    mean is longer than 1 / (1 - decay) steps.

    Privacy: post-processing, and a draw without the data.
    """

    decay: Array | float
    kind: str = static()

    def init(self, params: Params) -> OutputState:
        """Returns the state before the first step."""
        mean = jax.tree.map(jnp.zeros_like, widen(params)) if self.kind == "average" else None
        never = jnp.asarray(jnp.iinfo(jnp.int32).max, jnp.int32)
        drawn = never if self.kind == "random" else None
        return OutputState(jnp.zeros((), jnp.int32), mean, drawn)

    def update(
        self, key: Array, state: OutputState, iterate: Params, steps: Array | int
    ) -> OutputState:
        """Returns the state after the step that led to ``iterate``, in float32 at least, of T.

        ``key`` is the step's.
        """
        count, mean, drawn = state.count + 1, state.mean, state.drawn
        if mean is not None:
            weight = jnp.maximum(1 / count, 1 - jnp.asarray(self.decay, jnp.float32))
            mean = jax.tree.map(lambda m, w: m + weight.astype(w.dtype) * (w - m), mean, iterate)
        if drawn is not None:
            drawn = jnp.where(state.count == 0, draw_iterate(key, steps), drawn)
        return OutputState(count, mean, drawn)

    def done(self, state: OutputState) -> Array:
        """Returns whether the iterate that was drawn is reached, if one was."""
        if state.drawn is None:
            return jnp.asarray(False)
        return state.count >= state.drawn

    def output(self, state: OutputState, params: Params) -> Params:
        """Returns what is published where ``params`` is the last iterate taken."""
        if state.mean is None:
            return params
        # Before the first step there is none to average.
        return jax.tree.map(
            lambda w, m: jnp.where(state.count > 0, m.astype(w.dtype), w), params, state.mean
        )


LAST = OutputRule(1.0, "last")


def draw_iterate(key: Array, steps: Array | int) -> Array:
    """Returns the number, from 1 to ``steps``, of the iterate that a stage ends at; int32.

    Args:
      key: of the first step that it ends.
      steps: of the stage, or of the whole run.

    Privacy: of the key alone, whose use here no noise shares.
    """
    last = jnp.asarray(steps, jnp.int32)
    return jax.random.randint(derive(key, "output", 0), (), 1, last + 1, jnp.int32)


def output_rule(output: str, average_decay: float | None = None) -> OutputRule:
    """Returns the rule that a factory's ``output`` and ``average_decay`` name.

    Raises:
      ValueError: for an unknown output, or a decay out of range or of what is no average.

    >>> output_rule("average").decay, output_rule("random").kind
    (1.0, 'random')
    """
    _validate.choice("output", output, OUTPUTS)
    if average_decay is None:
        return OutputRule(1.0, output)
    if output != "average":
        raise ValueError(
            f"average_decay={average_decay!r} is for output='average', not for output={output!r}."
        )
    return OutputRule(to_leaf(_validate.closed_unit("average_decay", average_decay)), output)
