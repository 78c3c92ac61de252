"""Networks trained by stages: runs that are those of solve, verdicts from the numbers alone."""

import csv
import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.cli import main
from dpjax.reproduce import (
    accuracies,
    dpagem,
    dpagem_claims,
    dpagem_page,
    dpagem_results,
    images,
    networks,
    paper,
)

FIG1, FIG2, GAP = (dpagem.FIGURES[name] for name in ("fig1", "fig2", "gap"))
MNIST, CIFAR = GAP.problems
AS_SAID = {
    dpagem.SGD_STAGE: 0.99,
    dpagem.STAGE: 0.97,
    dpagem.CONST: 0.96,
    dpagem.EARLY: 0.95,
    dpagem.EARLY_CONST: 0.94,
    dpagem.MOMENTUM_CONST: 0.90,
}


def made(finals, problem=MNIST, spread=0.001, seeds=3, epsilon=None):
    """Results in which each method ends at this accuracy, its seeds spread around it."""
    epsilon = epsilon or max(problem.epsilons)
    around = spread * np.linspace(-1, 1, seeds)[:, None] if seeds > 1 else np.zeros((1, 1))
    points = {}
    for label, final in finals.items():
        path = (np.array([0.5, final]) + around).tolist()
        points[label, epsilon] = {
            "iterations": [30, 60],
            "train": path,
            "test": path,
            "batch_size": 256.0,
            "epsilon": None if label == dpagem.SGD_STAGE else 0.99 * epsilon,
            "noise_multiplier": None if label == dpagem.SGD_STAGE else 1.5,
            "step_size": 0.5,
            "tried": [[0.5, final], [1.0, final - 0.1]],
        }
    budget = {
        "epsilon": epsilon,
        "runs": [{"steps": 60, "noise_multiplier": 0.4, "zero_out": 38.8, "replace_one": 47.8}],
    }
    return accuracies.Accuracies(problem, "Images", 60_000, (100, 90), 26_010, points, [budget])


# Runs.


def test_what_is_trained_is_what_solve_runs():
    x = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    data = dpjax.Dataset(jnp.asarray(x), jnp.asarray(np.arange(200) % 4, jnp.float32))
    objective = dpjax.objectives.cross_entropy(_linear)
    algorithm = dpjax.dpagem(
        objective,
        dpjax.PrivacyBudget(4.0, 1e-3, "replace_one"),
        data_size=200,
        dimension=12,
        first_steps=4,
        stages=2,
        step_size=0.5,
        clip_norm=1.0,
    )
    params, key = jnp.zeros((4, 3)), jax.random.key(3)
    seen = networks.train(algorithm, data, key, params, [5, 12], lambda params: params)
    solution = dpjax.solve(algorithm, data.examples, key=key, params=params)
    np.testing.assert_allclose(seen[-1], solution.params, rtol=1e-5, atol=1e-6)
    assert float(jnp.abs(seen[0] - seen[1]).max()) > 0


def _linear(w, x):
    return w @ x


def test_without_privacy_the_step_is_the_plain_mean_gradient():
    problem = dataclasses.replace(MNIST, batch=8, first_steps=1)
    data = jax.tree.map(jnp.asarray, images.load(images.MADE, 64)[0])
    # Records that say much more than the clip norm of the private methods.
    examples = 3 * data.x, data.y
    params = dpagem_results.starting_point(problem, data, 0)
    algorithm = dpagem.build(problem, dpagem.CURVES[0], 64, 26_010, 8.0, 0.1)
    query, key = algorithm.query, jax.random.key(1)
    assert dpagem.CURVES[0].label == dpagem.SGD_STAGE
    answer = jax.jit(query.answer)(key, examples, params)
    batch, mask = query._drawn(key, examples)
    losses = lambda w: jnp.sum(  # noqa: E731
        jnp.where(mask, jax.vmap(lambda one: problem.loss(w, one))(batch), 0.0)
    )
    wanted = jax.jit(jax.grad(losses))(params)
    wanted = jax.tree.map(lambda leaf: leaf / query.divisor, wanted)
    chex.assert_trees_all_close(answer, wanted, rtol=1e-3, atol=1e-4)
    norm = float(jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(answer))))
    assert norm > dpagem.CLIP_NORM


def test_one_program_serves_all_methods_but_two():
    shapes = set()
    for method in dpagem.CURVES[:8]:
        algorithm = dpagem.build(MNIST, method, 60_000, 26_010, 8.0, 0.5)
        assert int(algorithm.steps) == MNIST.steps
        shapes.add(jax.tree.structure(algorithm))
    assert len(shapes) == 3  # stages, 1/t and 1/sqrt(t)


def test_the_paper_s_noise_gives_what_was_found_before():
    """Epsilon 39 where 8 is meant, of Poisson batches under zero_out; more under replace_one."""
    found = dpagem_results.published(MNIST, 60_000, 8.0)
    ours, whole = found["runs"]
    assert (ours["steps"], whole["steps"]) == (MNIST.steps, 14_063)
    assert whole["noise_multiplier"] == pytest.approx(0.4292, abs=1e-4)
    assert whole["zero_out"] == pytest.approx(38.8, abs=0.1) and whole["replace_one"] > 45


def test_the_best_step_size_is_taken(monkeypatch, tmp_path):
    reached = {2.0: 0.7, 4.0: 0.9, 8.0: 0.8}

    def measured(problem, algorithm, data, seed, looks, private):
        share = reached[float(algorithm.step_size)] if seed < 0 else 0.1 * seed
        return made({dpagem.STAGE: share}, seeds=1).points[dpagem.STAGE, 8.0] | {
            "train": [share],
            "test": [0.0],
        }

    monkeypatch.setattr(dpagem_results, "measure", measured)
    problem = dataclasses.replace(MNIST, data=images.MADE, rows=70, batch=10, epsilons=(8.0,))
    cache = dpagem_results.Cache(tmp_path)
    found = dpagem_results.results(problem, dpagem.CURVES[1:2], cache, seeds=2)
    point = found.points[dpagem.STAGE, 8.0]
    assert point["step_size"] == 4.0 and point["tried"] == [[s, reached[s]] for s in reached]
    np.testing.assert_allclose(found.final(dpagem.STAGE, 8.0, "train"), [0.0, 0.1])
    untuned = dataclasses.replace(problem, tuned=False, runs=1)
    found = dpagem_results.results(untuned, dpagem.CURVES[1:2], cache, seeds=2)
    assert found.seeds == 1 and found.points[dpagem.STAGE, 8.0]["tried"] == []
    assert found.points[dpagem.STAGE, 8.0]["step_size"] == 0.5


@pytest.mark.parametrize(
    ("best", "further", "tried"),
    [
        (3.0, 3, [1.0, 2.0, 4.0]),
        (9.0, 3, [1.0, 2.0, 4.0, 8.0, 16.0]),
        (0.5, 3, [0.25, 0.5, 1.0, 2.0, 4.0]),
        (1e9, 3, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]),
        (9.0, 0, [1.0, 2.0, 4.0]),
    ],
)
def test_a_grid_goes_on_where_its_best_is_at_an_edge(best, further, tried):
    taken, pairs = dpagem_results.search(lambda s: -abs(s - best), (1.0, 2.0, 4.0), further)
    assert [step for step, _ in pairs] == tried
    assert abs(taken - best) == min(abs(step - best) for step in tried)


def test_the_page_names_a_method_at_the_edge_of_its_grid():
    found = made({dpagem.STAGE: 0.9, dpagem.EARLY: 0.8})
    found.points[dpagem.STAGE, 8.0]["tried"] = [[0.25, 0.1], [0.5, 0.9], [1.0, 0.2]]
    text = "\n".join(dpagem_page.lines(dpagem.FIGURES["fig1"], [found], dpagem.CURVES))
    assert f"beyond it: {dpagem.EARLY}." in text


# Claims.


def test_three_seeds_are_few():
    """Welch's t of two threes: 2.78 standard errors, where many seeds need 1.96."""
    for spread, clear in ((0.0040, True), (0.0047, False)):
        found = made({dpagem.STAGE: 0.970, dpagem.EARLY: 0.960}, spread=spread)
        one = dpagem_claims.difference(found, 8.0, "test", dpagem.STAGE, dpagem.EARLY)
        assert one.freedom == pytest.approx(4) and one.clear is clear
        assert one.error == pytest.approx(spread * np.sqrt(2 / 3))
        assert abs(one.value) > 2 * one.error


@pytest.mark.parametrize(
    ("change", "verdicts"),
    [
        ({}, ["holds"] * 4),
        ({dpagem.STAGE: 0.955}, ["does not hold", "holds", "holds", "holds"]),
        ({dpagem.EARLY: 0.89}, ["holds", "does not hold", "does not hold", "holds"]),
        ({dpagem.MOMENTUM_CONST: 0.9399}, ["holds", "holds", "spread", "holds"]),
        ({dpagem.EARLY_CONST: 0.9503}, ["holds", "not, but spread", "holds", "holds"]),
    ],
    ids=["as said", "stages lose", "early momentum lost", "near", "as near the other way"],
)
def test_verdicts_turn_with_the_numbers(change, verdicts):
    words = {
        "spread": "holds by the means, within their spread",
        "not, but spread": "does not hold by the means, but within their spread",
    }
    claims = dpagem_claims.claims(FIG1, [made(AS_SAID | change)])
    assert [claim.verdict for claim in claims] == [words.get(v, v) for v in verdicts]


def test_one_seed_decides_nothing_of_the_spread():
    claims = dpagem_claims.claims(FIG2, [made(AS_SAID, CIFAR, seeds=1)])
    assert [claim.verdict for claim in claims] == ["holds (one seed)"] * 4
    swapped = AS_SAID | {dpagem.MOMENTUM_CONST: 0.98}
    claims = dpagem_claims.claims(FIG2, [made(swapped, CIFAR, seeds=1)])
    assert claims[0].verdict == "does not hold (one seed)"


@pytest.mark.parametrize(("drop", "verdict"), [(0.2, "holds"), (0.0, "does not hold")])
def test_the_gap_needs_both_data_sets(drop, verdict):
    small = made(AS_SAID)
    deep = {m: v - drop if m != dpagem.SGD_STAGE else v - 0.05 for m, v in AS_SAID.items()}
    large = made(deep, CIFAR)
    (claim,) = dpagem_claims.claims(GAP, [small, large])
    assert claim.verdict == verdict
    assert dpagem_claims.claims(GAP, [small]) == []
    # 99 - 97 points.
    assert dpagem_claims.gap(small, dpagem.STAGE, "test").value == pytest.approx(0.02)


def test_a_recipe_is_compared_with_the_best_of_the_paper():
    one = made(AS_SAID | {"dp_adam, large batches": 0.975})
    assert dpagem_claims.claims(FIG1, [one])[-1].verdict == "holds"
    assert "97.50 %, DPageS 97.00 %" in dpagem_claims.claims(FIG1, [one])[-1].detail


# Pages.


def test_the_page_says_which_numbers_are_exact(tmp_path):
    text = "\n".join(dpagem_page.lines(FIG1, [made(AS_SAID)], dpagem.CURVES))
    assert "nonpri-SGD-stage (NOT PRIVATE, no epsilon)" in text and "97.00 +- 0.10 %" in text
    assert "| 8 | 60 | 1.5000 | 0.4000 | 48 | 39 |" in text
    gaps = "\n".join(dpagem_page.lines(GAP, [made(AS_SAID), made(AS_SAID, CIFAR)], ()))
    assert "| DPageS | 2.00 +- 0.08 | 2.00 +- 0.08 |" in gaps
    files = dpagem_page.files(tmp_path, "fig1", FIG1, [made(AS_SAID)], dpagem.CURVES)
    assert {path.name for path in files} == {
        "fig1.png",
        "fig1.csv",
        "fig1-steps.csv",
        "fig1-claims.csv",
    }
    dpagem_page.files(tmp_path, "gap", GAP, [made(AS_SAID), made(AS_SAID, CIFAR)], ())
    assert (tmp_path / "gap.png").read_bytes().startswith(b"\x89PNG")


def test_the_plan_counts_trainings():
    whole = paper.plan("dpagem")
    assert whole.seeds == 3 and whole.command == "dpjax reproduce dpagem all"
    assert whole.trainings == 3 * len(dpagem.CURVES) + 8
    assert paper.plan("dpagem", quick=True).left_out == ("fig2",)


def test_a_method_that_fails_is_in_view_and_squashes_no_other(tmp_path, pictures):
    """The error's logarithm: 30 % and 1 % to 3 % of error share an axis of less than 2 decades."""
    one = made(AS_SAID | {dpagem.LINEAR: 0.7}, spread=0.0)
    dpagem_page.files(tmp_path, "fig1", FIG1, [one], dpagem.CURVES)
    for axes in pictures["fig1"].axes:
        begin, end = axes.get_ylim()
        assert begin > 0.3 and end < 0.01
        lines = {line.get_label(): line for line in axes.lines}
        for label in one.labels:
            assert end < lines[label].get_ydata()[-1] < begin
        assert not axes.collections or all(
            type(bar).__name__ == "LineCollection" for bar in axes.collections
        ), "a filled area"
        names = [text.get_text() for text in axes.texts]
        assert f"{dpagem.LINEAR}  70.0 %" in names and len(names) == len(one.labels)


# Images.


def test_the_whole_of_cifar_is_preferred(tmp_path, monkeypatch):
    monkeypatch.setenv("DPJAX_DATA", str(tmp_path))
    monkeypatch.setenv("DPJAX_CACHE", str(tmp_path / "cache"))
    with pytest.raises(FileNotFoundError, match=r"cifar10\.npz or cifar10_subset"):
        images.load("cifar10")
    pixels = np.full((2, 32, 32, 3), 255, np.uint8)
    arrays = {f"X_{part}": pixels for part in ("train", "test")}
    arrays |= {f"y_{part}": np.arange(2, dtype=np.uint8) for part in ("train", "test")}
    np.savez(tmp_path / "cifar10_subset_10k_2k.npz", **arrays)
    with pytest.raises(ValueError, match="sha256"):
        images.load("cifar10")
    np.savez(tmp_path / "cifar10.npz", **arrays)
    data, title = images.load("cifar10", 1)
    assert "the whole set" in title and data.x.shape == (1, 32, 32, 3)
    assert data.x.dtype == np.float32 and data.x.max() == 2.0


# A small run.


@pytest.fixture
def few_steps(monkeypatch):
    """Two methods of 15 steps on 64 made images; counts the trainings."""
    whole = dpagem.quick

    def smaller(problem):
        methods = (dpagem.SGD_STAGE, dpagem.STAGE)
        few = {"first_steps": 1, "batch": 8, "looks": 2, "rows": 64, "methods": methods}
        return dataclasses.replace(whole(problem), **few)

    monkeypatch.setattr(dpagem, "quick", smaller)
    calls, measure = [], dpagem_results.measure

    def counted(*arguments):
        calls.append(arguments[3])
        if len(calls) == counted.stop_at:
            raise KeyboardInterrupt
        return measure(*arguments)

    counted.stop_at, counted.calls = None, calls
    monkeypatch.setattr(dpagem_results, "measure", counted)
    return counted


def test_an_interrupted_run_goes_on(no_data, few_steps, tmp_path, capsys):
    command = ["reproduce", "dpagem", "all", "--quick", "--out", str(tmp_path)]
    few_steps.stop_at = 4
    assert main(command) == 130
    few_steps.stop_at = None
    assert main(command) == 0 and main(command) == 0
    # Two step sizes of one seed, then two seeds, of each method; the fourth was begun twice.
    assert few_steps.calls == [-1, -1, 0, 1, 1, -1, -1, 0, 1]
    assert "mnist is not on this machine (set DPJAX_DATA); made images stand in" in (
        capsys.readouterr().out
    )
    rows = list(csv.DictReader((tmp_path / "fig1.csv").read_text().splitlines()))
    assert len(rows) == 2 * 2 * 2
    for row in rows:
        assert row["relation"] == "replace_one" and row["data"] == images.MADE
        if row["method"] == dpagem.SGD_STAGE:
            assert row["epsilon"] == row["epsilon_of_the_noise"] == "NOT PRIVATE"
        else:
            assert float(row["epsilon_of_the_noise"]) <= float(row["epsilon"]) == 8
    text = (tmp_path / "dpagem.md").read_text()
    assert "NOT PRIVATE" in text.splitlines()[0] and "A quick run" in text
    assert "Made images" in text and "made images stand in for it" in text
    assert "Left out of the quick run: fig2" in text
