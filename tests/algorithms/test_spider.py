"""Stochastic Spider: each record once, batches from released values, a restart for each segment."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import SPIDERS, make, mostly_ci

import dpjax
from dpjax.accounting import Release, SinglePassRelease, parallel, records_moved
from dpjax.algorithms import EscapeRule
from dpjax.algorithms.spider_theory import Scale, reachable
from dpjax.driver import asking, loop
from dpjax.mechanisms import PrefixNoise, derive, lattice
from dpjax.mechanisms.noise import Prefix
from dpjax.mechanisms.tree import KINDS
from dpjax.oracles import EstimateQuery, ScoreQuery, Setting
from dpjax.oracles.gradient import ROWS
from dpjax.sampling import ShuffledRecords, SinglePass, ordered

N, P = 64, 4
QUIET = 1e-6
RELATIONS = ("zero_out", "replace_one")


def records(seed=0, n=N):
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, P)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True), np.ones(n, np.float32)


def loud(params, example):
    """A gradient far above every clip norm, opposite on either side of w = -1, of the sign of e."""
    return 1e4 * example * (jnp.sum(params) + params @ params / 2)


def estimate(relation="zero_out", kind="square_root", n=N, multiplier=QUIET, batch=16, loss=loud):
    """An estimate on batches of 16 with clip norm 0.5 and smoothness 10."""
    return EstimateQuery(
        setting=Setting(dpjax.Objective(loss), n, relation, SinglePass(n, 0, n)),
        noise_multiplier=multiplier,
        clip_norm=0.5,
        smoothness=10.0,
        batch_size=batch,
        correlation=PrefixNoise(kind, 8),
    )


@functools.partial(jax.jit, static_argnames="query")
def _told(query, rows, **public):
    public |= {"anchor": jnp.full(P, -2.0), "segment": 0, "leaf": 0}
    return query.answer(jax.random.key(0), rows, jnp.zeros(P), **public)


def exact_sum(query, rows, refresh, size, start=0):
    return np.asarray(_told(query, rows, refresh=refresh, size=size, start=start))


# What one record can do.


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("kind", ["square_root", "tree"])
@pytest.mark.parametrize(("refresh", "size"), [(True, 16), (True, 3), (False, 3), (False, 31)])
def test_one_record_moves_an_increment_by_its_share_whatever_the_batch(
    relation, kind, refresh, size
):
    """Asked for fewer records than its length needs, a difference is clipped to match."""
    query = estimate(relation, kind)
    rows = np.ones(N, np.float32)
    other = rows.copy()
    other[2] = 0 if relation == "zero_out" else -1
    moved = np.linalg.norm(
        exact_sum(query, rows, refresh, size) - exact_sum(query, other, refresh, size)
    )
    allowed = records_moved(relation) * 0.5 / 16
    # The release speaks of all the noise's draws that a record enters, this is one increment.
    assert allowed * query.correlation.sensitivity <= query.sensitivity
    assert moved == pytest.approx(allowed, rel=0.04 if size == 31 else 1e-4)
    assert moved <= query.sensitivity


def test_a_size_that_follows_the_data_would_move_more():
    """The same in a crowd: were the batch chosen by un-noised values, its sum would be another."""
    query = estimate()
    rows = np.ones(N, np.float32)
    rows[:8], rows[8] = 0, 0
    other = rows.copy()
    other[3] = 1
    moved = np.linalg.norm(exact_sum(query, rows, False, 8) - exact_sum(query, other, False, 8))
    assert moved <= query.sensitivity


def test_the_fewest_records_of_a_difference_fit_its_length_and_grow_with_it():
    query = estimate()
    for length in (0.0, 1e-4, 1e-3, 0.01, 0.05, 0.3, 1e6):
        params = jnp.zeros(P).at[0].set(length)
        size = int(query.needed(params, jnp.zeros(P)))
        bound = min(2 * 0.5, 10.0 * length)
        assert size >= 1 and size >= 16 * bound / 0.5
        assert size <= max(1, np.ceil(16 * bound / 0.5 * (1 + 1e-5)))


def test_independent_noise_follows_what_a_difference_moves():
    query = estimate(kind="independent", multiplier=1.0)
    near, far = jnp.full(P, 1e-3), jnp.full(P, 1e-2)
    stddevs = [
        float(query.stddev_at(jnp.array(False), jnp.int32(4), point, jnp.zeros(P)))
        for point in (near, far)
    ]
    assert stddevs[1] == pytest.approx(10 * stddevs[0], rel=1e-4)
    # M |step| / b_t over C / b.
    share = 10.0 * 2e-3 / 4 / (0.5 / 16)
    assert stddevs[0] == pytest.approx(share * float(query.stddev), rel=1e-4)
    fresh = float(query.stddev_at(jnp.array(True), jnp.int32(4), near, near))
    assert fresh == pytest.approx(query.stddev, rel=1e-6)


@pytest.mark.parametrize("n", mostly_ci([1, ROWS + 44], [1]))
@pytest.mark.parametrize("clip", mostly_ci([1e-18, 0.7, 1e14], [1e-18, 1e14]))
@pytest.mark.parametrize("refresh", [True, False])
def test_micro_batches_add_up_to_the_same_bits_without_float64(monkeypatch, refresh, clip, n):
    """Gradients are the records at 0, and 0 at the anchor."""
    rows = (np.random.default_rng(0).normal(size=(n, P)) * clip).astype(np.float32)
    query = estimate(n=n, batch=n, loss=lambda w, e: jnp.sum(e * (w + w**2 / (2 * clip))))
    query = dataclasses.replace(query, clip_norm=clip)
    public = {"anchor": jnp.full(P, -clip), "refresh": refresh, "start": 0, "size": n}

    def summed():
        (found,) = jax.jit(functools.partial(query.exact, **public))(rows, jnp.zeros(P))
        return np.stack(found.terms).astype(np.float64).sum(0)

    here = summed()
    monkeypatch.setattr(
        jax.lax, "platform_dependent", lambda *given, cpu=None, default: default(*given)
    )
    jax.clear_caches()
    np.testing.assert_array_equal(summed(), here)
    jax.clear_caches()
    factors = np.minimum(1, clip * (1 - 2.0**-17) / np.linalg.norm(rows, axis=1, keepdims=True))
    np.testing.assert_allclose(here, (factors * rows).sum(0), atol=1e-6 * clip * n)


@pytest.mark.parametrize("kind", mostly_ci(KINDS, ["tree"]))
def test_the_noise_of_a_mean_is_that_of_its_sum_divided(kind):
    """So that increments of other sizes stay correlated: the segment's draws are in units of it."""
    draws, key = PrefixNoise(kind, 8), jax.random.key(0)
    sizes = (1, 3, 1000, 2**24 + 1)
    for leaf, size in enumerate(sizes):
        mean, of_sum = (
            Prefix(of=draws, leaf=leaf, divisor=divisor).add(key, jnp.ones(P) * divisor, 3.0)
            for divisor in (1, jnp.int32(size))
        )
        np.testing.assert_allclose(of_sum, mean, atol=2.0**-8 * 3)  # both grids


@jax.jit
def noise_on_sum(query, refresh, size, params):
    """As the lattice has it, and the bound on what one record adds to a difference."""
    public = {"refresh": refresh, "size": size, "anchor": jnp.zeros(P)}
    ((_, noise),), (stddev,) = query.noises(leaf=0, **public), query.stddevs(params, **public)
    with jax.enable_x64(True):
        scale = lattice.scale_of(lattice.in_float32(stddev * noise.divisor))
        bound = query._difference(query._limit(size)).bound(params, jnp.zeros(P))
        return scale.mantissa, scale.exponent, bound


@pytest.mark.parametrize("kind", KINDS)
def test_no_rounding_brings_the_noise_of_a_sum_below_what_is_booked_for_its_mean(kind):
    random = np.random.default_rng(0)
    for _ in range(30):
        n = int(random.choice([1, 300, 10**6, 2**27 + 5]))
        batch, size = map(int, random.integers(1, n + 1, 2))
        clip, smooth, multiplier = (np.float32(10.0**k) for k in random.uniform(-3, 3, 3))
        query = estimate(RELATIONS[n % 2], kind, n, float(multiplier), batch)
        query = dataclasses.replace(query, clip_norm=float(clip), smoothness=float(smooth))
        for refresh in (True, False):
            params = jnp.full(P, float(clip) * random.normal())
            mantissa, exponent, bound = noise_on_sum(query, refresh, size, params)
            count, moved = (batch, float(clip)) if refresh else (size, float(bound))
            needed = float(query.stddev) * count
            if kind == "independent":  # and which is no louder for a difference than it must be
                needed *= moved / count / (float(clip) / batch)
            assert int(mantissa) * 2.0 ** (int(exponent) - 23) >= needed


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_c18_a_record_that_is_not_finite_moves_nothing(bad):
    query = estimate()
    rows, null = np.ones(N, np.float32), np.ones(N, np.float32)
    rows[1], null[1] = bad, 0
    for refresh in (True, False):
        np.testing.assert_array_equal(
            exact_sum(query, rows, refresh, 8), exact_sum(query, null, refresh, 8)
        )


# Who is read.


def test_a_window_holds_the_places_asked_and_no_other():
    rows = ShuffledRecords(jnp.arange(10), jnp.array([3, 1, 4, 0, 5, 9, 2, 6, 8, 7]))
    taken, mask = SinglePass(10, 0, 8).minibatch(rows, jnp.int32(5), jnp.int32(2), 4)
    assert taken[mask].tolist() == [9, 2]
    taken, mask = SinglePass(10, 0, 8).minibatch(rows, jnp.int32(6), jnp.int32(9), 4)
    assert taken[mask].tolist() == [2, 6]  # places past the last are nobody's


def test_the_order_is_a_permutation_of_chance_alone():
    first, second = (ordered(jax.random.key(i), jnp.zeros((N, 2))).order for i in (0, 1))
    assert sorted(first.tolist()) == list(range(N)) and not np.array_equal(first, second)
    other = ordered(jax.random.key(0), jnp.ones((N, 2)))
    np.testing.assert_array_equal(first, other.order)


@functools.partial(jax.jit, static_argnames=("algorithm",))
def _asked(algorithm, data, key):
    """Every question of one run: (start, number of records, segment, leaf, distance)."""
    bound = loop.bind_training(algorithm, data, key, jnp.zeros(P))

    def advance(state, step):
        answer, asked = asking.Asking(bound, step), []

        def listen(query, params, **public):
            number = jnp.where(public["refresh"], algorithm.estimate.batch_size, public["size"])
            distance = jnp.linalg.norm(params - public["anchor"])
            places = (public["start"], number, public["segment"], public["leaf"])
            asked.append(jnp.array([*places, distance], float))
            return answer(query, params, **public)

        state, _ = algorithm.step(answer.key, state, listen)
        return state, jnp.stack(asked)

    asked = jax.lax.scan(advance, loop.start(bound, jnp.zeros(P)).state, jnp.arange(12))[1]
    return asked.reshape(-1, 5)


@pytest.mark.parametrize("name", SPIDERS)
def test_no_record_is_asked_twice(name):
    algorithm = make(name, dpjax.PrivacyBudget(8.0, 1e-3), data_size=4096, dimension=P)
    asked = np.asarray(_asked(algorithm, records(n=4096), jax.random.key(3)))
    start, number = asked[:, 0], asked[:, 1]
    assert (number >= 1).all()
    np.testing.assert_array_equal(start[1:], np.cumsum(number)[:-1])
    segment, leaf = asked[:, 2], asked[:, 3]
    # A place in a segment is asked once, and each segment begins at its first place.
    assert len(set(zip(segment, leaf, strict=True))) == len(asked)
    assert (leaf[np.flatnonzero(np.diff(segment)) + 1] == 0).all() and leaf[0] == 0


def test_batches_are_as_long_as_the_last_step():
    algorithm = make("spider", dpjax.PrivacyBudget(8.0, 1e-3), data_size=4096, dimension=P)
    asked = np.asarray(_asked(algorithm, records(n=4096), jax.random.key(3)))
    query = algorithm.estimate
    differences = asked[:, 3] > 0
    bound = np.minimum(2 * query.clip_norm, query.smoothness * asked[differences, 4])
    expected = np.maximum(np.ceil(query.batch_size * bound / query.clip_norm), 1)
    assert differences.sum() > 3
    assert np.abs(asked[differences, 1] - expected).max() <= 1


def by_rule(difference_size, **more):
    """A run whose steps are of a length that needs tens of records for a difference."""
    settings = {"drift_threshold": 1e3, "alpha": 0.9, "batch_size": 400} | more
    budget = dpjax.PrivacyBudget(8.0, 1e-3)
    sizes = {"data_size": 4096, "dimension": P, "difference_size": difference_size}
    return make("spider", budget, **sizes, **settings)


RULES = {
    "twice": lambda state, needed: 2 * needed,
    "a half": lambda state, needed: needed / 2,
    "as it drifts": lambda state, needed: 30 * state.drift,
    "none": lambda state, needed: 0,
    "fewer": lambda state, needed: -5,
    "no number": lambda state, needed: jnp.nan,
    "all there are": lambda state, needed: 1e30,
    "lemma": "lemma_3.8",
}


@pytest.mark.parametrize("rule", RULES)
def test_whatever_a_rule_returns_a_record_is_asked_once_and_pays_the_same(rule):
    algorithm, default = by_rule(RULES[rule]), by_rule(None)
    assert algorithm.event == default.event
    asked = np.asarray(_asked(algorithm, records(n=4096), jax.random.key(3)))
    start, number = asked[:, 0], asked[:, 1]
    # Else answers would be without end, with noise that epsilon is not charged for.
    assert (number >= 1).all() and (number <= 400).all()
    np.testing.assert_array_equal(start[1:], np.cumsum(number)[:-1])
    differences = asked[:, 3] > 0
    if rule in ("none", "fewer"):
        assert differences.sum() > 3 and (number[differences] == 1).all()
    if rule in ("no number", "all there are"):
        assert not differences.any() and (number == 400).all()
    query = algorithm.estimate
    bound = np.minimum(2 * query.clip_norm, query.smoothness * asked[differences, 4])
    needed = np.maximum(np.ceil(query.batch_size * bound / query.clip_norm), 1)
    factor = {"twice": 2, "a half": 0.5}.get(rule)
    if factor is not None:
        assert differences.sum() > 3 and needed.max() > 3
        assert np.abs(number[differences] - np.ceil(factor * needed)).max() <= 2
    if rule == "lemma":
        rate = query.smoothness * 1e3 / 0.9**2
        wanted = np.maximum(needed, np.ceil(rate * asked[differences, 4]))
        assert differences.sum() > 3 and (wanted > needed).any()
        assert np.abs(number[differences] - wanted).max() <= 1


def test_a_batch_that_reaches_b_asks_for_the_gradient_and_the_history_says_so():
    data, key = records(n=4096), jax.random.key(0)
    reached = dpjax.solve(by_rule(RULES["all there are"]), data, key=key).history
    several = slice(1, 5)
    assert (reached.reached[several] == 1).all() and (reached.refreshed[several] == 1).all()
    assert (reached.batch[several] == 400).all() and reached.reached[0] == 0
    # Drift and the horizon renew as well, and are not taken for it.
    drifted = dpjax.solve(by_rule(None, drift_threshold=1e-6), data, key=key).history
    assert (drifted.refreshed[several] == 1).all() and (drifted.reached[several] == 0).all()


def test_a_rule_is_a_part_of_the_configuration_and_so_of_the_key():
    """Else one key would give two trainings, whose noises cancel."""
    data, params = records(n=4096), jnp.zeros(P)
    made = by_rule(RULES["twice"]), by_rule(RULES["a half"]), by_rule("lemma_3.8"), by_rule(None)
    keys = [loop.configuration_key(jax.random.key(0), one, data, params) for one in made]
    assert len({tuple(jax.random.key_data(key).tolist()) for key in keys}) == 4
    again = loop.configuration_key(
        jax.random.key(0), by_rule(lambda state, needed: 2 * needed), data, params
    )
    assert again == keys[0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("lemma 3.9", "difference_size must be"),
        (0, "difference_size must be"),
        (lambda state, needed: jnp.ones(2), r"difference_size must return one number, got shape"),
    ],
)
def test_a_batch_size_that_is_none_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        dpjax.solve(by_rule(given), records(n=4096), key=jax.random.key(0))


def test_each_segment_has_noise_of_its_own():
    """Null records: every increment is noise, and the first one of each segment another draw."""
    objective = dpjax.objectives.logistic()
    more = {"horizon": 2, "drift_threshold": 1e9, "batch_size": 16, "step_size": 1e-9}
    algorithm = make("spider", objective=objective, data_size=N, dimension=P, **more)
    null = (jnp.zeros((N, P)), jnp.ones(N))
    norms = dpjax.solve(algorithm, null, key=jax.random.key(1)).history.gradient_norm
    firsts = np.asarray(norms)[[0, 2, 4]]
    assert np.isfinite(firsts).all() and len(set(firsts.tolist())) == 3


def test_the_noise_of_a_segment_is_that_of_its_key_alone():
    """Whatever the step of the run, so that a resumed run draws it again bit for bit."""
    query = estimate(multiplier=1.0)
    algorithm = make("spider", data_size=N, dimension=P)
    bound = loop.BoundAlgorithm(
        dataclasses.replace(algorithm, estimate=query), jnp.zeros(N), jax.random.key(2)
    )
    public = {"refresh": True, "start": 0, "size": 4, "segment": 7, "leaf": 3}

    @jax.jit
    def answers(step):
        params, own = jnp.zeros(P), derive(bound.key, "estimate", 7)
        given = public | {"anchor": params}
        asked = asking.Asking(bound, step)(query, params, **given)
        return asked, query.answer(own, jnp.zeros(N), params, **given)

    first, second = answers(3), answers(9)
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(*first)


@pytest.mark.parametrize(("first", "last"), [(0, N + 1), (-1, 4), (5, 5)])
def test_places_that_are_not_there_are_refused(first, last):
    with pytest.raises(ValueError, match="are not among"):
        SinglePass(N, first, last)


def test_a_record_in_place_of_those_that_are_not_there_is_not_read_again():
    """40 records for a declared 64: places past the data would all be the last record's."""
    with pytest.raises(ValueError, match="a pass over 64 records was declared"):
        exact_sum(estimate(), np.ones(40, np.float32), True, 16, start=40)


def test_noise_that_float32_would_lose_is_refused():
    """Independent noise falls with the distance, and so to 0 where the clip norm is tiny."""
    objective = dpjax.Objective(lambda w, x: jnp.sum((w - x) ** 2) / 2)
    tiny = {"clip_norm": 1e-23, "smoothness": 1.0, "hessian_lipschitz": 1.0, "initial_gap": 1.0}
    with pytest.raises(ValueError, match="float32 cannot hold"):
        make("spider", objective=objective, data_size=N, dimension=P, noise="independent", **tiny)


# How a run ends, and what it chooses.


@pytest.mark.ci
def test_a_run_ends_where_the_records_do_and_says_so():
    algorithm = make("spider", data_size=256, dimension=P)
    solution = dpjax.solve(algorithm, records(n=256), key=jax.random.key(0))
    assert dpjax.Status(int(solution.status)) is dpjax.Status.EXHAUSTED
    assert "records are used up" in dpjax.Status.EXHAUSTED.message
    used = np.asarray(solution.history.used)[: int(solution.steps)]
    assert used[-1] <= algorithm.estimate.sampler.last
    assert algorithm.estimate.sampler.last + algorithm.score.sampler.max_batch_size == 256


@pytest.mark.ci
def test_a_kick_comes_at_a_small_gradient_and_not_again_for_a_while():
    more = {"kick_threshold": 1e6, "frozen_steps": 4, "batch_size": 64, "drift_threshold": 1e6}
    algorithm = make("spider", data_size=4096, dimension=P, step_size=1e-3, **more)
    solution = dpjax.solve(algorithm, records(n=4096), key=jax.random.key(0))
    kicked = np.flatnonzero(np.asarray(solution.history.kicked)[:20] == 1)
    assert kicked[0] == 1 and set(np.diff(kicked)) == {5}


@dpjax.pytree_dataclass
class Once(EscapeRule):
    """A push of 1 at the first step, and the end after the third."""

    def init(self, params):
        return jnp.zeros((), jnp.int32)

    def update(self, key, gradient, state, params):
        push = jax.tree.map(lambda leaf: jnp.ones_like(leaf) * (state == 0), gradient)
        return push, state == 0, state + 1

    def ended(self, state):
        return state >= 3


@pytest.mark.ci
def test_a_rule_of_ones_own_says_what_is_added_and_when_it_is_over():
    made = make("spider", data_size=4096, dimension=P, candidates=0)
    runs = [
        dpjax.solve(dataclasses.replace(made, escape=rule), records(n=4096), seed=0)
        for rule in (EscapeRule(), Once())
    ]
    ends = [dpjax.Status(int(run.status)) for run in runs]
    assert ends == [dpjax.Status.EXHAUSTED, dpjax.Status.STOPPED] and int(runs[1].steps) == 3
    kicked = [np.asarray(run.history.kicked)[: int(run.steps)].tolist() for run in runs]
    assert not any(kicked[0]) and kicked[1] == [1, 0, 0]


def test_the_last_candidate_that_passes_is_chosen_else_the_nearest():
    algorithm = make("spider", data_size=N, dimension=P, candidates=4)
    state = algorithm.init(jnp.zeros(P))._replace(
        candidates=jnp.arange(4.0)[:, None] * jnp.ones((1, P)), newest=jnp.int32(2)
    )
    gradient, curvature = map(float, algorithm.tolerances)

    def chosen(norms, eigenvalues):
        from_reserved = dpjax.oracles.Scores(jnp.array(norms), jnp.array(eigenvalues))
        closed = algorithm.finalize(jax.random.key(0), state, lambda *_, **__: from_reserved)
        return float(algorithm.output(closed)[0])

    low = [0.5 * gradient] * 4
    assert chosen(low, [0.0, 0.0, -2 * curvature, 0.0]) == 1.0
    assert chosen(low, [-2 * curvature, -3 * curvature, -1.5 * curvature, 0.0]) == 2.0
    assert chosen([3 * gradient, 2 * gradient, 9 * gradient, 0.0], [0.0] * 4) == 1.0


@pytest.mark.ci
def test_the_certificate_holds_on_the_records_kept_for_it():
    """200 runs at beta = 0.05: more than 30 failures have probability 1e-7."""
    objective, n = dpjax.objectives.logistic_l2(), 256
    budget = dpjax.PrivacyBudget(20.0, 1e-4)
    algorithm = make("spider", budget, objective, data_size=n, dimension=P, candidates=3, kept=0.5)
    data = tuple(map(jnp.asarray, records(n=n)))

    def one(key):
        solution = dpjax.solve(algorithm, data, key=key)
        own = loop.configuration_key(key, algorithm, data, jnp.zeros(P))
        kept = ordered(derive(own, "order", 0), data).order[algorithm.score.sampler.first :]
        rows = jax.tree.map(lambda leaf: leaf[kept], data)
        true = dpjax.diagnostics.exact_gradient_norm(objective, solution.params, rows)
        lowest = dpjax.diagnostics.exact_min_eigenvalue(objective, solution.params, rows)
        bound = solution.certificate
        return jnp.array([bound.gradient_norm_upper - true, lowest - bound.min_eigenvalue_lower])

    room = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(9), 200))
    assert (room < 0).any(axis=1).sum() <= 30
    # Bounds without what the noise may be off by fail in far more runs.
    noise = jnp.array([algorithm.bounds.gradient, algorithm.bounds.hessian])
    assert (room < noise[None]).any(axis=1).sum() > 60


@pytest.mark.parametrize(
    ("clips", "whose"),
    [
        ({}, "objective"),
        ({"hessian_clip_norm": 1e-3}, "clipped objective"),
        ({"smoothness": 0.01}, "clipped objective"),
        ({"clip_norm": 0.1}, "clipped objective"),
    ],
)
def test_a_certificate_of_what_was_clipped_says_so(clips, whose):
    objective = dpjax.objectives.sigmoid_l2()
    algorithm = make("spider", objective=objective, data_size=256, dimension=P, **clips)
    data = dpjax.Dataset(*records(n=256), max_norm=1.0)
    certificate = dpjax.solve(algorithm, data, key=jax.random.key(0)).certificate
    assert certificate.scope == f"{whose} on the 26 records kept for it"


def test_scores_of_more_parameters_than_declared_are_refused():
    """Without a number of parameters the rounding of eigenvalues was charged for one."""
    fields = {"noise_multiplier": 1.0, "clip_norm": 1.0, "hessian_clip_norm": 0.25}
    fields["setting"] = Setting(dpjax.objectives.logistic(), N, "zero_out", SinglePass(N, 0, N))
    with pytest.raises(TypeError, match="dimension"):
        ScoreQuery(candidates=1, **fields)
    query = ScoreQuery(dimension=P - 1, candidates=1, **fields)
    with pytest.raises(ValueError, match=f"make it with dimension={P}"):
        query.exact(records(), jnp.zeros((1, P)), filled=1)


@pytest.mark.parametrize("relation", RELATIONS)
def test_one_record_moves_the_scores_by_their_sensitivity(relation):
    query = ScoreQuery(
        setting=Setting(dpjax.objectives.logistic(), N, relation, SinglePass(N, 0, N)),
        noise_multiplier=QUIET,
        clip_norm=1.0,
        hessian_clip_norm=0.25,
        dimension=P,
        candidates=3,
    )
    x, y = records()
    other = x.copy()
    other[5] = 0 if relation == "zero_out" else -x[5]
    points = jnp.stack([jnp.zeros(P), jnp.ones(P), -3 * jnp.ones(P)])
    found = [np.asarray(query.exact((rows, y), points, filled=3)[0].leading) for rows in (x, other)]
    moved = np.linalg.norm(found[0] - found[1])
    assert 0 < moved <= query.sensitivity
    # No more than sqrt(2 K) of what one number may move.
    assert query.sensitivity == pytest.approx(records_moved(relation) / N * 6**0.5, rel=0.01)


# Accounting.


def test_questions_to_disjoint_records_are_as_loud_as_the_loudest():
    def part(multiplier):
        return SinglePassRelease("part", 1, multiplier, data_size=N)

    whole = parallel("both", (part(2.0), part(3.0)))
    event = dpjax.accounting.Event((whole,), "zero_out")
    assert event.gaussian_mu == 0.5 and len(whole.to_json()["parts"]) == 2
    with pytest.raises(ValueError, match="claims more noise than its part"):
        dataclasses.replace(whole, noise_multiplier=2.5)
    with pytest.raises(ValueError, match="count=1"):
        SinglePassRelease("part", 2, 2.0, data_size=N)
    with pytest.raises(ValueError, match="shifts later ones"):
        dpjax.accounting.Event((whole,), "add_or_remove_one")
    for parts in (
        (Release("all", 1, 2.0), part(3.0)),
        (part(2.0), Release("all", 1000, 3.0)),
        (part(2.0), dataclasses.replace(part(3.0), data_size=N + 1)),
        (),
    ):
        with pytest.raises(ValueError, match=r"the same|only a single pass|at least one"):
            parallel("both", parts)
    # Two trainings on the same records add up.
    twice = dpjax.accounting.compose([event, event])
    assert twice.gaussian_mu == pytest.approx(0.5 * 2**0.5)


def test_the_guarantee_says_that_each_record_is_read_once():
    algorithm = make("spider", data_size=256, dimension=P)
    solution = dpjax.solve(algorithm, records(n=256), key=jax.random.key(0))
    text = " ".join(solution.guarantee().split())
    # The noise is on the sum, see ``Prefix.add``.
    assert "before noise" not in text and "divided by its batch size, which is fixed or" in text
    assert "one pass over the 256 declared records" in text
    assert "Each record is used in at most one answer" in text
    assert "estimate and scores use disjoint records" in text
    for name in ("estimate", "scores"):
        assert f"\n  - {name}: all answers together are one Gaussian" in solution.guarantee()
    assert "\n  - estimate and scores use disjoint records" in solution.guarantee()


# Theory.


def test_more_records_or_more_budget_reach_a_lower_target():
    for n in (10**3, 10**5):
        for noise in (5.0, 50.0):
            scale = Scale(1.0, 1.0, 1.0, noise)
            alpha = reachable(scale, n)
            assert scale.records(alpha) <= n < scale.records(0.99 * alpha)
            assert reachable(scale, 2 * n) < alpha < reachable(Scale(1.0, 1.0, 1.0, 2 * noise), n)


@pytest.mark.parametrize("alpha", [0.1, 0.2])
def test_a_first_batch_by_alpha_is_lemma_38s(alpha):
    budget = dpjax.PrivacyBudget(1.0, 1e-7)
    query = make("spider", budget, data_size=2**22, dimension=P, alpha=alpha).estimate
    # Noise of norm sigma sqrt(p) on a sum in which a record has norm G, over b records.
    g, noise = query.clip_norm, float(query.correlation.stddevs().max())
    noise *= query.noise_multiplier * query.correlation.sensitivity * P**0.5
    assert query.batch_size == math.ceil(g * noise / alpha + (g / alpha) ** 2) > 99


@pytest.mark.parametrize(
    ("noise", "slope"), [(1e-9, -1 / 3), (1e9, -1 / 2)], ids=["sampling", "privacy"]
)
def test_the_rates_of_the_theory(noise, slope):
    """n^(-1/3) where chance dominates, (sqrt(d) / (n epsilon))^(1/2) where noise does."""
    scale = Scale(1.0, 1.0, 1.0, noise)
    few, many = 10**14, 10**18
    found = np.log(reachable(scale, many) / reachable(scale, few)) / np.log(many / few)
    assert found == pytest.approx(slope, abs=0.02)
