"""DP-SVRG as printed: its exact anchor gradient moves every step, and never leaves the program."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import Crash, unit_records

import dpjax
from dpjax import algorithms
from dpjax.accounting import Event, epsilon
from dpjax.derivatives import clipped_grad
from dpjax.driver import loop, progress
from dpjax.objectives import Objective
from dpjax.oracles import AnchoredQuery, Setting, bind
from dpjax.sampling import Poisson

N, P, CLIP = 40, 3, 0.5
BUDGET = dpjax.PrivacyBudget(4.0, 1e-4)
KEY = jax.random.wrap_key_data(np.array([3_141_592_653, 2_718_281_828], np.uint32))
records = functools.partial(unit_records, N, P)


@functools.cache
def build(**more):
    more = {"anchor": "exact", "epochs": 3, "epoch_length": 4, "batch_size": 5} | more
    return algorithms.dp_svrg(
        dpjax.objectives.logistic_l2(0.1), BUDGET, data_size=N, dimension=P, step_size=0.5, **more
    )


def loud(params, example):
    """The gradient of every record is its own, and its sign turns away from the origin."""
    sign = jnp.where(jax.lax.stop_gradient(params[0]) > 0.5, -1.0, 1.0)
    return 1e3 * sign * jnp.vdot(example, params)


def query(relation="zero_out", multiplier=1e-6):
    sampler = Poisson.of(2**61, N / 8, N, N)
    return AnchoredQuery(
        setting=Setting(Objective(loud), N, relation, sampler),
        noise_multiplier=multiplier,
        clip_norm=CLIP,
    )


KEYS = jax.random.split(jax.random.key(1), 1024)


@jax.jit
def answers(query, data, params, anchor, secret_of):
    """One answer for each of ``KEYS``, around the exact sum at ``secret_of``."""
    examples = bind(query, data)
    memory = query.memory(examples, params, anchor=secret_of)
    return jax.vmap(lambda key: query.answer(key, examples, params, anchor=anchor, memory=memory))(
        KEYS
    )


AWAY, ORIGIN = jnp.array([1.0, 0, 0]), jnp.zeros(P)


@pytest.mark.parametrize("relation", ["zero_out", "add_or_remove_one"])
def test_one_record_moves_a_step_by_its_two_bounds(relation):
    """Planted: no part while it is not drawn, which is nearly always all that it moves."""
    one = query(relation)
    # Of length 1000, so that all are clipped; the last leaves, which shifts no other.
    data = np.repeat(np.eye(P, dtype=np.float32)[:1], N, axis=0)
    without = data * (np.arange(N) < N - 1)[:, None]
    without = without[:-1] if relation == "add_or_remove_one" else without
    at = (ORIGIN, ORIGIN)
    moved, at_anchor = (
        np.linalg.norm(
            answers(one, data, point, *at) - answers(one, without, point, *at),
            axis=1,
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
    """Planted: the secret of another anchor."""
    one, data = query(), np.random.default_rng(2).normal(size=(N, P)).astype(np.float32)
    mean = clipped_grad(Objective(loud), clip_norm=CLIP)(ORIGIN, data) / N
    np.testing.assert_allclose(answers(one, data, ORIGIN, ORIGIN, ORIGIN)[0], mean, atol=1e-5)
    assert np.abs(answers(one, data, ORIGIN, ORIGIN, AWAY)[0] - mean).max() > 1e-3


def test_the_noise_added_is_the_noise_accounted():
    """3072 numbers: 5 deviations are 6.4 %, wrong by chance 1e-6; a fifth less is seen."""
    one = query(multiplier=2.0)
    found = np.std(answers(one, np.zeros((N, P), np.float32), AWAY, ORIGIN, ORIGIN))
    (release,) = one.event(1).releases
    assert 0.936 < found / release.stddev < 1.064
    assert not 0.8 * found / release.stddev > 0.936


@functools.cache
def whole():
    return dpjax.run(build(), records(), key=KEY, progress=False)


@pytest.mark.parametrize("step", [0, 4, 6])
def test_a_resumed_run_is_the_uninterrupted_one(step, tmp_path, crash):
    """At an anchor and between two; the checkpoint holds no secret, which is computed again."""
    folder = tmp_path / "checkpoint"
    crash(step)
    with pytest.raises(Crash):
        dpjax.run(build(), records(), key=KEY, progress=False, checkpoint=folder)
    crash(None)
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
    total = one.memory(examples, jnp.zeros(P), anchor=jnp.zeros(P))
    found = [np.asarray(term) for term in total.terms[:2]]
    found += [found[0] / np.float32(N), found[0] * np.float32(5 / N)]
    return [entry.tobytes() for leaf in found for entry in np.ravel(leaf) if entry != 0]


def test_the_secret_is_in_nothing_that_leaves(tmp_path):
    """Planted: a carry written with its secrets."""
    solution = whole()
    dpjax.save(tmp_path / "model", solution)
    content = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(solution)]
    content += [(tmp_path / "model").read_bytes(), repr(solution).encode()]
    words = secret_words(solution)
    assert len(words) > 6
    assert not any(word in piece for word in words for piece in content)
    bound, carry = progress._start(build(), records(), KEY, jnp.zeros(P))
    carry = progress._advance(bound, carry, 1)
    assert bool(carry.secrets.known) and "values" not in repr(carry.secrets)
    planted = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(carry)]
    assert any(word in piece for word in words for piece in planted)
    kept = jax.tree.leaves(carry._replace(secrets=None))
    assert not any(word in np.asarray(leaf).tobytes() for word in words for leaf in kept)


def test_a_secret_is_computed_at_anchors_alone(monkeypatch):
    """Over a batch of runs, too: a branch would compute it at every one of 18 steps."""
    seen = []
    memory = AnchoredQuery.memory

    def counted(self, examples, params, **public):
        jax.debug.callback(lambda: seen.append(1))
        return memory(self, examples, params, **public)

    monkeypatch.setattr(AnchoredQuery, "memory", counted)
    algorithm = algorithms.dp_svrg_plus_plus(
        dpjax.objectives.logistic(), BUDGET, data_size=N, dimension=P, epochs=2, epoch_length=3,
        batch_size=5, anchor="exact",
    )  # fmt: skip
    assert [release.count for release in algorithm.event.releases] == [18]
    assert 0.99 < epsilon(algorithm.event, BUDGET.delta, "zero_out") / BUDGET.epsilon <= 1.0
    keys = jax.random.split(KEY, 2)
    params = jax.vmap(lambda key: dpjax.solve(algorithm, records(), key=key).params)(keys)
    jax.effects_barrier()
    assert jnp.isfinite(params).all()
    assert len(seen) in (2, 4)  # once, or once a run, in each of two epochs


def test_other_algorithms_carry_no_secrets():
    plain = dpjax.dp_gradient_descent(
        dpjax.objectives.logistic(), BUDGET, data_size=N, dimension=P, steps=4
    )
    bound = loop.Bound(plain, bind(plain.queries[0], records()), KEY)
    assert loop.start(bound, jnp.zeros(P)).secrets is None


def test_the_guarantee_names_the_secret():
    text = whole().guarantee()
    assert "secret state" in text and "exact anchor" in text


@pytest.mark.parametrize(
    ("relation", "more", "words"),
    [
        ("replace_one", {}, "no proven accounting"),
        ("zero_out", {"accountant": "rdp"}, "no bound for accountant='rdp'"),
        ("zero_out", {"batch_size": N}, "needs sampled batches"),
        ("zero_out", {"anchor": "secret"}, "anchor"),
    ],
)
def test_what_has_no_accounting_is_refused(relation, more, words):
    budget = dpjax.PrivacyBudget(1.0, 1e-4, relation)
    for factory in (algorithms.dp_svrg, algorithms.dp_svrg_plus_plus):
        with pytest.raises(ValueError, match=words):
            factory(
                dpjax.objectives.logistic_l2(0.1), budget, data_size=N, dimension=P,
                **({"anchor": "exact", "epochs": 2, "epoch_length": 3} | more),
            )  # fmt: skip
