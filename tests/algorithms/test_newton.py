"""DP-Newton: how far a record moves a direction, what the step is, and what the noise costs."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax._wide import to_float64
from dpjax.accounting import RELATIONS, records_moved
from dpjax.oracles import NewtonQuery, Setting, bind
from dpjax.results import guarantee

N, P, FLOOR, CLIP = 8, 3, 0.2, 0.01
LOGISTIC = dpjax.objectives.logistic()


def curved(params, example):
    """Curvature far above every clip norm, of the example's sign, along its features."""
    return 1e4 * example[0] * (example[1:] @ params) ** 2 / 2


def asked(relation, modification, objective=None):
    objective = dpjax.Objective(curved) if objective is None else objective
    return NewtonQuery(
        setting=Setting(objective, N, relation),
        noise_multiplier=1.0,
        clip_norm=CLIP,
        floor=FLOOR,
        modification=modification,
        dimension=P,
    )


@functools.partial(jax.jit, static_argnames="query")
def _exact(query, rows, along):
    return query.exact(bind(query, rows), jnp.zeros(P), along=along)[0]


def exact(query, rows, along):
    found = _exact(query, rows, along)
    with jax.enable_x64(True):
        return np.asarray(to_float64(found))


@pytest.mark.parametrize("modification", ["add", "clip"])
@pytest.mark.parametrize("relation", RELATIONS)
def test_one_record_moves_a_direction_by_its_sensitivity(relation, modification):
    """Random neighbours stay below it, and one whose curvature lies along u comes near it."""
    query = asked(relation, modification)
    random = np.random.default_rng(0)
    direction = np.array([1.0, 0.0, 0.0])
    worst = 0.0
    for trial in range(20):
        # Positive and negative curvature, so that H has eigenvalues on both sides of the floor.
        rows = random.normal(size=(N, 1 + P)).astype(np.float32)
        rows[:, 0] = np.sign(rows[:, 0] + 0.3)
        other = rows.copy()
        if trial == 0:
            rows[:], other[:] = 0, 0
            # H is at the floor along u, where f is steepest; half of the pair pushes it up.
            rows[0] = [1, *direction]
            other[0] = 0 if relation != "replace_one" else [-1, *direction]
            base = dpjax.Objective(curved, Lifted(FLOOR if modification == "clip" else 0.0))
            query = asked(relation, modification, base)
        elif relation == "replace_one":
            other[3] = random.normal(size=1 + P)
        else:
            other[3] = 0
        if relation == "add_or_remove_one":
            other = np.delete(other, 0 if trial == 0 else 3, axis=0)
        along = jnp.asarray(direction if trial == 0 else random.normal(size=P), jnp.float32)
        moved = np.linalg.norm(exact(query, rows, along) - exact(query, other, along))
        assert moved <= query.sensitivity
        worst = max(worst, moved / float(query.sensitivity))
    # Opposite records move half of the way below the floor, where f is flat.
    assert worst > (0.49 if relation == "replace_one" else 0.97)


@dataclasses.dataclass(frozen=True)
class Lifted:
    """Curvature ``lift`` in every direction, known to all."""

    lift: float

    def __call__(self, params):
        return self.lift * jnp.sum(params**2) / 2


def test_the_sensitivity_is_the_one_of_the_docstring():
    for relation in RELATIONS:
        leading = records_moved(relation) * CLIP / (N * FLOOR**2)
        assert float(asked(relation, "add").sensitivity) == pytest.approx(leading, rel=3e-3)


@pytest.mark.parametrize("modification", ["add", "clip"])
def test_without_noise_it_is_newtons_method(modification):
    random = np.random.default_rng(1)
    x = random.normal(size=(N, P)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    data = (x, np.sign(x[:, 0] + 0.1).astype(np.float32))
    objective = dpjax.objectives.logistic_l2(0.01)
    algorithm = dpjax.dp_newton(
        objective,
        dpjax.PrivacyBudget(1.0, 1e-3),
        data_size=N,
        dimension=P,
        steps=4,
        floor=0.03,
        modification=modification,
        step_size=0.9,
    )
    quiet = dataclasses.replace(
        algorithm,
        gradient=dataclasses.replace(algorithm.gradient, noise_multiplier=1e-7),
        direction=dataclasses.replace(algorithm.direction, noise_multiplier=1e-9),
    )
    found = dpjax.solve(quiet, data, key=jax.random.key(0)).params
    value = lambda w: dpjax.diagnostics.exact_objective(objective, w, data)  # noqa: E731
    slope, curvature, params = jax.jit(jax.grad(value)), jax.jit(jax.hessian(value)), jnp.zeros(P)
    for _ in range(4):
        values, vectors = np.linalg.eigh(curvature(params))
        values = values + 0.03 if modification == "add" else np.maximum(values, 0.03)
        params -= 0.9 * vectors @ (vectors.T @ slope(params) / values)
    np.testing.assert_allclose(found, params, rtol=1e-3, atol=1e-4)


def test_the_budget_is_split_as_asked_and_both_parts_fill_it():
    budget = dpjax.PrivacyBudget(1.0, 1e-5)
    algorithm = dpjax.dp_newton(LOGISTIC, budget, data_size=1_000, dimension=P, gradient_share=0.8)
    first, second = algorithm.event.releases
    shares = [release.count / release.noise_multiplier**2 for release in (first, second)]
    assert shares[0] / sum(shares) == pytest.approx(0.8, rel=1e-5)
    assert 0.9999 < dpjax.accounting.epsilon(algorithm.event, 1e-5, "zero_out") <= 1.0


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"modification": "invert"}, "unknown modification 'invert'"),
        ({"floor": 0.0}, "floor must be"),
        ({"gradient_share": 1.0}, "gradient_share must be"),
        ({"step_size": -1.0}, "step_size must be"),
        ({"objective": dpjax.Objective(curved), "clip_norm": 1.0}, "hessian_clip_norm is required"),
    ],
)
def test_bad_arguments(bad, message):
    more = {"objective": LOGISTIC, "budget": dpjax.PrivacyBudget(1.0, 1e-3)} | bad
    with pytest.raises(ValueError, match=message):
        dpjax.dp_newton(data_size=N, dimension=P, **more)


def test_the_guarantee_says_what_a_direction_is_and_what_bounds_it():
    """It was called a mean of clipped contributions."""
    budget = dpjax.PrivacyBudget(1.0, 1e-5)
    algorithm = dpjax.dp_newton(LOGISTIC, budget, data_size=1_000, dimension=P)
    text = " ".join(guarantee.statement(algorithm, "row").split())
    (released,) = re.findall(r"Released: ([^.]*)\.", text)
    assert released.split("; ") == [
        "means of clipped contributions, with Gaussian noise",
        "an inverse mean Hessian times the direction of a vector released before, with Gaussian "
        "noise",
    ]
    assert "newton direction: 12 times" in text and "raised to a public floor or above it" in text
