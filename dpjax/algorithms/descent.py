"""``Descent``: one class for first-order methods, made of a query, an update and an output rule."""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax._wide import at_least_float32
from dpjax.algorithms import base
from dpjax.algorithms.base import StepInfo
from dpjax.algorithms.certificate import Certificate, NoiseBounds, certify
from dpjax.mechanisms import derive
from dpjax.oracles import GradientQuery

OUTPUTS = ("last", "random", "average")


class UpdateRule(Protocol):
    """How a noisy gradient becomes a step: a pytree with the two methods of an optax optimizer.

    Privacy: post-processing; a rule sees released values alone.
    """

    def init(self, params: Params) -> Any:
        """Returns the first state, at ``params`` whose leaves are float32 or wider."""
        ...

    def update(self, gradient: Params, state: Any, params: Params) -> tuple[Params, Any]:
        """Returns what is added to ``params``, and the next state."""
        ...


@pytree_dataclass
class Steps(UpdateRule):
    """Plain steps: step t = 1, 2, ... is -(step_size / t^decay) gradient."""

    step_size: Array | float
    decay: Array | float = 0.0

    def init(self, params: Params) -> Array:
        return jnp.zeros((), jnp.int32)

    def rate(self, count: Array) -> Array:
        """Returns step_size / t^decay of the next step, t = ``count`` + 1."""
        first = jnp.asarray(self.step_size)
        return first * (count + 1).astype(first.dtype) ** -jnp.asarray(self.decay, first.dtype)

    def update(self, gradient: Params, state: Array, params: Params) -> tuple[Params, Array]:
        rate = self.rate(state)
        return jax.tree.map(lambda g: -rate.astype(g.dtype) * g, gradient), state + 1


class AdamState(NamedTuple):
    """The state of Adam, computed from released gradients alone."""

    count: Array
    moments: optax.OptState


@pytree_dataclass
class AdamSteps(UpdateRule):
    """Adam, with a step size that falls geometrically over the planned steps.

    Reference: Kingma and Ba (2015), algorithm 1.
    """

    step_size: Array | float
    final_step_size: Array | float
    steps: Array | int
    b1: Array | float
    b2: Array | float
    eps: Array | float

    def init(self, params: Params) -> AdamState:
        return AdamState(jnp.zeros((), jnp.int32), self._moments().init(params))

    def update(
        self, gradient: Params, state: AdamState, params: Params
    ) -> tuple[Params, AdamState]:
        direction, moments = self._moments().update(gradient, state.moments, params)
        # Of a single step the first size is the last one too.
        fraction = state.count / jnp.maximum(jnp.asarray(self.steps) - 1, 1)
        first, last = jnp.asarray(self.step_size), jnp.asarray(self.final_step_size)
        rate = first * (last / first) ** fraction.astype(first.dtype)
        move = jax.tree.map(lambda d: -rate.astype(d.dtype) * d, direction)
        return move, AdamState(state.count + 1, moments)

    def _moments(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(self.b1, self.b2, self.eps)  # pyright: ignore[reportArgumentType]


@pytree_dataclass
class OptaxSteps(UpdateRule):
    """The steps of an optax optimizer, which is fed the noisy gradient and nothing else."""

    optimizer: optax.GradientTransformation = static()

    def init(self, params: Params) -> optax.OptState:
        # A state that holds Python numbers would change its types in the loop.
        return jax.tree.map(jnp.asarray, self.optimizer.init(params))

    def update(self, gradient: Params, state: Any, params: Params) -> tuple[Params, Any]:
        updates, new = self.optimizer.update(gradient, state, params)
        # optax may return other dtypes than its first state had, which a loop does not allow.
        return updates, jax.tree.map(lambda was, now: jnp.asarray(now, was.dtype), state, new)


class OutputState(NamedTuple):
    """The state of an ``OutputRule``; released, or drawn without the data."""

    count: Array
    """Steps taken; int32."""
    mean: Params | None
    """Average of the iterates after the start; None unless it is the output."""
    drawn: Array | None
    """Number of the iterate that is the output; None unless it is drawn."""


@pytree_dataclass
class OutputRule:
    """Which iterate a run publishes: ``output`` and ``average_decay`` of the factories.

    Privacy: post-processing, and a draw without the data.
    """

    decay: Array | float
    kind: str = static()

    def init(self, params: Params) -> OutputState:
        """Returns the state before the first step."""
        zeros = jax.tree.map(jnp.zeros_like, at_least_float32(params))
        mean = zeros if self.kind == "average" else None
        # Until the first step draws the number, no step is the last.
        never = jnp.asarray(jnp.iinfo(jnp.int32).max, jnp.int32)
        drawn = never if self.kind == "random" else None
        return OutputState(jnp.zeros((), jnp.int32), mean, drawn)

    def update(
        self, key: Array, state: OutputState, iterate: Params, steps: Array | int
    ) -> OutputState:
        """Returns the state after the step with ``key`` to ``iterate``, in float32 at least."""
        count, mean, drawn = state.count + 1, state.mean, state.drawn
        if mean is not None:
            # 1 / t is the plain mean's; the other, once larger, that of a decaying one.
            weight = jnp.maximum(1 / count, 1 - jnp.asarray(self.decay, jnp.float32))
            mean = jax.tree.map(lambda m, w: m + weight.astype(w.dtype) * (w - m), mean, iterate)
        if drawn is not None:
            drawn = jnp.where(state.count == 0, draw_iterate(key, steps), drawn)
        return OutputState(count, mean, drawn)

    def done(self, state: OutputState) -> Array:
        """Returns whether the iterate that was drawn is reached, if one was."""
        if state.drawn is None:
            return jnp.asarray(False)
        # Later steps cannot change the output, so they are not taken; all T stay charged.
        return state.count >= state.drawn

    def output(self, state: OutputState, params: Params) -> Params:
        """Returns what is published where ``params`` is the last iterate taken."""
        if state.mean is None:
            return params
        # Before the first step there is none to average.
        mean = optax.tree.cast_like(state.mean, params)
        return optax.tree.where(state.count > 0, mean, params)


LAST = OutputRule(1.0, "last")


def draw_iterate(key: Array, steps: Array | int) -> Array:
    """Returns the number, from 1 to ``steps``, of the iterate that a stage or run ends at; int32.

    Privacy: ``key`` is that of the first step, derived under a name that no noise uses.
    """
    last = jnp.asarray(steps, jnp.int32)
    # From 1, because the start is public and no output.
    return jax.random.randint(derive(key, "output", 0), (), 1, last + 1, jnp.int32)


def output_rule(output: str, average_decay: float | None = None) -> OutputRule:
    """Returns the rule that a factory's ``output`` and ``average_decay`` name."""
    _validate.choice("output", output, OUTPUTS)
    if average_decay is None:
        return OutputRule(1.0, output)
    if output != "average":
        raise ValueError(
            f"average_decay={average_decay!r} is for output='average', not for output={output!r}."
        )
    return OutputRule(base.to_leaf(_validate.closed_unit("average_decay", average_decay)), output)


class LastQuery(NamedTuple):
    """Point and noisy data gradient of the last query, for the certificate.

    Before the first query they are the start and 0.
    """

    params: Params
    gradient: Params


class DescentState(NamedTuple):
    """The state of ``Descent``: computed from released values, or drawn without the data."""

    params: Params
    rule: Any
    """The state of the update rule."""
    output: OutputState
    last_query: LastQuery | None
    """None unless the run is certified."""


class ProximalInfo(NamedTuple):
    """What the history keeps of a step whose regularizer enters by its proximal operator."""

    _repr_html_ = base.history_html
    data_gradient_norm: Array
    """Norm of the noisy gradient of the data term alone, where the step began."""
    step_norm: Array
    """Length of the step taken, the proximal operator included."""


@pytree_dataclass
class Descent(base.SingleQueryAlgorithm):
    """A method that asks one noisy gradient a step, such as DP-GD, DP-Adam and PrGD.

    Args:
      rule: turns its answer into a step.
      outputs: which iterate is published, or their average.
      bounds: bounds on the noise, for a certificate at the last query; None for no certificate.
      beta: the certificate holds with probability at least 1 - beta.
      proximal: whether the regularizer enters by its proximal operator, after the step; the rule
        must then be ``Steps``.
      unclipped: whether clipping provably changes no gradient of a row x with |x| <= 1; for data
        declared to have such rows the certificate then speaks of the objective itself, not of the
        clipped one.
    """

    query: GradientQuery
    rule: UpdateRule
    name: str = static()
    outputs: OutputRule = LAST
    bounds: NoiseBounds | None = None
    beta: Array | float = 0.0
    proximal: bool = static(default=False)
    unclipped: bool = static(default=False)

    @property
    def title(self) -> str:
        return self.name

    def init(self, params: Params) -> DescentState:
        wide, last = at_least_float32(params), None
        if self.bounds is not None:
            last = LastQuery(params, jax.tree.map(jnp.zeros_like, wide))
        return DescentState(params, self.rule.init(wide), self.outputs.init(params), last)

    def step(
        self, key: Array, state: DescentState, ask: base.Ask
    ) -> tuple[DescentState, StepInfo | ProximalInfo]:
        # In float32 at least: the prox and the average see the iterate before it is rounded.
        old = at_least_float32(state.params)
        gradient = direction = ask(self.query, state.params)
        # The regularizer enters by its gradient before, or by its proximal operator after.
        if not self.proximal:
            direction = self.objective.regularize_gradient(gradient, old)
        updates, rule = self.rule.update(direction, state.rule, old)
        new = jax.tree.map(lambda w, u: w + u.astype(w.dtype), old, updates)
        norm, info = optax.tree.norm(direction), StepInfo
        if self.proximal:
            # The operator needs the step's size, which only ``Steps`` knows.
            assert isinstance(self.rule, Steps)
            new, info = self.objective.prox(new, self.rule.rate(state.rule)), ProximalInfo
            updates = jax.tree.map(jnp.subtract, new, old)
        params = jax.tree.map(lambda w, n: n.astype(w.dtype), state.params, new)
        output = self.outputs.update(key, state.output, new, self.steps)
        # The certificate is of where the gradient was asked, not of where the step has led.
        last = None if self.bounds is None else LastQuery(state.params, gradient)
        return DescentState(params, rule, output, last), info(norm, optax.tree.norm(updates))

    def done(self, state: DescentState) -> Array:
        return self.outputs.done(state.output)

    def output(self, state: DescentState) -> Params:
        return self.outputs.output(state.output, state.params)

    def certify(
        self, key: Array, state: DescentState, ask: base.Ask, bounded_rows: bool
    ) -> tuple[Certificate | None, Params | None]:
        if self.bounds is None or state.last_query is None:
            return None, None
        point, gradient = state.last_query
        return certify(self, point, (gradient, None), "last_query", bounded_rows)
