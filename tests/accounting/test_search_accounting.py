"""What a private random search spends: against enumeration, integration, attacks and dp-accounting.

A claim must lie above everything that some order of the outputs attains, and not far above it.
"""

import dataclasses
import itertools
import json
import math
from typing import ClassVar

import dp_accounting
import numpy as np
import pytest
from scipy import optimize, special, stats

from dpjax.accounting import (
    Event,
    Ledger,
    NumberOfTrials,
    PerturbationRelease,
    PrivacyBudget,
    Release,
    SearchRelease,
    SelectionRelease,
    compose,
    epsilon,
    gumbel_multiplier,
    renyi,
)
from dpjax.accounting.best_of import default_cap
from dpjax.accounting.events import deltas
from dpjax.accounting.filters import Books, most_draws
from dpjax.accounting.search import accounting_key
from dpjax.results.guarantee import describe
from dpjax.sampling import poisson

DELTA = 1e-6
ORDERS = np.array([1.5, 2.0, 4.0, 8.0, 32.0])
# Mean, cap and shape: geometric, between, Poisson, logarithmic.
LAWS = [(2.5, 6, 1.0), (3.0, 8, 0.5), (4.0, 12, math.inf), (1.5, 4, 0.0)]


def search(*releases, number=(10.0, 40, 1.0), settings=32, **more):
    return SearchRelease.of([releases], NumberOfTrials(*number), settings=settings, **more)


def gaussian(mu, **more):
    return search(Release("training", 1, 1 / mu), **more)


def event(release):
    return Event((release,), "zero_out")


# The number of trainings.


@pytest.mark.parametrize("law", [*LAWS, (10, 40, 1.0), (32, 128, 1.0), (32, 110, math.inf)])
def test_the_number_of_trainings_has_the_declared_law_and_mean(law):
    number = NumberOfTrials(*law)
    mean, cap, shape = law
    k, p = np.arange(1, cap + 1), number.probabilities
    assert number.weights.sum() == 2**32 and number.weights.min() >= 1
    assert p.sum() == 1.0 and p @ k == pytest.approx(mean, abs=1e-5)
    if shape == math.inf:
        law = stats.poisson.pmf(k, number.ratio)
    elif shape == 0:
        law = stats.logser.pmf(k, number.ratio)
    else:
        law = stats.nbinom.pmf(k, shape, 1 - number.ratio)
    np.testing.assert_allclose(p, law / law.sum(), rtol=1e-6, atol=2e-8)
    x = np.array([0.0, 0.3, 1.0])
    np.testing.assert_allclose(
        number.derivative(x), [(k * p * y ** (k - 1.0)).sum() for y in x], rtol=1e-12
    )
    assert number.derivative(np.ones(1))[0] == pytest.approx(mean, abs=1e-5)


def test_what_is_charged_for_the_number_of_trainings_is_their_true_mean():
    """Each weight is at least 2^-32, which over a large cap raises the mean above the declared."""
    number = NumberOfTrials(2, 10_000, 0)
    k = np.arange(1, number.cap + 1)
    assert number.expected > 2.01
    assert number.expected == pytest.approx(number.probabilities @ k, rel=1e-12)
    one = Release("gradient", 1, 4.0)
    assert "mean 2.01164," in describe(SearchRelease.of([[one]], number, settings=2))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1.0, 4), "trials must be above 1"),
        ((4.0, 4), "below the cap"),
        ((3.0, 4), "too close to cap=4"),
        ((2.0, 20_000), "at most 10,000"),
        ((2.0, 8, -0.5), "shape"),
        ((math.nan, 8), "trials"),
        ((2.0, 2.5), "cap"),
    ],
)
def test_a_number_of_trainings_out_of_range_is_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        NumberOfTrials(*arguments)


def test_a_cap_that_is_not_declared_costs_a_hundredth_of_the_noise():
    """Of the geometric distribution, against a cap that is never met."""
    mu = 0.15
    capped, free = (
        epsilon(event(gaussian(mu, number=(10.0, cap, 1.0))), DELTA, "zero_out")
        for cap in (default_cap(10.0), 400)
    )
    assert free < capped < 1.015 * free


# Enumeration: a mechanism of five outputs, every order of them by score.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Enumerated(Release):
    """A mechanism with few outputs, whose probabilities on neighbours are given."""

    here: tuple = ()
    there: tuple = ()

    mechanism: ClassVar[str] = "enumerated"

    def privacy_loss(self, relation):
        raise AssertionError("its profile is exact")

    def whole_deltas(self, releases, relation, epsilons, scale):
        return hockey_sticks(np.array(self.here), np.array(self.there), epsilons)

    def renyi(self, orders, relation):
        return divergences(np.array(self.here), np.array(self.there), orders)


def hockey_sticks(p, q, epsilons):
    grown = np.exp(epsilons)[:, None]
    return np.max([np.maximum(a - grown * b, 0).sum(axis=1) for a, b in ((p, q), (q, p))], axis=0)


def divergences(p, q, orders):
    both = [np.log(np.sum(a ** orders[:, None] * b ** (1 - orders[:, None]), axis=1))
            for a, b in ((p, q), (q, p))]  # fmt: skip
    return np.max(both, axis=0) / (orders - 1)


def best_of(p, order, weights):
    """Probabilities of the released output: K draws from ``p``, the last in ``order`` wins."""
    below = np.concatenate([[0.0], np.cumsum(p[order])])
    of_all = np.sum(weights * below[:, None] ** np.arange(1, len(weights) + 1), axis=1)
    released = np.empty(len(p))
    released[order] = np.diff(of_all)
    return released


def attained(p, q, number, epsilons, orders):
    """The largest profile and divergences over all orders of the outputs."""
    profile, divergence = np.zeros(len(epsilons)), np.zeros(len(orders))
    for order in map(list, itertools.permutations(range(len(p)))):
        here, there = (best_of(one, order, number.probabilities) for one in (p, q))
        assert here.sum() == pytest.approx(1, abs=1e-12)
        profile = np.maximum(profile, hockey_sticks(here, there, epsilons))
        divergence = np.maximum(divergence, divergences(here, there, orders))
    return profile, divergence


def neighbours(seed, outputs=5):
    random = np.random.default_rng(seed)
    p = random.dirichlet(np.full(outputs, 2.0))
    q = p * np.exp(random.normal(size=outputs) / 2)
    return p, q / q.sum()


EPSILONS = np.linspace(0, 3, 31)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("seed", range(4))
def test_no_order_of_the_outputs_spends_more_than_is_claimed(law, seed):
    p, q = neighbours(seed)
    number = NumberOfTrials(*law)
    one = Enumerated("training", 1, 1.0, here=tuple(p), there=tuple(q))
    release = search(one, number=law)
    profile, divergence = attained(p, q, number, EPSILONS, ORDERS)
    claimed = deltas(event(release), EPSILONS)
    assert (claimed >= profile - 1e-12).all()
    bound = release.renyi(ORDERS, "zero_out")
    assert (bound >= divergence - 1e-12).all()
    # Where losses are large, as those that an epsilon at a small delta is about, little is lost.
    assert bound[-1] <= 1.4 * divergence[-1]
    # One training alone is refuted by the very same enumeration.
    assert (divergence > one.renyi(ORDERS, "zero_out")).all()
    assert (profile[:5] > hockey_sticks(p, q, EPSILONS)[:5]).all()


# Gaussian trainings: integration, and an order of the outputs that attains almost all.


def integrated(number, mu, at):
    """E_Q[max over u of (f'(u) - e^at f'(w(u)) r)_+], by the trapezoidal rule."""
    z, x = np.linspace(-8, 8, 1_601), np.linspace(-8, 9, 3_401)
    k = np.arange(1, number.cap + 1)
    with np.errstate(divide="ignore"):
        logs = np.log(number.probabilities * k)
    here, there = (
        special.logsumexp(logs + (k - 1) * special.log_ndtr(at)[:, None], axis=1)
        for at in (z, z - mu)
    )
    largest = np.zeros(len(x))
    for a, b in zip(here, there, strict=True):
        loss = mu * x + mu**2 / 2 + a - b - at
        largest = np.maximum(largest, -np.exp(a) * np.expm1(-np.maximum(loss, 0)))
    return np.trapezoid(largest * stats.norm.pdf(x), x)


@pytest.mark.parametrize("law", [(5.0, 20, 1.0), (10.0, 40, 1.0), (10.0, 40, math.inf)])
@pytest.mark.parametrize("mu", [0.07, 0.5])
def test_epsilon_is_that_of_an_independent_integration(law, mu):
    number = NumberOfTrials(*law)
    claimed = epsilon(event(gaussian(mu, number=law)), DELTA, "zero_out")
    found = optimize.brentq(
        lambda at: math.log(max(integrated(number, mu, at), 1e-300) / DELTA), 0.01, 9, xtol=1e-6
    )
    assert found < claimed * (1 + 1e-4) and claimed < 1.015 * found


def attack(number, mu, at):
    """Delta at epsilon ``at`` of one order of the outputs of N(0, 1), against N(-mu, 1).

    The largest losses, above t, rank just over those from c to t, and all others above them: there
    the neighbour's trainings rank lower than they do here.
    """
    t = np.linspace(1, 9, 300)
    c = np.minimum(np.linspace(-6, 6, 300)[:, None], t)
    below = special.ndtr(t) - special.ndtr(c)
    theirs = special.ndtr(t + mu) - special.ndtr(c + mu)
    tail, their_tail = special.ndtr(-t), special.ndtr(-t - mu)
    gained = number.derivative(below) * tail
    paid = number.derivative(theirs + their_tail) * their_tail
    return np.max(gained - math.exp(at) * paid)


@pytest.mark.parametrize("law", [(5.0, 20, 1.0), (10.0, 20, 1.0), (32.0, 128, 1.0)])
@pytest.mark.parametrize("mu", [0.07, 0.15, 0.4])
def test_an_order_of_the_outputs_attains_nearly_all_of_the_claim(law, mu):
    number = NumberOfTrials(*law)
    claimed = epsilon(event(gaussian(mu, number=law)), DELTA, "zero_out")
    found = optimize.brentq(
        lambda at: math.log(max(attack(number, mu, at), 1e-300) / DELTA), 1e-3, 30
    )
    assert 0.975 * claimed < found < claimed
    # What one training spends is far below.
    one = epsilon(event(Release("training", 1, 1 / mu)), DELTA, "zero_out")
    assert one < 0.9 * found


class Fixed:
    """A number of trainings that is not random."""

    def __init__(self, trials):
        self.trials = trials

    def derivative(self, x):
        return self.trials * x ** (self.trials - 1)


@pytest.mark.parametrize("drawn", [NumberOfTrials(10.0, 20), Fixed(10)], ids=["cap", "fixed"])
@pytest.mark.parametrize("mu", [0.15, 0.4])
def test_a_cap_that_is_not_accounted_and_a_number_that_is_fixed_are_refuted(drawn, mu):
    """The claim of a geometric number without a cap, the outputs of others of the same mean."""
    claimed = epsilon(event(gaussian(mu, number=(10.0, 400, 1.0))), DELTA, "zero_out")
    assert attack(NumberOfTrials(10.0, 400), mu, claimed) < DELTA
    assert attack(drawn, mu, claimed) > 2 * DELTA


@pytest.mark.parametrize("mu", [0.07, 0.4])
def test_a_search_booked_as_one_training_is_refuted(mu):
    booked = epsilon(event(Release("training", 1, 1 / mu)), DELTA, "zero_out")
    assert attack(NumberOfTrials(10.0, 40), mu, booked) > 20 * DELTA


@pytest.mark.parametrize("multiplier", [8, np.float32(8), 8.0])
@pytest.mark.parametrize("shape", [0.0, 1.0, math.inf])
def test_renyi_is_below_the_theorems_and_above_a_search_by_the_loss_itself(shape, multiplier):
    """dp-accounting has the theorems; integers and float32 must not take another path there."""
    law = (10.0, 300, shape) if shape else (5.0, 300, shape)
    release = search(Release("training", 1, multiplier), number=law)
    mu, number = 1 / 8, NumberOfTrials(*law)
    accountant = dp_accounting.rdp.RdpAccountant(ORDERS.tolist())
    theorem = accountant.compose(release.dp_event).rdp
    ours = release.renyi(ORDERS, "zero_out")
    # With a cap so high, and but for what is accounted in cells.
    assert (ours <= theorem * (1 + 1e-3)).all()
    assert (ours < 0.8 * theorem)[3] and (ours[:3] < 0.7 * theorem[:3]).all()
    x = np.linspace(-12, 40, 40_001)

    def released(shift):
        return np.log(number.derivative(special.ndtr(x - shift))) + stats.norm.logpdf(x - shift)

    for here, there in ((released(0.0), released(mu)), (released(mu), released(0.0))):
        logs = ORDERS[:, None] * here + (1 - ORDERS[:, None]) * there
        true = (special.logsumexp(logs, axis=1) + math.log(x[1] - x[0])) / (ORDERS - 1)
        assert (ours >= true).all()


def test_a_search_without_a_theorem_has_no_event_of_dp_accounting():
    one = search(Release("training", 1, 8.0), number=(20.5, 40, 1.0))
    assert isinstance(one.dp_event, dp_accounting.UnsupportedDpEvent)
    assert isinstance(gaussian(0.1).dp_event, dp_accounting.dp_event.RepeatAndSelectDpEvent)


# As a release.


BATCHES = poisson(100, 1_000, budget=PrivacyBudget(1.0, 1e-2), count=20, max_batch_size=150)
TRAININGS = {
    "gaussian": (Release("gradient", 20, 30.0), Release("accuracy", 1, 20.0)),
    "poisson": (
        BATCHES.release("gradient", 20, noise_multiplier=4.0, relation="zero_out"),
        Release("accuracy", 1, 20.0),
    ),
    "selection": (SelectionRelease("selection", 1, gumbel_multiplier(0.1)),),
}


@pytest.mark.parametrize("kind", TRAININGS)
def test_a_search_goes_through_json_and_scales(kind):
    release = search(*TRAININGS[kind], public_score=True)
    fields = json.loads(json.dumps(release.to_fields()))
    assert Release.from_fields(fields) == release
    json.dumps(release.to_json())
    one = event(release)
    half = event(release.scaled(2.0))
    assert epsilon(half, 1e-3, "zero_out") < epsilon(one, 1e-3, "zero_out")
    np.testing.assert_allclose(
        deltas(one, np.array([0.5, 1.0]), 2.0), deltas(half, np.array([0.5, 1.0])), rtol=1e-12
    )
    described = describe(release)
    assert all(describe(part) in described for part in release.trainings[0])
    assert "32 declared settings" in described and "40 trainings are made" in described
    assert "public records" in described


@pytest.mark.parametrize("kind", TRAININGS)
def test_epsilon_and_delta_are_inverse_and_above_those_of_one_training(kind):
    release, delta = search(*TRAININGS[kind]), 1e-3
    spent = epsilon(event(release), delta, "zero_out")
    assert deltas(event(release), np.array([spent]))[0] == pytest.approx(delta, rel=1e-6)
    looser = epsilon(event(release), delta, "zero_out", "rdp")
    alone = epsilon(Event(TRAININGS[kind], "zero_out"), delta, "zero_out")
    assert alone < spent < looser < 3.5 * alone


def test_what_is_hidden_whatever_the_epsilon_has_none():
    assert epsilon(event(gaussian(1e-3)), 0.4, "zero_out") == 0.0
    assert epsilon(event(gaussian(200.0)), 1e-9, "zero_out") == math.inf


def test_what_batches_may_lack_is_charged_for_every_training():
    release = search(*TRAININGS["poisson"])
    failed = TRAININGS["poisson"][0].failure_probability * 20
    assert release.failure_probability == pytest.approx(10 * failed)
    assert not release.without_failures().failure_probability
    at = np.array([1.0, 2.0])
    charged = deltas(event(release), at) - deltas(event(release.without_failures()), at)
    # By total variation a failure counts with (1 + e^epsilon); in the profile about as much.
    np.testing.assert_allclose(charged, (1 + np.exp(at)) * 10 * failed, rtol=0.05)


def test_settings_of_different_loss_cost_the_largest():
    loud, quiet = (Release("training", 1, nm) for nm in (8.0, 10.0))
    number = NumberOfTrials(10, 40)
    both = SearchRelease.of([(quiet,), (loud,), (quiet,)], number, settings=3)
    assert both.trainings == ((quiet,), (loud,))
    assert "other settings" in describe(both)
    assert epsilon(event(both), DELTA, "zero_out") == pytest.approx(
        epsilon(event(search(loud)), DELTA, "zero_out"), rel=1e-9
    )
    # The first one is printed, and kept though the other one covers it.
    assert SearchRelease.of([(loud,), (quiet,)], number, settings=2).trainings == ((loud,),)
    sampled = TRAININGS["poisson"]
    mixed = SearchRelease.of([sampled, (quiet,), sampled], number, settings=3)
    assert len(mixed.trainings) == 2
    for releases in (sampled, (quiet,)):
        alone = epsilon(event(search(*releases)), 1e-3, "zero_out")
        assert epsilon(event(mixed), 1e-3, "zero_out") >= alone * (1 - 1e-9)


def test_sensitivities_and_words_do_not_tell_trainings_apart():
    one, other = (Release("gradient", 2, 3.0, sensitivity=s) for s in (1.0, 2.0))
    assert accounting_key([one]) == accounting_key([other])
    assert accounting_key([one]) != accounting_key([dataclasses.replace(one, count=3)])


def test_composition_by_privacy_losses_is_refused_and_by_renyi_is_a_sum():
    release, more = gaussian(0.1), Release("later", 1, 20.0)
    both = Event((release, more), "zero_out")
    with pytest.raises(ValueError, match="accountant='rdp'"):
        epsilon(both, DELTA, "zero_out")
    with pytest.raises(ValueError, match="no privacy loss distribution"):
        release.privacy_loss("zero_out")
    assert renyi(both, 8.0) == pytest.approx(renyi(event(release), 8.0) + 8 / 800)
    spent = epsilon(both, DELTA, "zero_out", "rdp")
    assert spent > epsilon(event(release), DELTA, "zero_out", "rdp")
    twice = compose([event(release)] * 2)
    assert renyi(twice, 8.0) == pytest.approx(2 * renyi(event(release), 8.0))


def test_a_ledger_books_a_search_and_one_of_unsampled_runs_refuses_it(tmp_path):
    one, budget = event(gaussian(0.1)), PrivacyBudget(2.0, 1e-5)
    with (
        Ledger.create(tmp_path / "gaussian", budget, unsampled=True) as ledger,
        pytest.raises(ValueError, match=r"samples or selects.*--unsampled"),
    ):
        ledger.check(one)
    with Ledger.create(tmp_path / "all", budget, renyi_order=16.0) as ledger:
        ledger.reserve(run_id="search", event=one, label="visits", config_hash="0")
    with Ledger.read(tmp_path / "all") as ledger:
        (entry,) = ledger.entries
        assert entry.overflow == 0.0
        # No second one composes with it exactly, so all of delta is the Renyi book's.
        held = Books(budget, 16.0, draws=most_draws(budget)).single.renyi
        assert entry.cost == pytest.approx(renyi(one, 16.0) / held)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: search(), "at least one training"),
        (lambda: search(gaussian(0.1)), "no other search"),
        (lambda: search(Release("a", 1, 1.0), settings=0), "settings"),
        (lambda: dataclasses.replace(gaussian(0.1), count=2), "one release"),
        (lambda: search(PerturbationRelease("tilt", 1, 1.0)).renyi(ORDERS, "zero_out"), "no Renyi"),
    ],
)
def test_a_search_that_is_none_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_training_that_no_ledger_books_is_in_no_search_that_one_does(tmp_path):
    release = search(PerturbationRelease("tilt", 1, 1.0))
    assert "objective perturbation" in release.ledger_objection
