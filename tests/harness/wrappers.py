"""Optax's wrappers and accumulators around a private chain and after its noise: what each does.

The tests run every row, and docs/optax.md prints them. A cell begins with what a test finds:

- "right": what leaves depends on exact updates through the noise alone, one noise a call;
- "refused": a ValueError names the cause;
- "error": optax or JAX refuse it;
- "not seen": wrong, and nothing can tell from within;
- "right if": as "right", if what is passed to ``update`` is itself released.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import (
    differentially_private_aggregate,
    dpsgd,
    galore,
    mechanize,
    momo,
    momo_adam,
    normalize,
    reduce_on_plateau,
    sam,
    scale_by_galore,
    schedule_free,
    sophia,
    split_real_and_imaginary,
)
from optax.experimental import aggregating

PARAMS = {"body": jnp.ones((3, 2)), "head": jnp.ones(2)}
SGD = optax.sgd(0.1)
HEAD = {"body": False, "head": True}
BODY = {"body": True, "head": False}
POST = "right: post-processing"
COUNTED = "right: post-processing; the event counts every call of `update`"
ONCE = "right: passes every update on, once"
VALUE = "right if what is passed as `value` is released"
FUNCTION = "refused: a function passed to `update` would read records"
ALONE = "-"


@dataclasses.dataclass(frozen=True)
class Row:
    """One public name of optax.

    Attributes:
      make: inner transformation -> what is tried; it takes none where ``around`` is ALONE.
      around: what it does around a private chain.
      after: what it does after the noise.
      passed: beside updates and parameters to ``update``, after the noise.
      paired: whether parameters are ``LookaheadParams``.
      skips: whether calls without a step are right, as they release nothing.
      records: whether updates arrive with an axis of records.
    """

    make: Callable[..., Any]
    around: str
    after: str = POST
    passed: dict[str, Any] = dataclasses.field(default_factory=dict)
    paired: bool = False
    skips: bool = False
    records: bool = False


def even(step):
    return step % 2 == 0


def head(params, *_):
    return params["head"].sum()


def alone(make, after=POST, **passed):
    """A row of what wraps nothing."""
    return Row(lambda inner: make(), ALONE, after, passed)


def multi_steps(inner, **settings):
    return optax.MultiSteps(inner, 2, **settings).gradient_transformation()


def injected(inject):
    return lambda inner: inject(lambda rate: optax.chain(inner, optax.sgd(rate)))(rate=0.1)


SEARCH = {"value": 1.0, "grad": PARAMS, "value_fn": head}
ADVERSARY = optax.chain(normalize(), SGD)
MASKED = "refused: hands masked leaves past the noise"
SEVERAL = "refused: one noise for several draws of records"
ROWS = {
    "chain": Row(lambda inner: optax.chain(inner, SGD), ONCE),
    "named_chain": Row(lambda inner: optax.named_chain(("inner", inner), ("sgd", SGD)), ONCE),
    "with_extra_args_support": Row(optax.with_extra_args_support, ONCE),
    "flatten": Row(optax.flatten, "right: of sums; per-example gradients are an error"),
    "contrib.split_real_and_imaginary": Row(split_real_and_imaginary, ONCE),
    "contrib.schedule_free": Row(
        lambda inner: schedule_free(inner, 0.1), "right: averages what leaves the chain"
    ),
    "lookahead": Row(
        lambda inner: optax.lookahead(inner, 2, 0.5),
        "right: averages what leaves the chain",
        "error: its parameters are pairs; put it around",
        paired=True,
    ),
    "lookahead(reset_state=True)": Row(
        lambda inner: optax.lookahead(inner, 2, 0.5, reset_state=True),
        "refused: would repeat noise",
        "error: its parameters are pairs",
        paired=True,
    ),
    "inject_hyperparams": Row(
        injected(optax.inject_hyperparams), "right where the chain is made before; else refused"
    ),
    "inject_stateful_hyperparams": Row(
        injected(optax.inject_stateful_hyperparams),
        "right where the chain is made before; else refused",
    ),
    "conditionally_mask": Row(
        lambda inner: optax.conditionally_mask(inner, even),
        "right: what is skipped releases nothing; a condition on `update`'s arguments must be "
        "released",
        skips=True,
    ),
    "conditionally_transform": Row(
        lambda inner: optax.conditionally_transform(inner, even),
        "refused: hands exact updates on where the condition is false",
    ),
    "apply_if_finite": Row(
        lambda inner: optax.apply_if_finite(inner, 2), "refused: decides by exact updates"
    ),
    "masked": Row(lambda inner: optax.masked(inner, HEAD), MASKED),
    "multi_transform": Row(
        lambda inner: optax.multi_transform({"a": inner, "b": SGD}, {"body": "a", "head": "b"}),
        MASKED,
    ),
    "partition": Row(
        lambda inner: optax.partition({"a": inner, "b": SGD}, {"body": "a", "head": "b"}), MASKED
    ),
    "selective_transform": Row(
        lambda inner: optax.selective_transform(inner, freeze_mask=BODY),
        "refused: hands frozen leaves past the noise, after they took part in clipping",
    ),
    "MultiSteps": Row(multi_steps, SEVERAL, COUNTED),
    "skip_not_finite": Row(
        functools.partial(multi_steps, should_skip_update_fn=optax.skip_not_finite),
        SEVERAL,
        COUNTED,
    ),
    "skip_large_updates": Row(
        functools.partial(
            multi_steps,
            should_skip_update_fn=functools.partial(optax.skip_large_updates, max_squared_norm=9.0),
        ),
        SEVERAL,
        COUNTED,
    ),
    "contrib.sam": Row(
        lambda inner: sam(inner, ADVERSARY), "refused: moves by exact updates", COUNTED
    ),
    "contrib.sam(opaque_mode=True)": Row(
        lambda inner: sam(inner, ADVERSARY, opaque_mode=True),
        "refused: moves by exact updates",
        FUNCTION,
        {"grad_fn": jax.grad(head)},
    ),
    "contrib.mechanize": Row(mechanize, "refused: its step size is of exact updates"),
    "contrib.galore": Row(
        lambda inner: galore(0.1, rank=1, base_optimizer=inner),
        "refused: releases singular vectors of exact updates",
    ),
    "contrib.scale_by_galore": Row(
        lambda inner: scale_by_galore(rank=1, base_optimizer=inner),
        "refused: releases singular vectors of exact updates",
    ),
    "contrib.sophia(hessian_diagonal_fn=...)": Row(
        lambda inner: sophia(0.1, hessian_diagonal_fn=inner),
        "refused: averages exact updates",
        "right if the estimate of the Hessian reads no record",
    ),
    "contrib.sophia": Row(lambda inner: sophia(0.1), ALONE, FUNCTION, {"obj_fn": head}),
    "monitor": Row(lambda inner: optax.monitor({"it": inner}), "refused: hands exact updates on"),
    "lbfgs(linesearch=...)": Row(
        lambda inner: optax.lbfgs(linesearch=inner), "not seen: it stands before the noise"
    ),
    "lbfgs": alone(optax.lbfgs, FUNCTION, **SEARCH),
    "scale_by_backtracking_linesearch": alone(
        lambda: optax.scale_by_backtracking_linesearch(2), FUNCTION, **SEARCH
    ),
    "scale_by_zoom_linesearch": alone(
        lambda: optax.scale_by_zoom_linesearch(2), FUNCTION, **SEARCH
    ),
    "polyak_sgd": alone(optax.polyak_sgd, VALUE, value=1.0),
    "scale_by_polyak": alone(optax.scale_by_polyak, VALUE, value=1.0),
    "contrib.momo": alone(momo, VALUE, value=1.0),
    "contrib.momo_adam": alone(momo_adam, VALUE, value=1.0),
    "contrib.reduce_on_plateau": alone(reduce_on_plateau, VALUE, value=1.0),
    "contrib.dpsgd": alone(
        lambda: dpsgd(0.1, 1.0, 1.0, seed=0), "error: it reads per-example gradients"
    ),
    "contrib.differentially_private_aggregate": alone(
        lambda: differentially_private_aggregate(1.0, 1.0, jax.random.key(0)),
        "error: it reads per-example gradients",
    ),
    "freeze": alone(lambda: optax.freeze(BODY)),
    "apply_every": alone(lambda: optax.apply_every(2), COUNTED),
    "ema": alone(lambda: optax.ema(0.9)),
    "trace": alone(lambda: optax.trace(0.9)),
    "snapshot": alone(lambda: optax.snapshot("norm", optax.tree.norm)),
    "measure_with_ema": alone(lambda: optax.monitor({"x": optax.measure_with_ema(head, 0.9)})),
    "aggregating.accumulate_avg_updates": alone(
        lambda: aggregating.accumulate_avg_updates(2), COUNTED
    ),
    "aggregating.average_incrementally_updates": alone(
        lambda: aggregating.average_incrementally_updates(None, 2), COUNTED
    ),
    "aggregating.process": Row(
        lambda inner: aggregating.process(
            optax.identity(), aggregating.accumulate_avg_updates(2), inner
        ),
        SEVERAL,
        COUNTED,
    ),
    "aggregating.add_mean_variance_to_opt": Row(
        aggregating.add_mean_variance_to_opt,
        "refused: averages exact updates",
        "error: it reads per-example gradients",
        records=True,
    ),
}
# Of the room ``aggregating``: they read per-example gradients, or what such a one hands on, and
# stand in its ``process`` alone.
PARTS_OF_PROCESS = {
    "average_per_element_updates",
    "get_per_element_mean_and_sum_sq_diff_grads",
    "track_per_element_mean_and_variance_with_ema",
}


def after_noise(row, private):
    """The chain of a private transformation and what the row makes of SGD."""
    return optax.chain(private, row.make(SGD))


def wrapped(row, private):
    return row.make(private)


def printed():
    """Yields the lines of the table in the docs: names that do alike share one."""
    alike = {}
    for name, row in ROWS.items():
        alike.setdefault((row.around, row.after), []).append(f"`{name}`")
    for (around, after), names in alike.items():
        yield ", ".join(names), around, after
    yield "all others, such as `adam`", ALONE, POST
