"""The trust-region subproblem against CVXPY with Clarabel and SciPy's exact solver, as Markdown.

Run ``python benchmarks/subproblem.py``. All times of a row are taken in one run, side by side, and
are the mean over its instances of the median time to solve one. What is timed:

- dpjax: one jitted call in float64, to the last digit, waiting for the result;
- CVXPY: the exact convex form in the eigenbasis (Ben-Tal and den Hertog), built and compiled once
  with parameters (and, as 'built anew', once per solve); timed are ``numpy.linalg.eigh``, setting
  the parameters and ``solve`` with Clarabel at its default tolerance of 1e-8. The original problem
  is not convex, so CVXPY cannot be given it;
- from p = 256, dpjax is Lanczos with a proof to a relative 1e-5 of the value; the last tables
  hold it against the bare eigendecomposition with its secular equation and against the exact
  solver, in both precisions, each the best of several rounds in turn, with the gap reached;
- SciPy: constructing and solving ``IterativeSubproblem`` with its defaults, which stop at a radius
  within 10 % (k_easy) and an objective within 20 % (k_hard) of the optimum; and, as 'tight', with
  both at 1e-10, where hard instances end at its limit of 25 iterations without an answer.

One BLAS thread unless the environment says otherwise: with more, SciPy's and JAX's libraries get
in each other's way and times vary tenfold.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when NumPy is first imported

import functools
import time
from collections.abc import Callable

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize._trustregion_exact import IterativeSubproblem

from dpjax.linalg import Exact, Lanczos, trust_region_step
from dpjax.linalg._newton import by_eigenvectors
from dpjax.linalg.lanczos import try_lanczos

SIZES = (1, 5, 10, 22, 54, 100, 200, 500)
CVXPY_SIZES = (22, 54, 200, 500)
KINDS = ("interior", "convex boundary", "indefinite", "hard")
LARGE_SIZES = (300, 1000, 2000)
LARGE_KINDS = (
    "interior",
    "convex boundary",
    "indefinite",
    "noisy, radius 0.5",
    "noisy, radius 12",
    "near hard",
    "hard",
    "hard, no gap",
    "badly conditioned",
)


def instances(size: int, kind: str, count: int = 3) -> list[tuple[np.ndarray, np.ndarray, float]]:
    """Gradient, Hessian and radius of ``count`` problems of one kind."""
    rng = np.random.default_rng([size, KINDS.index(kind)])
    problems = []
    for _ in range(count):
        vectors = np.linalg.qr(rng.standard_normal((size, size)))[0]
        coefficients = rng.standard_normal(size)
        values = np.sort(rng.standard_normal(size))
        if kind in ("interior", "convex boundary"):
            values = np.sort(abs(values)) + 0.1
            length = np.linalg.norm(coefficients / values)
            radius = length * (2 if kind == "interior" else 0.3)
        else:
            values[0] = -abs(values[0]) - 0.5
            radius = 1.0
        if kind == "hard":
            coefficients[0] = 0
            radius = 2 * np.linalg.norm(coefficients[1:] / (values[1:] - values[0])) or 1.0
        problems.append((vectors @ coefficients, (vectors * values) @ vectors.T, float(radius)))
    return problems


def ours(gradient: np.ndarray, hessian: np.ndarray, radius: float) -> Callable[[], object]:
    arrays = jnp.asarray(gradient), jnp.asarray(hessian), jnp.asarray(radius)
    solve = jax.jit(trust_region_step)
    return lambda: jax.block_until_ready(solve(*arrays))


def scipy_exact(
    gradient: np.ndarray, hessian: np.ndarray, radius: float, **options: float
) -> Callable[[], object]:
    origin = np.zeros_like(gradient)

    def solve():
        problem = IterativeSubproblem(
            origin, lambda _: 0.0, lambda _: gradient, lambda _: hessian, **options
        )
        return problem.solve(radius)

    return solve


def cvxpy_solver(size: int) -> Callable[..., Callable[[], object]]:
    squares, roots = cp.Variable(size), cp.Variable(size)
    values, weights = cp.Parameter(size), cp.Parameter(size)
    radius_squared = cp.Parameter(nonneg=True)
    problem = cp.Problem(
        cp.Minimize(values @ squares / 2 + weights @ roots),
        [cp.square(roots) <= squares, cp.sum(squares) <= radius_squared],
    )

    def solver(gradient: np.ndarray, hessian: np.ndarray, radius: float) -> Callable[[], object]:
        def solve():
            values.value, vectors = np.linalg.eigh(hessian)
            weights.value = vectors.T @ gradient
            radius_squared.value = radius**2
            problem.solve(solver=cp.CLARABEL)
            return vectors @ roots.value

        return solve

    return solver


def rebuilt_cvxpy(gradient: np.ndarray, hessian: np.ndarray, radius: float) -> Callable[[], object]:
    return lambda: cvxpy_solver(len(gradient))(gradient, hessian, radius)()


def milliseconds(solve: Callable[[], object], budget: float = 0.3) -> float:
    solve()
    start = time.perf_counter()
    times: list[float] = []
    while len(times) < 5 or (len(times) < 2000 and time.perf_counter() - start < budget):
        before = time.perf_counter()
        solve()
        times.append(time.perf_counter() - before)
    return 1e3 * float(np.median(times))


def table(rows: list[list[str]], header: list[str]) -> str:
    lines = [header, ["---:"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def single() -> None:
    """One problem at a time, each solver on the same instances."""
    summary, detail = [], []
    for size in SIZES:
        kinds = KINDS if size > 1 else KINDS[:3]
        solvers = {
            "dpjax": ours,
            "SciPy": scipy_exact,
            "SciPy tight": functools.partial(scipy_exact, k_easy=1e-10, k_hard=1e-10),
        }
        if size in CVXPY_SIZES:
            solvers["CVXPY"] = cvxpy_solver(size)
            solvers["CVXPY, built anew"] = rebuilt_cvxpy
        times = {name: np.zeros(len(kinds)) for name in solvers}
        for index, kind in enumerate(kinds):
            for name, solver in solvers.items():
                each = [milliseconds(solver(*problem)) for problem in instances(size, kind)]
                times[name][index] = np.mean(each)
        mine = times.pop("dpjax")
        row = [f"{size}", f"{mine.mean():.3f}"]
        for other in times.values():
            row += [f"{other.mean():.3f} ({other.mean() / mine.mean():.2g}x)"]
        summary.append(row + [""] * (6 - len(row)))
        for name in ("SciPy", "SciPy tight"):
            ratios = [f"{ratio:.2g}x" for ratio in times[name] / mine]
            detail.append([f"{size}", name, *ratios] + [""] * (4 - len(kinds)))
    columns = ["SciPy", "SciPy tight", "CVXPY", "CVXPY, built anew"]
    print("Milliseconds, and in brackets how many times longer than dpjax.\n")
    print(table(summary, ["p", "dpjax", *columns]))
    print(table(detail, ["p", "ratio to dpjax of", *KINDS]))


def batch(size: int = 22, count: int = 256) -> None:
    """Many problems in one call under vmap, against a Python loop and bare eigendecompositions."""
    problems = [problem for kind in KINDS for problem in instances(size, kind, count // len(KINDS))]
    gradients, hessians, radii = (
        jnp.asarray(np.stack(part)) for part in zip(*problems, strict=True)
    )
    solve = jax.jit(trust_region_step)
    batched = jax.jit(jax.vmap(trust_region_step))
    eigh = jax.jit(jnp.linalg.eigh)
    parts = list(zip(gradients, hessians, radii, strict=True))
    times = {
        "vmap": milliseconds(lambda: jax.block_until_ready(batched(gradients, hessians, radii))),
        "Python loop": milliseconds(lambda: jax.block_until_ready([solve(*p) for p in parts])),
        "eigh alone, batched": milliseconds(lambda: jax.block_until_ready(eigh(hessians))),
    }
    rows = [[k, f"{v:.2f}", f"{v / times['vmap']:.2f}x"] for k, v in times.items()]
    print(table(rows, [f"{count} problems of p = {size}", "ms", "against vmap"]))


def large_instance(size: int, kind: str) -> tuple[np.ndarray, np.ndarray, float]:
    """One problem, as a step of DP-TR meets it where it is called noisy."""
    if kind in KINDS:
        return instances(size, kind, 1)[0]
    rng = np.random.default_rng([size, LARGE_KINDS.index(kind)])
    if kind.startswith("noisy"):
        # Noise on the Hessian, 3.3 times as much on the gradient, damping by half its size.
        noise, half = rng.standard_normal((size, size)), rng.standard_normal((size, 3))
        hessian = (noise + noise.T) / 2 + np.sqrt(size / 2) * np.eye(size) + half @ half.T
        return 3.3 * rng.standard_normal(size), hessian, float(kind.split()[-1])
    vectors = np.linalg.qr(rng.standard_normal((size, size)))[0]
    coefficients, values = rng.standard_normal(size), np.sort(rng.standard_normal(size))
    if kind == "badly conditioned":
        values = np.logspace(-6, 0, size)
        radius = 0.5 * np.linalg.norm(coefficients / values)
    else:
        values = np.linspace(-1, 1, size) if kind == "hard, no gap" else values
        coefficients[0] = 1e-6 if kind == "near hard" else 0
        radius = 2 * np.linalg.norm(coefficients[1:] / (values[1:] - values[0]))
    return vectors @ coefficients, (vectors * values) @ vectors.T, float(radius)


def in_turn(solvers: dict[str, Callable[[], object]], rounds: int = 7) -> dict[str, float]:
    """Milliseconds of the best round; in turn, so that a disturbance meets all."""
    times = dict.fromkeys(solvers, np.inf)
    for count in range(rounds + 1):
        for name, solve in solvers.items():
            before = time.perf_counter()
            jax.block_until_ready(solve())
            if count:  # the first compiles
                times[name] = min(times[name], 1e3 * (time.perf_counter() - before))
    return times


def large(dtype: type) -> None:
    """Lanczos against the eigendecomposition and the exact solver, and what it falls back on."""
    by_lanczos = jax.jit(functools.partial(trust_region_step, solver=Lanczos()))
    exactly = jax.jit(functools.partial(trust_region_step, solver=Exact()))
    attempt, decompose = jax.jit(try_lanczos), jax.jit(by_eigenvectors)
    rows = []
    for size in LARGE_SIZES:
        for kind in LARGE_KINDS:
            gradient, hessian, radius = large_instance(size, kind)
            exact = jnp.asarray(gradient), jnp.asarray(hessian), jnp.asarray(radius)
            problem = tuple(part.astype(dtype) for part in exact)
            curvature = abs(hessian).max()
            scale = max(curvature * radius, abs(gradient).max())
            parts = hessian / curvature, gradient / scale, curvature * radius / scale
            parts = tuple(jnp.asarray(part, dtype) for part in parts)
            times = in_turn(
                {
                    "lanczos": lambda problem=problem: by_lanczos(*problem),
                    "exact": lambda problem=problem: exactly(*problem),
                    "eigh": lambda parts=parts: decompose(*parts),
                }
            )
            best = value(gradient, hessian, exactly(*exact).step)
            gap = (value(gradient, hessian, by_lanczos(*problem).step) - best) / abs(best)
            row = [f"{size}", kind, "yes" if attempt(*parts)[2] else "no, exact"]
            row += [f"{times['lanczos']:.1f}"]
            row += [f"{times[name] / times['lanczos']:.1f}x" for name in ("eigh", "exact")]
            rows.append([*row, f"{max(gap, 0):.0e}"])
    header = ["p", "kind", "proved", "Lanczos, ms", "eigh", "exact", "relative gap"]
    print(f"{dtype.__name__}: how many times longer than Lanczos.\n")
    print(table(rows, header))


def value(gradient: np.ndarray, hessian: np.ndarray, step: jax.Array) -> float:
    step = np.asarray(step, np.float64)
    return float(gradient @ step + step @ hessian @ step / 2)


if __name__ == "__main__":
    with jax.enable_x64(True):
        single()
        batch()
        large(np.float32)
        large(np.float64)
