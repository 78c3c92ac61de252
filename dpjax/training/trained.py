"""``Trained``: a trained network, its guarantee, and its evaluations during training."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from dpjax._typing import Array, Params, PyTree
from dpjax.datasets import Dataset
from dpjax.datasets.labels import decode_labels
from dpjax.display.cards import Card, HasCard, card_of
from dpjax.results import Solution, training_rows
from dpjax.results.guarantee import Guarantee
from dpjax.training.evaluation import outputs_of
from dpjax.training.network import Flax, Network


@dataclasses.dataclass(frozen=True)
class Trained(HasCard):
    """The result of ``fit``.

    Args:
      solution: parameters, history and guarantee; ``dpjax.save`` writes it.
      network: the model as a function of one example.
      classifies: whether the outputs are logits of classes.
      exact_held_out: columns ``step``, ``epoch``, ``loss`` and the metrics, one row per
        evaluation; None without held-out records.
      exact_training: the same columns on the training records, if requested; else None.

    Privacy: ``solution`` is covered by its guarantee. ``exact_held_out`` is NOT PRIVATE with regard
      to the held-out records, and ``exact_training`` NOT PRIVATE at all.
    """

    solution: Solution
    network: Network
    classifies: bool
    exact_held_out: dict[str, np.ndarray] | None = None
    exact_training: dict[str, np.ndarray] | None = None

    @property
    def params(self) -> Params:
        """The trained parameters."""
        return self.solution.params

    @property
    def model(self) -> Callable[..., Any]:
        """The trained model: a module, or the function with the trained parameters bound."""
        apply, params = self.network.apply, self.params
        if not isinstance(apply, Flax) or (self.network.draws and apply.training is None):
            # A module of linen that draws cannot be called by itself.
            return functools.partial(apply, params)
        return apply.bound(params)

    def outputs(self, x: Dataset | PyTree) -> PyTree:
        """Returns the outputs for the records ``x``.

        Args:
          x: arrays in the units of the training data, which the ``bounds`` of ``fit`` scale; or a
            ``Dataset``, whose rows are not scaled again if ``load`` scaled them. For a model
            trained on a loaded table: a table, or unscaled features.

        Raises:
          ValueError: for a ``Dataset`` that was scaled differently from the training data.
        """
        network, scale = self.network, self.solution.preprocessing
        if isinstance(x, Dataset) and x.preprocessing is None:
            # Its rows were not scaled, as those of arrays.
            x = x.x
        if isinstance(x, Dataset) or network.bounds is None:
            x = training_rows(x, scale)
            network = dataclasses.replace(network, bounds=None)
        return outputs_of(network, self.params, x)

    def predict(self, x: Dataset | PyTree) -> Array | np.ndarray:
        """Returns the most likely class of each record of ``x``, shape (n,).

        If classes were declared for the data it is one of them, else the index of the largest
        logit.

        Raises:
          ValueError: if the loss was not cross-entropy, or as ``outputs``.
        """
        if not self.classifies:
            raise ValueError("predict needs loss='cross_entropy' or 'bce'; else use outputs(x).")
        logits, scale = self.outputs(x), self.solution.preprocessing
        if np.ndim(logits) == 1 or np.shape(logits)[-1] == 1:  # one logit, of "bce"
            logits = jnp.reshape(logits, (-1, 1)) * jnp.arange(2.0)[None]
        if scale is None or scale.classes is None:
            return jnp.argmax(logits, axis=-1)
        # A network may have more logits than classes were declared.
        indices = np.argmax(np.asarray(logits)[:, : len(scale.classes)], axis=-1)
        return decode_labels(indices, scale.classes, from_zero=True)

    def _card(self) -> Card:
        card = card_of(self.solution)
        exact = {"held-out": self.exact_held_out, "training": self.exact_training}
        measured = [name for name, columns in exact.items() if columns is not None]
        where = f"on {' and '.join(measured)} records (NOT PRIVATE, not shown)"
        rows = (*card.rows, *([("measured", where)] if measured else []))
        title = f"Trained network, by {self.solution.algorithm.title}"
        return card._replace(title=title, rows=rows)

    def epsilon(self, delta: float | None = None) -> float:
        """Returns the epsilon spent at ``delta``, by default the declared one."""
        return self.solution.epsilon(delta)  # pyright: ignore[reportReturnType] # one run

    def guarantee(self) -> Guarantee:
        """Returns the guarantee as text for publication."""
        return self.solution.guarantee()  # pyright: ignore[reportReturnType] # one run
