"""``DryRun``: the noise of a training and the memory that it takes, before anything is spent."""

import dataclasses
from typing import Any

import jax

from dpjax._typing import Params
from dpjax.algorithms import Algorithm
from dpjax.display.cards import Card, HasCard, card_of, counted
from dpjax.driver import check_data
from dpjax.driver.prepare import starting_point, unpack
from dpjax.driver.progress import bytes_of_step
from dpjax.driver.resume import RunFiles
from dpjax.oracles import GradientQuery


@dataclasses.dataclass(frozen=True)
class DryRun(HasCard):
    """What ``fit`` would do: it returns one where ``dry_run=True``.

    Args:
      algorithm: with its noise; ``algorithm.epsilon()`` is that of the full run.
      records_at_once: how many records have their gradients computed at once, in a piece; None, as
        the next, for a method that asks for more than gradients.
      pieces: how many a step computes one after the other.
      bytes_of_step: memory of a step on one device beside records, parameters and the optimizer's
        state, by the compiler's count; None where it has none.

    Privacy: of the data it holds shapes and declarations alone.
    """

    algorithm: Algorithm
    records_at_once: int | None
    pieces: int | None
    bytes_of_step: int | None

    def _card(self) -> Card:
        rows = []
        if self.bytes_of_step is not None:
            rows.append(("memory of a step", f"{self.bytes_of_step / 2**20:,.3g} MiB"))
        if self.pieces is not None:
            at_once = f"{self.records_at_once:,} records at once"
            rows.append(("batch", f"{counted(self.pieces, 'piece')} of {at_once}"))
        card = card_of(self.algorithm)
        return Card(f"Dry run of {self.algorithm.title}: nothing was spent", (*rows, *card.rows))


def dry_run(algorithm: Algorithm, data: Any, params: Params, files: RunFiles) -> DryRun:
    """Returns what a training would do; raises as it would for data, a start or a ledger."""
    check_data(algorithm, data, starting_point(algorithm, params))
    files.named(data).check(algorithm.event)
    query = algorithm.queries[0]
    # Where n is private the declared number stands for it.
    n = query.data_size if query.relation == "add_or_remove_one" else None

    def shapes(tree: Any, count: int | None) -> Any:
        def of(leaf: Any) -> jax.ShapeDtypeStruct:
            shape = (count or leaf.shape[0], *leaf.shape[1:])
            return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(leaf.dtype))

        return jax.tree.map(of, tree)

    examples = shapes(unpack(data, algorithm)[0], n)
    found, most = (None, None), query.sampler.max_batch_size
    if isinstance(query, GradientQuery):
        found = query.piece(shapes(examples, most), params).cut(most, algorithm.dimension)
    return DryRun(algorithm, *found, bytes_of_step(algorithm, examples, params))
