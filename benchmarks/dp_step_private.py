"""Private gradient steps in JAX for ``benchmarks/dp_step.py``: clip, sum and noise, ours, peers'.

Every step divides by the batch and returns a tree like the parameters. Ours adds noise by
integers on a grid; peers draw and add in float32.
"""

import jax
import optax
from dp_step_plain import cross_entropy

import dpjax
from dpjax.oracles import GradientQuery, Setting

CLIP_NORM, NOISE = 1.0, 1.0
# The step that draws its batch itself, and takes so many records in place of a batch.
RECORDS = 60_000
DRAWING = f"dpjax, with its draw of {RECORDS:,}"
# A training's, for the batch's max_batch_size: 10 epochs.
BUDGET, EPOCHS = dpjax.PrivacyBudget(epsilon=3.0, delta=1e-5), 10


class Masked(GradientQuery):
    """Answers from a whole batch whose mask is data, as that of a drawn batch."""

    def _drawn(self, key, records):
        return records


def ours(model, batch, relation):
    query = Masked(
        setting=Setting(dpjax.objectives.cross_entropy(model.apply), batch, relation),
        noise_multiplier=NOISE,
        clip_norm=CLIP_NORM,
    )

    def step(params, x, y, mask, key):
        return query.answer(key, ((x, y), mask), params)

    return step


def drawing(model, batch):
    """A training's step: gathers and pads to its capacity, which no other step here does."""
    steps = EPOCHS * RECORDS // batch
    query = GradientQuery(
        setting=Setting(
            dpjax.objectives.cross_entropy(model.apply),
            RECORDS,
            "zero_out",
            dpjax.sampling.poisson(batch, RECORDS, budget=BUDGET, count=steps),
        ),
        noise_multiplier=NOISE,
        clip_norm=CLIP_NORM,
    )

    def step(params, x, y, mask, key):
        del mask
        return query.answer(key, (x, y), params)

    return step


def of_record(model):
    """Loss of one record without a batch axis."""
    return lambda params, x, y: cross_entropy(model.apply(params, x)[None], y[None])


def optax_aggregate(model):
    gradients = jax.vmap(jax.grad(of_record(model)), (None, 0, 0))

    def step(params, x, y, mask, key):
        del mask
        chain = optax.contrib.differentially_private_aggregate(CLIP_NORM, NOISE, key=key)
        return chain.update(gradients(params, x, y), chain.init(params))[0]

    return step


def jax_privacy_step(model, microbatch_size):
    import jax_privacy

    loss = of_record(model)

    def step(params, x, y, mask, key):
        del mask
        summed = jax_privacy.clipped_grad(
            loss,
            l2_clip_norm=CLIP_NORM,
            batch_argnums=(1, 2),
            keep_batch_dim=False,
            microbatch_size=microbatch_size,
        )(params, x, y)
        noise = jax_privacy.noise_addition.gaussian_privatizer(
            stddev=NOISE * CLIP_NORM, prng_key=key
        )
        noisy, _ = noise.update(summed, noise.init(params))
        return jax.tree.map(lambda leaf: leaf / len(x), noisy)

    return step


def contenders(model, batch, peers):
    """Returns ``{what it is: step(params, x, y, mask, key)}``; x and y of ``RECORDS`` to draw."""
    steps = {
        "dpjax": ours(model, batch, "zero_out"),
        "dpjax, add or remove": ours(model, batch, "add_or_remove_one"),
        DRAWING: drawing(model, batch),
    }
    if not peers:
        return steps
    steps["optax, DP aggregate"] = optax_aggregate(model)
    try:
        steps["jax-privacy"] = jax_privacy_step(model, None)
    except ImportError:
        print("jax-privacy is not installed; its rows are left out")
        return steps
    for rows in (32, 128):
        if batch % rows == 0 and rows < batch:
            steps[f"jax-privacy, {rows} at a time"] = jax_privacy_step(model, rows)
    return steps
