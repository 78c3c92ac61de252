"""The papers' noise: what their formulas say, and the epsilon that it really is."""

import dataclasses
import math

import jax
import numpy as np
import pytest

import dpjax
from benchmarks.papers import noise
from dpjax.accounting import Event, Release, epsilon
from dpjax.mechanisms import PrefixNoise

N, P, T = 2_000, 4, 12
REPLACE = dpjax.PrivacyBudget(1.0, 1 / N, "replace_one")
SIZES = {"data_size": N, "dimension": P}
LOGISTIC = dpjax.objectives.logistic_nonconvex()


@pytest.mark.parametrize(
    ("eps", "multiplier", "true"), [(0.5, 82.80, 0.340), (1.0, 41.87, 0.722), (2.0, 21.39, 1.524)]
)
@pytest.mark.parametrize("p", [1, 22])
def test_dp_tr_has_algorithm_1_s_noise_and_less_epsilon_than_it_claims(eps, multiplier, true, p):
    delta = 1 / 35_000
    budget = dpjax.PrivacyBudget(eps, delta, "replace_one")
    objective = dpjax.objectives.sigmoid_l2()
    algorithm = noise.trust_region(objective, budget, data_size=35_000, dimension=p, steps=40)
    gradient, hessian = algorithm.queries
    assert gradient.noise_multiplier == pytest.approx(multiplier, abs=0.006)
    # sigma^2 = 4 G^2 T / (n^2 phi) and sigma_2^2 = 4 p M^2 T / (n^2 phi), written out.
    log = math.log(1 / delta)
    phi = (math.sqrt(eps + log) - math.sqrt(log)) ** 2
    # times what rounding adds to the sensitivity 2 G / n.
    variance = 4 * 40 / (35_000**2 * phi) * (1 + gradient.rounding_error / 2) ** 2
    assert 0 < gradient.rounding_error < 0.0021
    lipschitz, smoothness, _ = objective.constants
    assert gradient.stddev**2 == pytest.approx(lipschitz**2 * variance, rel=1e-5)
    assert hessian.stddev**2 == pytest.approx(p * smoothness**2 * variance, rel=1e-5)
    spent = algorithm.epsilon()
    assert spent == epsilon(algorithm.event, delta, "replace_one") <= eps
    if p == 1:  # the Frobenius clip makes the paper's sqrt(p) more than is needed
        assert spent == pytest.approx(true, abs=0.001)
    else:
        assert spent < true
    assert not hessian.isometric
    # Damping follows the noise, whose spectral norm is sqrt(2) that of the isometric form.
    half = noise.trust_region(
        objective, budget, data_size=35_000, dimension=p, steps=40, damping=0.25
    )
    assert float(half.damping) == pytest.approx(float(algorithm.damping) / 2, rel=1e-6)
    assert float(half.damping) == pytest.approx(0.25 * float(hessian.stddev) * 2 * p**0.5)


@pytest.mark.parametrize(("release", "gain"), [("separate", 1.342), ("joint", 1.342 * 2**0.5)])
def test_exact_composition_and_one_release_need_less_noise_than_the_paper(release, gain):
    budget = dpjax.PrivacyBudget(1.0, 1 / 35_000, "replace_one")
    how = {"data_size": 35_000, "dimension": 1, "steps": 40}
    paper = noise.trust_region(LOGISTIC, budget, **how)
    ours = dpjax.dp_trust_region(LOGISTIC, budget, **how, release=release)
    total = [sum(r.noise_multiplier**-2 for r in one.event.releases) for one in (paper, ours)]
    parts = len(ours.queries) / len(paper.queries)
    assert math.sqrt(total[1] / total[0] / parts) == pytest.approx(gain, rel=2e-3)


def test_dp_str_has_the_factor_that_its_formula_lost():
    """Wang and Xu (2020), algorithm 2, with T in both variances."""
    objective = dpjax.objectives.logistic()
    how = SIZES | {"steps": T, "batch_size": 200}
    algorithm = noise.stochastic_trust_region(objective, REPLACE, **how)
    gradient, hessian = algorithm.queries
    log = math.log(5 * T * N) * math.log(2 * N)
    stddev = math.sqrt(256 * T * log) / N
    assert gradient.stddev == pytest.approx(stddev, rel=1e-6)
    assert hessian.stddev == pytest.approx(stddev * math.sqrt(P) / 4, rel=1e-6)
    assert not hessian.isometric
    assert {r.sampling for r in algorithm.event.releases} == {"without_replacement"}
    assert algorithm.epsilon() < 0.1  # far more than it needs
    ours = dpjax.dp_stochastic_trust_region(
        objective, REPLACE, **how, sampling="without_replacement"
    )
    assert gradient.stddev / ours.queries[0].stddev > 17
    x = np.random.default_rng(0).normal(size=(N, P)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    solution = dpjax.solve(algorithm, (x, np.sign(x[:, 0])), key=jax.random.key(0))
    assert np.isfinite(solution.params).all()
    # As printed: less noise by sqrt(T), and no bound on epsilon as T grows.
    literal = noise.stochastic_trust_region(objective, REPLACE, **how, literal=True)
    assert literal.queries[0].stddev == pytest.approx(stddev / math.sqrt(T), rel=1e-6)
    long = noise.stochastic_trust_region(
        objective, REPLACE, **(how | {"steps": 10**6}), literal=True
    )
    assert literal.epsilon() < 1 < long.epsilon()


def test_dp_gd_and_dp_accmd_have_a_constant_that_suffices():
    algorithm = noise.gradient_descent(LOGISTIC, REPLACE, **SIZES, steps=40)
    multiplier = noise.erm_multiplier(REPLACE, 40)
    assert algorithm.query.noise_multiplier == multiplier and algorithm.bounds is None
    log = math.log(N)
    assert multiplier == pytest.approx(math.sqrt((8 + 4 / log) * 40 * log) / 2, rel=1e-6)
    assert 0.1 < algorithm.epsilon() < 1.0


def test_the_noise_of_theorem_2_2_is_private_with_room_and_that_of_theorem_3_11_is_not():
    budget = dpjax.PrivacyBudget(1.0, 1e-5, "replace_one")
    tree = PrefixNoise("tree", 64)
    multiplier = noise.spider_multiplier(budget, 64, tree.sensitivity)
    event = Event((Release("estimate", 1, multiplier),), "replace_one")
    assert 0.25 < epsilon(event, 1e-5, "replace_one") < 0.4
    # Theorem 3.11: sigma = alpha / sqrt(d) where s = 2 epsilon alpha / sqrt(d), for a tree of 64.
    release = dataclasses.replace(event.releases[0], noise_multiplier=0.5 / tree.sensitivity)
    assert 28 < epsilon(Event((release,), "replace_one"), 1e-5, "replace_one") < 50


@pytest.mark.parametrize(
    ("make", "more", "words"),
    [
        (noise.gradient_descent, {"batch_size": 10}, "all records at every step"),
        (noise.stochastic_trust_region, {"batch_size": 2}, "over the budget of 1"),
        (noise.trust_region, {"budget": dpjax.PrivacyBudget(1.0, 1e-4)}, "relation='replace_one'"),
        (noise.trust_region, {"accountant": "paper"}, "benchmarks/papers/noise.py"),
    ],
)
def test_what_the_formulas_do_not_cover_is_refused(make, more, words):
    with pytest.raises(ValueError, match=words):
        make(**({"objective": LOGISTIC, "budget": REPLACE, "steps": T} | SIZES | more))
