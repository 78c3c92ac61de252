"""Numbers beyond float32, float64 or any count: refused if public, silent if private."""

import dataclasses
import inspect
import sys
import warnings

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import FACTORIES, make

import dpjax
from dpjax import sampling, transforms
from dpjax.accounting import Event, Release, gaussian_multiplier
from dpjax.algorithms import objective_perturbation, output_perturbation
from dpjax.derivatives import (
    clipped_grad,
    clipped_grad_difference,
    clipped_hessian,
    joint_clipped,
    subspace_clipped,
)
from dpjax.results import guarantee
from dpjax.training import table as training_records

N, P = 40, 3
HUGE = 10**400
BUDGET = dpjax.PrivacyBudget(1.0, 1e-4)
LOGISTIC = dpjax.objectives.logistic_nonconvex()


# A float64 number that float32 does not hold, in one record.


def rows(value):
    x = np.random.default_rng(0).normal(size=(N, P)) / 2
    y = np.where(x[:, 0] > 0, 1.0, -1.0)
    x[3, 1] = value
    return x, y


def squared(w, example):
    return (w @ example[0]) ** 2 / 2


def chain(data):
    optimizer = transforms.clip_and_sum(1.0)
    return optimizer.update(data[0], optimizer.init(jnp.zeros(P)))[0]


def adaptive(data):
    sampler = sampling.full_batch(N)
    optimizer = transforms.adaptive_clip_and_noise(
        1.0, noise_multiplier=1.0, sampler=sampler, key=jax.random.key(1)
    )
    return optimizer.update(data[0], optimizer.init(jnp.zeros(P)))[0]


def trained(train, name="dp-gd", **more):
    algorithm = make(name, data_size=N, dimension=P, steps=3, **more)
    return lambda data: train(algorithm, data, key=jax.random.key(2)).params


WEIGHTS = {"gradient_weight": 1.0, "hessian_weight": 1.0}
READERS = {
    "solve": trained(dpjax.solve),
    "run": trained(dpjax.run),
    "of batches": trained(dpjax.solve, "dp-adam", batch_size=10),
    "Dataset": lambda data: trained(dpjax.solve)(dpjax.Dataset(*data, name="table")),
    "gradient": lambda data: clipped_grad(squared, clip_norm=1.0)(jnp.ones(P), data),
    "closed form": lambda data: clipped_grad(LOGISTIC, clip_norm=1.0)(jnp.ones(P), data),
    "Hessian": lambda data: clipped_hessian(LOGISTIC, clip_norm=1.0)(jnp.ones(P), data),
    "joint": lambda data: joint_clipped(LOGISTIC, **WEIGHTS)(jnp.ones(P), data),
    "subspace": lambda data: subspace_clipped(squared, **WEIGHTS)(
        jnp.ones(P), data, jnp.eye(P)[:2]
    ),
    "difference": lambda data: clipped_grad_difference(LOGISTIC, smoothness=1.0)(
        jnp.ones(P), jnp.zeros(P), data
    ),
    "chain": chain,
    "adaptive": adaptive,
}


@pytest.mark.parametrize("value", [1e39, -1e300])
@pytest.mark.parametrize("name", READERS)
def test_c59_a_float64_number_beyond_float32_is_that_of_a_null_record(name, value):
    """In silence: a warning, or the refusal that a filter makes of it, tells of a record."""
    read = READERS[name]
    with warnings.catch_warnings(), np.errstate(all="warn"):
        warnings.simplefilter("error")
        found = read(rows(value))
    expected = read(rows(np.inf))
    chex.assert_trees_all_equal(found, expected)


# Clip norms whose sums leave float32.


BY_HAND = {
    "clipped_grad": lambda c: clipped_grad(squared, clip_norm=c),
    "clipped_hessian": lambda c: clipped_hessian(squared, clip_norm=c),
    "joint_clipped": lambda c: joint_clipped(squared, **WEIGHTS, clip_norm=c),
    "a weight": lambda c: joint_clipped(squared, gradient_weight=c, hessian_weight=1.0),
    "subspace_clipped": lambda c: subspace_clipped(squared, gradient_weight=1.0, hessian_weight=c),
    "difference": lambda c: clipped_grad_difference(squared, smoothness=1.0, clip_norm=c),
    "clip_and_sum": lambda c: transforms.clip_and_sum(c),
    "noisy_mean": lambda c: transforms.noisy_mean(
        c, noise_multiplier=1.0, sampler=sampling.full_batch(9), key=jax.random.key(0)
    ),
}


@pytest.mark.parametrize("clip_norm", [1e37, 3e38, 1e300])
@pytest.mark.parametrize("name", BY_HAND)
def test_c61_a_clip_norm_whose_sum_overflows_is_refused(name, clip_norm):
    with pytest.raises(ValueError, match=r"(clip_norm|weight) must be at most 1e\+14"):
        BY_HAND[name](clip_norm)
    BY_HAND[name](1e14)


@pytest.mark.parametrize(
    "name",
    [n for n, f in FACTORIES.items() if "clip_norm" in inspect.signature(f).parameters],
)
def test_c61_every_algorithm_refuses_it(name):
    with pytest.raises(ValueError, match=r"clip_norm must be at most 1e\+14"):
        make(name, data_size=N, dimension=P, clip_norm=1e37)


def test_c61_the_largest_clip_norms_stay_finite():
    """The largest weight and clip norm, in a sum of as many rows as there can be."""
    assert float(np.finfo(np.float32).max) > 2.0**31 * 1e14 * 1e14
    total = joint_clipped(squared, gradient_weight=1e14, hessian_weight=1e14, clip_norm=1e14)
    data = jnp.full((N, P), 1e18), jnp.ones(N)
    chex.assert_tree_all_finite(total(jnp.full(P, 1e18), data))


# What objective perturbation says of its tilt.


def test_c66_the_tilt_claims_neither_clipping_nor_a_grid():
    settings = {"data_size": 1000, "dimension": P}
    objective = dpjax.objectives.logistic_l2(1e-2)
    for factory in (objective_perturbation, output_perturbation):
        words = guarantee.statement(factory(objective, BUDGET, **settings), "row").split()
        text = " ".join(words)
        assert "clip" not in text
        enforced = "rows are scaled to norm at most 1; the loss's derivative is truncated at its"
        assert f"{enforced} Lipschitz constant" in text
        tilted = factory is objective_perturbation
        assert ("is not rounded to a grid" in text) == tilted
        assert ("twice the bound on the solver's distance to the exact minimizer" in text) == tilted
    clipped = guarantee.statement(make("dp-gd", **settings), "row")
    assert (
        "Clipped contributions are added in float32" in clipped
        and "not rounded to a grid" not in clipped
    )


# Counts that no machine holds.


NUMBERS = (
    "data_size", "dimension", "steps", "batch_size", "epoch_length", "epochs", "candidates",
    "max_batch_size", "clip_norm", "step_size", "radius", "initial_gap", "alpha",
)  # fmt: skip
SWEEP = [
    (name, parameter)
    for name, factory in FACTORIES.items()
    for parameter in inspect.signature(factory).parameters
    if parameter in NUMBERS
]


@pytest.mark.parametrize(("name", "parameter"), SWEEP)
def test_c67_an_absurd_number_is_a_named_error(name, parameter):
    with pytest.raises(ValueError, match=parameter):
        make(name, **({"data_size": 1000, "dimension": 4} | {parameter: HUGE}))


@pytest.mark.parametrize("count", [2**31, 2**33])
@pytest.mark.parametrize(
    ("name", "parameter"),
    [row for row in SWEEP if row[1] in ("steps", "epochs", "epoch_length")],
)
def test_more_steps_than_32_bits_number_are_refused_early(name, parameter, count):
    """Noise was calibrated for them, with warnings, and ``solve`` then raised OverflowError."""
    with pytest.raises(ValueError, match=rf"{parameter}.*2\^31.* take fewer"):
        make(name, **({"data_size": 1000, "dimension": 4} | {parameter: count}))


def test_epochs_that_double_to_more_steps_than_32_bits_number_are_refused():
    with pytest.raises(ValueError, match=r"epochs=40 have 2\^31 steps or more.* take fewer"):
        make("dp-svrg++", data_size=1000, dimension=2, epochs=40)


def with_multiplier(value):
    return Event((Release("one", 1, value),), "zero_out").gaussian_mu


def total_of_rows(value):
    return clipped_grad(squared, clip_norm=1.0).sensitivity("zero_out", rows=value)


DRAWS = {"expected_batch": 10, "data_size": 100, "budget": BUDGET, "count": 5}
ABSURD = {
    "expected_batch": lambda: sampling.poisson(**(DRAWS | {"expected_batch": HUGE})),
    "data_size": lambda: sampling.poisson(**(DRAWS | {"data_size": HUGE})),
    "data_size must be below": lambda: sampling.poisson(**(DRAWS | {"data_size": 2**31})),
    "count": lambda: sampling.poisson(**(DRAWS | {"count": HUGE})),
    "max_batch_size": lambda: sampling.poisson(**(DRAWS | {"max_batch_size": HUGE})),
    "size": lambda: sampling.without_replacement(HUGE, HUGE + 1),
    "data_size must be at most": lambda: sampling.full_batch(HUGE),
    "count must": lambda: gaussian_multiplier(BUDGET, HUGE),
    "epsilon": lambda: dpjax.PrivacyBudget(HUGE, 1e-5),
    "noise_multiplier": lambda: with_multiplier(HUGE),
    "noise_multiplier must": lambda: with_multiplier(1e-200),
    "noise_multiplier must be": lambda: with_multiplier(1e308),
    "rows": lambda: total_of_rows(HUGE),
    "divisor": lambda: transforms.divide_by(HUGE),
    "steps": lambda: training_records.sizes_of(np.ones((9, 2)), BUDGET, None, 4, None, HUGE),
    "epochs": lambda: training_records.sizes_of(np.ones((9, 2)), BUDGET, None, 4, 1e308, None),
}
# Above or below what float32 holds, in the formulas of a theory.
EXTREME = [
    ("dp-gd", {"initial_gap": 1e308}),
    ("dp-svrg", {"step_size": 1e-308}),
    ("dp-svrg", {"strong_convexity": 1e308}),
    ("dp-svrg", {"strong_convexity": 5e-324}),
    ("dp-svrg++", {"step_size": 5e-324}),
    ("dp-svrg++", {"initial_gap": 1e308}),
    ("dp-accmd", {"smoothness": 1e308}),
    ("spider", {"alpha": 1e-308}),
    ("spider", {"hessian_lipschitz": 5e-324}),
    ("dp-gd-selected", {"step_size": 5e-324}),
    ("spider", {"alpha": 5e-324}),
    ("spider", {"horizon": 10**18}),
]


@pytest.mark.parametrize(("name", "setting"), EXTREME)
def test_c67_a_setting_beyond_float32_is_named(name, setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        make(name, data_size=1000, dimension=4, **setting)


@pytest.mark.parametrize("words", ABSURD)
def test_c67_an_absurd_argument_is_named(words):
    with pytest.raises(ValueError, match=words):
        ABSURD[words]()


def test_c67_the_error_prints_a_number_that_python_would_not():
    digits = sys.get_int_max_str_digits()
    with pytest.raises(ValueError, match=r"data_size must be at most .* bits"):
        sampling.full_batch(10 ** (digits + 1))
    release = Release("one", 1, 1.0)
    assert dataclasses.replace(release, noise_multiplier=1e100).noise_multiplier == 1e100
