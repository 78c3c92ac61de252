"""Objectives: values, constants that really bound, regularizers, and equality when rebuilt."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import objectives
from dpjax.diagnostics import exact_optimum
from dpjax.objectives import (
    L1,
    L2,
    MARGINS,
    OBJECTIVES,
    RESIDUALS,
    ElasticNet,
    ExceptIntercept,
    L2Ball,
    Nonconvex,
    Objective,
    Quartic,
    free_hessian_ratio,
    least_squares,
    logistic_l2,
    softmax,
)

EVERY = list(MARGINS)


@pytest.mark.parametrize("name", [*EVERY, *RESIDUALS])
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


@pytest.mark.parametrize(
    ("penalty", "known"),
    [
        (L2(0.3), 0.0),
        (Nonconvex(0.3), 1.40056),
        (ExceptIntercept(Nonconvex(0.3)), 1.40056),
        (ExceptIntercept(Nonconvex(0.3), outputs=3), 1.40056),
        (L1(0.3), None),
        (ElasticNet(0.3, 0.3), None),
        (ExceptIntercept(L1(0.3)), None),
        (Quartic(), None),
        (L2Ball(1.0), None),
        (lambda w: jnp.sum(w**3), None),
    ],
)
def test_hessian_lipschitz_of_the_whole_objective_takes_the_regularizer_in(penalty, known):
    objective = dataclasses.replace(objectives.logistic(), regularizer=penalty)
    of_data = objective.data_term.hessian_lipschitz
    assert of_data == objective.constants.hessian_lipschitz == pytest.approx(0.096225, abs=1e-6)
    if known is None:
        assert objective.hessian_lipschitz is None
        return
    assert objective.hessian_lipschitz == pytest.approx(of_data + known, rel=1e-5)
    # It bounds the spectral norm between random points, and is attained along a coordinate.
    random = np.random.default_rng(0)
    with jax.enable_x64(True):
        pairs = jnp.asarray(random.normal(size=(2, 2_000, 6)))
        steep = math.tan(math.pi / 10)  # where one weight's third derivative is largest
        along = jnp.zeros((2, 1, 6)).at[:, 0, 0].set(jnp.array([steep - 1e-4, steep + 1e-4]))
        first, second = jnp.concatenate([pairs, along], 1)
        hessian = jax.jit(jax.vmap(jax.hessian(penalty)))
        change = jnp.linalg.norm(hessian(first) - hessian(second), ord=2, axis=(1, 2))
        ratio = np.asarray(change / jnp.linalg.norm(first - second, axis=1))
    assert float(ratio.max()) <= known * (1 + 1e-5)
    assert float(ratio[-1]) >= known * (1 - 1e-4)


def test_hessian_lipschitz_of_a_loss_whose_hessian_jumps_is_none():
    assert objectives.huber().hessian_lipschitz is None
    assert objectives.huber(1e-2).smoothness == 1.01


@pytest.mark.parametrize("name", EVERY)
def test_constants_bound_the_derivatives_and_are_attained(name):
    objective = OBJECTIVES[name]()
    with jax.enable_x64(True):
        m = jnp.linspace(-40, 40, 200_001)
        derivative, bounds = objective.margin, objective.constants
        for bound in bounds:
            derivative = jax.grad(derivative)
            largest = float(jnp.abs(jax.jit(jax.vmap(derivative))(m)).max())
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
        slope, lipschitz = jax.grad(objective.margin), objective.constants.lipschitz
        first = jax.jit(jax.vmap(slope))(m) / lipschitz
        second = jax.jit(jax.vmap(jax.grad(slope)))(m) / lipschitz
        assert float((first**2 + (second / found) ** 2).max()) <= 1 + 1e-9
        assert float((first**2 + (second / (0.99 * found)) ** 2).max()) > 1


@pytest.mark.parametrize("label", [0.0, 7.0, jnp.nan, -2.0])
def test_c33_an_impossible_label_has_no_gradient(label):
    loss = OBJECTIVES["logistic"]().loss
    gradient = jax.grad(loss)(jnp.ones(2), (jnp.array([0.6, 0.8]), jnp.array(label)))
    assert (gradient == 0).all()


@pytest.mark.parametrize("regularizer", [L2(0.3), Nonconvex(0.3)])
def test_smoothness_of_a_regularizer_is_its_largest_curvature(regularizer):
    along = jax.jit(jax.vmap(lambda w: jax.hessian(regularizer)(w[None])[0, 0]))
    curvature = along(jnp.linspace(-10, 10, 20_001))
    assert float(jnp.abs(curvature).max()) == pytest.approx(regularizer.smoothness, rel=1e-5)


def test_the_regularizer_enters_exactly_and_over_a_pytree():
    objective = Objective(lambda w, e: 0.0, L2(2.0))
    params = {"a": jnp.array([1.0, 2.0]), "b": jnp.array(3.0)}
    zero = jax.tree.map(jnp.zeros_like, params)
    gradient = jax.jit(objective.regularize_gradient)(zero, params)
    np.testing.assert_allclose(gradient["a"], [2.0, 4.0])
    np.testing.assert_allclose(gradient["b"], 6.0)
    hessian = jax.jit(objective.regularize_hessian)(jnp.zeros((3, 3)), params)
    np.testing.assert_allclose(hessian, 2 * np.eye(3))


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


# Losses of a residual, and softmax


@pytest.mark.parametrize("name", RESIDUALS)
def test_the_derivatives_of_a_residual_are_those_of_the_loss_and_its_constants_bound_them(name):
    form, constants = RESIDUALS[name]().linear, RESIDUALS[name]().constants
    with jax.enable_x64(True):
        r = jnp.linspace(-3, 3, 60_000)
        value, slope, curve = jax.jit(form.of_residual)(r)
        of_one = jax.grad(lambda s: form.value(s, 0.0))
        np.testing.assert_allclose(jax.jit(jax.vmap(of_one))(r), slope, atol=1e-12)
        np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(of_one)))(r), curve, atol=1e-9)
        assert (value >= 0).all() and form.value(0.5, 0.5) == 0
        assert form.at_zero == pytest.approx(float(form.value(0.0, 1.0)))
        assert float(jnp.abs(curve).max()) <= 1 + 1e-12
        if constants is None:
            return
        assert float(jnp.abs(slope).max()) == pytest.approx(constants.lipschitz, rel=1e-6)
        assert constants.smoothness == 1
        if np.isfinite(constants.hessian_lipschitz):
            steepest = float(jnp.abs(jnp.diff(curve) / jnp.diff(r)).max())
            assert steepest == pytest.approx(constants.hessian_lipschitz, rel=1e-3)
        of_gradient, of_hessian = form.joint_weights(constants.lipschitz)
        joint = (slope / of_gradient) ** 2 + (curve / of_hessian) ** 2
        assert 0.98 < float(joint.max()) / constants.lipschitz**2 <= 1


@pytest.mark.parametrize("classes", [3, 7])
def test_the_derivatives_of_softmax_are_those_of_the_loss_and_its_constants_bound_them(classes):
    objective = objectives.softmax(classes)
    form, (lipschitz, smoothness, third) = objective.linear, objective.constants
    random = np.random.default_rng(0)
    corners = np.zeros((3, classes))
    corners[0, 1], corners[1, 1:3] = 30, 30  # one wrong class for certain, or two alike
    with jax.enable_x64(True):
        scores = jnp.asarray(np.concatenate([corners, 5 * random.normal(size=(3_000, classes))]))
        derivatives = jax.jit(jax.vmap(form.derivatives, in_axes=(0, None)))
        slope, curve = map(np.asarray, derivatives(scores, 0.0))
        plain = jax.grad(lambda s: form.value(s, 0.0))
        np.testing.assert_allclose(jax.jit(jax.vmap(plain))(scores), slope, atol=1e-12)
        twice = jax.jit(jax.vmap(jax.jacfwd(plain)))(scores[:9])
        np.testing.assert_allclose(twice, curve[:9], atol=1e-12)
        norms, sizes = np.linalg.norm(slope, axis=1), np.linalg.norm(curve, axis=(1, 2))
        assert float(norms.max()) == pytest.approx(lipschitz, rel=1e-6)
        assert float(sizes.max()) == pytest.approx(smoothness, rel=1e-6)
        of_gradient, of_hessian = form.joint_weights(lipschitz)
        joint = (norms / of_gradient) ** 2 + (sizes / of_hessian) ** 2
        assert 0.999 < float(joint.max()) / lipschitz**2 <= 1
        # Along the direction of two classes, at the points where a coin's third moment is largest.
        along = jnp.zeros(classes).at[0].set(1.0).at[1].set(-1.0) / np.sqrt(2)

        def on_line(t):
            return form.value(t * along - 1e3 * (jnp.arange(classes) > 1), 0.0)

        points = jnp.linspace(-4, 4, 4_001)
        moments = jax.jit(jax.vmap(jax.grad(jax.grad(jax.grad(on_line)))))(points)
        assert float(jnp.abs(moments).max()) == pytest.approx(third, rel=1e-4)


def test_predictions_of_classes_and_numbers():
    softmax, x = objectives.softmax(3), jnp.eye(2)
    params = jnp.array([0.0, 0.0, 1.0, 0.0, 0.0, 2.0])
    np.testing.assert_array_equal(softmax.predict(params, x), [1.0, 2.0])
    assert softmax.predicts and not softmax.predicts_numbers and softmax.labels == "0, 1, 2"
    numbers = objectives.least_squares()
    np.testing.assert_array_equal(numbers.predict(jnp.array([0.5, -0.25]), x), [0.5, -0.25])
    assert numbers.predicts_numbers and not numbers.predicts
    assert numbers.labels == "numbers from -1 to 1"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: objectives.softmax(2), "at least 3, got 2: for two take logistic_l2"),
        (lambda: objectives.huber(threshold=0.0), "threshold"),
        (lambda: objectives.tukey(scale=-1.0), "scale"),
        (lambda: objectives.least_squares(-1.0), "strength"),
    ],
)
def test_bad_losses_are_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("penalty", [L1(0.3), L2(0.3), ElasticNet(0.3, 0.3)])
@pytest.mark.parametrize("outputs", [1, 3])
def test_a_penalty_without_the_intercept_has_its_own_proximal_operator(penalty, outputs):
    free, params = ExceptIntercept(penalty, outputs), jnp.arange(1.0, 13.0) / 4 - 1
    moved, rng = free.prox(params, 2.0), np.random.default_rng(0)

    def value(point):
        return float(jnp.sum((point - params) ** 2) / 2 + 2.0 * free(point))

    # It minimises what defines it.
    others = [moved + step for step in rng.normal(size=(50, 12)) * 1e-2]
    assert min(map(value, others)) > value(moved) - 1e-6
    intercepts = moved.reshape(outputs, -1)[:, -1] - params.reshape(outputs, -1)[:, -1]
    # All of a class's intercept stays but what is common to all classes.
    assert (intercepts == 0).all() if outputs == 1 else np.ptp(intercepts) < 1e-6
    # Planted: the penalty on all weights moves the intercept.
    assert penalty.prox(params, 2.0)[-1] != params[-1]


@pytest.mark.parametrize(
    ("objective", "y"),
    [
        (logistic_l2(1.0), np.repeat([1.0, -1.0], [90, 10])),
        (softmax(3, 1.0), np.repeat([0.0, 1.0, 2.0], [80, 15, 5])),
        (least_squares(1.0), np.repeat([0.9, 0.5], [50, 50])),
    ],
)
def test_an_intercept_without_penalty_is_not_drawn_to_0(objective, y):
    x = np.stack([np.random.default_rng(0).normal(size=100) * 1e-3, np.ones(100)], 1)
    free = objective.free_intercept()
    assert free == free.free_intercept() and hash(free.data_term) == hash(objective.data_term)
    params, _ = exact_optimum(free, (x.astype(np.float32), y.astype(np.float32)))
    intercepts = np.asarray(params, np.float64).reshape(-1, 2)[:, 1]
    wanted = {"logistic-l2": [np.log(9)], "softmax-3": np.log([80, 15, 5])}
    wanted = np.array(wanted.get(objective.name, [0.7]))
    # The mean over several classes is at 0.
    wanted = wanted - (len(wanted) > 1) * wanted.mean()
    np.testing.assert_allclose(intercepts, wanted, atol=1e-3)
    penalised, _ = exact_optimum(objective, (x.astype(np.float32), y.astype(np.float32)))
    assert abs(np.asarray(penalised).reshape(-1, 2)[0, 1] - intercepts[0]) > 0.1
