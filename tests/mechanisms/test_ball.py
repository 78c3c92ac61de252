"""Noise in a ball: its law, its delta in closed form, what an event of it may say, and what not."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from factories import make, mostly_ci
from scipy import stats

import dpjax
from dpjax import transforms
from dpjax.accounting import (
    BallRelease,
    Event,
    PoissonBallRelease,
    PoissonRelease,
    PrivacyBudget,
    Release,
    ball_composition,
    ball_delta,
    ball_radius,
    ball_share,
    compose,
    epsilon,
    renyi,
)
from dpjax.accounting.filters import Books
from dpjax.mechanisms import add_ball
from dpjax.mechanisms.ball import GRID_BITS

# Each statistical check fails by chance with this probability at most.
LEVEL = 1e-6
MANY = 20_000


def ball(multiplier=1e3, count=1, dimension=3, **more):
    """An event of ball noise alone."""
    kind = PoissonBallRelease if more else BallRelease
    release = kind("update", count, multiplier, dimension=dimension, **more)
    return Event((release,), "zero_out")


# The closed forms, against the numbers and the identities of the derivation.


@pytest.mark.parametrize(
    ("dimension", "distance", "delta"),
    [(2, 0.5, 0.31496), (10, 0.5, 0.589928), (100, 0.5, 0.98913), (22, 0.1, 0.188)],
)
def test_delta_has_the_known_numbers(dimension, distance, delta):
    digits = len(str(delta)) - 2
    assert ball_delta(distance, 1.0, dimension) == pytest.approx(delta, abs=0.51 * 10**-digits)


@pytest.mark.parametrize("x", [1e-9, 0.01, 0.3, 0.9, 0.999])
def test_delta_in_one_and_three_dimensions_is_a_polynomial(x):
    assert ball_delta(2 * x, 1.0, 1) == pytest.approx(x, rel=1e-11)
    assert ball_delta(2 * x, 1.0, 3) == pytest.approx((3 * x - x**3) / 2, rel=1e-11)


def test_delta_nears_1_in_many_dimensions():
    found = [ball_delta(0.1, 1.0, d) for d in (10, 100, 1_000, 10_000)]
    assert found == pytest.approx([0.129, 0.384, 0.886, 0.9999994], abs=6e-4)


@pytest.mark.parametrize(
    ("dimension", "numbers"),
    [
        (22, (189.3, 1892.6, 1.893e5)),
        (54, (294.5, 2945, 2.945e5)),
        (1000, (1261.8, 1.262e4, 1.262e6)),
    ],
)
def test_the_radius_has_the_known_numbers(dimension, numbers):
    for delta, known in zip((1e-2, 1e-3, 1e-5), numbers, strict=True):
        assert ball_radius(1.0, delta, dimension) == pytest.approx(known, rel=4e-4)


@pytest.mark.parametrize("dimension", [1, 2, 22, 1_000, 100_000])
@pytest.mark.parametrize("delta", [1e-20, 1e-12, 1e-6, 0.01, 0.5, 0.999])
def test_the_radius_is_rounded_to_the_safe_side_and_wastes_nothing(dimension, delta):
    found = ball_delta(0.7, ball_radius(0.7, delta, dimension), dimension)
    assert (1 - 1e-9) * delta < found <= delta


@pytest.mark.parametrize(("steps", "known"), [(1_000, 5.3e-3), (35_000, 0.171), (350_000, 0.847)])
def test_the_papers_setting_composed(steps, known):
    each = ball_delta(0.1, 1.0, 22)
    assert ball_composition(each, steps, 1 / 35_000) == pytest.approx(known, rel=0.01)


@pytest.mark.parametrize("total", [1e-12, 1e-6, 0.3])
@pytest.mark.parametrize("steps", [1, 1_000, 10**7])
def test_a_share_is_the_inverse_of_the_composition(total, steps):
    share = ball_share(total, steps, 0.9)
    assert ball_composition(share, steps, 0.9) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ball_delta(1.0, 0.5, 3), "with certainty"),
        (lambda: ball_delta(1.0, 0.5, 0), "dimension"),
        (lambda: ball_delta(0.0, 0.5, 3), "distance"),
        (lambda: ball_radius(1.0, 1.0, 3), "delta"),
        (lambda: ball_radius(1.0, 0.1, 2.5), "dimension"),
        (lambda: ball_share(0.5, 2, 0.1), "without any noise"),
        (lambda: ball(0.2), "with certainty"),
        (lambda: ball(dimension=None), "dimension"),
        (lambda: renyi(ball(), 2.0), "no finite Renyi divergence"),
        (lambda: epsilon(ball(), 0.1, "zero_out", "rdp"), "no finite Renyi divergence"),
        (lambda: ball().gaussian_mu, "ball noise"),
        (lambda: Books(PrivacyBudget(1.0, 1e-5), None, True).limits(ball()), "without a ledger"),
    ],
)
def test_what_has_no_meaning_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# Events.


def test_epsilon_is_zero_from_the_delta_of_the_noise_on_and_infinite_below():
    event = ball(1e4, count=50)
    delta = ball_composition(event.releases[0].total_variation, 50)
    assert epsilon(event, delta, "zero_out") == 0
    assert epsilon(event, delta * (1 - 1e-9), "zero_out") == np.inf


def test_overflowing_batches_are_charged_twice_at_epsilon_zero():
    drawn = {"sampling_probability": 0.1, "max_batch_size": 9, "data_size": 20}
    plain, charged = (ball(1e4, 50, failure_probability=p, **drawn) for p in (0.0, 1e-9))
    delta = ball_composition(plain.releases[0].total_variation, 50)
    assert plain.releases[0].total_variation == pytest.approx(
        0.1 * ball(1e4).releases[0].total_variation
    )
    assert epsilon(plain, delta, "zero_out") == 0
    assert epsilon(charged, delta + 0.99e-7, "zero_out") == np.inf
    assert epsilon(charged, delta + 1.01e-7, "zero_out") == 0


def test_beside_gaussians_the_delta_is_taken_off_theirs():
    gaussian = Event((Release("gradient", 3, noise_multiplier=2.0),), "zero_out")
    event = compose([gaussian, ball(1e6)])
    own = event.releases[1].total_variation
    found = epsilon(event, 1e-5, "zero_out")
    expected = epsilon(gaussian, 1e-5 - own, "zero_out")
    assert expected <= found < expected + 1e-2  # a grid takes the place of the closed form
    assert expected > epsilon(gaussian, 1e-5, "zero_out") + 1e-3
    assert epsilon(event, own, "zero_out") == np.inf
    sampled = PoissonRelease(
        "batch", 3, 2.0, sampling_probability=0.1, max_batch_size=9, data_size=20
    )
    with_batches = compose([Event((sampled,), "zero_out"), ball(1e6)])
    less = epsilon(Event((sampled,), "zero_out"), 1e-5 - own, "zero_out")
    assert epsilon(with_batches, 1e-5, "zero_out") == pytest.approx(less, abs=1e-9)


def test_an_event_goes_to_json_and_has_no_foreign_form():
    (release,) = ball().releases
    written = json.loads(json.dumps(release.to_json()))
    assert written["mechanism"] == "ball" and written["radius"] == release.radius
    assert Release("plain", 1, 1.0).to_json()["radius"] is None
    assert "Unsupported" in repr(ball().dp_event)


# The noise.


def flat(tree):
    return np.concatenate(
        [np.asarray(leaf, np.float64).reshape(len(leaf), -1) for leaf in jax.tree.leaves(tree)],
        axis=1,
    )


def drawn(dimension, radius=2.0, dtype=jnp.float32, more=0):
    """Draws for a tree of leaves of both shapes, flattened: (MANY, dimension + more)."""
    tree = {"a": jnp.zeros(dimension, dtype), "b": jnp.zeros((more, 1), dtype)}
    return flat(
        jax.jit(jax.vmap(lambda key: add_ball(key, tree, radius)))(
            jax.random.split(jax.random.key(dimension + more), MANY)
        )
    )


def is_uniform(draws, radius):
    """Whether KS tests at LEVEL accept the radial law and that of each of three coordinates."""
    d = draws.shape[1]
    shares = (np.linalg.norm(draws, axis=1) / radius) ** d
    accepted = stats.kstest(shares, "uniform").pvalue > LEVEL
    law = stats.beta(0.5, (d + 1) / 2).cdf
    for column in draws.T[[0, d // 2, d - 1]]:
        accepted &= stats.kstest((column / radius) ** 2, law).pvalue > LEVEL
        signs = stats.binomtest(int(np.sum(column > 0)), len(column)).pvalue
        accepted &= signs > LEVEL
    return accepted


@pytest.mark.parametrize("dimension", mostly_ci([1, 2, 10, 100], [2, 10]))
def test_the_law_of_the_noise(dimension):
    draws = drawn(dimension)
    assert is_uniform(draws, 2.0)
    # Planted: a radius 2 % off in one dimension is 9 standard errors away, more in others.
    assert not is_uniform(0.98 * draws, 2.0)
    if dimension > 1:
        sphere = draws / np.linalg.norm(draws, axis=1, keepdims=True)
        assert not is_uniform(2.0 * sphere, 2.0)


def test_leaves_share_one_ball():
    draws = drawn(2, more=3)
    assert is_uniform(draws, 2.0)
    # Planted: a ball of its own for each leaf.
    apart = np.concatenate([drawn(2), drawn(3)], axis=1)
    assert not is_uniform(apart, 2.0)


@pytest.mark.optimised
@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.float32])
def test_noise_is_drawn_wide_and_rounded_to_one_grid(x64, dtype):
    with jax.enable_x64(x64):
        tree = jnp.full(500, 0.3, dtype)
        noisy = add_ball(jax.random.key(0), tree, 1.0)
    assert noisy.dtype == dtype
    if dtype == jnp.float32:
        cell = 2.0 ** (np.floor(np.log2(1 / np.sqrt(502))) - GRID_BITS)
        steps = np.asarray(noisy, np.float64) / cell
        np.testing.assert_array_equal(steps, np.round(steps))
        assert len(np.unique(noisy)) > 400


def test_bad_trees_and_keys():
    for tree in (jnp.zeros(3, jnp.int32), {}, jnp.zeros(0)):
        with pytest.raises(ValueError, match="noise"):
            add_ball(jax.random.key(0), tree, 1.0)
    with pytest.raises(ValueError, match="threefry"):
        add_ball(jax.random.key(0, impl="rbg"), jnp.zeros(3), 1.0)


# The algorithm.


@pytest.mark.parametrize("relation", dpjax.accounting.RELATIONS)
def test_a_given_radius_is_held_against_the_budget(relation):
    """The paper's distance is that of two gradients: 2 C where a record is replaced."""
    more = {"data_size": 100, "dimension": 4, "steps": 5, "batch_size": 10}
    calibrated = make("prgd", PrivacyBudget(1.0, 1e-3, relation), **more)
    radius = float(calibrated.query.radius)
    (release,) = calibrated.event.releases
    moved = dpjax.accounting.records_moved(relation)
    assert release.sensitivity == pytest.approx(moved / 10, rel=5e-3)
    same = make("prgd", PrivacyBudget(1.0, 1e-3, relation), **more, radius=1.0001 * radius)
    assert float(same.query.radius) == pytest.approx(1.0001 * radius, rel=1e-6)
    with pytest.raises(ValueError, match="raise the radius"):
        make("prgd", PrivacyBudget(1.0, 1e-3, relation), **more, radius=0.9999 * radius)


@pytest.mark.parametrize("steps", [1, 50])
def test_one_index_a_step_has_the_papers_delta(steps):
    """Theorem 1, composed: each record is drawn with probability 1/n, and moves 2 C."""
    more = {"data_size": 1_000, "dimension": 4, "steps": steps, "batch_size": 1, "radius": 20.0}
    budget = PrivacyBudget(1.0, 0.02, "replace_one")
    index = {"sampling": "without_replacement", "acknowledge_weak_delta": True}
    (release,) = make("prgd", budget, **more, **index).event.releases
    one = dpjax.accounting.ball_delta(2.0, 20.0, 4)
    assert (release.sampling, release.max_batch_size) == ("without_replacement", 1)
    assert release.certain_delta() == pytest.approx(1 - (1 - one / 1_000) ** steps, rel=2e-3)
    with pytest.raises(ValueError, match="relation='replace_one' only"):
        make("prgd", PrivacyBudget(1.0, 0.02), **more, **index)


def test_a_delta_that_no_noise_meets_is_refused():
    with pytest.raises(ValueError, match="delta=1e-40 is too small for any noise here; raise it"):
        make("prgd", PrivacyBudget(1.0, 1e-40), data_size=100, dimension=4, steps=5)


def test_a_weak_delta_needs_to_be_acknowledged_and_its_meaning_is_printed():
    more = {"data_size": 1000, "dimension": 4, "steps": 500}
    budget = PrivacyBudget(1.0, 0.1)
    with pytest.raises(ValueError, match="publishes one random record in full"):
        make("prgd", budget, **more)
    algorithm = make("prgd", budget, **more, acknowledge_weak_delta=True)
    text = dpjax.results.guarantee.statement(algorithm, "row")
    assert "is (0, 0.1)-differentially private" in text
    assert "publishing 100 random records in full" in text
    assert "delta is the same at every epsilon" in text
    usual = dpjax.results.guarantee.statement(make("prgd", PrivacyBudget(1.0, 1e-4), **more), "row")
    assert "one random record in full with probability 0.1" in " ".join(usual.split())


def test_the_number_of_parameters_must_be_the_declared_one():
    objective = dpjax.Objective(lambda w, e: jnp.sum(w**2) * e)
    algorithm = make(
        "prgd", PrivacyBudget(1.0, 1e-3), objective, data_size=8, dimension=3, clip_norm=1.0
    )
    with pytest.raises(ValueError, match="4 numbers"):
        dpjax.solve(algorithm, jnp.ones(8), key=jax.random.key(0), params=jnp.zeros(4))
    with pytest.raises(ValueError, match="4 parameters"):  # the query itself
        algorithm.query.answer(jax.random.key(0), jnp.ones(8), jnp.zeros(4))


def test_a_ledger_refuses_the_run_before_anything_is_asked(tmp_path):
    algorithm = make("prgd", PrivacyBudget(1.0, 1e-3), data_size=8, dimension=2)
    x = np.full((8, 2), 0.5, np.float32)
    path = tmp_path / "ledger"
    dpjax.Ledger.create(path, PrivacyBudget(1.0, 1e-2)).close()
    with pytest.raises(ValueError, match="without a ledger"):
        dpjax.run(
            algorithm, (x, np.ones(8)), key=jax.random.key(0), ledger=path, label="x",
            progress=False,
        )  # fmt: skip
    assert dpjax.Ledger.read(path).entries == ()


# The optax face.


def test_noise_in_a_chain_is_fresh_every_step_and_the_same_for_one_key():
    key = jax.random.key(3)
    optimizer = optax.chain(transforms.add_ball_noise(2.0, key), optax.scale(-1.0))
    update = jax.jit(optimizer.update)

    def updates(steps):
        state, found = optimizer.init(jnp.zeros(4)), []
        for _ in range(steps):
            one, state = update(jnp.zeros(4), state)
            found.append(one)
        return np.array(found), state

    found, state = updates(300)
    assert (np.linalg.norm(found, axis=1) <= 2.001).all()
    assert len(np.unique(found, axis=0)) == len(found)
    assert int(state[0].count) == 300
    np.testing.assert_array_equal(found, updates(300)[0])
    # (|z| / R)^d is uniform over the steps; a radius off by 10 % would be found.
    shares = (np.linalg.norm(found, axis=1) / 2) ** 4
    assert stats.kstest(shares, "uniform").pvalue > LEVEL
    assert stats.kstest(0.9**4 * shares, "uniform").pvalue < LEVEL


def test_the_event_of_a_transformation_is_that_of_the_algorithm():
    algorithm = make("prgd", PrivacyBudget(1.0, 1e-3), data_size=100, dimension=4, batch_size=10)
    (release,) = algorithm.event.releases
    noise = transforms.add_ball_noise(release.radius, dpjax.random_key())
    event = noise.event(
        release.count,
        sensitivity=release.sensitivity,
        dimension=4,
        relation="zero_out",
        sampler=algorithm.query.sampler,
    )
    assert event.releases[0].total_variation == pytest.approx(release.total_variation, rel=1e-9)
    assert event.failure_probability == algorithm.event.failure_probability
    full = noise.event(2, sensitivity=0.1, dimension=4, relation="replace_one")
    assert full.releases[0].sampling == "none" and full.releases[0].count == 2
    with pytest.raises(ValueError, match="with certainty"):
        noise.event(2, sensitivity=1e6, dimension=4, relation="replace_one")


@pytest.mark.parametrize(
    ("radius", "key", "message"),
    [(0.0, jax.random.key(0), "radius"), (1.0, None, "key"), (1.0, 7, "key")],
)
def test_a_transformation_needs_a_radius_and_a_key(radius, key, message):
    with pytest.raises(ValueError, match=message):
        transforms.add_ball_noise(radius, key)
