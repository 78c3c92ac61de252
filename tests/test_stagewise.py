"""Stagewise DP-SGD with early momentum: its stages, its steps, its baselines and its output."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import transforms


def plain_stages(first, count):
    """The stage and the position of the first updates, by counting as algorithm 1 does."""
    pairs, stage = [], 0
    while len(pairs) < count:
        pairs += [(stage, position) for position in range(first * 2**stage)]
        stage += 1
    return np.array(pairs[:count])


@pytest.mark.parametrize("first", [1, 2, 3, 7, 100, 4096])
def test_stages_are_exact_at_every_count(first):
    counts = jnp.arange(20_000, dtype=jnp.int32)
    of = jax.jit(transforms.stage_of)
    assert np.array_equal(np.stack(of(counts, first), 1), plain_stages(first, 20_000))
    # The ends of the stages near 2^31, where the logarithm in float32 is off by one.
    last = int(np.log2(2**31 / first))
    for stage in range(last):
        start = first * (2**stage - 1)
        for count, expected in ((start, (stage, 0)), (start - 1, (stage - 1, start - 1))):
            if count >= 0:
                got, position = of(jnp.int32(count), jnp.int32(first))
                assert int(got) == expected[0]
                assert int(position) + first * (2 ** int(got) - 1) == count


def test_stages_of_given_lengths():
    lengths = (2, 5, 1, 4)
    stages = np.repeat(np.arange(4), lengths)
    positions = np.concatenate([np.arange(length) for length in lengths])
    got = jax.jit(lambda c: transforms.stage_of(c, lengths))(jnp.arange(12))
    assert np.array_equal(got[0], stages) and np.array_equal(got[1], positions)
    doubled = jax.vmap(lambda c: jnp.stack(transforms.stage_of(c, (3, 6, 12, 24))))
    assert np.array_equal(doubled(jnp.arange(45)), plain_stages(3, 45))


def plain_chain(gradients, step_size, momentum, lengths, on_steps):
    """Algorithms 1 and 2, line by line, on given gradients; returns all iterates."""
    w, iterates, t = np.zeros(gradients.shape[1]), [], 0
    for stage, (length, on) in enumerate(zip(lengths, on_steps, strict=True)):
        before = w
        for inner in range(1, length + 1):
            rho = momentum if inner <= on else 0.0
            w, before = w - step_size / 2**stage * gradients[t] + rho * (w - before), w
            iterates.append(w)
            t += 1
    return np.array(iterates)


@pytest.mark.parametrize(
    ("first", "on", "lengths", "ons"),
    [
        (3, 2, (3, 6, 12), (2, 4, 8)),
        (3, 3, (3, 6, 12), (3, 6, 12)),
        (5, 0, (5, 10, 6), (0, 0, 0)),
        ((4, 2, 9), (4, 0, 3), (4, 2, 9), (4, 0, 3)),
    ],
)
@pytest.mark.parametrize("wide", [False, True])
def test_a_chain_with_both_is_the_papers_double_loop(first, on, lengths, ons, wide):
    with jax.enable_x64(wide):
        gradients = np.random.default_rng(0).normal(size=(sum(lengths), 4))
        chain = optax.chain(
            optax.scale_by_learning_rate(transforms.stagewise(0.7, first)),
            transforms.early_momentum(0.9, first, on),
        )
        params = jnp.zeros(4)

        def update(carry, gradient):
            params, state = carry
            moves, state = chain.update(gradient, state, params)
            params = optax.apply_updates(params, moves)
            return (params, state), params

        rows = jnp.asarray(gradients, params.dtype)
        _, got = jax.lax.scan(update, (params, chain.init(params)), rows)
        expected = plain_chain(gradients, 0.7, 0.9, lengths, ons)
        assert np.allclose(got, expected, rtol=0, atol=1e-13 if wide else 1e-5)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_powers_of_the_update(power):
    schedule = transforms.inverse_power(0.3, power)
    expected = 0.3 / np.arange(1, 51) ** power
    assert np.allclose(jax.vmap(schedule)(jnp.arange(50)), expected, rtol=1e-6)


def test_momentum_keeps_the_dtype_of_its_state():
    momentum = transforms.early_momentum(0.5, 4, 4)
    state = momentum.init({"w": jnp.zeros(2, jnp.bfloat16)})
    moves, state = momentum.update({"w": jnp.ones(2)}, state)
    moves, state = momentum.update({"w": jnp.ones(2)}, state)
    assert moves["w"].dtype == jnp.float32 and np.allclose(moves["w"], 1.5)
    assert state.previous["w"].dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: transforms.stagewise(0.0, 3), "step_size"),
        (lambda: transforms.stagewise(1.0, 0), "first_steps"),
        (lambda: transforms.stagewise(1.0, ()), "no stage"),
        (lambda: transforms.stagewise(1.0, (3, 0)), r"first_steps\[1\]"),
        (lambda: transforms.inverse_power(1.0, -1.0), "power"),
        (lambda: transforms.early_momentum(-0.1, 3, 2), "momentum"),
        (lambda: transforms.early_momentum(0.9, 3, 4), "first_on_steps=4 must .* 0 to 3"),
        (lambda: transforms.early_momentum(0.9, 3, 1.5), "first_on_steps"),
        (lambda: transforms.early_momentum(0.9, (3, 4), (2, 5)), r"first_on_steps\[1\]=5"),
        (lambda: transforms.early_momentum(0.9, (3, 4), (2,)), "one number for each stage"),
        (lambda: transforms.early_momentum(0.9, (3, 4), 2), "one number for each stage"),
    ],
)
def test_bad_stages_are_refused_by_name(make, words):
    with pytest.raises(ValueError, match=words):
        make()
