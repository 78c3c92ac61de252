"""Exact optima: proven where the objective is convex, found by descent elsewhere."""

import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import diagnostics
from dpjax.objectives import L1Ball, logistic, logistic_l1, logistic_l2, sigmoid_l2

BALL = dpjax.Objective(**{**vars(logistic()), "regularizer": L1Ball(0.5)})


def records(n=200, p=3):
    random = np.random.default_rng(0)
    x = random.normal(size=(n, p)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, np.where(x[:, 0] + 0.5 * random.normal(size=n) > 0, 1.0, -1.0).astype(np.float32)


@pytest.mark.parametrize(
    "objective",
    [logistic(), logistic_l2(1e-2), logistic_l1(1e-2), BALL],
    ids=["smooth", "l2", "l1", "ball"],
)
def test_no_point_is_below_a_certified_optimum(objective):
    found = diagnostics.exact_certified_optimum(objective, records())
    assert 0 <= found.suboptimality < 1e-8
    random = np.random.default_rng(1).normal(size=(2_000, 3))
    near = found.params + random * np.geomspace(1e-4, 3, 2_000)[:, None]
    values = diagnostics.exact_values(objective, near, records())
    assert values.min() >= found.value - found.suboptimality
    # Weak curvature: a point nearby is nearly as good, so the optimum is no accident of the draw.
    assert values.min() <= found.value + 1e-6 or objective is BALL
    at = diagnostics.exact_values(objective, found.params[None], records())[0]
    np.testing.assert_allclose(at, found.value, rtol=1e-12)


def test_a_wrong_optimum_is_not_certified():
    x, y = (leaf.astype(np.float64) for leaf in records())
    params = diagnostics.exact_certified_optimum(logistic_l2(), (x, y)).params + 0.01
    gradient = -(y / (1 + np.exp(y * (x @ params)))) @ x / len(y) + 1e-3 * params
    assert diagnostics.optimum._suboptimality(params, gradient, 0.0, 1e-3, np.log(2)) > 1e-4


def test_exact_values_are_those_of_the_other_diagnostics():
    params = np.random.default_rng(2).normal(size=(2, 3)).astype(np.float32)
    for objective in (logistic_l1(), sigmoid_l2()):
        values = diagnostics.exact_values(objective, params, records())
        norms = diagnostics.exact_gradient_norms(objective, params, records())
        for value, size, one in zip(values, norms, jnp.asarray(params), strict=True):
            expected = diagnostics.exact_objective(objective, one, records())
            np.testing.assert_allclose(value, expected, rtol=1e-6)
            expected = diagnostics.exact_gradient_norm(objective, one, records())
            np.testing.assert_allclose(size, expected, rtol=1e-5)


def test_a_descent_ends_at_a_minimum_and_never_above_its_start():
    objective, start = dpjax.objectives.logistic_nonconvex(), np.array([3.0, -2.0, 1.0])
    params, value = diagnostics.exact_descent(objective, start, records())
    assert diagnostics.exact_gradient_norms(objective, params[None], records()) < 1e-4
    assert value < diagnostics.exact_values(objective, start[None], records())
    lowest = diagnostics.exact_min_eigenvalue(
        objective, jnp.asarray(params, jnp.float32), records()
    )
    assert lowest > 0


def test_the_known_optimum_of_ijcnn1_is_found(real_data):
    data = dpjax.datasets.load("ijcnn1")
    objective = dpjax.objectives.logistic_nonconvex()
    found = diagnostics.exact_optimum(objective, data.examples, starts=1)[1]
    assert abs(found - 0.20713) < 1e-4
