"""DP-Adam: optax's Adam on the noisy gradient, its rate, and what a batch costs."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from factories import quiet, unit_records

import dpjax

N, P, STEPS = 64, 4, 8
OBJECTIVE = dpjax.objectives.logistic_nonconvex(0.01)
records = functools.partial(unit_records, N, P)


def build(**more):
    budget = more.pop("budget", dpjax.PrivacyBudget(1.0, 1e-4))
    more = {"data_size": N, "dimension": P, "steps": STEPS} | more
    return dpjax.dp_adam(OBJECTIVE, budget, **more)


def by_hand(rates, b1, b2):
    """Adam without noise, one optax transformation a step."""
    data, params = records(), jnp.zeros(P)
    gradient = jax.grad(lambda w: dpjax.diagnostics.exact_objective(OBJECTIVE, w, data))
    whole = optax.scale_by_adam(b1, b2, 1e-8)
    state = whole.init(params)
    for rate in rates:
        direction, state = whole.update(gradient(params), state)
        params = params - rate * direction
    return params


def test_without_noise_it_is_optax_with_a_geometric_rate():
    rates, decays = (0.3, 0.03), (0.8, 0.9)
    algorithm = build(batch_size=N, step_size=rates[0], final_step_size=rates[1])
    rule = dataclasses.replace(algorithm.rule, b1=decays[0], b2=decays[1])
    algorithm = quiet(algorithm, rule=rule)
    found = dpjax.solve(algorithm, records(), key=jax.random.key(0)).params
    np.testing.assert_allclose(found, by_hand(np.geomspace(*rates, STEPS), *decays), atol=1e-4)
    # Another law of the rate is seen.
    assert not np.allclose(found, by_hand(np.linspace(*rates, STEPS), *decays), atol=1e-2)


def test_rates_and_decays_sweep_in_one_program():
    algorithms = [build(step_size=rate, b1=b1) for rate in (0.1, 1.0) for b1 in (0.0, 0.9)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *algorithms)
    many = jax.vmap(lambda one: dpjax.solve(one, records(), key=jax.random.key(1)).params)(stacked)
    assert len({row.tobytes() for row in np.asarray(many)}) == 4
    assert np.isfinite(many).all()


def test_smaller_batches_cost_less_noise_per_step_and_all_records_are_not_drawn():
    drawn, whole = build(batch_size=4), build(batch_size=N)
    (one,), (other,) = drawn.event.releases, whole.event.releases
    assert (one.sampling, other.sampling) == ("poisson", "none")
    assert one.sampling_probability == pytest.approx(4 / N)
    assert one.noise_multiplier < other.noise_multiplier / 4
    assert whole.event.is_gaussian and whole.query.sampler.reads_all


def test_the_shape_of_a_batch_does_not_follow_the_budget():
    """Else an epsilon sweep could not be stacked, and every epsilon would compile anew."""
    shapes = {
        jax.tree.structure(build(budget=dpjax.PrivacyBudget(eps, delta), data_size=10_000))
        for eps in (0.1, 1.0, 8.0)
        for delta in (1e-4, 1e-8)
    }
    assert len(shapes) == 1
