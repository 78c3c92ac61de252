"""Attacks on whole trainings, by name in the registry; NOT PRIVATE, on synthetic records only."""

from dpjax._typing import Relation
from dpjax.accounting import PrivacyBudget
from dpjax.algorithms import (
    dp_accelerated_mirror_descent,
    dp_gradient_descent,
    dp_stochastic_trust_region,
    dp_subspace_trust_region,
    dp_svrg,
    dp_svrg_plus_plus,
    dp_trust_region,
    dpagem,
    perturbed_gradient_descent,
)
from dpjax.auditing import canaries, games
from dpjax.auditing.games import Game
from dpjax.objectives import L1Ball

DELTA = 1e-5


def gradient_descent(relation: Relation = "zero_out") -> Game:
    """Returns the attack on a whole DP-GD, 20 steps.

    Args:
      relation: of the budget and of the data sets.
    """
    algorithm = dp_gradient_descent(
        canaries.alternating(),
        PrivacyBudget(4.0, DELTA, relation),
        data_size=2,
        dimension=2,
        steps=20,
        step_size=1.0,
        clip_norm=1e-3,
        certify=None,
    )
    return games.whole(algorithm, canaries.records(relation))


def trust_region(relation: Relation = "zero_out") -> Game:
    """Returns the attack on a whole DP-TR, 5 parameters, 20 steps.

    Args:
      relation: of the budget and of the data sets.
    """
    algorithm = dp_trust_region(
        canaries.winding(),
        PrivacyBudget(3.341, DELTA, relation),
        data_size=2,
        dimension=5,
        steps=20,
        clip_norm=1.0,
        hessian_clip_norm=3.0,
        certify=None,
    )
    return games.whole(algorithm, canaries.records(relation))


def stochastic_trust_region() -> Game:
    """Returns the attack on a whole DP-STR, 2 parameters, 10 steps, 1 record in 5 a batch."""
    algorithm = dp_stochastic_trust_region(
        canaries.winding(),
        PrivacyBudget(4.0, DELTA),
        data_size=10,
        dimension=2,
        batch_size=2,
        steps=10,
        clip_norm=1.0,
        hessian_clip_norm=3.0,
    )
    return games.whole(algorithm, canaries.records(null=9))


def subspace_trust_region() -> Game:
    """Returns the attack on a whole DP-TR in subspaces, 3 of 8 directions, 10 steps."""
    algorithm = dp_subspace_trust_region(
        canaries.winding(),
        PrivacyBudget(3.341, DELTA),
        data_size=2,
        dimension=8,
        subspace_dimension=3,
        steps=10,
        clip_norm=1.0,
        hessian_clip_norm=3.0,
    )
    return games.whole(algorithm, canaries.records())


def stagewise() -> Game:
    """Returns the attack on a whole DPageEM of a network, 3 stages, 1 record in 2 a batch."""
    algorithm = dpagem(
        canaries.network(),
        PrivacyBudget(4.0, DELTA),
        data_size=10,
        dimension=7,
        batch_size=5,
        first_steps=2,
        stages=3,
        step_size=0.5,
        clip_norm=1.0,
    )
    return games.whole(algorithm, canaries.records(null=9))


def accelerated_mirror_descent() -> Game:
    """Returns the attack on a whole DP-AccMD in an l1 ball, 4 parameters, 20 steps."""
    algorithm = dp_accelerated_mirror_descent(
        canaries.winding(),
        PrivacyBudget(4.0, DELTA),
        data_size=2,
        dimension=4,
        domain=L1Ball(5.0),
        steps=20,
        smoothness=1.0,
        clip_norm=1.0,
    )
    return games.whole(algorithm, canaries.records())


def variance_reduced(doubling: bool = False) -> Game:
    """Returns the attack on a whole DP-SVRG: 5 epochs of an anchor and 20 steps on 1 record in 5.

    Far from the anchor the canary's gradient has turned, so that its difference has the full norm
    that the distance allows.

    Args:
      doubling: attack DP-SVRG++ instead, in 3 epochs of 6, 12 and 24 steps.
    """
    common = {"data_size": 10, "dimension": 5, "batch_size": 2, "step_size": 2.0}
    common |= {"clip_norm": 1.0, "smoothness": 0.01}
    budget = PrivacyBudget(4.0, DELTA)
    if doubling:
        algorithm = dp_svrg_plus_plus(
            canaries.winding(), budget, epochs=3, epoch_length=3, **common
        )
    else:
        algorithm = dp_svrg(canaries.winding(), budget, epochs=5, epoch_length=20, **common)
    return games.whole(algorithm, canaries.records(null=9))


def printed_variance_reduced() -> Game:
    """Returns the attack on DP-SVRG as printed: 5 epochs of 20 steps around a secret anchor.

    The canary's gradient turns as soon as an anchor is left. Its part of the exact gradient there
    then pulls against what it does when it is drawn, where the accounting takes both as parallel:
    hence a large budget and few draws, in which that costs little.
    """
    algorithm = dp_svrg(
        canaries.departing(),
        PrivacyBudget(10.0, DELTA),
        data_size=200,
        dimension=2,
        batch_size=1,
        epochs=5,
        epoch_length=20,
        step_size=1.0,
        clip_norm=1e-3,
        smoothness=0.01,
        anchor="exact",
    )
    return games.whole(algorithm, canaries.records(null=199))


def perturbed_descent() -> Game:
    """Returns the attack on a whole PrGD, 5 steps, 1 record in 2 a batch, at a delta of 0.3."""
    algorithm = perturbed_gradient_descent(
        canaries.winding(),
        PrivacyBudget(4.0, 0.3),
        data_size=10,
        dimension=2,
        batch_size=5,
        steps=5,
        step_size=1.0,
        clip_norm=1.0,
        acknowledge_weak_delta=True,
    )
    return games.whole(algorithm, canaries.records(null=9))
