"""Noise: the right law is accepted and wrong ones are rejected, keys never repeat."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax.mechanisms import (
    add_gaussian,
    add_symmetric_gaussian,
    as_key,
    derive,
    perturb,
    random_key,
)

pytestmark = pytest.mark.optimised

# Each statistical check fails by chance with this probability at most.
LEVEL = 1e-6


def looks_normal(draws, stddev):
    """Whether a KS and a variance test at LEVEL accept N(0, stddev^2)."""
    draws = np.asarray(draws, np.float64).ravel() / stddev
    n = draws.size
    low, high = stats.chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], n) / n
    return stats.kstest(draws, "norm").pvalue > LEVEL and low < np.mean(draws**2) < high


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("stddev", [0.01, 1.0, 30.0])
def test_perturb_draws_the_gaussian(dtype, stddev):
    draws = perturb(jax.random.key(1), jnp.zeros(20_000, dtype), stddev)
    assert draws.dtype == dtype
    if dtype == jnp.float32:
        assert looks_normal(draws, stddev)
    # Drawn in float32 before the cast: bfloat16 normals would have 128 values at most.
    assert len(np.unique(np.asarray(draws, np.float32))) > 500


@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_the_check_rejects_a_wrong_scale(factor):
    draws = perturb(jax.random.key(2), jnp.zeros(200_000), factor)
    assert looks_normal(draws / factor, 1.0)
    assert not looks_normal(draws, 1.0)


def test_perturb_in_float64():
    with jax.enable_x64(True):
        draws = perturb(jax.random.key(3), jnp.zeros(50_000, jnp.float64), 2.0)
        assert draws.dtype == jnp.float64
        assert looks_normal(draws, 2.0)


def test_leaves_of_equal_shape_get_independent_noise():
    tree = {"a": jnp.zeros(5_000), "b": jnp.zeros(5_000), "c": (jnp.zeros(5_000),)}
    noisy = add_gaussian(jax.random.key(4), tree, 1.0)
    leaves = np.stack(jax.tree.leaves(noisy))
    correlation = np.corrcoef(leaves)[np.triu_indices(3, 1)]
    assert np.abs(correlation).max() < stats.norm.isf(LEVEL) / np.sqrt(5_000)
    planted = np.corrcoef(leaves[0], leaves[0])[0, 1]  # what one key for all leaves would give
    assert planted > 0.99


def symmetric_law(draws, off_diagonal):
    """Whether stacked (m, p, p) draws have unit diagonal and the given off-diagonal scale."""
    p = draws.shape[1]
    rows, columns = np.triu_indices(p, 1)
    diagonal = draws[:, np.arange(p), np.arange(p)]
    return looks_normal(diagonal, 1.0) and looks_normal(draws[:, rows, columns], off_diagonal)


@pytest.mark.parametrize(("isometric", "off_diagonal"), [(True, np.sqrt(0.5)), (False, 1.0)])
def test_c27_symmetric_noise_has_its_form_and_not_the_other(isometric, off_diagonal):
    keys = jax.random.split(jax.random.key(5), 4_000)
    draws = jax.vmap(lambda k: add_symmetric_gaussian(k, jnp.zeros((6, 6)), 1.0, isometric))(keys)
    draws = np.asarray(draws)
    assert (draws == np.swapaxes(draws, 1, 2)).all()
    assert symmetric_law(draws, off_diagonal)
    assert not symmetric_law(draws, np.sqrt(0.5) if off_diagonal == 1.0 else 1.0)


def test_isometric_noise_is_spherical_in_the_frobenius_norm():
    """The projection on every unit matrix has unit variance: diagonal, off-diagonal, identity."""
    keys = jax.random.split(jax.random.key(6), 20_000)
    draws = jax.vmap(lambda k: add_symmetric_gaussian(k, jnp.zeros((4, 4)), 1.0))(keys)
    pair = np.zeros((4, 4))
    pair[0, 1] = pair[1, 0] = np.sqrt(0.5)
    for direction in (np.diag([1.0, 0, 0, 0]), pair, np.eye(4) / 2):
        assert looks_normal(np.einsum("nij,ij->n", np.asarray(draws), direction), 1.0)


def test_keys_depend_on_purpose_and_step():
    root = jax.random.key(7)
    made = [
        tuple(np.asarray(jax.random.key_data(derive(root, purpose, step))))
        for purpose in ("gradient", "hessian", "gradient_and_hessian")
        for step in range(20)
    ]
    assert len(set(made)) == len(made)
    again = jax.jit(lambda step: jax.random.key_data(derive(root, "hessian", step)))(3)
    assert tuple(np.asarray(again)) == made[23]


def test_random_keys_differ_and_are_threefry():
    first, second = random_key(), random_key()
    assert not bool(first == second)
    assert as_key(first) is first


def test_c9_keys_of_late_steps_do_not_repeat():
    """Noise comes from the step's number, not from a table that a gather could run past."""
    root = jax.random.key(7)
    steps = [0, 1, 2047, 2048, 2**16, 2**31 - 1]
    made = {tuple(np.asarray(jax.random.key_data(derive(root, "gradient", s)))) for s in steps}
    assert len(made) == len(steps)


def test_c16_without_entropy_there_is_no_key(monkeypatch):
    def none(count):
        raise NotImplementedError("no source of randomness")

    monkeypatch.setattr(os, "urandom", none)
    with pytest.raises(NotImplementedError):
        random_key()


def test_a_legacy_key_is_the_same_key():
    assert bool(as_key(jax.random.PRNGKey(3)) == jax.random.key(3))


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (None, "must be a JAX random key"),
        (0, "must be a JAX random key"),
        (np.zeros(3), "must be a JAX random key"),
        (jax.random.key(0, impl="rbg"), "threefry"),
        (jax.random.key(0, impl="unsafe_rbg"), "threefry"),
        (jax.random.split(jax.random.key(0)), "one key"),
    ],
)
def test_c8_bad_keys(key, message):
    with pytest.raises(ValueError, match=message):
        as_key(key)


@pytest.mark.parametrize(
    "call",
    [
        lambda: add_gaussian(jax.random.key(0), jnp.zeros(3, jnp.int32), 1.0),
        lambda: add_symmetric_gaussian(jax.random.key(0), jnp.zeros((2, 3)), 1.0),
        lambda: add_symmetric_gaussian(jax.random.key(0), jnp.zeros(4), 1.0),
    ],
)
def test_bad_input(call):
    with pytest.raises(ValueError):
        call()
