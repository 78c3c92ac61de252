"""Trainings that are private and worthless say so: by declared numbers, and by released values."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from factories import BUDGET, N, P, mostly_ci, solved, toy, toy_records
from scipy import stats

import dpjax
from dpjax.cli import main
from dpjax.mechanisms import PrefixNoise
from dpjax.mechanisms.noise import Ball, Gaussian, Prefix, SymmetricGaussian
from dpjax.results.remarks import NO_CERTIFICATE, NOISE_ALONE, remarks, remarks_of_released

# Each statistical check fails by chance with this probability at most.
LEVEL = 1e-6
RUNS = 4_000


# Declared numbers.

LOGISTIC = dpjax.objectives.logistic_nonconvex(regularization=1e-3)
TR, GD = dpjax.dp_trust_region, dpjax.dp_gradient_descent


@pytest.mark.parametrize(
    ("make", "n", "p", "said"),
    [
        (TR, 300, 2_001, "has norm 4.6, and no clipped gradient is longer than 1"),
        (GD, 20_000, 10**6, "has norm 1.6, and no clipped gradient is longer than 1"),
        (TR, 10**7, 100_000, "a Hessian of 100,000 x 100,000 numbers takes 40 GB"),
        (TR, 20_000, 22, None),
        (GD, 10**7, 100_000, None),
        (dpjax.dp_subspace_trust_region, 20_000, 10**6, None),
    ],
)
def test_noise_longer_than_any_gradient_is_said_before_it_is_spent(make, n, p, said):
    budget = dpjax.PrivacyBudget(1.0, 1e-9)
    found = remarks(make(LOGISTIC, budget, data_size=n, dimension=p, steps=32))
    assert not found if said is None else said in found[0], found


@pytest.mark.parametrize(("batch_size", "said"), [(2, True), (64, False)])
def test_of_batches_the_noise_counts_over_a_pass(batch_size, said):
    """The noise of one batch is longer than its gradient, and for large networks always is."""
    budget = dpjax.PrivacyBudget(3.0, 1e-6)
    sizes = {"data_size": 10_000, "dimension": 100_000, "batch_size": batch_size, "steps": 1_000}
    algorithm = dpjax.dp_adam(LOGISTIC, budget, accountant="rdp", **sizes)
    assert float(algorithm.queries[0].stddev) * 100_000**0.5 > 3
    assert any("no clipped gradient" in remark for remark in remarks(algorithm)) == said


# Released values.


def evidence(steps, degrees, scale=1.0, first=0.0):
    """Of RUNS trainings: noise ``scale`` times too large, beside a first gradient.

    Args:
      steps: of each.
      degrees: of freedom of each part.
      scale: of all noise.
      first: squared norm of the gradient in the first answer's first part, over the variance.
    """
    random = np.random.default_rng(5)
    shape = (RUNS, steps, len(degrees))
    squares = scale**2 * random.chisquare(degrees, shape)
    squares[:, 0, 0] = (
        random.noncentral_chisquare(degrees[0], first, RUNS) if first else squares[:, 0, 0]
    )
    freedom = np.broadcast_to(np.asarray(degrees, float), shape)
    return np.stack([squares - freedom, freedom], axis=-1)


def remarked(*args, **more):
    return sum(bool(remarks_of_released(one, args[0], False)) for one in evidence(*args, **more))


@pytest.mark.parametrize(
    ("steps", "degrees"), [(1, [4]), (20, [54]), (8, [22, 253]), (50, [10**6])]
)
def test_noise_alone_escapes_the_remark_once_in_1000_trainings(steps, degrees):
    """Wrong more often by chance with probability LEVEL; noise 1.25 times as large is told."""
    allowed = stats.binom.isf(LEVEL, RUNS, 1e-3)
    assert RUNS - remarked(steps, degrees) <= allowed
    assert RUNS - remarked(steps, degrees, scale=1.25) > allowed


# In docs/quickstart.md: how long a first gradient shows, over the typical norm of the noise.
@pytest.mark.parametrize(("p", "times"), [(22, 2.0), (1_000, 0.6), (10_000, 0.32), (10**6, 0.1)])
def test_a_first_gradient_of_the_length_in_the_docs_shows(p, times):
    """With probability 0.999; less often by chance with probability LEVEL. Half of it does not."""
    allowed = stats.binom.isf(LEVEL, RUNS, 1e-3)
    assert remarked(1, [p], first=times**2 * p) <= allowed
    assert remarked(1, [p], first=times**2 * p / 4) > allowed


def test_small_batches_show_over_all_steps():
    """Each gradient has a tenth of the noise's norm: one is not told from noise, and many are."""
    random = np.random.default_rng(5)
    squares = random.noncentral_chisquare(1_000, 10.0, 1_000)
    seen = np.stack([squares - 1_000, np.full(1_000, 1_000.0)], axis=-1)[:, None]
    assert remarks_of_released(seen, 1, False) == [NOISE_ALONE]
    assert remarks_of_released(seen, 1_000, False) == []


LAWS = {
    "gaussian": (Gaussian(), (5,), 5),
    "symmetric": (SymmetricGaussian(), (4, 4), 10),
    "paper's symmetric": (SymmetricGaussian(isometric=False), (4, 4), 10),
    "first of a square root": (Prefix(of=PrefixNoise("square_root", 6), leaf=0), (5,), 5),
    "first of a tree": (Prefix(of=PrefixNoise("tree", 6), leaf=0), (5,), 5),
    "fourth of a tree": (Prefix(of=PrefixNoise("tree", 6), leaf=3), (5,), 0),
    "third of independent": (Prefix(of=PrefixNoise("independent", 6), leaf=2), (5,), 5),
    "ball": (Ball(), (5,), 5),
}


@pytest.mark.parametrize(
    "law", mostly_ci(LAWS, ["gaussian", "symmetric", "first of a tree", "ball"])
)
def test_the_squares_of_noise_are_chi_square(law):
    """At LEVEL; noise 10 % larger is not. A ball's squares are bounded by d + 2."""
    noise, shape, freedom = LAWS[law]

    def draw(key):
        return jnp.stack(noise.excess(noise.add(key, jnp.zeros(shape), 0.3), 0.3))

    keys = jax.random.split(jax.random.key(2), RUNS)
    excess, degrees = np.asarray(jax.vmap(draw)(keys), float).T
    assert set(degrees) == {freedom}
    if law == "ball":
        assert (excess + degrees).max() <= (freedom + 2) * (1 + 1e-3)
    elif freedom:
        for off, right in ((1.0, True), (1.1, False)):
            squares = off**2 * (excess + degrees)
            assert (stats.kstest(squares, stats.chi2(freedom).cdf).pvalue > LEVEL) == right
    else:
        assert not excess.any()


@pytest.mark.parametrize("make", [dpjax.objective_perturbation,
                                  dpjax.output_perturbation])  # fmt: skip
def test_a_minimum_of_null_records_is_noise(make):
    """Of 200 trainings at most 6 are without the remark: more by chance with probability 1e-7."""
    objective = dpjax.objectives.logistic_l2(0.1)
    x, y = toy_records()

    def train(budget, y):
        algorithm = make(objective, budget, data_size=N, dimension=P)
        keys = jax.random.split(jax.random.key(3), 200)
        return jax.vmap(lambda key: dpjax.solve(algorithm, (x, y), key=key))(keys).remarks

    assert sum(not remark for remark in train(BUDGET, jnp.nan * y)) <= 6
    assert not any(train(dpjax.PrivacyBudget(50.0, 1e-4), y))


def test_a_first_gradient_with_its_regularizer_is_not_taken_for_records():
    """A start far from 0 has a regularizer's gradient of its own, which no record has made."""
    objective = dpjax.objectives.logistic_l2(1.0)
    algorithm = toy("dp-gd", objective=objective, step_size=0.1)
    x, y = toy_records()
    solution = dpjax.solve(
        algorithm, (x, jnp.nan * y), key=jax.random.key(1), params=jnp.full(P, 50.0)
    )
    assert float(solution.history.gradient_norm[0]) > 90
    assert solution.remarks == [NOISE_ALONE]


# Certificates.

OVERFLOWS = {
    "penalty": ("dp-tr", dpjax.objectives.logistic_nonconvex(1e38), {}, 0.0),
    "start": ("dp-tr", None, {}, 1e20),
    "radius": ("dp-tr", None, {"radius": 1e25, "final_radius": 1e25, "filtering": False}, 0.0),
    "step size": ("dp-gd", None, {"step_size": 1e30}, 0.0),
}


@pytest.mark.parametrize("case", OVERFLOWS)
@pytest.mark.filterwarnings("ignore:.*not finite:RuntimeWarning")
def test_a_certificate_that_overflows_is_none_and_says_why(case):
    name, objective, more, start = OVERFLOWS[case]
    algorithm = toy(name, objective=objective, **more)
    train = dpjax.run if case == "step size" else dpjax.solve
    solution = train(algorithm, toy_records(), key=jax.random.key(4), params=jnp.full(P, start))
    assert solution.certificate is None
    assert NO_CERTIFICATE in solution.remarks


@pytest.mark.parametrize("name", ["dp-tr", "dp-gd"])
def test_a_certificate_that_holds_stays(name):
    assert np.isfinite(jax.tree.leaves(solved(name).certificate)).all()
    assert NO_CERTIFICATE not in solved(name).remarks


# Where a person sees it.


@pytest.mark.parametrize("command", ["run --dry-run", "calibrate"])
def test_the_command_line_says_it_before_it_is_spent(command, capsys):
    kind, *more = command.split()
    words = ["dp-tr", "--data", "randhie", "--epsilon", "0.001", "--steps", "256"]
    assert main([kind, *words, *more]) == 0
    assert "no clipped gradient is longer than 1" in capsys.readouterr().err


def test_a_training_on_unknown_labels_says_so_on_the_command_line_and_in_its_report(
    capsys, tmp_path
):
    x, y = toy_records()
    table, bounds, out, page = (tmp_path / name for name in ("t.npz", "b.json", "o.json", "o.html"))
    bounds.write_text(json.dumps({str(column): [-1, 1] for column in range(P)}))
    words = (
        f"run dp-gd --data {table} --bounds {bounds} --classes=-1,1 --epsilon 50 --steps 6 --seed 0"
    )
    for labels, said in ((7 * y, True), (y, False)):
        np.savez(table, x=x, y=labels)
        assert main([*words.split(), "--json", str(out), "--report", str(page)]) == 0
        assert json.loads(out.read_text())["remarks"] == [NOISE_ALONE] * said
        assert (f"warning: {NOISE_ALONE}" in capsys.readouterr().out) == said
        assert ("told from noise alone" in page.read_text()) == said


@pytest.mark.parametrize(
    "more", mostly_ci(["--report {}.html", "--repeats 2"], ["--report {}.html"])
)
def test_a_certificate_that_overflows_is_null_in_json_and_said(more, capsys, tmp_path):
    out = tmp_path / "out"
    words = f"run dp-tr --regularization 1e38 --steps 6 --seed 0 --json {out} {more.format(out)}"
    assert main(words.split()) == 0
    certificate = json.loads(out.read_text())["certificate"]
    printed = capsys.readouterr().out
    assert "nan" not in printed
    if "repeats" in more:
        assert certificate["min_eigenvalue_lower"] == [None, None]
        assert "Hessian >= none" in printed
    else:
        assert certificate is None
        assert NO_CERTIFICATE in printed
        assert "gives no bounds" in pathlib.Path(f"{out}.html").read_text()


@pytest.mark.ci
def test_an_estimator_warns_of_a_training_on_unknown_classes():
    x, y = toy_records()
    one = dpjax.estimators.DPLogisticRegression(
        classes=(-1, 1), data_norm=1.0, epsilon=50.0, random_state=0, solver_options={"steps": 6}
    )
    one.fit(x, y)
    with pytest.warns(RuntimeWarning, match="told from noise alone"):
        one.fit(x, 5 * y)


@pytest.mark.ci
def test_fit_warns_of_a_training_on_null_records():
    x, y = toy_records()

    def train(x):
        return dpjax.fit(
            lambda w, x: x @ w, "cross_entropy", (x, y > 0), dpjax.PrivacyBudget(50.0, 1e-3),
            optax.sgd(0.5), seed=0, batch_size=16, epochs=4, params=jnp.zeros((P, 2)),
            progress=False,
        )  # fmt: skip

    assert train(x).solution.remarks == []
    with pytest.warns(RuntimeWarning, match="told from noise alone"):
        train(x * np.nan)
