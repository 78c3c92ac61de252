"""Oracles of noisy shares of the records: whose label is predicted, who count, who is in a bin."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.flatten_util import ravel_pytree

from dpjax._typing import Array, Params, PyTree, pytree_dataclass
from dpjax.accounting.release import Quantity
from dpjax.derivatives import count_rows
from dpjax.derivatives.linear import prepared, sums, units
from dpjax.derivatives.linear.scaled_rows import PreparedLinear, prepare
from dpjax.derivatives.primitives import map_examples, vmap_mixes_examples
from dpjax.derivatives.rounding import BLOCK
from dpjax.objectives.units import UnitLoss
from dpjax.oracles.gradient import GradientQuery
from dpjax.oracles.query import Mask, MeanQuery, Records, Sums
from dpjax.oracles.setting import ClippedSums
from dpjax.placement.stream import shaped
from dpjax.sampling import FullBatch

_BINS = 16  # of the norms of gradients


class _Fraction(MeanQuery):
    """Asks for (number of records that have a property) / n + N(0, stddev^2)."""

    quantity = Quantity("fraction")
    noise_draws = 1  # pyright: ignore[reportAssignmentType]
    reads = FullBatch
    gradients_per_record = 0
    # Rounding can flip a score near 0, and with it a whole count. In a clipped sum the same
    # rounding is small and charged.
    _jumps = True
    # How far a record moves the sum; also where it is replaced, as none counts less than 0.
    _moved = 1.0
    # Whether a unit counts as the share of its records that have the property, not as a whole.
    _by_share = False

    def bound(self, params: Params | None = None, **public: Any) -> float:
        return 1.0

    @property
    def sensitivity(self) -> float:
        return self._moved / self.data_size

    def exact(self, records: Records, params: Params, mask: Mask = None, **public: Any) -> Sums:
        """Returns the number of records that have the property, (). NOT PRIVATE."""
        linear, have = self.objective.linear, functools.partial(self._have, params)
        if isinstance(records, units.PreparedUnits):
            return (units.count_units(records, have if self._by_share else None),)
        if linear is None:
            return (count_rows(records, mask, have),)
        return (sums.count(prepared(linear, records, mask), have),)

    def stddevs(self, params: Params, **public: Any) -> tuple[Any, ...]:
        return (self.noise_multiplier * self._moved,)  # on the sum

    def _have(self, params: Params, rows: Any) -> Array:
        raise NotImplementedError


@pytree_dataclass(kw_only=True)
class AccuracyQuery(_Fraction):
    """Asks for (number of records whose label is predicted) / n + N(0, stddev^2).

    A record counts 1 if the score of its features has the sign of its label, or of several scores
    the largest is that of its class, and else 0: also at a score of 0, and for a null record, with
    a feature that is not finite or an impossible label. A unit counts as the mean of those of its
    records that are not null.

    Args:
      setting: whose objective predicts labels, of all records; the relation is
        ``"zero_out"`` or ``"replace_one"``, the sensitivity 1 / n under both.
      noise_multiplier: standard deviation over the sensitivity.

    Raises:
      ValueError: for another relation, or an objective that predicts no label.

    Privacy: the Gaussian mechanism. A record counts 0 or 1 whatever it holds, and a unit, as a mean
      of such, from 0 to 1 however many records it has; so one that is nulled or replaced moves the
      sum by 1 at most. Counts are added exactly; the rounding of units' quotients is charged. The
      score of a record is computed from that record and its place alone.
    """

    name = "accuracy"
    sums = ClippedSums(reviewed="AccuracyQuery")
    _by_share = True

    def __post_init__(self):
        if self.relation == "add_or_remove_one":
            raise ValueError(
                "accuracy is not released under relation='add_or_remove_one': removing a record "
                "shifts others, and a score near 0 may then round to the other sign. Declare "
                "'zero_out' or 'replace_one'."
            )
        if not self.objective.predicts:
            raise ValueError(f"{self.objective.name} predicts no label, so it has no accuracy.")

    @property
    def quantity(self) -> Quantity:
        return Quantity("mean_fraction" if self._grouped else "fraction")

    @property
    def _grouped(self) -> bool:
        return isinstance(self.objective.loss, UnitLoss)

    @property
    def _moved(self) -> float:
        return 1.0 + (self.rounding_error if self._grouped else 0.0)

    def check_examples(self, examples: PyTree, params: Params) -> None:
        """Raises ``ValueError`` unless these are rows with labels that the model scores one by one.

        Privacy: reads shapes and dtypes, no value; no message names n.
        """
        if not (isinstance(examples, tuple) and len(examples) == 2):
            raise ValueError("accuracy needs examples (x, y): pass the tuple (x, y) or a Dataset.")
        try:
            jax.eval_shape(self._have, params, shaped(examples))
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"the model of {self.objective.name} does not score rows of these x: {error}"
            ) from error

    def _have(self, params: Params, rows: Any) -> Array:
        if not self._grouped or isinstance(rows, PreparedLinear):
            return self._are_right(params, rows)
        (x, y), present = rows
        right = self._are_right(params, (x.reshape(-1, *x.shape[2:]), y.reshape(-1, *y.shape[2:])))
        kind: Any = self.objective.label_kind
        valid = present & kind.accepts(y) & jnp.isfinite(x).all(axis=2)
        return units.share(valid & right.reshape(valid.shape), valid, axis=1)

    def _are_right(self, params: Params, rows: Any) -> Array:
        if (linear := self.objective.of_scores) is not None:
            if isinstance(rows, PreparedLinear):
                return sums.are_correct(linear, rows, params)
            prepared = prepare(rows, labels=linear.labels)
            return sums.are_correct(linear, prepared, params).ravel()[: len(rows[1])]
        x, y = rows
        # A null record counts 0 whatever score the model gives it, as it adds nothing to any sum.
        valid = (jnp.abs(y) == 1) & jnp.isfinite(x).all(axis=1)
        # One row at a time, so that no model can let a record decide about another.
        score = self.objective.model.score  # pyright: ignore
        scores = jax.vmap(lambda row: score(params, row[None]))(jnp.where(valid[:, None], x, 0))
        if scores.shape != (len(y), 1):
            raise ValueError("there must be one score for each row.")
        return valid & (scores[:, 0] * y > 0)


@pytree_dataclass(kw_only=True)
class CountQuery(_Fraction):
    """Asks for (number of records that are not null) / n + N(0, stddev^2).

    A record counts 1 if its loss and gradient are finite, and else 0, as one with a feature that is
    not, or a label that the loss does not accept, adds nothing to any sum. For a linear model of
    rows one whose features are all 0 counts 0 too. A unit counts 1 if one of its records does.

    Args:
      setting: whose objective decides, of all records.
      noise_multiplier: standard deviation over the sensitivity, 1 / n under every relation.

    Privacy: the Gaussian mechanism. A record, or a unit, counts 0 or 1 whatever it holds, wherever
      it lies, so one that is nulled, replaced, added or removed moves the number by 1 at most.
      Under ``add_or_remove_one`` that rests, as sums do, on a record's part being bitwise the same
      in every row, and a loss without a closed form is refused.
    """

    name = "count"
    sums = ClippedSums(reviewed="CountQuery")

    @property
    def gradients_per_record(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """One where gradients tell who counts, none where features do."""
        return int(self.objective.of_scores is None)

    def _have(self, params: Params, rows: Any) -> Array:
        if isinstance(rows, PreparedLinear):
            # ``prepare`` gives radius 0 to null records and to those whose features are all 0.
            return rows.radius > 0
        of_one = jax.value_and_grad(self.objective.loss)

        def counts(row: PyTree) -> Array:
            return jnp.isfinite(ravel_pytree(of_one(params, row))[0]).all()

        # At most 64 MB of gradients at a time; a record alone where others could reach it.
        alone = vmap_mixes_examples(self.objective.loss, params, rows)
        size = max(1, min(BLOCK, 2**24 // sum(map(jnp.size, jax.tree.leaves(params)))))
        return lax.map(counts, rows, batch_size=None if alone else size)


@pytree_dataclass(kw_only=True)
class NormsQuery(MeanQuery):
    """Asks what share of n records has a gradient's norm in each bin, with noise.

    Upper ends of bins are 2^(-i/3) times ``clip_norm``; the first also has all larger norms, the
    last all smaller ones.

    Privacy: the Gaussian mechanism. A record adds 1 to one bin, whatever it holds, or nothing where
      it is null: it moves the counts by 1 in the l2 norm, and one that is replaced by 2 at most.
      Counts are added exactly.
    """

    clip_norm: Array | float

    name = "gradient_norms"
    quantity = Quantity("gradient_norms")
    noise_draws = _BINS  # pyright: ignore[reportAssignmentType]
    reads = FullBatch
    closed_form_for_units = True
    _jumps = True  # rounding can move a norm into another bin
    sums = ClippedSums(reviewed="NormsQuery")

    def bound(self, params: Params | None = None, **public: Any) -> float:
        return 1.0

    def exact(self, records: Records, params: Params, mask: Mask = None, **public: Any) -> Sums:
        """Returns how many norms are in each bin. NOT PRIVATE."""
        loss = self.objective.data_term
        form: Any = loss.of_scores
        ends = self.clip_norm * self.edges

        def count(low: Array, high: Array) -> Any:
            def inside(norm: Array) -> Array:
                return (norm > low) & (norm <= high)

            def of_rows(rows: PreparedLinear) -> Array:
                weights = params.astype(rows.dtype).reshape(form.outputs, -1)
                slope, _ = sums.derivatives(form, weights, rows.directions, rows.radius, rows.label)
                return inside(jnp.linalg.norm(slope, axis=1)).reshape(rows.radius.shape)

            def of_examples(rows: PyTree) -> Array:
                one, alone = jax.grad(loss.loss), vmap_mixes_examples(loss.loss, params, rows)
                return inside(map_examples(lambda r: optax.tree.norm(one(params, r)), rows, alone))

            if isinstance(records, units.PreparedUnits):
                return units.count_gradients(form, records, params, inside)
            if loss.linear is None:
                return count_rows(records, mask, of_examples)
            return sums.count(prepared(form, records, mask), of_rows)

        return (jax.vmap(count)(jnp.append(ends[1:], 0.0), ends.at[0].set(jnp.inf)),)

    @property
    def edges(self) -> Array:
        """The upper ends of the bins over ``clip_norm``, (bins,)."""
        return 2.0 ** (-jnp.arange(_BINS) / 3)

    def exceeded(self, answer: Array, share: float) -> Array:
        """Returns the least edge that about ``share`` of the records exceed at most, ()."""
        # The upper end of the first bin with which too many are counted; of the last one else.
        above = jnp.append(jnp.cumsum(answer)[:-1], jnp.inf)
        return self.edges[jnp.argmax(above > share)]


@dataclasses.dataclass(frozen=True)
class BinsLoss:
    """The loss whose gradient has a 1 for the bin in which a record lies in each column.

    A record is ``(places, y)``: the number of its bin in each column, of ``sizes`` bins, then
    further numbers, summed as they are. A place that is no bin, NaN and y add nothing.
    """

    sizes: tuple[int, ...]

    def __call__(self, params: Params, example: Any) -> Array:
        """Returns the inner product of ``params`` and what a record adds."""
        record, count = example[0], len(self.sizes)
        bins = np.r_[*map(np.arange, self.sizes)]
        inside = record[np.repeat(np.arange(count), self.sizes)] == bins
        return params @ jnp.r_[inside, jnp.nan_to_num(record[count:])].astype(params.dtype)


@pytree_dataclass(kw_only=True)
class HistogramQuery(GradientQuery):
    """Asks for (sum of what ``BinsLoss`` counts) / n + N(0, stddev^2 I), once for all columns.

    Privacy: the Gaussian mechanism. A record adds a 1 in each of m columns, and a unit the mean of
      its records: neither has a norm above ``clip_norm``, sqrt(m + s) for further numbers of
      squared norm s. Clipping enforces it whatever a record holds.
    """

    name = "histogram"
    description = "shares of records in public bins, with Gaussian noise"
    sums = ClippedSums(reviewed="HistogramQuery")

    @property
    def components(self) -> tuple[tuple[str, float], ...]:
        return (("share of a bin", float(self.stddev)),)
