"""What clipping costs: private derivative sums beside one bare weighted product X^T diag(a) X.

Run ``python benchmarks/derivatives.py [--data synthetic|covtype] [--rounds 9]``. All rows are
measured alternately in one process; times are medians, ratios are medians of the ratios of a round.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import dpjax
from dpjax.derivatives import joint_clipped
from dpjax.derivatives.linear import scaled_rows as linear_records

WEIGHTS = {"gradient_weight": 1.0, "hessian_weight": 0.25}

# So slow that it is timed on these many rows and scaled up.
CARELESS, FEW = "clipped, chunked vmap without care (scaled up)", 2**15


def phi(margin):
    return jnp.logaddexp(0.0, -margin)


def loss(w, example):
    x, y = example
    return jnp.logaddexp(0.0, -y * jnp.dot(x, w))


class MarginLoss:
    """Tells the sums that the loss is a function of the margin."""

    margin = staticmethod(phi)


def load(name):
    if name == "covtype":
        data = dpjax.datasets.load("covtype")
        return np.asarray(data.x, np.float32), np.asarray(data.y, np.float32)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((581_012, 54), dtype=np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, rng.choice(np.array([-1.0, 1.0], np.float32), len(x))


def numpy_product(x, a, rows):
    total = np.zeros((x.shape[1],) * 2, np.float32)
    for start in range(0, len(x), rows):
        block = x[start : start + rows]
        total += (block * a[start : start + rows, None]).T @ block
    return total


@jax.jit
def jax_product(transposed, a):
    p, n = transposed.shape

    def add(i, total):
        z = lax.dynamic_slice_in_dim(transposed, i * 4096, 4096, 1)
        return total + (z * lax.dynamic_slice_in_dim(a, i * 4096, 4096)) @ z.T

    total = lax.fori_loop(0, n // 4096, add, jnp.zeros((p, p), jnp.float32))
    z = transposed[:, n // 4096 * 4096 :]
    return total + (z * a[n // 4096 * 4096 :]) @ z.T


def chunked(of_example):
    """Sums ``of_example`` over chunks of 4,096 rows, the ragged end left to one more call."""

    @jax.jit
    def total(w, x, y):
        def over(x, y):
            parts = jax.vmap(of_example, (None, 0))(w, (x, y))
            return jax.tree.map(lambda leaf: leaf.sum(0), parts)

        def add(i, total):
            at = lambda leaf: lax.dynamic_slice_in_dim(leaf, i * 4096, 4096)  # noqa: E731
            return jax.tree.map(jnp.add, total, over(at(x), at(y)))

        end = len(x) // 4096 * 4096
        return lax.fori_loop(0, len(x) // 4096, add, over(x[end:], y[end:]))

    return total


def unclipped(w, example):
    return jax.grad(loss)(w, example), jax.hessian(loss)(w, example)


def naive(w, example):
    g, h = unclipped(w, example)
    norm = jnp.sqrt(
        jnp.sum(g**2) / WEIGHTS["gradient_weight"] ** 2
        + jnp.sum(h**2) / WEIGHTS["hessian_weight"] ** 2
    )
    factor = jnp.minimum(1.0, 1.0 / norm)
    return factor * g, factor * h


def bandwidth(array, repeats=5):
    """Bytes a second that this device moves, by the faster of a copy and a sum."""
    most = 0.0
    for moved, walk in ((2, lambda x: x + 1), (1, jnp.sum)):
        walk = jax.jit(walk)
        jax.block_until_ready(walk(array))
        for _ in range(repeats):
            begin = time.perf_counter()
            jax.block_until_ready(walk(array))
            most = max(most, moved * array.nbytes / (time.perf_counter() - begin))
    return most


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=["synthetic", "covtype"], default="synthetic")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    x, y = load(arguments.data)
    rng = np.random.default_rng(1)
    a = rng.random(len(x), dtype=np.float32)
    w = jnp.asarray(rng.standard_normal(x.shape[1]), jnp.float32)
    on_device = jnp.asarray(x), jnp.asarray(y)
    transposed, weights = jnp.asarray(np.ascontiguousarray(x.T)), jnp.asarray(a)
    # As algorithms prepare all records.
    width = linear_records.chunk_width(*x.shape)
    prepared = linear_records.prepare(on_device, width=width)
    margin = jax.jit(joint_clipped(MarginLoss(), **WEIGHTS))
    general = jax.jit(joint_clipped(loss, **WEIGHTS))
    plain, careless = chunked(unclipped), chunked(naive)
    few = tuple(leaf[:FEW] for leaf in on_device)
    floors = {
        "weighted product, NumPy": lambda: (x * a[:, None]).T @ x,
        "weighted product, NumPy, 4,096 rows at a time": lambda: numpy_product(x, a, 4096),
        "weighted product, JAX, 4,096 columns at a time": lambda: jax_product(transposed, weights),
    }
    rows = floors | {
        "clipped, closed form of the margin": lambda: margin(w, prepared),
        "clipped, any loss": lambda: general(w, on_device),
        "not clipped, chunked vmap(hessian)": lambda: plain(w, *on_device),
        CARELESS: lambda: careless(w, *few),
    }
    seconds = {name: [] for name in rows}
    for i in range(arguments.rounds + 1):
        for name, call in rows.items():
            # OpenBLAS's threads go on spinning after a product, and would slow the next row.
            time.sleep(0.3)
            begin = time.perf_counter()
            jax.block_until_ready(call())
            if i:
                share = FEW / len(x) if name == CARELESS else 1.0
                seconds[name].append((time.perf_counter() - begin) / share)
    medians = {name: float(np.median(spent)) for name, spent in seconds.items()}
    floor = min(floors, key=lambda name: medians[name])
    print(f"{arguments.data}, {x.shape[0]:,} x {x.shape[1]}, float32, {jax.default_backend()}; ")
    print(f"{arguments.rounds} rounds. Floor: {floor}.\n")
    print("| gradient and Hessian | ms | times the floor |\n|---|---|---|")
    for name, spent in seconds.items():
        ratio = float(np.median(np.array(spent) / np.array(seconds[floor])))
        print(f"| {name} | {1e3 * medians[name]:.0f} | {ratio:.2f} |")
    memory = bandwidth(on_device[0])
    reached = x.nbytes / medians["clipped, closed form of the margin"]
    print(
        f"\nThe pass of a trust-region step, the closed form: features read at {reached / 1e9:.1f} "
        f"GB/s, {reached / memory:.2f} of the memory's {memory / 1e9:.1f} GB/s."
    )


if __name__ == "__main__":
    main()
