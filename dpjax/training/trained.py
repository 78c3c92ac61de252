"""``Trained``: a trained network, its guarantee, and what was measured on the way."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from dpjax._typing import Array, Params, PyTree
from dpjax.driver import Solution
from dpjax.training.evaluation import outputs_of
from dpjax.training.network import Linen, Network, Nnx


@dataclasses.dataclass(frozen=True)
class Trained:
    """What ``fit`` returns.

    Args:
      solution: parameters, history and guarantee; ``dpjax.save`` writes it.
      network: the model as a function of one example.
      classifies: whether the outputs are logits of classes.
      exact_held_out: columns ``step``, ``epoch``, ``loss`` and the metrics, one row a look; None
        without held-out records.
      exact_training: the same on the training records, if that was asked for; else None.

    Privacy: ``solution`` is covered by its guarantee. ``exact_held_out`` is NOT PRIVATE with regard
      to the held-out records, and ``exact_training`` NOT PRIVATE at all.
    """

    solution: Solution
    network: Network
    classifies: bool
    exact_held_out: dict[str, np.ndarray] | None = dataclasses.field(default=None, repr=False)
    exact_training: dict[str, np.ndarray] | None = dataclasses.field(default=None, repr=False)

    @property
    def params(self) -> Params:
        """The trained parameters."""
        return self.solution.params

    @property
    def model(self) -> Callable[..., Any]:
        """The trained model, called as its code wants: a module, or the function at its params."""
        apply = self.network.apply
        if isinstance(apply, Nnx):
            return nnx.merge(apply.graphdef, nnx.State(self.params))
        if isinstance(apply, Linen):
            return apply.module.bind({"params": self.params})
        return functools.partial(apply, self.params)

    def outputs(self, x: PyTree) -> PyTree:
        """Returns the outputs for the rows of ``x``, in the units of the training data."""
        return outputs_of(self.network, self.params, x)

    def predict(self, x: PyTree) -> Array:
        """Returns the class of the largest logit for each row of ``x``, shape (n,).

        Raises:
          ValueError: if the loss was not cross-entropy.
        """
        if not self.classifies:
            raise ValueError("predict needs loss='cross_entropy'; outputs(x) are those of any.")
        return jnp.argmax(self.outputs(x), axis=-1)

    def epsilon(self, delta: float) -> float:
        """Returns the epsilon spent at ``delta``."""
        return self.solution.epsilon(delta)  # pyright: ignore[reportReturnType] # one run

    def guarantee(self) -> str:
        """Returns the guarantee in words a person can publish."""
        return self.solution.guarantee()  # pyright: ignore[reportReturnType] # one run
