"""The trust-region step: optimality conditions, CVXPY's optimum, transformations, bad input."""

import functools
from unittest import mock

import chex
import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.linalg import Exact, _newton, trust_region_step
from dpjax.linalg._newton import try_newton

# On both sides of the size from which Cholesky factors are tried on the sphere.
SIZES = (1, 2, 22, 64)
NEAR_HARD = {f"near hard {size:g}": size for size in (1e-4, 1e-6, 1e-8, 1e-10, 1e-12)}
SEVERAL_EIGENVALUES = ("hard", "critical", "repeated", "singular", *NEAR_HARD)
KINDS = (
    "interior",
    "boundary",
    "indefinite",
    "zero gradient, convex",
    "zero gradient, indefinite",
    "zero hessian",
    "all zero",
    "large numbers",
    "small numbers",
    "tiny radius, convex",
    "tiny radius, indefinite",
    "huge radius, convex",
    "huge radius, indefinite",
    *SEVERAL_EIGENVALUES,
)
TOLERANCE = {np.float64: 1e-12, np.float32: 1e-5}


@functools.cache
def instance(kind, size):
    """Gradient, Hessian and radius in float64; the eigenvalues are random and those of ``kind``."""
    rng = np.random.default_rng([size, KINDS.index(kind)])
    vectors = np.linalg.qr(rng.standard_normal((size, size)))[0]
    coefficients, values = rng.standard_normal(size), np.sort(rng.standard_normal(size))
    radius, scale = 1.0, 1.0
    if kind in ("interior", "boundary", "singular") or "convex" in kind:
        values = np.sort(abs(values)) + 0.1
        radius = np.linalg.norm(coefficients / values) * (0.3 if kind == "boundary" else 2)
    else:
        values[0] = -abs(values[0]) - 0.5
    if kind in SEVERAL_EIGENVALUES:
        bottom = (size + 1) // 2 if kind in ("repeated", "singular") else 1
        values[:bottom] = 0 if kind == "singular" else values[0]
        values.sort()
        coefficients[:bottom] = NEAR_HARD.get(kind, 0)
        length = np.linalg.norm(coefficients[bottom:] / (values[bottom:] - values[0]))
        radius = length * (1 - 1e-6 if kind == "critical" else 2)
    if "radius" in kind:
        radius = 1e-8 if "tiny" in kind else 1e8
    if "zero gradient" in kind or kind == "all zero":
        coefficients[:] = 0
        radius = 1.0
    if kind in ("zero hessian", "all zero"):
        values[:] = 0
    if "numbers" in kind:
        scale = 1e15 if "large" in kind else 1e-15
    hessian = (vectors * values) @ vectors.T
    return scale * vectors @ coefficients, scale * (hessian + hessian.T) / 2, float(radius)


def residuals(gradient, hessian, radius, step, multiplier):
    """How far the optimality conditions are from holding, each relative to its own terms."""
    gradient, hessian, step = (np.asarray(x, np.float64) for x in (gradient, hessian, step))
    radius, multiplier = float(radius), float(multiplier)
    values = np.linalg.eigvalsh(hessian)
    size, force, length = max(abs(values)), np.linalg.norm(gradient), np.linalg.norm(step)
    return {
        "stationarity": _relative(
            np.linalg.norm(hessian @ step + multiplier * step + gradient),
            size * length + multiplier * length + force,
        ),
        "feasibility": max(0.0, length - radius) / radius,
        "complementarity": _relative(
            multiplier * abs(radius - length), (size + multiplier) * radius + force
        ),
        "semidefiniteness": _relative(max(0.0, -(values[0] + multiplier)), max(size, multiplier)),
        "sign": _relative(max(0.0, -multiplier), size),
    }


def _relative(value, scale):
    return value / scale if scale > 0 else value


def broken(conditions, tolerance):
    return {name: value for name, value in conditions.items() if not value <= tolerance}


def cast(kind, size, dtype):
    gradient, hessian, radius = instance(kind, size)
    return jnp.asarray(gradient, dtype), jnp.asarray(hessian, dtype), jnp.asarray(radius, dtype)


CASES = [(k, p) for p in SIZES for k in KINDS if p > 1 or k not in SEVERAL_EIGENVALUES]


@pytest.mark.optimised
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("kind", "size"), CASES)
def test_optimality_conditions(kind, size, dtype):
    with jax.enable_x64(dtype == np.float64):
        problem = cast(kind, size, dtype)
        step, multiplier = trust_region_step(*problem, solver=Exact())
        assert step.dtype == multiplier.dtype == dtype
        assert not broken(residuals(*problem, step, multiplier), TOLERANCE[dtype])


def socp_optimum(gradient, hessian, radius):
    """The optimal value by the exact convex form in the eigenbasis (Ben-Tal and den Hertog)."""
    values, vectors = np.linalg.eigh(hessian * radius)
    weights = vectors.T @ gradient
    scale = max(abs(values).max(), abs(weights).max())
    squares, roots = cp.Variable(len(values)), cp.Variable(len(values))
    problem = cp.Problem(
        cp.Minimize(values / scale @ squares / 2 - abs(weights) / scale @ roots),
        [cp.square(roots) <= squares, cp.sum(squares) <= 1],
    )
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return problem.value * scale * radius


# Where the optimum is 0, or 1e-8 and less in the units of the ball, Clarabel's tolerance hides it.
TOO_SMALL_FOR_CLARABEL = ("zero gradient, convex", "all zero", "huge radius, convex")


@pytest.mark.optimised
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize(
    ("kind", "size"), [case for case in CASES if case[0] not in TOO_SMALL_FOR_CLARABEL]
)
def test_value_is_cvxpys_optimum(kind, size):
    with jax.enable_x64(True):
        gradient, hessian, radius = instance(kind, size)
        step = np.asarray(trust_region_step(gradient, hessian, radius, solver=Exact()).step)
    value = gradient @ step + step @ hessian @ step / 2
    np.testing.assert_allclose(value, socp_optimum(gradient, hessian, radius), rtol=1e-6)


def ignores_the_hard_case(gradient, hessian, radius):
    """Stops at the shift that makes H singular and forgets to walk along the bottom eigenvector."""
    values, vectors = np.linalg.eigh(hessian)
    coefficients = vectors.T @ gradient
    gaps = np.where(values - values[0] > 1e-9, values - values[0], np.inf)
    return -vectors @ (coefficients / gaps), -values[0]


def takes_the_nearest_stationary_point(gradient, hessian, radius):
    """Newton's step cut to the radius: right for interior minima, whatever the curvature."""
    step = -np.linalg.solve(hessian, gradient)
    return step * min(1, radius / np.linalg.norm(step)), 0.0


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (ignores_the_hard_case, "hard"),
        (ignores_the_hard_case, "repeated"),
        (takes_the_nearest_stationary_point, "boundary"),
        (takes_the_nearest_stationary_point, "indefinite"),
    ],
)
def test_the_conditions_reject_a_wrong_solver(wrong, kind):
    problem = instance(kind, 22)
    assert broken(residuals(*problem, *wrong(*problem)), 1e-5)


@pytest.mark.optimised
@pytest.mark.parametrize(
    ("size", "dtype"), [(22, np.float32), pytest.param(64, np.float64, marks=pytest.mark.ci)]
)
def test_jit_and_vmap_agree_with_a_loop(size, dtype):
    # Not the hard kinds: they have two minimisers, and rounding chooses between them.
    kinds = ("interior", "boundary", "indefinite", "zero hessian", "tiny radius, indefinite")
    with jax.enable_x64(dtype == np.float64):
        problems = [cast(kind, size, dtype) for kind in kinds]
        solve = functools.partial(trust_region_step, solver=Exact())
        one_by_one = [solve(*problem) for problem in problems]
        batch = jax.jit(jax.vmap(solve))(*map(np.stack, zip(*problems, strict=True)))
        for index, (step, multiplier) in enumerate(one_by_one):
            radius = float(problems[index][2])
            tolerance = 100 * TOLERANCE[dtype]
            np.testing.assert_allclose(batch.step[index], step, atol=tolerance * radius)
            np.testing.assert_allclose(
                batch.multiplier[index], multiplier, rtol=tolerance, atol=tolerance
            )


def noisy_model(size, radius):
    """What DP-TR meets in a step: noise on the Hessian, damped by half its size, and a gradient."""
    rng = np.random.default_rng([size, int(10 * radius)])
    noise, half = rng.standard_normal((size, size)), rng.standard_normal((size, 3))
    hessian = (noise + noise.T) / 2 + np.sqrt(size / 2) * np.eye(size) + half @ half.T
    weight = max(abs(hessian).max() * radius, 10)
    gradient = 3.3 * rng.standard_normal(size) / weight
    return hessian / abs(hessian).max(), gradient, abs(hessian).max() * radius / weight


@pytest.mark.parametrize(
    ("size", "dtype"), [(60, np.float64), (200, np.float32), (200, np.float64)]
)
def test_steps_of_dp_tr_need_no_eigendecomposition(size, dtype):
    """Which fights with XLA for the cores: the step is found by a few Cholesky factorisations."""
    factorised = []

    def cholesky(matrix, **options):
        jax.debug.callback(lambda: factorised.append(1))
        return factorise(matrix, **options)

    factorise = jnp.linalg.cholesky
    with jax.enable_x64(dtype == np.float64), mock.patch.object(jnp.linalg, "cholesky", cholesky):
        attempt = jax.jit(lambda *parts: try_newton(*parts))
        for radius in (0.1, 0.5, 2.0, 5.0, 12.0):
            factorised.clear()
            parts = [jnp.asarray(part, dtype) for part in noisy_model(size, radius)]
            found = attempt(*parts)[2]
            jax.effects_barrier()
            assert found and len(factorised) <= 5
        program = str(jax.make_jaxpr(try_newton)(*parts))
        assert "cholesky" in program and "eigh" not in program and "householder" not in program


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", ["interior", "boundary", "indefinite", "huge radius, convex"])
def test_newton_proves_what_it_returns_and_gives_up_on_the_rest(kind, dtype):
    with jax.enable_x64(dtype == np.float64):
        gradient, hessian, _ = cast(kind, 64, dtype)
        weight, attempt = jnp.ones((), dtype), jax.jit(try_newton)
        for size in (0.0, 1e-30, 1e-6, 1e-3, 1.0, 30.0):
            step, multiplier, found = attempt(hessian, size * gradient, weight)
            step = step / jnp.where(multiplier > 0, jnp.linalg.norm(step), 1)
            problem = size * gradient, hessian, 1.0
            if found:
                assert not broken(residuals(*problem, step, multiplier), TOLERANCE[dtype])
            # The planted bug, a multiplier that is off, would show.
            assert broken(residuals(*problem, step, 1.001 * multiplier + 1e-3), TOLERANCE[dtype])


@pytest.mark.parametrize("kind", ["hard", "repeated", "critical", "near hard 1e-12"])
def test_a_batch_of_hard_instances_is_optimal(kind):
    with jax.enable_x64(True):
        gradient, hessian, radius = cast(kind, 22, np.float64)
        radii = radius * jnp.array([0.5, 1.0, 2.0, 1e6])
        steps, multipliers = jax.vmap(trust_region_step, (None, None, 0))(gradient, hessian, radii)
        for r, step, multiplier in zip(radii, steps, multipliers, strict=True):
            assert not broken(residuals(gradient, hessian, r, step, multiplier), 1e-12)


class Rotated:
    """Solves by eigenvectors, found as on a TPU."""

    def solve(self, *model):
        return _newton.by_eigenvectors(*model)[:2]


@pytest.mark.parametrize("polished", [True, False])
@pytest.mark.parametrize("kind", ["boundary", "indefinite", "hard", "repeated", "singular"])
def test_the_rough_rotations_of_a_tpu_are_good_enough(kind, polished, monkeypatch):
    # XLA's eigenvectors were 1.5e-4 from orthogonal at p = 300. No CPU takes rotations.
    skew = np.random.default_rng(0).normal(size=(22, 22)).astype(np.float32)

    def rough(matrix, **_):
        values, vectors = jnp.linalg.eigh(matrix)
        return vectors @ (np.eye(22, dtype=np.float32) + 1e-5 * (skew + skew.T)), values

    def unpolished(matrix):
        return rough(matrix)[::-1]

    monkeypatch.setattr(jax.lax.linalg, "eigh", rough)
    monkeypatch.setattr(_newton, "_by_eigh", _newton._by_rotations if polished else unpolished)
    problem = cast(kind, 22, np.float32)
    found = trust_region_step(*problem, solver=Rotated())
    assert (not broken(residuals(*problem, *found), 1e-5)) == polished


def test_a_tpu_compiles_no_divide_and_conquer_at_300_parameters():
    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((300,), (300, 300))]
    step = jax.jit(lambda g, h: trust_region_step(g, h, 1.0, Exact()))
    module = step.trace(*shapes).lower(lowering_platforms=("tpu",)).as_text()
    assert module.count("custom_call @Eigh") == 1 and module.count("stablehlo.while") == 1


def test_a_new_radius_does_not_retrace():
    @jax.jit
    @chex.assert_max_traces(n=1)
    def solve(gradient, hessian, radius):
        return trust_region_step(gradient, hessian, radius)

    for radius in (0.1, 1.0, 10.0):
        solve(jnp.ones(3), jnp.eye(3), radius)
    # The counter sees a real retrace: a problem of another size.
    with pytest.raises(AssertionError, match="traced > 1 times"):
        solve(jnp.ones(4), jnp.eye(4), 1.0)


@pytest.mark.parametrize("size", [5, 150])
def test_without_gradient_a_convex_model_stays_and_an_indefinite_one_falls(size):
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        half = rng.standard_normal((size, size - 2))
        step, multiplier = trust_region_step(jnp.zeros(size), half @ half.T, 2.0)
        assert multiplier == 0 and not step.any()
        matrix = half @ half.T - np.eye(size)
        step, multiplier = trust_region_step(jnp.zeros(size), matrix, 2.0)
        np.testing.assert_allclose(step @ matrix @ step, -4.0, rtol=1e-12)
        np.testing.assert_allclose(multiplier, 1.0, rtol=1e-12)


@pytest.mark.parametrize("size", [5, 150])
def test_rounding_in_a_null_space_does_not_move_the_step(size):
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        half = rng.standard_normal((size, size - 2))
        gradient = half @ rng.standard_normal(size - 2)
        shortest = -np.linalg.pinv(half @ half.T, rcond=1e-10) @ gradient
        step, multiplier = trust_region_step(gradient, half @ half.T, 1e6)
        assert multiplier == 0
        np.testing.assert_allclose(step, shortest, rtol=1e-6, atol=1e-9)


def test_the_symmetric_part_is_used():
    skew = jnp.array([[0.0, 5.0], [-5.0, 0.0]])
    hessian = jnp.array([[1.0, 0.5], [0.5, -2.0]])
    problem = jnp.array([1.0, 2.0]), 0.7
    expected = trust_region_step(problem[0], hessian, problem[1])
    actual = trust_region_step(problem[0], hessian + skew, problem[1])
    np.testing.assert_allclose(actual.step, expected.step, rtol=1e-6)


@pytest.mark.parametrize(
    ("gradient", "hessian", "radius", "named"),
    [
        (np.ones((3, 1)), np.eye(3), 1.0, "gradient must have shape"),
        (np.ones(0), np.ones((0, 0)), 1.0, "gradient must have shape"),
        (np.ones(3), np.eye(2), 1.0, "hessian must have shape"),
        (np.ones(3), np.ones(3), 1.0, "hessian must have shape"),
        (np.ones(3, int), np.eye(3), 1.0, "gradient must be float32"),
        (np.ones(3, np.float16), np.eye(3, dtype=np.float16), 1.0, "gradient must be float32"),
        (np.ones(3, np.float32), np.eye(3, dtype=np.float16), 1.0, "hessian must have the dtype"),
        (np.ones(3), np.eye(3), 0.0, "radius must be"),
        (np.ones(3), np.eye(3), -1.0, "radius must be"),
        (np.ones(3), np.eye(3), np.inf, "radius must be"),
        (np.ones(3), np.eye(3), np.nan, "radius must be"),
        (np.ones(3), np.eye(3), np.ones(1), "radius must be a scalar"),
        (np.ones(3), np.eye(3), None, "radius must be"),
    ],
)
def test_bad_input_is_named(gradient, hessian, radius, named):
    with pytest.raises(ValueError, match=named):
        trust_region_step(gradient, hessian, radius)


def test_an_unknown_solver_is_named():
    with pytest.raises(ValueError, match=r"solver must be a solver such as .* got 'lanczos'"):
        trust_region_step(np.ones(3), np.eye(3), 1.0, solver="lanczos")
