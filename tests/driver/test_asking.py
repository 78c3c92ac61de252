"""The contract of a step: each query once, where the step stands, as often as its event counts."""

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import FACTORIES, SPIDERS, make, mostly_ci, toy, toy_records, unit_records

import dpjax
from dpjax._typing import Array, pytree_dataclass, static
from dpjax.accounting import Event
from dpjax.algorithms import SingleQueryAlgorithm, objective_perturbation, output_perturbation
from dpjax.driver import asking, loop, prepare, program, progress, trajectory
from dpjax.mechanisms import derive
from dpjax.oracles import ClippedSums, GradientQuery, Setting, bind
from dpjax.sampling import ShuffledRecords, SinglePass

N, P, STEPS = 60, 3, 4
BUDGET = dpjax.PrivacyBudget(4.0, 1e-4)
KEY = jax.random.key(5)
records = functools.partial(unit_records, N, P)


class State(NamedTuple):
    params: Array


class Info(NamedTuple):
    gradient_norm: Array


@pytree_dataclass
class Descent(SingleQueryAlgorithm):
    """A user's gradient descent, which asks as ``how`` says: a name of one of the ways below."""

    query: GradientQuery
    how: str = static(default="once")

    title = "descent"

    def init(self, params):
        return State(params)

    def step(self, key, state, ask):
        gradient = WAYS[self.how](self, ask, state.params)
        return State(state.params - 0.5 * gradient), Info(jnp.linalg.norm(gradient))

    def finalize(self, key, state, ask):
        return ENDS.get(self.how, lambda algorithm, ask, state: state)(self, ask, state)

    def certify(self, key, state, ask, bounded_rows):
        if self.how == "closed and certified":
            ask(self.query, state.params)
        return None, None


def scanned(algorithm, ask, params):
    step = lambda w, _: (w - ask(algorithm.query, w), None)  # noqa: E731
    return jax.lax.scan(step, params, length=2)[0]


def conditional(algorithm, ask, params):
    here = lambda: ask(algorithm.query, params)  # noqa: E731
    return jax.lax.cond(params[0] > 0, here, lambda: jnp.zeros(P))


def batched(algorithm, ask, params):
    return jax.vmap(lambda w: ask(algorithm.query, w))(jnp.stack([params, params])).sum(axis=0)


def louder(algorithm, ask, params):
    quiet = dataclasses.replace(algorithm.query, noise_multiplier=1e-6)
    return ask(quiet, params)


def closes(algorithm, ask, state):
    return State(state.params - ask(algorithm.query, state.params))


WAYS = {
    "once": lambda algorithm, ask, params: ask(algorithm.query, params),
    "a copy": lambda algorithm, ask, params: ask(dataclasses.replace(algorithm.query), params),
    "twice": lambda algorithm, ask, params: sum(ask(algorithm.query, params) for _ in range(2)),
    "in scan": scanned,
    "in jit": lambda algorithm, ask, params: jax.jit(lambda w: ask(algorithm.query, w))(params),
    "in vmap": batched,
    "in cond": conditional,
    "another": louder,
    "by name": lambda algorithm, ask, params: ask("gradient", params),
}
WAYS |= dict.fromkeys(("once more", "closed and certified"), WAYS["once"])
ENDS = dict.fromkeys(("once more", "closed and certified"), closes)


def build(how="once", **more):
    plan = dpjax.dp_gradient_descent(
        dpjax.objectives.logistic(), BUDGET, data_size=N, dimension=P, steps=STEPS, output="last",
    )  # fmt: skip
    fields = {name: getattr(plan, name) for name in ("steps", "declared", "max_steps")}
    fields |= {"dimension": P, "accountant": "pld", "query": plan.query}
    return Descent(how=how, **(fields | more))


@pytest.mark.parametrize("how", ["once", "a copy"])
def test_a_step_that_asks_once_is_that_of_the_package(how):
    solution = dpjax.solve(build(how), records(), key=KEY)
    assert int(solution.steps) == STEPS and np.isfinite(solution.params).all()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("twice", "GradientQuery is asked twice in one step"),
        ("closed and certified", "GradientQuery is asked twice in one step"),
        ("in scan", "GradientQuery is asked from inside a loop"),
        ("in jit", "GradientQuery is asked from inside a loop, jit"),
        ("in vmap", "GradientQuery is asked from inside a loop, jit, vmap"),
        ("in cond", "GradientQuery is asked from inside a loop, jit, vmap, cond"),
        ("another", "GradientQuery is not among algorithm.queries"),
        ("by name", "takes one of algorithm.queries, got str"),
        ("once more", "asked 5 times in 4 steps and at their end, but algorithm.event counts 4"),
    ],
)
@pytest.mark.parametrize("train", [dpjax.solve, dpjax.run, functools.partial(trajectory, at=[1])])
def test_what_repeats_noise_or_exceeds_the_event_is_refused_first(how, words, train, monkeypatch):
    """On the host: nothing runs, and the key can be used for another training."""

    def never(*arguments, **more):
        raise AssertionError("something was asked")

    for place, name in ((program, "_solve"), (program, "_follow"), (progress, "_start")):
        monkeypatch.setattr(place, name, never)
    key = dpjax.random_key()
    with pytest.raises(ValueError, match=words):
        train(build(how), records(), key=key)
    monkeypatch.undo()
    dpjax.solve(build(), records(), key=key)


@pytest.mark.parametrize(
    "how", ["twice", "in scan", "in jit", "in vmap", "in cond", "another", "closed and certified"]
)
def test_the_driver_itself_refuses_while_tracing(how, monkeypatch):
    """Also one that is not tried before; inside ``jit`` as well."""
    monkeypatch.setattr(prepare, "check_questions", lambda *given: None)
    with pytest.raises(ValueError, match="GradientQuery is"):
        jax.jit(lambda key: dpjax.solve(build(how), records(), key=key).params)(KEY)


@pytest.mark.parametrize("train", [dpjax.solve, dpjax.run])
def test_a_class_that_has_changed_since_is_counted_anew(train, monkeypatch):
    """As in a notebook that loads a module again: neither class nor shapes are others."""
    train(build(), records(), seed=0)
    changed = lambda algorithm, key, state, ask: closes(algorithm, ask, state)  # noqa: E731
    monkeypatch.setattr(Descent, "finalize", changed)
    with pytest.raises(ValueError, match="asked 5 times in 4 steps"):
        train(build(), records(), key=dpjax.random_key())


@pytree_dataclass
class FourBooked(Descent):
    """Books four answers, however many steps there are."""

    @property
    def event(self):
        return self.query.event(4)


def test_a_search_counts_what_each_setting_asks():
    """One program trains all, and the first of them may be the only one that books enough."""

    def make_one(budget, steps):
        given = dpjax.dp_gradient_descent(
            dpjax.objectives.logistic(), budget, data_size=N, dimension=P, steps=4, output="last"
        )
        fields = {name: getattr(build(query=given.query), name) for name in ("query", "max_steps")}
        fields |= {"dimension": P, "accountant": "pld", "declared": given.declared}
        return FourBooked(steps=steps, **fields)

    settings = [{"steps": 4}, {"steps": 5}]
    with pytest.raises(ValueError, match="asked 5 times in 5 steps"):
        dpjax.tune(make_one, settings, records(), BUDGET, trials=1.5, cap=2, seed=0)


def test_an_algorithm_in_a_wrapper_of_dpjax_is_counted_too():
    plain = functools.partial(make, "dp-gd", data_size=N, dimension=P)
    measured = dpjax.with_accuracy(plain, BUDGET)
    measured = dataclasses.replace(measured, algorithm=build("once more"))
    with pytest.raises(ValueError, match="asked 5 times in 4 steps"):
        dpjax.solve(measured, records(), key=KEY)


@pytree_dataclass
class Named(GradientQuery):
    """A query with a name that is taken."""

    called: str = static(default="order")

    @property
    def name(self):
        return self.called


@pytree_dataclass
class Pair(Descent):
    """Asks two queries of one name, whose noise would be the same."""

    other: Any = None

    @property
    def queries(self):
        return (self.query, self.other)

    @property
    def event(self):
        return self.query.event(2 * int(self.steps))


@pytest.mark.parametrize("called", ["order", "step"])
def test_a_name_of_the_drivers_own_keys_is_refused(called):
    setting = Setting(dpjax.objectives.logistic(), N, "zero_out")
    query = Named(called, setting=setting, noise_multiplier=1.0, clip_norm=1.0)
    with pytest.raises(ValueError, match=f"has the name '{called}'"):
        dpjax.solve(build(query=query), records(), key=KEY)


def test_two_queries_of_one_name_are_refused():
    one = build()
    fields = {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}
    other = dataclasses.replace(one.query, clip_norm=0.5)
    with pytest.raises(ValueError, match="has the name 'gradient', and another query"):
        dpjax.solve(Pair(**fields, other=other), records(), key=KEY)


def test_two_queries_whose_names_make_one_key_are_refused():
    """Names with one CRC-32 passed, and the noise of both was the same."""
    given = dict(build().query.__dict__)
    first, other = Named("plumless", **given), Named("buckeroo", **given)
    fields = dict(build(query=first).__dict__)
    with pytest.raises(ValueError, match="has the name 'plumless', and another query"):
        dpjax.solve(Pair(**fields, other=other), records(), key=KEY)


# Every factory, and all that they may ask.


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
@pytest.mark.parametrize("name", sorted(FACTORIES))
def test_every_factory_asks_what_its_event_counts(name, relation):
    budget = dpjax.PrivacyBudget(1.0, 1e-4, relation)
    algorithm = make(name, budget, data_size=N, dimension=P)
    counted(algorithm)


@pytest.mark.parametrize(
    "make_one",
    [
        lambda **more: dpjax.dp_trust_region(certify="output", **more),
        lambda **more: dpjax.dp_trust_region(release="separate", certify="output", **more),
        lambda **more: dpjax.dp_stochastic_trust_region(batch_size=(10, 20, 30), **more),
        lambda **more: output_perturbation(**more),
        lambda **more: objective_perturbation(**more),
    ],
)
def test_what_is_asked_at_the_end_or_by_stages_is_counted(make_one):
    objective = dpjax.objectives.logistic_l2(0.1)
    more = {"objective": objective, "budget": BUDGET, "data_size": N, "dimension": P}
    counted(make_one(**more))


def counted(algorithm):
    """Checks the counts; planted: an event of a step less, where it grows with the steps."""
    asked = asking.questions(algorithm, records(), jnp.zeros(P))
    asking.check_counts(algorithm, asked)
    whole = algorithm.event
    fewer = tuple(
        dataclasses.replace(release, count=release.count - 1)
        for release in whole.releases
        if release.count > 1
    )
    free = {one.name for one in (*asked.step, *asked.once) if not one.conditional}
    if not any(release.name in free for release in fewer):
        return  # one release, however many answers; or on conditions
    with pytest.raises(ValueError, match="the guarantee would not hold"):
        asking.check_counts(Short(algorithm, Event(fewer, whole.relation)), asked)


class Short(NamedTuple):
    """An algorithm with another event."""

    algorithm: Any
    event: Event

    @property
    def steps(self):
        return self.algorithm.steps

    @property
    def max_steps(self):
        return self.algorithm.max_steps

    @property
    def queries(self):
        return self.algorithm.queries


# Keys.


def test_the_key_of_a_step_is_its_own_and_no_noise_has_it():
    algorithm = build()
    bound = loop.bind_training(algorithm, records(), KEY, jnp.zeros(P))
    steps = [asking.Asking(bound, jnp.array(step)).key for step in range(3)]
    noises = [algorithm.query.step_key(bound.key, step) for step in range(3)]
    keys = [*steps, *noises, bound.key, KEY]
    assert len({tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in keys}) == len(keys)
    assert noises[2] == derive(bound.key, "gradient", 2)
    assert steps[2] == derive(bound.key, "step", 2)


def test_an_estimate_has_the_key_of_its_segment():
    query = make("spider", BUDGET, data_size=N, dimension=P).estimate
    for step in (3, 9):
        assert query.step_key(KEY, step, segment=7, leaf=3) == derive(KEY, "estimate", 7)


def test_a_sampler_arranges_the_records():
    x = jnp.arange(6.0)
    algorithm = make("dp-adam", BUDGET, data_size=N, dimension=P, batch_size=10)
    assert algorithm.query.sampler.prepare(KEY, x) is x
    told = SinglePass(6, 0, 6).prepare(KEY, x)
    assert isinstance(told, ShuffledRecords) and sorted(told.order.tolist()) == list(range(6))
    for name in SPIDERS:
        spider = make(name, BUDGET, data_size=N, dimension=P)
        bound = loop.bind_training(spider, records(), KEY, jnp.zeros(P))
        key = derive(bound.key, "order", 0)
        np.testing.assert_array_equal(
            bound.records.order, jax.random.permutation(key, N).astype(jnp.int32)
        )


# What is secret within an answer.


@pytree_dataclass
class WithSecret(GradientQuery):
    """Answers with a sum over all records, whichever are in the batch."""

    closed_form = False

    def secret_arguments(self, key, records, params, **public):
        return {"whole": jnp.sum(records[0], axis=0) * public["scale"]}

    def exact(self, records, params, mask=None, **public):
        (total,) = super().exact(records, params, mask)
        return (dataclasses.replace(total, terms=(public["whole"],)),)


class Count(NamedTuple):
    params: Array
    taken: Array


@pytree_dataclass
class Watching(Descent):
    """Asks with a scale of its own at each step."""

    def init(self, params):
        return Count(params, jnp.zeros((), jnp.int32))

    def step(self, key, state, ask):
        answer = ask(self.query, state.params, scale=state.taken.astype(float))
        return Count(answer, state.taken + 1), Info(jnp.linalg.norm(answer))


def test_a_query_from_outside_reads_all_records_anew_for_each_answer():
    """And nothing of it is in what one step hands to the next."""
    budget = dpjax.PrivacyBudget(1.0, 1e-4)
    sampler = dpjax.sampling.poisson(5, N, budget=budget, count=7)
    setting = Setting(dpjax.objectives.logistic(), N, "zero_out", sampler)
    query = WithSecret(setting=setting, noise_multiplier=1e-9, clip_norm=1.0)
    algorithm = build(query=query)
    fields = {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)}
    watching = Watching(**(fields | {"steps": 7}))
    x, y = records()
    bound, carry = progress._start(watching, (x, y), KEY, jnp.zeros(P))
    assert carry._fields == ("step", "state", "history")
    for steps in (1, 3, 7):
        carry = progress._advance(bound, carry, steps)
        expected = (steps - 1) * x.sum(axis=0) / 5
        np.testing.assert_allclose(carry.state.params, expected, rtol=1e-4, atol=1e-6)


# The iterates.


# Of a joint release with a certificate, of anchors, of records in an order, and of batches.
@pytest.mark.parametrize("name", mostly_ci(["dp-tr", "dp-svrg", "spider", "dp-adam"], ["dp-adam"]))
def test_a_trajectory_is_that_of_the_same_training(name):
    algorithm, records, start = toy(name), toy_records(), np.zeros(4, np.float32)
    whole = dpjax.solve(algorithm, records, seed=3)
    last = int(algorithm.steps)
    path = trajectory(algorithm, records, seed=3, at=[0, 1, 3, last])
    assert path.params.shape == (4, 4)
    np.testing.assert_array_equal(path.params[0], start)
    for one, other in zip(jax.tree.leaves(path.solution), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)
    assert path.solution.reproducible and not path.solution.releasable
    bound, carry = progress._start(algorithm, records, jax.random.key(3), jnp.asarray(start))
    for row, step in zip(path.params, (0, 1, 3, last), strict=True):
        carry = progress._advance(bound, carry, step)
        np.testing.assert_allclose(row, algorithm.iterate(carry.state), rtol=1e-6, atol=1e-7)


@pytest.mark.ci
def test_a_trajectory_claims_its_key_and_goes_under_vmap():
    algorithm = make("dp-gd", BUDGET, data_size=N, dimension=P, steps=4)
    key = dpjax.random_key()
    path = trajectory(algorithm, records(), key=key, at=[4])
    assert path.solution.releasable
    np.testing.assert_array_equal(path.params[0], path.solution.params)
    with pytest.raises(ValueError, match="key has been used"):
        dpjax.solve(algorithm, records(), key=key)
    keys = jax.random.split(KEY, 3)
    both = jax.vmap(lambda key: trajectory(algorithm, records(), key=key, at=[2, 4]).params)(keys)
    one = trajectory(algorithm, records(), key=keys[1], at=[2, 4]).params
    np.testing.assert_allclose(both[1], one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("at", "words"),
    [
        ([3, 1], "nondecreasing.* sort them"),
        ([-1], "step numbers >= 0"),
        ([9], "goes past the algorithm's steps=4"),
        ([0.5], "must be a sequence of whole numbers, at least one, got float32"),
        ([], r"whole numbers, at least one, .* at=\[0\] for the start"),
        (2, "must be a sequence of whole numbers"),
    ],
)
def test_steps_that_are_none_are_refused(at, words):
    algorithm = make("dp-gd", BUDGET, data_size=N, dimension=P, steps=4)
    with pytest.raises(ValueError, match=words):
        trajectory(algorithm, records(), key=KEY, at=at)


@pytree_dataclass(kw_only=True)
class OnCondition(GradientQuery):
    """Asked at every step, on a condition."""

    sums = ClippedSums()

    def is_asked(self, **public):
        return jnp.array(True)


@pytest.mark.parametrize("kind", [GradientQuery, OnCondition])
def test_noise_of_more_numbers_than_are_charged_is_refused_also_on_a_condition(kind):
    """What was asked on a condition was charged for as few numbers as its setting declared."""
    fields = dict(build().query.__dict__)
    setting = dataclasses.replace(fields.pop("setting"), dimension=P - 1)
    with pytest.raises(
        ValueError, match="adds 12 numbers of noise, and its epsilon is charged for"
    ):
        dpjax.solve(build(query=kind(setting=setting, **fields)), records(), key=KEY)


@pytest.mark.parametrize(
    ("words", "value"),
    [(("gradient", "gradient"), 2), (("plumless", "buckeroo"), 2), (("sample",), 1)],
)
def test_parts_whose_noise_would_have_one_key_are_refused(words, value):
    """Noise of two parts was the same, or drawn with the key that had drawn the batch."""

    @pytree_dataclass(kw_only=True)
    class Repeats(GradientQuery):
        sums = ClippedSums()

        def exact(self, records, params, mask=None, **public):
            return super().exact(records, params, mask, **public) * value

        def noises(self, **public):
            return tuple((word, self.noise) for word in words)

        def stddevs(self, params, **public):
            return super().stddevs(params, **public) * value

    query = Repeats(**build().query.__dict__)
    with pytest.raises(ValueError, match="make them distinct, and none 'sample', which"):
        query.answer(KEY, bind(query, records()), jnp.zeros(P))


@pytest.mark.parametrize("relation", ["zero_out", "add_or_remove_one"])
def test_the_bar_names_a_rate_only_where_n_is_public(relation, monkeypatch):
    """The rate times the time was a number of passes times n, which was private."""
    monkeypatch.setattr(progress, "rows_read", lambda records: 600)
    training = SimpleNamespace(algorithm=SimpleNamespace(relation=relation), records=None)
    assert bool(progress._rate(training, 0.0)) == (relation == "zero_out")
