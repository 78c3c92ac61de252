"""Tail quantiles of Gaussian vectors and symmetric matrices: bounds that hold and are not vacuous.

A simulated frequency of n draws is judged by its binomial tail. Each judgement below fails by
chance with probability at most 1e-9, if the bound is right.
"""

import functools
import math

import numpy as np
import pytest
from scipy import stats

from dpjax.linalg import chi_quantile, symmetric_top_eigenvalue_quantile

DRAWS = {1: 20_000, 2: 20_000, 5: 20_000, 22: 10_000, 54: 2_000}
CHANCE = 1e-9


@functools.cache
def top_eigenvalues(dimension, isometric):
    rng = np.random.default_rng([dimension, isometric])
    noise = rng.standard_normal((DRAWS[dimension], dimension, dimension))
    lower = np.tril(noise, -1)
    off = (lower + lower.swapaxes(1, 2)) / (math.sqrt(2) if isometric else 1)
    diagonal = np.eye(dimension) * noise
    return np.linalg.eigvalsh(off + diagonal)[:, -1]


def exceeds_too_often(values, bound, probability):
    """Whether more values lie above the bound than a correct one allows, but for ``CHANCE``."""
    return np.sum(values > bound) > stats.binom.ppf(1 - CHANCE, len(values), 1 - probability)


@pytest.mark.parametrize("probability", [0.5, 0.9, 0.975, 0.999])
@pytest.mark.parametrize("isometric", [True, False])
@pytest.mark.parametrize("dimension", DRAWS)
def test_the_eigenvalue_bound_holds(dimension, isometric, probability):
    bound = symmetric_top_eigenvalue_quantile(dimension, probability, isometric)
    assert not exceeds_too_often(top_eigenvalues(dimension, isometric), bound, probability)


@pytest.mark.parametrize("isometric", [True, False])
def test_the_eigenvalue_bound_is_not_vacuous(isometric):
    # The sample's quantile is within 0.5 % of the true one; the ratios are about 1.20 and 1.23.
    bound = symmetric_top_eigenvalue_quantile(22, 0.975, isometric)
    assert bound <= 1.25 * np.quantile(top_eigenvalues(22, isometric), 0.975)


def test_a_bound_for_the_wrong_noise_is_rejected():
    bound = symmetric_top_eigenvalue_quantile(22, 0.975, isometric=True)
    assert exceeds_too_often(top_eigenvalues(22, False), bound, 0.975)


@pytest.mark.parametrize("isometric", [True, False])
@pytest.mark.parametrize("probability", [0.5, 0.9, 0.999999])
def test_one_dimension_is_the_normal_quantile(probability, isometric):
    bound = symmetric_top_eigenvalue_quantile(1, probability, isometric)
    np.testing.assert_allclose(bound, stats.norm.ppf(probability), rtol=1e-11)


@pytest.mark.parametrize("dimension", [1, 2, 22, 500, 10**6])
@pytest.mark.parametrize("probability", [1e-6, 0.5, 0.975, 1 - 1e-12])
def test_chi_quantile_is_reached_and_not_overshot(dimension, probability):
    bound = chi_quantile(dimension, probability)
    assert stats.chi.cdf(bound, dimension) >= probability * (1 - 1e-12)
    assert stats.chi.cdf(bound * (1 - 1e-6), dimension) <= probability


def test_chi_quantile_at_one_dimension_is_two_sided_normal():
    np.testing.assert_allclose(chi_quantile(1, 0.95), stats.norm.ppf(0.975), rtol=1e-11)


@pytest.mark.parametrize("quantile", [chi_quantile, symmetric_top_eigenvalue_quantile])
@pytest.mark.parametrize(
    ("dimension", "probability", "named"),
    [
        (0, 0.9, "dimension"),
        (2.5, 0.9, "dimension"),
        (3, 0.0, "probability"),
        (3, 1.0, "probability"),
        (3, math.nan, "probability"),
        (3, None, "probability"),
    ],
)
def test_bad_input_is_named(quantile, dimension, probability, named):
    with pytest.raises(ValueError, match=named):
        quantile(dimension, probability)


def test_below_one_half_the_eigenvalue_bound_is_refused():
    with pytest.raises(ValueError, match=r"probability must be at least 0\.5"):
        symmetric_top_eigenvalue_quantile(22, 0.4)
