"""Attacks on DP-Adam and the baselines; NOT PRIVATE."""

import jax.numpy as jnp
import optax

from dpjax.accounting import PrivacyBudget, gumbel_multiplier
from dpjax.algorithms import dp_adam, dp_optimizer
from dpjax.auditing import canaries, games
from dpjax.auditing.games import Game
from dpjax.baselines import (
    dp_gradient_descent_with_selection,
    dp_newton,
    dp_sgd,
    objective_perturbation,
    output_perturbation,
)
from dpjax.oracles import SelectionQuery

DELTA = 1e-5


def selection() -> Game:
    """Returns the attack on one selection, whose canary lifts one candidate and lowers the other.

    That uses up the whole range of its log-ratios.
    """
    common = (canaries.seesaw(), 2, "zero_out")
    query = SelectionQuery(
        gumbel_multiplier(3.0), 1.0, 1.0, 1.0, *common, dimension=2, candidates=2
    )
    return games.selected(query, canaries.records(), jnp.array([[0.0, 0.0], [0.0, 1.0]]))


def gradient_descent_selected() -> Game:
    """Returns the attack on a whole DP-GD with selection, 20 steps, all of them candidates."""
    algorithm = dp_gradient_descent_with_selection(
        canaries.seesaw(),
        PrivacyBudget(4.0, DELTA),
        data_size=2,
        dimension=2,
        steps=20,
        step_size=1.0,
        alpha=1.0,
        selection_epsilon=2.0,
        candidates=20,
        clip_norm=1e-3,
        hessian_clip_norm=1.0,
        hessian_lipschitz=1.0,
        certify=None,
    )
    return games.whole(algorithm, canaries.records())


def adam() -> Game:
    """Returns the attack on a whole DP-Adam that reads every record, 20 steps."""
    algorithm = dp_adam(
        canaries.alternating(),
        PrivacyBudget(4.0, DELTA),
        data_size=2,
        dimension=2,
        batch_size=2,
        steps=20,
        step_size=1.0,
        final_step_size=1.0,
        clip_norm=1e-3,
    )
    return games.whole(algorithm, canaries.records())


def optimizer() -> Game:
    """Returns the attack on a whole run of ``dp_optimizer``, 20 steps of plain SGD."""
    algorithm = dp_optimizer(
        canaries.winding(),
        PrivacyBudget(4.0, DELTA),
        data_size=2,
        dimension=2,
        optimizer=optax.sgd(1.0),
        batch_size=2,
        steps=20,
        clip_norm=1.0,
    )
    return games.whole(algorithm, canaries.records())


def newton() -> Game:
    """Returns the attack on a whole DP-Newton, 10 steps, in one parameter.

    There the canary's curvature lies along every gradient, and nothing else curves.
    """
    algorithm = dp_newton(
        canaries.bowl(),
        PrivacyBudget(4.0, DELTA),
        data_size=2,
        dimension=1,
        steps=10,
        floor=0.25,
        clip_norm=1.0,
        hessian_clip_norm=1e-3,
    )
    return games.whole(algorithm, canaries.records())


def output() -> Game:
    """Returns the attack on output perturbation, whose canary moves the minimum as far as any."""
    algorithm = output_perturbation(
        canaries.falling(), PrivacyBudget(4.0, DELTA), data_size=2, dimension=1
    )
    return games.whole(algorithm, canaries.labelled())


def stochastic_gradient() -> Game:
    """Returns the attack on a whole DP-SGD, 5 steps, 1 record in 5 a batch."""
    algorithm = dp_sgd(
        canaries.winding(),
        PrivacyBudget(4.0, DELTA),
        data_size=10,
        dimension=2,
        batch_size=2,
        steps=5,
        step_size=1.0,
        clip_norm=1.0,
    )
    return games.whole(algorithm, canaries.records(null=9))


def stochastic_step() -> Game:
    """Returns the attack on one step of DP-SGD from end to end, 1 record in 10 a batch."""
    algorithm = dp_sgd(
        canaries.dirac(),
        PrivacyBudget(8.0, DELTA),
        data_size=10,
        dimension=3,
        batch_size=1,
        steps=1,
        step_size=1.0,
        clip_norm=1.0,
    )
    return games.whole(algorithm, canaries.records(null=9))


def book_keeping() -> Game:
    """Returns the attack on one step of any optimizer on a gradient clipped by book-keeping."""
    algorithm = dp_optimizer(
        canaries.dense(),
        PrivacyBudget(8.0, DELTA),
        optimizer=optax.sgd(1.0),
        data_size=10,
        dimension=3,
        batch_size=1,
        steps=1,
        clip_norm=1.0,
        memory_limit=2**20,  # a gradient so small would be made as it is
    )
    return games.whole(algorithm, canaries.records(null=9))


def inside_objective() -> Game:
    """Returns the attack on objective perturbation, whose canary has the steepest slope."""
    algorithm = objective_perturbation(
        canaries.falling(), PrivacyBudget(4.0, DELTA), data_size=2, dimension=1
    )
    return games.whole(algorithm, canaries.labelled())
