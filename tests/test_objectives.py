"""Objectives: values, constants that really bound, regularizers, and equality when rebuilt."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.objectives import (
    L1,
    L2,
    OBJECTIVES,
    SADDLES,
    ElasticNet,
    Nonconvex,
    Objective,
    free_hessian_ratio,
)

EVERY = [name for name in OBJECTIVES if name not in SADDLES]


@pytest.mark.parametrize("name", EVERY)
def test_rebuilt_objectives_are_equal_and_hash_alike(name):
    first, second = OBJECTIVES[name](), OBJECTIVES[name]()
    assert first == second and hash(first) == hash(second)
    assert first.name == name


@pytest.mark.parametrize("name", EVERY)
def test_the_loss_is_the_function_of_the_margin(name):
    objective = OBJECTIVES[name]()
    x, w = jnp.array([0.3, -0.4]), jnp.array([2.0, 1.0])
    for y in (-1.0, 1.0):
        np.testing.assert_allclose(
            objective.loss(w, (x, jnp.array(y))), objective.margin(y * (x @ w)), rtol=1e-6
        )


@pytest.mark.parametrize("name", EVERY)
def test_a_larger_margin_is_a_smaller_loss(name):
    """The trust-region paper prints the sigmoid with the sign that rewards mistakes."""
    values = jax.vmap(OBJECTIVES[name]().margin)(jnp.linspace(-5, 5, 50))
    assert (jnp.diff(values) < 0).all()


@pytest.mark.parametrize("name", EVERY)
def test_constants_bound_the_derivatives_and_are_attained(name):
    objective = OBJECTIVES[name]()
    with jax.enable_x64(True):
        m = jnp.linspace(-40, 40, 200_001)
        derivative, bounds = objective.margin, objective.constants
        for bound in bounds:
            derivative = jax.grad(derivative)
            largest = float(jnp.abs(jax.vmap(derivative)(m)).max())
            assert largest <= bound * (1 + 1e-9)
            assert largest >= bound * (1 - 1e-6)


@pytest.mark.parametrize(("name", "ratio"), [("logistic", 0.3003), ("sigmoid-l2", 0.7072)])
def test_the_free_hessian_ratio(name, ratio):
    objective = OBJECTIVES[name]()
    found = free_hessian_ratio(objective.margin, objective.constants.lipschitz)
    assert found == pytest.approx(ratio, abs=1e-4)
    # At the ratio one record's joint norm is its gradient's; just below, it is not.
    with jax.enable_x64(True):
        m = jnp.linspace(-20, 20, 40_000)
        first = jax.vmap(jax.grad(objective.margin))(m) / objective.constants.lipschitz
        second = jax.vmap(jax.grad(jax.grad(objective.margin)))(m) / objective.constants.lipschitz
        assert float((first**2 + (second / found) ** 2).max()) <= 1 + 1e-9
        assert float((first**2 + (second / (0.99 * found)) ** 2).max()) > 1


@pytest.mark.parametrize("label", [0.0, 7.0, jnp.nan, -2.0])
def test_c33_an_impossible_label_has_no_gradient(label):
    loss = OBJECTIVES["logistic"]().loss
    gradient = jax.grad(loss)(jnp.ones(2), (jnp.array([0.6, 0.8]), jnp.array(label)))
    assert (gradient == 0).all()


@pytest.mark.parametrize("regularizer", [L2(0.3), Nonconvex(0.3)])
def test_smoothness_of_a_regularizer_is_its_largest_curvature(regularizer):
    curvature = jax.vmap(lambda w: jax.hessian(regularizer)(w[None])[0, 0])(
        jnp.linspace(-10, 10, 20_001)
    )
    assert float(jnp.abs(curvature).max()) == pytest.approx(regularizer.smoothness, rel=1e-5)


def test_the_regularizer_enters_exactly_and_over_a_pytree():
    objective = Objective(lambda w, e: 0.0, L2(2.0))
    params = {"a": jnp.array([1.0, 2.0]), "b": jnp.array(3.0)}
    zero = jax.tree.map(jnp.zeros_like, params)
    gradient = objective.regularize_gradient(zero, params)
    np.testing.assert_allclose(gradient["a"], [2.0, 4.0])
    np.testing.assert_allclose(gradient["b"], 6.0)
    np.testing.assert_allclose(
        objective.regularize_hessian(jnp.zeros((3, 3)), params), 2 * np.eye(3)
    )


@pytest.mark.parametrize("penalty", [L1(0.3), L2(0.3), ElasticNet(0.3, 0.3), Nonconvex(0.3)])
def test_the_strength_of_a_penalty_is_a_number_and_a_function_is_structure(penalty):
    objective = Objective(lambda w, e: 0.0, penalty)
    assert set(jax.tree.leaves(objective)) == {0.3}
    assert jax.tree.map(lambda leaf: leaf, objective) == objective
    other = jax.tree.map(lambda leaf: 2 * leaf, objective)
    assert jax.tree.structure(other) == jax.tree.structure(objective)
    params = jnp.array([1.0, -2.0])
    value = jax.jit(lambda o, w: o.regularizer(w))
    np.testing.assert_allclose(value(other, params), 2 * penalty(params), rtol=1e-6)
    np.testing.assert_allclose(value(objective, params), penalty(params), rtol=1e-6)
    plain = Objective(objective.loss, jnp.sum)
    assert jax.tree.leaves(plain) == []
    assert jax.tree.map(lambda leaf: leaf, plain) == plain
    assert jax.tree.structure(plain) != jax.tree.structure(Objective(objective.loss))


def test_predict():
    objective = OBJECTIVES["logistic"]()
    labels = objective.predict(jnp.array([1.0, -1.0]), jnp.array([[2.0, 1.0], [0.0, 1.0]]))
    np.testing.assert_array_equal(labels, [1.0, -1.0])
    with pytest.raises(ValueError, match="no margin"):
        Objective(lambda w, e: 0.0).predict(jnp.ones(1), jnp.ones((1, 1)))


@pytest.mark.parametrize(
    "call",
    [
        lambda: Objective("loss"),
        lambda: Objective(lambda w, e: 0.0, constants=(1.0, 0.0, 1.0)),
        lambda: L2(-1.0),
        lambda: Nonconvex(float("nan")),
    ],
)
def test_bad_input(call):
    with pytest.raises(ValueError):
        call()
