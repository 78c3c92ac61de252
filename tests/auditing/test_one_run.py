"""The bound from one run: honest ones stay below the claim, planted bugs are refuted."""

import types

import numpy as np
import pytest
from scipy import stats

from dpjax.accounting import one_run as bounds
from dpjax.auditing import one_run
from dpjax.auditing.claims import SampledGaussianClaim

DELTA, CANARIES = 1e-5, 1_000
RATE, STEPS, MULTIPLIER = 0.05, 60, 1.0


def claim():
    return SampledGaussianClaim(MULTIPLIER, RATE, STEPS, "zero_out")


def trained(rng, runs, noise=MULTIPLIER, rate=RATE, shared=0.0):
    """Coins and scores of so many trainings of Poisson batches; each canary has a coordinate."""
    coins = rng.random((runs, CANARIES)) < 0.5
    scores = np.zeros(coins.shape)
    for _ in range(STEPS):
        draws = rng.normal(size=coins.shape) * np.sqrt(1 - shared)
        draws += rng.normal(size=(runs, 1)) * np.sqrt(shared)
        answer = coins * (rng.random(coins.shape) < rate) + noise * draws
        # The log-likelihood ratio of the claim: what an attacker knows who does not know the bug.
        ratio = np.exp((2 * answer - 1) / (2 * MULTIPLIER**2))
        scores += np.log1p(RATE * (ratio - 1))
    return coins, scores


def right_guesses(coins, scores, guesses):
    order = np.argsort(scores, 1)
    ranked = np.take_along_axis(coins, order, 1)
    half = guesses // 2
    return ranked[:, -half:].sum(1) + (~ranked[:, :half]).sum(1)


def test_of_200_honest_runs_none_is_above_the_claim():
    # Each is, with probability 0.001 at most; the bounds rise with the right guesses, so that the
    # luckiest run speaks for all.
    coins, scores = trained(np.random.default_rng(1), 200)
    for guesses, independent in ((CANARIES, True), (CANARIES // 5, False)):
        luckiest = right_guesses(coins, scores, guesses).argmax()
        result = one_run(scores[luckiest], coins[luckiest], claim(), DELTA, independent=independent)
        assert 0 < result.epsilon < result.claimed and not result.refuted


@pytest.mark.parametrize(
    "bug",
    [{"noise": MULTIPLIER / 2}, {"rate": 4 * RATE}, {"noise": 0.0}],
    ids=["half the noise", "four times the batch", "no noise"],
)
def test_a_planted_bug_is_refuted_by_1000_canaries(bug):
    coins, scores = trained(np.random.default_rng(2), 10, **bug)
    least = right_guesses(coins, scores, CANARIES).argmin()
    result = one_run(scores[least], coins[least], claim(), DELTA, independent=True)
    assert result.refuted and result.claimed < result.epsilon < np.inf


def test_noise_shared_by_the_canaries_is_refuted():
    # Each score has the noise that is claimed, but what they share moves no rank.
    coins, scores = trained(np.random.default_rng(3), 1, shared=0.9)
    assert one_run(scores[0], coins[0], claim(), DELTA, independent=True).refuted


def test_no_bound_is_fooled_by_a_mechanism_that_fails_as_a_whole():
    # With probability 0.1 it shows all coins, else nothing: (0, 0.1)-private, and its trade-off
    # curve is 1 - 0.1 - a. All guesses are right in a tenth of the runs.
    fails = types.SimpleNamespace(curve=lambda scale: lambda a: np.maximum(1 - 0.1 / scale - a, 0))
    fails.delta = lambda scale: 0.1 / scale
    for level, explained in ((0.09, True), (0.105, False)):
        scale = bounds.curve_bound(CANARIES, CANARIES, CANARIES, fails, level)
        assert (scale >= 1) == explained
    # Where independence is claimed too, this mechanism is refuted.
    assert bounds.independent_bound(CANARIES, CANARIES, fails, 0.001) < 1


@pytest.mark.parametrize("guesses", [2, 20])
def test_the_curve_bound_holds_for_independent_coins_exactly(guesses):
    # Randomized response has the curve of (epsilon, 0), and C is binomial: no p-value is too small.
    size = 20
    for epsilon in (0.5, 2.0):
        slope = np.exp(epsilon)

        def curve(a, slope=slope):
            return np.maximum(0, np.maximum(1 - slope * a, (1 - a) / slope))

        kept = types.SimpleNamespace(curve=lambda scale, curve=curve: curve)
        law = stats.binom(guesses, slope / (1 + slope))
        for correct in range(1, guesses + 1):
            level = law.sf(correct - 1) * 0.999
            assert bounds.curve_bound(size, guesses, correct, kept, level) > 1


def test_what_is_no_coin_is_refused():
    coins, scores = trained(np.random.default_rng(4), 1)
    for bad in ((scores[0], coins[0] * 1.0), (scores[0][:-1], coins[0]), (scores, coins)):
        with pytest.raises(ValueError, match="one of each canary"):
            one_run(*bad, claim(), DELTA)
    with pytest.raises(ValueError, match="take 20"):
        one_run(scores[0][:5], coins[0][:5], claim(), DELTA)
    with pytest.raises(ValueError, match="must not be NaN"):
        one_run(np.where(coins[0], np.nan, scores[0]), coins[0], claim(), DELTA)
