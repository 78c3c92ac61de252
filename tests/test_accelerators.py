"""What a program holds when it is lowered for a GPU or a TPU: no float64, or a refusal."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import transforms
from dpjax.cli import main, programs
from dpjax.derivatives import clipped_grad
from dpjax.driver import self_test
from dpjax.mechanisms import fixed_point
from tests.factories import P, toy, toy_records

PROGRAMS = programs.programs()
KEY = jax.random.key(0)
X, Y = toy_records()


def held(function, platform):
    return programs.held(programs.trace(function, (KEY,)), platform)


def training(name, **more):
    algorithm = toy(name, **more)
    return lambda key: dpjax.solve(algorithm, (X, Y), key=key).params


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_every_program_holds(name):
    _, (cuda, tpu), wrong = programs.check(name, PROGRAMS[name]())
    assert wrong == []
    # On a GPU the norms of networks are made in float64, without their gradients.
    assert bool(cuda.float64) == (name in programs.FLOAT64 or name.startswith("fit of"))
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
    return function, (np.ones((4, 4), np.float32),)


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
    refused = programs.check("planted", PROGRAMS["prgd"]())[-1]
    assert refused == ["planted is refused by a TPU"]


def test_the_command_prints_rows_and_fails_where_one_is_wrong(capsys, monkeypatch):
    assert main(["audit", "--programs", "perturb", "add_ball_noise"]) == 0
    printed = capsys.readouterr().out
    assert "| perturb | 0 | 0, 0 | 0, 0 | 0, 0 | - |" in printed and ", refused |" in printed
    assert main(["audit", "--programs", "no-such"]) == 2
    assert main(["audit", "--programs", "--all"]) == 2
    assert main(["audit", "--devices", "dp-gd"]) == 2
    planted = {"planted": lambda: ones(lambda x: x @ x)}
    monkeypatch.setattr(programs, "programs", lambda: planted)
    assert main(["audit", "--programs"]) == 1
    assert "planted multiplies in fewer digits" in capsys.readouterr().out


def test_sums_in_any_order_are_refused_by_a_tpu():
    budget = dpjax.PrivacyBudget(1.0, 1e-4, relation="add_or_remove_one")
    with pytest.raises(ValueError, match="zero_out"):
        held(training("dp-gd", budget=budget), "tpu")


def test_a_device_whose_integers_are_wrong_is_refused_before_anything_is_spent(monkeypatch):
    assert not held(self_test._parts, "tpu").float64
    assert self_test.checksum() == self_test.KNOWN
    monkeypatch.setattr(jax, "default_backend", lambda: "made-up")
    self_test._check_one.cache_clear()
    dpjax.solve(toy("dp-gd"), (X, Y), seed=0)
    # Planted: shifts that are wrong by one bit, as of a compiler's fault.
    monkeypatch.setattr(fixed_point, "_shifted", lambda high, low, count: (high << count, low))
    self_test._check_one.cache_clear()
    jax.clear_caches()
    with pytest.raises(RuntimeError, match="this made-up does not compute the integers"):
        dpjax.solve(toy("dp-gd"), (X, Y), seed=0)
    jax.clear_caches()
    self_test._check_one.cache_clear()


def layers(params, x):
    return jnp.tanh(x @ params["in"]) @ params["out"]


def test_the_gradients_of_a_network_are_held_on_a_tpu():
    params = {"in": jnp.ones((P, 500)), "out": jnp.ones((500, 2))}
    total = clipped_grad(dpjax.objectives.cross_entropy(layers), clip_norm=1.0)

    def summed(key):
        return total(params, (X, Y > 0))

    assert not held(summed, "tpu").float64
    module = programs.trace(summed, (KEY,)).lower(lowering_platforms=("tpu",)).as_text()
    assert f"{500 * (P + 2)}xf32" in module
    # Elsewhere they are not: their norms are made in float64, without them.
    assert held(summed, "cuda").float64
    by_layer = clipped_grad(dpjax.objectives.cross_entropy(layers), clip_norm=1.0, per_layer=True)
    with pytest.raises(ValueError, match="networks by book-keeping or layer"):
        held(lambda key: by_layer(params, (X, Y > 0)), "tpu")
