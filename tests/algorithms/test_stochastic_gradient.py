"""DP-SGD: its steps and its mean, and a regularizer by its proximal operator."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import quiet, unit_records

import dpjax

N, P, STEPS = 64, 4, 8
PENALTY = 0.02
records = functools.partial(unit_records, N, P)


def build(objective, **more):
    more = {"data_size": N, "dimension": P, "steps": STEPS, "batch_size": N} | more
    return dpjax.dp_sgd(objective, dpjax.PrivacyBudget(1.0, 1e-4), **more)


def soft(w, scale):
    return jnp.sign(w) * jnp.maximum(jnp.abs(w) - scale, 0)


@pytest.mark.parametrize("output", ["last", "average"])
@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_without_noise_it_is_proximal_gradient_descent(output, decay):
    algorithm = build(
        dpjax.objectives.logistic_l1(PENALTY), step_size=0.7, decay=decay, output=output
    )
    found = dpjax.solve(quiet(algorithm), records(), key=jax.random.key(0)).params
    data, iterates = records(), [jnp.zeros(P)]
    gradient = jax.grad(
        lambda w: dpjax.diagnostics.exact_objective(dpjax.objectives.logistic(), w, data)
    )
    for t in range(1, STEPS + 1):
        rate = 0.7 / t**decay
        iterates.append(soft(iterates[-1] - rate * gradient(iterates[-1]), rate * PENALTY))
    expected = sum(iterates[1:]) / STEPS if output == "average" else iterates[-1]
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_a_convex_set_is_never_left():
    ball = dataclasses.replace(
        dpjax.objectives.logistic(), regularizer=dpjax.objectives.L2Ball(0.3)
    )
    loud = dpjax.solve(build(ball, step_size=50.0), records(), key=jax.random.key(1)).params
    assert np.linalg.norm(loud) == pytest.approx(0.3, rel=1e-4)


def test_a_regularizer_without_a_proximal_operator_is_handled_by_its_gradient():
    algorithm = build(dpjax.objectives.logistic_nonconvex(0.1))
    assert not algorithm.proximal and build(dpjax.objectives.logistic_l2(0.1)).proximal


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"step_size": 0.0}, "step_size must be"),
        ({"decay": -0.5}, "decay must be"),
        ({"output": "mean"}, "unknown output"),
        ({"batch_size": N + 1}, "batch_size must be at most"),
        ({"steps": 0}, "steps must be"),
    ],
)
def test_bad_arguments(bad, message):
    with pytest.raises(ValueError, match=message):
        build(dpjax.objectives.logistic(), **bad)
