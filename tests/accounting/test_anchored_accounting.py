"""Batches beside an un-noised part of all records: the mixture of Gaussians that dominates them."""

import dataclasses
import math

import dp_accounting
import numpy as np
import pytest
from scipy import integrate, stats

from dpjax.accounting import (
    Event,
    PoissonRelease,
    PrivacyBudget,
    Release,
    SubsetRelease,
    calibrate,
    epsilon,
    losses,
    pld,
    renyi,
)
from dpjax.accounting.filters import Books

N = 35_000


def release(sigma, batch, count, n=N, clip=1.0):
    """SVRG's step: a record moves it by C / n, and by 2 C / B - C / n where it is drawn."""
    drawn = clip * (2 / batch - 1 / n)
    return PoissonRelease(
        "anchored",
        count,
        noise_multiplier=sigma / drawn,
        sensitivity=drawn,
        sampling_probability=batch / n,
        max_batch_size=n,
        data_size=n,
        undrawn_shift=clip / n / drawn,
    )


def of(one, relation="zero_out"):
    return Event((one,), relation)


def spent(one, delta):
    return epsilon(of(one), delta, "zero_out")


@pytest.mark.parametrize(
    ("q", "mu", "idle"), [(0.1, 2.0, 0.05), (1e-3, 1.0, 0.3), (0.5, 0.3, 1.0), (0.02, 3.0, 1e-6)]
)
def test_one_step_is_the_divergence_of_the_densities(q, mu, idle):
    """Planted: the part of a record that is not drawn left out."""
    x = np.linspace(-12, 14 + mu, 400_001)
    mixture = (1 - q) * stats.norm.pdf(x, idle * mu) + q * stats.norm.pdf(x, mu)
    alone = stats.norm.pdf(x)
    found = losses.anchored(q, mu, idle, 2.0**-12)
    for (upper, lower), loss in zip(
        ((mixture, alone), (alone, mixture)), map(pld.profile, found), strict=True
    ):
        for eps in (0.01, 0.3, 2.0):
            delta = integrate.trapezoid(np.maximum(upper - math.exp(eps) * lower, 0), x)
            if delta > 1e-9:
                assert eps * (1 - 1e-5) - 1e-7 < loss.epsilon(delta) < eps + 2e-4
    if idle > 1e-3:
        delta = integrate.trapezoid(np.maximum(mixture - math.exp(0.1) * alone, 0), x)
        assert pld.profile(losses.poisson(q, mu, 2.0**-12)[0]).epsilon(delta) < 0.095


@pytest.mark.parametrize(
    ("count", "relation", "theirs"),
    [
        (1, "add_or_remove_one", dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE),
        (60, "zero_out", dp_accounting.NeighboringRelation.REPLACE_SPECIAL),
    ],
)
def test_epsilon_agrees_with_the_mixture_of_dp_accounting(count, relation, theirs):
    event = of(release(0.25, 5, count, n=100), relation)
    accountant = dp_accounting.pld.PLDAccountant(theirs, 4e-3).compose(event.dp_event)
    for delta in (1e-2, 1e-5):
        known = accountant.get_epsilon(delta)
        assert known * 0.99 < epsilon(event, delta, relation) < known * (1 + 1e-3)


def test_without_an_idle_part_it_is_a_poisson_batch():
    plain = dataclasses.replace(release(0.05, 256, 100), undrawn_shift=0.0)
    hardly = dataclasses.replace(plain, undrawn_shift=1e-9)
    assert spent(plain, 1e-5) == pytest.approx(spent(hardly, 1e-5), rel=1e-6)
    assert losses.anchored(0.1, 2.0, 0.0, 0.01)[0].pmf.tolist() == (
        losses.poisson(0.1, 2.0, 0.01)[0].pmf.tolist()
    )


def test_drawn_always_or_moved_alike_it_is_a_gaussian():
    exact = epsilon(of(Release("g", 10, 5.0)), 1e-6, "zero_out")
    always = PoissonRelease(
        "g",
        10,
        5.0,
        sampling_probability=1 - 1e-9,
        max_batch_size=10,
        data_size=10,
        undrawn_shift=0.5,
    )
    alike = dataclasses.replace(always, sampling_probability=0.3, undrawn_shift=1.0)
    for one in (always, alike):
        assert exact * (1 - 1e-6) < spent(one, 1e-6) < exact * (1 + 1e-3)


@pytest.mark.parametrize(
    ("batch", "count", "eps", "sigma"),
    [
        (1, 70_000, 1.0, 0.915),
        (1, 700_000, 1.0, 1.002),
        (256, 273, 2.0, 0.00560),
        (256, 2_730, 1.0, 0.016148),
        (256, 70_000, 0.5, 0.1478),
    ],
)
def test_known_noise_of_the_printed_svrg(batch, count, eps, sigma):
    """PM 4.2, delta 1 / n; at batch 1 its grid was coarser than ours."""
    loss_of = [spent(release(sigma * c, batch, count), 1 / N) for c in (1.003, 0.997)]
    assert loss_of[0] < eps < loss_of[1]


def test_the_literal_noise_of_the_paper_is_no_privacy():
    """ALGORITHMS 4: c = 4 at batch 1 and epsilon 1 leaves delta above 0.86."""
    literal = 2 * math.sqrt(70_000 * math.log(N)) / N
    assert literal == pytest.approx(0.0489, abs=1e-4)
    assert spent(release(literal, 1, 70_000), 0.86) > 1.0
    assert spent(release(literal, 1, 70_000), 1 / N) > 100


def test_a_calibrated_noise_is_just_enough():
    budget = PrivacyBudget(1.0, 1e-5)
    sigma = calibrate(lambda scale: of(release(scale, 50, 100, n=1_000)), budget)
    assert 0.99 < spent(release(sigma, 50, 100, n=1_000), 1e-5) <= 1.0


def test_what_has_no_proof_is_refused():
    one = release(0.1, 256, 10)
    with pytest.raises(ValueError, match="no proven accounting under relation='replace_one'"):
        of(one, "replace_one")
    with pytest.raises(ValueError, match="no Renyi bound"):
        epsilon(of(one), 1e-5, "zero_out", "rdp")
    with pytest.raises(ValueError, match="no Renyi bound"):
        renyi(of(one), 2.0)
    for both in (False, True):
        with pytest.raises(ValueError, match="a ledger has no additive bound"):
            books = Books(PrivacyBudget(8.0, 1e-5), 8.0, both)
            books.cost(of(one), books.single)
    for shift in (1.5, -0.1):
        with pytest.raises(ValueError, match="undrawn_shift"):
            dataclasses.replace(one, undrawn_shift=shift)
    for kind in (Release, SubsetRelease):
        with pytest.raises(TypeError, match="undrawn_shift"):
            kind("g", 1, 1.0, undrawn_shift=0.5)


def test_a_release_tells_its_idle_part():
    one = release(0.1, 256, 10)
    assert one.to_json()["idle"] == one.undrawn_shift > 0
    assert Release.from_fields(one.to_fields()) == one
