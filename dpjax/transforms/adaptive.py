"""A clip norm that follows a quantile of the gradients' norms, at its own cost in the budget."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp

from dpjax import _validate
from dpjax._typing import Array, Params, PyTree, Relation
from dpjax._wide import on_device
from dpjax.accounting import Event
from dpjax.accounting.noise_draws import NUMBERS
from dpjax.mechanisms import as_key, derive
from dpjax.mechanisms.noise import Gaussian
from dpjax.sampling import Sampler
from dpjax.transforms.aggregate import check_rows, clipped_sum
from dpjax.transforms.checks import check_updates
from dpjax.transforms.gaussian import UpdateSampling
from dpjax.transforms.noise import (
    NoiseState,
    NoiseTransformation,
    add_noise,
    first_state,
    leaf_keys,
)

# Far beyond any gradient, and far within float32: a norm that went to 0 or infinity never returns.
_SMALLEST, _LARGEST = 1e-20, 1e20
# Of the expected batch: so exact a count costs next to nothing, and the quantile needs no better.
_COUNT_STDDEV = 1 / 20
_NAME = "gradient over clip norm, and count"


class AdaptiveState(NamedTuple):
    """What the next step needs."""

    noise: NoiseState
    """The key is secret."""
    clip_norm: Array
    """C of the next step, float32; released, as it is made of noisy counts alone."""


def gradient_multiplier(noise_multiplier: float, count_stddev: float) -> float:
    """Returns the noise multiplier of the gradient that leaves room for the count beside it.

    One record's part is the vector (g / C, b) of the gradient, |g| <= C, and of b = 1/2 where it
    was not clipped, -1/2 else. With noise z_g on the first and sigma_b on the second its length
    in standard deviations is at most sqrt(1 / z_g^2 + 1 / (2 sigma_b)^2), and two such vectors are
    at most twice that apart where rows stay in place. Both together are *one* Gaussian mechanism of
    multiplier z if that root is 1 / z.

    Args:
      noise_multiplier: z, of the joint release; what is accounted.
      count_stddev: sigma_b, standard deviation of the noise on the sum of all b.

    Returns:
      z_g = (z^-2 - (2 sigma_b)^-2)^(-1/2), above z.

    Raises:
      ValueError: if the count alone spends all, 2 sigma_b <= z.

    Reference: Andrew, Thakkar, McMahan and Ramaswamy (2021), theorem 1.

    >>> round(gradient_multiplier(1.0, 12.8), 5)
    1.00076
    """
    joint = _validate.positive("noise_multiplier", noise_multiplier)
    alone = 2 * _validate.positive("count_stddev", count_stddev)
    if alone <= joint:
        raise ValueError(
            f"a count with noise of count_stddev={count_stddev!r} alone has multiplier {alone:g}, "
            f"as much as noise_multiplier={joint:g} allows in all; raise count_stddev."
        )
    # z^-2 - (2 sigma_b)^-2 as a product, in which nothing cancels.
    return joint / math.sqrt((1 - joint / alone) * (1 + joint / alone))


def next_clip_norm(
    clip_norm: Array | float, fraction: Array | float, *, quantile: float, rate: float
) -> Array:
    """Returns the clip norm of the next step: C exp(-rate (fraction - quantile)), float32.

    Args:
      clip_norm: C.
      fraction: noisy share of records whose norm was at most C; any number.
      quantile: gamma, the share that C is to hold.
      rate: eta_C, how fast C moves.

    Privacy: post-processing of the noisy fraction.

    Reference: Andrew et al. (2021), algorithm 1, the geometric update.

    >>> round(float(next_clip_norm(1.0, 1.0, quantile=0.5, rate=0.2)), 3)
    0.905
    """
    following = jnp.asarray(clip_norm) * jnp.exp(-rate * (jnp.asarray(fraction) - quantile))
    return jnp.clip(following, _SMALLEST, _LARGEST).astype(jnp.float32)


def _check_positions(draws: UpdateSampling) -> None:
    # Otherwise rows keep their positions, and ``clipped_sum`` may add blocks in float32.
    if draws.permutation_invariant:
        raise ValueError(
            f"under {draws.relation!r} a record shifts those behind it, whose norms may then round "
            "to the other side of the clip norm, so that the count jumps. Use relation='zero_out', "
            "or noisy_mean with a fixed clip norm."
        )


def adaptive_clip_and_noise(
    initial_clip_norm: float,
    *,
    noise_multiplier: float,
    sampler: Sampler,
    relation: Relation = "zero_out",
    key: Array,
    quantile: float = 0.5,
    rate: float = 0.2,
    count_stddev: float | None = None,
) -> NoiseTransformation:
    """Returns a transformation that clips to a quantile of the norms, adds up, and adds noise.

    Args:
      initial_clip_norm: C of the first step, public.
      noise_multiplier: z, of the gradient and the count together; as in ``noisy_mean``.
      sampler: from ``dpjax.sampling``, the one that draws the records of each step.
      relation: what neighbouring means.
      key: a key used for nothing else, shape (); required. See ``NoiseTransformation``.
      quantile: gamma, from 0 to 1, the share of norms that C is to hold.
      rate: eta_C, how fast C moves: a factor of exp(rate gamma) a step at most, but for noise.
      count_stddev: sigma_b, as in ``gradient_multiplier``; by default 1/20 of the expected batch.

    Returns:
      A ``NoiseTransformation`` from per-example gradients, as ``clip_and_sum`` reads them, to their
      noisy sum, to be followed by ``divide_by(sampler.expected)``. With a sampler that draws,
      ``update`` needs ``mask=batch.mask``. Its state is an ``AdaptiveState``. ``event(steps,
      dimension=2**24 - 1)`` is what so many steps release, gradients of so many numbers and counts.

    Raises:
      ValueError: for a number out of range, a count that alone spends all, a bad key, or a sampler
        that has no accounting under the relation; under ``add_or_remove_one``, where norms of
        shifted records may round to the other side of C; by ``update`` as ``clip_and_sum``.

    Privacy: a step is one Gaussian mechanism on the joint vector of gradient over C and count, on
      one draw, of multiplier z: see ``gradient_multiplier``. C is a function of earlier releases. A
      record that is not finite, as one that is not there, is in neither the sum nor the count.

    Reference: Andrew, Thakkar, McMahan and Ramaswamy, "Differentially private learning with
      adaptive clipping" (2021), algorithm 1.

    >>> import dpjax, optax
    >>> sampler = dpjax.sampling.full_batch(8)
    >>> adaptive = adaptive_clip_and_noise(
    ...     1.0, noise_multiplier=0.5, sampler=sampler, key=dpjax.random_key(), count_stddev=0.5)
    >>> optimizer = optax.chain(adaptive, optax.sgd(0.1))
    >>> params = jnp.zeros(3)
    >>> updates, state = optimizer.update(jnp.ones((8, 3)), optimizer.init(params), params)
    >>> adaptive.event(1).gaussian_mu
    2.0
    """
    key = as_key(key)
    first = _validate.positive("initial_clip_norm", initial_clip_norm)
    if not _SMALLEST <= first <= _LARGEST:
        raise ValueError(f"initial_clip_norm must be from 1e-20 to 1e20, got {first!r}.")
    quantile, rate = _validate.open_unit("quantile", quantile), _validate.positive("rate", rate)
    draws = UpdateSampling(sampler, relation)
    _check_positions(draws)
    expected = draws.expected
    sigma = expected * _COUNT_STDDEV if count_stddev is None else count_stddev
    of_gradient = gradient_multiplier(noise_multiplier, sigma)
    on_mean, rounding_error = float(sampler.scale(1.0, relation)), draws.rounding_error(False)
    on_sum = on_mean * expected
    # Standard deviations on the sums, the gradient's in units of C.
    gradient_noise, count_noise = of_gradient * on_sum * (1 + rounding_error), sigma * on_sum
    parts = {"gradient over clip norm": gradient_noise, "fraction": count_noise}
    components = tuple((name, stddev / expected) for name, stddev in parts.items())

    def event(steps: int, dimension: int = NUMBERS - 1) -> Event:
        fields = {"sensitivity": on_mean, "components": components, "noise_draws": dimension + 1}
        return draws.event(_NAME, steps, noise_multiplier=noise_multiplier, **fields)

    event(1)  # raises for what has no accounting

    def init(params: Params) -> AdaptiveState:
        return AdaptiveState(first_state(key, params), jnp.float32(first))

    def update(
        updates: Any, state: Any, params: Any = None, *, mask: Array | None = None, **extra: Any
    ) -> tuple[PyTree, AdaptiveState]:
        check_updates(updates, params, extra)
        check_rows(updates, params)
        draws.check(updates, mask)
        (key, used), clip = state.noise, state.clip_norm
        total, balance = clipped_sum(on_device(updates), (clip,), mask, permutation_invariant=False)
        stddev = clip * gradient_noise  # noise is drawn with eight units of the last place more
        noisy = add_noise(Gaussian(), leaf_keys(state.noise, "adaptive_gradient"), total, stddev)
        count_key = derive(key, "adaptive_count", used)
        # Half the balance is the sum of all b.
        count = add_noise(Gaussian(), lambda _: count_key, balance / 2, count_noise)
        # The mean of b is between -1/2 and 1/2, but for the noise.
        following = next_clip_norm(clip, count / expected + 0.5, quantile=quantile, rate=rate)
        return noisy, AdaptiveState(NoiseState(key, used + 1), following)

    return NoiseTransformation(init, update, event)
