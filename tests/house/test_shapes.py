"""The shapes in public signatures hold: every call of the session is checked, and it can fail."""

import inspect
import os

import jax
import jax.numpy as jnp
import jaxtyping
import pytest
import shapes

from dpjax import derivatives, linalg, mechanisms

KEY = jax.random.key(0)


def functions():
    return [found for found in shapes.public() if not inspect.isclass(found)]


def test_every_public_function_of_arrays_says_their_shapes():
    for found in functions():
        plain = inspect.unwrap(found)
        bare = [
            name
            for name, written in plain.__annotations__.items()
            if "Array" in str(written) and name not in shapes.hints(plain)
        ]
        assert not bare, (plain.__qualname__, bare)


def test_the_session_checks_public_functions_and_methods():
    for found in (
        linalg.trust_region_step,
        mechanisms.add_symmetric_gaussian,
        derivatives.linear.sums.count,
        derivatives.ClippedSum.__call__,
    ):
        assert found.__globals__["__name__"] == shapes.__name__


@pytest.mark.parametrize(
    "call",
    [
        # Each of these broadcasts or reads past its arguments without a word.
        lambda: mechanisms.noisy_argmax(KEY, jnp.zeros((3, 1)), 1.0),
        lambda: mechanisms.add_gaussian(KEY, {"a": jnp.zeros(3)}, jnp.ones(3)),
        lambda: derivatives.clipping.hypot(jnp.ones(3), jnp.ones(1)),
        lambda: derivatives.distance_bound(jnp.ones(2), 1e-3, 0.25, 600, 1000),
        lambda: derivatives.clipped_grad(jnp.dot, clip_norm=jnp.ones(2)),
    ],
)
def test_a_wrong_shape_that_a_function_would_take_is_rejected(call):
    with pytest.raises(jaxtyping.TypeCheckError):
        call()


def test_a_result_of_another_shape_than_written_is_rejected(monkeypatch):
    trust_region = inspect.unwrap(linalg.trust_region_step)
    wrong = linalg.TrustRegionStep(jnp.zeros(3), jnp.zeros(()))
    monkeypatch.setitem(trust_region.__globals__, "_solve", lambda *args: wrong)
    with pytest.raises(jaxtyping.TypeCheckError):
        linalg.trust_region_step(jnp.ones(2), jnp.eye(2), 1.0)


def test_what_a_function_refuses_by_itself_it_refuses_in_its_own_words():
    with pytest.raises(ValueError, match="hessian must have shape"):
        linalg.trust_region_step(jnp.ones(2), jnp.eye(3), 1.0)


def test_no_rank_is_promoted_silently_in_the_session_or_in_a_process_that_it_starts():
    with pytest.raises(ValueError, match="jax_numpy_rank_promotion"):
        jnp.ones((2, 3)) + jnp.ones(3)
    assert os.environ["JAX_NUMPY_RANK_PROMOTION"] == "raise"
