"""The command line, in process: what it prints and writes, what it never does, and its errors."""

import argparse
import inspect
import json
import os
import pathlib
import re
import shlex
import sys

import jax
import numpy as np
import pytest
from factories import ANCHORED, DELTA_ONLY, ENTRIES, EXAMPLES, FACTORIES, SPIDERS, mostly_ci

import dpjax
from dpjax.cli import main, options, problem
from dpjax.cli.main import Parser, parser
from dpjax.derivatives import rounding_error

EVERY = list(FACTORIES)
SHORT = ["--steps", "3"]
# How an argument that has no default is written.
WRITTEN = {"domain": lambda ball: f"{type(ball).__name__[:2].lower()}:{ball.radius}"}
KEYS = {
    "algorithm",
    "data",
    "unit",
    "n",
    "p",
    "objective",
    "epsilon_budget",
    "epsilon",
    "epsilon_all_repeats",
    "delta",
    "relation",
    "accountant",
    "releasable",
    "noise",
    "gradient_evaluations",
    "steps",
    "max_steps",
    "status",
    "certificate",
    "exact_objective",
    "exact_gradient_norm",
    "exact_min_eigenvalue",
    "exact_accuracy",
    "seconds_compile",
    "seconds_run",
    "versions",
}
EXACT = {key for key in KEYS if key.startswith("exact_")}
NOISE = {"name", "count", "std_of", "stddev", "sensitivity", "multiplier", "sampling_probability"}
# By a last query, or by the records that were kept for it.
CERTIFIED = {
    name
    for name, factory in FACTORIES.items()
    if {"certify", "candidates"} & inspect.signature(factory).parameters.keys()
}
# One for each kind of release and of certificate; what is written before a run, below, is of all.
KINDS = ["dp-tr", "dp-sgd", "dp-svrg", "dp-gd-selected", "dp-newton", "prgd", "spider"]
CERTIFICATE = {"beta", "iterate", "scope", "gradient_norm_upper", "min_eigenvalue_lower"}


def of(name):
    """What to add to a command: what has no default, and an objective that the algorithm takes."""
    required = EXAMPLES[name].required.items()
    words = [word for key, value in required for word in (f"--{key}", WRITTEN[key](value))]
    return [*words, "--objective", EXAMPLES[name].objective]


@pytest.fixture
def table(tmp_path):
    """A CSV file with a label and its declared bounds, as the arguments that name them."""
    random = np.random.default_rng(0)
    rows = [
        f"{20 + 60 * a:.1f},{b:.3f},{int(a + b > 1)}" for a, b in random.random((60, 2)).tolist()
    ]
    (tmp_path / "my.csv").write_text("\n".join(["age,score,sick", *rows]) + "\n")
    (tmp_path / "my.json").write_text(json.dumps({"age": [0, 120], "score": [0, 1]}))
    declared = ["--classes", "0,1", "--bounds", str(tmp_path / "my.json")]
    return [str(tmp_path / "my.csv"), "--label", "sick", *declared]


@pytest.fixture
def spends_nothing(monkeypatch):
    """Any training fails."""

    def spent(*args, **kwargs):
        raise AssertionError("the budget was spent")

    for name in ("solve", "run"):
        monkeypatch.setattr(dpjax, name, spent)
    for loop in ("start", "advance", "finish", "bind_records"):
        monkeypatch.setattr(f"dpjax.driver.loop.{loop}", spent)


def check_noise(name, every):
    """What a command writes of the noise of three steps on the embedded data."""
    assert all(noise.keys() >= NOISE for noise in every)
    for noise in every:
        assert noise["stddev"] == pytest.approx(noise["multiplier"] * noise["sensitivity"])
        if noise["mechanism"] == "exponential":
            assert (noise["count"], noise["std_of"]) == (1, "score")
            continue
        if noise["name"] == "newton_direction":
            assert (noise["count"], noise["std_of"]) == (3, "mean")
            continue
        if noise["sampling"] == "single_pass":
            assert noise["count"] == 1 and noise["sampling_probability"] is None
            assert len(noise["parts"]) == 2
            continue
        if noise["sampling"] != "none":
            assert 0 < noise["sampling_probability"] < 1 and noise["max_batch_size"] > 0
            continue
        slack = rounding_error(20_190, "zero_out")
        clip = 0.1 if noise["name"] == "preconditioned_gradient" else 1
        assert noise["sensitivity"] == pytest.approx(clip * (1 + slack) / 20_190, rel=1e-6)
        count = {"dp-svrg": 1, "dp-svrg++": 2}.get(name, 3)
        if name == "noisy-newton" and noise["name"] != "gradient_and_hessian":
            count = 1  # when the steps are over
        if noise["name"] == "second_moment":
            count = 1  # before the first step
        assert (noise["count"], noise["std_of"]) == (count, "mean")
        assert noise["sampling_probability"] is None


# run.


@pytest.mark.parametrize("name", mostly_ci(KINDS, ["dp-tr"]))
def test_run_writes_every_key_of_the_contract_and_is_private(name, call, tmp_path):
    file = tmp_path / "out.json"
    status, out, err = call("run", name, *SHORT, *of(name), "--json", file)
    assert (status, err) == (0, "")
    content = json.loads(file.read_text())
    assert content.keys() >= KEYS
    assert content["algorithm"] == name and content["data"] == "randhie"
    assert content["unit"] == "person-year"
    assert (content["n"], content["relation"]) == (20_190, "zero_out")
    assert content["delta"] == pytest.approx(1 / 201_900)
    proximal = name in ANCHORED
    assert content["objective"] == ("logistic-l2" if proximal else "logistic-nonconvex")
    assert content["epsilon_budget"] == 1.0
    assert content["epsilon"] == 0 if name in DELTA_ONLY else 0.999 < content["epsilon"] <= 1
    assert content["epsilon_all_repeats"] == content["epsilon"]
    assert content["releasable"] is True
    assert content["steps"] == 3 <= content["max_steps"]
    assert content["status"] == "fixed_horizon"
    check_noise(name, content["noise"])
    if name not in CERTIFIED:  # batches bound no derivative of the whole sum
        assert content["certificate"] is None
    else:
        assert content["certificate"].keys() >= CERTIFICATE
        kept = " on the 2,019 records kept for it" if name in SPIDERS else ""
        assert content["certificate"]["scope"] == "objective" + kept
        assert content["certificate"]["gradient_norm_upper"] > 0
    # A program that another test has compiled takes no time.
    assert content["seconds_compile"] >= 0 and content["seconds_run"] > 0
    assert content["versions"]["dpjax"] and content["versions"]["jax"] == jax.__version__
    # Private: no exact number, neither in the file nor on the screen.
    assert all(content[key] is None for key in EXACT)
    assert "exact_" not in out and "differentially private" in out
    assert "one person-year" in out and "releasable: false" not in out


def test_run_without_an_algorithm_is_the_trust_region(call):
    status, out, _ = call("run", *SHORT)
    assert status == 0 and "\nDP-TR is (1, 4.953e-06)-differentially private" in out


def test_the_result_comes_before_the_guarantee(call, tmp_path):
    status, out, _ = call("run", *SHORT, "--save", tmp_path / "model")
    lines = ["steps: ", "certificate ", "wrote ", "DP-TR is (1, "]
    places = [out.index(line) for line in lines]
    assert status == 0 and places == sorted(places) and places[0] == 0


@pytest.mark.parametrize(
    ("argv", "parameter", "value"),
    [
        (["dp-gd", "--learning-rate", "0.25"], "step_size", 0.25),
        (["dp-adam", "--learning-rate", "0.25"], "step_size", 0.25),
        (["dp-tr", "--radius", "3"], "radius", 3.0),
        (["dp-tr", "--clip-norm", "0.5"], "clip_norm", 0.5),
    ],
)
def test_options_reach_the_factory_that_has_them(argv, parameter, value):
    arguments = parser().parse_args(["run", *argv])
    name = arguments.algorithm
    own = [dpjax.objectives.logistic(), dpjax.PrivacyBudget(1.0, 1e-5)]
    factory = dpjax.ALGORITHMS[name]
    expected = factory(*own, data_size=1000, dimension=3, **{parameter: value})
    arguments.delta = 1e-5
    assert problem.configure(arguments, own[0], 1000, 3).algorithm == expected
    assert factory(*own, data_size=1000, dimension=3) != expected


def test_an_option_of_factories_is_one_entry(monkeypatch):
    monkeypatch.setitem(options.SETTINGS, "--final-step-size", {"type": float, "help": "the last"})
    argv = ["--delta", "1e-5", "--final-step-size", "0.05"]
    own = [dpjax.objectives.logistic(), dpjax.PrivacyBudget(1.0, 1e-5)]
    expected = dpjax.dp_adam(*own, data_size=1000, dimension=3, final_step_size=0.05)
    arguments = parser(["run"]).parse_args(["run", "dp-adam", *argv])
    assert problem.configure(arguments, own[0], 1000, 3).algorithm == expected
    assert problem.grid(["final-step-size=1,2"], "dp-adam") == {"final_step_size": [1, 2]}
    with pytest.raises(ValueError, match="dp-gd takes no final step size; leave --final-step-size"):
        problem.configure(parser(["run"]).parse_args(["run", "dp-gd", *argv]), own[0], 1000, 3)


def test_an_option_that_two_groups_declare_is_an_error():
    with pytest.raises(argparse.ArgumentError, match="conflicting option string: --json"):
        Parser().take("A command.", None, (options.TRAINING, options.JSON))


def test_a_path_is_checked_by_its_type(monkeypatch, tmp_path):
    monkeypatch.setitem(options.TRAINING, "--log", {"type": options.Output, "help": "a log"})
    arguments = parser(["run"]).parse_args(["run", "--log", str(tmp_path / "absent" / "log")])
    with pytest.raises(ValueError, match=r"--log .* cannot be written: its folder does not exist"):
        options.check(arguments)


# Commands and their help.


def parsers():
    """Yields every command with its parser, by way of the help each prints."""

    def below(words, one):
        yield words, one
        for action in one._actions:
            if isinstance(action.choices, dict):
                for name, other in action.choices.items():
                    yield from below([*words, name], other)

    return {" ".join(words): one for words, one in below(["dpjax"], parser())}


@pytest.mark.parametrize("command", ["dpjax run", "dpjax calibrate"])
def test_the_help_says_what_each_algorithm_asks(command):
    shown = parsers()[command].format_help().partition("examples:\n")[0]
    listed = re.findall(r"(?m)^  (\S+) +(.*(?:\n {18}.*)*)", shown.partition("of the data:\n")[2])
    said = {name: " ".join(words.split()) for name, words in listed}
    assert said == {name: entry.asks.replace("`", "") for name, entry in ENTRIES.items()}


@pytest.mark.parametrize("command", list(parsers()))
def test_every_help_has_examples_that_parse(command):
    _, _, examples = parsers()[command].format_help().partition("examples:\n")
    lines = [shlex.split(line.split("    ")[0]) for line in map(str.strip, examples.splitlines())]
    lines = [line for line in lines if "COMMAND" not in line]
    assert lines
    for line in lines:
        assert line[0] == "dpjax"
        arguments = parser().parse_args(line[1:])
        assert callable(arguments.command)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run", "--epsilom", "2"], "--epsilom; did you mean --epsilon?"),
        (["run", "--epsilom=2"], "did you mean --epsilon?"),
        (["run", "--lr", "0.1"], "--lr; did you mean --learning-rate?"),
        (["run", "--algorithm", "dp-gd"], "--algorithm: name the algorithm alone, as in dpjax run"),
        (["run", "--stepsize", "0.1"], "did you mean --learning-rate?"),
        (["run", "--resume"], "--resume; see --help"),
        (["run", "--max_grad_norm", "1"], "did you mean --clip-norm?"),
        (["calibrate", "--data_size", "9"], "did you mean --data-size?"),
        (["data", "--labels", "y"], "did you mean --label?"),
        (["audit", "--al"], None),  # an abbreviation
        (["run", "--zzz"], "see --help"),
    ],
)
def test_an_unknown_option_is_answered_by_the_nearest(argv, message, capsys):
    if message is None:
        assert parser().parse_args(argv).all
        return
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "calibrate"])
@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--delta", "0.01"], "publishing 201.9 random records in full"),
        (["--epsilon", "1000"], "gives little protection"),
        (["--epsilon", "1e-5"], "too small to learn from 20,190 declared records"),
    ],
)
def test_a_budget_that_is_hardly_sensible_is_remarked_on(command, argv, words, call):
    status, out, err = call(command, "dp-gd", *SHORT, *argv)
    line, *others = err.splitlines()
    assert status == 0 and line.startswith("warning: ") and words in line
    assert all("no clipped gradient is longer" in other for other in others)
    noted = f"Note: {line.removeprefix('warning: ')}"
    assert command == "calibrate" or noted in " ".join(out.split())


def test_a_remark_tells_the_declared_n_alone(call):
    more = ["--relation", "add_or_remove_one", "--data-size", 30_000, "--delta", 0.01]
    status, out, err = call("run", "dp-gd", *SHORT, *more)
    assert status == 0 and "for 30,000 declared records" in err
    assert not re.search(r"20[,_]?190", out + err)


def test_two_runs_draw_different_noise(call, tmp_path):
    found = []
    for name in ("a", "b"):
        call("run", *SHORT, "--json", tmp_path / name)
        found.append(json.loads((tmp_path / name).read_text())["certificate"])
    assert found[0]["gradient_norm_upper"] != found[1]["gradient_norm_upper"]


@pytest.mark.ci
def test_exact_says_not_private_and_fills_the_fields(call, tmp_path):
    file = tmp_path / "out.json"
    status, out, err = call("run", *SHORT, "--exact", "--seed", 1, "--json", file)
    assert status == 0 and "NOT PRIVATE" in err
    content = json.loads(file.read_text())
    assert content["releasable"] is False and "releasable: false" in out
    for key in EXACT:
        assert isinstance(content[key], float)
        (line,) = (line for line in out.splitlines() if line.startswith(key))
        assert "NOT PRIVATE" in line
    assert 0.5 < content["exact_accuracy"] < 1
    assert content["exact_objective"] < np.log(2)


def test_a_seed_is_reproducible_and_not_releasable(call, tmp_path):
    texts = []
    for name in ("a", "b"):
        _, out, _ = call("run", *SHORT, "--seed", 5, "--json", tmp_path / name)
        assert "releasable: false" in out
        content = json.loads((tmp_path / name).read_text())
        assert content["releasable"] is False
        texts.append({k: v for k, v in content.items() if not k.startswith("seconds")})
        assert "5" not in {str(value) for value in content.values()}
    assert texts[0] == texts[1]
    call("run", *SHORT, "--seed", 0, "--json", tmp_path / "zero")
    assert json.loads((tmp_path / "zero").read_text())["releasable"] is False


@pytest.mark.ci
def test_repeats_give_lists_and_their_joint_epsilon(call, tmp_path):
    file = tmp_path / "out.json"
    status, out, _ = call("run", *SHORT, "--repeats", 3, "--exact", "--json", file)
    content = json.loads(file.read_text())
    assert status == 0 and "releasable: false" in out and content["releasable"] is False
    for key in ("epsilon", "steps", "status", *EXACT):
        assert isinstance(content[key], list) and len(content[key]) == 3, key
    for key in ("gradient_norm_upper", "min_eigenvalue_lower"):
        assert len(set(content["certificate"][key])) == 3
    assert all(epsilon <= 1 for epsilon in content["epsilon"])
    # Three runs together: three times the releases, between sqrt(3) and 3 times the epsilon.
    assert 3**0.5 < content["epsilon_all_repeats"] < 3
    assert "mean of 3 runs" in out


@pytest.mark.parametrize("name", EVERY)
def test_dry_run_spends_nothing(name, call, spends_nothing, monkeypatch):
    monkeypatch.setattr("dpjax.cli.run.seconds_per_step", lambda algorithm, examples: 0.01)
    status, out, err = call("run", name, *SHORT, *of(name), "--dry-run")
    assert (status, err) == (0, "")
    assert "differentially private" in out and "nothing was spent" in out
    assert re.search(r"memory: about \d+ MiB", out) and re.search(r"time: about .* s", out)


def test_a_dry_run_times_made_up_rows_alone(call, monkeypatch):
    seen = []
    real = dpjax.driver.seconds_per_step

    def watched(algorithm, examples):
        seen.append(examples)
        return real(algorithm, examples)

    monkeypatch.setattr("dpjax.cli.run.seconds_per_step", watched)
    status, out, _ = call("run", *SHORT, "--dry-run")
    assert status == 0 and re.search(r"time: about [\d.e-]+ s", out)
    ((x, y),) = seen
    assert len(np.unique(x)) == len(np.unique(y)) == 1


@pytest.mark.parametrize("repeats", [None, 3])
def test_plot_writes_a_picture(repeats, call, tmp_path):
    file = tmp_path / "run.png"
    more = [] if repeats is None else ["--repeats", repeats]
    status, out, _ = call("run", *SHORT, *more, "--plot", file)
    assert status == 0 and f"wrote {file}" in out
    assert file.read_bytes().startswith(b"\x89PNG")


def test_save_writes_what_load_reads(call, tmp_path):
    file = tmp_path / "model"
    status, out, _ = call("run", "dp-gd", *SHORT, "--save", file)
    saved = dpjax.load(file)
    assert status == 0 and saved.text in out
    assert saved.params.shape == (9,) and saved.epsilon(1 / 201_900) <= 1


def test_c63_no_time_is_written_where_n_is_private(call, tmp_path):
    """A pass takes as long as there are records: 20,190, where 20,000 are declared."""
    file, private = tmp_path / "out.json", ["--relation", "add_or_remove_one", "--delta", 1e-6]
    status, out, _ = call("run", "dp-gd", *SHORT, *private, "--data-size", 20_000, "--json", file)
    assert status == 0 and "20190" not in file.read_text() and "20,190" not in out
    content = json.loads(file.read_text())
    assert content["n"] == 20_000
    assert content["seconds_run"] is None and content["seconds_compile"] is None
    assert not re.search(r"\d s\b", out) and "time:" not in out


@pytest.mark.parametrize(
    ("relation", "accountant"), [("replace_one", "rdp"), ("add_or_remove_one", "pld")]
)
def test_relations_and_accountants(relation, accountant, call, tmp_path):
    file = tmp_path / "out.json"
    more = ["--data-size", 20_000, "--delta", 1e-6] if relation == "add_or_remove_one" else []
    arguments = ["--relation", relation, "--accountant", accountant, *more]
    status, out, _ = call("run", "dp-gd", *SHORT, *arguments, "--json", file)
    content = json.loads(file.read_text())
    assert status == 0
    assert (content["relation"], content["accountant"]) == (relation, accountant)
    assert content["epsilon"] <= 1.0
    if relation == "add_or_remove_one":  # the true n is private there
        assert content["n"] == 20_000
        assert not re.search(r"20[,_]?190", out + file.read_text())


@pytest.mark.ci
@pytest.mark.parametrize("name", mostly_ci(dpjax.objectives.SADDLES, ["two-layer"]))
def test_run_starts_at_a_saddle(name, call, table, tmp_path):
    """And ends, with so little noise, where no eigenvalue is far below 0."""
    file, strength = tmp_path / "out.json", [0.1] if name == "welsch" else []
    more = ["--objective", name, *(word for s in strength for word in ("--regularization", s))]
    more += ["--steps", 8, "--epsilon", 1_000, "--seed", 0, "--exact", "--json", file]
    status, out, _ = call("run", "dp-tr", "--data", *table, *more)
    content = json.loads(file.read_text())
    assert status == 0 and content["objective"] == name
    assert content["p"] == dpjax.objectives.SADDLES[name](*strength).parameters(2)
    assert content["status"] == "fixed_horizon" and content["exact_min_eigenvalue"] > -0.1
    # A loss that is the same for both labels has no accuracy.
    assert (content["exact_accuracy"] is None) == (name != "two-layer")
    assert ("exact_accuracy" in out) == (name == "two-layer") and "nan" not in out


@pytest.mark.ci
@pytest.mark.parametrize("name", ["phase-retrieval", "two-layer"])
def test_repeats_and_a_dry_run_of_a_loss_without_a_margin(name, call, table, tmp_path):
    file = tmp_path / "out.json"
    more = ["--data", *table, "--objective", name, *SHORT]
    status, _, _ = call("run", "dp-gd", *more, "--repeats", 2, "--exact", "--json", file)
    content = json.loads(file.read_text())
    assert status == 0 and len(content["exact_objective"]) == 2
    assert (content["exact_accuracy"] is None) == (name != "two-layer")
    status, out, err = call("run", "dp-gd", *more, "--dry-run")
    assert (status, err) == (0, "") and "nothing was spent" in out


@pytest.mark.parametrize(
    ("argv", "strength"),
    [
        (["--objective", "welsch", "--data", "ijcnn1"], 0.1045),
        (["--objective", "welsch", "--data", "my.csv", "--regularization", "0.2"], 0.2),
        (["--objective", "welsch", "--data", "ijcnn1", "--regularization", "0.2"], 0.2),
        (["--objective", "logistic-l2", "--regularization", "0.5"], 0.5),
        (["--objective", "logistic-l2"], 1e-3),
    ],
)
def test_the_strength_of_a_penalty_is_the_published_one_or_the_one_given(argv, strength):
    objective = problem.objective(parser().parse_args(["run", *argv]))
    assert objective.regularizer.strength == strength


# calibrate.


@pytest.mark.parametrize("name", EVERY)
def test_calibrate_gives_the_epsilon_back(name, call, tmp_path, spends_nothing):
    file = tmp_path / "out.json"
    status, out, err = call("calibrate", name, *SHORT, *of(name), "--epsilon", 2, "--json", file)
    assert (status, err) == (0, "")
    content = json.loads(file.read_text())
    assert content["epsilon"] == 0 if name in DELTA_ONLY else 1.999 < content["epsilon"] <= 2
    check_noise(name, content["noise"])
    assert content["noise"][0]["multiplier"] > 0 and "noise multiplier" in out
    assert "epsilon 2" in out and "exact" in out and "Renyi" in out


def test_calibrate_needs_no_data_when_told_their_shape(call, no_data):
    shape = ["--data-size", 35_000, "--dimension", 22, "--delta", 1 / 35_000, "--steps", 40]
    status, out, _ = call("calibrate", *shape, "--relation", "replace_one")
    assert status == 0 and "noise multiplier 22.068" in out


# data.


def test_data_lists_what_there_is(call):
    status, out, err = call("data")
    assert (status, err) == (0, "")
    for name in ("randhie", "ijcnn1", "covtype", "covtype-12"):
        assert re.search(rf"^{name} ", out, re.MULTILINE)


def test_data_tells_more_of_one(call):
    status, out, err = call("data", "randhie")
    assert (status, err) == (0, "")
    assert "person-year" in out and "20190" in out.replace(",", "")
    assert "NOT PRIVATE" not in out


def test_data_check_says_not_private(call):
    status, out, err = call("data", "randhie", "--check")
    assert status == 0 and "NOT PRIVATE" in err and "NOT PRIVATE" in out
    assert "6308" in out


# A user's own table.


def test_a_users_table_runs(call, table, tmp_path):
    file = tmp_path / "out.json"
    more = ["--intercept", "--json", file]
    status, out, err = call("run", "dp-gd", *SHORT, "--data", *table, *more)
    assert (status, err) == (0, "")
    content = json.loads(file.read_text())
    assert (content["n"], content["p"], content["unit"]) == (60, 3, "row")
    assert content["delta"] == pytest.approx(1 / 600) and "one row" in out


def test_a_users_table_is_checked(call, table):
    status, out, err = call("data", *table, "--check")
    assert status == 0 and "NOT PRIVATE" in err and "rows (row): 60" in out
    status, _, err = call("data", table[0])
    assert status == 2 and "--check" in err


# Bad requests: status 2, one line that names the fix, nothing spent.


BAD = {
    "algorithm": (["run", "dp-trr"], "unknown algorithm 'dp-trr'; did you mean 'dp-tr'"),
    "objective": (["run", "--objective", "logistc"], "did you mean 'logistic'"),
    "data set": (["run", "--data", "ijcn1"], "did you mean 'ijcnn1'"),
    "relation": (["run", "--relation", "zero-out"], "did you mean 'zero_out'"),
    "accountant": (["run", "--accountant", "pdl"], "did you mean 'pld'"),
    "paper": (["run", "--accountant", "paper"], "benchmarks/papers/noise.py"),
    "private n": (["run", "--relation", "add_or_remove_one"], "--data-size and --delta"),
    "private n, delta given": (
        ["run", "--relation", "add_or_remove_one", "--delta", "1e-6"],
        "--data-size",
    ),
    "private n, size given": (
        ["run", "--relation", "add_or_remove_one", "--data-size", "100"],
        "--delta",
    ),
    "domain": (["run", "dp-accmd", "--domain", "l3:1"], "unknown domain 'l3'"),
    "domain, no radius": (["run", "dp-accmd", "--domain", "l1"], "domain must be l1:RADIUS"),
    "domain absent": (["run", "dp-accmd"], "domain is required"),
    "domain of another": (["run", "dp-gd", "--domain", "l1:1"], "leave --domain out"),
    "epsilon 0": (["run", "--epsilon", "0"], "epsilon must be"),
    "epsilon nan": (["run", "--epsilon", "nan"], "epsilon must be"),
    "delta 1": (["run", "--delta", "1"], "delta must be"),
    "delta 1/2": (["run", "--delta", "0.5"], "delta must be below 1/2, got 0.5"),
    "epsilon below delta": (["run", "--epsilon", "1e-9"], "epsilon must be at least delta"),
    "algorithm, case": (["run", "DP-TR"], "did you mean 'dp-tr'?"),
    "algorithm, function": (["run", "dp_trust_region"], "did you mean 'dp-tr'?"),
    "algorithm, baseline": (["run", "dp_newton"], "did you mean 'dp-newton'?"),
    "objective, underscore": (["run", "--objective", "logistic_l2"], "did you mean 'logistic-l2'?"),
    "accountant prv": (["run", "--accountant", "prv"], "accountant 'prv'. Choose from: pld, rdp"),
    "rate of none": (["run", "--learning-rate", "1"], "take one of: dp-gd, dp-adam"),
    "rate 0": (["run", "dp-gd", "--learning-rate", "0"], "--learning-rate must be"),
    "radius of none": (["run", "dp-gd", "--radius", "1"], "take one of: dp-tr, dp-str"),
    "radius nan": (["run", "--radius", "nan"], "--radius must be"),
    "clip norm 0": (["run", "--clip-norm", "0"], "--clip-norm must be"),
    "domain, radius of text": (["run", "dp-accmd", "--domain", "l1:x"], "must be a number"),
    "steps 0": (["run", "--steps", "0"], "steps must be"),
    "report as a picture": (["run", "--report", "report.pdf"], "must end in .html"),
    "report of several": (["run", "--report", "r.html", "--repeats", "2"], "for one training"),
    "repeats 0": (["run", "--repeats", "0"], "repeats must be"),
    "wrong n": (["run", "--data-size", "100"], "data_size=100 was declared"),
    "no such file": (["run", "--data", "absent.csv", "--label", "y"], "absent.csv"),
    "strength of no penalty": (
        ["run", "--objective", "pca", "--regularization", "1"],
        "leave --reg",
    ),
    "strength of welsch": (["run", "--objective", "welsch", "--data", "a.csv"], "--regularization"),
    "label of a named set": (["run", "--label", "y"], "label"),
    "n of the run, dry": (["run", "--dry-run", "--data-size", "100"], "data_size=100 was declared"),
    "half a shape": (
        ["calibrate", "--data-size", "100"],
        "--data-size alone does not give the shape",
    ),
    "other half": (["calibrate", "--dimension", "10"], "--dimension alone does not give the shape"),
    "calibrate, algorithm": (["calibrate", "dpgd"], "did you mean 'dp-gd'"),
    "calibrate, size 0": (["calibrate", "--data-size", "0", "--dimension", "2"], "data_size"),
    "data, name": (["data", "covtyp"], "did you mean 'covtype'"),
    "data, check of nothing": (["data", "--check"], "--check needs"),
}


@pytest.mark.parametrize(("argv", "message"), list(BAD.values()), ids=list(BAD))
def test_a_bad_request_is_one_line(argv, message, call, tmp_path):
    file = tmp_path / "out.json"
    more = [] if argv[0] == "data" else ["--json", file]
    status, out, err = call(*argv, *more)
    assert status == 2 and not file.exists()
    assert err.startswith("dpjax: ") and message in err
    assert len(err.splitlines()) == 1 and "Traceback" not in err
    assert "differentially private" not in out


@pytest.mark.parametrize("argv", [["no-such-command"], ["run", "--no-such-flag"]])
def test_argparse_refuses_what_is_no_command(argv, call, capsys):
    with pytest.raises(SystemExit) as stop:
        call(*argv)
    assert stop.value.code == 2 and "usage" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--json", "--plot", "--save", "--report"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_spent(
    flag, call, spends_nothing, tmp_path
):
    status, _, err = call("run", *SHORT, flag, tmp_path / "absent" / "file.png")
    assert status == 2 and "absent" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("flag", ["--json", "--plot", "--save", "--report", "--checkpoint"])
def test_a_folder_that_cannot_be_written_is_noticed_before_anything_is_spent(
    flag, call, spends_nothing
):
    status, out, err = call("run", *SHORT, flag, "/proc/file.png")
    assert status == 2 and "/proc/file.png" in err and len(err.splitlines()) == 1
    assert out == ""


def test_a_result_never_replaces_another_file_of_the_run(call, table, spends_nothing, tmp_path):
    both = tmp_path / "both"
    status, _, err = call("run", *SHORT, "--json", both, "--save", both)
    assert status == 2 and "--save and --json both name" in err and not both.exists()
    for path, option in ((table[0], "--data"), (table[-1], "--bounds")):
        before = pathlib.Path(path).read_bytes()
        status, _, err = call("run", *SHORT, "--data", *table, "--save", path)
        assert status == 2 and f"--save and {option} both name" in err
        assert pathlib.Path(path).read_bytes() == before
    assert call("run", *SHORT, "--json", "/dev/null")[0] == 2
    (tmp_path / "file").write_text("")
    status, _, err = call("run", *SHORT, "--checkpoint", tmp_path / "file")
    assert status == 2 and "must be a folder" in err


def test_the_guarantee_is_printed_though_the_model_cannot_be_written(call, monkeypatch, tmp_path):
    def full(path, solution, **more):
        raise OSError("No space left on device")

    monkeypatch.setattr(dpjax, "save", full)
    status, out, err = call("run", *SHORT, "--save", tmp_path / "model")
    assert status == 2 and "No space left" in err and "DP-TR is (1, " in out


def test_a_reader_that_ends_early_is_no_error(monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as nobody:
        monkeypatch.setattr(sys, "stdout", nobody)
        assert main(["data"]) == 141
    assert capsys.readouterr().err == ""
