"""Attacks on a whole private random search, from its draw to the training it releases; NOT PRIVATE.

The attacker sees the released parameters and score, and knows all that is public: the settings, the
distribution of the number of trainings, and the law of one training on either data set. The density
of what is released is f'(u) times that of one training, u the probability that one training scores
lower, so the log-likelihood ratio is known in closed form.
"""

import functools
from collections.abc import Callable

import jax.numpy as jnp
from jax.scipy.special import ndtr

from dpjax._typing import Array, Params, PyTree
from dpjax.accounting import NumberOfTrials, PrivacyBudget
from dpjax.algorithms import dp_gradient_descent
from dpjax.auditing import canaries
from dpjax.auditing.claims import Claim
from dpjax.auditing.games import Game
from dpjax.tuning import SearchPlan, plan
from dpjax.tuning import trials as _trials
from dpjax.tuning.score import ScoreFunction

_SIZE = 2
# Below this quantile of the noise a training ranks above all others. The neighbour's trainings,
# which have one record more, rank lower then, while those in doubt about the record win.
_TURN = -1.0
# One setting, drawn from two that are the same: what differs would tell, and weaken the attack.
_SETTINGS = [{"step_size": 1.0}, {"step_size": 1.0}]


def by_parameters(search: Callable[..., _trials.Best] = _trials.search) -> Game:
    """Returns the attack on a search whose score is a public function of the parameters.

    The function is the worst known: it puts the largest losses where few trainings are better for
    the data set and many for its neighbour.

    >>> round(by_parameters().claim.epsilon(1e-5), 2)
    2.6
    """
    return _game(search, accuracy=False)


def by_accuracy(search: Callable[..., _trials.Best] = _trials.search) -> Game:
    """Returns the attack on a search by the noisy accuracy on the records that it trains on.

    >>> [release.name for release in by_accuracy().claim.event.releases[0].trainings[0]]
    ['gradient', 'accuracy']
    """
    return _game(search, accuracy=True)


def _game(search: Callable[..., _trials.Best], *, accuracy: bool) -> Game:
    """One step of one parameter, which the canary moves by the whole sensitivity."""
    make = functools.partial(
        dp_gradient_descent,
        canaries.LOSSES["slope"],
        data_size=_SIZE,
        dimension=1,
        steps=1,
        clip_norm=1.0,
        certify=None,
    )
    score = "accuracy" if accuracy else _unused
    budget = PrivacyBudget(2.6, 1e-5, "zero_out")
    planned = plan(make, _SETTINGS, budget, trials=4.0, cap=12, score=score, score_share=0.5)
    by = None if accuracy else ScoreFunction(_Turned(_stddev(planned)))
    attack = functools.partial(_log_ratio, planned, by)

    def run(key: Array, records: PyTree) -> Array:
        start, number = jnp.zeros(1), planned.release.number
        return attack(search(planned.algorithms, records, key, start, number, by))

    return Game(Claim(planned.event), canaries.nulled(), run, 2**12)


def _log_ratio(planned: SearchPlan, by: ScoreFunction | None, best: _trials.Best) -> Array:
    """Log-likelihood ratio, canary to none, of the released parameter and score."""
    number, stddev = planned.release.number, _stddev(planned)
    # The step is minus the gradient, which the canary moves from 0 to 1 / n.
    at, shift = best.solution.params[0] / stddev, -1 / _SIZE / stddev
    ratio = shift * (at - shift / 2)
    if by is None:
        noise = float(planned.algorithms[0].queries[-1].stddev)
        place, moved = best.score / noise, 1 / _SIZE / noise
        ratio += moved * (place - moved / 2)
        # The probability that one training scores lower, without the canary and with it.
        below, theirs = ndtr(place), ndtr(place - moved)
    else:
        below, theirs = (_rank(at, shift) for shift in (0.0, shift))
    return ratio + jnp.log(_derivative(number, theirs) / _derivative(number, below))


def _rank(at: Array, shift: Array | float) -> Array:
    """Probability of ranking below ``at`` for a parameter at ``shift``, both over the noise."""
    turn, here = ndtr(_TURN - shift), ndtr(at - shift)
    return jnp.where(at < _TURN, 1 - turn + here, here - turn)


class _Turned:
    """The score of ``by_parameters``: the rank of a parameter without the canary."""

    def __init__(self, stddev: float):
        self._stddev = stddev

    def __call__(self, params: Params) -> Array:
        return _rank(params[0] / self._stddev, 0.0)


def _unused(params: Params) -> Array:
    return params[0]


def _stddev(planned: SearchPlan) -> float:
    return float(planned.algorithms[0].queries[0].stddev)


def _derivative(number: NumberOfTrials, x: Array) -> Array:
    # f(u) is the sum of P(K = k) u^k, so that f' has the coefficients k P(K = k).
    coefficients = number.probabilities * jnp.arange(1, number.cap + 1)
    return jnp.polyval(coefficients[::-1], x)
