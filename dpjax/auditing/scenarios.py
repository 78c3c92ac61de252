"""Attack scenarios: queries, whole runs, chains and searches; NOT PRIVATE, synthetic data."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.special import ndtr

from dpjax._typing import Array, PyTree
from dpjax.accounting import Event, PrivacyBudget, Release, gaussian_multiplier, gumbel_multiplier
from dpjax.algorithms import ALL, Entry, Scenario, dp_gradient_descent, with_accuracy, with_count
from dpjax.algorithms.histogram import histograms
from dpjax.auditing import canaries, games
from dpjax.auditing.canaries import NeighbouringPair
from dpjax.auditing.claims import Claim
from dpjax.auditing.games import Game
from dpjax.mechanisms import PrefixNoise, derive
from dpjax.objectives import Objective
from dpjax.oracles import AccuracyQuery, CountQuery, Query, SelectionQuery, Setting
from dpjax.sampling import poisson
from dpjax.transforms import noisy_mean
from dpjax.tuning import SearchPlan, plan
from dpjax.tuning import trials as _trials
from dpjax.tuning.score import ScoreFunction

DELTA = 1e-5


def full_run(entry: Entry, scenario: Scenario | None = None) -> Game:
    """Returns the attack on a full run of an algorithm."""
    scenario = entry.scenario if scenario is None else scenario
    loss = canaries.LOSSES[scenario.loss]
    if scenario.max_records > 1:
        loss = loss.of_units()
    algorithm = entry.factory(
        loss,
        PrivacyBudget(scenario.epsilon, scenario.delta, scenario.relation),
        data_size=scenario.data_size,
        dimension=scenario.dimension,
        **scenario.settings,
    )
    pair_of = canaries.records if loss.margin is None else canaries.labelled
    pair = pair_of(scenario.relation, scenario.data_size - 1)
    if loss.model is not None:  # which predicts a label
        pair = canaries.nulled()
    if scenario.settings.get("sampling") == "without_replacement":
        # Where all others are as the record that it replaces, a subset hides the canary least.
        pair = canaries.records(scenario.relation, scenario.data_size - 1, rest=-1.0)
    if scenario.max_records > 1:
        pair = canaries.persons(pair, scenario.max_records)
    return games.training(algorithm, pair)


def _again(name: str, **changes: Any) -> tuple[Entry, Scenario]:
    """An entry, and its scenario with other settings."""
    scenario = ALL[name].scenario
    changes["settings"] = scenario.settings | changes.get("settings", {})
    return ALL[name], dataclasses.replace(scenario, **changes)


def _ending_with(ending: Callable[..., Any], **share: float) -> tuple[Entry, Scenario]:
    """DP-GD that spends most of its budget on a question at its end."""

    def factory(objective: Objective, budget: PrivacyBudget, **settings: Any) -> Any:
        make = functools.partial(dp_gradient_descent, objective, **settings)
        return ending(make, budget, **share)

    settings = {"steps": 10, "step_size": 1e-3, "clip_norm": 1e-3}
    scenario = Scenario(loss="slope", settings=settings, dimension=1)
    return dataclasses.replace(ALL["dp-gd"], factory=factory), scenario


_ONE_STEP: dict[str, Any] = {"batch_size": 1, "steps": 1, "clip_norm": 1.0}
# One step of DP-SGD, end to end, 1 record in 10 a batch.
_SGD_STEP = Scenario(
    loss="dirac", settings=_ONE_STEP | {"step_size": 1.0}, data_size=10, dimension=3, epsilon=8.0
)
_SUBSETS = {"sampling": "without_replacement"}
VARIANTS: dict[str, tuple[Entry, Scenario]] = {
    "dp-gd-replace-one": _again("dp-gd", relation="replace_one"),
    "dp-gd-accuracy": _ending_with(with_accuracy, epsilon=3.0),
    "dp-gd-count": _ending_with(with_count, share=0.8),
    "dp-sgd-step": (ALL["dp-sgd"], _SGD_STEP),
    # Half of what is released is asked for the certificate, when the steps are over.
    "dp-tr-certified": _again("dp-tr", settings={"steps": 1, "certify": "output"}),
    # With the last answer's noise on every one, 4.8 times mu^2 would be spent.
    "dp-tr-weights": _again(
        "dp-tr", settings={"steps": 8, "weights": (0.02,) * 4 + (0.08, 0.08, 0.16, 0.6)}
    ),
    "dp-tr-separate": _again("dp-tr", settings={"steps": 3, "release": "separate"}),
    # The paper's form, with 2 records in a batch for the gradient and 5 in one for the Hessian.
    "dp-str-separate": _again(
        "dp-str", settings={"steps": 3, "release": "separate", "hessian_batch_size": 5}
    ),
    "dp-str-subsets": _again("dp-str", relation="replace_one", settings=_SUBSETS | {"steps": 2}),
    # The canary is a person: all of max_records records are theirs.
    "dp-tr-person": _again("dp-tr", max_records=4),
    "dp-sgd-person": (ALL["dp-sgd"], dataclasses.replace(_SGD_STEP, max_records=4)),
    # One SGD step on a gradient clipped by book-keeping; without a limit of memory so small a
    # gradient is materialised.
    "book-keeping": (
        ALL["dp-optimizer"],
        Scenario(
            loss="dense",
            settings=_ONE_STEP | {"optimizer": optax.sgd(1.0), "memory_limit": 2**20},
            data_size=10,
            dimension=3,
            epsilon=8.0,
        ),
    ),
    # One index a step, as in the paper; and subsets of half of the records.
    "prgd-index": _again("prgd", relation="replace_one", settings=_SUBSETS | {"batch_size": 1}),
    "dpagem-subsets": _again(
        "dpagem", relation="replace_one", loss="winding", settings=_SUBSETS, dimension=2
    ),
    "spider-tree": _again(
        "spider", settings={"noise": "tree", "steps": 16, "candidates": 0}, data_size=100
    ),
    # One segment of a refresh and one difference.
    "refresh-and-difference": _again(
        "spider", settings={"horizon": 2, "steps": 2, "candidates": 0}, data_size=15
    ),
    # The same by a rule for b_t, which the clip of a difference has to follow.
    "spider-own-batches": _again(
        "spider",
        settings={"horizon": 2, "steps": 2, "candidates": 0, "difference_size": lambda *_: 2},
        data_size=12,
    ),
}
"""Further attacks on full runs: name -> entry of the algorithm, scenario."""


def derivative(kind: type[Query], dimension: int, **settings: Any) -> Game:
    """Returns the attack on one noisy derivative of all records, whose canary has full rank."""
    setting = Setting(canaries.LOSSES["bowl"], 2, "zero_out")
    query = kind(setting=setting, noise_multiplier=1.2, **settings)
    return games.single_answer(query, canaries.records(), dimension)


def sampled_derivative(kind: type[Query], **settings: Any) -> Game:
    """Returns the attack on one noisy derivative of a Poisson sample, drawn by the sampler."""
    sampler = poisson(1, 10, budget=PrivacyBudget(8.0, 1e-5), count=1, max_batch_size=10)
    setting = Setting(canaries.LOSSES["bowl"], 10, "zero_out", sampler)
    query = kind(setting=setting, noise_multiplier=0.5, **settings)
    return games.single_answer(query, canaries.records(null=9), 3)


def fraction(kind: type[AccuracyQuery | CountQuery], max_records: int = 1) -> Game:
    """Returns the attack on one noisy accuracy or count, to which only the canary contributes."""
    loss, pair = canaries.LOSSES["slope"], canaries.nulled()
    if max_records > 1:
        loss, pair = loss.of_units(), canaries.persons(pair, max_records)
    query = kind(setting=Setting(loss, 2, "zero_out"), noise_multiplier=1.2)
    return games.single_answer(query, pair, 1)


def histogram(max_records: int = 1) -> Game:
    """Returns the attack on a first look: the canary has a place in each column, or in none.

    With ``max_records`` above 1 it is a person, all of whose records lie in the same bins.
    """
    # Of a place that is no bin nothing is counted, as of a null record.
    null, canary, y = [-1.0, -1.0, 0.0], [1.0, 0.0, 1.0], jnp.zeros(2)
    pair = NeighbouringPair(
        (jnp.array([null, null]), y), (jnp.array([canary, null]), y), "zero_out"
    )
    if max_records > 1:
        pair = canaries.persons(pair, max_records)
    budget = PrivacyBudget(4.0, DELTA, pair.relation)
    algorithm = histograms((3, 2), budget, 2, (1.0,), of_units=max_records > 1)
    return games.training(algorithm, pair)


def selection() -> Game:
    """Returns the attack on one selection, whose canary raises one candidate and lowers the other.

    So it uses the full range of the log-ratios.
    """
    query = SelectionQuery(
        setting=Setting(canaries.LOSSES["seesaw"], 2, "zero_out"),
        noise_multiplier=gumbel_multiplier(3.0),
        clip_norm=1.0,
        gradient_tolerance=1.0,
        curvature_tolerance=1.0,
        dimension=2,
        candidates=2,
    )
    return games.single_selection(query, canaries.records(), jnp.array([[0.0, 0.0], [0.0, 1.0]]))


def optax_chain() -> Game:
    """Returns the attack on a noisy mean and SGD with momentum, 4 steps, 1 record in 2 a batch.

    The attacker sees every iterate and undoes the momentum, since the decay is public. The canary
    is the first record, which empty rows of a batch repeat.
    """
    size, batch_size, steps, clip_norm, decay = 10, 5, 4, 1.0, 0.9
    pair, gradient = canaries.records(null=size - 1), jax.grad(canaries.LOSSES["dirac"].loss)
    budget = PrivacyBudget(4.0, DELTA, pair.relation)
    sampler = poisson(batch_size, size, budget=budget, count=steps, max_batch_size=size)
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
    # How far the canary moves the mean, in standard deviations of the noise.
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
            # log(1 - q + q e^l) for l the log-likelihood ratio of a step that draws the canary.
            score += jnp.logaddexp(jnp.log1p(-q), jnp.log(q) + shift * (answer - shift / 2))
            before = velocity
        return score

    return Game(Claim(event), pair, run, 2**12)


def prefix_sums() -> Game:
    """Returns the attack on a tree's prefix sums: the canary is the first leaf."""
    noise, stddev = PrefixNoise("tree", 31), 2.5  # of a node
    release = Release("tree", 1, stddev / noise.sensitivity)
    pair = NeighbouringPair(jnp.zeros(1), jnp.ones(1), "zero_out")
    # The sums over 1, 2, 4, ... leaves are each one node that holds the canary.
    nodes = np.array([2**level - 1 for level in range(noise.levels)])

    def run(key: Array, canary: Array) -> Array:
        def increment(leaf: Array) -> Array:
            value = jnp.where(leaf == 0, canary, 0.0)
            return noise.perturb(key, value, stddev, leaf)[0]

        increments = jax.lax.map(increment, jnp.arange(nodes[-1] + 1))
        return jnp.sum(jnp.cumsum(increments)[nodes])

    return Game(Claim(Event((release,), "zero_out")), pair, run)


# A whole private random search, from its draw to the training it releases. The attacker sees the
# released parameters and score, and knows all that is public: the settings, the distribution of the
# number of trainings, and the law of one training on either data set. The density of what is
# released is f'(u) times that of one training, u the probability that one training scores lower, so
# the log-likelihood ratio is known in closed form.
_SIZE = 2
# Below this quantile of the noise a training ranks above all others. The neighbour's trainings,
# which have one record more, rank lower then, while those in doubt about the record win.
_TURN = -1.0
# One setting, drawn from two that are the same: what differs would tell, and weaken the attack.
_SETTINGS = [{"step_size": 1.0}, {"step_size": 1.0}]


def search(accuracy: bool) -> Game:
    """Returns the attack on a search by the noisy accuracy on the records, or by the parameters.

    The public function of these is the worst known: it puts the largest losses where few trainings
    are better for the data set and many for its neighbour. A training is one step of one parameter,
    which the canary moves by the whole sensitivity.
    """
    loss, one_step = canaries.LOSSES["slope"], {"steps": 1, "clip_norm": 1.0, "certify": None}
    make = functools.partial(dp_gradient_descent, loss, data_size=_SIZE, dimension=1, **one_step)
    score = "accuracy" if accuracy else lambda params: params[0]
    budget = PrivacyBudget(2.6, DELTA, "zero_out")
    planned = plan(make, _SETTINGS, budget, trials=4.0, cap=12, score=score, score_share=0.5)
    stddev = float(planned.algorithms[0].queries[0].stddev)
    # The score by the parameters is the rank of one without the canary.
    by = None if accuracy else ScoreFunction(lambda params: _rank(params[0] / stddev, 0.0))
    attack = functools.partial(_log_ratio, planned, by)

    def run(key: Array, records: PyTree) -> Array:
        start, number = jnp.zeros(1), planned.release.number
        return attack(_trials.search(planned.algorithms, records, key, start, number, by))

    return Game(Claim(planned.event), canaries.nulled(), run, 2**12)


def _log_ratio(planned: SearchPlan, by: ScoreFunction | None, best: _trials.Best) -> Array:
    """Log-likelihood ratio, canary to none, of the released parameter and score."""
    number, queries = planned.release.number, planned.algorithms[0].queries
    stddev = float(queries[0].stddev)
    # The step is minus the gradient, which the canary moves from 0 to 1 / n.
    at, shift = best.solution.params[0] / stddev, -1 / _SIZE / stddev
    ratio = shift * (at - shift / 2)
    if by is None:
        noise = float(queries[-1].stddev)
        place, moved = best.score / noise, 1 / _SIZE / noise
        ratio += moved * (place - moved / 2)
        # The probability that one training scores lower, without the canary and with it.
        below, theirs = ndtr(place), ndtr(place - moved)
    else:
        below, theirs = (_rank(at, shift) for shift in (0.0, shift))
    # f(u) is the sum of P(K = k) u^k, so that f' has the coefficients k P(K = k).
    coefficients = (number.probabilities * jnp.arange(1, number.cap + 1))[::-1]
    return ratio + jnp.log(jnp.polyval(coefficients, theirs) / jnp.polyval(coefficients, below))


def _rank(at: Array, shift: Array | float) -> Array:
    """Probability of ranking below ``at`` for a parameter at ``shift``, both over the noise."""
    turn, here = ndtr(_TURN - shift), ndtr(at - shift)
    return jnp.where(at < _TURN, 1 - turn + here, here - turn)
