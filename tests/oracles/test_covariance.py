"""The covariance of clipped gradients, the histogram of their norms, and a step that is fitted."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import auditing, objectives
from dpjax.auditing import canaries, games
from dpjax.objectives import Objective
from dpjax.oracles import CovarianceQuery, FittedQuery, NormsQuery, Setting, bind

N, P, CLIP = 300, 4, 0.3
W = jnp.asarray(np.random.default_rng(3).normal(size=12), jnp.float32)
LOSSES = {
    "logistic": objectives.logistic(),
    "squares": objectives.least_squares(0.0),
    "classes": objectives.softmax(3, 0.0),
    "general": Objective(objectives.logistic().loss.__call__, name="general"),
}


def examples(name, units=False):
    rng = np.random.default_rng(0)
    shape = (N, 3) if units else (N,)
    x = rng.normal(size=(*shape, P)).astype(np.float32) / 2
    y = np.sign(rng.normal(size=shape)).astype(np.float32)
    y = rng.integers(0, 3, shape).astype(np.float32) if name == "classes" else y
    x[5], y[7] = np.nan, 9.0
    return ((x, y), rng.random(shape) < 0.7) if units else (x, y)


def gradients(objective, w, data):
    found = jax.vmap(jax.grad(objective.loss), in_axes=(None, 0))(w, data)
    return np.nan_to_num(np.float64(found)) * np.isfinite(found).all(axis=1, keepdims=True)


def of(name, units=False):
    objective = LOSSES[name].of_units() if units else LOSSES[name]
    size = P * (3 if name == "classes" else 1)
    setting = Setting(objective, N, "zero_out", dimension=size)
    data = jax.tree.map(jnp.asarray, examples(name, units))
    return setting, data, W[:size], gradients(objective, W[:size], data)


CASES = [(name, units) for name in LOSSES for units in (False, True) if name != "general" or units]
each = pytest.mark.parametrize("name, units", [*CASES, ("general", False)])


@each
@pytest.mark.parametrize("fitted", [1.0, 0.5])
def test_the_sum_is_that_of_clipped_outer_products(name, units, fitted):
    setting, data, w, g = of(name, units)
    query = CovarianceQuery(setting=setting, noise_multiplier=1.0, clip_norm=CLIP)
    (total,) = query.exact(bind(query, data), w, fitted=fitted)
    norm = np.linalg.norm(g, axis=1, keepdims=True)
    clipped = g * np.minimum(1, fitted * CLIP / np.maximum(norm, 1e-30))
    assert (norm > fitted * CLIP).any()
    np.testing.assert_allclose(total.leading, clipped.T @ clipped, rtol=2e-4, atol=2e-4)
    assert query.bound(fitted=fitted) == pytest.approx((fitted * CLIP) ** 2)
    assert np.array_equal(total.leading, total.leading.T)


@pytest.mark.parametrize("name", ["logistic", "squares", "classes"])
def test_units_that_are_drawn_have_the_sum_of_units_that_are_prepared(name):
    setting, data, w, _ = of(name, units=True)
    query = CovarianceQuery(setting=setting, noise_multiplier=1.0, clip_norm=CLIP)
    (drawn,), (prepared,) = (query.exact(records, w) for records in (data, bind(query, data)))
    # It was the sum of Hessians.
    np.testing.assert_allclose(drawn.leading, prepared.leading, rtol=2e-4, atol=2e-4)


@each
def test_each_norm_is_counted_once_in_its_bin(name, units):
    setting, data, w, g = of(name, units)
    query = NormsQuery(setting=setting, noise_multiplier=1.0, clip_norm=CLIP)
    (counts,) = query.exact(bind(query, data), w)
    edges = CLIP * np.asarray(query.edges)
    norm = np.linalg.norm(g, axis=1)
    norm = np.minimum(norm[norm > 0], edges[0])
    expected = np.histogram(norm, [0, *edges[:0:-1], edges[0]])[0][::-1]
    assert np.asarray(counts.leading).tolist() == expected.tolist()
    assert query.exceeded(counts.leading / N, 2.0) == query.edges[-1]
    assert query.exceeded(counts.leading / N, 0.0) == 1.0


def test_no_record_moves_either_by_more_than_its_bound():
    setting, (x, y), w, _ = of("squares")
    x = x.at[0].set(1e6)
    for kind in (CovarianceQuery, NormsQuery):
        query = kind(setting=setting, noise_multiplier=1.0, clip_norm=CLIP)
        (one,), (other,) = (query.exact(bind(query, (a, y)), w) for a in (x, x.at[0].set(jnp.nan)))
        moved = np.linalg.norm(np.float64(one.leading) - np.float64(other.leading))
        assert 0.99 * query.bound() <= moved <= 1.0001 * query.bound()


def test_a_fitted_step_has_less_noise_on_the_gradient_alone():
    setting, data, w, _ = of("squares")
    weights = {"gradient_weight": 1.5, "hessian_weight": 1.2}
    query = FittedQuery(setting=setting, noise_multiplier=2.0, **weights)
    whole, half = query.stddevs(w), query.stddevs(w, fitted=0.5)
    assert half[0] == pytest.approx(0.5 * whole[0]) and half[1] == pytest.approx(whole[1])
    joint = dpjax.oracles.JointQuery(setting=setting, noise_multiplier=2.0, **weights)
    ours, theirs = (q.exact(bind(q, data), w) for q in (query, joint))
    assert np.array_equal(ours[1].leading, theirs[1].leading)


class Unsquared(CovarianceQuery):
    """A planted bug: noise for a bound of C / 4 on a contribution of C^2, at C = 1."""

    def stddevs(self, params, **public):
        return tuple(stddev / 4 for stddev in super().stddevs(params, **public))


@jax.custom_batching.custom_vmap
def as_the_others(x):
    return x


@as_the_others.def_vmap
def _(size, batched, x):
    return x * jnp.abs(x).max(), True


@pytest.mark.parametrize("strange", [np.nan, 1e20])
def test_a_record_does_not_move_the_norms_of_others_where_vmap_mixes_them(strange):
    objective = Objective(lambda w, record: as_the_others(record[0]) @ w, name="mixed")
    setting = Setting(objective, 8, "zero_out", dimension=P)
    query = NormsQuery(setting=setting, noise_multiplier=1.0, clip_norm=1.0)
    x = jnp.full((8, P), 0.3)
    (plain,), (moved,) = (
        query.exact(bind(query, (rows, x[:, 0])), jnp.ones(P)) for rows in (x, x.at[7].set(strange))
    )
    assert np.abs(plain.leading - moved.leading).max() == 1
    assert plain.leading.sum() == 8


class Halved(NormsQuery):
    """A planted bug: half of the noise that is booked."""

    def stddevs(self, params, **public):
        return tuple(stddev / 2 for stddev in super().stddevs(params, **public))


@pytest.mark.parametrize(
    "kind, refuted",
    [(CovarianceQuery, False), (Unsquared, True), (NormsQuery, False), (Halved, True)],
)
def test_an_audit_tells_a_planted_bug(kind, refuted):
    setting = Setting(canaries.LOSSES["bowl"], 2, "zero_out", dimension=3)
    query = kind(setting=setting, noise_multiplier=1.2, clip_norm=1.0)
    game = games.single_answer(query, canaries.records(), 3)
    key = jax.random.key(5)
    result = auditing.attack(game, name="planted", key=key, gates=(40_000, 0.7))
    assert result.refuted == refuted
    assert refuted or result.passed


def test_the_event_is_that_of_gaussians_whatever_is_fitted():
    setting = of("squares")[0]
    query = CovarianceQuery(setting=setting, noise_multiplier=2.0, clip_norm=CLIP)
    (release,) = query.event(1).releases
    assert release.noise_multiplier == 2.0
    assert release.sensitivity == pytest.approx(CLIP**2 / N, rel=1e-2)
    replaced = dataclasses.replace(setting, relation="replace_one")
    twice = CovarianceQuery(setting=replaced, noise_multiplier=2.0, clip_norm=CLIP)
    assert twice.event(1).releases[0].sensitivity == pytest.approx(2 * CLIP**2 / N, rel=1e-2)
