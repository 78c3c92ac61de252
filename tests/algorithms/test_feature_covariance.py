"""DP-FC: what a record moves, what is released and booked, and what whitening is made of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import quiet

import dpjax
from dpjax import objectives
from dpjax._wide import to_float64
from dpjax.accounting import RELATIONS
from dpjax.linalg.tails import symmetric_top_eigenvalue_quantile
from dpjax.oracles import MomentQuery, PreconditionedQuery, Setting, bind

N, P, K = 200, 4, 3
BUDGET = dpjax.PrivacyBudget(1.0, 1e-5)
SOFTMAX = objectives.softmax(K, 0.0)
W = jnp.asarray(np.random.default_rng(1).normal(size=K * P), jnp.float32)
A = jnp.asarray(np.random.default_rng(2).normal(size=(P, P)), jnp.float32)


def examples(seed=0, n=N):
    random = np.random.default_rng(seed)
    # The last feature is a sixty-fourth of the first.
    x = random.normal(size=(n, P)) * 4.0 ** -np.arange(P)
    x /= 2 * np.linalg.norm(x, axis=1, keepdims=True).max()
    y = (x / 4.0 ** -np.arange(P)) @ random.normal(size=(P, K))
    return x.astype(np.float32), np.argmax(y, axis=1).astype(np.float32)


def query(kind, relation="zero_out", objective=SOFTMAX, **fields):
    size = P if kind is MomentQuery else K * P
    setting = Setting(objective, N, relation, dimension=size)
    return kind(setting=setting, noise_multiplier=1.0, **fields)


def exact(asked, data, **public):
    (total,) = asked.exact(bind(asked, data), W, **public)
    with jax.enable_x64(True):
        return np.asarray(to_float64(total))


def algorithm(objective=SOFTMAX, outputs=K, n=N, **more):
    size = {"data_size": n, "dimension": outputs * P, "steps": 6}
    return dpjax.dp_feature_covariance(objective, BUDGET, **(size | more))


def whitened(made, data):
    """The state after the second moment is asked."""
    asked = bind(made.moment, data)
    key = jax.random.key(0)
    state = made.init(jnp.zeros(made.dimension))
    return made.begin(key, state, lambda query, params: query.answer(key, asked, params))


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("norm", [1.0, 0.1])
def test_the_second_moment_is_that_of_rows_scaled_down_and_moves_by_its_bound(relation, norm):
    asked = query(MomentQuery, relation, clip_norm=norm)
    x, y = examples()
    total = exact(asked, (x, y))
    scaled = x * np.minimum(1, norm / np.linalg.norm(x, axis=1, keepdims=True))
    np.testing.assert_allclose(total, scaled.T @ scaled, atol=2e-4 * norm**2 * N)
    assert np.array_equal(total, total.T) and asked.bound() == pytest.approx(norm**2)
    # A record as long as can be, in place of one across it, or of none.
    x[0], other = 1e6 * np.eye(P)[0], x.copy()
    other[0] = 1e6 * np.eye(P)[1] if relation == "replace_one" else 0
    moved = np.linalg.norm(exact(asked, (x, y)) - exact(asked, (other, y)))
    most = float(asked.sensitivity) * N
    # Two of them that are across are sqrt(2) apart, and 2 is what is booked.
    assert (0.7 if relation == "replace_one" else 0.99) * most <= moved <= most
    assert asked.noise_draws == P * P


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("matrix", [A, 1e6 * A, 0 * A, jnp.full((P, P), jnp.inf)])
def test_no_record_moves_a_gradient_by_more_than_the_clip_norm_whatever_the_matrix(
    relation, matrix
):
    asked = query(PreconditionedQuery, relation, clip_norm=0.1)
    x, y = examples()
    null = x.copy()
    null[0] = np.nan
    with jax.numpy_rank_promotion("allow"):
        moved = [exact(asked, (rows, y), preconditioner=matrix) for rows in (x, null)]
    assert np.isfinite(moved).all()
    assert np.linalg.norm(moved[0] - moved[1]) <= 0.1


@pytest.mark.parametrize("relation", RELATIONS)
def test_records_that_are_arranged_give_the_bits_of_those_that_are_not(relation):
    asked = query(PreconditionedQuery, relation, clip_norm=0.1)
    records = bind(asked, examples())
    arranged = asked.arranged(records, preconditioner=A)
    (one,), (other,) = (asked.exact(r, W, preconditioner=A) for r in (records, arranged))
    for first, second in zip(one.terms, other.terms, strict=True):
        assert np.array_equal(first, second)
    # They are those of the definition: A x in place of x.
    x, y = examples()
    plain = exact(query(dpjax.oracles.GradientQuery, relation, clip_norm=0.1), (x @ A.T, y))
    np.testing.assert_allclose(to_numpy(one), plain, atol=1e-4)


def to_numpy(total):
    with jax.enable_x64(True):
        return np.asarray(to_float64(total))


def test_the_second_moment_has_its_share_of_the_privacy_and_both_are_booked():
    made = algorithm(covariance_share=0.3)
    gradient, moment = made.event.releases
    mu = [release.count / release.noise_multiplier**2 for release in (gradient, moment)]
    assert mu[1] / sum(mu) == pytest.approx(0.3, rel=1e-5)
    assert 0.9999 < made.epsilon() <= 1
    assert moment.count == 1 and gradient.count == 6
    assert made.event.noise_draws == P * P + 6 * K * P
    text = dpjax.results.guarantee.statement(made, "row")
    assert "a record contributes its features times themselves" in " ".join(text.split())


def test_whitening_has_the_scale_of_what_was_released():
    data = examples()
    made = quiet(algorithm())
    state = whitened(made, data)
    matrix, moment = np.float64(state.preconditioner), data[0].T @ data[0] / N
    rows = data[0] @ matrix.T
    assert (rows**2).sum(axis=1).mean() == pytest.approx(1, rel=1e-3)
    # Without noise all eigenvalues are alike, and their sum is that of as many as there are.
    np.testing.assert_allclose(matrix @ moment @ matrix.T, np.eye(P) / P, atol=1e-2)
    assert state.trace == pytest.approx(P, rel=1e-2)


def test_no_direction_is_raised_above_what_the_noise_allows():
    made = algorithm()
    floor = float(made.moment.noise_norm)
    assert floor == pytest.approx(
        symmetric_top_eigenvalue_quantile(P, 0.5) * float(made.moment.stddev)
    )
    null = (np.zeros((N, P), np.float32), np.zeros(N, np.float32))
    state = whitened(made, null)
    assert np.linalg.norm(state.preconditioner, 2) <= (1 + 1e-5) * floor**-0.5
    assert state.trace >= 1


def test_a_public_start_is_where_the_steps_begin():
    made = algorithm(objectives.logistic(), 1)
    start = made.init(jnp.arange(1.0, 1 + P))
    assert start.params.tolist() == [1, 2, 3, 4]
    state = made.begin(jax.random.key(0), start, lambda *asked: jnp.diag(jnp.arange(4.0, 0, -1)))
    (row,) = state.weights @ state.preconditioner
    np.testing.assert_allclose(row, start.params, rtol=1e-5)


def test_it_learns_where_gradient_descent_lacks_steps():
    n = 20_000
    data = examples(n=n)
    size = {"data_size": n, "dimension": K * P, "steps": 100}
    right = []
    for factory in (dpjax.dp_feature_covariance, dpjax.dp_gradient_descent):
        made = factory(objectives.softmax(K, 1e-6), dpjax.PrivacyBudget(3.0, 1e-5), **size)
        weights = np.asarray(dpjax.solve(made, data, seed=0).params).reshape(K, P)
        right.append(np.mean(np.argmax(data[0] @ weights.T, axis=1) == data[1]))
    assert right[0] > right[1] + 0.05


def test_what_it_cannot_read_is_refused_before_anything_is_spent():
    made = algorithm()
    with pytest.raises(ValueError, match="are of records in memory"):
        dpjax.solve(made, dpjax.distributed.stream(examples()), seed=0)
    asked = query(MomentQuery, objective=dpjax.Objective(lambda w, e: w @ e[0]), clip_norm=1.0)
    with pytest.raises(ValueError, match="is no loss of linear scores"):
        asked.exact(examples(), W)
