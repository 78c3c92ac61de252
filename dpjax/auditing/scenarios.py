"""Attack scenarios for the registry: queries, trainings, baselines; NOT PRIVATE, synthetic data."""

import functools

import jax
import jax.numpy as jnp
import optax

from dpjax._typing import Array, PyTree, Relation
from dpjax.accounting import PrivacyBudget, gaussian_multiplier, gumbel_multiplier
from dpjax.algorithms import (
    dp_accelerated_mirror_descent,
    dp_adam,
    dp_gradient_descent,
    dp_optimizer,
    dp_stochastic_trust_region,
    dp_subspace_trust_region,
    dp_svrg,
    dp_svrg_plus_plus,
    dp_trust_region,
    dpagem,
    perturbed_gradient_descent,
)
from dpjax.auditing import canaries, games
from dpjax.auditing.claims import Claim
from dpjax.auditing.games import Game
from dpjax.baselines import (
    dp_gradient_descent_with_selection,
    dp_newton,
    dp_sgd,
    objective_perturbation,
    output_perturbation,
)
from dpjax.mechanisms import derive
from dpjax.objectives import L1Ball
from dpjax.oracles import AccuracyQuery, GradientQuery, HessianQuery, JointQuery, SelectionQuery
from dpjax.sampling import Poisson, poisson
from dpjax.transforms import noisy_mean

DELTA = 1e-5


def joint() -> Game:
    """Returns the attack on one joint release of gradient and Hessian."""
    query = JointQuery(1.2, 0.5, 2.0, canaries.bowl(), 2, "zero_out")
    return games.single_answer(query, canaries.records(), 4)


def sampled_gradient() -> Game:
    """Returns the attack on one noisy gradient of a Poisson sample, drawn by the sampler."""
    query = GradientQuery(0.5, 1.0, canaries.bowl(), 10, "zero_out", _one_in_ten())
    return games.single_answer(query, canaries.records(null=9), 3)


def sampled_joint() -> Game:
    """Returns the attack on one joint release of gradient and Hessian of a Poisson sample."""
    query = JointQuery(0.5, 0.5, 2.0, canaries.bowl(), 10, "zero_out", _one_in_ten())
    return games.single_answer(query, canaries.records(null=9), 3)


def hessian() -> Game:
    """Returns the attack on one noisy Hessian whose canary has full rank."""
    query = HessianQuery(1.2, 1.0, canaries.bowl(), 2, "zero_out")
    return games.single_answer(query, canaries.records(), 6)


def accuracy() -> Game:
    """Returns the attack on one noisy accuracy, to which only the canary contributes."""
    query = AccuracyQuery(1.2, canaries.certain(), 2, "zero_out")
    return games.single_answer(query, canaries.nulled(), 1)


def gradient_descent(relation: Relation = "zero_out") -> Game:
    """Returns the attack on a full DP-GD, 20 steps.

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
    return games.training(algorithm, canaries.records(relation))


def trust_region(relation: Relation = "zero_out") -> Game:
    """Returns the attack on a full DP-TR, 5 parameters, 20 steps.

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
    return games.training(algorithm, canaries.records(relation))


def stochastic_trust_region() -> Game:
    """Returns the attack on a full DP-STR, 2 parameters, 10 steps, 1 record in 5 a batch."""
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
    return games.training(algorithm, canaries.records(null=9))


def subspace_trust_region() -> Game:
    """Returns the attack on a full DP-TR in subspaces, 3 of 8 directions, 10 steps."""
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
    return games.training(algorithm, canaries.records())


def stagewise() -> Game:
    """Returns the attack on a full DPageEM of a network, 3 stages, 1 record in 2 a batch."""
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
    return games.training(algorithm, canaries.records(null=9))


def accelerated_mirror_descent() -> Game:
    """Returns the attack on a full DP-AccMD in an l1 ball, 4 parameters, 20 steps."""
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
    return games.training(algorithm, canaries.records())


def variance_reduced(doubling: bool = False) -> Game:
    """Returns the attack on a full DP-SVRG: 5 epochs of an anchor and 20 steps on 1 record in 5.

    Far from the anchor the canary's gradient has turned, so that its difference has the largest
    norm that the distance allows.

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
    return games.training(algorithm, canaries.records(null=9))


def exact_anchor_svrg() -> Game:
    """Returns the attack on exact-anchor SVRG: 5 epochs of 20 steps around a secret gradient.

    The canary's gradient turns at the first step from an anchor. Its part of the exact gradient is
    then opposite to its contribution when it is drawn, while the accounting assumes that both are
    parallel. A large budget and few draws make that loss of power small.
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
    return games.training(algorithm, canaries.records(null=199))


def perturbed_descent() -> Game:
    """Returns the attack on a full PrGD, 5 steps, 1 record in 2 a batch, at a delta of 0.3."""
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
    return games.training(algorithm, canaries.records(null=9))


def selection() -> Game:
    """Returns the attack on one selection, whose canary raises one candidate and lowers the other.

    So it uses the full range of the log-ratios.
    """
    common = (canaries.seesaw(), 2, "zero_out")
    query = SelectionQuery(
        gumbel_multiplier(3.0), 1.0, 1.0, 1.0, *common, dimension=2, candidates=2
    )
    return games.single_selection(query, canaries.records(), jnp.array([[0.0, 0.0], [0.0, 1.0]]))


def gradient_descent_selected() -> Game:
    """Returns the attack on a full DP-GD with selection, 20 steps, all of them candidates."""
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
    return games.training(algorithm, canaries.records())


def adam() -> Game:
    """Returns the attack on a full DP-Adam that reads every record, 20 steps."""
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
    return games.training(algorithm, canaries.records())


def optimizer() -> Game:
    """Returns the attack on a full run of ``dp_optimizer``, 20 steps of plain SGD."""
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
    return games.training(algorithm, canaries.records())


def newton() -> Game:
    """Returns the attack on a full DP-Newton, 10 steps, in one parameter.

    The canary's curvature then lies along every gradient, and it is the only curvature.
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
    return games.training(algorithm, canaries.records())


def output() -> Game:
    """Returns the attack on output perturbation, whose canary moves the minimum the most."""
    algorithm = output_perturbation(
        canaries.falling(), PrivacyBudget(4.0, DELTA), data_size=2, dimension=1
    )
    return games.training(algorithm, canaries.labelled())


def stochastic_gradient() -> Game:
    """Returns the attack on a full DP-SGD, 5 steps, 1 record in 5 a batch."""
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
    return games.training(algorithm, canaries.records(null=9))


def stochastic_step() -> Game:
    """Returns the attack on one step of DP-SGD, end to end, 1 record in 10 a batch."""
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
    return games.training(algorithm, canaries.records(null=9))


def book_keeping() -> Game:
    """Returns the attack on one SGD step on a gradient clipped by book-keeping."""
    algorithm = dp_optimizer(
        canaries.dense(),
        PrivacyBudget(8.0, DELTA),
        optimizer=optax.sgd(1.0),
        data_size=10,
        dimension=3,
        batch_size=1,
        steps=1,
        clip_norm=1.0,
        memory_limit=2**20,  # otherwise so small a gradient is materialised
    )
    return games.training(algorithm, canaries.records(null=9))


def perturbed_objective() -> Game:
    """Returns the attack on objective perturbation, whose canary has the largest gradient."""
    algorithm = objective_perturbation(
        canaries.falling(), PrivacyBudget(4.0, DELTA), data_size=2, dimension=1
    )
    return games.training(algorithm, canaries.labelled())


def optax_chain() -> Game:
    """Returns the attack on a noisy mean and SGD with momentum, 4 steps, 1 record in 2 a batch.

    The attacker sees every iterate and undoes the momentum, since the decay is public. The canary
    is the first record, which empty rows of a batch repeat.
    """
    size, batch_size, steps, clip_norm, decay = 10, 5, 4, 1.0, 0.9
    pair, gradient = canaries.records(null=size - 1), jax.grad(canaries.dirac().loss)
    budget = PrivacyBudget(4.0, DELTA, pair.relation)
    sampler = poisson(batch_size, size, budget=budget, count=steps, capacity=size)
    mean = functools.partial(
        noisy_mean,
        clip_norm,
        noise_multiplier=gaussian_multiplier(budget, steps, sampler=sampler),
        sampler=sampler,
        relation=budget.relation,
        per_example=True,
    )
    # The event of a chain does not depend on its key.
    event = mean(key=jax.random.key(0)).event(steps)
    stddev = event.releases[0].stddev
    shift, q = clip_norm / batch_size / stddev, batch_size / size

    def run(key: Array, records: PyTree) -> Array:
        noise = mean(key=derive(key, "noise", 0))
        optimizer = optax.chain(noise, optax.sgd(1.0, momentum=decay))
        params, before, score = jnp.zeros(3), jnp.zeros(3), jnp.zeros(())
        state = optimizer.init(params)
        for step in range(steps):
            batch = sampler.sample(derive(key, "sample", step), size)
            gradients = jax.vmap(gradient, (None, 0))(params, records[batch.indices])
            updates, state = optimizer.update(gradients, state, params, mask=batch.mask)
            previous, params = params, jnp.asarray(optax.apply_updates(params, updates))
            velocity = previous - params
            answer = (velocity - decay * before)[0] / stddev
            score += jnp.logaddexp(jnp.log1p(-q), jnp.log(q) + shift * (answer - shift / 2))
            before = velocity
        return score

    return Game(Claim(event), pair, run, 2**12)


def _one_in_ten() -> Poisson:
    return poisson(1, 10, budget=PrivacyBudget(8.0, 1e-5), count=1, capacity=10)
