"""What privacy costs a transformer's gradient step, in time and memory.

Run ``python -m benchmarks.transformer [--lora] [--remat] [--bfloat16] [--width 192 ...]``. A step
is the mean gradient of a batch; a private one clips, adds and noises. Steps are timed alternately
in one run, in a new random order each round. Memory is that of the compiled program for temporary
arrays, by the compiler's own analysis. Steps without privacy are the model as it is, vmapped over
the batch, and in pieces whose gradients are added up. ``--peers`` are other libraries; PyTorch's
steps and Opacus, with weights that are not tied for ghost clipping, are taken by an interpreter of
their own, ``--torch-python``, of the default sizes.

``--lora`` trains rank-4 changes of the dense layers alone, beside a base that is fixed.
"""

import argparse
import functools
import importlib.util
import random
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.dp_step_runners import Asked, Compiled, Torch
from dpjax import models
from dpjax.objectives import Objective
from dpjax.oracles import NetworkQuery, Setting

CLIP_NORM, NOISE = 1.0, 1.0
PIECES = (8, 16, 32)


def problem(arguments):
    """The model's loss of one sequence, parameters that are trained, and sequences."""
    model = models.Transformer(
        vocabulary=arguments.vocabulary,
        width=arguments.width,
        depth=arguments.depth,
        rank=4 if arguments.lora else None,
        remat=arguments.remat,
        dtype=jnp.bfloat16 if arguments.bfloat16 else jnp.float32,
    )
    shape = arguments.batch, arguments.length
    tokens = np.random.default_rng(0).integers(1, arguments.vocabulary, shape)
    params = jax.jit(model.init)(jax.random.key(0), tokens[0])
    if not arguments.lora:
        return functools.partial(of_sequence, model), params, tokens
    flat = jax.tree_util.tree_leaves_with_path(params)
    trained = ["lora" in jax.tree_util.keystr(path) for path, _ in flat]
    structure, fixed = jax.tree.structure(params), [leaf for _, leaf in flat]

    def loss(some, tokens):
        given = iter(some)
        both = zip(fixed, trained, strict=True)
        leaves = [next(given) if chosen else jax.lax.stop_gradient(leaf) for leaf, chosen in both]
        return of_sequence(model, structure.unflatten(leaves), tokens)

    return loss, [leaf for leaf, chosen in zip(fixed, trained, strict=True) if chosen], tokens


def of_sequence(model, params, tokens):
    return models.next_token(model.apply(params, tokens), tokens)


def mean_gradient(loss):
    return jax.grad(lambda params, x, key: jnp.mean(jax.vmap(loss, (None, 0))(params, x)))


def in_pieces(loss, rows):
    """Gradients of ``rows`` sequences at once, added up."""
    gradient = mean_gradient(loss)

    def step(params, x, key):
        count = len(x) // rows

        def add(total, piece):
            return jax.tree.map(jnp.add, total, gradient(params, piece, key)), None

        pieces = x.reshape(count, rows, *x.shape[1:])
        total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), pieces)
        return jax.tree.map(lambda leaf: leaf / count, total)

    return step


class Masked(NetworkQuery):
    """Answers from a whole batch whose mask is data, as that of a drawn batch."""

    def _drawn(self, key, records):
        return records


def ours(loss, batch, relation, memory_limit=None):
    query = Masked(
        setting=Setting(Objective(loss), batch, relation),
        noise_multiplier=NOISE,
        clip_norm=CLIP_NORM,
        memory_limit=memory_limit,
    )
    return lambda params, x, key: query.answer(key, (x, jnp.ones(batch, bool)), params)


def optax_aggregate(loss):
    def step(params, x, key):
        chain = optax.contrib.differentially_private_aggregate(CLIP_NORM, NOISE, key=key)
        each = jax.vmap(jax.grad(loss), (None, 0))(params, x)
        return chain.update(each, chain.init(params))[0]

    return step


def jax_privacy_step(loss, rows):
    import jax_privacy

    def step(params, x, key):
        summed = jax_privacy.clipped_grad(
            loss,
            l2_clip_norm=CLIP_NORM,
            batch_argnums=1,
            keep_batch_dim=False,
            microbatch_size=rows,
        )(params, x)
        noise = jax_privacy.noise_addition.gaussian_privatizer(
            stddev=NOISE * CLIP_NORM, prng_key=key
        )
        return jax.tree.map(lambda leaf: leaf / len(x), noise.update(summed, noise.init(params))[0])

    return step


def contenders(loss, arguments):
    """Returns ``{what it is: step(params, tokens, key)}``."""
    batch = arguments.batch
    steps = {"not private: whole batch": mean_gradient(loss)}
    for rows in PIECES:
        steps[f"not private: {rows} at a time"] = in_pieces(loss, rows)
    steps["dpjax"] = ours(loss, batch, "zero_out")
    steps["dpjax, add or remove"] = ours(loss, batch, "add_or_remove_one")
    if arguments.peers:
        steps["optax, DP aggregate"] = optax_aggregate(loss)
        if importlib.util.find_spec("jax_privacy"):
            steps["jax-privacy"] = jax_privacy_step(loss, None)
            steps["jax-privacy, 16 at a time"] = jax_privacy_step(loss, 16)
        else:
            print("jax-privacy is not installed: its rows are left out.")
    return steps


def timed(runners, rounds):
    """Seconds of every round, in random order, after a round that warms caches."""
    spent = {label: [] for label in runners}
    for runner in runners.values():
        runner.seconds()
    for _ in range(rounds):
        for label in random.sample(list(runners), len(runners)):
            spent[label].append(runners[label].seconds())
    return spent


def table(runners, spent):
    """Prints the rows, and private over the fastest and over the smallest without privacy."""
    plain = [label for label in spent if label.startswith("not private")]
    median = {label: float(np.median(times)) for label, times in spent.items()}
    least = {label: min(times) for label, times in spent.items()}
    fastest = min(plain, key=median.get)
    memory = {label: runner.planned() for label, runner in runners.items()}
    print("\n| step | ms, median | least | x fastest not private, of medians | of least | MB | x |")
    print("|---|---|---|---|---|---|---|")
    for label in spent:
        print(
            f"| {label} | {1e3 * median[label]:,.0f} | {1e3 * least[label]:,.0f} | "
            f"{median[label] / median[fastest]:.2f} | "
            f"{least[label] / min(least[each] for each in plain):.2f} | "
            + ("| |" if memory[label] is None else of_memory(memory[label], memory[fastest]))
        )
    print(f"\nTimes and memory are over those of: {fastest}.")


def of_memory(size, least):
    return f"{size / 1e6:,.0f} | {size / least:.2f} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in {"width": 128, "depth": 4, "vocabulary": 4096, "length": 128}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    for name in ("lora", "remat", "bfloat16", "peers"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--torch-python", metavar="PATH", help="of PyTorch and Opacus")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="steps whose name has one")
    arguments = parser.parse_args()
    loss, params, tokens = problem(arguments)
    runners = {}
    for label, step in contenders(loss, arguments).items():
        if not arguments.only or any(word in label for word in arguments.only):
            begin = time.perf_counter()
            runners[label] = Compiled(step, (params, jnp.asarray(tokens), jax.random.key(1)))
            print(f"compiled in {time.perf_counter() - begin:.0f} s: {label}", flush=True)
    if arguments.torch_python:
        server = Torch(arguments.torch_python, "transformer", arguments.batch, 0)
        runners |= {label: Asked(server, label) for label in server.names}
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    print(f"{size:,} trained parameters; {vars(arguments)}; {jax.devices()[0].device_kind}")
    table(runners, timed(runners, arguments.rounds))


if __name__ == "__main__":
    main()
