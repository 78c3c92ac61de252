"""Gaussian noise in an optax chain: alone, and as the noisy mean that every alias starts with."""

import dataclasses
from typing import Any, NotRequired, TypedDict

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._typing import Array, Params, PyTree, Relation
from dpjax.accounting import Event, records_moved
from dpjax.accounting.noise_draws import NUMBERS
from dpjax.derivatives import keeps_positions, rounding
from dpjax.mechanisms.noise import Gaussian
from dpjax.sampling import FullBatch, Sampler
from dpjax.transforms.aggregate import check_like, clip_and_sum, divide_by
from dpjax.transforms.checks import check_updates
from dpjax.transforms.noise import (
    NoiseState,
    NoiseTransformation,
    add_noise,
    adding,
    event_of,
    leaf_keys,
)


@dataclasses.dataclass(frozen=True)
class UpdateSampling:
    """A sampler that draws the records of each update anew, under a relation.

    Raises:
      ValueError: for anything else than a sampler, or one that reads each record once.
    """

    sampler: Sampler
    relation: Relation

    def __post_init__(self):
        if not isinstance(self.sampler, Sampler):
            raise ValueError(
                "sampler must be one of dpjax.sampling, such as poisson(...), got "
                f"{_validate.shown(self.sampler)}."
            )
        if self.sampler.by_position:
            raise ValueError(
                "a single pass over the records does not sample at each step; use add_tree_noise "
                "for it, or sampler=poisson(...)."
            )

    @property
    def expected(self) -> float:
        """The public divisor of sums."""
        return float(self.sampler.expected)

    @property
    def permutation_invariant(self) -> bool:
        """Whether rows are to be added in float64, since neighbours may have them elsewhere."""
        return not keeps_positions(self.relation)

    def rounding_error(self, permutation_invariant: bool) -> float:
        """Returns the sum's and the shift's rounding error for one draw, see ``rounding``.

        Under ``add_or_remove_one`` n is private and may be more than was declared: there rounding
        is charged for twice the rows, and is within its bound up to twice the declared n.

        Args:
          permutation_invariant: whether the rows were added in float64, as those of a chain are,
            and those of a sum that was made elsewhere need not be.
        """
        # Twice the declared rows and no more: in another row a gradient may round otherwise.
        rows = rounding.most_rows(self.sampler.max_batch_size, self.relation, in_any_row=False)
        rounding_error = rounding.sum_rounding_error(rows, self.relation, permutation_invariant)
        return rounding_error + rounding.shift_rounding_error(rows, self.relation)

    def sensitivity(self, record_norm: float) -> float:
        """Returns what the noise multiplier is relative to, on the mean, see ``Sampler.scale``."""
        return float(self.sampler.scale(record_norm, self.relation))

    def event(self, name: str, count: int, **own: Any) -> Event:
        """Returns ``event_of`` updates that are made of these draws; arguments as there."""
        return event_of(name, count, sampler=self.sampler, relation=self.relation, **own)

    def check(self, updates: PyTree, mask: Array | None) -> None:
        """Raises for more rows than are drawn, or where nobody says which of them hold a record."""
        if self.sampler.reads_all:
            return
        rows = jnp.shape(jax.tree.leaves(updates)[0])[0]
        # A batch from more records than declared has several times the slots; to refuse it would
        # tell.
        private = self.permutation_invariant and rows % self.sampler.max_batch_size == 0
        if rows > self.sampler.max_batch_size and not private:
            raise ValueError(
                "got gradients of more records than the sampler draws, "
                f"{self.sampler.max_batch_size} at most; pass those of one draw."
            )
        if mask is None:
            raise ValueError(
                "mask must say which rows hold a record, got None: the others repeat row 0, which "
                "would count once for each. Pass update(..., mask=batch.mask)."
            )


def add_gaussian_noise(stddev: float, key: Array) -> NoiseTransformation:
    """Returns a transformation that adds N(0, stddev^2) noise to every entry of the updates.

    Args:
      stddev: in the units of the updates that arrive.
      key: a key used for nothing else, shape (); required. See ``NoiseTransformation``.

    Returns:
      A ``NoiseTransformation``. ``event(steps, *, sensitivity, relation, sampler=None,
      dimension=2**24)`` is what so many steps release: ``sensitivity`` is how far one record moves
      the update where it is drawn, as ``clip_and_sum(...).sensitivity`` says it, ``sampler`` one of
      ``dpjax.sampling`` that drew the records of each step, and ``dimension`` how many numbers an
      update has at most.

    Raises:
      ValueError: if ``stddev`` is not above 0 or ``key`` is no threefry key; by ``event`` where the
        sampler has no accounting under the relation.

    Privacy: one Gaussian mechanism a step, over all leaves. The caller answers for the sensitivity:
      updates must be sums of clipped contributions, over a *public* divisor if any. The chain's
      output and what follows it are post-processing; its state holds the key and is secret.

    Reference: Abadi et al. (2016), algorithm 1.

    >>> import dpjax
    >>> noise = add_gaussian_noise(2.0, dpjax.random_key())
    >>> optimizer = optax.chain(clip_and_sum(1.0), noise, optax.sgd(0.1))
    >>> params, gradients = jnp.zeros(3), jnp.ones((8, 3))
    >>> updates, state = optimizer.update(gradients, optimizer.init(params), params)
    >>> updates.shape
    (3,)
    >>> noise.event(4, sensitivity=1.0, relation="zero_out").gaussian_mu
    1.0
    """
    stddev = _validate.positive("stddev", stddev)

    def add(state: NoiseState, updates: PyTree) -> PyTree:
        return add_noise(Gaussian(), leaf_keys(state, "gaussian_noise"), updates, stddev)

    def event(
        steps: int,
        *,
        sensitivity: float,
        relation: Relation,
        sampler: Sampler | None = None,
        dimension: int = NUMBERS,
    ) -> Event:
        # Without a sampler every record is in every step, and the size of the data set cancels.
        draws = UpdateSampling(FullBatch(1) if sampler is None else sampler, relation)
        # Of one record: the sampler's scale counts again how many are moved.
        one = _validate.positive("sensitivity", sensitivity) / records_moved(relation)
        # ``scale`` is that of a mean: it divides by the expected batch again.
        sensitivity = draws.sensitivity(one * draws.expected)
        return draws.event(
            "updates",
            steps,
            sensitivity=sensitivity,
            noise_multiplier=stddev / sensitivity,
            components=(("updates", stddev),),
            noise_draws=dimension,
        )

    return adding(key, add, event)


class Mean(TypedDict):
    """The arguments of ``noisy_mean``, which the aliases hand on to it."""

    clip_norm: float | PyTree
    noise_multiplier: float
    sampler: Sampler
    relation: NotRequired[Relation]
    key: Array
    per_example: NotRequired[bool]
    per_layer: NotRequired[bool]


def noisy_mean(
    clip_norm: float | PyTree,
    *,
    noise_multiplier: float,
    sampler: Sampler,
    relation: Relation = "zero_out",
    key: Array,
    per_example: bool = False,
    per_layer: bool = False,
) -> NoiseTransformation:
    """Returns the chain that makes any optax optimizer after it private: noise, then a mean.

    Args:
      clip_norm: C, the bound that the gradients were clipped to: that of ``dpjax.clipped_grad``;
        with ``per_layer`` as in ``clip_and_sum``.
      noise_multiplier: standard deviation over C for batches that are drawn, over the sensitivity
        for the relation where every record is read; from ``accounting.gaussian_multiplier(budget,
        steps, sampler=sampler)``.
      sampler: from ``dpjax.sampling``, the one that draws the records of each step.
      relation: what neighbouring means.
      key: a key used for nothing else, shape (); required. See ``NoiseTransformation``.
      per_example: whether updates arrive with a leading axis of records, to be clipped here. By
        default they are what ``clipped_grad(loss, clip_norm=C)(params, batch, mask)`` gives, a sum.
      per_layer: clip each leaf by a factor of its own; needs ``per_example``.

    Returns:
      A ``NoiseTransformation``, to stand first in a chain; what leaves it is at least float32.
      ``event(steps, dimension=2**24)`` is what so many steps release, of updates of at most so many
      numbers. With ``per_example`` and a sampler that draws,
      ``update`` needs ``mask=batch.mask``.

    Raises:
      ValueError: for a number out of range, a bad key, a sampler that has no accounting under the
        relation; by ``init`` or ``update`` for masked leaves, a wrapper of optax that breaks it, or
        updates of other shapes than it was made for.

    Privacy: releases one sum of clipped gradients a step with Gaussian noise; the mean is over
      ``sampler.expected``, and that and all that follows is post-processing. The caller answers for
      the batches being draws of ``sampler``, one draw a step, and under ``add_or_remove_one`` for
      there being at most as many records as are declared: more have other batches.

    Reference: Abadi et al. (2016), algorithm 1.

    >>> import dpjax
    >>> sampler = dpjax.sampling.full_batch(4)
    >>> mean = noisy_mean(
    ...     1.0, noise_multiplier=2.0, sampler=sampler, key=dpjax.random_key())
    >>> optimizer = optax.chain(mean, optax.lion(1e-3))
    >>> total = dpjax.clipped_grad(lambda w, x: w @ x, clip_norm=1.0)
    >>> params = jnp.zeros(2)
    >>> gradient = total(params, jnp.ones((4, 2)))
    >>> updates, state = optimizer.update(gradient, optimizer.init(params), params)
    >>> mean.event(4).gaussian_mu
    1.0
    """
    if per_layer and not per_example:
        raise ValueError(
            "per_layer=True clips here and needs per_example=True; for a sum that was clipped by "
            "layer elsewhere, pass the root of the sum of its squared bounds as clip_norm."
        )
    draws = UpdateSampling(sampler, relation)
    multiplier = _validate.positive("noise_multiplier", noise_multiplier)
    total = clip_and_sum(
        clip_norm, per_layer=per_layer, permutation_invariant=draws.permutation_invariant
    )
    # A sum from outside may have been added in float32.
    rounding_error = draws.rounding_error(total.permutation_invariant and per_example)
    # Rounding moves a sum no further than a clip norm larger by this factor would.
    sensitivity = draws.sensitivity(total.clip_norm * (1 + rounding_error))

    def event(steps: int, dimension: int = NUMBERS) -> Event:
        return draws.event(
            "gradient",
            steps,
            sensitivity=sensitivity,
            noise_multiplier=multiplier,
            components=(("gradient", multiplier * sensitivity),),
            noise_draws=dimension,
        )

    # What is added is read off the release, which is what is accounted.
    noise = add_gaussian_noise(event(1).releases[0].stddev * draws.expected, key)
    first = total if per_example else optax.identity()
    chain = optax.chain(first, noise, divide_by(draws.expected))

    def update(
        updates: PyTree,
        state: optax.OptState,
        params: Params | None = None,
        *,
        mask: Array | None = None,
        **extra: Any,
    ) -> tuple[PyTree, optax.OptState]:
        # Before anything else: a masked leaf would pass by clipping and noise.
        check_updates(updates, params, extra)
        if per_example:
            draws.check(updates, mask)
        else:
            # Gradients that nobody has summed have one axis more, and a bound each.
            shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(updates)]
            check_like(shapes, params, "pass per_example=True for gradients that are not summed.")
        return chain.update(updates, state, params, mask=mask, **extra)

    return NoiseTransformation(chain.init, update, event)
