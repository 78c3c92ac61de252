"""One person moves a sum by its sensitivity at most, whatever numbers they hold.

Each kind of clipped sum is asked on data sets in which one person holds extreme numbers: in one of
them the person is null, so that any two are neighbours.
"""

import dataclasses
import importlib.util
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import SAME_PROGRAM, mostly_ci
from jax import lax

import dpjax
from dpjax import objectives, transforms
from dpjax.algorithms import ALL
from dpjax.derivatives import (
    clipped_grad,
    clipped_grad_difference,
    clipped_hessian,
    joint_clipped,
    subspace_clipped,
)
from dpjax.derivatives.linear import scaled_rows as linear_records
from dpjax.derivatives.linear import units as linear_units

N, PLACE, CLIP = 20, 7, 0.5
WEIGHTS = {"gradient_weight": 1.0, "hessian_weight": 1.0}
LOGISTIC, CLASSES = objectives.logistic(), objectives.softmax(3).data_term


def cells(dtype):
    """Subnormal numbers, the smallest normal ones, squares that overflow, and what is no number."""
    info = np.finfo(dtype)
    least, tiny, most = float(info.smallest_subnormal), float(info.tiny), float(info.max)
    numbers = [least, -1e-2 * tiny, 0.9 * tiny, tiny, tiny**0.5, 1, -3, most**0.5, most, -most]
    return np.array([0, *numbers, np.nan, np.inf, -np.inf], dtype)


def persons(p, rows, dtype):
    """Data sets (V, N, ...) in which one person differs, who is null in the first, and who is not.

    Args:
      p: features.
      rows: of a person; None for single records.
      dtype: of the features.
    """
    extreme = cells(dtype)
    random = np.random.default_rng(p)
    one = np.stack(np.meshgrid(extreme, [0, 3, np.nan]), -1).reshape(-1, 2)
    more = random.choice(extreme, (len(one), max(p - 2, 0)))
    one = np.concatenate([one, more], 1)[:, :p].astype(dtype)
    if rows is None:
        x, y = np.full((len(one), N, p), 3, dtype), np.ones((len(one), N), dtype)
        x[:, PLACE] = one
        y[0, PLACE] = np.nan
        return (x, y), ~np.isfinite(one).all(axis=1) | (np.arange(len(one)) == 0)
    # Rows of a person: one that cancels the first, and one of another's numbers.
    x, y = np.full((len(one), N, rows, p), 3, dtype), np.ones((len(one), N, rows), dtype)
    x[:, PLACE, 0] = one
    x[:, PLACE, 1:2] = -one[:, None]
    x[:, PLACE, 2:] = one[::-1, None]
    present = np.ones(y.shape, bool)
    present[0, PLACE] = False
    usable = np.isfinite(x[:, PLACE]).all(axis=2) & present[:, PLACE]
    return ((x, y), present), ~usable.any(axis=1)


def network(params, example):
    """Layers whose gradients are of rank one, a ghost norm over positions, and materialised."""
    x, y = example
    hidden = jnp.tanh(jnp.outer(jnp.ones(3), x) @ params["w"] + params["b"][None])
    return jnp.sum(hidden * y) + jnp.tanh(x @ params["v"]).sum() ** 2


def looked_up(params, example):
    x, y = example
    rows = params["table"][jnp.clip(jnp.nan_to_num(x), 0, 3).astype(int)]
    return jnp.sum(jnp.tanh(rows * x[:, None]) * y)


def plain(w, example):
    x, y = example
    return jnp.logaddexp(0.0, -y * (x @ w))


def gradient(loss, of=lambda w: w, **more):
    total = clipped_grad(loss, clip_norm=CLIP, **more)
    return total, lambda w, data: total(of(w), data)


def layers(w):
    w = jnp.resize(w, (len(w), 4))
    return {"w": w, "b": jnp.ones(4), "v": w[:, :2]}


def table(w):
    return {"table": jnp.resize(w, (4, 2))}


def difference(loss, of=lambda w: w, factor=20):
    # At the anchor gradients are others, and it is as far as what clipping allows needs.
    total = clipped_grad_difference(loss, smoothness=1e6, clip_norm=CLIP)
    return total, lambda w, data: total(of(w), of(factor * w), data)


def joint(loss):
    return joint_clipped(loss, **WEIGHTS, clip_norm=CLIP)


def simple(total, of=lambda w: w):
    return total, lambda w, data: total(of(w), data)


def classes(w):
    return jnp.tile(w, 3) * jnp.repeat(jnp.arange(3.0), len(w))


def in_subspace():
    total = subspace_clipped(plain, **WEIGHTS)
    return total, lambda w, data: total(w, data, jnp.ones((2, len(w)), w.dtype))


def chained():
    chain = transforms.clip_and_sum(CLIP)
    gradients = jax.vmap(jax.grad(plain), (None, 0))
    return chain, lambda w, data: chain.update(gradients(w, data), chain.init(w))[0]


# Kind of sum -> (what has the sensitivity, the sum of it at w); those of a row share a program.
ROWS = {
    "one score": {
        "gradient": gradient(LOGISTIC),
        "Hessian": simple(clipped_hessian(LOGISTIC, clip_norm=CLIP)),
        "joint": simple(joint(LOGISTIC)),
        "difference": difference(LOGISTIC),
        "residual": gradient(objectives.huber().data_term),
        "in any order": gradient(LOGISTIC, permutation_invariant=True),
    },
    "several scores": {
        "gradient": gradient(CLASSES, classes),
        "joint": simple(joint(CLASSES), classes),
        "difference": difference(CLASSES, classes, factor=-20),
    },
    "any loss": {
        "gradient": gradient(plain, method="per_example"),
        "joint": simple(joint(plain)),
        "difference": difference(plain),
        "subspace": in_subspace(),
        "chain": chained(),
    },
    "networks": {
        "book-keeping": gradient(network, layers, method="book_keeping"),
        "layers": gradient(network, layers, per_layer=True),
        "table": gradient(looked_up, table, method="book_keeping"),
    },
}
UNITS = {
    f"one score, {reduction}": {
        "gradient": gradient(LOGISTIC.of_units(reduction)),
        "joint": simple(joint(LOGISTIC.of_units(reduction))),
    }
    for reduction in ("sum", "mean")
} | {
    "several scores": {
        "joint": simple(joint(CLASSES.of_units("sum")), classes),
    },
    "any loss": {
        "gradient": gradient(dpjax.Objective(plain).of_units("sum")),
        "difference": difference(dpjax.Objective(plain).of_units("mean")),
    },
}


def answers(totals, data, p, dtype):
    """Of each kind the sums on every data set (V, numbers), computed as for one."""

    @jax.jit
    def program(data):
        return lax.map(
            lambda one: {k: call(jnp.full(p, 0.3, dtype), one) for k, (_, call) in totals.items()},
            data,
        )

    found = program(data)
    return {
        kind: np.concatenate(
            [np.reshape(leaf, (len(leaf), -1)) for leaf in jax.tree.leaves(of)], axis=1
        )
        for kind, of in found.items()
    }


def check(totals, data, null, p, dtype):
    for kind, sums in answers(totals, data, p, dtype).items():
        total = totals[kind][0]
        assert np.isfinite(sums).all(), kind
        # Who holds no number at all is lost, and nobody else: to the last bit.
        assert (sums[null] == sums[0]).all(), kind
        wide = sums.astype(float)
        limits = {r: float(sensitivity(total, r)) for r in ("zero_out", "replace_one")}
        assert np.linalg.norm(wide - wide[0], axis=1).max() <= limits["zero_out"], kind
        apart = np.linalg.norm(wide[:, None] - wide[None], axis=2)
        assert apart.max() <= limits["replace_one"], kind
        # It would show if others' parts were lost, and the person has one.
        assert np.linalg.norm(wide[0]) > limits["replace_one"], kind
        assert apart.max() > 0.1 * CLIP or "difference" in kind, kind


def sensitivity(total, relation):
    if isinstance(total, dpjax.derivatives.ClippedGradDifference):
        return total.sensitivity(relation, distance=1.0, rows=N)
    if hasattr(total, "sensitivity"):
        return total.sensitivity(relation, rows=N)
    return dpjax.derivatives.rounding.sum_sensitivity(CLIP, relation, N)


def sizes(*given, daily):
    """Settings of a test; with one feature compiled as for users: those shortcuts went wrong."""

    def marks(one):
        optimised = [pytest.mark.optimised] if one[0] == 1 else []
        return optimised if one in daily else [*optimised, pytest.mark.ci]

    return [pytest.param(*one, marks=marks(one)) for one in given]


F32, F64 = np.float32, np.float64


@pytest.mark.parametrize(
    ("p", "dtype"),
    sizes((1, F32), (1, F64), (2, F64), (3, F32), daily=[(1, F32), (2, F64)]),
)
@pytest.mark.parametrize("kind", mostly_ci(ROWS, ["one score", "any loss"]))
def test_c71_no_numbers_of_one_record_move_a_sum_by_more_than_its_sensitivity(kind, p, dtype):
    with jax.enable_x64(dtype == F64):
        check(ROWS[kind], *persons(p, None, dtype), p, dtype)


@pytest.mark.parametrize(
    ("p", "rows", "dtype"),
    sizes(
        *((1, 1, F32), (1, 3, F32), (1, 3, F64), (2, 3, F32), (3, 2, F64)),
        daily=[(1, 3, F32), (3, 2, F64)],
    ),
)
@pytest.mark.parametrize("kind", mostly_ci(UNITS, ["one score, sum", "any loss"]))
def test_c71_no_numbers_of_one_person_move_a_sum_by_more_than_its_sensitivity(kind, p, rows, dtype):
    with jax.enable_x64(dtype == F64):
        check(UNITS[kind], *persons(p, rows, dtype), p, dtype)


@pytest.mark.parametrize(
    "loss",
    [LOGISTIC, CLASSES, LOGISTIC.of_units("sum")],
    ids=["one score", "several scores", "units"],
)
def test_c71_a_direction_that_is_no_number_erases_no_other_record(loss):
    """The line behind ``polar``: whatever a compiler makes of a row, the row alone is lost."""
    x, y = np.full((N, 2), 3, F32), np.ones(N, F32)
    if getattr(loss.loss, "reduction", None) is None:
        records = linear_records.prepare((x, y), labels=loss.linear.labels)
    else:
        units = (x.reshape(-1, 2, 2), y.reshape(-1, 2)), np.ones((N // 2, 2), bool)
        records = linear_units.prepare_units(units, None, "sum")
    broken, null = (
        dataclasses.replace(records, directions=records.directions.at[0, :, PLACE].set(entries))
        for entries in (jnp.array([jnp.nan, jnp.inf]), 0)
    )
    outputs = loss.linear.outputs if loss.linear is not None else 1
    total, w = joint(loss), jnp.full(2 * outputs, 0.3)
    pairs = zip(*(total(w, one) for one in (broken, null)), strict=True)
    moved = np.linalg.norm(np.concatenate([np.ravel(a - b) for a, b in pairs]))
    assert moved <= total.sensitivity("zero_out", rows=N)


# The search itself, in small: one run of each algorithm on persons with one feature.

PATH = pathlib.Path(__file__).parents[2] / "benchmarks" / "movement.py"
SPEC = importlib.util.spec_from_file_location("movement", PATH)
SEARCH = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(SEARCH)
PROGRAMS = [name for name in ALL if name not in SAME_PROGRAM]


@pytest.mark.parametrize("name", mostly_ci(PROGRAMS, ["dp-tr", "dp-adam"]))
def test_c71_no_question_of_an_algorithm_moves_by_more_than_its_sensitivity(name):
    # DP-FC takes no units.
    kind = "rows" if ALL[name].one_release or name == "dp-fc" else "units"
    # At 0 the slope of a margin loss is half of its bound.
    assert 0.45 < SEARCH.search(name, kind, 1, sets=2) <= 1
