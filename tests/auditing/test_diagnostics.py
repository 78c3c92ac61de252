"""The exact diagnostics against NumPy in float64, and what they say of themselves."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import quiet

import dpjax
from dpjax import diagnostics, objectives
from dpjax.objectives import L2, OBJECTIVES, Objective

N, P = 50, 4


def records(seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(N, P))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, np.where(random.random(N) < 0.5, 1.0, -1.0)


def sigmoid(m):
    return 1 / (1 + np.exp(-m))


# value, slope and curvature of each loss as a function of the margin, written out.
MARGINS = {
    "logistic": (
        lambda m: np.log1p(np.exp(-m)),
        lambda m: -sigmoid(-m),
        lambda m: sigmoid(m) * sigmoid(-m),
    ),
    "sigmoid": (
        lambda m: sigmoid(-m),
        lambda m: -sigmoid(m) * sigmoid(-m),
        lambda m: sigmoid(m) * sigmoid(-m) * (sigmoid(m) - sigmoid(-m)),
    ),
}
STRENGTH = 0.05
# value, slope and curvature of each regularizer in one weight.
PENALTIES = {
    "none": (lambda w: 0 * w, lambda w: 0 * w, lambda w: 0 * w),
    "l2": (
        lambda w: STRENGTH / 2 * w**2,
        lambda w: STRENGTH * w,
        lambda w: STRENGTH + 0 * w,
    ),
    "l1": (lambda w: STRENGTH * np.abs(w), lambda w: STRENGTH * np.sign(w), lambda w: 0 * w),
    "nonconvex": (
        lambda w: STRENGTH * w**2 / (1 + w**2),
        lambda w: STRENGTH * 2 * w / (1 + w**2) ** 2,
        lambda w: STRENGTH * (2 - 6 * w**2) / (1 + w**2) ** 3,
    ),
}
CASES = {
    "logistic": ("logistic", "none"),
    "logistic-l2": ("logistic", "l2"),
    "logistic-l1": ("logistic", "l1"),
    "logistic-nonconvex": ("logistic", "nonconvex"),
    "sigmoid-l2": ("sigmoid", "l2"),
}


def test_the_table_covers_every_objective():
    assert CASES.keys() == objectives.MARGINS.keys()


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("scale", [1e-6, 1.0, 6.0])
def test_exact_values_are_those_of_numpy(name, scale):
    (value, slope, curvature), (penalty, penalty_slope, penalty_curvature) = (
        MARGINS[CASES[name][0]],
        PENALTIES[CASES[name][1]],
    )
    objective = OBJECTIVES[name]() if name == "logistic" else OBJECTIVES[name](STRENGTH)
    x, y = records()
    w = scale * np.random.default_rng(1).normal(size=P)
    z = x * y[:, None]
    m = z @ w
    expected_value = value(m).mean() + penalty(w).sum()
    gradient = (slope(m)[:, None] * z).mean(0) + penalty_slope(w)
    hessian = (z * curvature(m)[:, None]).T @ z / N + np.diag(penalty_curvature(w))
    with jax.enable_x64(True):
        of = (objective, jnp.asarray(w), (jnp.asarray(x), jnp.asarray(y)))
        found = diagnostics.exact_objective(*of)
        norm = diagnostics.exact_gradient_norm(*of)
        lowest = diagnostics.exact_min_eigenvalue(*of)
    assert float(found) == pytest.approx(expected_value, rel=1e-10)
    assert float(norm) == pytest.approx(np.linalg.norm(gradient), rel=1e-9)
    assert float(lowest) == pytest.approx(np.linalg.eigvalsh(hessian)[0], rel=1e-8, abs=1e-12)
    if name != "logistic-nonconvex":
        return
    single = (objective, jnp.float32(w), (jnp.float32(x), jnp.float32(y)))
    assert float(diagnostics.exact_objective(*single)) == pytest.approx(expected_value, rel=1e-5)
    assert float(diagnostics.exact_gradient_norm(*single)) == pytest.approx(float(norm), rel=1e-4)


def test_exact_accuracy_is_that_of_numpy():
    x, y = records()
    w = np.array([1.0, -2.0, 0.5, 0.0])
    expected = np.mean(np.where(x @ w >= 0, 1.0, -1.0) == y)
    found = diagnostics.exact_accuracy(OBJECTIVES["logistic"](), *map(jnp.float32, (w, x, y)))
    assert float(found) == pytest.approx(expected, abs=1e-6)


def test_a_pytree_of_parameters_and_an_indefinite_hessian():
    """The quadratic a^2 e / 2 - 3 b^2 / 2 + a b has its matrix written out."""

    def loss(params, example):
        a, b = params["a"], params["b"]
        return example * a**2 / 2 - 3 * b**2 / 2 + a * b

    objective = Objective(loss, L2(0.5))
    examples = jnp.array([1.0, 3.0])
    params = {"a": jnp.array(2.0), "b": jnp.array(-1.0)}
    matrix = np.array([[2.5, 1.0], [1.0, -2.5]])
    vector = np.array([2.0, -1.0])
    found = diagnostics.exact_min_eigenvalue(objective, params, examples)
    assert float(found) == pytest.approx(np.linalg.eigvalsh(matrix)[0], rel=1e-5)
    norm = diagnostics.exact_gradient_norm(objective, params, examples)
    assert float(norm) == pytest.approx(np.linalg.norm(matrix @ vector), rel=1e-5)
    value = diagnostics.exact_objective(objective, params, examples)
    assert float(value) == pytest.approx(vector @ matrix @ vector / 2, rel=1e-5)


@pytest.mark.parametrize("label", [np.nan, 0.5, 7.0])
def test_records_that_training_drops_are_left_out_of_the_sum_but_counted_in_n(label):
    objective, w = OBJECTIVES["logistic"](), jnp.ones(P)
    x, y = map(np.float32, records())
    kept = slice(1, None)
    spoiled = y.copy()
    spoiled[0] = label
    found = diagnostics.exact_objective(objective, w, (x, spoiled))
    rest = diagnostics.exact_objective(objective, w, (x[kept], y[kept]))
    assert float(found) == pytest.approx(float(rest) * (N - 1) / N, rel=1e-5)
    norm = diagnostics.exact_gradient_norm(objective, w, (x, spoiled))
    rest = diagnostics.exact_gradient_norm(objective, w, (x[kept], y[kept]))
    assert float(norm) == pytest.approx(float(rest) * (N - 1) / N, rel=1e-5)
    lowest = diagnostics.exact_min_eigenvalue(objective, w, (x, spoiled))
    rest = diagnostics.exact_min_eigenvalue(objective, w, (x[kept], y[kept]))
    assert float(lowest) == pytest.approx(float(rest) * (N - 1) / N, rel=1e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_feature_that_is_not_finite_leaves_every_diagnostic_finite(value):
    objective, w = OBJECTIVES["logistic"](), jnp.ones(P)
    x, y = map(np.float32, records())
    x[0, 1] = value
    for measure in (
        diagnostics.exact_objective,
        diagnostics.exact_gradient_norm,
        diagnostics.exact_min_eigenvalue,
    ):
        assert np.isfinite(float(measure(objective, w, (x, y))))


def test_they_agree_with_what_training_sees_without_noise():
    """The noisy gradient with next to no noise is the exact gradient."""
    x, y = map(np.float32, records())
    objective = OBJECTIVES["logistic-nonconvex"](STRENGTH)
    start = jnp.full(P, 0.7)
    algorithm = quiet(
        dpjax.dp_trust_region(
            objective, dpjax.PrivacyBudget(1.0, 1e-4), data_size=N, dimension=P, steps=1
        )
    )
    solution = dpjax.solve(algorithm, (x, y), key=jax.random.key(0), params=start)
    exact = diagnostics.exact_gradient_norm(objective, start, (x, y))
    assert float(solution.history.gradient_norm[0]) == pytest.approx(float(exact), abs=1e-3)


@pytest.mark.parametrize("name", diagnostics.__all__)
def test_c45_all_of_them_say_that_they_are_not_private(name):
    assert name.startswith("exact_")
    assert "NOT PRIVATE" in getattr(diagnostics, name).__doc__
    for module in ("dpjax.diagnostics", "dpjax.diagnostics.stationarity"):
        assert importlib.import_module(module).__doc__.startswith("NOT PRIVATE")
