"""The epsilon of sampled releases: known numbers, two accountants, overflow, and known traps."""

import dataclasses
import functools
import itertools
import json
import math
import types

import dp_accounting
import numpy as np
import pytest
from scipy import integrate, stats

import dpjax
from dpjax import sampling
from dpjax.accounting import (
    RELATIONS,
    Event,
    PoissonRelease,
    PrivacyBudget,
    Release,
    SinglePassRelease,
    SubsetRelease,
    compose,
    epsilon,
    gaussian_multiplier,
    losses,
    parallel,
    pld,
    renyi,
)
from dpjax.accounting import events as events_file
from dpjax.algorithms.base import Declared
from dpjax.results import guarantee

NEIGHBOURS = {
    "zero_out": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
    "add_or_remove_one": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace_one": dp_accounting.NeighboringRelation.REPLACE_ONE,
}
# (q, T, sigma): epsilon at delta 1e-5, add or remove; the audits' table in the design.
PUBLISHED = {
    (0.1, 1, 0.5): 6.576,
    (0.1, 100, 2.0): 2.337,
    (0.05, 50, 0.8): 4.452,
    (0.01, 1000, 1.0): 1.829,
}


def poisson(q, count, sigma, overflow=0.0):
    return PoissonRelease(
        "gradient",
        count,
        noise_multiplier=sigma,
        sampling_probability=q,
        max_batch_size=10,
        data_size=100,
        failure_probability=overflow,
    )


def subset(size, n, count, sigma):
    """``sigma`` over one record's bound, as every sampled release."""
    sampler = sampling.without_replacement(size, n)
    return sampler.release("gradient", count, noise_multiplier=sigma, relation="replace_one")


def of(release, relation="zero_out"):
    return Event((release,), relation)


@functools.cache
def library_pld(event, gap):
    accountant = dp_accounting.pld.PLDAccountant(NEIGHBOURS[event.relation], gap)
    return accountant.compose(event.dp_event)


@pytest.mark.parametrize("relation", ["zero_out", "add_or_remove_one"])
@pytest.mark.parametrize(("setting", "known"), PUBLISHED.items())
def test_c42_published_epsilons_by_two_accountants(setting, known, relation):
    event = of(poisson(*setting), relation)
    pld, rdp = (epsilon(event, 1e-5, relation, name) for name in ("pld", "rdp"))
    assert pld == pytest.approx(known, abs=1e-3)
    assert pld <= rdp < 1.4 * pld


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    ("setting", "delta"),
    [*((setting, 1e-5) for setting in PUBLISHED), *((min(PUBLISHED), d) for d in (1e-3, 1e-9))],
)
def test_c42_epsilon_agrees_with_the_accountant_of_the_declared_relation(setting, relation, delta):
    """Both are upper bounds, on different grids."""
    event, gap = of(poisson(*setting), relation), 1e-4 if setting[1] > 1 else 1e-3
    ours = epsilon(event, delta, relation)
    assert ours == pytest.approx(library_pld(event, gap).get_epsilon(delta), rel=2e-3)


def test_c42_sampled_multipliers_are_over_one_record():
    """Planted: std over 2 C under replace-one, as for unsampled releases, is another epsilon."""
    right = epsilon(of(poisson(0.05, 50, 0.8), "replace_one"), 1e-5, "replace_one")
    halved = epsilon(of(poisson(0.05, 50, 0.4), "replace_one"), 1e-5, "replace_one")
    zero_out = epsilon(of(poisson(0.05, 50, 0.8)), 1e-5, "zero_out")
    assert zero_out < right < 2 * zero_out < halved


def test_c42_unsampled_and_sampled_releases_mix_under_every_relation():
    """PLD under REPLACE_ONE reads an unsampled multiplier over C: ours over 2 C must be doubled."""
    for relation in RELATIONS:
        anchor = Release("anchor", 10, noise_multiplier=12.0)
        ours = epsilon(Event((anchor, poisson(0.05, 50, 1.5)), relation), 1e-5, relation)
        over_record = 24.0 if relation == "replace_one" else 12.0
        theirs = (
            dp_accounting.pld.PLDAccountant(NEIGHBOURS[relation])
            .compose(dp_accounting.GaussianDpEvent(over_record), 10)
            .compose(of(poisson(0.05, 50, 1.5), relation).dp_event)
        )
        assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-3)


@pytest.mark.parametrize(("eps", "two_events", "joint"), [(0.5, 8.704, 6.282), (2.0, 2.767, 2.095)])
def test_c42_known_multipliers_of_subsets_under_replace_one(eps, two_events, joint):
    """PM 3: multipliers over the difference of two records, 5,000 of 35,000, T = 40."""
    budget = PrivacyBudget(eps, 1 / 35_000, "replace_one")
    sampler = sampling.without_replacement(5_000, 35_000)
    for count, known in ((80, two_events), (40, joint)):
        over_record = gaussian_multiplier(budget, count, sampler=sampler)
        assert over_record / 2 == pytest.approx(known, abs=1e-3)
        event = of(subset(5_000, 35_000, count, over_record), "replace_one")
        assert epsilon(event, budget.delta, "replace_one", "rdp") > eps


@pytest.mark.parametrize(
    ("eps", "relation", "known"),
    [
        (8.0, "zero_out", 0.6558),
        (2.0, "zero_out", 1.2252),
        (8.0, "replace_one", 0.7556),
        (2.0, "replace_one", 2.036),
    ],
)
def test_known_multipliers_of_long_trainings(eps, relation, known):
    """PM 7: batch 256 of 60,000, 14,063 steps, delta 1e-5; its grid was coarser than ours."""
    budget = PrivacyBudget(eps, 1e-5, relation)
    sampler = sampling.poisson(256, 60_000, budget=budget, count=14_063)

    def spent(scale):
        release = sampler.release("g", 14_063, noise_multiplier=scale, relation=relation)
        return epsilon(of(release, relation), 1e-5, relation)

    assert spent(known * (1 + 5e-4)) < eps < spent(known * (1 - 6e-3))


def test_c29_one_sample_is_one_joint_event():
    """Gradient and Hessian of one draw booked as two draws: 2.58 claimed where 4.48 is true."""
    booked_twice = compose([of(poisson(0.01, 1000, 1.0)), of(poisson(0.01, 1000, 1.0))])
    joint = of(poisson(0.01, 1000, 1 / math.sqrt(2)))
    assert epsilon(booked_twice, 1e-5, "zero_out") == pytest.approx(2.58, abs=0.01)
    assert epsilon(joint, 1e-5, "zero_out") == pytest.approx(4.48, abs=0.01)
    # What a sampler hands out is one vector a draw; there is no field to share a draw by.
    fields = {field.name for field in dataclasses.fields(PoissonRelease)}
    assert not fields & {"draw", "sample", "batch", "shared"}


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("count", [1, 30])
def test_epsilon_is_an_upper_bound_and_tight_as_sampling_ends(relation, count):
    """At probability 1 - 1e-9 the closed form of the unsampled Gaussian is known."""
    event = of(poisson(1 - 1e-9, count, 5.0), relation)
    unsampled = 2.5 if relation == "replace_one" else 5.0
    exact = epsilon(of(Release("g", count, unsampled), relation), 1e-6, relation)
    assert exact * (1 - 1e-6) < epsilon(event, 1e-6, relation) < exact * (1 + 1e-3)
    whole = SubsetRelease(
        "g",
        count,
        5.0,
        sampling_probability=0.9999999,
        max_batch_size=9_999_999,
        data_size=10_000_000,
    )
    exact = epsilon(of(Release("g", count, 2.5), "replace_one"), 1e-6, "replace_one")
    ours = epsilon(of(whole, "replace_one"), 1e-6, "replace_one")
    assert exact * (1 - 1e-4) < ours < exact * (1 + 1e-3)


def hockey_stick(kind, q, mu, eps):
    """The divergence of one step by quadrature of the densities."""
    upper, lower = {
        losses.poisson: ([(1 - q, 0), (q, mu)], [(1, 0)]),
        losses.poisson_swap: ([(1 - q, 0), (q, mu)], [(1 - q, 0), (q, -mu)]),
        losses.subset_swap: ([(1 - q, 0), (q, mu)], [(1, 0)]),
    }[kind]

    def density(mixture, x):
        return sum(w * stats.norm.pdf(x, m) for w, m in mixture)

    x = np.linspace(-12 - mu, 12 + mu, 400_001)
    excess = density(upper, x) - math.exp(eps) * density(lower, x)
    return integrate.trapezoid(np.maximum(excess, 0), x)


@pytest.mark.parametrize("kind", [losses.poisson, losses.poisson_swap, losses.subset_swap])
@pytest.mark.parametrize(("q", "mu"), [(1e-3, 1.0), (0.1, 2.0), (0.5, 0.3), (0.9, 4.0)])
def test_one_step_is_the_divergence_of_the_densities(kind, q, mu):
    found = kind(q, mu, 2.0**-12)
    profile = pld.profile(found[0] if kind is losses.poisson else found)
    for eps in (0.01, 0.3, 2.0):
        delta = hockey_stick(kind, q, mu, eps)
        if delta > 1e-9:
            # Never below, and above by no more than the chord between two grid points.
            assert eps * (1 - 1e-5) - 1e-7 < profile.epsilon(delta) < eps + 2e-4


def test_a_loss_of_another_pair_is_told_apart():
    """Planted: half the probability."""
    wrong = pld.profile(losses.poisson(0.05, 2.0, 2.0**-12)[0])
    assert wrong.epsilon(hockey_stick(losses.poisson, 0.1, 2.0, 2.0)) < 1.9


@pytest.mark.parametrize("count", [100, 10**4, 10**6, 10**8])
def test_rounding_of_long_compositions_stays_below_its_charge(count):
    mu = 1.0
    step = mu / math.sqrt(count)
    gap = 2.0 ** math.floor(math.log2(max(step / 32, 24 * mu / 2**20)))
    profile = pld.profile(pld.power(losses.gaussian(step, gap), count))
    for eps in (4.5, 6.5, 7.5):
        place = math.ceil((eps - profile.start) / gap)
        at = profile.start + place * gap
        exact = stats.norm.cdf(-at / mu + mu / 2) - math.exp(at) * stats.norm.cdf(-at / mu - mu / 2)
        assert profile.reached[place] - profile.shrunk[place] > exact - count * 2.0**-52 / 4


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.05, 1e3, 1e6])
@pytest.mark.parametrize("relation", RELATIONS)
def test_no_noise_scale_builds_a_huge_grid(scale, relation):
    """dp_accounting's grids grow with epsilon until memory ends; ours coarsen instead."""
    releases = [poisson(1e-3, 10_000, scale), Release("anchor", 3, scale)]
    profiles = events_file._profiles(
        tuple(events_file._pieces(releases, relation)), relation == "replace_one"
    )
    assert all(len(profile.reached) < 2**22 for profile in profiles)


@pytest.mark.parametrize(("eps", "accountant"), [(0.1, "pld"), (8.0, "pld"), (8.0, "rdp")])
@pytest.mark.parametrize(
    ("sampler", "relation"),
    [("poisson", "zero_out"), ("poisson", "replace_one"), ("full_batch", "replace_one")],
)
def test_calibrate_fits_the_budget_and_is_tight(sampler, relation, eps, accountant):
    budget = PrivacyBudget(eps, 1e-5, relation)
    sampler = {
        "poisson": lambda: sampling.poisson(100, 10_000, budget=budget, count=1000),
        "full_batch": lambda: sampling.full_batch(10_000),
    }[sampler]()
    if isinstance(sampler, sampling.Poisson) and (accountant, relation) == ("rdp", "replace_one"):
        with pytest.raises(ValueError, match="no Renyi bound"):
            gaussian_multiplier(budget, 1000, accountant, sampler)
        return
    multiplier = gaussian_multiplier(budget, 1000, accountant, sampler)

    def spent(scale):
        release = sampler.release("g", 1000, noise_multiplier=scale, relation=relation)
        return epsilon(of(release, relation), 1e-5, relation, accountant)

    assert spent(multiplier) <= eps < spent(multiplier * (1 - 1e-3))


@pytest.mark.parametrize("overflow", [0.0, 1e-12, 1e-10, 3e-10])
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_c41_overflow_is_charged_to_delta(overflow, accountant):
    clean, event = of(poisson(0.01, 1000, 1.0)), of(poisson(0.01, 1000, 1.0, overflow))
    eps = epsilon(event, 1e-5, "zero_out", accountant)
    left = 1e-5 - (1 + math.exp(eps)) * 1000 * overflow
    assert left > 0
    # It holds with its own charge, and no much smaller epsilon does.
    assert epsilon(clean, left, "zero_out", accountant) <= eps
    smaller = eps * (1 - 1e-6) - 1e-9
    left = 1e-5 - (1 + math.exp(smaller)) * 1000 * overflow
    assert epsilon(clean, left, "zero_out", accountant) > smaller


def test_c41_a_charge_that_eats_delta_is_an_error_or_infinite():
    with pytest.raises(ValueError, match="raise max_batch_size"):
        epsilon(of(poisson(0.01, 1000, 1.0, 1e-8)), 1e-5, "zero_out")
    with pytest.raises(ValueError, match="too small"):
        epsilon(of(poisson(0.01, 10**6, 1.0)), 1e-10, "zero_out")
    assert of(poisson(0.01, 1000, 1.0, 1e-8)).failure_probability == pytest.approx(1e-5)
    # More noise would help here: 2 T P is below delta, (1 + e^epsilon) T P is not.
    assert epsilon(of(poisson(0.01, 1000, 0.3, 1e-9)), 1e-5, "zero_out") == math.inf


def test_c44_no_order_is_dropped():
    """dp_accounting 0.6 gives up on fractional orders at these numbers, with a warning."""
    orders = events_file.ORDERS
    event = of(poisson(0.5, 1, 1.0))
    library = dp_accounting.rdp.RdpAccountant(list(orders)).compose(event.dp_event).rdp
    lost = ~np.isfinite(library)
    assert lost.any()
    ours = np.array([renyi(event, order) for order in orders])
    assert np.isfinite(ours).all()
    whole = np.array(orders) == np.floor(orders)
    assert ours[whole] == pytest.approx(library[whole], rel=1e-9)
    # Its fractional orders add an alternating series without the signs.
    assert np.all(ours[~lost] <= library[~lost] * (1 + 1e-9))
    assert np.all(np.diff(ours) > -1e-12)  # a divergence grows with its order


def test_c44_a_divergence_lost_to_rounding_is_not_read_as_none():
    """dp_accounting 0.6 finds negative ones here, and takes an epsilon of 0 from any of them."""
    q, sigma, count = 0.01, 1e7, 10**17
    event, orders = of(poisson(q, count, sigma)), np.array(events_file.ORDERS)
    library = dp_accounting.rdp.RdpAccountant(list(orders)).compose(event.dp_event)
    assert library.rdp.min() < 0 and library.get_epsilon(1e-5) == 0
    ours = np.array([renyi(event, order) for order in orders])
    assert np.all(ours >= count * q**2 * orders / (2 * sigma**2))
    assert epsilon(event, 1e-5, "zero_out", "rdp") > 0.1


@pytest.mark.parametrize("order", [1.1, 1.5, 2.5, 7.3])
@pytest.mark.parametrize(("q", "sigma"), [(0.5, 1.0), (0.01, 1.0), (0.1, 0.7), (1e-5, 5.0)])
def test_fractional_orders_are_the_integral(order, q, sigma):
    def integrand(x):
        log_ratio = np.logaddexp(math.log1p(-q), math.log(q) + x / sigma - 0.5 / sigma**2)
        # The power minus its tangent, whose integral is 1 + order * 0.
        return stats.norm.pdf(x) * (np.expm1(order * log_ratio) - order * np.expm1(log_ratio))

    ends = (-12, 0, order / sigma, 12 + order / sigma)
    excess = sum(
        integrate.quad(integrand, *pair, epsabs=1e-18, epsrel=1e-10, limit=200)[0]
        for pair in itertools.pairwise(ends)
    )
    exact = math.log1p(excess) / (order - 1)
    assert renyi(of(poisson(q, 1, sigma)), order) == pytest.approx(exact, rel=1e-6, abs=1e-13)


def test_renyi_of_every_kind():
    gaussian = Release("g", 8, noise_multiplier=2.0)
    for relation in RELATIONS:
        assert renyi(of(gaussian, relation), 3.0) == 3.0
    mixed = Event((gaussian, poisson(0.1, 5, 1.0)), "zero_out")
    assert renyi(mixed, 3.0) == pytest.approx(3.0 + renyi(of(poisson(0.1, 5, 1.0)), 3.0))
    event = of(subset(100, 10_000, 1, 2.0), "replace_one")
    drawn = dp_accounting.SampledWithoutReplacementDpEvent(
        10_000, 100, dp_accounting.GaussianDpEvent(1.0)
    )
    theirs = dp_accounting.rdp.RdpAccountant([3.0], NEIGHBOURS["replace_one"]).compose(drawn)
    assert renyi(event, 3.0) == pytest.approx(theirs.rdp[0])


def test_c37_a_sampler_without_accounting_raises():
    for relation in ("zero_out", "add_or_remove_one"):
        with pytest.raises(ValueError, match="replace_one"):
            sampling.without_replacement(10, 100).release(
                "g", 1, noise_multiplier=1.0, relation=relation
            )
        with pytest.raises(ValueError, match="sampling without replacement"):
            of(subset(10, 100, 1, 1.0), relation)


def test_c37_fixed_size_is_never_booked_as_poisson():
    """Planted: 10.0 to 12.8 is true where the Poisson numbers of epsilon 2 are claimed."""
    budget = PrivacyBudget(2.0, 1e-5)
    sampler = sampling.poisson(256, 60_000, budget=budget, count=14_063)
    multiplier = gaussian_multiplier(budget, 14_063, sampler=sampler)
    event = of(subset(256, 60_000, 14_063, multiplier), "replace_one")
    assert epsilon(event, 1e-5, "replace_one") > 10.0


def test_a_sampled_event_is_not_gaussian():
    mixed = Event((Release("anchor", 1, 3.0), poisson(0.1, 5, 1.0)), "zero_out")
    assert not mixed.is_gaussian and Event((Release("g", 1, 3.0),), "zero_out").is_gaussian
    with pytest.raises(ValueError, match="have no mu-GDP"):
        _ = mixed.gaussian_mu


@pytest.mark.parametrize(
    "release",
    [
        Release("g", 3, 2.0, 0.1, (("gradient", 0.2), ("hessian", 0.3))),
        poisson(0.01, 7, 1.0, 1e-20),
        subset(10, 1000, 7, 1.0),
        parallel("all", (SinglePassRelease("a", 1, 2.0, data_size=9),) * 2),
    ],
)
def test_a_release_survives_json(release):
    fields = json.loads(json.dumps(release.to_fields()))
    assert Release.from_fields(fields) == release
    printed = json.loads(json.dumps(release.to_json()))
    assert printed["stddev"] == pytest.approx(printed["multiplier"] * printed["sensitivity"])
    assert printed["sampling_probability"] == getattr(release, "sampling_probability", None)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (PoissonRelease, {"max_batch_size": 0}, "max_batch_size must be"),
        (PoissonRelease, {"sampling_probability": 1.0}, "strictly between"),
        (SubsetRelease, {"sampling_probability": 0.3}, "3/9"),
        (PoissonRelease, {"failure_probability": -1.0}, "failure_probability must be"),
    ],
)
def test_bad_releases(kind, fields, message):
    usual = {"sampling_probability": 1 / 3, "max_batch_size": 3, "data_size": 9}
    with pytest.raises(ValueError, match=message):
        kind("g", 1, 1.0, **usual | fields)


@pytest.mark.parametrize("order", [1.0, 0.5, math.nan, math.inf])
def test_bad_orders(order):
    with pytest.raises(ValueError, match="order must be"):
        renyi(of(poisson(0.1, 1, 1.0)), order)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_the_guarantee_says_how_records_are_drawn(relation, accountant):
    budget = PrivacyBudget(1.0, 1e-5, relation)
    sampler = sampling.poisson(50, 1000, budget=budget, count=10)
    if relation == "replace_one":
        sampler = sampling.without_replacement(50, 1000)
    release = sampler.release("joint_step", 10, noise_multiplier=3.0, relation=relation)
    algorithm = types.SimpleNamespace(
        event=Event((release, Release("anchor", 1, 9.0)), relation),
        declared=Declared(1.0, 1e-5),
        relation=relation,
        accountant=accountant,
        title="DP-STR",
        dimension=9,
        objective=dpjax.objectives.logistic(),
        queries=[
            types.SimpleNamespace(
                data_size=1000,
                name="joint_step",
                charged_rows=5_000,
                in_any_row=True,
                sampler=sampler,
                components=(),
                bound=lambda: 1.0,
                divisor=50,
            )
        ],
    )
    text = " ".join(guarantee.statement(algorithm, "row").split())
    words = ["anchor: none; every noisy answer uses all records"]
    words += ["a drawn record adds at most", "k e^((k-1)"]
    if relation == "replace_one":
        words += [
            "joint step: sampling without replacement",
            "uniformly random subset of 50 of the declared 1,000 records",
        ]
    else:
        words += [
            "joint step: Poisson sampling",
            "probability 0.05",
            f"at most {sampler.max_batch_size}",
        ]
    assert [word for word in words if word not in text] == []
    present = f"{sampler.max_batch_size} x ceil(m / 1,000) records, where 1,000 is the declared"
    assert (present in text) == (relation == "add_or_remove_one")
    assert "mu-GDP" not in text and "Sampling: none" not in text
    assert ("privacy loss distributions" in text) == (accountant != "rdp")


def test_the_face_has_the_samplers():
    assert dpjax.sampling.poisson is sampling.poisson
