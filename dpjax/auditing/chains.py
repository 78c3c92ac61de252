"""Attack on an optax chain in a custom training loop; NOT PRIVATE, on synthetic records."""

import functools

import jax
import jax.numpy as jnp
import optax

from dpjax._typing import Array, PyTree
from dpjax.accounting import PrivacyBudget, gaussian_multiplier
from dpjax.auditing import canaries
from dpjax.auditing.claims import claim_of
from dpjax.auditing.games import Game
from dpjax.mechanisms import derive
from dpjax.sampling import poisson
from dpjax.transforms import noisy_mean

DELTA = 1e-5
_SIZE, _BATCH, _STEPS = 10, 5, 4
_CLIP_NORM, _DECAY = 1.0, 0.9


def with_momentum() -> Game:
    """Returns the attack on a noisy mean and SGD with momentum, 4 steps, 1 record in 2 a batch.

    The attacker sees every iterate, and as the decay is public undoes the momentum. The canary is
    the first record, which rows of a batch that hold none repeat.
    """
    worlds, slope = canaries.records(null=_SIZE - 1), jax.grad(canaries.dirac().loss)
    budget = PrivacyBudget(4.0, DELTA, worlds.relation)
    sampler = poisson(_BATCH, _SIZE, budget=budget, count=_STEPS, capacity=_SIZE)
    mean = functools.partial(
        noisy_mean,
        _CLIP_NORM,
        noise_multiplier=gaussian_multiplier(budget, _STEPS, sampler=sampler),
        sampler=sampler,
        relation=budget.relation,
        per_example=True,
    )
    # What a chain says it releases is the same whatever its key.
    event = mean(key=jax.random.key(0)).event(_STEPS)
    stddev = event.releases[0].stddev
    move, q = _CLIP_NORM / _BATCH / stddev, _BATCH / _SIZE

    def run(key: Array, records: PyTree) -> Array:
        noise = mean(key=derive(key, "noise", 0))
        optimizer = optax.chain(noise, optax.sgd(1.0, momentum=_DECAY))
        params, before, score = jnp.zeros(3), jnp.zeros(3), jnp.zeros(())
        state = optimizer.init(params)
        for step in range(_STEPS):
            batch = sampler.sample(derive(key, "sample", step), _SIZE)
            gradients = jax.vmap(slope, (None, 0))(params, records[batch.indices])
            updates, state = optimizer.update(gradients, state, params, mask=batch.mask)
            previous, params = params, jnp.asarray(optax.apply_updates(params, updates))
            velocity = previous - params
            told = (velocity - _DECAY * before)[0] / stddev
            score += jnp.logaddexp(jnp.log1p(-q), jnp.log(q) + move * (told - move / 2))
            before = velocity
        return score

    return Game(claim_of(event), worlds, run, 2**12)
