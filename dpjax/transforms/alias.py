"""Optimizers in one line: noisy means, then SGD, Adam or the steps of DPageEM, as one chain.

Each knows its event, and takes the noise as it is given; ``dpjax.dp_sgd``,
``dpjax.dp_adam`` and ``dpjax.dpagem`` are whole trainings, calibrated to a budget.
"""

from typing import Any, Unpack

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._typing import Params
from dpjax._wide import at_least_float32
from dpjax.transforms.gaussian import Mean, noisy_mean
from dpjax.transforms.noise import NoiseTransformation
from dpjax.transforms.stages import StageSteps, early_momentum, stagewise


def noisy_sgd(
    learning_rate: optax.ScalarOrSchedule,
    *,
    momentum: float | None = None,
    **mean: Unpack[Mean],
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

    Args:
      learning_rate: a number or an optax schedule.
      b1: decay of the mean of noisy gradients, from 0 to below 1.
      b2: decay of the mean of their squares, from 0 to below 1.
      eps: added to the root of that mean, above 0.
      **mean: the arguments of ``noisy_mean``, from its ``clip_norm`` to its ``key``.

    Returns:
      An optax transformation with ``event(steps)``, as ``noisy_sgd``.

    Raises:
      ValueError: as ``noisy_mean``, or for a number of Adam's out of range.

    Privacy: as ``noisy_mean``; both moments are post-processing.

    Reference: Kingma and Ba (2015), algorithm 1, on the gradients of Abadi et al. (2016), algorithm
      1, without the factor by which noise biases the second moment.

    >>> import dpjax
    >>> optimizer = noisy_adam(
    ...     1e-3,
    ...     clip_norm=1.0,
    ...     noise_multiplier=2.0,
    ...     sampler=dpjax.sampling.full_batch(100),
    ...     key=dpjax.random_key(),
    ... )
    >>> optimizer.event(4).gaussian_mu
    1.0
    """
    # Checked here, as optax takes any number.
    adam = optax.adam(
        learning_rate,
        _validate.decay("b1", b1),
        _validate.decay("b2", b2),
        _validate.positive("eps", eps),
    )
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

    Args:
      step_size: eta0; stage k has steps eta0 / 2^k.
      first_steps: T0; stage k lasts T0 2^k updates; as in ``stagewise``.
      first_on_steps: t_on; momentum is on for the first t_on 2^k updates of stage k; 0 for never,
        which is the paper's DPageS. As in ``early_momentum``.
      momentum: rho, from 0 to below 1.
      **mean: the arguments of ``noisy_mean``, from its ``clip_norm`` to its ``key``.

    Returns:
      An optax transformation with ``event(steps)``, as ``noisy_sgd``.

    Raises:
      ValueError: as ``noisy_mean``, or for a stage or a momentum out of range.

    Privacy: as ``noisy_mean``; steps, momentum and stages are post-processing.

    Reference: Zhang et al. (2021), algorithms 1 and 2, with Poisson batches in place of subsets and
      their true epsilon in place of the paper's.

    >>> import dpjax
    >>> optimizer = noisy_stagewise_sgd(
    ...     0.5,
    ...     first_steps=100,
    ...     first_on_steps=20,
    ...     clip_norm=1.0,
    ...     noise_multiplier=10.0,
    ...     sampler=dpjax.sampling.full_batch(100),
    ...     key=dpjax.random_key(),
    ... )
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
