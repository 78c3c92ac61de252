"""Gaussian noise in an optax chain: alone, as a noisy mean, and in optimizers of one line.

Each of these knows its event, and takes the noise as it is given; ``dpjax.dp_sgd``,
``dpjax.dp_adam`` and ``dpjax.dpagem`` are whole trainings, calibrated to a budget.
"""

import dataclasses
from typing import Any, NotRequired, TypedDict, Unpack

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._typing import Array, Params, PyTree, Relation
from dpjax._wide import at_least_float32
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
from dpjax.transforms.stages import StageSteps, early_momentum, stagewise


@dataclasses.dataclass(frozen=True)
class UpdateSampling:
    """A sampler that draws the records of each update anew, under a relation."""

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
        is charged for twice the rows, and is within its bound up to twice the declared n. Rows of a
        sum that was made elsewhere need not be added in float64.
        """
        # Twice the declared rows and no more: in another row a gradient may round otherwise.
        rows = rounding.most_rows(self.sampler.max_batch_size, self.relation, in_any_row=False)
        rounding_error = rounding.sum_rounding_error(rows, self.relation, permutation_invariant)
        return rounding_error + rounding.shift_rounding_error(rows, self.relation)

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
        sensitivity = float(draws.sampler.scale(one * draws.expected, relation))
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
      numbers. With ``per_example`` and a sampler that draws, ``update`` needs ``mask=batch.mask``.

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
    >>> mean = noisy_mean(1.0, noise_multiplier=2.0, sampler=sampler, key=dpjax.random_key())
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
    order = draws.permutation_invariant
    total = clip_and_sum(clip_norm, per_layer=per_layer, permutation_invariant=order)
    # A sum from outside may have been added in float32.
    rounding_error = draws.rounding_error(total.permutation_invariant and per_example)
    # Rounding moves a sum no further than a clip norm larger by this factor would.
    sensitivity = float(sampler.scale(total.clip_norm * (1 + rounding_error), relation))

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
        updates: Any, state: Any, params: Any = None, *, mask: Array | None = None, **extra: Any
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


def noisy_sgd(
    learning_rate: optax.ScalarOrSchedule, *, momentum: float | None = None, **mean: Unpack[Mean]
) -> NoiseTransformation:
    """Returns ``noisy_mean``, then ``optax.sgd``: the steps of DP-SGD.

    Args:
      learning_rate: a number or an optax schedule.
      momentum: decay of the sum of noisy gradients, from 0 to below 1; None for none.
      **mean: the arguments of ``noisy_mean``, from its ``clip_norm`` to its ``key``.

    Returns:
      An optax transformation with ``event(steps)``. Its state is initialised in float32 at least,
      and holds the key: it is secret.

    Raises:
      ValueError: as ``noisy_mean``, or for a momentum out of range.

    Privacy: as ``noisy_mean``; momentum and step are post-processing.

    Reference: Abadi et al. (2016), algorithm 1.

    >>> import dpjax
    >>> budget = dpjax.PrivacyBudget(epsilon=1.0, delta=1e-5)
    >>> sampler = dpjax.sampling.poisson(256, 60_000, budget=budget, count=100)
    >>> optimizer = noisy_sgd(
    ...     0.1, clip_norm=1.0, noise_multiplier=1.0, sampler=sampler, key=dpjax.random_key())
    >>> round(dpjax.accounting.epsilon(optimizer.event(100), 1e-5, "zero_out"), 2)
    0.29
    """
    if momentum is not None:
        momentum = _validate.decay("momentum", momentum)
    # Only after the noise: momentum of exact gradients would be a release of its own.
    return _private(mean, optax.sgd(learning_rate, momentum))


def noisy_adam(
    learning_rate: optax.ScalarOrSchedule,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    **mean: Unpack[Mean],
) -> NoiseTransformation:
    """Returns ``noisy_mean``, then ``optax.adam``: the steps of DP-Adam.

    As ``noisy_sgd``, it is an optax transformation with ``event(steps)`` and a secret state.

    Args:
      learning_rate: a number or an optax schedule.
      b1: decay of the mean of noisy gradients, from 0 to below 1.
      b2: decay of the mean of their squares, from 0 to below 1.
      eps: added to the root of that mean, above 0.
      **mean: the arguments of ``noisy_mean``, from its ``clip_norm`` to its ``key``.

    Raises:
      ValueError: as ``noisy_mean``, or for a number of Adam's out of range.

    Privacy: as ``noisy_mean``; both moments are post-processing.

    Reference: Kingma and Ba (2015), algorithm 1, on the gradients of Abadi et al. (2016), algorithm
      1, without the factor by which noise biases the second moment.

    >>> import dpjax
    >>> optimizer = noisy_adam(1e-3, clip_norm=1.0, noise_multiplier=2.0,
    ...     sampler=dpjax.sampling.full_batch(100), key=dpjax.random_key())
    >>> optimizer.event(4).gaussian_mu
    1.0
    """
    # Checked here, as optax takes any number.
    decays = _validate.decay("b1", b1), _validate.decay("b2", b2)
    adam = optax.adam(learning_rate, *decays, _validate.positive("eps", eps))
    return _private(mean, adam)


def noisy_stagewise_sgd(
    step_size: float,
    *,
    first_steps: StageSteps,
    first_on_steps: StageSteps,
    momentum: float = 0.9,
    **mean: Unpack[Mean],
) -> NoiseTransformation:
    """Returns ``noisy_mean``, then SGD by stages with momentum at the start of each: DPageEM.

    As ``noisy_sgd``, it is an optax transformation with ``event(steps)`` and a secret state.

    Args:
      step_size: eta0; stage k has steps eta0 / 2^k.
      first_steps: T0; stage k lasts T0 2^k updates; as in ``stagewise``.
      first_on_steps: t_on; momentum is on for the first t_on 2^k updates of stage k; 0 for never,
        which is the paper's DPageS. As in ``early_momentum``.
      momentum: rho, from 0 to below 1.
      **mean: the arguments of ``noisy_mean``, from its ``clip_norm`` to its ``key``.

    Raises:
      ValueError: as ``noisy_mean``, or for a stage or a momentum out of range.

    Privacy: as ``noisy_mean``; steps, momentum and stages are post-processing.

    Reference: Zhang et al. (2021), algorithms 1 and 2, with Poisson batches in place of subsets and
      their true epsilon in place of the paper's.

    >>> import dpjax
    >>> optimizer = noisy_stagewise_sgd(0.5, first_steps=100, first_on_steps=20, clip_norm=1.0,
    ...     noise_multiplier=10.0, sampler=dpjax.sampling.full_batch(100), key=dpjax.random_key())
    >>> optimizer.event(100 + 200 + 400).releases[0].count
    700
    """
    # Sign and step size first: the momentum adds up displacements, as Zhang et al. (2021) write it.
    steps = optax.scale_by_learning_rate(stagewise(step_size, first_steps))
    push = early_momentum(_validate.decay("momentum", momentum), first_steps, first_on_steps)
    return _private(mean, steps, push)


def _private(mean: Mean, *rest: optax.GradientTransformation) -> NoiseTransformation:
    """The chain of a noisy mean and the rest, with the event of the noise."""
    # First in the chain, so that all that follows reads released numbers alone.
    first = noisy_mean(**mean)
    chain = optax.chain(first, *rest)

    def init(params: Params) -> Any:
        # Noisy means are at least float32: so must be the moments, or their dtype would change.
        return chain.init(at_least_float32(jax.tree.map(jnp.asarray, params)))

    # ``optax.chain`` forgets the event; here it is put back.
    return NoiseTransformation(init, chain.update, first.event)
