"""Declared class weights: each record's loss is multiplied, and no bound grows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.derivatives import clipped_grad, joint_clipped
from dpjax.objectives.margin import has_proven_constants

N, P = 60, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, P)).astype(np.float32)
CASES = {
    "two": (dpjax.objectives.logistic(), np.sign(RNG.normal(size=N)), (1.0, 4.0)),
    "three": (dpjax.objectives.softmax(3, 0.0), RNG.integers(0, 3, N), (2.0, 1.0, 4.0)),
}


def case(name):
    objective, y, weights = CASES[name]
    y = y.astype(np.float32)
    place = (y > 0).astype(int) if name == "two" else y.astype(int)
    params = RNG.normal(size=objective.parameters(P)).astype(np.float32)
    return objective, y, weights, np.array(weights, np.float32)[place] / max(weights), params


@pytest.mark.parametrize("name", CASES)
def test_sums_are_those_of_the_weighted_losses(name):
    objective, y, weights, each, params = case(name)
    weighted = objective.weighted(weights)
    grads = jax.vmap(jax.grad(objective.loss), (None, 0))(params, (X, y))
    exact = (each[:, None] * np.asarray(grads)).sum(axis=0)
    found = clipped_grad(weighted, clip_norm=1e3)(params, (X, y))
    assert np.allclose(found, exact, rtol=1e-4, atol=1e-4)
    both = joint_clipped(weighted, gradient_weight=1.0, hessian_weight=1.0, clip_norm=1e3)
    second = jax.vmap(jax.hessian(objective.loss), (None, 0))(params, (X, y))
    exact = (each[:, None, None] * np.asarray(second)).sum(axis=0)
    assert np.allclose(both(params, (X, y)).hessian, exact, rtol=1e-4, atol=1e-3)
    units = ((X.reshape(20, 3, P), y.reshape(20, 3)), np.ones((20, 3), bool))
    exact = (each[:, None] * np.asarray(grads)).sum(axis=0) / 3
    of_units = clipped_grad(weighted.of_units(), clip_norm=1e3)(params, units)
    assert np.allclose(of_units, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_no_gradient_is_longer_than_the_constant_and_the_heaviest_is_not_shortened(name):
    objective, y, weights, each, params = case(name)
    weighted, rows = objective.weighted(weights), X / np.linalg.norm(X, axis=1, keepdims=True)
    both = [
        np.linalg.norm(jax.vmap(jax.grad(one.loss), (None, 0))(30 * params, (rows, y)), axis=1)
        for one in (objective, weighted)
    ]
    assert np.allclose(both[1], each * both[0], rtol=1e-4)
    assert both[1].max() <= objective.constants.lipschitz * (1 + 1e-6)
    # Weights that are not divided by the largest would pass it.
    assert (max(weights) * both[1]).max() > objective.constants.lipschitz
    assert weighted.constants == objective.constants and has_proven_constants(weighted)
    assert weighted.predicts and weighted.label_kind.classes == objective.label_kind.classes
    # Scaled alike they are one objective, and compile nothing anew.
    assert weighted == objective.weighted([3 * weight for weight in weights])


@pytest.mark.parametrize(
    ("objective", "weights"),
    [
        (dpjax.objectives.logistic(), "balanced"),
        (dpjax.objectives.logistic(), (1.0,)),
        (dpjax.objectives.logistic(), (0.0, 1.0)),
        (dpjax.objectives.logistic(), (1.0, np.nan)),
        (dpjax.objectives.softmax(3), (1.0, 2.0)),
        (dpjax.objectives.least_squares(), (1.0, 2.0)),
        (dpjax.objectives.two_layer(), (1.0, 2.0)),
    ],
)
def test_weights_that_do_not_fit_are_refused(objective, weights):
    with pytest.raises(ValueError, match="class weight"):
        objective.weighted(weights)


def test_accuracies_and_probabilities_are_those_of_the_scores():
    objective, y, weights, _, params = case("two")
    rows = jnp.asarray(X)
    plain, weighted = objective, objective.weighted(weights)
    assert np.array_equal(plain.predict(params, rows), weighted.predict(params, rows))
    exact = dpjax.diagnostics.exact_accuracy
    assert exact(plain, params, rows, y) == exact(weighted, params, rows, y)
    assert dpjax.results.prediction.score_of(weighted).logistic


@pytest.mark.ci
def test_an_estimator_and_the_command_line_take_them(capsys):
    pytest.importorskip("sklearn")
    from dpjax.cli import main
    from dpjax.estimators import DPLogisticRegression

    x = RNG.uniform(size=(4_000, 1))
    y = np.where(RNG.uniform(size=4_000) < 0.3 * x[:, 0], "yes", "no")

    def share(**how):
        model = DPLogisticRegression(classes=("no", "yes"), bounds=(0, 1), random_state=0, **how)
        return (model.fit(x, y).predict(x) == "yes").mean()

    assert share() < 0.02 < 0.3 < share(class_weight={"no": 1, "yes": 6})
    for wrong in ("balanced", {"no": 1}):
        with pytest.raises(ValueError, match="class weight"):
            share(class_weight=wrong)
    words = ["run", "dp-gd", "--steps", "2", "--dry-run", "--class-weight"]
    words[-1] += "="
    assert main([*words[:-1], f"{words[-1]}-1=1,1=0.5"]) == 0
    assert "Accepted labels: -1, 1" in capsys.readouterr().out
    assert main([*words[:-1], f"{words[-1]}balanced"]) == 2
    assert "dpjax describe" in capsys.readouterr().err
