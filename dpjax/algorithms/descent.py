"""``Descent``: first-order methods in one configuration: query, update rule, output rule."""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax.algorithms import base
from dpjax.algorithms.certificate import Certificate, NoiseBounds, certify, scope_of, widen
from dpjax.algorithms.common import Single
from dpjax.algorithms.outputs import LAST, OutputRule, OutputState
from dpjax.oracles import GradientQuery


class UpdateRule(Protocol):
    """How a noisy gradient becomes a step: a pytree of numbers, with the two functions of optax.

    Privacy: post-processing; a rule sees released values alone.
    """

    def init(self, params: Params) -> Any:
        """Returns what the rule remembers before the first step, at ``params`` in float32."""
        ...

    def update(self, gradient: Params, state: Any, params: Params) -> tuple[Params, Any]:
        """Returns what is added to ``params``, and what the rule remembers."""
        ...


@pytree_dataclass
class Steps:
    """Plain steps: the t-th is step_size / t^decay times minus the gradient.

    >>> print(Steps(2.0).update(jnp.ones(2), jnp.zeros((), int), jnp.zeros(2))[0])
    [-2. -2.]
    """

    step_size: Array | float
    decay: Array | float = 0.0

    def init(self, params: Params) -> Array:
        """Returns the number of steps taken; int32."""
        del params
        return jnp.zeros((), jnp.int32)

    def rate(self, taken: Array) -> Array:
        """Returns the length of the step after ``taken`` steps, over the gradient's."""
        first = jnp.asarray(self.step_size)
        return first * (taken + 1).astype(first.dtype) ** -jnp.asarray(self.decay, first.dtype)

    def update(self, gradient: Params, state: Array, params: Params) -> tuple[Params, Array]:
        """Returns the step and the steps taken; see ``UpdateRule``."""
        del params
        rate = self.rate(state)
        return jax.tree.map(lambda g: -rate.astype(g.dtype) * g, gradient), state + 1


class AdamState(NamedTuple):
    """What Adam remembers; of released gradients alone."""

    taken: Array
    moments: optax.OptState


@pytree_dataclass
class AdamSteps:
    """Adam's direction at a rate that goes geometrically from the first step's to the last's.

    Args:
      step_size: of the first step.
      final_step_size: of step ``steps``.
      steps: T.
      b1: decay of the mean of gradients.
      b2: decay of the mean of their squares.
      eps: added to the root of that mean.

    Reference: Kingma and Ba (2015), algorithm 1.
    """

    step_size: Array | float
    final_step_size: Array | float
    steps: Array | int
    b1: Array | float
    b2: Array | float
    eps: Array | float

    def init(self, params: Params) -> AdamState:
        """Returns both moments, 0."""
        return AdamState(jnp.zeros((), jnp.int32), self._moments().init(params))

    def update(
        self, gradient: Params, state: AdamState, params: Params
    ) -> tuple[Params, AdamState]:
        """Returns the step and the new moments; see ``UpdateRule``."""
        direction, moments = self._moments().update(gradient, state.moments, params)
        passed = state.taken / jnp.maximum(jnp.asarray(self.steps) - 1, 1)
        first, last = jnp.asarray(self.step_size), jnp.asarray(self.final_step_size)
        rate = first * (last / first) ** passed.astype(first.dtype)
        move = jax.tree.map(lambda d: -rate.astype(d.dtype) * d, direction)
        return move, AdamState(state.taken + 1, moments)

    def _moments(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(self.b1, self.b2, self.eps)  # pyright: ignore[reportArgumentType]


@pytree_dataclass
class OptaxSteps:
    """The steps of an optax optimizer, which is fed the noisy gradient and nothing else."""

    optimizer: optax.GradientTransformation = static()

    def init(self, params: Params) -> optax.OptState:
        """Returns the optimizer's first state."""
        return jax.tree.map(jnp.asarray, self.optimizer.init(params))

    def update(self, gradient: Params, state: Any, params: Params) -> tuple[Params, Any]:
        """Returns the optimizer's update and its state; see ``UpdateRule``."""
        updates, new = self.optimizer.update(gradient, state, params)
        # An update may hand a dtype on that its state did not begin with.
        return updates, jax.tree.map(lambda was, now: jnp.asarray(now, was.dtype), state, new)


class Asked(NamedTuple):
    """Where the last gradient was released, and that gradient; what a certificate is made of."""

    params: Params
    gradient: Params


class State(NamedTuple):
    """What the next step needs; all of it released, or drawn without the data."""

    params: Params
    memory: Any
    """What the update rule remembers."""
    output: OutputState
    asked: Asked | None
    """None unless the run is certified."""


class Info(NamedTuple):
    """What a person watches; all of it released. Of proximal steps it is ``ProximalInfo``."""

    gradient_norm: Array
    """Norm of the noisy gradient, regularizer included, before the step."""
    step_norm: Array
    """Length of the step taken."""


class ProximalInfo(NamedTuple):
    """What a person watches of steps whose regularizer enters by its proximal operator.

    ``gradient_norm`` in other histories includes the regularizer; here it has no part in it.
    """

    data_gradient_norm: Array
    """Norm of the noisy gradient of the data term alone, before the step."""
    step_norm: Array
    """Length of the step taken, the proximal operator included."""


@pytree_dataclass
class Descent(Single):
    """Configuration of a method that takes one noisy gradient a step; made by the factories.

    Args:
      query: the one question.
      rule: what makes a step of its answer.
      outputs: which iterate is published.
      name: for people.
      bounds: on the noise, of the certificate at the last query; None for none.
      beta: probability that the certificate fails.
      proximal: whether the regularizer enters by its proximal operator, after the step; the rule
        then is ``Steps``.
      unclipped: whether no gradient is ever clipped on rows |x| <= 1.
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
        """Name for people."""
        return self.name

    def init(self, params: Params) -> State:
        """Returns the state at ``params``."""
        wide, asked = widen(params), None
        if self.bounds is not None:
            asked = Asked(params, jax.tree.map(jnp.zeros_like, wide))
        return State(params, self.rule.init(wide), self.outputs.init(params), asked)

    def step(self, key: Array, state: State, ask: base.Ask) -> tuple[State, Info | ProximalInfo]:
        """One noisy gradient, one step against it; then the proximal operator, if there is one."""
        gradient = ask(self.query, state.params)
        old, whole = widen(state.params), gradient
        if not self.proximal:
            whole = self.objective.regularize_gradient(gradient, old)
        updates, memory = self.rule.update(whole, state.memory, old)
        new = jax.tree.map(lambda w, u: w + u.astype(w.dtype), old, updates)
        norm, info = optax.tree.norm(whole), Info
        if self.proximal:
            assert isinstance(self.rule, Steps)
            new, info = self.objective.prox(new, self.rule.rate(state.memory)), ProximalInfo
            updates = jax.tree.map(jnp.subtract, new, old)
        params = jax.tree.map(lambda w, n: n.astype(w.dtype), state.params, new)
        output = self.outputs.update(key, state.output, new, self.steps)
        asked = None if self.bounds is None else Asked(state.params, gradient)
        return State(params, memory, output, asked), info(norm, optax.tree.norm(updates))

    def done(self, state: State) -> Array:
        """Stops at the iterate that was drawn, if one was."""
        return self.outputs.done(state.output)

    def output(self, state: State) -> Params:
        """Returns the iterate that the output rule names."""
        return self.outputs.output(state.output, state.params)

    def certify(
        self, key: Array, state: State, ask: base.Ask, unit_rows: bool
    ) -> tuple[Certificate | None, Params | None]:
        """Returns the bound on the gradient at the last query, which is free."""
        del key, ask
        if self.bounds is None or state.asked is None:
            return None, None
        upper, _ = certify(
            self.objective, state.asked.params, state.asked.gradient, None, self.bounds
        )
        scope = scope_of(self.unclipped and unit_rows)
        return Certificate(upper, None, self.beta, "last_query", scope), state.asked.params
