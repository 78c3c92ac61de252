"""What safe noise costs: sum, noise, grid and cast beside one plain float32 normal draw.

Run ``python benchmarks/noise.py [--size 1000000] [--rounds 21]``. Rows are measured alternately in
one process; times are medians, ratios are medians of the ratios of a round.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.mechanisms import perturb


def measure(size, rounds):
    """Returns the times of both draws in every round, in seconds."""
    value, key = jnp.zeros(size, jnp.float32), jax.random.key(0)
    calls = [
        jax.jit(lambda key: jax.random.normal(key, (size,), jnp.float32)),
        jax.jit(lambda key: perturb(key, value, 1.0)),
    ]
    seconds = [[], []]
    for i in range(rounds + 1):
        for call, spent in zip(calls, seconds, strict=True):
            begin = time.perf_counter()
            jax.block_until_ready(call(key))
            if i:
                spent.append(time.perf_counter() - begin)
    return np.array(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=10**6)
    parser.add_argument("--rounds", type=int, default=21)
    arguments = parser.parse_args()
    print(f"{arguments.size:,} values, {jax.default_backend()}, {arguments.rounds} rounds\n")
    print("| x64 | plain float32 draw, ms | safe noise, ms | ratio |\n|---|---|---|---|")
    for x64 in (True, False):
        with jax.enable_x64(x64):
            plain, safe = measure(arguments.size, arguments.rounds)
        row = f"{1e3 * np.median(plain):.1f} | {1e3 * np.median(safe):.1f}"
        print(f"| {'on' if x64 else 'off'} | {row} | {np.median(safe / plain):.2f} |")


if __name__ == "__main__":
    main()
