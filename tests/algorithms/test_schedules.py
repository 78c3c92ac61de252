"""Radius, damping and step size of second-order methods as schedules: functions of the step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from factories import STEPS, toy, toy_records

import dpjax
from dpjax.algorithms import model_queries, trust_region
from dpjax.driver.configuration import configuration
from dpjax.oracles import SecondOrderAnswer

RECORDS = toy_records()
FALLING = optax.exponential_decay(4.0, 1, 0.5)
# Method -> which settings of its factory take a schedule.
SETTINGS = {
    "dp-tr": ("radius", "damping"),
    "dp-str": ("radius", "damping"),
    "dp-subspace-tr": ("radius", "damping"),
    "dp-newton": ("step_size",),
}
CASES = [(name, setting) for name, settings in SETTINGS.items() for setting in settings]
VECTOR = jnp.array([0.0, 0.1, 0.6, 0.8])


def walk(algorithm):
    """Iterates, where every answer is the same: steps differ by their settings alone."""
    size = getattr(algorithm, "subspace_dimension", 4)
    model = SecondOrderAnswer(VECTOR[:size], jnp.diag(VECTOR[:size]))
    answer = VECTOR if algorithm.title.startswith("DP-Newton") else model
    state, iterates = algorithm.init(jnp.zeros(4)), []
    for _ in range(STEPS):
        state, _ = algorithm.step(None, state, lambda *_, **__: answer)
        iterates.append(state.params)
    return np.stack(iterates)


@pytest.mark.parametrize(("name", "setting"), CASES)
def test_a_constant_schedule_is_the_number(name, setting):
    last = {"final_radius": 0.75} if setting == "radius" else {}
    number = toy(name, **{setting: 0.75}, **last)
    constant, falling = (toy(name, **{setting: of}) for of in (lambda step: 0.75, FALLING))
    assert constant.event == falling.event == number.event
    np.testing.assert_array_equal(walk(constant), walk(number))
    assert np.abs(walk(falling) - walk(number)).max() > 1e-3


@pytest.mark.parametrize("name", ["dp-tr", "dp-str", "dp-subspace-tr"])
def test_each_step_has_the_radius_of_its_number(name):
    solution = dpjax.solve(toy(name, radius=FALLING), RECORDS, seed=0)
    wanted = np.float32([FALLING(step) for step in range(STEPS)])
    np.testing.assert_array_equal(solution.history.radius[:STEPS], wanted)


def test_damping_of_each_step_is_its_own():
    damping = optax.linear_schedule(2.0, 0.0, STEPS - 1)
    made = {"dp-tr": toy("dp-tr", damping=damping)}
    made["dp-str"] = toy("dp-str", damping=damping, batch_size=[4, 16])
    scale = model_queries.spectral_scale(made["dp-tr"].queries[0])
    wanted = np.linspace(2, 0, STEPS)
    np.testing.assert_allclose(made["dp-tr"].damping, wanted * scale, rtol=1e-6)
    for queries, values in zip(made["dp-str"].stages, made["dp-str"].damping, strict=True):
        wanted_here = wanted * model_queries.spectral_scale(queries[-1])
        np.testing.assert_allclose(values, wanted_here, rtol=1e-6)
    for algorithm in made.values():
        assert np.isfinite(dpjax.solve(algorithm, RECORDS, seed=0).params).all()


def test_the_stopping_rule_adds_the_damping_of_the_last_step():
    algorithm = toy("dp-tr", damping=lambda step: step / 4.0, stopping_alpha=0.1)
    level = np.float32(algorithm.stop_below)
    state = trust_region.start(jnp.zeros(4))
    assert not algorithm.done(state)  # before the first step nothing can stop it
    for iteration in range(1, STEPS + 1):
        at = np.float32(algorithm.damping[iteration - 1])
        below = state._replace(multiplier=level - at - 1e-3, iteration=jnp.array(iteration))
        assert algorithm.done(below)
        assert not algorithm.done(below._replace(multiplier=level - at + 1e-3))


def test_half_a_newton_step_is_taken_where_the_schedule_says():
    steps = optax.piecewise_constant_schedule(1.0, {2: 0.5})
    algorithm = toy("dp-newton", objective=dpjax.objectives.logistic(), step_size=steps)
    iterates = np.concatenate([np.zeros((1, 4)), walk(algorithm)])
    moves = np.linalg.norm(np.diff(iterates, axis=0), axis=1)
    wanted = [float(steps(step)) for step in range(STEPS)]
    np.testing.assert_allclose(moves, np.sum(VECTOR**2) * np.array(wanted), rtol=1e-5)


def test_a_configuration_has_all_values_of_a_schedule_and_no_code():
    def digest(schedule):
        algorithm = toy("dp-tr", radius=schedule)
        found = configuration(algorithm, RECORDS, jnp.zeros(4))
        assert not found.foreign
        return found.digest

    rebuilt = optax.exponential_decay(4.0, 1, 0.5)
    assert digest(FALLING) == digest(rebuilt) == digest(lambda step: 4.0 * 0.5**step)
    last = jnp.float32(FALLING(STEPS - 1))
    other = digest(lambda step: jnp.where(step == STEPS - 1, last * (1 + 1e-6), FALLING(step)))
    assert other != digest(FALLING)  # planted: of the first value alone, or of the function's name


def test_another_schedule_compiles_nothing_and_may_be_stacked():
    algorithms = [toy("dp-tr", radius=optax.constant_schedule(r)) for r in (1.0, 0.5)]
    same = {jax.tree.structure(algorithm) for algorithm in algorithms}
    assert len(same) == 1
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *algorithms)
    found = jax.vmap(lambda one: dpjax.solve(one, RECORDS, seed=0).history.radius)(stacked)
    np.testing.assert_array_equal(found[:, :STEPS], [[1.0] * STEPS, [0.5] * STEPS])


REFUSED = {
    "two arguments": (lambda step, params: 1.0, "missing 1 required positional argument"),
    "a Python branch": (lambda step: 1.0 if step < 3 else 0.5, "that JAX can trace"),
    "a mean of records": (lambda step: jnp.mean(RECORDS[0]), "holds an array of records"),
    "a record for each step": (lambda step: jnp.asarray(RECORDS[1])[step], "holds an array of"),
    "not positive": (optax.linear_schedule(1.0, -1.0, STEPS), "at step 3 must be"),
    "a vector": (lambda step: jnp.ones(2), r"returns an array of shape \(2,\)"),
    "nothing": (lambda step: None, "must be a number or a schedule"),
    "a callback": (
        lambda step: jax.pure_callback(lambda: np.float32(1), jax.ShapeDtypeStruct((), "float32")),
        "calls Python or C while it runs",
    ),
}


@pytest.mark.parametrize(("name", "setting"), CASES)
@pytest.mark.parametrize(("schedule", "words"), REFUSED.values(), ids=REFUSED)
def test_a_schedule_that_is_none_is_refused(schedule, words, name, setting):
    if setting == "damping" and words.startswith("at step 3"):
        words = "damping at step 4 must be"  # which may be 0
    with pytest.raises(ValueError, match=words) as error:
        toy(name, **{setting: schedule})
    assert str(error.value).startswith(setting)


def test_a_schedule_that_depends_on_traced_data_is_an_error_while_tracing():
    def train(data):
        algorithm = toy("dp-tr", radius=lambda step: jnp.std(data[0]))
        return dpjax.solve(algorithm, data, seed=0).params

    with pytest.raises(ValueError, match="holds an array of records or a traced value"):
        jax.jit(train)(RECORDS)

    def honest(data):
        return dpjax.solve(toy("dp-tr", radius=FALLING), data, seed=0).history.radius

    np.testing.assert_array_equal(
        jax.jit(honest)(RECORDS)[:STEPS], [FALLING(step) for step in range(STEPS)]
    )


def test_a_schedule_has_its_own_end():
    with pytest.raises(ValueError, match="final_radius is for a number as radius"):
        toy("dp-tr", radius=FALLING, final_radius=0.5)
