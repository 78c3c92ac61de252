"""The contract of every algorithm in the registry; a new one joins by its row."""

import dataclasses
import functools
import inspect

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import (
    ANCHORED,
    BUDGET,
    DELTA_ONLY,
    EXAMPLES,
    FACTORIES,
    LINEAR,
    PLAIN,
    PROXIMAL,
    SAME_PROGRAM,
    SAME_QUERY,
    SPIDERS,
    STEPS,
    N,
    P,
    make,
    mostly_ci,
    noisy_norms,
    quiet,
    refuses,
    solved,
    spent,
)
from factories import toy as build
from factories import toy_records as records
from jax.interpreters.partial_eval import dce_jaxpr
from scipy import stats

import dpjax
from dpjax.accounting import ACCOUNTANTS, RELATIONS, records_moved
from dpjax.driver import prepare, program
from dpjax.oracles import bind

EVERY = list(FACTORIES)
# Each statistical check fails by chance with this probability at most.
LEVEL = 1e-6
KEY = jax.random.key(7)

each_algorithm = pytest.mark.parametrize("name", EVERY)
PROGRAMS = [name for name in EVERY if name not in SAME_PROGRAM]
each_program = pytest.mark.parametrize("name", PROGRAMS)
# Of what compiles a large program of each: all of them in CI, all records and batches every day.
some_programs = pytest.mark.parametrize("name", mostly_ci(PROGRAMS, ["dp-tr", "dp-adam"]))
QUERIES = [name for name in PROGRAMS if name not in SAME_QUERY]
each_query = pytest.mark.parametrize("name", QUERIES)
# One for each kind of carry that the driver cuts in pieces and resumes.
CARRIES = ("dp-tr", "dp-adam", "dp-svrg", "spider")
# Runs at once, of one key each, in the programs that trainings in a batch share.
RUNS = 800


def sweep_of(name):
    """Three budgets, from much noise to little, in what the algorithm's noise depends on."""
    if name in DELTA_ONLY:
        return [dpjax.PrivacyBudget(1.0, delta) for delta in (1e-5, 1e-4, 1e-3)]
    return [dpjax.PrivacyBudget(eps, 1e-4) for eps in (0.3, 1.0, 5.0)]


def nearly_quiet(name):
    """A budget that leaves hardly any noise, and what has to be said for it."""
    if name in DELTA_ONLY:
        return dpjax.PrivacyBudget(1e4, 0.49), {"acknowledge_weak_delta": True}
    # At such an epsilon privacy loss distributions take seconds.
    return dpjax.PrivacyBudget(1e4, 1e-4), {"accountant": "rdp"}


def keeps_to(budget, epsilon_at):
    """Whether noise fits its budget and wastes none of it; ``epsilon_at`` maps delta to epsilon."""
    found = epsilon_at(budget.delta)
    if found == 0:  # all of delta is spent, and less of it is not enough at any epsilon
        return epsilon_at(0.999 * budget.delta) == np.inf
    return 0.999 * budget.epsilon < found <= budget.epsilon


def released(solution):
    """Everything numeric that a training publishes."""
    certified = (solution.certificate, solution.certified_params)
    told = (solution.history, solution.evidence)
    return solution.params, told, solution.steps, solution.status, certified


def assert_same(first, second):
    chex.assert_trees_all_equal(released(first), released(second))


def assert_close(first, second):
    chex.assert_trees_all_close(released(first), released(second), rtol=2e-3, atol=2e-4)


def stacked(algorithms):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *algorithms)


@functools.cache
def solve_all(name):
    """Many trainings as one program, under an outer jit, that serves all tests with batches."""

    def solve(algorithm, key, data, params):
        return dpjax.solve(algorithm, data, key=key, params=params)

    return jax.jit(jax.vmap(solve, in_axes=(0, 0, None, None)))


def all_runs(algorithms):
    """As many algorithms as there are runs, of a few in turn."""
    turns = jnp.arange(RUNS) % len(algorithms)
    return jax.tree.map(lambda leaf: leaf[turns], stacked(algorithms))


class Counted:
    """The logistic loss of the margin, counting how often it is traced."""

    def __init__(self):
        self.traces = 0
        constants = dpjax.objectives.logistic().constants
        self.objective = dpjax.Objective(
            lambda w, e: self.margin(e[1] * (e[0] @ w)), None, self.margin, constants, "counted"
        )

    def margin(self, m):
        self.traces += 1
        return jax.nn.softplus(-m)


# The shape of a factory and of what it makes.


def test_what_is_tested_once_has_the_same_code():
    def query(name):
        return {(type(query), type(query.sampler)) for query in build(name).queries}

    def program(name):
        return type(build(name)), frozenset(query(name))

    assert {program(name) for name in SAME_PROGRAM} <= {program(name) for name in PROGRAMS}
    others = set().union(*(query(name) for name in QUERIES))
    assert all(query(name) <= others for name in SAME_QUERY)


@each_algorithm
def test_factories_share_one_signature(name):
    parameters = inspect.signature(FACTORIES[name]).parameters
    first = list(parameters.values())
    assert [p.name for p in first[:4]] == ["objective", "budget", "data_size", "dimension"]
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty for p in first[:2])
    assert all(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in first[2:4])
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in first[4:])
    assert parameters["accountant"].default == "pld"
    with pytest.raises(TypeError, match="data_size"):
        FACTORIES[name](dpjax.objectives.logistic(), BUDGET, dimension=P)


@each_algorithm
def test_an_algorithm_is_a_frozen_pytree_whose_numbers_are_leaves(name):
    algorithm = build(name)
    leaves, structure = jax.tree.flatten(algorithm)
    assert jax.tree.unflatten(structure, leaves) == algorithm
    leaves = [leaf for leaf in leaves if np.ndim(leaf) == 0]  # not a sampler's table
    for query in algorithm.queries:
        assert float(query.noise_multiplier) in leaves
    assert algorithm.steps in leaves and BUDGET.epsilon in leaves
    # Rounded up to float32 on the host: the program scales the very noise that is accounted.
    for query in algorithm.queries:
        assert float(jnp.float32(query.noise_multiplier)) == query.noise_multiplier
    other = build(name, dpjax.PrivacyBudget(3.0, 1e-5))
    assert jax.tree.structure(other) == structure
    assert hash(jax.tree.structure(other)) == hash(structure)
    with pytest.raises(dataclasses.FrozenInstanceError):
        algorithm.steps = 1


# Tracing, batching, determinism.


@each_program
def test_epsilon_key_and_data_of_one_shape_do_not_retrace(name, monkeypatch):
    # It traces the loss of one record, to see whether what that reads has changed.
    monkeypatch.setattr(prepare, "drop_outdated", lambda *given: None)
    counted = Counted()
    budgets = [dpjax.PrivacyBudget(eps, 1e-4) for eps in (0.5, 1.0, 4.0)]
    algorithms = [build(name, budget, counted.objective) for budget in budgets]

    def traced(algorithm, data, key, params=None):
        """How often the loss is traced; nothing is compiled, which is what would take long."""
        counted.traces = 0
        solve = functools.partial(dpjax.solve, algorithm, data)
        jax.eval_shape(lambda key, params: solve(key=key, params=params), key, params)
        return counted.traces

    assert traced(algorithms[0], records(0), jax.random.key(0)) > 0
    for i, algorithm in enumerate(algorithms):
        assert traced(algorithm, records(i), jax.random.key(i)) == 0
    assert traced(algorithms[0], records(0), KEY, jnp.ones(P)) == 0
    if name == EVERY[0]:  # the counter sees a real retrace: data of another shape
        again = build(name, budgets[0], counted.objective, data_size=2 * N)
        assert traced(again, records(0, 2 * N), KEY) > 0


@each_algorithm
def test_the_strength_of_a_penalty_is_a_leaf(name):
    first, second = (
        build(name, objective=dpjax.objectives.logistic_l2(strength)) for strength in (0.1, 0.3)
    )
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for algorithm, strength in ((first, 0.1), (second, 0.3)):
        for query in algorithm.queries:
            assert query.objective.regularizer.strength == float(jnp.float32(strength))


@pytest.mark.ci
def test_a_sweep_of_penalties_is_one_vmap():
    data, strengths = records(), (0.0, 0.1, 1.0)
    algorithms = [
        build("dp-tr", objective=dpjax.objectives.logistic_l2(strength)) for strength in strengths
    ]
    batch = jax.vmap(lambda algorithm: dpjax.solve(algorithm, data, key=KEY))(stacked(algorithms))
    compiled = program._solve._cache_size()
    dpjax.solve(algorithms[0], data, key=KEY)
    for i, algorithm in enumerate(algorithms):
        one = jax.tree.map(lambda leaf, i=i: leaf[i], batch)
        assert_close(one, dpjax.solve(algorithm, data, key=KEY))
    assert program._solve._cache_size() <= compiled + 1
    # Another penalty is another training: its noise is fresh.
    multipliers = np.asarray(batch.history.gradient_norm)[:, 0]
    assert len(set(multipliers.tolist())) == len(strengths)


@some_programs
def test_a_sweep_of_epsilons_and_keys_is_one_program_with_traced_data_and_params(name):
    """A vmap over algorithms and keys under an outer jit is one program; each run is as alone."""
    sweep, keys = sweep_of(name), jax.random.split(KEY, RUNS)
    algorithms = [build(name, budget) for budget in sweep]
    batch = solve_all(name)(all_runs(algorithms), keys, records(), jnp.zeros(P))
    # Others of the same shapes are not traced again.
    others = all_runs(algorithms[::-1]), keys, records(1), jnp.ones(P)
    with jax.no_tracing():
        jax.eval_shape(solve_all(name), *others)
    batch = jax.tree.map(lambda leaf: leaf[: len(sweep)], batch)
    found = batch.epsilon(1e-4)
    assert isinstance(found, list) and len(found) == len(sweep)
    assert (0.0 in found) == (name in DELTA_ONLY)
    assert len(batch.guarantee()) == len(batch.event) == len(sweep)
    for i, (budget, algorithm) in enumerate(zip(sweep, algorithms, strict=True)):
        assert keeps_to(budget, lambda delta, i=i: batch.epsilon(delta)[i])
        one = jax.tree.map(lambda leaf, i=i: leaf[i], batch)
        assert_close(one, dpjax.solve(algorithm, records(), key=keys[i]))


@pytest.mark.ci
def test_a_sweep_nests_in_seeds():
    sweep, data, seeds = [0.3, 1.0, 5.0], records(), jax.random.split(KEY, 2)
    algorithms = [build("dp-tr", dpjax.PrivacyBudget(eps, 1e-4)) for eps in sweep]
    grid = jax.vmap(
        lambda algorithm: jax.vmap(lambda key: dpjax.solve(algorithm, data, key=key))(seeds)
    )(stacked(algorithms))
    spent = np.array(grid.epsilon(1e-4))
    assert spent.shape == (3, 2) and (spent <= np.array(sweep)[:, None]).all()


@each_algorithm
def test_history_is_nan_after_the_last_step_and_nowhere_else(name):
    solution = solved(name)
    steps, longest = int(solution.steps), solution.algorithm.max_steps
    assert steps == STEPS <= longest and solution.steps.dtype == jnp.int32
    for values in solution.history:
        assert values.shape[0] == longest
        assert np.isfinite(values[:steps]).all() and np.isnan(values[steps:]).all()
    assert dpjax.Status(int(solution.status)) is dpjax.Status.FIXED_HORIZON
    # The bound is formed in at least float32: squares underflow below.
    assert solution.params.dtype == np.float32
    if solution.certificate is not None:
        assert solution.certificate.gradient_norm_upper.dtype == np.float32


@each_algorithm
def test_c7_one_key_one_result_and_another_key_another(name):
    assert_same(solved(name), dpjax.solve(build(name), records(), key=jax.random.key(7)))
    other = solved(name, 8)
    assert not np.array_equal(solved(name).params, other.params)
    assert noisy_norms(solved(name))[0] != noisy_norms(other)[0]


@some_programs
def test_run_is_solve_bit_for_bit_with_a_bar_and_without(name, capfd):
    for progress in (False, True):
        assert_same(dpjax.run(build(name), records(), key=KEY, progress=progress), solved(name))
        assert (build(name).title in capfd.readouterr().err) == progress


@pytest.mark.ci
@pytest.mark.optimised
# Of two programs that are optimised apart, and with what follows an odd end.
@pytest.mark.parametrize("name", ("dp-tr", "dp-adam", "spider"))
def test_run_is_solve_in_more_pieces_than_the_bar_has(name):
    algorithm = build(name, steps=101)
    assert_same(
        dpjax.run(algorithm, records(), key=KEY, progress=False),
        dpjax.solve(algorithm, records(), key=KEY),
    )


@pytest.mark.parametrize(
    ("name", "transform"), [*((name, jax.jit) for name in EVERY), ("dp-tr", jax.vmap)]
)
def test_accounting_raises_while_tracing(name, transform):
    algorithm, data = build(name), records()

    def traced(key):
        solution = dpjax.solve(algorithm, data, key=key)
        for read in (lambda: solution.event, solution.guarantee, lambda: solution.epsilon(1e-4)):
            with pytest.raises(ValueError, match="outside of jit and vmap"):
                read()
        return key

    jax.eval_shape(transform(traced), KEY if transform is jax.jit else jax.random.split(KEY, 3))


@each_algorithm
def test_an_algorithm_says_its_epsilon_before_it_has_run(name):
    """On the host, at the declared delta or another; of a batch it gives a list."""
    algorithms = [build(name, budget) for budget in sweep_of(name)]
    for budget, algorithm in zip(sweep_of(name), algorithms, strict=True):
        assert keeps_to(budget, algorithm.epsilon)
        assert algorithm.epsilon() == algorithm.epsilon(budget.delta)
    found = stacked(algorithms).epsilon(1e-4)
    expected = [algorithm.epsilon(1e-4) for algorithm in algorithms]
    assert isinstance(found, list) and found == pytest.approx(expected, rel=1e-5)
    for transform in (jax.jit, jax.vmap):
        with pytest.raises(ValueError, match="outside of jit and vmap"):
            transform(lambda algorithm: algorithm.epsilon())(stacked(algorithms))
    with pytest.raises(ValueError, match="delta"):
        algorithms[0].epsilon(2.0)
    solution = solved(name)
    assert solution.epsilon() == solution.epsilon(float(solution.algorithm.declared.delta))


# Privacy.


@each_algorithm
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("eps", [0.1, 1.0, 8.0])
def test_epsilon_is_within_the_budget(name, relation, accountant, eps):
    budget = dpjax.PrivacyBudget(eps, 1e-6, relation)
    if words := refuses(name).get((relation, accountant)):
        with pytest.raises(ValueError, match=words):
            build(name, budget, accountant=accountant)
        return
    algorithm = build(name, budget, accountant=accountant)
    exact = dpjax.accounting.epsilon(algorithm.event, 1e-6, relation)
    assert exact <= eps
    if name in DELTA_ONLY:
        assert exact == 0
        assert dpjax.accounting.epsilon(algorithm.event, 1e-6 * (1 - 1e-5), relation) == np.inf
    elif accountant == "pld":
        assert exact > eps * (1 - 1e-5)  # nothing is wasted either
    if accountant == "rdp":
        assert exact < dpjax.accounting.epsilon(algorithm.event, 1e-6, relation, "rdp") <= eps


@each_algorithm
@pytest.mark.parametrize("delta", [1e-4, 1e-5, 1e-6, 1 / 350_000, 3e-7])
def test_the_guarantee_printed_is_the_budget(name, delta):
    """Leaves pass through float32: neither delta nor epsilon may come back a digit larger."""
    algorithm = jax.tree.map(jnp.asarray, build(name, dpjax.PrivacyBudget(1.0, delta)))
    assert algorithm.epsilon(delta) <= 1.0
    printed = dpjax.results.guarantee.ceil(delta)
    text = dpjax.results.guarantee.statement(algorithm, "row")
    assert f"is ({spent(name, 1):g}, {printed})-differentially private" in text
    # Rounded to nearest the delta printed for 1/350,000 would be below what epsilon 1 is true of.
    assert algorithm.epsilon(float(printed)) <= 1.0


def follows_gaussian(norms, stddev, dimension):
    """Whether KS and variance tests at LEVEL accept norms of N(0, stddev^2 I)."""
    squares = (np.asarray(norms, np.float64).ravel() / stddev) ** 2
    freedom = squares.size * dimension
    low, high = stats.chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], freedom) / freedom
    p_value = stats.kstest(squares, stats.chi2(dimension).cdf).pvalue
    return p_value > LEVEL and low < squares.mean() / dimension < high


def follows_ball(norms, radius, dimension):
    """Whether a KS test at LEVEL accepts norms of draws uniform in a ball: (|z| / R)^d uniform."""
    shares = (np.asarray(norms, np.float64).ravel() / radius) ** dimension
    return stats.kstest(shares, "uniform").pvalue > LEVEL


def follows_ball_coordinate(draws, radius, dimension):
    """Whether a KS test at LEVEL accepts one coordinate of draws uniform in a ball."""
    shares = (np.asarray(draws, np.float64).ravel() / radius) ** 2
    return stats.kstest(shares, stats.beta(0.5, (dimension + 1) / 2).cdf).pvalue > LEVEL


@functools.cache
def null_runs(name, budget=BUDGET, **more):
    """Trainings on null records alone, without regularizer: the algorithm, and what it returns."""
    silent = dpjax.objectives.OBJECTIVES[EXAMPLES[name].objective](0.0)
    algorithm = build(name, budget, objective=silent, **more)
    null = (np.zeros((N, P), np.float32), np.ones(N, np.float32))
    keys = jax.random.split(jax.random.key(11), RUNS)
    return algorithm, solve_all(name)(all_runs([algorithm] * 3), keys, null, jnp.zeros(P))


@some_programs
def test_a_training_on_null_records_alone_is_told_by_its_noisy_answers(name):
    """The remark is missed once in 1,000 runs: more often by chance with probability LEVEL.

    The sums of squares follow their law, at LEVEL for each part, and not that of another scale.
    """
    _, batch = null_runs(name)
    missed = sum(not remarks for remarks in batch.remarks)
    assert missed <= stats.binom.isf(LEVEL, RUNS, 1e-3)
    for excess, degrees in np.moveaxis(
        np.asarray(batch.evidence, float)[:, :STEPS], (2, 3), (0, 1)
    ):
        asked = degrees > 0
        (freedom,) = set(degrees[asked])
        squares = (excess + degrees)[asked]
        if name == "prgd":  # a ball's have the same mean and a bound
            assert squares.max() <= (P + 2) * (1 + 1e-3)
            continue
        assert stats.kstest(squares, stats.chi2(freedom).cdf).pvalue > LEVEL
        assert stats.kstest(squares / 0.8**2, stats.chi2(freedom).cdf).pvalue < LEVEL


@each_program
def test_a_training_that_learns_is_not_called_noise(name, monkeypatch):
    monkeypatch.setattr(prepare, "check_questions", lambda *given: None)  # so little has no event
    assert dpjax.solve(quiet(build(name)), records(), key=KEY).remarks == []


@some_programs
def test_the_noise_added_is_the_noise_accounted(name):
    """Null records contribute nothing, so every released gradient is its noise alone.

    Four tests at LEVEL; a scale wrong by 5 % is 8 standard errors away. What the relation changes
    is of the query, whose own answers under the others are below.
    """
    algorithm, batch = null_runs(name)
    norms = np.asarray(noisy_norms(batch))[:, :STEPS]
    release = algorithm.event.releases[0]
    relation = "zero_out"
    if name in ANCHORED or name in SPIDERS:
        # At the first anchor the difference is 0 and so is its noise; later both are added up.
        norms = norms[:, :1]
    clip = 1.0  # the logistic loss's Lipschitz constant
    moved = records_moved(relation) * clip / N
    if release.sampling == "single_pass":
        # The first sum of a segment has the noise of its closed form.
        moved *= (
            N / EXAMPLES[name].settings["batch_size"] * algorithm.estimate.correlation.stddevs()[0]
        )
    elif release.sampling != "none":
        moved = clip / (release.sampling_probability * N)
    follows, size = follows_gaussian, release.noise_multiplier * moved
    if release.mechanism == "ball":
        follows, size = follows_ball, size * np.sqrt(P + 2)
    assert follows(norms, size, P)
    # One step of six tells a scale wrong by 10 %, 8 standard errors away.
    off = 0.9 if norms.shape[1] == 1 else 0.95
    assert not follows(off * norms, size, P)
    assert not follows(norms / off, size, P)
    if norms.shape[1] == 1:
        return  # steps of an epoch share the anchor's noise
    # Fresh at every step; noise that is drawn once and used again would correlate fully.
    correlation = np.corrcoef(norms, rowvar=False)[np.triu_indices(STEPS, 1)]
    bound = stats.norm.isf(LEVEL / correlation.size) / np.sqrt(RUNS) * 1.3
    assert np.abs(correlation).max() < bound < 1


@pytest.mark.parametrize("name", mostly_ci(["dpagem", "prgd"], ["prgd"]))
def test_the_noise_on_uniform_subsets_is_the_noise_accounted(name):
    """As above; under ``replace_one`` a ball is as large as two records are apart."""
    budget = dataclasses.replace(BUDGET, relation="replace_one")
    algorithm, batch = null_runs(name, budget, sampling="without_replacement", batch_size=4)
    (release,) = algorithm.event.releases
    assert release.sampling == "without_replacement" and release.sampling_probability == 4 / N
    norms, size = np.asarray(noisy_norms(batch))[:, :STEPS], release.noise_multiplier / 4
    follows = follows_gaussian
    if release.mechanism == "ball":
        follows, size = follows_ball, 2 * size * np.sqrt(P + 2)
    assert follows(norms, size, P)
    assert not follows(0.95 * norms, size, P) and not follows(norms / 0.95, size, P)


def draws_of(answer):
    """Coordinates of one answer per component, each scaled to the std its name stands for."""
    parts = answer if isinstance(answer, tuple) else (answer,)
    for part in map(np.asarray, parts):
        if part.ndim == 3:
            rows, columns = np.triu_indices(P, 1)
            yield part[:, np.arange(P), np.arange(P)], part[:, rows, columns]
        else:
            yield part, None


@each_query
@pytest.mark.parametrize(
    "relation", mostly_ci(("add_or_remove_one", "replace_one"), ["replace_one"])
)
def test_every_answer_has_the_stddev_its_release_names(name, relation):
    """Two-sided variance tests at LEVEL on each component of each query.

    Under zero-out the noise of whole runs is held against the accounting above.
    """
    if (relation, "pld") in refuses(name):
        return  # no noise: tested above
    algorithm = build(name, dpjax.PrivacyBudget(1.0, 1e-4, relation))
    keys = jax.random.split(jax.random.key(12), 4000)
    for query in algorithm.queries:
        if query.event(1).releases[0].mechanism == "exponential":
            continue  # its noise does not leave; tests/oracles/test_selection.py has its law
        null = bind(query, (jnp.zeros((N, P)), jnp.ones(N)))
        # What a question names beside the parameters.
        public = {"sketch": algorithm.sketch(0)} if hasattr(algorithm, "sketch") else {}
        if name in ANCHORED:
            far = {"anchor": jnp.full(P, 1e3)}
            public = {"refresh": True} if query.name == "anchor" else far
        if query.name == "newton_direction":
            public["along"] = jnp.zeros(P)
        if query.name == "preconditioned_gradient":
            public["preconditioner"] = jnp.eye(P)
        point = jnp.zeros(P)
        if query.name == "estimate":
            public = {"anchor": point, "refresh": True, "size": 9}
            public |= {"start": 0, "segment": 0, "leaf": 0}
        if query.name == "scores":
            point, public = jnp.zeros((query.candidates, P)), {"filled": query.candidates}
        ask = functools.partial(query.answer, records=null, params=point, **public)
        answers = jax.jit(jax.vmap(ask))(keys)
        (release,) = query.event(1).releases
        if release.mechanism == "ball":
            radius = release.components[0][1] * np.sqrt(P + 2)
            for coordinate in np.asarray(answers).T:
                assert follows_ball_coordinate(coordinate, radius, P)
                assert not follows_ball_coordinate(0.9 * coordinate, radius, P)
            assert follows_ball(np.linalg.norm(answers, axis=1), radius, P)
            continue
        parts = list(draws_of(answers))
        assert len(parts) == len(release.components)
        for (plain, between), (_, stddev) in zip(parts, release.components, strict=True):
            if query.name == "estimate":
                stddev = stddev * query.correlation.stddevs()[0]
            assert follows_gaussian(plain, stddev, 1)
            assert not follows_gaussian(0.95 * plain, stddev, 1)
            if between is not None:
                assert follows_gaussian(between, stddev / np.sqrt(2), 1)


@each_query
def test_c9_steps_beyond_the_history_are_not_taken(name):
    """A number of steps that is larger than the structure allows stops at the end of it."""
    algorithm = build(name)
    if name in SPIDERS:  # whose records end before the history does
        algorithm = dataclasses.replace(algorithm, max_steps=4)
    longer = dataclasses.replace(algorithm, steps=algorithm.max_steps + 5)
    solution = dpjax.solve(longer, records(), key=KEY)
    assert int(solution.steps) == algorithm.max_steps


def blinded(answer):
    def without_data(query, key, data, params, **public):
        return answer(query, key, jax.tree.map(jnp.zeros_like, data), params, **public)

    return without_data


@each_algorithm
def test_c45_c46_c51_nothing_but_noisy_answers_reaches_a_solution(name, monkeypatch):
    """Answers that ignore the data leave nothing published that depends on them.

    Logs, certificates, exits of the loop and moving averages included: what the traced program
    computes from the records reaches none of its outputs.
    """

    def are_read(algorithm):
        """Whether the outputs depend on features, and on labels."""

        def published(x, y):
            return released(dpjax.solve(algorithm, (x, y), key=KEY))

        program = jax.make_jaxpr(published)(*records()).jaxpr
        return dce_jaxpr(program, [True] * len(program.outvars))[1]

    assert are_read(build(name)) == [True, True]
    # An objective of its own, so that nothing traced before the patch is used.
    algorithm = build(name, objective=Counted().objective)
    monkeypatch.setattr(prepare, "check_questions", lambda *given: None)  # refuses such answers
    for kind in {type(query) for query in algorithm.queries}:
        monkeypatch.setattr(kind, "answer", blinded(kind.answer))
    assert are_read(algorithm) == [False, False]


@each_query
def test_c47_a_search_for_nan_ends_alike_whatever_the_records(name):
    """jax_debug_nans must not raise for a record that is dropped."""

    def ending(value):
        x, y = records()
        x[3, 1] = value
        with jax.debug_nans(True):
            try:
                return np.isfinite(dpjax.solve(build(name), (x, y), key=KEY).params).all()
            except FloatingPointError as error:  # of the history, which ends in NaN
                return str(error)

    assert ending(0.1) == ending(np.nan) == ending(np.inf)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        jnp.log(-jnp.ones(1))  # the switch does work


@each_program
def test_c49_records_are_arguments_of_the_program_and_not_constants_in_it(name):
    texts = set()
    for seed in (0, 1):
        examples = jax.tree.map(jnp.asarray, records(seed))
        lowered = program._solve.lower(
            build(name), examples, KEY, jnp.zeros(P), unit="row", bounded_rows=False
        )
        texts.add(lowered.as_text())
    (text,) = texts
    # Planted: data closed over are in the program, and so in every dump of it.
    closed = jax.jit(lambda: examples[0] * 2).lower().as_text()
    assert "dense<" in closed and f"tensor<{N}x{P}xf32>" in closed
    assert not [line for line in text.splitlines() if "constant" in line and f"<{N}x{P}x" in line]


# More than one, so that some batch holds one of them whatever the key.
SPOILED = slice(3, 7)


def spoil_feature(x, y, value):
    x[SPOILED, 1] = value
    return x, y


def spoil_label(x, y, value):
    y[SPOILED] = value
    return x, y


@each_query
@pytest.mark.parametrize(
    ("spoil", "value"),
    [
        (spoil_feature, np.nan),
        (spoil_feature, np.inf),
        (spoil_feature, -np.inf),
        (spoil_label, np.nan),
        (spoil_label, np.inf),
        (spoil_label, 0.5),
        (spoil_label, 7.0),
    ],
)
def test_c18_c33_an_impossible_record_is_a_null_record(name, spoil, value):
    """Neither an error nor a NaN, both of which would tell that the record is there."""
    # Of ball noise at a usual delta the grid alone is coarser than what one record moves.
    budget, more = nearly_quiet(name) if name in DELTA_ONLY else (BUDGET, {})

    def solve(data):
        return dpjax.solve(build(name, budget, **more), data, key=KEY)

    x, y = records()
    x[SPOILED] = 0.0
    zeroed = solve((x, y))
    x, y = records()
    spoiled = solve(spoil(x, y, value))
    assert_same(spoiled, zeroed)
    whole = solve(records()) if name in DELTA_ONLY else solved(name)
    assert not np.array_equal(zeroed.params, whole.params)


@each_query
@pytest.mark.parametrize(("scale", "eps"), [(1e-30, 8.0), (1e10, 1e-3), (1e30, 1e-3), (1e30, 8.0)])
def test_c28_output_is_finite_whatever_the_scale_of_the_data(name, scale, eps):
    x, y = records()
    algorithm = build(name, dpjax.PrivacyBudget(eps, 1e-4))
    solution = dpjax.solve(algorithm, (x * np.float32(scale), y), key=KEY)
    assert np.isfinite(solution.params).all()
    assert int(solution.status) == dpjax.Status.FIXED_HORIZON
    assert all(np.isfinite(values[:STEPS]).all() for values in solution.history)


# Starting points and general losses.


def tree_loss(params, example):
    x, y = example
    return (params["scale"] * (x @ params["weights"]) - y) ** 2 / 2


def tree_start():
    return {"weights": jnp.full(P - 1, 0.5), "scale": jnp.array(1.0)}


def tree_records():
    x, y = records()
    return x[:, 1:], y


@pytest.mark.parametrize("name", [*CARRIES, "dp-accmd", "dp-gd-selected", "prgd"])
def test_warm_start_from_public_params(name):
    algorithm = dataclasses.replace(build(name), steps=1)
    start = np.full(P, 2.0, np.float32)
    solution = dpjax.solve(algorithm, records(), key=KEY, params=start)
    moved = np.linalg.norm(solution.params - start)
    # Of the iterates where a gradient was asked, one step leaves the start alone to choose from.
    expected = 0.0 if name == "dp-gd-selected" else float(solution.history.step_norm[0])
    assert moved == pytest.approx(expected, rel=1e-4)
    assert not np.allclose(solution.params, dpjax.solve(algorithm, records(), key=KEY).params)


TREE = dpjax.Objective(tree_loss, dpjax.objectives.L2(0.01))


def solve_plain(name, data, key=KEY):
    budget, more = nearly_quiet(name)
    algorithm = build(name, budget, TREE, **PLAIN[name], **more, steps=30)
    return dpjax.solve(algorithm, data, key=key, params=tree_start()).params


@some_programs
def test_a_pytree_of_parameters_and_a_plain_loss(name):
    if name in LINEAR:
        with pytest.raises(ValueError, match="is no loss of linear scores"):
            build(name, objective=TREE)
        return
    # Of one run on so few records an order may be unlucky.
    keys = jax.random.split(jax.random.key(8), 5)
    ends = [solve_plain(name, tree_records(), key) for key in keys]
    chex.assert_trees_all_equal_shapes(tree_start(), *ends)

    def exact(params):
        return float(dpjax.diagnostics.exact_objective(TREE, params, tree_records()))

    assert np.median([exact(params) for params in ends]) < exact(tree_start())


@pytest.mark.parametrize(
    "name", mostly_ci([name for name in QUERIES if name not in LINEAR], ["dp-tr", "dp-adam"])
)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_plain_loss_drops_records_that_are_not_finite(name, value):
    x, y = tree_records()
    spoiled, zeroed = x.copy(), x.copy()
    spoiled[5, 0], zeroed[5] = value, 0.0
    # A zero row has a gradient of zero in the weights, and y * 0 in the scale.
    results = [solve_plain(name, (rows, y)) for rows in (spoiled, zeroed)]
    chex.assert_tree_all_finite(results[0])
    chex.assert_trees_all_close(*results, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("x64", [False, True])
@some_programs
def test_the_result_has_the_dtype_of_the_parameters_whatever_the_data(name, x64):
    """Under x64 a float32 data set with default parameters used to break the loop's types."""
    with jax.enable_x64(x64):
        algorithm = make(name, BUDGET, PROXIMAL, data_size=20, dimension=2, steps=2)
        # Float32 throughout is what the runs above are.
        cases = [(np.float32, np.float16, np.float16)]
        if x64:
            cases = [(np.float32, np.float64, None), (np.float64, np.float32, np.float32)]
        for of_data, expected, of_params in cases:
            data = (jnp.full((20, 2), 2**-0.5, of_data), jnp.ones(20, of_data))
            params = None if of_params is None else jnp.zeros(2, of_params)
            # What breaks does so where it is traced, and nothing is compiled.
            solve = functools.partial(dpjax.solve, algorithm, data)
            solution = jax.eval_shape(solve, key=KEY, params=params)
            assert solution.params.dtype == expected
            assert solution.steps.dtype == solution.status.dtype == jnp.int32
            if solution.certificate is None:
                continue
            # The bound is formed in at least float32: squares underflow below.
            assert solution.certificate.gradient_norm_upper.dtype in (np.float32, np.float64)
