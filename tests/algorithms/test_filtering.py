"""The filter of DP-TR: it is the Kalman filter it says, and its variances are not too small."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.algorithms import filtering
from dpjax.oracles import SecondOrderAnswer

P, STEPS = 6, 12
NOISE = (0.1, 0.03)


def answers(key, moves, hessian):
    """Noisy derivatives of a quadratic function along public moves, and its exact gradients."""
    points = np.cumsum(moves, axis=0)
    exact = jnp.asarray(points @ hessian + 1.0)
    of_gradient, of_hessian = jax.random.split(key)
    noise = jax.random.normal(of_hessian, (STEPS, P, P))
    noise = (noise + jnp.swapaxes(noise, 1, 2)) / 2  # isometric, of variance 1 on the diagonal
    gradients = exact + NOISE[0] * jax.random.normal(of_gradient, (STEPS, P))
    return SecondOrderAnswer(gradients, hessian[None] + NOISE[1] * noise), exact


def along(seen, moves, claimed=NOISE):
    model = filtering.unfiltered(jax.tree.map(lambda leaf: leaf[0] * 0, seen), claimed)
    for i, move in enumerate(moves):
        answer = jax.tree.map(lambda leaf, i=i: leaf[i], seen)
        model = filtering.filtered(model, jnp.array(i), jnp.asarray(move), answer, claimed)
    return model


def problem(length):
    rng = np.random.default_rng(0)
    moves = rng.normal(size=(STEPS, P))
    moves *= length / np.linalg.norm(moves, axis=1, keepdims=True)
    root = rng.normal(size=(P, P)) / 3
    return moves.astype(np.float32), (root @ root.T).astype(np.float32)


def test_it_is_a_kalman_filter_with_an_adapted_variance():
    moves, hessian = problem(2.0)
    seen, _ = answers(jax.random.key(0), moves, hessian)
    g, B = np.float64(seen.gradient[0]), np.float64(seen.hessian[0])
    v, u = NOISE[0] ** 2, NOISE[1] ** 2
    for i in range(1, STEPS):
        s, new, matrix = moves[i], np.float64(seen.gradient[i]), np.float64(seen.hessian[i])
        predicted = g + B @ s
        known = v + u * (s @ s) / 2
        seen_square = np.mean((new - predicted) ** 2)
        wide = known + 0.5 * max(seen_square - known - NOISE[0] ** 2, 0)
        gain = max(wide / (wide + NOISE[0] ** 2), 0.1)
        g, v = predicted + gain * (new - predicted), (1 - gain) ** 2 * wide
        v += gain**2 * NOISE[0] ** 2
        square = 2 * np.sum((matrix - B) ** 2) / (P * (P + 1))
        drifted = u + 0.5 * max(square - u - NOISE[1] ** 2, 0)
        weight = max(drifted / (drifted + NOISE[1] ** 2), 0.1)
        B, u = B + weight * (matrix - B), (1 - weight) ** 2 * u + weight**2 * NOISE[1] ** 2
    model = along(seen, moves)
    np.testing.assert_allclose(model.gradient, g, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.hessian, B, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose([model.gradient_variance, model.hessian_variance], [v, u], rtol=1e-4)


@pytest.mark.parametrize("length", [0.5, 5.0])
def test_the_variances_are_not_below_the_errors(length):
    """Of 2,000 runs on public moves: means are known to 2 %, so 10 % is a hundred times too far.

    A Hessian's weight depends on its noise: of 6 parameters the variance may be 15 % too small.

    Planted: a filter that takes the noise on Hessians for a fifth of what it is.
    """
    moves, hessian = problem(length)
    keys = jax.random.split(jax.random.key(1), 2_000)

    def errors(claimed):
        def one(key):
            seen, exact = answers(key, moves, hessian)
            model = along(seen, moves, claimed)
            of_gradient = jnp.mean((model.gradient - exact[-1]) ** 2) / model.gradient_variance
            diagonal = jnp.mean(jnp.diag(model.hessian - hessian) ** 2) / model.hessian_variance
            return of_gradient, diagonal, model.gradient_variance

        return [float(jnp.mean(value)) for value in jax.jit(jax.vmap(one))(keys)]

    of_gradient, of_hessian, variance = errors(NOISE)
    assert of_gradient < 1.1 and 0.9 < of_hessian < 1.2
    assert variance < (0.4 if length < 1 else 0.95) * NOISE[0] ** 2
    of_gradient, of_hessian, _ = errors((NOISE[0], NOISE[1] / 5))
    assert of_hessian > 20


def test_an_error_of_the_prediction_is_seen_and_forgotten():
    """A gradient that jumps, as by third derivatives, is followed within a few answers."""
    moves = np.zeros((STEPS, P), np.float32)
    gradients = jnp.repeat(jnp.array([0.0, 3.0]), STEPS // 2)[:, None] * jnp.ones((1, P))
    seen = SecondOrderAnswer(gradients, jnp.zeros((STEPS, P, P)))
    np.testing.assert_allclose(along(seen, moves).gradient, 3.0, atol=NOISE[0])


def test_a_hessian_that_changed_is_followed():
    """Where its change is far above the noise an average of old ones would be a slow guide."""
    sizes = jnp.repeat(jnp.array([0.0, 3.0]), STEPS // 2)
    seen = SecondOrderAnswer(jnp.zeros((STEPS, P)), sizes[:, None, None] * jnp.ones((1, P, P)))
    model = along(seen, np.zeros((STEPS, P), np.float32))
    np.testing.assert_allclose(model.hessian, 3.0, atol=NOISE[1])


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e10])
def test_its_numbers_stay_finite(scale):
    moves, hessian = problem(0.5)
    seen, _ = answers(jax.random.key(2), moves, hessian)
    model = along(seen, moves, (scale, scale))
    assert all(np.isfinite(leaf).all() for leaf in (model.gradient, model.hessian))


def rows():
    random = np.random.default_rng(3)
    x = random.normal(size=(400, 4)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.where(x @ np.ones(4) > 0, 1.0, -1.0).astype(np.float32)
    return dpjax.Dataset(x, y, name="made up", max_norm=1.0)


@pytest.mark.parametrize("release", ["joint", "separate"])
def test_without_it_steps_read_the_last_answer(release):
    budget = dpjax.PrivacyBudget(2.0, 1e-5)

    def build(filtering):
        return dpjax.dp_trust_region(
            dpjax.objectives.logistic(),
            budget,
            data_size=400,
            dimension=4,
            steps=5,
            radius=2.0,
            filtering=filtering,
            release=release,
        )

    with_it, without = build(True), build(False)
    # Post-processing: the same releases, whatever reads them.
    assert with_it.event == without.event
    key = jax.random.key(0)
    one, other = (dpjax.solve(algorithm, rows(), key=key) for algorithm in (with_it, without))
    assert not np.array_equal(one.params, other.params)
    assert without.init(jnp.zeros(4)).model is None
    # The bound is that of the raw answer in both.
    assert one.certificate.beta == other.certificate.beta and with_it.bounds == without.bounds


def test_the_stopping_rule_counts_the_damping_that_the_step_had():
    algorithm = dpjax.dp_trust_region(
        dpjax.objectives.logistic_nonconvex(),
        dpjax.PrivacyBudget(1.0, 1e-5),
        data_size=400,
        dimension=4,
        stopping_alpha=0.1,
    )
    state = algorithm.init(jnp.zeros(4))
    quarter = state.model._replace(hessian_variance=state.model.hessian_variance / 16)
    level = float(algorithm.stop_below)
    for model, part in ((state.model, 1.0), (quarter, 0.25), (None, 1.0)):
        least = level - part * float(algorithm.damping)
        for multiplier, stops in ((least - 1e-3, True), (least + 1e-3, False)):
            at = state._replace(model=model, multiplier=jnp.array(multiplier))
            assert bool(algorithm.done(at)) == stops


def test_a_flag_that_is_none_is_refused():
    with pytest.raises(ValueError, match="filtering must be"):
        dpjax.dp_trust_region(
            dpjax.objectives.logistic(),
            dpjax.PrivacyBudget(1.0, 1e-5),
            data_size=400,
            dimension=4,
            filtering="yes",
        )
