"""SVRG as printed: its exact anchor gradient moves every step, and never leaves the program."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from benchmarks.papers.variants.exact_anchor import ExactAnchorQuery, exact_anchor
from dpjax.accounting import Event, epsilon
from dpjax.derivatives import clipped_grad
from dpjax.driver import progress, resume
from dpjax.objectives import Objective
from dpjax.oracles import Setting, bind
from dpjax.sampling import Poisson

N, P, CLIP = 40, 3, 0.5
BUDGET = dpjax.PrivacyBudget(4.0, 1e-4)
KEY = jax.random.wrap_key_data(np.array([3_141_592_653, 2_718_281_828], np.uint32))


def records():
    """Rows of length 1, labelled by the sign of the first feature."""
    x = np.random.default_rng(0).normal(size=(N, P)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, np.where(x[:, 0] > 0, 1.0, -1.0).astype(np.float32)


@functools.cache
def build(**more):
    more = {"epochs": 3, "epoch_length": 4, "batch_size": 5} | more
    return exact_anchor(
        dpjax.objectives.logistic_l2(0.1), BUDGET, data_size=N, dimension=P, step_size=0.5, **more
    )


def loud(params, example):
    """The gradient of every record is its own, and its sign turns away from the origin."""
    sign = jnp.where(jax.lax.stop_gradient(params[0]) > 0.5, -1.0, 1.0)
    return 1e3 * sign * jnp.vdot(example, params)


def query(relation="zero_out", multiplier=1e-6):
    sampler = Poisson.of(2**61, N / 8, N, N)
    return ExactAnchorQuery(
        setting=Setting(Objective(loud), N, relation, sampler),
        noise_multiplier=multiplier,
        clip_norm=CLIP,
    )


KEYS = jax.random.split(jax.random.key(1), 1024)


@jax.jit
def answers(query, data, params, anchor):
    """One answer for each of ``KEYS``."""
    examples = bind(query, data)
    return jax.vmap(lambda key: query.answer(key, examples, params, anchor=anchor))(KEYS)


AWAY, ORIGIN = jnp.array([1.0, 0, 0]), jnp.zeros(P)
# Planted bugs of the query.
BUGS = {
    "a drawn record's part at the anchor not hidden": {
        "bound": lambda self, *_, **__: self.clip_norm
    },
    "the part of a record that is not drawn not booked": {"undrawn_shift": 0.0},
}


@pytest.mark.parametrize("bug", BUGS)
def test_no_mutant_survives(bug, monkeypatch):
    for name, value in BUGS[bug].items():
        monkeypatch.setattr(ExactAnchorQuery, name, value)
    answers.clear_cache()
    with pytest.raises(AssertionError):
        test_one_record_moves_a_step_by_its_two_bounds("zero_out")
    answers.clear_cache()


@pytest.mark.parametrize("relation", ["zero_out", "add_or_remove_one"])
def test_one_record_moves_a_step_by_its_two_bounds(relation):
    """Planted: no part while it is not drawn, which is nearly always all that it moves."""
    one = query(relation)
    # Of length 1000, so that all are clipped; the last leaves, which shifts no other.
    data = np.repeat(np.eye(P, dtype=np.float32)[:1], N, axis=0)
    without = data * (np.arange(N) < N - 1)[:, None]
    without = without[:-1] if relation == "add_or_remove_one" else without
    moved, at_anchor = (
        np.linalg.norm(
            answers(one, data, point, ORIGIN) - answers(one, without, point, ORIGIN), axis=1
        )
        for point in (AWAY, ORIGIN)
    )
    # Away from the anchor a drawn record moves it by 2 C / B - C / n; at the anchor by C / n.
    idle, drawn, rounding = CLIP / N, 2 * CLIP / (N / 8) - CLIP / N, 1e-4 * CLIP / N
    rounding += 1e-5 * drawn  # what clipping stops short of the bound
    assert np.all(np.minimum(abs(moved - idle), abs(moved - drawn)) < rounding)
    # Each has one chance in 8; more than 5 deviations away with probability 1e-6.
    assert 0.07 < (moved > 2 * idle).mean() < 0.18
    assert np.all(abs(at_anchor - idle) < rounding)
    (release,) = one.event(1).releases
    assert idle <= release.undrawn_shift * release.sensitivity < 1.01 * idle
    assert drawn < release.sensitivity < 1.01 * (drawn + 2 * idle)
    # Planted: no such part claimed, at a lower epsilon.
    claimed = dataclasses.replace(release, undrawn_shift=0.0)
    assert moved.min() > 0.99 * idle
    spent, planted = (
        epsilon(Event((dataclasses.replace(each, noise_multiplier=1.0),), relation), 1e-5, relation)
        for each in (release, claimed)
    )
    assert spent > planted


def test_at_the_anchor_it_is_the_mean_of_all_records():
    """Planted: another anchor."""
    one, data = query(), np.random.default_rng(2).normal(size=(N, P)).astype(np.float32)
    mean = clipped_grad(Objective(loud), clip_norm=CLIP)(ORIGIN, data) / N
    np.testing.assert_allclose(answers(one, data, ORIGIN, ORIGIN)[0], mean, atol=1e-5)
    assert np.abs(answers(one, data, ORIGIN, AWAY)[0] - mean).max() > 1e-3


def test_the_noise_added_is_the_noise_accounted():
    """3072 numbers: 5 deviations are 6.4 %, wrong by chance 1e-6; a fifth less is seen."""
    one = query(multiplier=2.0)
    found = np.std(answers(one, np.zeros((N, P), np.float32), AWAY, ORIGIN))
    (release,) = one.event(1).releases
    assert 0.936 < found / release.stddev < 1.064
    assert not 0.8 * found / release.stddev > 0.936


@functools.cache
def whole():
    return dpjax.run(build(), records(), key=KEY, progress=False)


class Crash(BaseException):
    """As sudden as a kill, as far as one process can be."""


@pytest.mark.parametrize("step", [0, 4, 6])
def test_a_resumed_run_is_the_uninterrupted_one(step, tmp_path, monkeypatch):
    """At an anchor and between two; the checkpoint holds no secret, which is computed again."""
    folder, whole_run = tmp_path / "checkpoint", progress._advance

    def advance(bound, carry, until):
        if int(carry.step) >= step:
            raise Crash
        return whole_run(bound, carry, until)

    monkeypatch.setattr(resume, "SAVE_SECONDS", 0.0)
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(progress, "_advance", advance)
        dpjax.run(build(), records(), key=KEY, progress=False, checkpoint=folder)
    held = [path.read_bytes() for path in folder.iterdir()]
    resumed = dpjax.run(build(), records(), progress=False, checkpoint=folder)
    for one, other in zip(jax.tree.leaves(whole()), jax.tree.leaves(resumed), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
    for word in secret_words(resumed):
        assert not any(word in content for content in held)


def secret_words(solution):
    """The bytes of the exact gradients at the first anchor, as sum and as mean."""
    (one,) = solution.algorithm.queries
    examples = bind(one, records())
    total = one.anchor_sum(examples, jnp.zeros(P))
    found = [np.asarray(term) for term in total.terms[:2]]
    found += [found[0] / np.float32(N), found[0] * np.float32(5 / N)]
    return [entry.tobytes() for leaf in found for entry in np.ravel(leaf) if entry != 0]


def test_the_secret_is_in_nothing_that_leaves(tmp_path):
    """Nor in what one step hands to the next."""
    solution = whole()
    dpjax.save(tmp_path / "model", solution)
    content = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(solution)]
    content += [(tmp_path / "model").read_bytes(), repr(solution).encode()]
    words = secret_words(solution)
    assert len(words) > 6
    assert not any(word in piece for word in words for piece in content)
    bound, carry = progress._start(build(), records(), KEY, jnp.zeros(P))
    carry = progress._advance(bound, carry, 1)
    kept = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(carry)]
    assert not any(word in piece for word in words for piece in kept)
    planted = kept + words[:1]
    assert any(word in piece for word in words for piece in planted)


def test_epochs_that_double_are_made_of_dp_svrg_plus_plus():
    algorithm = exact_anchor(
        dpjax.objectives.logistic(), BUDGET, data_size=N, dimension=P, epochs=2, epoch_length=3,
        batch_size=5, make=dpjax.algorithms.dp_svrg_plus_plus,
    )  # fmt: skip
    assert [release.count for release in algorithm.event.releases] == [18]
    assert 0.99 < epsilon(algorithm.event, BUDGET.delta, "zero_out") / BUDGET.epsilon <= 1.0
    # As the paper counts: two gradients of each record of a batch, and each record at two anchors.
    assert algorithm.evaluations.declared == 18 * 2 * 5 + 2 * N
    keys = jax.random.split(KEY, 2)
    params = jax.vmap(lambda key: dpjax.solve(algorithm, records(), key=key).params)(keys)
    assert jnp.isfinite(params).all()


def test_its_accuracy_is_one_more_release_within_the_budget():
    make = functools.partial(
        exact_anchor, dpjax.objectives.logistic_l2(0.1), data_size=N, dimension=P, epochs=2,
        epoch_length=3, batch_size=5, step_size=0.5,
    )  # fmt: skip
    algorithm = dpjax.with_accuracy(make, BUDGET, epsilon=0.5)
    assert [release.name for release in algorithm.event.releases] == ["anchored", "accuracy"]
    assert 0.8 < epsilon(algorithm.event, BUDGET.delta, "zero_out") / BUDGET.epsilon <= 1.0


def test_the_guarantee_names_the_secret():
    text = whole().guarantee()
    assert "secret state" in text and "exact anchor" in text


@pytest.mark.parametrize(
    ("relation", "more", "words"),
    [
        ("replace_one", {}, "no proven accounting"),
        ("zero_out", {"accountant": "rdp"}, "no bound for accountant='rdp'"),
        ("zero_out", {"batch_size": N}, "needs sampled batches"),
    ],
)
@pytest.mark.parametrize("make", [dpjax.dp_svrg, dpjax.algorithms.dp_svrg_plus_plus])
def test_what_has_no_accounting_is_refused(make, relation, more, words):
    budget = dpjax.PrivacyBudget(1.0, 1e-4, relation)
    with pytest.raises(ValueError, match=words):
        exact_anchor(
            dpjax.objectives.logistic_l2(0.1), budget, data_size=N, dimension=P, make=make,
            **({"epochs": 2, "epoch_length": 3} | more),
        )  # fmt: skip
