"""Oracles of gradients: their noisy mean, with noise of a ball, its change, a running estimate."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax._wide import Expansion, float64
from dpjax.accounting import Release
from dpjax.accounting.release import Quantity
from dpjax.derivatives import ClippedGradDifference, ClippedSum, clipped_grad, flatten
from dpjax.derivatives.difference import clipped_grad_difference
from dpjax.derivatives.integers import Summand, Total
from dpjax.derivatives.linear import prepared
from dpjax.derivatives.linear.scaled_rows import PreparedLinear
from dpjax.derivatives.linear.sums import transformed
from dpjax.derivatives.per_example import Piece
from dpjax.derivatives.rounding import FINISHING
from dpjax.mechanisms import PrefixNoise, derive
from dpjax.mechanisms.noise import Ball, Noise, Prefix
from dpjax.oracles.query import Mask, Query, Records, Sums
from dpjax.oracles.setting import ClippedSums, Evaluations
from dpjax.placement.shard import Spread
from dpjax.sampling import FullBatch, SinglePass, as_shuffled

LEAST = 2.0**-60
"""The least noise over the largest, which float32 must hold.

It is nearer to 0 than any rounding error of the parameters that it is added to.
"""
ROWS = 256
"""Records of a micro-batch: an answer costs as many of them as its batch holds."""
# Above the rounding of the float32 products below: sizes and noise err upwards.
_SHARE = 2.0**-20


@pytree_dataclass(kw_only=True)
class GradientQuery(Query):
    """Asks for (sum of clipped gradients) / divisor + N(0, stddev^2 I), the data term alone.

    Args:
      clip_norm: C, the bound on one record's gradient.
      the others: as ``Query``.

    Privacy: the Gaussian mechanism of multiplier ``noise_multiplier``; sensitivity ``sensitivity``
      holds for every data set, because clipping always runs.
    """

    clip_norm: Array | float

    name = "gradient"
    # Subclasses may share this purpose, since ``step_key`` derives from their names as well.
    purpose = "gradient"  # pyright: ignore[reportAssignmentType]
    closed_form_for_units = True
    sums = ClippedSums(reviewed="GradientQuery")

    def bound(self, params: Params | None = None, **public: Any) -> Array | float:
        return self.clip_norm

    def exact(self, records: Records, params: Params, mask: Mask = None, **public: Any) -> Sums:
        """Returns the sum of clipped gradients, (p,). NOT PRIVATE."""
        return (self._clipped.wide(params, records, mask),)

    def piece(self, batch: Records, params: Params) -> Piece:
        """Returns how the gradients of a drawn batch are computed; reads shapes alone."""
        return self._clipped.piece(params, batch)

    @property
    def takes_canaries(self) -> bool:
        # The proof needs noise that is independent in each coordinate and step, draws of one canary
        # that tell nothing of another, and answers in all steps: dpjax's own classes.
        own = type(self) in (GradientQuery, NetworkQuery)
        return own and self.sampler.draws_independently

    def canary_scores(self, answer: Params) -> Array:
        """Returns the evidence, (K,), that each canary is in the data: post-processing.

        It is the log-likelihood ratio of the answer in the canary's coordinate, by what is claimed,
        as if no record contributed there.
        """
        (noisy,) = self.noisy_parts(answer)
        seen = noisy[self._coordinates(noisy.size)] / self.clip_norm
        variance = (self.stddev * self.divisor / self.clip_norm) ** 2

        def of_one(seen: Array) -> Array:
            return self.sampler.log_mixture((2 * seen - 1) / (2 * variance), jnp.zeros(()))

        return of_one(seen) - of_one(-seen) if self.relation == "replace_one" else of_one(seen)

    def _coordinates(self, size: int) -> np.ndarray:
        """Where each canary is, public: one coordinate each, evenly over all parameters."""
        return np.arange(self.setting.canaries) * size // self.setting.canaries

    def _exact_parts(self, key: Array, records: Records, params: Params, **public: Any) -> Sums:
        included = public.pop("included", None)
        sums = super()._exact_parts(key, records, params, **public)
        if included is None:
            return sums
        # Who is not included is null, or, where another takes its place, the opposite.
        weights = jnp.where(included, 1.0, -1.0 if self.relation == "replace_one" else 0.0)
        # As records are drawn, with a key of their own.
        batch = self.sampler.sample(derive(key, "canaries", 0), self.setting.canaries)
        drawn = jnp.zeros(weights.shape, bool).at[batch.indices].max(batch.mask)
        added = jnp.zeros(sums[0].shape).at[self._coordinates(sums[0].leading.size)]
        # A term of its own, for terms and noise are added without rounding, see ``perturb``.
        return (Expansion((*sums[0].terms, added.set(self.clip_norm * weights * drawn))),)

    @property
    def _clipped(self) -> ClippedSum:
        return self._clipped_by(clipped_grad, clip_norm=self.clip_norm)


class Transformed(NamedTuple):
    """Records with the features that ``PreconditionedQuery`` reads; secret."""

    rows: PreparedLinear


@pytree_dataclass(kw_only=True)
class PreconditionedQuery(GradientQuery):
    """Asks what ``GradientQuery`` does, of records with A x in place of their features x.

    ``public`` has ``preconditioner``, A of shape (p, p), public or released before.

    Privacy: as ``GradientQuery``: A x is a function of one record, and its gradient is clipped.
    """

    name = "preconditioned_gradient"
    sums = ClippedSums(reviewed="PreconditionedQuery")

    def arranged(self, records: Records, **public: Any) -> Records:
        def transform(rows: Any, _: Mask = None) -> Transformed:
            if not isinstance(rows, PreparedLinear):
                raise ValueError("preconditioned gradients are of records in memory: load them.")
            matrix = public["preconditioner"]
            return Transformed(transformed(rows, matrix, self.permutation_invariant))

        return records.map(transform) if isinstance(records, Spread) else transform(records)

    def exact(self, records: Records, params: Params, mask: Mask = None, **public: Any) -> Sums:
        """Returns the sum of clipped gradients by the weights of A x, (k,). NOT PRIVATE."""
        if not isinstance(records, Transformed):
            records = self.arranged(prepared(self.setting.linear, records, mask), **public)
        return (self._clipped.wide(params, records.rows),)


@pytree_dataclass(kw_only=True)
class NetworkQuery(GradientQuery):
    """Asks what ``GradientQuery`` does, of a network: layers may be clipped each, memory limited.

    Args:
      per_layer: as in ``clipped_grad``; the joint bound stays ``clip_norm``.
      memory_limit: bytes, as in ``clipped_grad``.
      the others: as ``GradientQuery``.

    Privacy: as ``GradientQuery``; both change what is computed within the same bound.
    """

    per_layer: bool = static(default=False)
    memory_limit: int | None = static(default=None)
    sums = ClippedSums(reviewed="NetworkQuery")

    @property
    def _clipped(self) -> ClippedSum:
        options = {"per_layer": self.per_layer, "memory_limit": self.memory_limit}
        return self._clipped_by(clipped_grad, clip_norm=self.clip_norm, **options)


@pytree_dataclass(kw_only=True)
class AnchorQuery(GradientQuery):
    """Asks what ``GradientQuery`` does, at the few steps that renew an anchor.

    Privacy: as many Gaussian mechanisms as renewals; a step that renews nothing reads no record.
    """

    name = "anchor"
    sums = ClippedSums(reviewed="AnchorQuery")

    def is_asked(self, *, refresh: Array) -> Array:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Returns ``refresh``, bool (): public or of released values. Otherwise the answer is 0."""
        return refresh


@pytree_dataclass(kw_only=True)
class BallQuery(GradientQuery):
    """Asks for (sum of clipped gradients) / divisor plus noise uniform in a ball.

    Args:
      noise_multiplier: standard deviation of a coordinate over ``sensitivity``; the radius is
        sqrt(d + 2) times that.
      dimension: d, the number of parameters.
      the others: as ``GradientQuery``.

    Privacy: (0, delta) a question, see ``mechanisms.add_ball``; ``sensitivity`` is how far one
      record moves the mean where it is drawn, C / divisor or, under ``replace_one``, twice that.
    """

    dimension: int = static()

    noise = Ball()
    sums = ClippedSums(reviewed="BallQuery")

    @property
    def radius(self) -> Array | float:
        """Radius of the ball, in the units of the mean."""
        return self.stddev * math.sqrt(self.dimension + 2)

    def releases(self, count: int) -> tuple[Release, ...]:
        """Returns a ball an answer, on draws of their own, taken to be exact: in float64."""
        return (self._release(count, dimension=self.dimension, noise_draws=0),)

    def exact(self, records: Records, params: Params, mask: Mask = None, **public: Any) -> Sums:
        (total,) = super().exact(records, params, mask, **public)
        # Not only more: in fewer dimensions a ball of this radius has another delta.
        if total.leading.size != self.dimension:
            raise ValueError(
                f"dimension={self.dimension} was declared, but there are {total.leading.size} "
                "parameters; the delta of ball noise depends on how many."
            )
        return (total,)

    def stddevs(self, params: Params, **public: Any) -> tuple[Any, ...]:
        """Returns the standard deviation of a coordinate, in float64."""
        with jax.enable_x64(True):  # in float32 the ball could be smaller than accounted
            scale = float64(self.noise_multiplier) * float64(self.clip_norm)
            return (scale * self._sum_sensitivity(1.0),)

    def _sum_sensitivity(self, bound: Array | float) -> Array | float:
        # Sampled or not: of a ball the distance of the centres is what counts.
        self.sampler.sum_scale(bound, self.relation)  # raises where the draw has no accounting
        return FullBatch(self.data_size).sum_scale(bound, self.relation, self.rounding_error)


@pytree_dataclass(kw_only=True)
class DifferenceQuery(Query):
    """Asks for (sum of clipped gradient differences) / divisor + N(0, stddev_at^2 I).

    Args:
      noise_multiplier: standard deviation over what one record contributes at most, at any
        distance from the anchor.
      clip_norm: C, the bound on one record's gradient at either point.
      smoothness: L; a record's difference is clipped to min(2 C, L |params - anchor|).
      the others: as ``Query``.

    Privacy: the Gaussian mechanism of multiplier ``noise_multiplier``, on its sample. The noise
      falls with the sensitivity, so the event is the same whatever the path; ``sensitivity`` and
      ``stddev`` are those of the largest bound, 2 C, and the noise added is at most that.

    Reference: Wang, Ye and Xu (2017), algorithm 1, line 6, with the noise of the anchor apart.
    """

    clip_norm: Array | float
    smoothness: Array | float

    name = "difference"
    gradients_per_record = 2  # here and at the anchor
    # Near the anchor two gradients almost cancel, and rounding is a large part of the difference.
    _jumps = True
    sums = ClippedSums(reviewed="DifferenceQuery")

    @property
    def quantity(self) -> Quantity:
        # The bound is 2 C min(1, slope |params - anchor|); the guarantee prints this number.
        slope = float(self.smoothness / (2 * self.clip_norm))
        return Quantity("difference", (("slope", slope),))

    def bound(self, params: Params | None = None, **public: Any) -> Array | float:
        """Returns what the distance from ``anchor`` allows; at most twice the clip norm."""
        largest = 2 * self.clip_norm
        if params is None:
            return largest
        # At the anchor itself the bound is 0, and noise of scale 0 would release the exact sum.
        return jnp.maximum(self.clipped.bound(params, public["anchor"]), LEAST * largest)

    @property
    def clipped(self) -> ClippedGradDifference:
        """The sum that is asked for, without noise."""
        bounds = {"smoothness": self.smoothness, "clip_norm": self.clip_norm}
        return self._clipped_by(clipped_grad_difference, **bounds)

    def stddev_at(self, params: Params, anchor: Params) -> Array:
        """Returns the standard deviation of the noise on the released mean; released itself."""
        bound = self.bound(params, anchor=anchor)
        return jnp.asarray(self.noise_multiplier * self._mean_sensitivity(bound))

    def exact(self, records: Records, params: Params, mask: Mask = None, **public: Any) -> Sums:
        """Returns the sum of clipped differences, (p,). NOT PRIVATE.

        ``public`` has ``anchor``, where the gradient is known; released before. At the anchor
        itself all is almost 0.
        """
        return (self.clipped.wide(params, public["anchor"], records, mask),)


@pytree_dataclass(kw_only=True)
class EstimateQuery(Query):
    """Asks for an increment of a gradient estimate: a mean gradient, or how one has changed.

    The increments of a segment, summed from its first on, estimate the gradient where the last one
    was asked. Their noise is that of prefix sums, fresh for each segment.

    Args:
      noise_multiplier: standard deviation over sensitivity, of the noise that is correlated
        afterwards; 1 / mu.
      clip_norm: C, the bound on one record's gradient.
      smoothness: M; a record's difference is clipped to min(2 C, M |params - anchor|).
      batch_size: b, records of a gradient. A difference of b_t records is also clipped to
        C b_t / b, so that however b_t was chosen no record moves an increment by more than C / b.
      correlation: of the noise on the increments of a segment. Noise that is independent follows
        what each difference can move instead, without that clip.
      setting: the relation is ``"zero_out"`` or ``"replace_one"``, the sampler a ``SinglePass``
        over the places of the order that may be read.

    Privacy: where every place is read once at most, in an order and by batch sizes that depend on
      released values alone, the whole run is one Gaussian mechanism of multiplier
      ``noise_multiplier``: a record enters one increment of one segment, and there moves all later
      sums of that segment alike. Segments are disjoint, so the largest loss applies.

    Reference: Liu and Talwar (2024), algorithms 1 to 3 and lemma 3.7, with a fresh mechanism per
      segment and the sensitivity as the larger of the two terms.
    """

    clip_norm: Array | float
    smoothness: Array | float
    batch_size: Array | int
    correlation: PrefixNoise

    name = "estimate"
    reads = SinglePass
    # Sums of micro-batches are finished, and then their sum.
    sums = ClippedSums(FINISHING, reviewed="EstimateQuery")

    def bound(self, params: Params | None = None, **public: Any) -> Array | float:
        """What one record adds to b times an increment, as the noise's draws see it."""
        # Noise is independent on what ``PrefixNoise`` calls C G, which an increment that moves by 1
        # moves by this factor.
        return self.clip_norm * self.correlation.sensitivity

    @property
    def divisor(self) -> Array | float:
        # Also for a difference of b_t records: ``stddev_at`` measures its bound in units of C / b.
        return self.batch_size * 1.0

    @property
    def components(self) -> tuple[tuple[str, float], ...]:
        name = "gradient" if self.correlation.is_independent else "independent draws"
        return ((name, float(self.stddev)),)

    @property
    def quantity(self) -> Quantity:
        independent = self.correlation.is_independent
        return Quantity("independent_estimate" if independent else "correlated_estimate")

    def most_answers(self, times: int) -> int:
        # An answer reads a place of the order at least.
        return min(times, self.sampler.max_batch_size)

    def releases(self, count: int) -> tuple[Release, ...]:
        """Returns that of a whole run, however many answers: one Gaussian to each record."""
        # A record pays for one Gaussian, but every answer draws numbers, and epsilon is charged for
        # all.
        draws = self.noise_draws * self.most_answers(self.sampler.max_batch_size)
        return (self._release(1, noise_draws=draws),)

    def evaluations(self, count: int) -> Evaluations:
        """Returns the most gradients a whole run takes, whatever ``count``: two of each record."""
        places = self.sampler.max_batch_size
        return Evaluations(2 * places, 2 * -(-places // ROWS) * ROWS)

    def needed(self, params: Params, anchor: Params) -> Array:
        """Returns b_t, int32: the fewest records whose difference moves no more than a gradient.

        It is b min(2 C, M |params - anchor|) / C, rounded up, and 1 at least.
        """
        bound = self._difference(jnp.inf).bound(params, anchor)
        # At any size: the clip by size is what this size is chosen for.
        exact = self.batch_size * (bound / self.clip_norm) * (1 + _SHARE)
        return jnp.maximum(jnp.ceil(exact), 1).astype(jnp.int32)

    def stddev_at(self, refresh: Array, size: Array, params: Params, anchor: Params) -> Array:
        """Returns the standard deviation of the noise's draws at one increment.

        It is that of a gradient for all increments of a segment; independent noise alone may follow
        what a difference can move.
        """
        if not self.correlation.is_independent:
            return jnp.asarray(self.stddev)
        bound = self._difference(self._limit(size)).bound(params, anchor)
        # How far one record moves the mean of b_t differences, relative to the C / b of a gradient.
        moved = (bound / size) * (self.batch_size / self.clip_norm) * (1 + _SHARE)
        # Where the iterate has not moved the bound is 0, and noise of scale 0 would release the
        # exact sum.
        return self.stddev * jnp.where(refresh, 1.0, jnp.maximum(moved, LEAST))

    def exact(self, records: Records, params: Params, mask: Mask = None, **public: Any) -> Sums:
        """Returns the sum of one increment, (p,), which its noise divides. NOT PRIVATE.

        Args:
          records: see ``bind``; ``ShuffledRecords``, or in the order in which they stand.
          params: where the gradient is wanted; released before.
          mask: None.
          **public: ``anchor``, where the estimate is known, released before; ``refresh``, bool (),
            whether the gradient itself is asked, of b records; ``start``, the first place to be
            read, all before are used; ``size``, b_t, the number of places a difference reads, at
            least 1; ``segment``, its number, from which the key is derived, the same for all its
            increments; ``leaf``, the place of this increment in its segment, from 0.
        """
        anchor, refresh = public["anchor"], jnp.asarray(public["refresh"])
        start, size = (jnp.asarray(public[name], jnp.int32) for name in ("start", "size"))
        whole = jnp.asarray(self.batch_size, jnp.int32)
        sampler: Any = self.sampler
        minibatch = functools.partial(sampler.minibatch, as_shuffled(records))
        gradient = self._clipped_by(clipped_grad, clip_norm=self.clip_norm)
        difference = self._difference(self._limit(size))
        fresh = functools.partial(gradient.wide, params)
        change = functools.partial(difference.wide, params, anchor)
        dtype = jax.eval_shape(fresh, *minibatch(start, size, ROWS)).dtype
        bound = jnp.where(refresh, self.clip_norm, difference.bound(params, anchor))
        # The grid follows the bound of the one that is asked, which is public.
        summand = Summand(flatten(params)[0].shape, dtype, bound)

        def added(total: Total, size: Array, compute: Any) -> Total:
            def one(i: Array, total: Total) -> Total:
                batch, mask = minibatch(start + i * ROWS, size - i * ROWS, ROWS)
                return summand.add(total, jnp.stack(compute(batch, mask).terms))

            return lax.fori_loop(0, (size + ROWS - 1) // ROWS, one, total)

        # One of the two reads no micro-batch, so that it costs nothing.
        total = added(summand.zero(), jnp.where(refresh, whole, 0), fresh)
        return (summand.finish(added(total, jnp.where(refresh, 0, size), change)),)

    def noises(self, **public: Any) -> tuple[tuple[str, Noise], ...]:
        """Returns the noise of this increment, correlated with that of its segment."""
        whole = jnp.asarray(self.batch_size, jnp.int32)
        count = jnp.where(public["refresh"], whole, public["size"])
        noise = Prefix(of=self.correlation, leaf=public["leaf"], divisor=count)
        return ((self.purpose, noise),)

    def step_key(self, key: Array, step: Array | int, **public: Any) -> Array:
        """Returns the segment's key: its correlated noise is all made of that one."""
        return derive(key, self.name, public["segment"])

    def initial_score(self, params: Params) -> tuple[Any, ...]:
        # Any increment serves: the state depends on the law of the whole segment alone.
        ((_, noise),) = self.noises(leaf=0, refresh=True, size=1)
        return (noise.initial_score(flatten(params)[0].size),)

    def stddevs(self, params: Params, **public: Any) -> tuple[Any, ...]:
        refresh, size, anchor = (public[name] for name in ("refresh", "size", "anchor"))
        return (self.stddev_at(refresh, size, params, anchor),)

    def postprocess(self, noisy: tuple[Array, ...], params: Params) -> Params:
        # ``Prefix`` has divided by the number of records already.
        return flatten(params)[1](noisy[0], as_sum=True)

    def noisy_parts(self, answer: Params) -> tuple[Array, ...]:
        return (ravel_pytree(answer)[0],)

    def _difference(self, limit: Any) -> ClippedGradDifference:
        bounds, data = (self.smoothness, self.clip_norm), self.objective.data_term
        return ClippedGradDifference(*bounds, data, limit, self.permutation_invariant)

    def _limit(self, size: Array) -> Array | float:
        # Correlated noise has one scale for a segment, so no increment may move by more than C / b.
        # Independent noise follows what a difference moves, however much that is.
        if self.correlation.is_independent:
            return math.inf
        return self.clip_norm * jnp.asarray(size) / self.batch_size
