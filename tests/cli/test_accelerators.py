"""What a program holds when it is lowered for a GPU or a TPU: no float64, or a refusal."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import EXAMPLES, P, mostly_ci, toy, toy_records

import dpjax
from benchmarks import programs
from dpjax import transforms
from dpjax.derivatives import clipped_grad
from dpjax.driver import checks
from dpjax.mechanisms import fixed_point
from dpjax.results.guarantee import statement

PROGRAMS = programs.programs()
# What they take on a TPU instead of exact eigenvalues, and say.
BY_RELEASED_VALUES = {
    "dp-gd-selected": ("(by released gradients)", ["gradient"]),
    "spider": ("(last iterate)", ["estimate"]),
}
KEY = jax.random.key(0)
X, Y = toy_records()


def held(function, platform):
    return programs.held(programs.trace(function, (KEY,)), platform)


def training(name, **more):
    algorithm = toy(name, **more)
    return lambda key: dpjax.solve(algorithm, (X, Y), key=key).params


# Networks take half of the time of all, and other algorithms ask what these do.
DAILY = [
    name for name in PROGRAMS if name not in dpjax.ALGORITHMS and not name.startswith("fit of")
]
DAILY += ["dp-tr", "dp-adam", "dp-gd-selected", "objective-perturbation"]


@pytest.mark.parametrize("name", mostly_ci(PROGRAMS, DAILY))
def test_what_every_program_holds(name):
    _, (cuda, tpu), wrong = programs.check(name, PROGRAMS[name])
    assert wrong == []
    assert bool(cuda.float64) == (name in programs.FLOAT64 or name in BY_RELEASED_VALUES)
    assert (tpu is None) == (name in programs.FLOAT64)


def test_every_transformation_has_a_row():
    made = {
        name
        for name in transforms.__all__
        if inspect.isfunction(factory := getattr(transforms, name))
        and "Transformation" in str(inspect.signature(factory).return_annotation)
    }
    assert len(made) > 9 and made <= set(PROGRAMS)


def ones(function):
    return lambda: (function, (np.ones((4, 4), np.float32),))


# What the check is for, planted; of products also those that a user's mark would not excuse.
PLANTED = {
    "calls the host": lambda x: jax.debug.callback(lambda _: None, x),
    "multiplies in fewer digits than float32's": lambda x: x @ x,
    "multiplies in fewer digits": lambda x: jax.lax.conv(
        x[None, None], x[None, None], (1, 1), "SAME"
    ),
    "fewer digits": lambda x: jnp.astype(x, jnp.bfloat16) @ jnp.astype(x, jnp.bfloat16),
}


@pytest.mark.parametrize("words", PLANTED)
def test_the_check_finds_what_is_planted(words):
    *_, wrong = programs.check("planted", ones(PLANTED[words]))
    assert len(wrong) == 1 and words in wrong[0]


def test_the_check_finds_float64_and_excuses_products_of_enough_digits():
    with jax.enable_x64(True):
        *_, wrong = programs.check("planted", ones(lambda x: x.astype(jnp.float64) + 1))
    assert wrong == ["planted holds float64 on a TPU"]
    for precision, losses in (("highest", 0), ("high", 1)):
        product = jax.default_matmul_precision(precision)(lambda x: x @ x)
        _, found, wrong = programs.check("planted", ones(product))
        assert wrong == [] and [one.losses for one in found] == 2 * [losses]
    assert programs.check("planted", ones(lambda x: x.astype(int) @ x.astype(int)))[-1] == []
    with pytest.raises(UserWarning, match="Explicitly requested dtype"):
        programs.check("planted", ones(lambda x: x + jnp.zeros(4, jnp.int64)))
    refused = programs.check("planted", PROGRAMS["prgd"])[-1]
    assert refused == ["planted is refused by a TPU"]


def test_the_command_prints_rows_and_fails_where_one_is_wrong(capsys, monkeypatch):
    assert programs.main(["perturb", "add_ball_noise"]) == 0
    printed = capsys.readouterr().out
    assert "| perturb | 0 | 0, 0 | 0, 0 | 0, 0 | - |" in printed and ", refused |" in printed
    with pytest.raises(SystemExit, match="2"):
        programs.main(["no-such"])
    planted = {"planted": ones(lambda x: x @ x)}
    monkeypatch.setattr(programs, "programs", lambda: planted)
    assert programs.main([]) == 1
    assert "planted multiplies in fewer digits" in capsys.readouterr().out


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
@pytest.mark.parametrize("name", ["dp-tr", "dp-svrg"])
def test_units_of_several_records_hold_no_float64_outside_of_a_cpu(name, platform):
    objective = dpjax.objectives.OBJECTIVES[EXAMPLES[name].objective]().of_units()
    algorithm = toy(name, objective=objective, data_size=len(Y) // 2)
    units = (X.reshape(-1, 2, P), Y.reshape(-1, 2)), jnp.ones((len(Y) // 2, 2), bool)
    with programs.as_on(platform):
        found = held(lambda key: dpjax.solve(algorithm, units, key=key).params, platform)
    assert not found.float64


@pytest.mark.parametrize("name", BY_RELEASED_VALUES)
def test_a_default_output_needs_no_float64_on_a_tpu_and_says_which_it_is(name):
    said, released = BY_RELEASED_VALUES[name]
    here = toy(name)
    with programs.as_on("tpu"):
        there = toy(name)
    assert said in there.title and said in statement(there, "row") and said not in here.title
    # Nothing is spent on what is not asked: no gradient is noisier for it, or no record kept.
    assert [query.name for query in there.queries] == released and len(here.queries) == 2
    assert 0.999 < there.epsilon(1e-4) <= 1
    noise, before = (algorithm.queries[0].noise_multiplier for algorithm in (there, here))
    rows, kept = (algorithm.queries[0].sampler.max_batch_size for algorithm in (there, here))
    assert (noise < before and rows == kept) or (
        noise == pytest.approx(before, rel=1e-6) and rows == len(Y) > kept
    )
    for platform in ("tpu", "cuda"):
        found = held(lambda key: dpjax.solve(there, (X, Y), key=key).params, platform)
        assert not found.float64


ASKED_IN_FLOAT64 = {
    "add_or_remove_one": ("dp-gd", {"budget": dpjax.PrivacyBudget(1, 1e-4, "add_or_remove_one")}),
    "scores": ("spider", {"candidates": 2}),
    "selection_epsilon": ("dp-gd-selected", {"selection_epsilon": 0.1}),
}


@pytest.mark.parametrize("asked", ASKED_IN_FLOAT64)
def test_what_is_asked_for_in_float64_is_refused_by_a_tpu_that_names_it(asked):
    name, settings = ASKED_IN_FLOAT64[asked]
    with programs.as_on("tpu"), pytest.raises(ValueError, match=asked):
        held(training(name, **settings), "tpu")


def test_a_device_whose_integers_are_wrong_is_refused_before_anything_is_spent(monkeypatch):
    assert not held(checks._parts, "tpu").float64
    assert checks.checksum() == checks.KNOWN
    monkeypatch.setattr(jax, "default_backend", lambda: "made-up")
    checks._check_one.cache_clear()
    dpjax.solve(toy("dp-gd"), (X, Y), seed=0)
    # Planted: shifts that are wrong by one bit, as of a compiler's fault.
    monkeypatch.setattr(fixed_point, "_shifted", lambda high, low, count: (high << count, low))
    checks._check_one.cache_clear()
    jax.clear_caches()
    with pytest.raises(RuntimeError, match="this made-up does not compute the integers"):
        dpjax.solve(toy("dp-gd"), (X, Y), seed=0)
    jax.clear_caches()
    checks._check_one.cache_clear()


def layers(params, x):
    return jnp.tanh(x @ params["in"]) @ params["out"]


def test_the_gradients_of_a_network_are_held_outside_of_a_cpu():
    params = {"in": jnp.ones((P, 500)), "out": jnp.ones((500, 2))}
    total = clipped_grad(dpjax.objectives.cross_entropy(layers), clip_norm=1.0)

    def summed(key):
        return total(params, (X, Y > 0))

    for platform in ("tpu", "cuda"):
        assert not held(summed, platform).float64
        module = programs.trace(summed, (KEY,)).lower(lowering_platforms=(platform,)).as_text()
        assert f"{500 * (P + 2)}xf32" in module
    # On it they are not: their norms are made in float64, without them.
    assert held(summed, "cpu").float64
    for asked in ({"per_layer": True}, {"method": "book_keeping"}):
        named = clipped_grad(dpjax.objectives.cross_entropy(layers), clip_norm=1.0, **asked)
        assert held(lambda key, named=named: named(params, (X, Y > 0)), "cuda").float64
        with pytest.raises(ValueError, match="networks by book-keeping or layer"):
            held(lambda key, named=named: named(params, (X, Y > 0)), "tpu")
