"""How far one person moves what is asked, over what the noise hides: no algorithm above 1.

Run ``python benchmarks/movement.py [--pairs 10000] [--seed 0]``. Each algorithm of the registry is
run on rows and on units, with 1 to 3 features, in which one person holds extreme numbers. At every
question of a run the exact answers on neighbouring data are compared: one person is a null record
in one of them, or another one. Exit status 1 if any distance is above 1 sensitivity.
"""

import argparse
import functools
import inspect
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import dpjax
from dpjax.algorithms import ALL
from dpjax.driver import loop
from dpjax.driver.asking import Asking, bind_records, bind_with_key
from dpjax.oracles import bind

N, ROWS, STEPS, VARIANTS = 40, 3, 4, 25
NO_NUMBERS = (jnp.nan, jnp.inf, -jnp.inf)
# Subnormal numbers and the smallest normal ones, squares that leave float32, the largest numbers.
CELLS = jnp.array(
    [0, 1e-45, -1e-40, 1e-38, -1.2e-38, 1e-20, 1, -3, 3, 1e10, -1e20, 3e38, -3e38, *NO_NUMBERS],
    jnp.float32,
)
LABELS = jnp.array([1, 1, 1, -1, -1, -1, 0, 2, 1e-40, jnp.nan, jnp.inf], jnp.float32)
KINDS = ("rows", "units")
# For a loss without constants, to whoever takes them.
UNKNOWN = {
    "clip_norm": 1.0,
    "hessian_clip_norm": 1.0,
    "smoothness": 1.0,
    "step_size": 0.08,
    "hessian_lipschitz": 1.0,
    "initial_gap": 1.0,
    "floor": 1.0,
}
SCALES = jnp.array([0.0, 1.0, 1e3])


@functools.partial(jax.jit, static_argnames=("p", "grouped"))
def neighbours(key, p, grouped):
    """Data sets (VARIANTS, N, ...) that differ in one person, who is null in the first."""
    place, x_key, y_key, rest, turn, there = jax.random.split(key, 6)
    rows = (ROWS,) if grouped else ()
    x = jax.random.choice(x_key, CELLS, (VARIANTS, *rows, p))
    y = jax.random.choice(y_key, LABELS, (VARIANTS, *rows))
    if grouped:  # some persons whose first two rows cancel
        turned = jax.random.bernoulli(turn, 0.3, (VARIANTS,))
        x = x.at[:, 1].set(jnp.where(turned[:, None], -x[:, 0], x[:, 1]))
        y = y.at[:, 1].set(jnp.where(turned, y[:, 0], y[:, 1]))
    common = jnp.where(jax.random.bernoulli(rest, 0.9, (N, *rows, p)), 3.0, -0.3)
    x = jnp.repeat(common[None], VARIANTS, 0).at[:, 0].set(x.at[0].set(0))
    y = jnp.ones(x.shape[:-1]).at[:, 0].set(y.at[0].set(0))
    present = (
        jnp.ones(y.shape, bool)
        .at[:, 0]
        .set(jax.random.bernoulli(there, 0.8, (VARIANTS, *rows)).at[0].set(False))
    )
    shift = jax.random.randint(place, (), 0, N)
    data = ((x, y), present) if grouped else (x, y)
    return jax.tree.map(lambda leaf: jnp.roll(leaf, shift, axis=1), data)


def units_of(query, params, public):
    """The sensitivity of each part of the exact answer."""
    if query.name == "selection":
        return (query.sensitivity,)
    if query.name == "perturbed_minimizer":  # the noise is in the objective
        strength = query.objective.regularizer.strength
        return (query.sensitivity / strength + 2 * query.distance,)
    scales = query.stddevs(params, **public)
    # Those of ball noise are float64.
    scales = [lax.convert_element_type(scale, jnp.float32) for scale in scales]
    # Some laws divide what they are added to.
    divisors = [getattr(noise, "divisor", 1) for _, noise in query.noises(**public)]
    pairs = zip(scales, divisors, strict=True)
    return tuple(scale * by / query.noise_multiplier for scale, by in pairs)


def distances(query, data, params, public, order):
    """How far the answers to one question are apart, in sensitivities (2 VARIANTS - 1,)."""

    def exact(examples):
        records = query.sampler.prepare(order, bind(query, examples))
        secret = query.secret_arguments(order, records, params, **public)
        return tuple(part.leading for part in query.exact(records, params, **public | secret))

    parts = zip(lax.map(exact, data), units_of(query, params, public), strict=True)
    values = jnp.concatenate([(v / unit).reshape(VARIANTS, -1) for v, unit in parts], axis=1)
    norm = functools.partial(jnp.linalg.norm, ord=jnp.inf if query.name == "selection" else 2)

    def apart(one, other):
        moved = jax.vmap(norm)(jnp.where(one == other, 0, one - other))
        return jnp.where(jnp.isnan(moved), jnp.inf, moved)

    null = jnp.broadcast_to(values[:1], values.shape)
    # Who is replaced moves an answer as two do who are nulled.
    return jnp.concatenate([apart(values, null), apart(values[1:], values[:-1]) / 2])


def run(algorithm, data, key):
    """The largest distance of any question in a run on the data in which the person is null."""
    start, scale, order, key = jax.random.split(key, 4)
    algorithm = jax.tree.map(
        lambda node: node.with_known_order(order) if is_sampler(node) else node,
        algorithm,
        is_leaf=is_sampler,
    )
    first = jax.tree.map(lambda leaf: leaf[0], data)
    bound = bind_with_key(algorithm, bind_records(algorithm, first), key)

    def watched(step, go_on):
        asking, moved = Asking(bound, step), [jnp.zeros(2 * VARIANTS - 1)]

        def ask(query, params, **public):
            answer = asking(query, params, **public)
            moved.append(distances(query, data, params, public, order))
            return answer

        result = go_on(asking.key, ask)
        return result, jnp.max(jnp.stack(moved), axis=0)

    def one(state, step):
        over = algorithm.done(state)
        (state, _), moved = watched(step, lambda key, ask: algorithm.step(key, state, ask))
        return state, jnp.where(over, 0, moved)

    def end(key, ask):
        return algorithm.certify(key, algorithm.finalize(key, state, ask), ask, False)

    params = jax.random.normal(start, (algorithm.dimension,)) * jax.random.choice(scale, SCALES)
    state, moved = lax.scan(one, loop.start(bound, params).state, jnp.arange(STEPS))
    _, last = watched(jnp.array(algorithm.max_steps), end)
    return jnp.maximum(moved.max(axis=0), last)


@jax.jit
def runs(algorithm, data, keys):
    """The distances of ``run`` for many keys, one after the other: as a training computes them."""
    return lax.map(lambda of: run(algorithm, *of), (data, keys))


def is_sampler(node):
    return isinstance(node, dpjax.sampling.Sampler)


def algorithm_of(name, kind, p):
    entry = ALL[name]
    example = entry.example
    objective = dpjax.objectives.OBJECTIVES[example.objective]()
    if entry.one_release:  # whose minimum moves the more, the less the other records curve
        objective = dpjax.objectives.logistic_l2(1.0)
    if kind == "units":
        objective = objective.of_units("mean" if p == 2 else "sum")
    settings = {"data_size": N, "dimension": p} | ({} if entry.one_release else {"steps": STEPS})
    settings |= example.required | example.settings
    if kind == "units":  # a sum of losses has no constants
        takes = inspect.signature(entry.factory).parameters
        settings = {name: it for name, it in UNKNOWN.items() if name in takes} | settings
    settings = settings | ({"batch_size": N // 2} if settings.get("batch_size", 0) > N else {})
    return entry.factory(objective, dpjax.PrivacyBudget(1.0, 1e-4), **settings)


def search(name, kind, p, sets, seed=0):
    """The largest movement (sensitivities) of an algorithm over ``sets`` data sets."""
    algorithm = algorithm_of(name, kind, p)
    keys = jax.random.split(jax.random.key(seed), sets)
    data = jax.vmap(lambda key: neighbours(key, p, kind == "units"))(keys)
    return float(np.max(runs(algorithm, data, keys)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--pairs", type=int, default=10_000, help="of neighbours, of each algorithm"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=list(ALL), default=list(ALL))
    arguments = parser.parse_args()
    of_set = 2 * VARIANTS - 1
    sets = -(-arguments.pairs // (of_set * len(KINDS) * 3))
    most, pairs = 0.0, 0
    for name in arguments.only:
        shown = []
        for kind in KINDS:
            if kind == "units" and ALL[name].one_release:
                continue  # which takes single records alone
            found = max(search(name, kind, p, sets, arguments.seed) for p in (1, 2, 3))
            pairs += 3 * sets * of_set
            most = max(most, found)
            shown.append(f"{kind} {found:.4f}")
        print(f"{name}: {'; '.join(shown)}", flush=True)
    print(f"{pairs:,} pairs of neighbours: at most {most:.4f} sensitivities.")
    return int(most > 1)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    sys.exit(main())
