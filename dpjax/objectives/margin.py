"""Losses of the margin m = y <x, w>: logistic, sigmoid and Welsch, and regularized forms."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._typing import Array
from dpjax.objectives.linear import Margin, unweighted
from dpjax.objectives.model import Unlabelled
from dpjax.objectives.objective import Constants, LossOfScores, Objective
from dpjax.objectives.regularizers import L1, L2, Nonconvex

# With s the sigmoid: |phi'| = 1 - s, phi'' = s (1 - s), |phi'''| = s (1 - s) |1 - 2 s|.
_LOGISTIC = Constants(1.0, 1 / 4, 1 / (6 * math.sqrt(3)))
# The same one order higher; the third, s (1 - s) |1 - 6 s + 6 s^2|, is largest at 0.
_SIGMOID = Constants(1 / 4, 1 / (6 * math.sqrt(3)), 1 / 8)
# exp(-1/2) at m = 1, 1 at m = 0, and m sqrt(6) exp(-m^2 / 2) at m^2 = 3 - sqrt 6, rounded up.
_WELSCH = Constants(0.606531, 1.0, 1.3801195)


def _logistic_margin(m: Array) -> Array:
    # Not by the formula, whose exponential overflows where m is far below 0.
    return jax.nn.softplus(-m)


def _sigmoid_margin(m: Array) -> Array:
    return jax.nn.sigmoid(-m)


def _welsch_margin(m: Array) -> Array:
    return jnp.exp(-m * m / 2)


def _of(
    phi: Callable, constants: Constants, name: str, regularizer: Any = None, model: Any = None
) -> Objective:
    return Objective(LossOfScores(Margin(phi)), regularizer, phi, constants, name, model)


def logistic() -> Objective:
    """Returns the logistic loss log(1 + exp(-m)), without a regularizer.

    Reference: constants on |x| <= 1 are (1, 1/4, 1 / (6 sqrt 3)).

    >>> logistic() == logistic()
    True
    """
    return _of(_logistic_margin, _LOGISTIC, "logistic")


def logistic_l2(regularization: float = 1e-3) -> Objective:
    """Returns the logistic loss plus ``regularization`` / 2 times |w|^2.

    >>> logistic_l2(0.5).smoothness
    0.75
    """
    return _of(_logistic_margin, _LOGISTIC, "logistic-l2", L2(regularization))


def logistic_l1(regularization: float = 1e-3) -> Objective:
    """Returns the logistic loss plus ``regularization`` times the l1 norm, which is not smooth.

    >>> logistic_l1().smoothness is None
    True
    """
    return _of(_logistic_margin, _LOGISTIC, "logistic-l1", L1(regularization))


def logistic_nonconvex(regularization: float = 1e-3) -> Objective:
    """Returns the logistic loss plus ``regularization`` times the sum of w^2 / (1 + w^2).

    Reference: Wang and Xu (2020), section 5, first problem.

    >>> logistic_nonconvex().name
    'logistic-nonconvex'
    """
    return _of(_logistic_margin, _LOGISTIC, "logistic-nonconvex", Nonconvex(regularization))


def sigmoid_l2(regularization: float = 1e-3) -> Objective:
    """Returns the sigmoid loss 1 / (1 + exp(m)) plus ``regularization`` / 2 times |w|^2.

    The paper prints 1 / (1 + exp(-m)), which rewards mistakes when it is minimised.

    Reference: Wang and Xu (2020), section 5, second problem, with the sign that makes it a loss.

    >>> sigmoid_l2().constants.lipschitz
    0.25
    """
    return _of(_sigmoid_margin, _SIGMOID, "sigmoid-l2", L2(regularization))


def welsch(regularization: float) -> Objective:
    """Returns exp(-m^2 / 2) plus ``regularization`` / 2 times |w|^2: a certified strict saddle.

    At w = 0 the gradient of every record is exactly 0, and the Hessian is ``regularization`` I -
    X'X/n. With the regularization between the two largest eigenvalues of X'X/n it has exactly one
    negative direction; ``welsch_regularization`` holds public ones. An even loss: it is the same
    for both labels and predicts none.

    Args:
      regularization: strength of the l2 penalty, a public number.

    Reference: constants on |x| <= 1 are (0.6066, 1, 1.3802), rounded up.

    >>> print(welsch(0.1)(jnp.zeros(2), (jnp.ones(2), jnp.array(1.0))))
    1.0
    """
    return _of(_welsch_margin, _WELSCH, "welsch", L2(regularization), Unlabelled())


def has_proven_constants(objective: Objective) -> bool:
    """Returns whether the constants of ``objective`` are proven: those of a loss that states so.

    >>> has_proven_constants(logistic()), has_proven_constants(Objective(lambda w, e: 0.0))
    (True, False)
    """
    known: Any = {_logistic_margin: _LOGISTIC, _sigmoid_margin: _SIGMOID, _welsch_margin: _WELSCH}
    # Weights of at most 1 leave proven constants what they are.
    form = unweighted(objective.linear)
    phi = form.phi if type(form) is Margin else objective.margin
    proven = known.get(phi)
    # What a class states of itself: one made of it may have other derivatives.
    if phi is None and vars(type(form)).get("proven"):
        proven = getattr(form, "constants", None)
    # The numbers must match too: a copy of the objective may have replaced them.
    return objective.constants is not None and proven == objective.constants
