"""Keys of records for losses that draw: by the step and the place of a record in the data."""

from typing import Any

import jax
import numpy as np

from dpjax._typing import Array, PyTree
from dpjax.mechanisms.keys import derive, random_words
from dpjax.objectives import Objective
from dpjax.objectives.keyed import Keyed
from dpjax.placement.shard import length
from dpjax.placement.stream import Streamed


def placed(objective: Objective, examples: PyTree) -> PyTree:
    """Returns ``examples``, with their places in the data where the loss draws by them."""
    if not objective.draws:
        return examples
    places = np.arange(length(examples), dtype=np.uint32)
    return Keyed(examples, np.stack([np.zeros_like(places), places], axis=1))  # pyright: ignore[reportArgumentType]


def redrawn(key: Array, records: PyTree) -> PyTree:
    """Returns ``records`` with their keys for one answer, whose own ``key`` is; others as they are.

    Raises:
      ValueError: for records on disk that are read while they are added up.

    Privacy: a record's key follows from the answer's key and its own place, so that no record
      changes what another draws. Places of records that follow an added one do change; keys are
      independent of each other, so that only their names move.
    """

    def of_answer(leaf: Any) -> Any:
        if not isinstance(leaf, Keyed):
            return leaf
        # As many words as a key of threefry2x32 has.
        words = random_words(derive(key, "draws", 0), leaf.words[:, 1])[:2]
        return Keyed(leaf.records, words.T)

    if isinstance(records, Streamed) and isinstance(records.shapes, Keyed):
        raise ValueError(
            "a loss that draws random numbers reads all records of a step from memory: load them, "
            "or draw batches."
        )
    return jax.tree.map(of_answer, records, is_leaf=lambda leaf: isinstance(leaf, Keyed))
