"""Networks of the papers: their sizes, and that every layer sees one image alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from factories import mostly_ci
from jax.flatten_util import ravel_pytree

import dpjax
from dpjax.models import CNN, ResNet20

NETWORKS = {
    "cnn": (CNN(), (28, 28, 1), 26_010),
    "cnn, colours": (CNN(), (32, 32, 3), 37_274),
    "cnn, elu": (CNN(activation="elu"), (28, 28, 1), 26_010),
    "resnet": (ResNet20(), (32, 32, 3), 269_722),
}
each_network = pytest.mark.parametrize("name", NETWORKS)


@functools.cache
def initial(name):
    network, shape, _ = NETWORKS[name]
    return jax.jit(network.init)(jax.random.key(0), jnp.zeros(shape))


def images(shape, count=3):
    return jax.random.normal(jax.random.key(1), (count, *shape))


@pytest.mark.parametrize("name", mostly_ci(NETWORKS, NETWORKS.keys() - {"resnet"}))
def test_a_network_has_parameters_alone_and_gives_ten_logits(name):
    network, shape, size = NETWORKS[name]
    variables = initial(name)
    assert variables.keys() == {"params"}  # no statistics of a batch
    assert sum(leaf.size for leaf in jax.tree.leaves(variables)) == size
    logits = network.apply(variables, images(shape)[0])
    assert logits.shape == (10,) and np.isfinite(logits).all()


@pytest.mark.parametrize("name", mostly_ci(["cnn", "resnet"], ["cnn"]))
def test_the_clipped_sum_is_of_each_image_alone(name):
    """Beside others an image has the gradient it has alone; one without contrast has one too."""
    network, shape, _ = NETWORKS[name]
    params = initial(name)
    objective = dpjax.objectives.cross_entropy(network.apply)
    x = images(shape).at[2].set(0.5)
    y = jnp.array([1.0, 4.0, 7.0])
    total = jax.jit(dpjax.clipped_grad(objective, clip_norm=0.5))(params, (x, y))
    slope = jax.jit(jax.grad(objective.loss))
    expected = 0.0
    for i in range(3):
        row, _ = ravel_pytree(slope(params, (x[i], y[i])))
        assert np.isfinite(row).all()
        expected += np.asarray(row) * min(1.0, 0.5 / np.linalg.norm(row))
    found, _ = ravel_pytree(total)
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_a_normalisation_covers_a_whole_image_and_one_group_of_channels():
    """Over its first axis alone left out, it would normalise each line of the picture."""
    network, shape, _ = NETWORKS["resnet"]
    params = initial("resnet")
    image = images(shape)[0]
    _, kept = network.apply(params, image, capture_intermediates=True, mutable="intermediates")
    kept = kept["intermediates"]
    x, found = kept["Conv_0"]["__call__"][0], kept["GroupNorm_0"]["__call__"][0]
    groups = np.asarray(x, np.float64).reshape(32 * 32, 8, 2)
    centred = groups - groups.mean(axis=(0, 2), keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(axis=(0, 2), keepdims=True) + 1e-6)
    np.testing.assert_allclose(found, expected.reshape(32, 32, 16), atol=1e-4)


def test_a_shortcut_keeps_every_other_pixel():
    """With its convolutions at zero a block hands on what its shortcut keeps."""
    network, shape, _ = NETWORKS["resnet"]
    params = dict(initial("resnet")["params"])
    params = {"params": params | {"_Block_3": jax.tree.map(jnp.zeros_like, params["_Block_3"])}}
    _, kept = network.apply(
        params, images(shape)[0], capture_intermediates=True, mutable="intermediates"
    )
    before, after = (kept["intermediates"][f"_Block_{i}"]["__call__"][0] for i in (2, 3))
    assert before.shape == (32, 32, 16) and after.shape == (16, 16, 32)
    np.testing.assert_allclose(after[..., :16], jax.nn.elu(before[::2, ::2]), atol=1e-6)
    assert not np.any(after[..., 16:])


def test_tanh_is_the_default_and_another_word_is_refused():
    image = images((28, 28))[0]
    params = initial("cnn")
    assert CNN() == CNN("tanh") and hash(CNN()) == hash(CNN("tanh"))
    plain, elu = (network.apply(params, image) for network in (CNN(), CNN("elu")))
    assert not np.allclose(plain, elu)
    with pytest.raises(ValueError, match="did you mean 'elu'"):
        CNN("elus").apply(params, image)


def test_a_batch_of_images_is_no_image():
    data = np.zeros((40, 28, 28), np.float32), np.zeros(40, int)
    how = {"batch_size": 10, "steps": 1, "dry_run": True}
    budget = dpjax.PrivacyBudget(3.0, 1e-3)
    found = dpjax.fit(CNN(), "cross_entropy", data, budget, optax.sgd(0.1), **how)
    assert found.algorithm.dimension == 26_010
    for shape in ((64, 28, 28), (12, 12, 1), (32, 32)):
        with pytest.raises(ValueError, match="sides from 13 up"):
            CNN().init(jax.random.key(0), jnp.zeros(shape))


@pytest.mark.ci
def test_a_network_trains_by_stages():
    network, _, size = NETWORKS["cnn, elu"]
    x = images((28, 28), 40)
    y = (x[:, 0, 0] > 0).astype(jnp.float32)
    x = x.at[:, 5:20, 5:20].add(3 * y[:, None, None] - 1.5)
    params = initial("cnn, elu")
    algorithm = dpjax.dpagem(
        dpjax.objectives.cross_entropy(network.apply),
        dpjax.PrivacyBudget(1000.0, 1e-3),
        data_size=40,
        dimension=size,
        batch_size=40,
        steps=14,
        stages=3,
        step_size=0.2,
        clip_norm=1.0,
    )
    solution = dpjax.solve(algorithm, (x, y), key=jax.random.key(0), params=params)
    logits = jax.vmap(network.apply, (None, 0))(solution.params, x)
    assert np.mean(np.argmax(logits, axis=1) == y) > 0.9
