"""Derivatives in a subspace: the right ones, jointly clipped, and never p x p numbers."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

import dpjax
from dpjax.derivatives import subspace, subspace_clipped
from dpjax.oracles import SubspaceQuery

P, K = 6, 3
RANDOM = np.random.default_rng(0)
SKETCH = jnp.asarray(np.linalg.qr(RANDOM.normal(size=(P, K)))[0].T, jnp.float32)
W = jnp.asarray(RANDOM.normal(size=P), jnp.float32)
BATCH = jnp.asarray(RANDOM.normal(size=(5, P)), jnp.float32)

LOSSES = {
    "quadratic": lambda w, x: (w @ x) ** 2 / 2 + jnp.sum(w**3),
    "shared factor": lambda w, x: jnp.sum(w * w * jnp.sin(w * x)),
    "softplus": lambda w, x: jax.nn.softplus(-w @ x) + jnp.sum(jnp.tanh(w) ** 2),
    "division": lambda w, x: jnp.sum(x / (1 + w**2)) / (2 + jnp.sum(jnp.cos(w))),
    "softmax": lambda w, x: jax.nn.logsumexp(jnp.outer(x[:2], w) @ jnp.diag(w)[:, :3]),
    "piecewise": lambda w, x: jnp.max(jnp.where(x > 0, jnp.exp(w), w**2)) + jax.nn.relu(w @ x),
    "scan": lambda w, x: jax.lax.scan(lambda c, v: (jnp.tanh(c * w[0] + v), None), 1.0, x * w)[0],
    "linear": lambda w, x: w @ x,
    "constant": lambda w, x: jnp.sum(x),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_derivatives_are_those_of_the_loss_along_the_rows(name):
    loss = LOSSES[name]

    def along(z, record):
        return loss(W + z @ SKETCH, record)

    z = jnp.zeros(K)
    found = jax.jit(lambda x: subspace.derivatives(loss, W, SKETCH, x))(BATCH[0])
    wanted = jax.jit(lambda x: (jax.grad(along)(z, x), jax.hessian(along)(z, x)))(BATCH[0])
    chex.assert_trees_all_close(found, wanted, rtol=2e-5, atol=2e-5)


def test_a_convolution_with_strides_is_differentiated_twice():
    def loss(w, image):
        hidden = jnp.tanh(image * w[0])[None, :, :, None]
        kernel = w.reshape(2, 3, 1, 1)
        numbers = ("NHWC", "HWIO", "NHWC")
        out = jax.lax.conv_general_dilated(
            hidden, kernel, (2, 1), ((1, 0), (0, 2)), dimension_numbers=numbers
        )
        return jnp.sum(jnp.tanh(out))

    image = jnp.asarray(RANDOM.normal(size=(5, 4)), jnp.float32)
    _, found = jax.jit(lambda x: subspace.derivatives(loss, W, SKETCH, x))(image)
    wanted = SKETCH @ jax.jit(jax.hessian(loss))(W, image) @ SKETCH.T
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)


def vectors(total):
    return np.concatenate([np.ravel(total.gradient), np.ravel(total.hessian)]).astype(float)


def loud(w, x):
    return 1e4 * x[0] * (jnp.sum(w) + w @ w / 2)


@pytest.mark.optimised
def test_a_record_is_clipped_in_the_subspace_as_one_vector():
    """Clipped apart, gradient and Hessian of one record would have norm sqrt(2)."""
    weights = {"gradient_weight": 1.0, "hessian_weight": 1.0}
    one = subspace_clipped(loud, **weights)(W, jnp.ones((1, 1)), SKETCH)
    assert 1 - 1e-5 < np.linalg.norm(vectors(one)) <= 1
    apart = [
        subspace_clipped(loud, **(weights | huge))(W, jnp.ones((1, 1)), SKETCH)
        for huge in ({"hessian_weight": 1e9}, {"gradient_weight": 1e9})
    ]
    planted = np.concatenate([np.ravel(apart[0].gradient), np.ravel(apart[1].hessian)])
    assert np.linalg.norm(planted) > 1.4


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_masked_and_impossible_records_count_for_nothing(bad):
    total = subspace_clipped(LOSSES["quadratic"], gradient_weight=1.0, hessian_weight=1.0)
    few = vectors(total(W, BATCH[:4], SKETCH))
    spoiled = BATCH.at[4, 1].set(bad)
    np.testing.assert_allclose(vectors(total(W, spoiled, SKETCH)), few, rtol=1e-5, atol=1e-6)
    mask = jnp.arange(5) < 4
    np.testing.assert_allclose(vectors(total(W, BATCH, SKETCH, mask)), few, rtol=1e-5, atol=1e-6)
    assert not np.allclose(vectors(total(W, BATCH, SKETCH)), few, atol=1e-3)


def sizes(jaxpr):
    """Sizes of all arrays that a program names, those of its inner programs included."""
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            yield int(np.prod(getattr(variable.aval, "shape", ())))
        for inner in core.jaxprs_in_params(equation.params):
            yield from sizes(getattr(inner, "jaxpr", inner))


@functools.cache
def network():
    net = dpjax.models.CNN()
    params = jax.jit(net.init)(jax.random.key(0), jnp.zeros((28, 28)))
    return dpjax.objectives.cross_entropy(net.apply), params


def test_no_array_of_p_by_p_numbers_nor_of_p_numbers_for_each_record():
    objective, params = network()
    p, rows, k = 26_010, 64, 2
    total = subspace_clipped(objective, gradient_weight=1.0, hessian_weight=1.0)
    batch = (jnp.zeros((rows, 28, 28)), jnp.zeros(rows))
    traced = jax.make_jaxpr(lambda S: total(params, batch, S))(jnp.zeros((k, p)))
    assert max(sizes(traced.jaxpr)) < rows * p < p * p
    planted = jax.make_jaxpr(lambda w: jnp.outer(w, w))(jnp.zeros(p))
    assert max(sizes(planted.jaxpr)) == p * p


@pytest.mark.ci
def test_a_short_private_run_keeps_the_network_s_tree():
    objective, params = network()
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 26_010
    algorithm = dpjax.dp_subspace_trust_region(
        objective,
        dpjax.PrivacyBudget(2.0, 1e-3),
        data_size=24,
        dimension=26_010,
        subspace_dimension=2,
        batch_size=8,
        max_batch_size=24,
        steps=2,
        clip_norm=0.1,
        hessian_clip_norm=0.2,
        radius=1.0,
    )
    images = RANDOM.normal(size=(24, 28, 28)).astype(np.float32)
    labels = RANDOM.integers(0, 10, 24)
    solution = dpjax.solve(algorithm, (images, labels), seed=1, params=params)
    chex.assert_trees_all_equal_shapes_and_dtypes(solution.params, params)
    moved = jax.tree.map(lambda new, old: jnp.sum((new - old) ** 2), solution.params, params)
    assert 0 < sum(jax.tree.leaves(moved)) < 4.1
    assert solution.epsilon(1e-3) <= 2.0
    assert [release.sampling for release in solution.event.releases] == ["poisson"]


def build(**more):
    given = {"data_size": 100, "dimension": 8, "clip_norm": 1.0, "hessian_clip_norm": 1.0} | more
    return dpjax.dp_subspace_trust_region(
        dpjax.Objective(loud), dpjax.PrivacyBudget(1.0, 1e-5), **given
    )


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"subspace_dimension": 9}, "subspace_dimension must be at most dimension=8, got 9"),
        ({"subspace_dimension": 0}, "subspace_dimension must be at least 1"),
        ({"batch_size": 101}, "batch_size must be at most data_size=100, got 101"),
        ({"batch_size": 20, "max_batch_size": 21}, "raise max_batch_size to"),
        ({"max_batch_size": 21}, "is for sampled batches"),
        ({"radius": 0.0}, "radius must be"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"subspace_seed": -1}, "subspace_seed must be an integer"),
        ({"clip_norm": None}, "clip_norm is required"),
    ],
)
def test_bad_input_is_named(bad, message):
    with pytest.raises(ValueError, match=message):
        build(**bad)


@pytest.mark.parametrize("dimension", [8, 4, 400])
def test_directions_are_orthonormal(dimension):
    found = build(subspace_dimension=4, dimension=dimension).sketch(0)
    np.testing.assert_allclose(found @ found.T, np.eye(4), atol=1e-5)


def test_directions_are_public_and_new_at_every_step():
    algorithm = build(subspace_dimension=4)
    assert isinstance(algorithm.query, SubspaceQuery)
    first, second = algorithm.sketch(0), algorithm.sketch(1)
    assert not np.allclose(first, second, atol=0.1)
    assert not np.allclose(first, build(subspace_dimension=4, subspace_seed=1).sketch(0), atol=0.1)
    np.testing.assert_array_equal(first, build(subspace_dimension=4).sketch(0))


def test_the_regularizer_enters_exactly_whatever_the_noise():
    """Null records and hardly any noise: the step is that of the regularizer alone."""
    objective = dpjax.Objective(lambda w, x: x[0] * w @ w, dpjax.objectives.L2(2.0))
    algorithm = dpjax.dp_subspace_trust_region(
        objective,
        dpjax.PrivacyBudget(1e5, 1e-5),
        data_size=100_000,
        dimension=4,
        steps=1,
        clip_norm=1e-3,
        hessian_clip_norm=1e-3,
    )
    start = jnp.array([1.0, -2.0, 3.0, 0.5])
    solution = dpjax.solve(algorithm, jnp.zeros((100_000, 1)), seed=1, params=start)
    np.testing.assert_allclose(solution.params, np.zeros(4), atol=1e-4)


OF_CLASSES = dpjax.objectives.cross_entropy(lambda w, x: w * x)


@pytest.mark.optimised
@pytest.mark.parametrize("label", [10, -1, 2.5, np.nan])
def test_a_label_that_is_no_class_makes_a_null_record(label):
    total = subspace_clipped(OF_CLASSES, gradient_weight=1.0, hessian_weight=1.0)
    found = total(W, (jnp.ones((1, P)), jnp.array([label])), SKETCH)
    np.testing.assert_array_equal(vectors(found), 0)
    assert vectors(total(W, (jnp.ones((1, P)), jnp.array([5.0])), SKETCH)).any()
