"""What a program holds when it is lowered for a GPU or a TPU: no float64, or a refusal."""

import re
import warnings

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import export

import dpjax
from dpjax import mechanisms, transforms
from dpjax.derivatives import (
    clipped_grad,
    clipped_grad_difference,
    clipped_hessian,
    joint_clipped,
)
from dpjax.driver import self_test
from dpjax.driver.guarantee import statement
from dpjax.mechanisms import fixed_point
from tests.factories import EXAMPLES, FACTORIES, P, toy, toy_records

# Those that compute in float64 on exact sums, or draw their noise in it.
IN_FLOAT64 = {
    "dp-gd-selected": "eigenvalues of an exact Hessian",
    "dp-newton": "eigenvalues of an exact Hessian",
    "prgd": "noise in a ball",
    "spider": "scores of exact sums",
    "spider-boost": "scores of exact sums",
    "spider-fixed": "scores of exact sums",
}
KEY = jax.random.key(0)
X, Y = toy_records()
W = jnp.zeros(P)


def lowered(function, platform):
    """The program for a device of this kind; JAX's silent cut of 64-bit integers is an error."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Explicitly requested dtype")
        return export.export(jax.jit(function), platforms=[platform])(KEY).mlir_module()


def has_float64(module):
    return re.search(r"tensor<[^>]*f64>", module) is not None


def holds_none(function, platform):
    module = lowered(function, platform)
    assert not has_float64(module)
    assert "callback" not in module
    # Planted: the search would see one.
    assert has_float64(module + "%0 = stablehlo.add %1, %2 : tensor<4xf64>")
    return module


def reduced_products(module):
    """Products of float32 that a device may make in fewer digits than float32 has."""
    products = [line for line in module.splitlines() if "dot_general" in line and "xf32>" in line]
    return [line for line in products if "HIGHEST" not in line]


def training(name, **more):
    algorithm = toy(name, **more)
    return lambda key: dpjax.solve(algorithm, (X, Y), key=key).params


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
@pytest.mark.parametrize("name", sorted(set(FACTORIES) - set(IN_FLOAT64)))
def test_no_training_holds_float64_or_products_of_fewer_digits(name, platform):
    module = holds_none(training(name), platform)
    # In a subspace the loss is differentiated as it is written, by products of its own.
    assert len(reduced_products(module)) == (2 if name == "dp-subspace-tr" else 0)


@pytest.mark.parametrize("name", sorted(IN_FLOAT64))
def test_what_computes_in_float64_is_refused_by_a_tpu_alone(name):
    with pytest.raises(ValueError, match="needs float64, which a TPU does not have"):
        lowered(training(name), "tpu")
    assert has_float64(lowered(training(name), "cuda"))


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
@pytest.mark.parametrize("name", ["dp-tr", "dp-svrg"])
def test_units_of_several_records_hold_no_float64_outside_of_a_cpu(name, platform, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    objective = dpjax.objectives.OBJECTIVES[EXAMPLES[name].objective]().of_units()
    algorithm = toy(name, objective=objective, data_size=len(Y) // 2)
    units = (X.reshape(-1, 2, P), Y.reshape(-1, 2)), jnp.ones((len(Y) // 2, 2), bool)
    holds_none(lambda key: dpjax.solve(algorithm, units, key=key).params, platform)


# What they take on a TPU instead of exact eigenvalues, and say.
BY_RELEASED_VALUES = {
    "dp-gd-selected": ("(by released gradients)", ["gradient"]),
    "spider": ("(last iterate)", ["estimate"]),
    "spider-boost": ("(last iterate)", ["estimate"]),
    "spider-fixed": ("(last iterate)", ["estimate"]),
}


@pytest.mark.parametrize("name", sorted(BY_RELEASED_VALUES))
def test_a_default_output_needs_no_float64_on_a_tpu_and_says_which_it_is(name, monkeypatch):
    said, released = BY_RELEASED_VALUES[name]
    here = toy(name)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: "tpu")
        there = toy(name)
    assert said in there.title and said in statement(there, "row") and said not in here.title
    # Nothing is spent on what is not asked: no gradient is noisier for it, or no record kept.
    assert [query.name for query in there.queries] == released and len(here.queries) == 2
    assert 0.999 < there.epsilon(1e-4) <= 1
    noise, before = (algorithm.queries[0].noise_multiplier for algorithm in (there, here))
    rows, kept = (algorithm.queries[0].sampler.capacity for algorithm in (there, here))
    assert (noise < before and rows == kept) or (noise == before and rows == len(Y) > kept)
    for platform in ("tpu", "cuda"):
        holds_none(lambda key: dpjax.solve(there, (X, Y), key=key).params, platform)


ASKED_IN_FLOAT64 = {
    "add_or_remove_one": ("dp-gd", {"budget": dpjax.PrivacyBudget(1, 1e-4, "add_or_remove_one")}),
    "an exact anchor": ("dp-svrg", {"anchor": "exact"}),
    "scores": ("spider", {"candidates": 2}),
    "selection_epsilon": ("dp-gd-selected", {"selection_epsilon": 0.1}),
}


@pytest.mark.parametrize("asked", ASKED_IN_FLOAT64)
def test_what_is_asked_for_in_float64_is_refused_by_a_tpu_that_names_it(asked, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    name, settings = ASKED_IN_FLOAT64[asked]
    with pytest.raises(ValueError, match=asked):
        lowered(training(name, **settings), "tpu")


def loss(w, example):
    return jnp.logaddexp(0.0, -example[1] * (example[0] @ w))


def chained(make):
    """One update of a chain, of gradients a record."""

    def update(key):
        chain = make(key)
        return chain.update(X[:, :P], chain.init(W), W)[0]

    return update


BLOCKS = {
    "perturb": lambda key: mechanisms.perturb(key, W, 1.0),
    "symmetric noise": lambda key: mechanisms.add_symmetric_gaussian(key, jnp.eye(P), 1.0),
    "noisy argmax": lambda key: mechanisms.noisy_argmax(key, W, 1.0),
    "tree noise": lambda key: mechanisms.prefix_noise(8, P, "tree").perturb(key, W, 1.0, 3),
    "square-root noise": lambda key: mechanisms.prefix_noise(8, P).perturb(key, W, 1.0, 3),
    "clipped_grad": lambda key: clipped_grad(loss, clip_norm=1.0)(W, (X, Y)),
    "clipped_hessian": lambda key: clipped_hessian(loss, clip_norm=1.0)(W, (X, Y)),
    "joint_clipped": lambda key: joint_clipped(loss, gradient_weight=1.0, hessian_weight=1.0)(
        W, (X, Y)
    ),
    "clipped_grad_difference": lambda key: clipped_grad_difference(loss, smoothness=1.0)(
        W, W + 1, (X, Y)
    ),
    "clip, add up and noise": chained(
        lambda key: optax.chain(
            transforms.clip_and_sum(1.0), transforms.add_gaussian_noise(1.0, key)
        )
    ),
    "adaptive clipping": chained(
        lambda key: transforms.adaptive_clip_and_noise(
            1.0, noise_multiplier=1.0, sampler=dpjax.sampling.full_batch(len(Y)), key=key
        )
    ),
    "a tree's noise": chained(
        lambda key: optax.chain(
            transforms.clip_and_sum(1.0), transforms.add_tree_noise(1.0, key, horizon=8)
        )
    ),
}


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
@pytest.mark.parametrize("name", BLOCKS)
def test_no_building_block_holds_float64(name, platform):
    holds_none(BLOCKS[name], platform)


def test_a_device_whose_integers_are_wrong_is_refused_before_anything_is_spent(monkeypatch):
    holds_none(self_test._parts, "tpu")
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


def test_the_gradients_of_a_network_are_held_outside_of_a_cpu():
    params = {"in": jnp.ones((P, 500)), "out": jnp.ones((500, 2))}
    total = clipped_grad(dpjax.objectives.cross_entropy(layers), clip_norm=1.0)
    for platform in ("tpu", "cuda"):
        module = holds_none(lambda key: total(params, (X, Y > 0)), platform)
        assert f"{500 * (P + 2)}xf32" in module
    # On it they are not: their norms are made in float64, without them.
    assert has_float64(lowered(lambda key: total(params, (X, Y > 0)), "cpu"))
    for asked in ({"per_layer": True}, {"method": "book_keeping"}):
        named = clipped_grad(dpjax.objectives.cross_entropy(layers), clip_norm=1.0, **asked)
        assert has_float64(lowered(lambda key, named=named: named(params, (X, Y > 0)), "cuda"))
        with pytest.raises(ValueError, match="networks by book-keeping or layer"):
            lowered(lambda key, named=named: named(params, (X, Y > 0)), "tpu")
