"""What a step in a subspace costs, in non-private gradient steps of the same batch.

Run ``python benchmarks/subspace.py [--batch 256] [--directions 4 8 16 32] [--rounds 9]``: the MNIST
network of 26,010 parameters on random images. The oracle's whole answer and the sketch are timed,
alternately with the mean gradient and its update, in one process; ratios are medians of the ratios
of a round, and ``2k + 3`` is what they must stay below.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

import dpjax


def seconds(call):
    begin = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--directions", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    network = dpjax.models.CNN()
    params = network.init(jax.random.key(0), jnp.zeros((28, 28)))
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    objective = dpjax.objectives.cross_entropy(network.apply)
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(arguments.batch, 28, 28)), jnp.float32)
    y = jnp.asarray(random.integers(0, 10, arguments.batch))

    @jax.jit
    def plain(params, x, y):
        def mean(params):
            return jnp.mean(jax.vmap(objective, (None, 0))(params, (x, y)))

        return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(mean)(params))

    @jax.jit
    def private(algorithm, key, params, x, y):
        def ask(query, params, **public):
            return query.answer(key, (x, y), params, **public)

        return algorithm.step(key, algorithm.init(params), ask)[0].params

    print(f"{size:,} parameters, batch {arguments.batch}, {jax.default_backend()}\n")
    print("| k | non-private, ms | in the subspace, ms | ratio | 2k + 3 |\n|---|---|---|---|---|")
    for k in arguments.directions:
        algorithm = dpjax.dp_subspace_trust_region(
            objective,
            dpjax.PrivacyBudget(1.0, 1e-5),
            data_size=arguments.batch,
            dimension=size,
            subspace_dimension=k,
            clip_norm=0.1,
            hessian_clip_norm=0.2,
        )
        key = jax.random.key(1)
        rounds = [
            (
                min(seconds(lambda: plain(params, x, y)) for _ in range(3)),
                seconds(lambda: private(algorithm, key, params, x, y)),  # noqa: B023
            )
            for _ in range(arguments.rounds + 1)
        ][1:]
        first, second = np.median(np.array(rounds), axis=0)
        ratio = float(np.median([b / a for a, b in rounds]))
        print(f"| {k} | {1e3 * first:.0f} | {1e3 * second:.0f} | {ratio:.1f} | {2 * k + 3} |")


if __name__ == "__main__":
    main()
