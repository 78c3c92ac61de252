"""Accounting: the mapping to dp_accounting, the closed form, and calibration."""

import math

import dp_accounting
import numpy as np
import pytest
from scipy.stats import norm

from dpjax.accounting import (
    RELATIONS,
    Event,
    PrivacyBudget,
    Release,
    calibrate,
    check_spent,
    compose,
    epsilon,
    gaussian_multiplier,
    losses,
    records_moved,
    round_up,
)


def gaussians(multiplier, count=1, relation="zero_out"):
    return Event((Release("gradient", count, noise_multiplier=multiplier),), relation)


def delta_of(mu, eps):
    """The profile of mu-GDP, written out."""
    return norm.cdf(-eps / mu + mu / 2) - math.exp(eps) * norm.cdf(-eps / mu - mu / 2)


@pytest.mark.parametrize(("relation", "moved"), list(zip(RELATIONS, (1, 2, 1), strict=True)))
def test_records_moved(relation, moved):
    assert records_moved(relation) == moved


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("multiplier", "count"), [(1.0, 1), (5.0, 20), (50.0, 32), (0.5, 3)])
@pytest.mark.parametrize("delta", [1e-5, 1 / 35_000])
def test_epsilon_is_the_closed_form_under_every_relation(relation, multiplier, count, delta):
    event = gaussians(multiplier, count, relation)
    eps = epsilon(event, delta, relation)
    mu = math.sqrt(count) / multiplier
    assert delta_of(mu, eps) == pytest.approx(delta, rel=1e-6)
    assert delta_of(mu, eps) <= delta  # never on the unsafe side


@pytest.mark.parametrize("relation", RELATIONS)
def test_both_accountants_of_dp_accounting_agree_with_the_closed_form(relation):
    """Dpjax's own mapping: PLD exactly, RDP from above, whatever the relation."""
    event = gaussians(3.0, 10, relation)
    exact = epsilon(event, 1e-5, relation)
    # The pair N(0, s^2), N(D, s^2) does not know which relation gave D.
    accountant = dp_accounting.pld.PLDAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    pld = accountant.compose(event.dp_event).get_epsilon(1e-5)
    rdp = epsilon(event, 1e-5, relation, "rdp")
    assert pld == pytest.approx(exact, rel=1e-3) and pld >= exact - 1e-9
    assert exact < rdp < 1.12 * exact


def test_c42_trap_the_two_accountants_disagree_about_replace_one():
    """If this fails, dp_accounting changed what a multiplier means: revisit the mapping."""
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    unit = dp_accounting.GaussianDpEvent(1.0)
    rdp = dp_accounting.rdp.RdpAccountant(neighboring_relation=relation)
    pld = dp_accounting.pld.PLDAccountant(neighboring_relation=relation)
    assert rdp.compose(unit).get_epsilon(1e-5) == pytest.approx(4.7285, abs=1e-3)
    assert pld.compose(unit).get_epsilon(1e-5) == pytest.approx(9.9973, abs=1e-3)
    exact = dp_accounting.get_epsilon_gaussian
    assert exact(1.0, 1e-5) == pytest.approx(4.3772, abs=1e-3)
    assert exact(0.5, 1e-5) == pytest.approx(9.9973, abs=1e-2)
    # Ours: the multiplier is std over the sensitivity, so all relations agree.
    for own in RELATIONS:
        assert epsilon(gaussians(1.0, 1, own), 1e-5, own) == pytest.approx(4.3772, abs=1e-3)


def test_trap_integer_multipliers_lose_an_inner_composition():
    """dp_accounting 0.6 reads an int multiplier differently; ours are floats, always."""
    assert isinstance(Release("g", 1, noise_multiplier=2).noise_multiplier, float)
    (inner,) = gaussians(2).dp_event.events
    assert isinstance(inner.event.noise_multiplier, float)


@pytest.mark.parametrize(
    ("eps", "delta", "mu"), [(1.0, 1e-5, 0.268051), (1.0, 1 / 35_000, 0.286591)]
)
def test_known_values_of_mu(eps, delta, mu):
    multiplier = gaussian_multiplier(PrivacyBudget(eps, delta), 1)
    assert 1 / multiplier == pytest.approx(mu, rel=1e-5)


@pytest.mark.parametrize(
    ("eps", "separate", "joint"), [(0.5, 58.39, 41.29), (1.0, 31.21, 22.07), (2.0, 16.80, 11.88)]
)
def test_known_multipliers_of_the_trust_region(eps, separate, joint):
    budget = PrivacyBudget(eps, 1 / 35_000, "replace_one")
    assert gaussian_multiplier(budget, 80) == pytest.approx(separate, abs=0.006)
    assert gaussian_multiplier(budget, 40) == pytest.approx(joint, abs=0.006)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("eps", [1e-3, 0.2, 1.0, 8.0, 100.0])
def test_calibrate_never_exceeds_the_budget_and_is_tight(accountant, eps):
    budget = PrivacyBudget(eps, 1e-6)
    scale = calibrate(lambda s: gaussians(s, 7), budget, accountant)
    assert epsilon(gaussians(scale, 7), 1e-6, "zero_out", accountant) <= eps
    assert epsilon(gaussians(scale * (1 - 1e-5), 7), 1e-6, "zero_out", accountant) > eps
    assert round_up(scale) == scale  # survives float32 arrays


def test_calibrate_rejects_a_planted_bug_in_the_event():
    """An event that forgets its count gets less noise; the recount of the true event sees it."""
    budget = PrivacyBudget(1.0, 1e-6)
    scale = calibrate(lambda s: gaussians(s, 1), budget)
    with pytest.raises(ValueError, match="over the budget"):
        check_spent(gaussians(scale, 2), budget, "pld", "count every release.")


def test_composition_adds_squares_and_keeps_the_relation():
    joined = compose([gaussians(3.0), gaussians(4.0, 2)])
    assert joined.gaussian_mu == pytest.approx(math.sqrt(1 / 9 + 2 / 16))
    with pytest.raises(ValueError, match="different relations"):
        compose([gaussians(3.0), gaussians(3.0, 1, "replace_one")])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PrivacyBudget(0, 1e-5), "epsilon must be"),
        (lambda: PrivacyBudget(-1, 1e-5), "epsilon must be"),
        (lambda: PrivacyBudget(math.nan, 1e-5), "epsilon must be"),
        (lambda: PrivacyBudget(math.inf, 1e-5), "epsilon must be"),
        (lambda: PrivacyBudget(1, 0), "delta must be"),
        (lambda: PrivacyBudget(1, 1), "delta must be"),
        (lambda: PrivacyBudget(1, None), "delta is required"),
        (lambda: PrivacyBudget(1, "x"), "delta must be"),
        (lambda: PrivacyBudget(1, 1e-5, "zero-out"), "did you mean 'zero_out'"),
        (lambda: epsilon(gaussians(1.0), 1e-5, "replace_one"), "built for relation 'zero_out'"),
        (lambda: epsilon(gaussians(1.0), 2, "zero_out"), "delta must be"),
        (lambda: epsilon(gaussians(1.0), 1e-5, "zero_out", "moments"), "unknown accountant"),
        (lambda: epsilon(dp_accounting.GaussianDpEvent(1.0), 1e-5, "zero_out"), "carries its"),
        (lambda: Release("g", 0, 1.0), "count must be"),
        (lambda: Release("g", 1, -1.0), "noise_multiplier must be"),
        (lambda: Event((), "zero_out"), "at least one"),
        (lambda: calibrate(lambda s: gaussians(1.0), PrivacyBudget(1, 1e-5)), "no noise reaches"),
        (lambda: calibrate(gaussians, PrivacyBudget(1, 1e-5, "replace_one")), "built for"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_delta_has_no_default():
    with pytest.raises(ValueError, match="delta is required"):
        PrivacyBudget(1.0)


def test_the_gaussian_epsilon_is_that_of_dp_accounting_to_the_last_bit():
    rng = np.random.default_rng(0)
    # Stddevs are read as epsilons too, and up to 10^2 of those there are.
    for number, delta in 10 ** rng.uniform((-2, -40), (2, -0.4), (200, 2)):
        theirs = dp_accounting.get_epsilon_gaussian(number, delta)
        assert losses.gaussian_epsilon(number, delta) == (theirs + 2e-12 if theirs else 0.0)
        needed = dp_accounting.get_sigma_gaussian(number, delta)
        assert losses.gaussian_log_delta(0.999 * needed, number) > np.log(delta)
        assert losses.gaussian_log_delta(1.001 * needed, number) < np.log(delta)
