"""Attacks on one answer of an oracle, named in the registry; NOT PRIVATE, on synthetic records."""

from dpjax.accounting import PrivacyBudget
from dpjax.auditing import canaries, games
from dpjax.auditing.games import Game
from dpjax.oracles import AccuracyQuery, GradientQuery, HessianQuery, JointQuery
from dpjax.sampling import Poisson, poisson


def joint() -> Game:
    """Returns the attack on one joint release of gradient and Hessian."""
    query = JointQuery(1.2, 0.5, 2.0, canaries.bowl(), 2, "zero_out")
    return games.answered(query, canaries.records(), 4)


def sampled() -> Game:
    """Returns the attack on one noisy gradient of a Poisson sample, drawn by the sampler itself."""
    query = GradientQuery(0.5, 1.0, canaries.bowl(), 10, "zero_out", _one_in_ten())
    return games.answered(query, canaries.records(null=9), 3)


def sampled_joint() -> Game:
    """Returns the attack on gradient and Hessian of one Poisson sample, one release."""
    query = JointQuery(0.5, 0.5, 2.0, canaries.bowl(), 10, "zero_out", _one_in_ten())
    return games.answered(query, canaries.records(null=9), 3)


def hessian() -> Game:
    """Returns the attack on one noisy Hessian whose canary has full rank."""
    query = HessianQuery(1.2, 1.0, canaries.bowl(), 2, "zero_out")
    return games.answered(query, canaries.records(), 6)


def accuracy() -> Game:
    """Returns the attack on one noisy accuracy: the canary's label is predicted, or it is null."""
    query = AccuracyQuery(1.2, canaries.certain(), 2, "zero_out")
    return games.answered(query, canaries.nulled(), 1)


def _one_in_ten() -> Poisson:
    return poisson(1, 10, budget=PrivacyBudget(8.0, 1e-5), count=1, capacity=10)
