"""Proximal operators and projections against their definition, solved by CVXPY."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.objectives import L1, L2, Box, ElasticNet, L1Ball, L2Ball, Nonconvex, Simplex, logistic

cp = pytest.importorskip("cvxpy")

# Each regularizer, and the same as a penalty or a list of constraints of CVXPY.
REGULARIZERS = {
    "l1": (L1(0.7), lambda v: (0.7 * cp.norm1(v), [])),
    "l2": (L2(0.7), lambda v: (0.35 * cp.sum_squares(v), [])),
    "elastic-net": (
        ElasticNet(0.3, 0.5),
        lambda v: (0.3 * cp.norm1(v) + 0.25 * cp.sum_squares(v), []),
    ),
    "box": (Box(-0.5, 1.0), lambda v: (0, [v >= -0.5, v <= 1.0])),
    "l2-ball": (L2Ball(1.5), lambda v: (0, [cp.norm2(v) <= 1.5])),
    "l1-ball": (L1Ball(1.5), lambda v: (0, [cp.norm1(v) <= 1.5])),
    "simplex": (Simplex(2.0), lambda v: (0, [v >= 0, cp.sum(v) == 2.0])),
}


@pytest.mark.parametrize("name", REGULARIZERS)
def test_the_operator_is_the_nearest_point_under_the_penalty(name):
    regularizer, penalised = REGULARIZERS[name]
    for seed, step in ((0, 0.5), (1, 2.0)):
        at = np.random.default_rng(seed).normal(size=6) * 2
        v = cp.Variable(6)
        penalty, constraints = penalised(v)
        cp.Problem(cp.Minimize(cp.sum_squares(v - at) / 2 + step * penalty), constraints).solve(
            solver=cp.CLARABEL
        )
        found = jax.jit(regularizer.prox)(jnp.asarray(at, jnp.float32), step)
        np.testing.assert_allclose(found, v.value, atol=2e-5)
        assert np.isfinite(float(regularizer(found)))


@pytest.mark.parametrize("name", ["box", "l2-ball", "l1-ball", "simplex"])
def test_a_set_is_its_indicator(name):
    domain = REGULARIZERS[name][0]
    outside = jnp.array([3.0, -3.0])
    assert float(domain(outside)) == np.inf
    inside = domain.project(outside)
    assert float(domain(inside)) == 0.0
    np.testing.assert_allclose(domain.project(inside), inside, atol=1e-6)


def test_the_minkowski_norm_is_one_on_the_surface():
    for domain in (L2Ball(2.0), L1Ball(2.0)):
        surface = domain.project(jnp.array([30.0, 40.0]))
        np.testing.assert_allclose(domain.norm(surface), 1.0, rtol=1e-6)
        v = jnp.array([0.3, -0.7])
        assert float(jnp.linalg.norm(v)) <= domain.radius * float(domain.norm(v))


def test_a_regularizer_without_an_operator_is_named():
    objective = dataclasses.replace(logistic(), regularizer=Nonconvex(0.1))
    with pytest.raises(ValueError, match=r"proximal operator.*Nonconvex"):
        _ = objective.prox
    assert logistic().prox(jnp.ones(2), 0.5).tolist() == [1.0, 1.0]
