"""Experiments: one runner that goes on where it was, one table, pages and pictures from it."""

import dataclasses
import pathlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from benchmarks.papers import (
    PAPERS,
    dpagem,
    erm,
    figures,
    files,
    metrics,
    page,
    plan,
    results,
    runner,
    spider,
)
from benchmarks.papers.__main__ import main
from benchmarks.papers.results import Results, Row
from benchmarks.papers.spec import Experiment, Figure, Method, Problem, Tuning
from dpjax.objectives import OBJECTIVES, logistic, logistic_l2, welsch

BUDGET = dpjax.PrivacyBudget(4.0, 1e-3)


def records(n=300, p=3, seed=0):
    """Unit rows that lean to the first axis: Welsch's saddle with regularization 0.5 is strict."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, p)) * [3.0, *[1.0] * (p - 1)]
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    y = np.where(x[:, 0] + 0.5 * random.normal(size=n) > 0, 1.0, -1.0).astype(np.float32)
    return dpjax.Dataset(jnp.asarray(x), jnp.asarray(y), name="made")


@pytest.fixture
def trainings(monkeypatch):
    """Counts the trainings and stops one of them as Ctrl-C does; outputs are drawn, not trained."""

    def counted(algorithm, examples, keys, at, start=None, most=0, private=True):
        counted.calls += 1
        if counted.calls == counted.stop_at:
            raise KeyboardInterrupt
        random, steps = np.random.default_rng(counted.calls), np.tile(at, (len(keys), 1))
        first = np.zeros(algorithm.dimension) if start is None else start

        def around(leaf):
            return np.float32(leaf + 0.01 * random.normal(size=(*steps.shape, *leaf.shape)))

        params = jax.tree.map(around, jax.tree.map(np.asarray, first))
        return metrics.Path(params, steps, 9.0 * steps, jax.tree.map(lambda v: v[:, -1], params))

    counted.calls, counted.stop_at = 0, None
    monkeypatch.setattr(runner, "follow", counted)
    return counted


# Papers with few methods of few steps on few records: what a quick run changes, the methods, and
# what these are given in place of a grid.
SMALL = {
    "trust-region": ({"rows": 300, "starts": 1, "settings": {"batch_size": 20}, "checkpoints": 3},
                     ["DP-GD, published noise, tuned", "DP-GD, dpjax, tuned"], {"steps": 3}),
    "erm": ({"rows": 200}, ["DP-GD", "output perturbation"], {}),
    "spider": ({"rows": 300, "methods": ()}, ["DP-TR"], {"steps": 3}),
    "dpagem": ({"rows": 64, "methods": (), "checkpoints": 2, "settings": {
                    "batch_size": 8, "first_steps": 1, "steps": 15}},
               [dpagem.NOISELESS, dpagem.STAGE], {}),
}  # fmt: skip


def small(name):
    fields, labels, given = SMALL[name]

    def cut(problem):
        sizes = {"sizes": (150, 0)} if "sizes" in problem.quick else {}
        return dataclasses.replace(problem, quick={**problem.quick, **fields, **sizes})

    paper, more = PAPERS[name], {"grids": {}} if given else {}
    methods = tuple(dataclasses.replace(method, settings={**method.settings, **given}, **more)
                    for method in paper.methods if method.label in labels)  # fmt: skip
    figures = {key: dataclasses.replace(one, problems=tuple(map(cut, one.problems)))
               for key, one in paper.figures.items()}  # fmt: skip
    return dataclasses.replace(paper, methods=methods, figures=figures)


@pytest.mark.parametrize(("name", "stop_at", "calls", "pictures"), [
    # Two methods at two epsilons, two seeds; the third of the timed ones is the stopped one.
    # Each is timed once to compile, six times whole, and twice to the first two checkpoints.
    ("trust-region", 3, 8 + 2 * (1 + 6 + 2 * 2) + 1, ["fig6"]),
    # DP-GD: two settings, four seeds, then two seeds; at two epsilons. The ball has DP-GD too.
    ("erm", 5, 2 * (2 * 4 + 2) * 2 + 4 + 1, ["table1", "table3"]),
    # The point on all records serves both figures.
    ("spider", 2, 2 + 2 + 1, ["escape", "rates"]),
    # Two step sizes of one seed, then two seeds, of each method.
    ("dpagem", 4, 2 * (2 + 2) + 1, ["fig1"]),
])  # fmt: skip
def test_an_interrupted_run_goes_on_and_redraw_trains_nothing(
    name, stop_at, calls, pictures, no_data, monkeypatch, trainings, tmp_path, capsys
):
    monkeypatch.setitem(PAPERS, name, small(name))
    command = [name, "all", "--quick", "--out", str(tmp_path)]
    with monkeypatch.context() as undrawn:  # until the table is whole
        undrawn.setattr(files.figures, "draw", lambda *given: None)
        trainings.stop_at = stop_at
        assert main(command) == 130
        trainings.stop_at = None
        assert main(command) == 0 and main(command) == 0
    assert trainings.calls == calls
    wanted, other = ("mnist", "made-images") if name == "dpagem" else ("ijcnn1", "randhie")
    absent = f"{wanted} is not on this machine (set DPJAX_DATA); {other} stands in"
    assert absent in capsys.readouterr().out
    # From the table alone: neither the cache nor a training is needed.
    for path in [*(tmp_path / "cache").iterdir(), tmp_path / f"{name}.md"]:
        path.unlink()
    assert main([*command, "--redraw"]) == 0 and trainings.calls == calls
    for picture in pictures:
        assert (tmp_path / f"{picture}.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / f"{name}.md").read_text()
    assert "NOT PRIVATE" in text.splitlines()[0] and "A quick run" in text and absent in text
    assert f"python -m benchmarks.papers {name} all --quick" in text
    found = results.read(tmp_path / f"{name}.csv")
    noise = found.where(metric="epsilon_of_the_noise").rows()
    private = [row for row in noise if row.method != dpagem.NOISELESS]
    assert private and all(row.value <= row.epsilon for row in private)
    assert {row.value for row in noise} - {row.value for row in private} <= {np.inf}
    assert (found.where(metric="exact_gap").column("value") >= 0).all()


# A command, and words of the message.
BAD = {
    "trust-region fig3": "fig3 fig2 fig10 table1 all",
    "trust-regio": "trust-regio trust-region",
    "erm table4": "table4 table1 table3 all",
    "trust-region fig6 --seeds 0": "seeds 0",
    "spider --redraw --out no": "spider.csv without --redraw",
    "trust-region fig6": "ijcnn1 set DPJAX_DATA",
    "dpagem fig1": "mnist set DPJAX_DATA",
}  # fmt: skip


@pytest.mark.parametrize(("words", "names"), BAD.items(), ids=BAD)
def test_bad_requests_name_what_there_is(words, names, no_data, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    message = capsys.readouterr().err
    assert all(name in message for name in names.split()), message


@pytest.mark.parametrize(("name", "figures", "seeds", "trainings", "left_out"), [
    ("trust-region", "fig2 fig4 fig6 fig8 fig10 table1", 10, 10 * 9 * (5 + 5 + 3 * 4),
     "fig2 fig4 fig8 fig10"),
    ("erm", "table1 table2 table3 section6", 10, None, "table2 section6"),
    ("perturbed", "fig2 escape", 10, 0, ""),
    ("spider", "escape covtype rates", 20, 20 * 10 * (4 + 5 + 5) + 5 * 3 * 2, "covtype"),
    ("dpagem", "fig1 fig2 gap theory", 3, 3 * 9 + 9 * 3 + 8, "fig2"),
])  # fmt: skip
def test_what_is_made_is_the_papers(name, figures, seeds, trainings, left_out):
    whole, quick = plan(name), plan(name, quick=True)
    assert " ".join(whole.figures) == figures and whole.seeds == seeds
    assert whole.command == f"python -m benchmarks.papers {name} all" and whole.whole
    assert trainings is None or whole.trainings == trainings
    assert " ".join(quick.left_out) == left_out and quick.seeds == 2 and quick.trainings <= 150
    for problem in whole.problems:
        assert {*problem.metrics, *problem.path_metrics} <= {*metrics.METRICS}
        assert {*problem.methods} <= {method.label for method in PAPERS[name].methods}
        for method in PAPERS[name].methods_on(problem):
            assert method.make and {*method.takes.values()} <= {*problem.settings}
            assert len(method.grid(problem)) > 1 or not method.grids or name != "erm"
    for method, kind in [(one, kind) for one in PAPERS[name].methods for kind in one.refused]:
        if name != "dpagem":  # which has no setting for a data set
            with pytest.raises(ValueError):
                method.make(OBJECTIVES[kind](), BUDGET, data_size=1_000, dimension=3)
    assert plan("trust-region", "fig4", quick=True).figures.keys() == {"fig4"}


def own(*methods, tuning=None, seeds=2, **problem):
    """An experiment on made records."""
    fields = {"objective": logistic_l2(), "records": records(), "epsilons": (1.0,)} | problem
    problem = Problem("made", **fields)
    panels = tuple(figures.Lines(name, name) for name in ("exact_gap", *problem.metrics[:2]))
    table = page.Grid("Gap:", page.mean("exact_gap"))
    figure = Figure("Gaps.", (problem,), figures.Picture("{problem}; {exact}", panels), (table,))
    return Experiment("own", "Mine", methods, {"gap": figure}, tuning=tuning, seeds=seeds)


def calibrated(problem, method, epsilon, **settings):
    bench = runner.Bench(files.plan(two()), problem, problem.load(), *[None] * 5)
    return runner.Cell(bench, method, epsilon, settings).algorithm


def two(steps=2, **more):
    methods = Method("GD", "dp-gd", {"steps": steps}), Method("TR", "dp-tr", {"steps": 2})
    return own(*methods, **{"sizes": (100, 0), "reference": "certified"} | more)


CHANGES = [
    {"steps": 3}, {"records": records(seed=1)}, {"delta": 1e-4}, {"epsilons": (2.0,)},
    {"relation": "replace_one"}, {"metrics": ("exact_gradient_norm",)},
    {"objective": logistic_l2(2e-3)},
    {"objective": dataclasses.replace(logistic(), name="logistic-l2")},
]  # fmt: skip


def test_a_cache_is_used_until_something_changes(trainings, tmp_path, monkeypatch):
    monkeypatch.setattr(files.figures, "draw", lambda *given: None)

    def trains(calls, **change):
        before = trainings.calls
        files.run(two(**change), tmp_path)
        assert trainings.calls - before == calls, change

    trains(4)  # two methods, two seeds
    for change in CHANGES:
        trains(2 if "steps" in change else 4, **change)  # one method's settings are its own
        trains(0, **change)
    trains(0)
    for file in (tmp_path / "cache").iterdir():
        file.write_text(file.read_text()[:20])  # torn
    trains(4)


def test_the_table_is_read_back_as_it_was_written(tmp_path):
    row = ("e", 'a "b", c', 9, 2, "m", "", np.nan, -1.0, np.inf, "exact_gap", 1 / 3)
    results.write(tmp_path / "t.csv", Results([Row(*row)]))
    (one,) = results.read(tmp_path / "t.csv").rows()
    assert one.problem == row[1] and np.isnan(one.epsilon) and one.step == np.inf
    assert one.value == pytest.approx(1 / 3, abs=1e-9)
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="must have the columns"):
        results.read(tmp_path / "t.csv")
    empty = Results([])
    assert len(empty) == 0 and empty.each("method") == ()


@pytest.mark.parametrize("name", ["dp-gd", "spider"])
def test_what_is_followed_is_what_solve_runs(name):
    data = records(700)
    algorithm = Method(name, name).make(welsch(0.5), BUDGET, data_size=700, dimension=3, steps=12)
    keys = jax.random.split(jax.random.key(3), 2)
    path = runner.follow(algorithm, data.examples, keys, [1, 5, 12], most=6)
    assert path.params.shape == (2, 3, 3) and path.steps.shape == (2, 3)
    for i, key in enumerate(keys):
        solution = dpjax.solve(algorithm, data.examples, key=key)
        np.testing.assert_allclose(path.output[i], solution.params, rtol=2e-3, atol=2e-4)
        assert int(path.steps[i, -1]) == int(solution.steps)
        each = algorithm.evaluations.declared / 12 * np.array([1, 5, 12])
        if name == "spider":
            used = np.asarray(solution.history.used)
            each = np.array([used[0], used[4], np.nanmax(used)])
        np.testing.assert_allclose(path.read[i], each, rtol=1e-6)


def test_the_first_iterate_below_halfway_is_found():
    data = records(200)
    problem = Problem("made", welsch(0.5), records=data, reference="landscape")
    land = metrics.REFERENCES["landscape"](problem, data)
    low = dpjax.diagnostics.exact_landscape(problem.loss, data.examples).minimum.params
    # Seed 0 is out at its third step; seed 1 is out on the way, and back at the end.
    way = np.stack([[0 * low, 0 * low, low, low], [0 * low, low, low, 0 * low]])
    steps = np.broadcast_to(np.arange(1, 5), (2, 4))
    path = metrics.Path(way, steps, 200.0 * steps, way[:, -1])
    trained = metrics.Trained(None, True, problem, data, data, land, path)
    found = {name: measure(trained).tolist() for name, measure in metrics.RUN.items()}
    assert found["exact_iterations_until_out"] == found["exact_passes_until_out"] == [3, 2]
    assert found["exact_escaped"] == [1, 0]
    lowest = metrics.POINT["exact_min_eigenvalue"](problem, data, way[:, -1])
    expected = [land["minimum_min_eigenvalue"], land["saddle_min_eigenvalue"]]
    np.testing.assert_allclose(lowest, expected, atol=1e-5)
    # Planted: a threshold at the saddle's own value is passed by whatever moves at all.
    wrong = dataclasses.replace(trained, reference=land | {"halfway": 1.1})
    assert metrics.RUN["exact_iterations_until_out"](wrong).tolist() == [1, 1]


@pytest.mark.parametrize(("name", "more", "passes"), [
    ("dp-newton", {"steps": 5}, 5), ("dp-str", {"batch_size": 50, "steps": 8}, 8 * 50 / 1_000),
])  # fmt: skip
def test_a_batch_is_counted_as_its_share_of_a_pass(name, more, passes):
    made = Method(name, name).make(logistic_l2(), BUDGET, data_size=1_000, dimension=3, **more)
    found = [metrics.COST[cost](made) for cost in ("passes", "gradients")]
    assert found == pytest.approx([passes, 1_000 * passes])
    assert metrics.COST["gradients_computed"](made) > 1_000 * passes


def test_a_hessian_that_is_released_by_itself_is_a_pass_of_its_own():
    for release, passes in (("joint", 5), ("separate", 10)):
        made = dpjax.dp_trust_region(logistic_l2(), BUDGET, data_size=1_000, dimension=3, steps=5,
                                     release=release)  # fmt: skip
        assert metrics.COST["passes"](made) == pytest.approx(passes)
        assert metrics.COST["gradients"](made) == 5_000


@pytest.mark.parametrize(("best", "left", "tried"), [
    (3, 3, [1, 2, 4]), (9, 3, [1, 2, 4, 8, 16]), (0.5, 3, [0.25, 0.5, 1, 2, 4]),
    (1e9, 3, [1, 2, 4, 8, 16, 32]), (9, 0, [1, 2, 4]),
])  # fmt: skip
def test_a_grid_goes_on_where_its_best_is_at_an_edge(best, left, tried, monkeypatch):
    def trained(cell, tuning=0):
        return [(-1.0, np.nan, "exact_value", abs(cell.settings["step_size"] - best))]

    monkeypatch.setattr(runner, "_trained", trained)
    plan = files.plan(own(tuning=Tuning(seeds=1, further=left)))
    grid = tuple({"step_size": step} for step in (1.0, 2.0, 4.0))
    bench = runner.Bench(plan, plan.problems[0], *[None] * 6)
    every, taken = runner._tuned(bench, Method("GD", "dp-gd", grids={"": grid}), 1.0)
    assert sorted(one.settings["step_size"] for one, _ in every) == tried
    assert abs(taken.settings["step_size"] - best) == min(abs(step - best) for step in tried)


def test_the_best_setting_is_taken_on_seeds_of_the_tuning(tmp_path):
    grid = ({"step_size": 1e-3}, {"step_size": 8.0})
    mine = own(Method("GD", "dp-gd", {"steps": 8}, grids={"": grid}), tuning=Tuning(seeds=2),
               seeds=3, epsilons=(20.0,), delta=1e-3, reference="certified")  # fmt: skip
    found = files.run(mine, tmp_path)
    tried, best = found.tried("exact_gap"), "steps 8, step_size 8"
    assert tried[best] < tried["steps 8, step_size 0.001"]
    chosen = found.where(metric="exact_gap", method="GD")
    assert {row.settings for row in chosen.rows() if row.seed >= 0} == {best}
    # Planted: the results are of other seeds than the tuning.
    assert found.mean("exact_gap") != tried[best]
    assert found.values("exact_gap").size == 3 == files.plan(mine).trainings - 4


def test_a_step_size_above_the_theorem_is_taken_in_silence():
    (method,) = (one for one in erm.METHODS if one.label == erm.SVRG)
    settings, batch = {"epochs": 2, "epoch_length": 5, "step_size": 99.0}, {"batch_size": 50}
    problem = Problem("made", logistic_l2(), records=records(500), settings=batch)
    assert calibrated(problem, method, 1.0, **settings).step_size == 99.0
    with pytest.warns(UserWarning, match="step_size"):
        dpjax.dp_svrg(logistic_l2(), BUDGET, data_size=500, dimension=3, **batch, **settings)


def test_without_privacy_the_step_is_the_plain_mean_gradient():
    images = dpagem.made(64)
    settings = dpagem._MNIST.settings | {"batch_size": 8, "first_steps": 1}
    problem = dataclasses.replace(dpagem._MNIST, records=images, settings=settings)
    # Records that say much more than the clip norm of the private methods.
    examples = 3 * jnp.asarray(images.x), jnp.asarray(images.y)
    params = problem.first_params(0, images)
    query = calibrated(problem, dpagem.METHODS[0], 8.0, step_size=0.1).query
    assert dpagem.METHODS[0].label == dpagem.NOISELESS and not dpagem.METHODS[0].private
    key = jax.random.key(1)
    answer = jax.jit(query.answer)(key, examples, params)
    batch, mask = query._drawn(key, examples)
    losses = lambda w: jnp.sum(  # noqa: E731
        jnp.where(mask, jax.vmap(lambda one: problem.loss(w, one))(batch), 0.0)
    )
    wanted = jax.tree.map(lambda leaf: leaf / query.divisor, jax.jit(jax.grad(losses))(params))
    chex.assert_trees_all_close(answer, wanted, rtol=1e-3, atol=1e-4)
    assert float(jnp.sqrt(sum(jnp.sum(v**2) for v in jax.tree.leaves(answer)))) > dpagem.CLIP_NORM


def test_one_program_serves_all_methods_but_two():
    problem = dataclasses.replace(dpagem._MNIST, records=dpagem.made)
    made = [calibrated(problem, method, 8.0, step_size=0.5) for method in dpagem.METHODS[:8]]
    assert {int(algorithm.steps) for algorithm in made} == {1_050}
    assert len({jax.tree.structure(algorithm) for algorithm in made}) == 3  # stages, 1/t, 1/sqrt(t)
    (_, stage, *_) = there = dpagem.EXPERIMENT.methods_on(dpagem._CIFAR)
    assert stage.grid(dpagem._CIFAR) == ({"step_size": 0.5},) and dpagem.METHODS[8] not in there


def test_colours_are_of_order_one(monkeypatch):
    pixels, labels = np.ones((2, 32, 32, 3), np.float32), np.arange(2.0)
    stored = dpjax.Dataset(pixels, labels, pixels, labels, name="cifar10-fifth")
    monkeypatch.setattr(dpagem.datasets, "load", lambda name: stored)
    data = dpagem.colours()
    assert data.x.dtype == np.float32 and data.x.max() == 2.0 and data.name == "cifar10-fifth"


def test_an_objective_of_your_own_needs_no_margin(tmp_path, pictures):
    squares = dpjax.Objective(lambda w, example: jnp.sum((w - example[0]) ** 2), name="mean")
    method = Method("GD", "dp-gd", {"steps": 2, "clip_norm": 1.0, "step_size": 0.1})
    mine = own(method, objective=squares, epsilons=(1.0, 2.0),
               metrics=("exact_value", "exact_gradient_norm"))  # fmt: skip
    found = files.run(mine, tmp_path)
    assert found.values("exact_value", epsilon=1.0).size == 2 and not found.tried("exact_value")
    assert [axes.get_xlabel() for axes in pictures["gap"].axes] == ["epsilon"] * 2
    assert figures.best_first(found, "exact_value") == ["GD"]
    assert spider.saddle("ijcnn1") == welsch(0.1045)


def test_the_example_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (pathlib.Path(runner.__file__).parent / "README.md").read_text()
    exec(text.partition("```python\n")[2].partition("```")[0], {})
    assert 0 < float(capsys.readouterr().out) < 1
    assert {"risk.png", "mine.csv", "mine.md"} <= {path.name for path in tmp_path.glob("*/*")}
