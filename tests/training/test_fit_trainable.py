"""``fit(trainable=)``: what is not trained stays as it is, and what is published is all of it."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import mostly_ci
from flax import nnx, serialization
from test_fit import CLASSES, KEY, N, P, bits, fitted, records, unspent
from test_fit_saved import (
    EXAMPLE,
    WIDTH,
    Net,
    Tied,
    decided,
    frozen,
    given,
    layers_that_broadcast,
    rngs,
    square,
)

import dpjax
from dpjax.driver import ResumeMismatch
from dpjax.training.network import network

__all__ = ["layers_that_broadcast", "unspent"]
SHORT = {"epochs": None, "steps": 2}


class Mine(nnx.Variable):
    """No ``nnx.Param``, hence trained only where it is asked for."""


class Resting(nnx.Param):
    """A parameter that its author never trains."""


class Scaled(Net):
    def __call__(self, x):
        return super().__call__(x * self.held[...])


class Sharing(nnx.Module):
    """Its last layer has the kernel of its first, as language models share their embedding."""

    def __init__(self):
        self.first, self.last = (nnx.Linear(P, P, rngs=rngs()) for _ in range(2))
        self.last.kernel = self.first.kernel

    def __call__(self, x):
        return self.last(jnp.tanh(self.first(x)))


class Adapted(nnx.Module):
    """A pretrained body in 8 bits, adapters, statistics that are fixed, and a head."""

    def __init__(self):
        table = jnp.arange(-16, 16, dtype=jnp.int8).reshape(P, WIDTH)
        self.body, self.norm = nnx.Param(table), frozen()
        self.lora = nnx.LoRA(P, 2, WIDTH, rngs=rngs())
        self.head = nnx.Linear(WIDTH, CLASSES, rngs=rngs())
        self.eval()

    def __call__(self, x):
        return self.head(jnp.tanh(self.norm(x @ (self.body[...] * 0.1) + self.lora(x))))


class Two(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES, name="head")(nn.tanh(nn.Dense(WIDTH, name="body")(x)))


def of_layers(params, x):
    for kernel in params["body"]:
        x = jnp.tanh(x @ kernel)
    return x @ params["head"] * params["scale"]


def layers():
    body = [
        jnp.asarray(leaf, jnp.float32) for leaf in np.random.default_rng(0).normal(size=(2, P, P))
    ]
    return {"body": body, "head": jnp.eye(P, CLASSES), "scale": jnp.array(2, jnp.int8)}


LORA = {"lora/lora_a", "lora/lora_b"}
HEAD = {"head/bias", "head/kernel"}
PARTS = {
    "adapters by their type": (lambda: Adapted(), nnx.LoRAParam, LORA),
    "a path": (lambda: Adapted(), nnx.PathContains("head"), HEAD),
    "any of several": (lambda: Adapted(), (nnx.LoRAParam, nnx.PathContains("head")), LORA | HEAD),
    "all but a path": (
        lambda: Adapted(),
        nnx.Not(nnx.PathContains("body")),
        {*LORA, *HEAD, "norm/bias", "norm/scale"},
    ),
    "a variable of one's own": (lambda: Scaled(held=Mine(jnp.ones(P))), Mine, {"held"}),
    "all but a type": (
        lambda: Scaled(held=Resting(jnp.ones(P))),
        nnx.Not(Resting),
        {f"{layer}/{name}" for layer in ("first", "last") for name in ("bias", "kernel")},
    ),
    "tied weights": (
        lambda: Tied(),
        lambda path, _: path[0] != "last",
        {"again/bias", "again/kernel"},
    ),
    "a norm that writes what is not trained": (
        lambda: Net(nnx.WeightNorm(square(), rngs=rngs())),
        nnx.PathContains("last"),
        {"last/bias", "last/kernel"},
    ),
    "linen": (lambda: Two(), nnx.PathContains("head"), HEAD),
    "a tree": (lambda: of_layers, lambda path, leaf: path == ("body", 1), {"body/1"}),
}


def named(params):
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


KINDS = ["adapters by their type", "a tree"]


@pytest.mark.parametrize("name", mostly_ci(PARTS, KINDS))
def test_what_is_published_is_what_was_trained_and_what_was_given(name, tmp_path, monkeypatch):
    make, trainable, expected = PARTS[name]
    start = layers() if make() is of_layers else decided(make())[1] if name == "linen" else None
    seen = []
    run = dpjax.training.fit.__globals__["run"]

    def watched(*given, **more):
        solution = run(*given, **more)
        seen.append(solution.params)
        return solution

    monkeypatch.setitem(dpjax.training.fit.__globals__, "run", watched)
    trained = fitted(make(), params=start, trainable=trainable, **SHORT)
    whole = named(
        nnx.to_pure_dict(nnx.state(make(), nnx.Any(nnx.Param, Mine))) if start is None else start
    )
    loop, published = named(seen[0]), named(trained.params)
    assert set(loop) == expected and set(published) == set(whole)
    dpjax.save(tmp_path / "saved", trained)
    saved = named(dpjax.load(tmp_path / "saved").params)
    for path, leaf in published.items():
        assert bits(leaf) == bits(loop.get(path, whole[path])) == bits(saved[path]), path
        assert (bits(leaf) != bits(whole[path])) == (path in expected), path
    x, _ = records()
    np.testing.assert_allclose(trained.model(x[0]), trained.outputs(x)[0], atol=1e-5)
    # A run goes on from the file, which has dictionaries in place of a function's lists.
    again = dpjax.load(tmp_path / "saved").params
    again = serialization.from_state_dict(start, again) if name == "a tree" else again
    net, part = network(make(), EXAMPLE, again, lambda: KEY, trainable=trainable)
    assert bits(net.merged(part)) == bits(trained.params) and len(named(part)) == len(expected)


def test_a_part_is_trained_like_a_model_that_has_no_other():
    body = jnp.asarray(np.random.default_rng(0).normal(size=(P, P)), jnp.float32)
    params = {"body": body, "head": jnp.zeros((P, CLASSES))}
    part = fitted(
        lambda p, x: jnp.tanh(x @ p["body"]) @ p["head"],
        params=params,
        trainable=nnx.PathContains("head"),
        **SHORT,
    )
    whole = fitted(
        lambda p, x: jnp.tanh(x @ body) @ p["head"], params={"head": params["head"]}, **SHORT
    )
    assert bits(part.params["body"]) == bits(body)
    # Keys follow the structure of what is trained, and that is the same.
    assert bits(part.params["head"]) == bits(whole.params["head"])


def test_another_backbone_or_part_does_not_resume(tmp_path):
    params, more = (
        layers(),
        {"trainable": nnx.PathContains("head"), **SHORT, "checkpoint": tmp_path / "run"},
    )
    fitted(of_layers, params=params, **more)
    other = params | {"body": [leaf + 1 for leaf in params["body"]]}
    with pytest.raises(ResumeMismatch):
        fitted(of_layers, params=other, **more)
    with pytest.raises(ResumeMismatch):
        fitted(of_layers, params=params, **more | {"trainable": nnx.PathContains(0)})


class Writing(Net):
    def __call__(self, x):
        self.first.bias[...] += x.sum()
        return super().__call__(x)


REFUSED = {
    "nothing": (lambda: Net(), nnx.PathContains("heads"), "none of the parameters .*first/bias.*"),
    "nothing by type": (lambda: Two(), nnx.LoRAParam, "body/bias, .*filters by type are for nnx"),
    "a name alone": (lambda: Net(), "last", r"none of .*nnx.PathContains\(name\)"),
    "all but nothing": (
        lambda: Net(frozen(), evaluates=True),
        nnx.Not(nnx.PathContains("heads")),
        "all of the parameters .*leave trainable= out",
    ),
    "all but nothing by type": (
        lambda: Two(),
        nnx.Not(Resting),
        "all of the parameters .*filters by type are for nnx",
    ),
    "statistics by path": (
        lambda: Net(frozen(), evaluates=True),
        lambda path, _: path[-1] == "var",
        "none of the parameters",
    ),
    "half of what is tied": (
        lambda: Tied(),
        nnx.PathContains("again"),
        "'again/bias' and 'first/bias' .*tied",
    ),
    "half of a shared kernel": (
        lambda: Sharing(),
        nnx.Not(nnx.PathContains("last")),
        "'first/kernel' and 'last/kernel' .*tied",
    ),
    "integers": (lambda: Adapted(), ..., "floating: 'body' .*int8.*trainable="),
    "what a call writes": (
        lambda: Writing(),
        nnx.PathContains("last"),
        "'first' .*'bias', which a call writes",
    ),
    "a key": (
        lambda: {"model": of_layers, "params": layers() | {"key": jax.random.key(0)}},
        nnx.PathContains("head"),
        "floating: 'key' .*constant of the model",
    ),
    "records beside what is trained": (
        lambda: {
            "model": lambda p, x: x @ p["head"] + p["bank"].mean(),
            "params": {"head": jnp.zeros((P, CLASSES)), "bank": jnp.ones((N, 7))},
        },
        nnx.PathContains("head"),
        "as many rows as the training data",
    ),
    "no filter": (lambda: Net(), 3.5, "trainable must be an nnx filter .*3.5"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_filter_that_does_not_fit_is_refused(name, unspent):
    make, trainable, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        fitted(**given(make()), trainable=trainable)


def test_a_regularizer_of_what_is_not_trained_is_refused(unspent):
    with pytest.raises(ValueError, match=r"regularizer .*None in place of those that are not"):
        fitted(
            of_layers,
            params=layers(),
            trainable=nnx.PathContains("head"),
            regularizer=lambda params: jnp.sum(params["body"][0] ** 2),
        )
