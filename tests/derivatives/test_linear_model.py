"""The closed form of linear scores equals the general path, whatever the records are like."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import mostly_ci

from dpjax.derivatives import (
    clipped_grad,
    clipped_grad_difference,
    clipped_hessian,
    joint_clipped,
)
from dpjax.derivatives.linear import scaled_rows as linear_records
from dpjax.derivatives.linear import sums as linear_sums
from dpjax.derivatives.rounding import BLOCK
from dpjax.objectives import huber, least_squares, softmax, tukey, welsch_residual
from dpjax.objectives import linear as linear_losses


class Margin:
    """A loss by its margin alone; hashable, as a static field must be."""

    def __init__(self, phi):
        self.linear = linear_losses.Margin(phi)


PHIS = {
    "logistic": lambda m: jnp.logaddexp(0.0, -m),
    "sigmoid": lambda m: jax.nn.sigmoid(-m),
    "odd": lambda m: jnp.sin(3 * m) + m**3,
}
MARGINS = {name: Margin(phi) for name, phi in PHIS.items()}
WEIGHTS = {"gradient_weight": 0.8, "hessian_weight": 0.3, "clip_norm": 0.5}


def make(n, p=5, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, p)) * rng.lognormal(size=(n, 1))
    y = rng.choice([-1.0, 1.0], n)
    return (x.astype(dtype), y.astype(dtype)), rng.standard_normal(p).astype(dtype)


def as_any_loss(phi):
    def general(w, example):
        x, y = example
        return phi(y * jnp.dot(x, w))

    return general


@functools.partial(jax.jit, static_argnums=0)
def all_sums(loss, params, batch, mask=None):
    joint = joint_clipped(loss, **WEIGHTS)(params, batch, mask)
    gradient = clipped_grad(loss, clip_norm=0.5)(params, batch, mask)
    hessian = clipped_hessian(loss, clip_norm=0.2)(params, batch, mask)
    return gradient, hessian, joint.gradient, joint.hessian


# How many records there are decides how they are laid out, whatever the loss does with a margin;
# and what is computed in float64 is the same for all losses.
@pytest.mark.parametrize(
    "name, n, x64",
    mostly_ci(
        [(name, 50, False) for name in PHIS]
        + [("logistic", 1, False), ("odd", 50, True), ("logistic", 1, True)],
        [("logistic", 50, False), ("odd", 50, False), ("odd", 50, True)],
    ),
)
def test_closed_form_equals_the_general_path(name, n, x64):
    with jax.enable_x64(x64):
        batch, params = make(n, dtype=np.float64 if x64 else np.float32)
        general = as_any_loss(PHIS[name])
        mask = np.arange(n) % 3 != 1
        closed = all_sums(MARGINS[name], params, batch, mask)
        chex.assert_tree_all_finite(closed)
        chex.assert_type(closed, jnp.float64 if x64 else jnp.float32)
        expected = all_sums(general, params, batch, mask)
        chex.assert_trees_all_close(closed, expected, rtol=1e-4, atol=2e-5)
        assert np.array_equal(closed[3], closed[3].T)


# Losses of other scores than a margin, with labels that count and, the last two, that do not.
OTHERS = {
    "softmax": (softmax(3), [0.0, 1.0, 2.0, 3.0, 0.5]),
    "least squares": (least_squares(), [-1.0, 0.25, 1.0, 1.5, -2.0]),
    "huber": (huber(threshold=0.5), [-1.0, 0.25, 1.0, 1.5, -2.0]),
    "tukey": (tukey(scale=2.0), [-1.0, 0.25, 1.0, 1.5, -2.0]),
    "welsch": (welsch_residual(scale=2.0), [-1.0, 0.25, 1.0, 1.5, -2.0]),
}


@functools.partial(jax.jit, static_argnums=0)
def difference(loss, params, batch, mask):
    total = clipped_grad_difference(loss, smoothness=0.4, clip_norm=0.5)
    return total(params, params + 0.3, batch, mask)


# What is computed in float64 is the same for all losses of as many scores.
@pytest.mark.parametrize(
    "name, x64",
    mostly_ci(
        [*((name, False) for name in OTHERS), ("softmax", True), ("least squares", True)],
        [("softmax", False), ("huber", False), ("softmax", True)],
    ),
)
def test_the_closed_form_of_other_scores_equals_the_general_path(name, x64):
    objective, labels = OTHERS[name]
    general = dataclasses.replace(objective, linear=None)
    with jax.enable_x64(x64):
        (x, _), _ = make(50, dtype=np.float64 if x64 else np.float32)
        y = np.random.default_rng(1).choice(labels, 50).astype(x.dtype)
        params = np.sin(np.arange(objective.parameters(5), dtype=x.dtype))
        mask = np.arange(50) % 3 != 1
        closed = all_sums(objective, params, (x, y), mask)
        expected = all_sums(general, params, (x, y), mask)
        chex.assert_trees_all_close(closed, expected, rtol=1e-4, atol=2e-5)
        assert np.array_equal(closed[3], closed[3].T)
        # A label that does not count is a record that is not there.
        chex.assert_trees_all_equal(
            closed, all_sums(objective, params, (x, y), mask & np.isin(y, labels[:3]))
        )
        both = [difference(loss, params, (x, y), mask) for loss in (objective, general)]
        chex.assert_trees_all_close(*both, rtol=1e-4, atol=2e-5)


SEVERAL = softmax(5)


@pytest.mark.optimised
@pytest.mark.parametrize("scale", [1e-24, 1.0, 1e19])
def test_c19_c21_no_record_of_several_scores_exceeds_the_clip_norm(scale):
    rng = np.random.default_rng(3)
    clip, norms = joint_clipped(SEVERAL, **WEIGHTS), []
    x = np.float32(rng.standard_normal((8, 11)) * scale)
    params = np.float32(rng.standard_normal(55))
    for i in range(8):
        joint = clip(params, (x[i : i + 1], np.full(1, i % 5.0, np.float32)))
        gradient = np.asarray(joint.gradient, np.float64) / WEIGHTS["gradient_weight"]
        hessian = np.asarray(joint.hessian, np.float64) / WEIGHTS["hessian_weight"]
        norms.append(np.hypot(np.linalg.norm(gradient), np.linalg.norm(hessian)))
    assert max(norms) <= WEIGHTS["clip_norm"]
    # Longer ones are dropped, since the square of their length is beyond float32.
    assert scale != 1 or max(norms) > 0.99 * WEIGHTS["clip_norm"]


@pytest.mark.parametrize("off", mostly_ci([-1, 0, 1], [1]))
def test_ragged_tails(off):
    n = 4096 + off
    batch, params = make(n)
    prepared = linear_records.prepare(batch)
    whole = prepared.width * BLOCK
    assert prepared.directions.shape == (-(-n // whole) * prepared.width, 5, BLOCK)
    lengths = np.linalg.norm(np.asarray(batch[0], np.float64), axis=1)
    assert np.allclose(prepared.radius.ravel()[:n], lengths, rtol=1e-6)
    assert not prepared.radius.ravel()[n:].any()
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: leaf.astype(np.float64), (params, batch))
        exact = all_sums(MARGINS["logistic"], *wide)
    got = all_sums(MARGINS["logistic"], params, batch)
    chex.assert_tree_all_finite(got)
    chex.assert_trees_all_close(got, exact, rtol=1e-4, atol=1e-3)


@pytest.mark.optimised
@pytest.mark.parametrize(
    "feature, label", [(np.nan, 1), (np.inf, 1), (0.5, 0), (0.5, 2), (0.5, np.nan), (0.5, np.inf)]
)
def test_an_impossible_record_contributes_exactly_zero(feature, label):
    (x, y), params = make(20)
    kept = np.arange(20) != 7
    bad = (x.copy(), y.copy())
    bad[0][7, 2], bad[1][7] = feature, label
    prepared = linear_records.prepare(bad)
    assert prepared.radius[0, 7] == 0
    assert not prepared.directions[0, :, 7].any()
    for loss in MARGINS.values():
        got = all_sums(loss, params, bad, np.ones(20, bool))
        chex.assert_tree_all_finite(got)
        chex.assert_trees_all_equal(got, all_sums(loss, params, (x, y), kept))


@jax.jit
def joint_of_square(row):
    prepared = linear_records.prepare((row, jnp.ones(1)))
    return joint_clipped(Margin(lambda m: jnp.square(m - 1)), **WEIGHTS)(jnp.zeros(54), prepared)


@pytest.mark.optimised
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("scale", [1e-30, 1e-24, 1e-3, 1.0, 1e4, 1e19, 1e30, 3e38])
def test_c19_c21_no_record_exceeds_the_clip_norm(scale, dtype):
    rng = np.random.default_rng(3)
    with np.errstate(over="ignore"):
        x = (rng.standard_normal((8, 54)) * scale).astype(jnp.dtype(dtype))
    for i in range(8):
        joint = joint_of_square(x[i : i + 1])
        gradient = np.asarray(joint.gradient, np.float64) / WEIGHTS["gradient_weight"]
        hessian = np.asarray(joint.hessian, np.float64) / WEIGHTS["hessian_weight"]
        assert np.hypot(np.linalg.norm(gradient), np.linalg.norm(hessian)) <= WEIGHTS["clip_norm"]


def test_prepared_records_are_reused_and_vmap_over_params():
    batch, params = make(30)
    params, query = jnp.asarray(params), joint_clipped(MARGINS["logistic"], **WEIGHTS)
    prepared = linear_records.prepare(batch)
    both = jax.vmap(lambda w: query(w, prepared))(jnp.stack([params, 2 * params]))
    for i, w in enumerate((params, 2 * params)):
        got = jax.tree.map(lambda leaf, i=i: leaf[i], both)
        chex.assert_tree_all_finite(got)
        chex.assert_trees_all_close(got, query(w, batch), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "batch, mask, message",
    [
        ((np.ones(3), np.ones(3)), None, "shape"),
        ((np.ones((3, 2)), np.ones(2)), None, "the same number of rows"),
        ((np.ones((0, 2)), np.ones(0)), None, "empty"),
        ((np.ones((3, 2)), np.ones(3)), np.ones(2, bool), "mask"),
    ],
)
def test_bad_batches_are_named(batch, mask, message):
    with pytest.raises(ValueError, match=message):
        linear_records.prepare(batch, mask)


@pytest.mark.parametrize("permutation_invariant", [False, True])
def test_a_hessian_in_panels_is_the_hessian(permutation_invariant, monkeypatch):
    """Panels of three rows of eleven, the last one short; exactly symmetric, and the same sum."""
    rng = np.random.default_rng(3)
    records = linear_records.prepare((rng.normal(size=(300, 11)).astype(np.float32), np.ones(300)))
    w = jnp.asarray(rng.normal(size=11), jnp.float32)
    weights = {"weights": (0.7, 0.4), "clip_norm": 0.5}

    def both():
        jax.clear_caches()
        sums = linear_sums.score_sums(
            linear_losses.Margin(PHIS["logistic"]),
            records,
            w,
            permutation_invariant=permutation_invariant,
            **weights,
        )
        return [np.sum(np.asarray(total.terms, np.float64), axis=0) for total in sums]

    whole = both()
    monkeypatch.setattr(linear_sums, "_PANEL", 3)
    panels = both()
    assert (panels[1] == panels[1].T).all()
    for one, other in zip(whole, panels, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6)
    jax.clear_caches()
