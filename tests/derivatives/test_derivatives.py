"""Clipped sums of any loss: right, bounded whatever the record, and without large intermediates."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import mostly_ci

import dpjax
from dpjax.derivatives import clipped_grad, clipped_hessian, clipping, joint_clipped
from dpjax.derivatives.chunks import Chunk, compute_once, rows_per_chunk, sum_chunks
from dpjax.derivatives.integers import Summand
from dpjax.derivatives.rounding import keeps_positions, most_rows, rounding_error
from dpjax.oracles import GradientQuery, Setting

CLIP, GRADIENT_WEIGHT, HESSIAN_WEIGHT = 0.3, 0.7, 0.4
BOUND = CLIP * clipping.SLACK


def loss(params, example):
    """Not convex, not a linear model, parameters in a pytree."""
    x, y = example
    hidden = jnp.tanh(params["a"] @ x + params["b"])
    return (jnp.sum(hidden) - y) ** 2 + 0.1 * jnp.sum(params["a"] ** 3)


def make(n, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    params = {"a": rng.standard_normal((2, 3)), "b": rng.standard_normal(2)}
    batch = (rng.standard_normal((n, 3)), rng.standard_normal(n))
    return jax.tree.map(lambda leaf: leaf.astype(jnp.dtype(dtype)), (params, batch))


@jax.jit
def derivatives(params, batch):
    """Gradient and Hessian of one record after another."""
    flat, unravel = jax.flatten_util.ravel_pytree(params)

    def flat_loss(w, example):
        return loss(unravel(w), example)

    both = jax.grad(flat_loss), jax.hessian(flat_loss)
    return jax.lax.map(lambda example: [one(flat, example) for one in both], batch)


def reference(params, batch, keep=None):
    """Clipped gradient, clipped Hessian, joint pair; NumPy, one record after another."""
    gradients, hessians = (np.asarray(part, np.float64) for part in derivatives(params, batch))
    n, p = gradients.shape
    grad, hess = np.zeros(p), np.zeros((p, p))
    joint_grad, joint_hess = np.zeros(p), np.zeros((p, p))
    for i in range(n):
        if keep is not None and not keep[i]:
            continue
        g, h = gradients[i], hessians[i]
        grad += g * min(1, BOUND / np.linalg.norm(g))
        hess += h * min(1, BOUND / np.linalg.norm(h))
        norm = np.hypot(np.linalg.norm(g) / GRADIENT_WEIGHT, np.linalg.norm(h) / HESSIAN_WEIGHT)
        joint_grad += g * min(1, BOUND / norm)
        joint_hess += h * min(1, BOUND / norm)
    return grad, hess, joint_grad, joint_hess


@jax.jit
def sums(params, batch, mask=None):
    weights = {"gradient_weight": GRADIENT_WEIGHT, "hessian_weight": HESSIAN_WEIGHT}
    gradient = clipped_grad(loss, clip_norm=CLIP)(params, batch, mask)
    joint = joint_clipped(loss, **weights, clip_norm=CLIP)(params, batch, mask)
    hessian = clipped_hessian(loss, clip_norm=CLIP)(params, batch, mask)
    return jax.flatten_util.ravel_pytree(gradient)[0], hessian, joint.gradient, joint.hessian


def close(got, expected, tolerance=2e-5):
    return all(
        np.allclose(a, b, rtol=tolerance, atol=tolerance)
        for a, b in zip(got, expected, strict=True)
    )


@pytest.mark.parametrize("n, x64", [(1, False), (2, False), (37, False), (37, True)])
def test_sums_equal_one_record_after_another(n, x64):
    with jax.enable_x64(x64):
        params, batch = make(n, np.float64 if x64 else np.float32)
        mask = np.random.default_rng(1).random(n) < 0.7
        got = sums(params, batch, mask)
        assert {part.dtype for part in got} == {jnp.dtype("float64" if x64 else "float32")}
        assert close(got, reference(params, batch, mask), 1e-6 if x64 else 2e-5)
        for hessian in got[1::2]:
            assert np.array_equal(hessian, hessian.T)


@pytest.mark.parametrize("off", mostly_ci([-1, 0, 1], [1]))
def test_ragged_tails_at_the_borders_of_a_chunk(off):
    n = rows_per_chunk(10**9, 8 * 8) + off
    params, batch = make(n)
    with jax.enable_x64(True):
        exact = sums(*jax.tree.map(lambda leaf: leaf.astype(np.float64), (params, batch)))
    assert close(sums(params, batch), exact, 1e-3)


@pytest.mark.parametrize("n, rows", [(1, 1), (7, 7), (7, 3), (8, 4), (9, 4)])
def test_every_row_is_summed_once(n, rows):
    x = jnp.arange(1.0, n + 1)
    summand = Summand((), x.dtype, bound=n)
    total = sum_chunks(n, rows, lambda c: jnp.where(c.fresh, c.of(x), 0), summand)
    assert total.leading == n * (n + 1) / 2


@pytest.mark.optimised
def test_c22_chunks_are_added_exactly():
    x = jnp.float32([2.0**30, 1.0, -(2.0**30)])
    total = sum_chunks(3, 1, lambda c: c.of(x), Summand((), x.dtype, bound=2.0**30))
    assert total.leading == 1
    assert jnp.cumsum(x)[-1] == 0  # planted: one float32 sum


@pytest.mark.parametrize("closed", [False, True])
def test_c34_a_masked_row_counts_for_nothing_whatever_it_holds(closed):
    """Row 0, which padding points at, is a real record: without the mask it would count."""
    x = jnp.float32([[3.0, 4.0], [0.1, 0.2], [jnp.nan, 9.0]])
    margin = dpjax.objectives.logistic()
    query = clipped_grad(margin if closed else margin.loss, clip_norm=1.0)
    batch, mask = (x, jnp.ones(3)), jnp.array([False, True, False])
    alone = query(jnp.zeros(2), (x[1:2], jnp.ones(1)))
    assert np.allclose(query(jnp.zeros(2), batch, mask), alone, rtol=1e-6)
    assert not np.allclose(query(jnp.zeros(2), batch), alone, rtol=1e-1)


def test_c17_c26_a_wrong_clip_is_told_apart():
    params, batch = make(20)
    right = reference(params, batch)
    gradients, hessians = (np.asarray(part, float) for part in derivatives(params, batch))
    spectral = sum(h * min(1, CLIP / np.linalg.norm(h, 2)) for h in hessians)
    mean = gradients.mean(0)
    of_the_mean = 20 * mean * min(1, CLIP / np.linalg.norm(mean))
    assert not close([spectral], right[1:2], 1e-2)
    assert not close([of_the_mean], right[:1], 1e-2)
    assert close(sums(params, batch), right)


@pytest.mark.optimised
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_record_that_is_not_finite_contributes_exactly_zero(bad):
    params, batch = make(30)
    keep = np.ones(30, bool)
    keep[[0, 11, 29]] = False
    x = np.array(batch[0])
    x[~keep, 1] = bad
    dropped = sums(params, batch, keep)
    chex.assert_tree_all_finite(dropped)
    chex.assert_trees_all_equal(sums(params, (x, batch[1]), np.ones(30, bool)), dropped)


@jax.jit
def clip_each(rows, clip):
    """Each row clipped as the only record of a batch."""
    alone = jax.vmap(
        lambda row: clipped_grad(lambda w, x: w @ x, clip_norm=clip)(jnp.zeros(row.size), row[None])
    )
    return alone(rows)


@pytest.mark.optimised
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("scale", [1e-38, 1e-24, 1e-4, 1.0, 1e4, 1e19, 1e30, 1e38])
def test_c19_c21_no_record_exceeds_the_clip_norm(dtype, scale):
    rng = np.random.default_rng(2)
    for size in (1, 7, 1000):
        with np.errstate(over="ignore"):
            rows = jnp.asarray(rng.standard_normal((5, size)) * scale, dtype).astype(jnp.float32)
        finite = np.isfinite(rows).all(1)
        true = np.linalg.norm(np.where(finite[:, None], rows, 0).astype(np.float64), axis=1)
        for clip in np.float32([1e-25, 1.0, 1e3]).astype(np.float64):
            clipped = clip_each(rows, np.float32(clip))
            norms = np.linalg.norm(np.asarray(clipped, np.float64), axis=1)
            assert (norms <= clip).all()
            # Below the smallest normal number the factor or the vector is flushed to zero.
            useful = finite & (true > 1e-30) & (true < 1e37 * clip) & (true < 1e38)
            assert np.allclose(norms[useful], np.minimum(true, clip)[useful], rtol=1e-5)
            assert (norms[~finite] == 0).all()


@pytest.mark.parametrize(
    ("loss", "hessian"),
    [
        (lambda w, x: w @ x, np.zeros((3, 3))),
        (lambda w, x: 7.0, np.zeros((3, 3))),
        (lambda w, x: w @ w / 2, np.eye(3)),
        (lambda w, x: w @ w / 2 + w @ x, np.eye(3)),
    ],
    ids=["linear", "constant", "quadratic", "quadratic and linear"],
)
def test_a_hessian_that_no_record_enters(loss, hessian):
    """Such losses used to raise from inside: there was nothing to map over the records."""
    x, mask = jnp.ones((5, 3)), jnp.array([True, True, False, True, True])
    got = clipped_hessian(loss, clip_norm=10.0)(jnp.ones(3), x, mask)
    np.testing.assert_allclose(got, 4 * hessian, atol=1e-6)
    joint = joint_clipped(loss, gradient_weight=9.0, hessian_weight=9.0)(jnp.ones(3), x, mask)
    np.testing.assert_allclose(joint.hessian, 4 * hessian, atol=1e-6)
    clipped = clipped_hessian(loss, clip_norm=0.5)(jnp.ones(3), x, mask)
    assert np.linalg.norm(clipped) <= 4 * 0.5


@pytest.mark.optimised
def test_a_hessian_far_above_the_clip_norm_stays_below_it():
    total = joint_clipped(
        lambda w, x: jnp.sum((w * x) ** 2), gradient_weight=1.0, hessian_weight=1.0
    )
    for scale in (1e-8, 1.0, 1e9, 1e15):
        got = total(jnp.ones(9), jnp.full((1, 9), scale, jnp.float32))
        parts = np.concatenate([np.ravel(part).astype(np.float64) for part in got])
        assert np.linalg.norm(parts) <= 1
        assert np.linalg.norm(parts) > (0.999 if scale >= 1 else 0)


def test_half_precision_is_added_in_float32():
    params, batch = make(4, jnp.bfloat16)
    got = sums(params, batch)
    assert {part.dtype for part in got} == {jnp.dtype("float32")}


def test_numbers_may_be_tracers_and_do_not_trace_again():
    params, batch = make(5)

    @jax.jit
    @chex.assert_max_traces(n=1)
    def total(query):
        return query(params, batch)

    queries = [clipped_hessian(loss, clip_norm=c) for c in (0.1, 0.2)]
    each = [total(query) for query in queries]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *queries)
    both = jax.vmap(lambda query: query(params, batch))(stacked)
    assert np.allclose(both, jnp.stack(each), rtol=1e-6)
    inside = jax.jit(lambda c: clipped_hessian(loss, clip_norm=c)(params, batch))(0.2)
    assert np.allclose(inside, each[1], rtol=1e-6)


def test_vmap_over_params():
    params, batch = make(5)
    other = jax.tree.map(lambda leaf: leaf + 1, params)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), params, other)
    both = jax.vmap(lambda params: sums(params, batch))(stacked)
    for i, one in enumerate((params, other)):
        assert close([part[i] for part in both], sums(one, batch), 1e-5)


@pytest.mark.parametrize("relation, factor", [("zero_out", 1), ("replace_one", 2)])
def test_sensitivity_travels_with_the_function(relation, factor):
    weights = {"gradient_weight": 1.0, "hessian_weight": 2.0}
    for query in (
        clipped_grad(loss, clip_norm=0.5),
        clipped_hessian(loss, clip_norm=0.5),
        joint_clipped(loss, **weights, clip_norm=0.5),
    ):
        assert query.sensitivity(relation, rows=9) == pytest.approx(0.5 * factor, rel=3e-3)
        with pytest.raises(TypeError, match="rows"):
            query.sensitivity(relation)


@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), float("inf"), None, "one", True])
def test_c20_bad_numbers_are_named(bad):
    for factory in (clipped_grad, clipped_hessian):
        with pytest.raises(ValueError, match="clip_norm"):
            factory(loss, clip_norm=bad)
    good = {"gradient_weight": 1.0, "hessian_weight": 1.0, "clip_norm": 1.0}
    for name in good:
        with pytest.raises(ValueError, match=name):
            joint_clipped(loss, **{**good, name: bad})


@pytest.mark.parametrize(
    "batch, mask, message",
    [
        ((np.ones((3, 3)), np.ones(2)), None, "the same number of rows"),
        ((np.ones((0, 3)), np.ones(0)), None, "empty"),
        ((np.ones((3, 3)), 1.0), None, "one row per record"),
        ((np.ones((3, 3)), np.ones(3)), np.ones(2, bool), "mask"),
        ((np.ones((3, 3)), np.ones(3)), np.ones(3), "mask"),
    ],
)
def test_bad_batches_are_named(batch, mask, message):
    params, _ = make(1)
    with pytest.raises(ValueError, match=message):
        clipped_grad(loss, clip_norm=1.0)(params, batch, mask)
    with pytest.raises(ValueError, match=message):
        clipped_hessian(loss, clip_norm=1.0)(params, batch, mask)


def test_integer_params_are_named():
    with pytest.raises(ValueError, match="floating"):
        clipped_grad(lambda w, x: jnp.sum(w * x), clip_norm=1.0)(jnp.ones(2, int), jnp.ones((1, 2)))


def largest(jaxpr):
    """Size of the largest array that a program makes, inner programs included."""
    sizes = [variable.aval.size for eqn in jaxpr.eqns for variable in eqn.outvars]
    for eqn in jaxpr.eqns:
        for inner in jax.tree.leaves(
            list(eqn.params.values()), is_leaf=lambda leaf: hasattr(leaf, "jaxpr")
        ):
            if hasattr(inner, "jaxpr"):
                sizes.append(largest(inner.jaxpr))
    return max(sizes, default=0)


def test_no_array_grows_with_records_times_parameters():
    n, p = 10**6, 40
    batch = jax.ShapeDtypeStruct((n, 1), jnp.float32)
    params = jax.ShapeDtypeStruct((p,), jnp.float32)

    def broad(w, x):
        return jnp.sum(jnp.sin(w * x))

    second = clipped_hessian(broad, clip_norm=1.0)
    assert largest(jax.make_jaxpr(second)(params, batch).jaxpr) <= 2**21
    first = clipped_grad(broad, clip_norm=1.0)
    assert largest(jax.make_jaxpr(first)(params, batch).jaxpr) <= 2**20
    whole = jax.make_jaxpr(lambda w, x: jax.vmap(jax.grad(broad), (None, 0))(w, x).sum(0))
    assert largest(whole(params, batch).jaxpr) >= n * p


@pytest.mark.optimised
@pytest.mark.parametrize("n", [3, 100])
def test_what_is_clipped_is_stored_once(n):
    """Also where one chunk holds all rows, and the loop that the branch depends on is trivial."""
    query = clipped_hessian(lambda w, x: jnp.sin(w @ x), clip_norm=1.0)
    program = jax.jit(query).lower(jnp.ones(300), jnp.ones((n, 300))).compile().as_text()
    rows = rows_per_chunk(n, 300 * 300)
    stored = [line for line in program.splitlines() if " conditional(" in line]
    assert any(f"f32[{rows},300,300]" in line for line in stored)


def test_compute_once_returns_what_the_function_returns():
    chunk = Chunk(jnp.int32(0), jnp.int32(0), jnp.ones(1, bool))
    assert compute_once(chunk, lambda x: {"twice": 2 * x}, jnp.float32(3))["twice"] == 6


@pytest.mark.optimised
@pytest.mark.parametrize("relation", ["zero_out", "add_or_remove_one"])
def test_c22_rounding_stays_within_the_slack_that_is_charged(relation):
    """One record of a large sum of equal ones: what moves is C and at most the slack."""
    n, p = 30_000, 3
    x = np.full((n, p), np.float32(0.1 / np.sqrt(p)), np.float32)
    removed = x.copy()
    removed[n // 2] = 0
    if relation == "add_or_remove_one":
        removed = np.delete(x, n // 2, axis=0)
    permutation_invariant = not keeps_positions(relation)
    total = clipped_grad(
        lambda w, x: w @ x, clip_norm=0.1 * 1.001, permutation_invariant=permutation_invariant
    )
    sums = [total.wide(jnp.zeros(p), rows) for rows in (x, removed)]
    first, second = (np.sum(np.asarray(s.terms, np.float64), axis=0) for s in sums)
    slack = rounding_error(n, relation)
    moved = np.linalg.norm(x[0].astype(np.float64))
    assert abs(np.linalg.norm(first - second) - moved) <= slack * 0.1
    # Planted: one float32 sum over all rows, in order, is off by far more.
    plain = np.cumsum(x, axis=0, dtype=np.float32)[-1]
    assert np.linalg.norm(plain - first) > 10 * slack * 0.1


def test_c22_the_query_charges_the_slack():
    objective = dpjax.objectives.logistic()
    for relation, moved in (("zero_out", 1), ("replace_one", 2), ("add_or_remove_one", 1)):
        query = GradientQuery(
            setting=Setting(objective, 35_000, relation), noise_multiplier=3.0, clip_norm=0.5
        )
        charged = moved + rounding_error(most_rows(35_000, relation), relation)
        assert query.sensitivity == 0.5 * charged / 35_000
        assert query.event(1).releases[0].sensitivity == query.sensitivity
        assert 1 < charged / moved < 1.0021
