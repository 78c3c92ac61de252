"""Estimated memory and time of a run, without reading the data."""

import jax.numpy as jnp

import dpjax
from dpjax.algorithms import Algorithm
from dpjax.driver import seconds_per_step

_TRIAL_ROWS = 65_536


def lines(algorithm: Algorithm, data: dpjax.Dataset) -> list[str]:
    """Returns memory and estimated time, from made-up rows of the same width.

    Privacy: reads the shape of the data only.
    """
    # The declared n: the real one may be private.
    n, p = algorithm.queries[0].data_size, data.dimension
    most = 1 if data.present is None else data.present.shape[1]  # records of one unit
    arrays = 2 * n * most * (p + 1) * 4 + algorithm.max_steps * 40
    resident = arrays + 6 * algorithm.dimension**2 * 8
    # A batch that is drawn costs the same whatever n is, and is drawn from n.
    sampled = not all(query.sampler.reads_all for query in algorithm.queries)
    rows = n if sampled else min(n, _TRIAL_ROWS)
    one = (rows,) if data.present is None else (rows, most)
    examples = (jnp.full((*one, p), p**-0.5, jnp.float32), jnp.ones(one))
    if data.present is not None:
        examples = examples, jnp.ones(one, bool)
    seconds = seconds_per_step(algorithm, examples) * n / rows * int(algorithm.steps)
    return [
        f"memory: about {resident / 2**20:,.0f} MiB of arrays, data included",
        f"time: about {seconds:.2g} s after compiling",
    ]
