"""Models and losses that ``fit`` refuses: those that mix a batch, call Python or hold records."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from test_fit import CLASSES, KEY, RNGS, START, N, P, fitted, linear, records, unspent

import dpjax
from dpjax._program import program_hash
from dpjax.training.network import network

__all__ = ["unspent"]
EXAMPLE = jax.ShapeDtypeStruct((P,), jnp.float32)


class Centre(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x - x.mean(0, keepdims=True)


class Centred(nn.Module):
    """The last layer starts at zero, so that nothing is seen in the outputs of the start."""

    @nn.compact
    def __call__(self, x):
        x = Centre()(nn.Dense(8)(x))
        return nn.Dense(CLASSES, kernel_init=nn.initializers.zeros)(x)


class CentredInside(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(8)(x)
        return nn.Dense(CLASSES)(x - x.mean(0, keepdims=True))


class Attending(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(8)(x)
        return nn.Dense(CLASSES)(nn.MultiHeadDotProductAttention(2)(x, x))


class CentreNnx(nnx.Module):
    def __call__(self, x):
        return x - x.mean(0, keepdims=True)


class CentredNnx(nnx.Module):
    def __init__(self, middle):
        self.first, self.middle = nnx.Linear(P, 8, rngs=RNGS), nnx.List([middle])
        self.last = nnx.Linear(8, CLASSES, rngs=RNGS)

    def __call__(self, x):
        return self.last(self.middle[0](self.first(x)))


class CentredAtTimes(nnx.Module):
    """Its block runs in a transformation, where values of a layer are not seen."""

    def __init__(self):
        self.block, self.last = CentreNnx(), nnx.Linear(P, CLASSES, rngs=RNGS)

    def __call__(self, x):
        x = nnx.cond(x[0, 0] > 9.0, lambda block, x: x, lambda block, x: block(x), self.block, x)
        return self.last(x)


class Grouped(nn.Module):
    """Rows of all examples under each other, a norm and an attention, each within one example."""

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(8)(x.reshape(-1, 1)).reshape(x.shape[0], P, 8)
        x = nn.LayerNorm()(nn.MultiHeadDotProductAttention(2)(x, x))
        return nn.Dense(CLASSES)(nn.GroupNorm(2)(x).reshape(x.shape[0], -1))


@pytest.mark.parametrize(
    ("model", "layer"),
    [
        (Centred(), r"^the layer 'Centre_0' of the model \(a Centre\) mixes"),
        (CentredInside(), r"^the model itself \(a CentredInside\) mixes"),
        (Attending(), "^the layer 'MultiHeadDotProductAttention_0' of the model"),
        (CentredNnx(CentreNnx()), r"^the layer 'middle/0' of the model \(a CentreNnx\) mixes"),
        (CentredAtTimes(), r"^the model itself \(a CentredAtTimes\) mixes"),
    ],
)
def test_c68_a_model_that_mixes_a_batch_names_its_layer(model, layer, unspent):
    with pytest.raises(ValueError, match=layer):
        fitted(model)


def test_c68_a_function_that_mixes_a_batch_is_refused(unspent):
    def centred(params, x):
        return (x - x.mean(0, keepdims=True)) @ params

    with pytest.raises(ValueError, match=r"^the model itself mixes the examples of a batch"):
        fitted(centred, params=START, batched=True)
    assert network(centred, EXAMPLE, START, lambda: KEY)[0].batched is False


@pytest.mark.parametrize("model", [Grouped(), CentredNnx(nnx.LayerNorm(8, rngs=RNGS))])
def test_c68_a_model_that_works_within_one_example_is_taken(model):
    assert network(model, EXAMPLE, None, lambda: KEY)[0].batched
    assert "__call__" not in vars(nnx.List)  # what watched the layers is gone


# Losses that call Python, or hold records.


@pytest.mark.parametrize("where", ["loss", "model"])
@pytest.mark.parametrize("kind", ["debug", "io", "pure"])
def test_c69_a_function_that_calls_python_is_refused(where, kind, unspent):
    seen = []

    def called(value):
        if kind == "debug":
            jax.debug.callback(seen.append, value)
        elif kind == "io":
            jax.experimental.io_callback(seen.append, None, value)
        else:
            value = jax.pure_callback(lambda v: v, jax.typeof(value), value)
        return value

    def loss(o, y):
        return jnp.sum(called(o)) * y

    given = {
        "loss": {"loss": loss},
        "model": {"model": lambda w, x: called(x @ w), "params": START},
    }[where]
    with pytest.raises(ValueError, match="calls Python or C while it runs"):
        fitted(**given)
    assert seen == []


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jax.lax.custom_root(
            lambda y: y**2 - x, x, lambda f, y: y, lambda g, y: y / g(1.0)
        ),
        lambda x: jax.lax.custom_linear_solve(
            lambda y: x * y, x, lambda f, y: y / x, symmetric=True
        ),
        lambda x: jax.lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos),
        lambda x: jax.lax.reduce(x[None], 0.0, jax.lax.add, (0,)),
        lambda x: jax.lax.approx_max_k(x[None], 1)[0][0],
        lambda x: jax.lax.switch(0, [jnp.sin, jnp.cos], x),
        lambda x: jax.random.gamma(jax.random.key(0), x),
        jax.checkpoint(jnp.sin, policy=jax.checkpoint_policies.dots_saveable),
        jax.custom_gradient(lambda x: (x, lambda slope: slope)),
    ],
)
def test_a_rule_or_a_program_inside_is_not_taken_for_python(function):
    program_hash((function, (2.0,)), (jax.grad(function), (2.0,)))


def test_c69_a_loss_that_holds_the_training_rows_is_refused(unspent):
    x, y = records()
    held = jnp.asarray(x)
    functions = {
        "array": {"loss": lambda o, y: jnp.sum(o) + held.mean()},
        "jitted": {"loss": jax.jit(lambda o, y: jnp.sum(o) + held.mean())},
        "model": {"model": lambda w, x: x @ w + jnp.mean(held), "params": START},
        "regularizer": {"regularizer": lambda w: jnp.sum(w**2) * jnp.mean(held)},
    }
    for given in functions.values():
        with pytest.raises(ValueError, match="as many rows as the training data") as error:
            fitted(data=(x, y), **given)
        assert str(N) not in str(error.value)


def test_c69_constants_of_other_sizes_are_taken():
    shift = jnp.ones(CLASSES)
    fitted(loss=lambda o, y: jnp.sum((o - shift) ** 2), steps=1, epochs=None)
    # As many records as parameters in a row: nothing can be told from the number.
    few = tuple(leaf[:CLASSES] for leaf in records())
    fitted(
        data=few, loss=lambda o, y: jnp.sum((o - shift) ** 2), batch_size=2, steps=1, epochs=None
    )


# Words.


def test_params_of_a_wrong_shape_are_named(unspent):
    with pytest.raises(
        ValueError, match=r"with params float32\[5, 3\] for an example float32\[4\]"
    ):
        fitted(linear, params=jnp.zeros((P + 1, CLASSES)))


def test_a_table_of_pandas_is_refused_without_its_rows(unspent):
    pandas = pytest.importorskip("pandas")
    x, y = records()
    table = pandas.DataFrame(x)
    for data in ((table, y), (x, pandas.Series(y))):
        with pytest.raises(ValueError, match=r"holds a (DataFrame|Series)\. .*to_numpy") as error:
            fitted(data=data)
        assert str(x[0, 0])[:5] not in str(error.value)


def test_a_program_hash_sees_what_a_function_reads_anew():
    """JAX keeps the program of a function object; what that reads may have changed."""

    class Scaled:
        factor = 1.0

        def __call__(self, w):
            return self.factor * w

    function = Scaled()
    before = program_hash((function, (1.0,)))
    function.factor = 2.0
    assert program_hash((function, (1.0,))) != before


def test_c69_a_private_number_of_rows_is_not_told():
    held = jnp.zeros((N + 1, 2))
    budget = dpjax.PrivacyBudget(3.0, 1e-3, "add_or_remove_one")
    for rows in (N, N + 1):  # the declared number, and one that the array has
        x, y = (np.resize(leaf, (rows, *leaf.shape[1:])) for leaf in records())
        fitted(data=(x, y), data_size=N, budget=budget, loss=lambda o, y: jnp.sum(o) + held.mean())
