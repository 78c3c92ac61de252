"""``EscapeRule``: how Spider leaves saddles; its own rule is ``Kicks``."""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax._typing import Array, Params, pytree_dataclass
from dpjax._wide import at_least_float32
from dpjax.mechanisms import derive


@pytree_dataclass
class EscapeRule:
    """How Spider leaves saddles, updated once a step: a pytree. This one never pushes.

    Privacy: post-processing; a rule sees released values and public coins alone.
    """

    forgets_drift: ClassVar[bool] = False
    """Whether a push makes the drift 0, so that no fresh gradient interrupts the way out."""

    def init(self, params: Params) -> Any:
        """Returns the first state, at the starting point."""
        return ()

    def update(
        self, key: Array, gradient: Params, state: Any, params: Params
    ) -> tuple[Params, Array, Any]:
        """Returns a push that is added to the gradient, whether there is one, and the next state.

        ``gradient`` is the estimate at ``params``, regularizer included; ``key`` is for public
        coins, which hide nothing.
        """
        return jax.tree.map(jnp.zeros_like, gradient), jnp.array(False), state

    def ended(self, state: Any) -> Array:
        """Returns whether the run is over, before the records are."""
        return jnp.array(False)

    def output(self, state: Any, params: Params) -> Params:
        """Returns the output of a run without scores, whose last iterate is ``params``."""
        return params


class KicksState(NamedTuple):
    """The state of ``Kicks``; all of it released."""

    frozen: Array
    """Steps until another kick is allowed."""
    gradient_norm: Array
    """Norm of the last step's direction before any kick; infinite before the first."""


@pytree_dataclass
class Kicks(EscapeRule):
    """A kick where the last gradient was small, and then none for ``frozen_steps`` steps.

    In the paper's notation ``kick`` is zeta, ``kick_threshold`` gamma log^3 and ``frozen_steps``
    Gamma.
    """

    kick: Array | float
    kick_threshold: Array | float
    frozen_steps: Array | int

    forgets_drift = True

    def init(self, params: Params) -> KicksState:
        # The state must have the dtype of the norm that replaces it, as in any JAX loop.
        dtype = jnp.result_type(*jax.tree.leaves(at_least_float32(params)))
        # No kick at the first step, before which there is no gradient to judge by.
        return KicksState(jnp.ones((), jnp.int32), jnp.array(jnp.inf, dtype))

    def update(
        self, key: Array, gradient: Params, state: KicksState, params: Params
    ) -> tuple[Params, Array, KicksState]:
        kicked = (state.gradient_norm <= self.kick_threshold) & (state.frozen <= 0)
        frozen = jnp.where(kicked, self.frozen_steps, state.frozen - 1).astype(jnp.int32)
        push = gaussian_push(key, gradient, jnp.where(kicked, self.kick, 0.0))
        return push, kicked, KicksState(frozen, optax.tree.norm(gradient))


def gaussian_push(key: Array, like: Params, length: Array) -> Params:
    """Returns noise of expected squared norm ``length``^2, from public coins: it hides nothing."""
    leaves, tree = jax.tree.flatten(like)
    # One key for each leaf, as leaves of equal shapes would get equal noise from one.
    keys = jax.random.split(derive(key, "kick", 0), len(leaves))
    scale = length / sum(leaf.size for leaf in leaves) ** 0.5
    noise = [
        scale.astype(leaf.dtype) * jax.random.normal(key, leaf.shape, leaf.dtype)
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(tree, noise)
