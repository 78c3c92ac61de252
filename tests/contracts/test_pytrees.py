"""The class of a node is part of a pytree's structure, or one program may stand in for another."""

import dataclasses
import importlib
import pathlib
import pkgutil

import jax
import jax.numpy as jnp
import pytest

import dpjax
from dpjax._typing import confusable, pytree_dataclass, static
from dpjax.auditing import canaries
from dpjax.oracles import GradientQuery, Setting

ROOT = pathlib.Path(dpjax.__file__).parent
MANY = 100


def classes_of_dpjax():
    """Every dataclass that dpjax defines, by its name."""
    found = {}
    for module in pkgutil.walk_packages([str(ROOT)], "dpjax."):
        if module.name != "dpjax.__main__":
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, type) and value.__module__.startswith("dpjax."):
                    found[f"{value.__module__}.{value.__name__}"] = value
    return {name: cls for name, cls in found.items() if dataclasses.is_dataclass(cls)}


CLASSES = classes_of_dpjax()


def structure_of(cls):
    """The structure of an instance with None in every field, made without its checks."""
    node = object.__new__(cls)
    for field in dataclasses.fields(cls):
        object.__setattr__(node, field.name, None)
    return jax.tree.structure(node)


@pytest.mark.parametrize("name", CLASSES)
def test_no_class_of_dpjax_can_be_taken_for_another(name):
    assert confusable(structure_of(CLASSES[name])) == []


def test_the_classes_are_all_found():
    assert {"dpjax.oracles.gradient.GradientQuery", "dpjax.datasets.dataset.Dataset"} <= set(
        CLASSES
    )


def make(number, register):
    own = type(f"Own{number}", (), {"__annotations__": {"x": float}, "number": number})
    return register(own)


def by_jax(cls):
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


def test_each_of_many_classes_of_the_same_fields_runs_its_own_program():
    # By the registration of JAX 0.10.2 one in six ran another's: none of 100 would with 1e-8.
    run = jax.jit(lambda node: node.x * 0 + node.number)
    many = [make(number, pytree_dataclass) for number in range(MANY)]
    assert [int(run(cls(1.0))) for cls in many] == list(range(MANY))
    assert jax.tree.structure(many[0](1.0)) != jax.tree.structure(many[1](1.0))


def test_the_class_that_jax_registers_is_found_wherever_it_is():
    ours, theirs = make(0, pytree_dataclass), make(1, by_jax)
    assert confusable(jax.tree.structure({"a": [ours(theirs(1.0))], "b": ours(2.0)})) == [theirs]
    assert confusable(jax.tree.structure((ours(1.0), None, {"a": 1}))) == []


def test_static_fields_and_children_are_as_declared():
    @pytree_dataclass
    class Node:
        a: float
        b: int = static()
        c: float = 2.0
        d: int = dataclasses.field(init=False, default=7)

    node = Node(1.0, 3)
    assert jax.tree.leaves(node) == [1.0, 2.0]
    assert jax.tree.map(lambda leaf: 2 * leaf, node) == Node(2.0, 3, 4.0)
    assert jax.tree.structure(node) != jax.tree.structure(Node(1.0, 4))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(node)]
    assert paths == [".a", ".c"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        node.a = 2.0  # pyright: ignore


def test_an_algorithm_with_a_class_that_jax_registers_is_refused():
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Careless(GradientQuery):
        pass

    algorithm = dpjax.dp_gradient_descent(
        canaries.LOSSES["alternating"], dpjax.PrivacyBudget(4.0, 1e-5), data_size=2, dimension=2,
        steps=2, step_size=1.0, clip_norm=1e-3, certify=None,
    )  # fmt: skip
    own = algorithm.query
    query = Careless(
        setting=Setting(own.objective, 2, own.relation),
        noise_multiplier=own.noise_multiplier,
        clip_norm=own.clip_norm,
    )
    with pytest.raises(ValueError, match="Careless is registered by jax"):
        dpjax.solve(
            dataclasses.replace(algorithm, query=query), jnp.zeros((2, 1)), key=jax.random.key(0)
        )
