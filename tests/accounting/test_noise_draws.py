"""What drawing noise by integers is charged: the bound, who is charged for it, and ledgers."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from factories import DELTA_ONLY, ENTRIES, SPIDERS, make, toy, toy_records
from scipy import stats

import dpjax
from dpjax.accounting import Event, Ledger, PrivacyBudget, Release, epsilon, noise_draws
from dpjax.accounting import events as accounting
from dpjax.accounting.filters import Books, most_draws
from dpjax.driver import asking

BUDGET = PrivacyBudget(1.0, 1e-6)


def gaussian(multiplier=4.0, count=1, draws=0):
    release = Release("gradient", count, noise_multiplier=multiplier, noise_draws=draws)
    return Event((release,), "zero_out")


# The bound.


def test_few_numbers_cost_little_and_a_billion_no_more_than_was_expected():
    """Three steps of DP-TR at p = 54, a network's 10^9 numbers, and a ledger's 2^40."""
    costs = [noise_draws.charge(draws).epsilon for draws in (3 * 54 * 55, 10**9, 2**40)]
    assert costs[0] < 5e-9 and costs[1] < 1.5e-6 and costs[2] < 5e-5
    assert noise_draws.charge(0) == (0.0, 1.0)
    # Tails: of a network's 10^10 numbers at (8, 1e-9), and of 10^3 that are far from any neighbour.
    far = [noise_draws.tails([(10**10, noise)], 8.0) for noise in (26.0, 0.5)]
    assert far[0] < 4e10 and noise_draws.TAIL * far[0] < 2e-12
    assert far[1] == pytest.approx(10**10 * (1 + math.exp(8)))


@pytest.mark.parametrize("probability", [0.3, 0.5, 0.7])
@pytest.mark.parametrize("draws", [1, 8, 64])
def test_laws_that_are_off_by_the_ratio_stay_within_the_bound(draws, probability, monkeypatch):
    """Coins instead of Gaussians, whose laws are known; each off by e^eta, the worst way round."""
    eta = 0.02
    monkeypatch.setattr(noise_draws, "RATIO", eta)
    other = probability + 0.05
    heads = np.arange(draws + 1)

    def profile(epsilon, one, two):
        return np.maximum(one - math.exp(epsilon) * two, 0).sum()

    exact = [stats.binom.pmf(heads, draws, p) for p in (probability, other)]
    # Both probabilities of a coin may change by e^eta at most, and they add up to 1.
    pushed = [
        stats.binom.pmf(heads, draws, p + sign * min(p, 1 - p) * (1 - math.exp(-eta)))
        for p, sign in ((probability, -1), (other, 1))
    ]
    for one, two in ((0, 1), (1, 0)):
        for at in (0.1, 0.5, 1.0, 2.0):
            bound = noise_draws.charged_deltas(
                lambda inner, one=one, two=two: np.array(
                    [profile(each, exact[one], exact[two]) for each in inner]
                ),
                [(draws, 1e-3)],
                np.array([at]),
            )
            assert profile(at, pushed[one], pushed[two]) <= bound[0]
    # And without the charge it would be less than what the laws that are off attain.
    attained = profile(0.5, pushed[1], pushed[0])
    assert draws == 1 or attained > profile(0.5, exact[1], exact[0])


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.1])
@pytest.mark.parametrize("draws", [1, 10**4, 10**12])
@pytest.mark.parametrize("multiplier", [0.3, 1.0, 20.0])
def test_epsilon_and_deltas_are_of_one_bound(multiplier, draws, delta):
    event = gaussian(multiplier, draws=draws)
    spent, ideal = (epsilon(one, delta, "zero_out") for one in (event, event.with_exact_noise))
    if math.isinf(spent):  # so little noise that 10 standard deviations do not hide a record
        assert multiplier < 1 or (draws, delta) == (10**12, 1e-9)
        return
    charge = noise_draws.charge(draws)
    assert ideal + charge.epsilon <= spent + 1e-12
    assert accounting.deltas(event, np.array([spent]))[0] <= delta * (1 + 1e-9)
    assert accounting.deltas(event, np.array([0.0]))[0] > 0


def test_numbers_add_up_over_releases_and_parts_of_an_event():
    both = dpjax.accounting.compose([gaussian(count=3, draws=5), gaussian(count=2, draws=7)])
    assert both.noise_draws == 29
    spent = [epsilon(event, 1e-6, "zero_out") for event in (both, both.with_exact_noise)]
    assert spent[0] - spent[1] == pytest.approx(noise_draws.charge(29).epsilon, abs=1e-10)
    assert Release.from_fields(gaussian(draws=5).releases[0].to_fields()).noise_draws == 5
    for bad in (-1, None, "", 0.0, True):
        with pytest.raises(ValueError, match="noise_draws must be a whole number of at least 0"):
            gaussian(draws=bad)


@pytest.mark.parametrize("epsilon", [30.0, 100.0, 1000.0])
def test_an_epsilon_beyond_what_ten_deviations_hide_gets_noise_that_they_do(epsilon):
    """The laws of neighbours end 10 standard deviations from either: so many cannot be apart."""
    algorithm = make("dp-gd", PrivacyBudget(epsilon, 1e-6), data_size=1000, dimension=4)
    assert algorithm.epsilon() < 60 and algorithm.event.gaussian_mu < 9


# Who is charged.


def counted(name):
    algorithm = toy(name)
    asked = asking.questions(algorithm, toy_records(), np.zeros(4), asking._Counting)
    return algorithm, {one.name: one.noise_draws for one in (*asked.step, *asked.once)}


@pytest.mark.parametrize("name", ENTRIES)
def test_every_number_of_noise_is_charged(name):
    algorithm, drawn = counted(name)
    assert name in DELTA_ONLY or sum(drawn.values()) > 0
    for query in algorithm.queries:
        assert drawn[query.name] <= query.noise_draws, query.name
    parts = [part for release in algorithm.event.releases for part in release.parts()]
    charged = {part.name: part.noise_draws for part in parts}
    for query in algorithm.queries:
        assert drawn[query.name] <= charged[query.name], query.name
    if name not in SPIDERS:
        counts = {part.name: part.count for part in parts}
        each = sum(counts[query] * charged[query] for query in counts)
        assert algorithm.event.noise_draws == each
    assert algorithm.epsilon() <= BUDGET.epsilon


def test_a_setting_of_less_loss_and_more_numbers_is_charged_in_a_search():
    plan = dpjax.tuning.plan(
        lambda budget, steps: make("dp-gd", budget, data_size=5000, dimension=100, steps=steps),
        {"steps": [10, 1000]},
        BUDGET,
        trials=3,
        score=lambda params: 0.0,
    )
    assert plan.event.noise_draws == plan.release.cap * 1000 * 100
    assert plan.algorithm(0).event.noise_draws == plan.event.noise_draws


def test_a_search_is_charged_for_all_of_its_trainings():
    plan = dpjax.tuning.plan(
        lambda budget, step_size: make("dp-gd", budget, data_size=64, dimension=4, steps=2),
        {"step_size": [0.1, 1.0]},
        PrivacyBudget(4.0, 1e-4),
        trials=3,
        score=lambda params: 0.0,
    )
    assert plan.event.noise_draws == plan.release.cap * 2 * 4


@pytest.mark.parametrize(
    ("name", "draws", "laws"),
    [
        (
            "dp-tr",
            "rounding of sums, and for drawing 120 numbers of Gaussian noise. Dr",
            "real arithmetic; (2)",
        ),
        (
            "dp-sgd",
            "numbers of Gaussian noise, and for what is included in delta, above. D",
            "real arithmetic; (2)",
        ),
        (
            "prgd",
            "rounding of sums, and for what is included in delta, above. Apart",
            "in which noise that is not Gaussian has its exact law; (2)",
        ),
        (
            "spider",
            "numbers of Gaussian noise. Drawing them adds",
            "in which sums of noise have their exact laws; (2)",
        ),
        (
            "dp-gd-selected",
            "rounding of sums and scores, for drawing",
            "in which noise that is not Gaussian has its exact law; (2)",
        ),
    ],
)
def test_the_guarantee_says_what_is_charged_and_assumed(name, draws, laws):
    """Every guarantee named the exact laws of noise that most methods do not add."""
    said = " ".join(dpjax.results.guarantee.statement(toy(name), "row").split())
    assert f"for the {draws}" in said or draws in said
    assert laws in said


# Ledgers.


@pytest.mark.parametrize("epsilon", [1e-6, 0.01, 1.0, 10.0, 40.0, 600.0])
def test_the_limit_of_a_ledger_takes_a_hundredth_at_most(epsilon, tmp_path):
    budget = PrivacyBudget(epsilon, 1e-6)
    left = Books(budget, draws=most_draws(budget)).budget
    assert left.epsilon >= 0.99 * epsilon or (epsilon > 100 and left.epsilon > 45)
    assert left.delta >= 0.99 * min(budget.delta, epsilon)
    whole = gaussian(dpjax.accounting.gaussian_multiplier(budget, 1, noise_draws=10), draws=10)
    with Ledger.create(tmp_path / "ledger", budget) as ledger:
        assert ledger.remaining_epsilon == epsilon
        ledger.reserve(run_id="a", event=whole, label="l", config_hash="0")
        assert ledger.remaining == 0.0
        tiny = gaussian(1e12)
        with pytest.raises(ValueError, match="the budget is spent"):
            ledger.check(tiny)


@pytest.mark.parametrize("unsampled", [False, True])
def test_more_numbers_than_a_ledger_is_charged_for_are_refused(unsampled, tmp_path):
    half = gaussian(100.0, draws=2**39)
    with Ledger.create(tmp_path / "ledger", BUDGET, unsampled=unsampled) as ledger:
        for name in ("a", "b"):
            ledger.reserve(run_id=name, event=half, label="l", config_hash="0")
        assert [entry.draws for entry in ledger.entries] == [2**39, 2**39]
        with pytest.raises(ValueError, match="beside 1,099,511,627,776 of other runs, more than"):
            ledger.check(gaussian(1e6, draws=1))
        assert ledger.check(gaussian(1e6)) > 0


def test_runs_that_fill_a_ledger_stay_within_its_budget_with_their_numbers(tmp_path):
    """As one event, every number charged, they are the budget at most; and nearly all of it."""
    one = gaussian(dpjax.accounting.gaussian_multiplier(BUDGET, 100), draws=2**33)
    with Ledger.create(tmp_path / "ledger", BUDGET, unsampled=True) as ledger:
        taken = []
        while len(taken) < 1000:
            try:
                ledger.reserve(run_id=str(len(taken)), event=one, label="l", config_hash="0")
            except ValueError:
                break
            taken.append(one)
    spent = epsilon(dpjax.accounting.compose(taken), BUDGET.delta, "zero_out")
    more = epsilon(dpjax.accounting.compose([*taken, one]), BUDGET.delta, "zero_out")
    assert spent <= BUDGET.epsilon < more


def test_a_plan_is_paid_with_its_numbers(tmp_path):
    run = gaussian(100.0, draws=2**38)
    with Ledger.create(tmp_path / "ledger", BUDGET) as ledger:
        ledger.plan([run] * 3, label="l")
        for name in "abc":
            ledger.reserve(run_id=name, event=run, label="l", config_hash="0")
        ledger.check(gaussian(1e4, draws=2**38))
        with pytest.raises(ValueError, match="beside 824,633,720,832 of other runs"):
            ledger.check(gaussian(1e4, draws=2**39))


def test_no_place_of_a_plan_is_taken_by_more_numbers_than_it_pays_for(tmp_path):
    multiplier = dpjax.accounting.gaussian_multiplier(BUDGET, 1, noise_draws=10)
    with Ledger.create(tmp_path / "ledger", BUDGET) as ledger:
        ledger.plan([gaussian(multiplier, draws=10)], label="l")
        with pytest.raises(ValueError, match="budget is spent"):
            ledger.check(gaussian(multiplier, draws=2**50))
        assert ledger.check(gaussian(multiplier, draws=10)) == 0.0
    # Nor by as many numbers where their tails are longer.
    loud, quiet = (Release("loud", 1, 1.0, noise_draws=1), Release("quiet", 1, 50.0, noise_draws=9))
    swapped = [dataclasses.replace(one, noise_draws=10 - one.noise_draws) for one in (loud, quiet)]
    with Ledger.create(tmp_path / "other", PrivacyBudget(30.0, 1e-9)) as ledger:
        ledger.plan([Event((loud, quiet), "zero_out")], label="l")
        assert ledger.check(Event((loud, quiet), "zero_out")) == 0.0
        assert ledger.check(Event(tuple(swapped), "zero_out")) > 0.0


@pytest.mark.parametrize("multiplier", [3.0, 30.0])
def test_no_run_takes_all_of_a_ledger_in_silence(multiplier, tmp_path):
    """One that needs little of the budget is refused where it draws too many numbers."""
    with Ledger.create(tmp_path / "ledger", PrivacyBudget(20.0, 1e-9)) as ledger:
        assert ledger.check(gaussian(multiplier, draws=10**7)) < 0.5
        with pytest.raises(ValueError, match="more than this ledger is charged for: give it a"):
            ledger.check(gaussian(multiplier, draws=10**13))


def test_parts_count_their_own_numbers(tmp_path):
    one = gaussian(100.0, draws=2**40)
    with Ledger.create(tmp_path / "ledger", BUDGET, parts=["a", "b"]) as ledger:
        for part in "ab":
            ledger.of(part).reserve(run_id=part, event=one, label="l", config_hash="0")
        with pytest.raises(ValueError, match="beside 1,099,511,627,776 of other runs"):
            ledger.of("a").check(gaussian(100.0, draws=1))


def test_an_algorithm_of_more_parameters_than_its_queries_say_is_refused():
    """Also where all classes are dpjax's own."""
    algorithm = toy("dp-gd")
    query = algorithm.query
    few = dataclasses.replace(query, setting=dataclasses.replace(query.setting, dimension=2))
    algorithm = dataclasses.replace(algorithm, query=few)
    with pytest.raises(ValueError, match="adds 24 numbers of noise, and its epsilon is charged"):
        dpjax.solve(algorithm, toy_records(), key=jax.random.key(0))


def test_a_charge_is_no_step_of_its_own():
    one, other = gaussian(draws=3), gaussian(draws=4)
    assert dpjax.accounting.filters.steps(one) == dpjax.accounting.filters.steps(other)
    assert dataclasses.replace(one.releases[0], noise_draws=4) == other.releases[0]
