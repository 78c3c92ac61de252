"""Checks of what optax does around a private chain, and of optimizers that follow the noise."""

import inspect
import traceback
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import DifferentiallyPrivateAggregateState

from dpjax import _validate
from dpjax._typing import Params, PyTree

# Wrapper of optax -> what it does with updates that have no noise yet.
_BREAKS = {
    "MultiSteps": "adds the noise of one step to several draws of records (to split a batch, "
    "pass memory_limit= to clipped_grad)",
    "apply_if_finite": "drops a step if one exact update is not finite",
    "conditionally_transform": "hands on exact updates where its condition is false",
    "inject_hyperparams": "makes it anew at every step, of numbers that the state holds",
    "mechanize": "makes its step size of exact updates",
    "monitor": "hands on exact updates",
    "process": "may average several draws of records before the noise",
    "sam": "moves by exact updates where one of its two optimizers adds no noise",
    "scale_by_galore": "releases singular vectors of exact updates",
    "scale_by_sophia": "averages exact updates",
}


def check_callers(making: bool = False) -> None:
    """Raises if a wrapper of optax initialises, or is making, a private chain that it breaks."""
    # No argument of a wrapper's says what it does with exact updates. That it calls can be seen.
    for frame, _ in traceback.walk_stack(inspect.currentframe()):
        if frame.f_globals.get("__name__", "").startswith("optax."):
            # Methods and closures are named after their wrapper: ``sam.<locals>.init_fn``.
            name, _, function = frame.f_code.co_qualname.partition(".")
            reason = _BREAKS.get(name)
            # A wrapper whose update calls ``init`` sets the count of steps back to 0.
            if "update" in function and not making:
                reason = "resets its state, so that noise repeats"
            # That wrapper makes the chain, the others initialise it.
            if reason and making == (name == "inject_hyperparams"):
                raise ValueError(
                    f"optax's {name} around a private chain {reason}: no event counts that. Put "
                    "it after the noise, as in optax.chain(noisy_mean(...), ...), where it sees "
                    "released updates alone."
                )


def check_updates(updates: PyTree, params: PyTree, extra: dict[str, Any]) -> None:
    """Raises if a leaf is masked, or a function would read records after the noise."""
    if _holds((updates, params), (optax.MaskedNode,)):
        raise ValueError(
            "a leaf is an optax.MaskedNode: optax.masked, partition, multi_transform or "
            "selective_transform around a private chain hands that leaf, exact, past clipping and "
            "noise. To freeze parameters, differentiate the loss by the others alone, or put "
            "optax.freeze(mask) after the noise."
        )
    for name in [name for name, value in extra.items() if callable(value)]:
        raise ValueError(
            f"{name}= hands a function to what follows the noise, such as a line search: what it "
            "reads of the records is in no event. Leave it out; for a function of public data, "
            "update that optimizer by itself, with the noisy updates."
        )


def holds_noise(optimizer: optax.GradientTransformation, params: Params | None = None) -> bool:
    """Returns whether an optimizer adds noise of its own: by dpjax or optax, or with any key.

    Args:
      optimizer: an optax transformation.
      params: what it is to be initialised with, where it reads their structure.

    >>> holds_noise(optax.adam(1e-3))
    False
    """
    state = _state(optimizer, params)
    # A key in the state may be the noise of a library that dpjax does not know.
    keys = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(state)]
    return any(keys) or _holds(state, (DifferentiallyPrivateAggregateState,))


def check_no_multi_steps(optimizer: Any, params: Params | None = None) -> None:
    """Raises if ``optax.MultiSteps`` is in an optimizer: several noisy gradients make one step.

    Args:
      optimizer: an optax transformation, or an ``optax.MultiSteps``.
      params: what it is for, where it reads their structure.

    >>> check_no_multi_steps(optax.adam(1e-3))
    """
    if _holds(_state(optimizer, params), (optax.MultiStepsState,)):
        raise ValueError(
            "optax.MultiSteps breaks the noise of a step: noise is added to every micro-batch, "
            "or once for several draws. Micro-batching belongs to the gradient: remove it; "
            "clipped_grad(..., memory_limit=...) accumulates a batch in micro-batches."
        )


def check_optimizer(optimizer: Any, params: Params) -> None:
    """Raises for an optimizer that does not belong after the noise of a training.

    Args:
      optimizer: an optax transformation.
      params: what it is for, or shapes.

    Raises:
      ValueError: for what is none, one that adds noise itself, or ``optax.MultiSteps``, which would
        count several noisy gradients as one step.

    >>> check_optimizer(optax.sgd(0.1), jnp.zeros(2))
    """
    # By its two functions, as optax takes any pair that has them.
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise ValueError(
            "optimizer must be an optax transformation such as optax.adam(1e-3), got "
            f"{_validate.shown(optimizer)}."
        )
    check_no_multi_steps(optimizer, params)
    if holds_noise(optimizer, params):
        raise ValueError(
            "optimizer adds noise itself, and so does the training: pass only what follows the "
            "noise, such as optax.sgd(0.1) or optax.adam(1e-3); clipping and noise are "
            "clip_norm= and the budget."
        )


def _state(optimizer: Any, params: Params | None) -> Any:
    # Shapes alone: no key is claimed or used.
    return jax.eval_shape(optimizer.init, jnp.zeros(1) if params is None else params)


def _holds(state: Any, kinds: tuple[type, ...]) -> bool:
    def is_kind(node: Any) -> bool:
        return isinstance(node, kinds)

    # States are named tuples, which would be taken apart into their arrays.
    return any(map(is_kind, jax.tree.leaves(state, is_leaf=is_kind)))
