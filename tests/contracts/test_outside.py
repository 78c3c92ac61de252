"""An algorithm, a query, a noise and its release from outside: dpjax needs no edit for them."""

import dataclasses
import math
import re
from typing import Any, ClassVar, NamedTuple

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import mostly_ci
from jax.flatten_util import ravel_pytree

import dpjax
from dpjax import auditing
from dpjax._typing import static
from dpjax.accounting import Release, calibrate, filters, release
from dpjax.accounting.losses import gaussian
from dpjax.accounting.pld import PrivacyLossDistribution
from dpjax.accounting.release import Quantity
from dpjax.algorithms import SingleQueryAlgorithm, base
from dpjax.auditing import canaries
from dpjax.mechanisms import Noise
from dpjax.oracles import ClippedSums, Expansion, GradientQuery, Query, accumulate, zeros

N, P, STEPS = 64, 3, 20
BUDGET = dpjax.PrivacyBudget(4.0, 1e-5)
KEY = jax.random.key(0)


# An algorithm.


class HeavyBallState(NamedTuple):
    params: Any
    velocity: Any


class HeavyBallInfo(NamedTuple):
    data_gradient_norm: jax.Array


@dpjax.pytree_dataclass
class HeavyBall(SingleQueryAlgorithm):
    """Gradient descent with momentum."""

    query: Query
    step_size: jax.Array | float
    decay: jax.Array | float

    title = "heavy ball"

    def init(self, params):
        return HeavyBallState(params, jax.tree.map(jnp.zeros_like, params))

    def step(self, key, state, ask):
        noisy = ask(self.query, state.params)
        velocity = jax.tree.map(lambda v, g: self.decay * v + g, state.velocity, noisy)
        params = jax.tree.map(lambda w, v: w - self.step_size * v, state.params, velocity)
        return HeavyBallState(params, velocity), HeavyBallInfo(jnp.linalg.norm(noisy))


# A noise, and what it costs.


@dataclasses.dataclass(frozen=True)
class Laplace(Noise):
    """Independent Laplace noise; ``stddev`` is its scale."""

    mechanism: ClassVar[str] = "laplace"

    def add(self, key, value, stddev):
        value = value.leading if isinstance(value, Expansion) else value
        return value + stddev * jax.random.laplace(key, value.shape, value.dtype)

    def log_ratio(self, answer, mean, neighbour_mean, stddev):
        return jnp.sum(jnp.abs(answer - mean) - jnp.abs(answer - neighbour_mean)) / stddev


def laplace_loss(mu, gap):
    """The loss of Laplace(0, 1) against Laplace(mu, 1), each loss rounded up to the grid."""
    low = math.ceil(-mu / gap)
    losses = np.clip(gap * np.arange(low, math.ceil(mu / gap) + 1), -mu, mu)
    at_most = (np.exp((losses - mu) / 2)) / 2
    at_most[-1] = 1.0
    return PrivacyLossDistribution(gap, low, np.diff(at_most, prepend=0.0), 0.0)


@dataclasses.dataclass(frozen=True)
class LaplaceRelease(Release):
    """Laplace noise on sums of bounded l1 norm, of which one record moves one coordinate most."""

    mechanism: ClassVar[str] = "laplace"
    description: ClassVar[str] = "the sum of a record's absolute parts is bounded"

    def privacy_loss(self, relation):
        return laplace_loss, (1 / self.noise_multiplier,)


# A query.


@dpjax.pytree_dataclass(kw_only=True)
class L1ClippedQuery(Query):
    """The mean of gradients clipped to l1 norm ``clip_norm``, with Laplace noise."""

    clip_norm: jax.Array | float
    dimension: int = static()

    name = "l1_gradient"
    closed_form = False
    noise = Laplace()

    def bound(self, params=None, **public):
        return self.clip_norm

    @property
    def components(self):
        return (("gradient", float(self.stddev)),)

    def exact(self, records, params, mask=None, **public):
        def contribution(record):
            gradient = ravel_pytree(jax.grad(self.objective.data_term)(params, record))[0]
            length = jnp.sum(jnp.abs(gradient))
            factor = jnp.minimum(1, self.clip_norm * (1 - 2**-20) / jnp.maximum(length, 1e-30))
            return jnp.where(jnp.isfinite(length), factor * gradient, 0.0)

        rows = jax.vmap(contribution)(records)
        return (accumulate(zeros((self.dimension,), rows.dtype), rows),)


def heavy_ball(objective, budget, *, data_size, dimension, kind=GradientQuery, **settings):
    settings = {"steps": STEPS, "step_size": 1.0, "decay": 0.5, "clip_norm": 1.0} | settings
    problem = base.check_problem(objective, budget, data_size, dimension, "pld")
    own = {} if kind is GradientQuery else {"dimension": dimension}

    def query(multiplier):
        return kind(
            setting=problem.setting,
            noise_multiplier=multiplier,
            clip_norm=settings["clip_norm"],
            **own,
        )

    multiplier = calibrate(lambda scale: query(scale).event(settings["steps"]), budget)
    algorithm = HeavyBall(
        query=query(multiplier),
        step_size=settings["step_size"],
        decay=settings["decay"],
        **problem.plan(settings["steps"]),
    )
    problem.check_spent(algorithm.event)
    return algorithm


KINDS = [GradientQuery, L1ClippedQuery]


def build(kind, objective=None, **more):
    objective = dpjax.objectives.logistic() if objective is None else objective
    more = {"data_size": N, "dimension": P} | more
    return heavy_ball(objective, more.pop("budget", BUDGET), kind=kind, **more)


def records():
    x = np.random.default_rng(0).normal(size=(N, P)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, np.sign(x[:, 0])


@pytest.mark.parametrize("kind", mostly_ci(KINDS, KINDS[-1:]))
def test_it_solves_and_says_what_it_promises(kind):
    algorithm = build(kind)
    solution = dpjax.solve(algorithm, records(), key=dpjax.random_key())
    assert np.isfinite(solution.params).all() and float(solution.steps) == STEPS
    assert 3.9 < algorithm.epsilon() <= 4.0
    printed = solution.guarantee()
    assert re.match(r"Heavy ball is \((4|3\.99\d), 1e-05\)-differentially private", printed)
    told = "asserted by L1ClippedQuery, not by dpjax" in printed
    assert told == (kind is L1ClippedQuery) == ("enforced by clipping" not in printed)
    words = " ".join(printed.split())
    for said in (
        "Released: answers of L1ClippedQuery, with laplace noise.",
        f"; {LaplaceRelease.description} Covered:",
        "L1ClippedQuery adds up its own sums",
        "How laplace noise is drawn and rounded is asserted by its class, not by dpjax.",
    ):
        assert (said in words) == told, said
    assert ("Gaussian noise is drawn from a table" in words) != told


def test_a_description_is_printed_and_ends_no_line():
    words = "means of coordinates,\n\n- with \x1b[31m noise"

    @dpjax.pytree_dataclass(kw_only=True)
    class Described(L1ClippedQuery):
        description = words

    printed = dpjax.results.guarantee.statement(build(Described), "row\n\n- x")
    assert "\nReleased: means of coordinates,  - with  [31m noise.\n" in printed
    assert "\nUnit of privacy: one row  - x, called" in printed


class Listed:
    """Notes who is made of it, and hands that on to no other base."""

    def __init_subclass__(cls):
        pass


@pytest.mark.parametrize("bases", [(GradientQuery,), (Listed, GradientQuery)])
def test_a_class_made_of_another_states_its_own_sums(bases):
    """What it inherits may be another ``exact``, so it is charged the most until it says."""

    def query(sums):
        members = {} if sums is None else {"sums": sums}
        kind = dpjax.pytree_dataclass(type("Own", bases, members))
        return kind(**build(GradientQuery).query.__dict__)

    own, silent = query(ClippedSums()), query(None)
    assert own.sensitivity == build(GradientQuery).query.sensitivity < silent.sensitivity
    assert query(ClippedSums(3)).sensitivity > own.sensitivity
    (release,) = silent.event(1).releases
    assert release.quantity.asserted_by == "Own" and not own.event(1).releases[0].quantity[2]
    assert "asserted by Own, not by dpjax" in dpjax.results.guarantee.describe(release)


def test_a_class_from_outside_is_named_with_the_bound_that_it_states():
    """Its own ``exact`` was printed as enforced by clipping, as if dpjax had proved it."""

    @dpjax.pytree_dataclass(kw_only=True)
    class Mine(GradientQuery):
        sums = ClippedSums()

    algorithm = build(GradientQuery)
    algorithm = dataclasses.replace(algorithm, query=Mine(**algorithm.query.__dict__))
    printed = " ".join(dpjax.results.guarantee.statement(algorithm, "row").split())
    assert "(enforced by clipping, as Mine states)" in printed
    assert "Arithmetic: As Mine states: Clipped contributions" in printed
    own = dpjax.results.guarantee.statement(build(GradientQuery), "row")
    assert "(enforced by clipping)" in own and "states" not in own


def test_the_guarantee_has_no_words_for_a_kind_that_it_does_not_know():
    """It had those of the strongest bound."""
    unknown = Release("mine", 1, 2.0, quantity=Quantity("no such kind"))
    with pytest.raises(ValueError, match="no words for a quantity of kind 'no such kind'"):
        dpjax.results.guarantee.describe(unknown)


def test_a_ledger_names_the_steps_of_a_release_by_what_its_class_states():
    """The name of its module decided, counted in a text that any field could be part of."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Noted(LaplaceRelease):
        note: str = "<class 'dpjax.', <class 'dpjax."

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Stated(Noted):
        fields_determine_loss: ClassVar[bool] = True

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Inherits(Stated):
        pass

    def steps(kind):
        release = kind(name="r", count=3, noise_multiplier=2.0)
        return filters.steps(dpjax.accounting.Event((release,), "zero_out"))

    assert [*steps(Stated).values()] == [3]
    assert steps(Noted) == steps(Inherits) == {}


@pytest.mark.parametrize("kind", mostly_ci(KINDS, KINDS[-1:]))
def test_it_runs_with_ledger_and_checkpoint_as_it_solves(kind, tmp_path):
    algorithm, places = build(kind), {"checkpoint": tmp_path / "c"}
    if kind is GradientQuery:
        places |= {"ledger": tmp_path / "l", "label": "visits"}
        with dpjax.Ledger.create(places["ledger"], dpjax.PrivacyBudget(8.0, 1e-4)):
            pass
    done = dpjax.run(algorithm, records(), key=KEY, **places)
    again = dpjax.solve(algorithm, records(), key=jax.random.key(0))
    np.testing.assert_array_equal(done.params, again.params)


def test_a_ledger_books_another_law_exactly_and_one_of_unsampled_gaussians_refuses_it(tmp_path):
    budget = dpjax.PrivacyBudget(8.0, 1e-4)
    dpjax.Ledger.create(tmp_path / "l", budget, unsampled=True).close()
    with pytest.raises(ValueError, match="unsampled Gaussian releases only"):
        dpjax.run(build(L1ClippedQuery), records(), key=KEY, ledger=tmp_path / "l", label="x")
    with dpjax.Ledger.create(tmp_path / "all", budget) as ledger:
        dpjax.run(build(L1ClippedQuery), records(), key=KEY, ledger=ledger, label="x")
        assert [entry.draws for entry in ledger.entries] == [STEPS * P]
        # What a class from outside reads is unknown, so that no later run is known to be alike.
        assert ledger.remaining == 0
        with pytest.raises(ValueError, match="exceed the budget"):
            ledger.check(build(L1ClippedQuery).event)


@pytest.mark.computes
@pytest.mark.parametrize("kind", mostly_ci(KINDS, KINDS[-1:]))
def test_its_audit_proves_nine_tenths_of_the_claim(kind):
    algorithm = build(kind, canaries.LOSSES["winding"], data_size=2, dimension=1)
    game = auditing.games.training(algorithm, canaries.records())
    result = auditing.attack(game, name="outside", key=KEY, gates=(100_000, 0.9))
    assert result.passed and result.audited >= 0.9 * result.claimed, result
    # Planted: half the noise.
    quieter = dataclasses.replace(
        algorithm,
        query=dataclasses.replace(
            algorithm.query, noise_multiplier=algorithm.query.noise_multiplier / 2
        ),
    )
    loud = dataclasses.replace(
        auditing.games.training(quieter, canaries.records()), claim=game.claim
    )
    assert auditing.attack(loud, name="outside", key=KEY, gates=(20_000, 0.0)).refuted


# What a query from outside may not do.


class Unbounded(L1ClippedQuery):
    """Has no finite bound."""

    def bound(self, params=None, **public):
        return math.inf


class Negative(L1ClippedQuery):
    """Has a bound below 0."""

    def bound(self, params=None, **public):
        return -1.0


class Shorter(L1ClippedQuery):
    """Returns a sum of another shape than the parameters'."""

    def exact(self, records, params, mask=None, **public):
        (total,) = super().exact(records, params, mask)
        return (jax.tree.map(lambda term: term[1:], total),)


class Bare(L1ClippedQuery):
    """Returns a sum, not a tuple of sums."""

    def exact(self, records, params, mask=None, **public):
        return super().exact(records, params, mask)[0]


class Reading(L1ClippedQuery):
    """Reads records in ``answer``, beside noise."""

    def answer(self, key, records, params, **public):
        return super().answer(key, records, params) + records[0].sum()


class Booking(L1ClippedQuery):
    """Books fewer releases than it makes."""

    def event(self, count):
        return super().event(1)


REFUSED = [
    (Unbounded, "the bound of Unbounded must be finite and above 0"),
    (Negative, "the bound of Negative must be finite and above 0"),
    (Shorter, r"exact of Shorter returned a sum of shape \(2,\)"),
    (Bare, "exact of Bare must return a tuple of 1 sums"),
    (Reading, "Reading has an answer of its own"),
    (Booking, "Booking has an event of its own"),
]


@pytest.mark.parametrize(("kind", "message"), REFUSED)
def test_it_is_refused_by_name_before_anything_is_spent(kind, message, tmp_path):
    good = build(L1ClippedQuery)
    kind = dpjax.pytree_dataclass(kw_only=True)(kind)
    fields = {each.name: getattr(good.query, each.name) for each in dataclasses.fields(good.query)}
    algorithm = dataclasses.replace(good, query=kind(**fields))
    key = jax.random.key(1)
    with pytest.raises(ValueError, match=message):
        dpjax.run(algorithm, records(), key=key)
    dpjax.run(good, records(), key=key)  # the key is not used up


def test_a_law_of_ones_own_must_say_what_it_costs():
    with pytest.raises(TypeError, match="Silent is of silent noise, whose privacy_loss"):

        class Silent(Release):
            mechanism: ClassVar[str] = "silent"


class Losses:
    """Nine times the loss."""

    def privacy_loss(self, relation):
        return gaussian, (9 / self.noise_multiplier,)


class NineTimes(Release):
    """Of Gaussian noise, by its mechanism."""

    sampling = "nine times"
    privacy_loss = Losses.privacy_loss


def test_a_release_with_a_law_of_its_own_is_not_taken_for_a_gaussian():
    def spent(kind):
        event = dpjax.accounting.Event((kind("g", 1, 1.0),), "zero_out")
        return dpjax.accounting.epsilon(event, 1e-5, "zero_out")

    class Mixed(Losses, Release):
        sampling = "nine times, mixed in"

    assert not NineTimes.is_gaussian and not NineTimes.is_lossless
    assert spent(Mixed) == spent(NineTimes)
    assert spent(NineTimes) > 9 * spent(Release)


@pytest.mark.parametrize("kind", [NineTimes, LaplaceRelease])
def test_a_law_of_ones_own_is_no_gaussian_to_dp_accounting(kind):
    event = dpjax.accounting.Event((kind("g", 1, 1.0),), "zero_out")
    with pytest.raises(dp_accounting.UnsupportedEventError):
        dp_accounting.rdp.RdpAccountant().compose(event.dp_event)


def test_a_release_on_batches_takes_all_that_describes_the_draw(monkeypatch):
    sampler = dpjax.sampling.poisson(5, 100, budget=dpjax.PrivacyBudget(1.0, 1e-5), count=1)
    with pytest.raises(TypeError, match=r"multiple values .* 'sampling_probability'"):
        sampler.released("g", 1, noise_multiplier=1.0, sampling_probability=1e-9)
    monkeypatch.setattr(release, "_KINDS", dict(release._KINDS))

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class NeverFull(LaplaceRelease):
        sampling = "poisson"
        sampling_probability: float
        max_batch_size: int
        data_size: int

    # Else nothing would be charged for batches that are full.
    with pytest.raises(TypeError, match=r"unexpected .* 'failure_probability'"):
        sampler.released("g", 1, noise_multiplier=1.0, mechanism=NeverFull.mechanism)


def test_a_factory_in_place_of_its_algorithm_is_refused():
    with pytest.raises(ValueError, match="algorithm must be what a factory such as"):
        dpjax.solve(dpjax.dp_trust_region, (np.ones((4, 2)), np.ones(4)), seed=0)


def test_an_algorithm_of_more_steps_than_32_bits_number_is_refused():
    algorithm = dataclasses.replace(build(GradientQuery), steps=2**31)
    with pytest.raises(ValueError, match="steps must be below 2"):
        dpjax.solve(algorithm, records(), seed=0)
