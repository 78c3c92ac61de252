"""What raises the accuracy of a private network: gains at equal epsilon, steps, batch and seeds.

Run ``python -m benchmarks.gains cifar10`` (a fifth of it, a small network) or ``mnist``: epsilon 3,
delta 1e-5, zero-out neighbours. Every row takes the same seeds and is tested against plain SGD by a
two-sided paired t-test. A training is measured at its last iterate and at an average of the same
iterates, with the weights of ``fit(output="average", average_decay=0.9)``. ``--rates`` tries other
learning rates, and ``wide`` takes a few steps with WRN-16-4 and prints their time. Accuracies are
exact and NOT PRIVATE, and rates were chosen on the first seed of rows without views.
"""

import argparse
import functools
import sys
import time

import flax.linen as nn
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
from scipy import stats

import dpjax
from dpjax._typing import pytree_dataclass
from dpjax.algorithms.descent import Descent

BUDGET, STEPS, BATCH, CLIP_NORM = dpjax.PrivacyBudget(3.0, 1e-5), 100, 1_000, 0.1
AVERAGE_DECAY, MOMENTUM, REFRESH, LARGEST, REMEMBERED = 0.9, 0.9, 20, 10.0, 0.95
# Learning rates of SGD, Adam, and gradients scaled before they are clipped.
RATES = {"cifar10": (8.0, 1e-2, 8.0), "mnist": (8.0, 1e-2, 8.0)}


class Small(nn.Module):
    """Two convolutions and two dense layers, for one image of 32 x 32 pixels: 22,602 numbers."""

    @nn.compact
    def __call__(self, image):
        x = jnp.tanh(nn.Conv(16, (5, 5), strides=2, padding="SAME")(image - 0.5))
        x = jnp.tanh(nn.Conv(32, (3, 3), strides=2, padding="SAME")(x))
        x = x.reshape(4, 2, 4, 2, 32).mean((1, 3))
        return nn.Dense(10)(jnp.tanh(nn.Dense(32)(x.ravel())))


class Wide(nn.Module):
    """WRN-16-4 with group norm (Zagoruyko and Komodakis 2016; De et al. 2022), for one image."""

    @nn.compact
    def __call__(self, image):
        norm = functools.partial(nn.GroupNorm, 16, reduction_axes=(-3, -2, -1))
        conv = functools.partial(nn.Conv, use_bias=False, padding=1)
        x = conv(16, (3, 3))(image - 0.5)
        for channels in (64, 128, 256):
            for block in range(2):
                stride = 2 if block == 0 and channels > 64 else 1
                y = nn.relu(norm()(x))
                if block == 0:
                    x = conv(channels, (1, 1), strides=stride, padding=0)(y)
                y = conv(channels, (3, 3), strides=stride)(y)
                x = x + conv(channels, (3, 3))(nn.relu(norm()(y)))
        return nn.Dense(10)(nn.relu(norm()(x)).mean((0, 1)))


def _stacked(*trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


@pytree_dataclass
class Both(Descent):
    """A training that publishes its last iterate and the average, post-processing of the same."""

    def output(self, state):
        return _stacked(state.params, super().output(state))


def both(*arguments, optimizer, params, **more):
    """``dp_optimizer`` that publishes both; its average is that of ``fit(output="average")``."""
    more |= {"optimizer": optimizer, "params": params, "output": "average"}
    made = dpjax.dp_optimizer(*arguments, average_decay=AVERAGE_DECAY, **more)
    return Both(**{name: getattr(made, name) for name in made.__dataclass_fields__})


def moved(image, key):
    """The image shifted by up to 4 pixels in each direction; in colour perhaps mirrored too."""
    place, side = jax.random.split(key)
    if image.ndim == 3:
        image = jnp.where(jax.random.bernoulli(side), image[:, ::-1], image)
    sizes = [(4, 4), (4, 4), *[(0, 0)] * (image.ndim - 2)]
    starts = [*jax.random.randint(place, (2,), 0, 9), *[0] * (image.ndim - 2)]
    return jax.lax.dynamic_slice(jnp.pad(image, sizes, mode="edge"), starts, image.shape)


def fitted(model, start, data, optimizer, seed, **views):
    """What ``fit`` publishes, and the epsilon spent."""
    trained = dpjax.fit(
        model,
        "cross_entropy",
        (np.asarray(data.x), np.asarray(data.y)),
        BUDGET,
        functools.partial(both, optimizer=optimizer, params=start),
        seed=seed,
        batch_size=BATCH,
        steps=STEPS,
        clip_norm=CLIP_NORM,
        params=start,
        progress=False,
        **views,
    )
    return trained.params, trained.epsilon(BUDGET.delta)


def by_patches(call, arguments, more, context):
    """Calls ``nn.Conv`` as a product with patches, whose gradients of each record are faster."""
    conv = context.module
    if not isinstance(conv, nn.Conv):
        return call(*arguments, **more)
    (x,), kernel = arguments, conv.get_variable("params", "kernel")
    size, strides = kernel.shape[:2], np.broadcast_to(conv.strides, 2)
    pads = jax.lax.padtype_to_pads(x.shape[:2], size, strides, conv.padding)
    x, (rows, columns) = jnp.pad(x, [*pads, (0, 0)]), np.indices(size)
    ends = [x.shape[axis] - size[axis] + 1 for axis in range(2)]
    cut = [
        x[i : i + ends[0] : strides[0], j : j + ends[1] : strides[1]]
        for i, j in zip(rows.ravel(), columns.ravel(), strict=True)
    ]
    weights = kernel.reshape(-1, kernel.shape[-1])
    return jnp.concatenate(cut, axis=-1) @ weights + conv.get_variable("params", "bias")


def scaled(model, start, data, rate, seeds):
    """The same of gradients that are divided by the root of past squares before clip and noise.

    Where parameters are scale * u, the gradient in u is scale * gradient. The scale is made of what
    was released before, so it is public in its step, and the noise's own square is taken off it.

    Reference: Li, Zaheer, Liu, Reddi, McMahan and Smith (2023), with delayed preconditioners.
    """
    flat, tree = jax.flatten_util.ravel_pytree(start)
    sampler = dpjax.sampling.poisson(BATCH, data.size, budget=BUDGET, count=STEPS)
    multiplier = dpjax.accounting.gaussian_multiplier(
        BUDGET, STEPS, sampler=sampler, noise_draws=flat.size
    )
    variance, optimizer = (CLIP_NORM * multiplier / BATCH) ** 2, sgd(rate)

    def noisy(key):
        more = {"noise_multiplier": multiplier, "sampler": sampler, "key": key}
        return dpjax.transforms.noisy_mean(CLIP_NORM, per_example=True, **more)

    mean = noisy(jax.random.key(0))  # of a run's key is the state alone

    def loss(params, record):
        with nn.intercept_methods(by_patches):
            logits = model.apply({"params": tree(params)}, record[0])
        return optax.softmax_cross_entropy_with_integer_labels(logits, record[1])

    of_one = jax.grad(loss)

    @jax.jit
    def step(carry, key, records):
        count, params, average, scale, square, noise, optimizing = carry

        batch, mask = sampler.draw(key, records)
        gradients = jax.vmap(lambda record: scale * of_one(params, record))(batch)
        gradient, noise = mean.update(gradients, noise, mask=mask)
        updates, optimizing = optimizer.update(scale * gradient, optimizing)
        params = params + updates
        average += jnp.maximum(1 / (count + 1), 1 - AVERAGE_DECAY) * (params - average)
        square = REMEMBERED * square + (1 - REMEMBERED) * (gradient**2 - variance) / scale**2
        past = jnp.maximum(square, jnp.mean(jnp.abs(square)) / LARGEST**2) ** -0.5
        past /= jnp.sqrt(jnp.mean(past**2))  # so that noise moves as far as without a scale
        scale = jnp.where((count + 1) % REFRESH == 0, past, scale)
        return count + 1, params, average, scale, square, noise, optimizing

    records = jnp.asarray(data.x), jnp.asarray(data.y)
    for seed in range(seeds):
        drawing, own = jax.random.split(jax.random.key(seed))
        first = jnp.zeros_like(flat), jnp.ones_like(flat), jnp.zeros_like(flat)
        carry = (jnp.asarray(0), flat, *first, noisy(own).init(flat), optimizer.init(flat))
        for key in jax.random.split(drawing, STEPS):
            carry = step(carry, key, records)
        spent = dpjax.accounting.epsilon(
            mean.event(STEPS, dimension=flat.size), BUDGET.delta, BUDGET.relation
        )
        yield _stacked(tree(carry[1]), tree(carry[2])), spent


def sgd(rate):
    return optax.sgd(rate, momentum=MOMENTUM)


def rows(model, start, data, seeds, rates):
    """Names of rows and, of each, what is published in every seed with the epsilon spent."""
    plain, adam, before = rates

    def of(optimizer, **views):
        return (fitted(model, start, data, optimizer, seed, **views) for seed in range(seeds))

    yield "SGD", of(sgd(plain))
    yield "SGD, 1 view", of(sgd(plain), augment=moved, views=1)
    yield "SGD, 4 views", of(sgd(plain), augment=moved, views=4)
    yield "SGD, decaying rate", of(sgd(optax.cosine_decay_schedule(plain, STEPS, 0.02)))
    yield "Adam, decaying rate", of(optax.adam(optax.cosine_decay_schedule(adam, STEPS, 0.02)))
    yield "scaled before the clip", scaled(model, start, data, before, seeds)


def table(name, seeds, rates, chosen):
    data = dpjax.datasets.load(name)
    model = dpjax.models.CNN() if name == "mnist" else Small()
    start = model.init(jax.random.key(0), jnp.asarray(data.x[0]))["params"]
    outputs = jax.jit(jax.vmap(lambda params, x: model.apply({"params": params}, x), (None, 0)))
    plain = {}
    for row, runs in rows(model, start, data, seeds, rates):
        if chosen and row not in chosen:
            continue
        begin, found, epsilons = time.perf_counter(), {"last": [], "average": []}, []
        for params, spent in runs:
            epsilons.append(spent)
            for index, accuracies in enumerate(found.values()):
                published = jax.tree.map(lambda leaf, at=index: leaf[at], params)
                label = np.argmax(outputs(published, data.test_x), axis=1)
                accuracies.append(100 * np.mean(label == data.test_y))
            now = ", ".join(f"{kind} {accuracies[-1]:.2f}" for kind, accuracies in found.items())
            print(f"{row}, seed {len(epsilons) - 1}: {now}", flush=True)
        seconds = (time.perf_counter() - begin) / seeds
        for kind, accuracies in found.items():
            plain.setdefault("SGD", accuracies)
            gain = np.subtract(accuracies, plain["SGD"])
            p = stats.ttest_rel(accuracies, plain["SGD"]).pvalue if np.ptp(gain) else np.nan
            each = ", ".join(f"{accuracy:.2f}" for accuracy in accuracies)
            print(
                f"| {row} | {kind} | {np.mean(accuracies):.2f} ({each}) | {np.mean(gain):+.2f} | "
                f"{p:.2g} | {max(epsilons):.4f} | {seconds:.0f} |",
                flush=True,
            )


def wide(batch, most):
    """Seconds of a private step of WRN-16-4, and that its loss is finite after a few."""
    data = dpjax.datasets.load("cifar10")
    model, optimizer = Wide(), sgd(RATES["cifar10"][0])
    for steps in (1, most):  # the first compiles
        begin = time.perf_counter()
        trained = dpjax.fit(
            model,
            "cross_entropy",
            data,
            BUDGET,
            optimizer,
            seed=0,
            batch_size=batch,
            steps=steps,
            clip_norm=CLIP_NORM,
            progress=False,
        )
        jax.block_until_ready(trained.params)
        seconds = time.perf_counter() - begin
        print(f"{steps} steps of {batch} in {seconds:.1f} s", flush=True)
    size = sum(leaf.size for leaf in jax.tree.leaves(trained.params))
    moved = np.asarray(trained.solution.history.step_norm)[:most]
    print(f"{size:,} parameters, epsilon {trained.epsilon(BUDGET.delta):.4f}, steps of {moved}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=["cifar10", "mnist", "wide"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rates", type=float, nargs=3, help="of SGD, Adam, scaled gradients")
    parser.add_argument("--rows", nargs="+", help="only these")
    arguments = parser.parse_args()
    if arguments.data == "wide":
        return wide(64, 2)
    rates = arguments.rates or RATES[arguments.data]
    print(f"{arguments.data}, rates {rates}", flush=True)
    table(arguments.data, arguments.seeds, rates, arguments.rows)


if __name__ == "__main__":
    try:
        main()
    except FileNotFoundError as error:
        sys.exit(str(error))
