"""``fit(dry_run=True)``: it says what the training does, asks nothing and spends nothing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from factories import mostly_ci

import dpjax
from dpjax.accounting import Ledger
from dpjax.datasets.rows import Rows
from dpjax.derivatives import chunks
from dpjax.derivatives.ghost import bookkeeping

N, P, CLASSES, HIDDEN = 600, 4, 3, 1_000
BUDGET = dpjax.PrivacyBudget(1e3, 1e-4)  # so much that a step is told from noise
SGD = optax.sgd(0.1)
START = {"first": jnp.ones((P, HIDDEN)) / 4, "last": jnp.zeros((HIDDEN, CLASSES))}
DRAWS = {"views": 2, "augment": lambda x, key: x + jax.random.normal(key, x.shape)}
PERSONS = {"groups": np.arange(N) // 3, "max_records": 2, "batch_size": 40}
CASES = {
    "book-keeping": {},
    "a limit": {"memory_limit": 100_000},
    "by layer": {"per_layer": True, "memory_limit": 10**6},
    "few parameters": {"params": jnp.zeros((P, CLASSES))},
    "few parameters, a limit": {"params": jnp.zeros((P, CLASSES)), "memory_limit": 10_000},
    "views": DRAWS,
    "persons": PERSONS,
    "canaries": {"canaries": 20, "memory_limit": 100_000},
    "a factory": {"optimizer": functools.partial(dpjax.dp_adam, step_size=0.1)},
}
DAILY = ["a limit", "few parameters, a limit"]


def network(params, x):
    if not isinstance(params, dict):
        return x @ params
    return jnp.tanh(x @ params["first"]) @ params["last"]


def records():
    x = np.random.default_rng(0).normal(size=(N, P)).astype(np.float32)
    return x, np.argmax(x[:, :CLASSES], axis=1)


def fitted(data=None, budget=BUDGET, **more):
    given = {"batch_size": 200, "steps": 1, "params": START, "optimizer": SGD} | more

    # A loss of its own for each call, so that each is traced.
    def loss(outputs, y):
        return optax.softmax_cross_entropy_with_integer_labels(outputs, y)

    data = records() if data is None else data
    return dpjax.fit(network, loss, data, budget, given.pop("optimizer"), progress=False, **given)


@pytest.mark.parametrize("case", mostly_ci(CASES, daily=DAILY))
def test_a_step_computes_the_pieces_that_were_said(case, monkeypatch):
    found, most = fitted(dry_run=True, **CASES[case]), []

    def noted(whole, n, rows, contribution, *rest):
        def seen(chunk, *more):
            most.append((n, chunk.fresh.shape[0]))
            return contribution(chunk, *more)

        return whole(n, rows, seen, *rest)

    for where, name in ((chunks, "sum_chunks"), (bookkeeping, "sum_blocks")):
        whole = getattr(where, name)
        monkeypatch.setattr(where, name, functools.partial(noted, whole))
    trained = fitted(seed=0, **CASES[case])
    # A program for a CPU is traced beside that for other devices.
    ours = [pair for pair in most if pair[1] == found.records_at_once]
    ((n, rows),) = set(ours)
    assert n == trained.solution.algorithm.queries[0].sampler.max_batch_size
    assert rows * (found.pieces - 1) < n <= rows * found.pieces


def test_the_noise_is_that_of_the_training():
    found, trained = fitted(dry_run=True, steps=3), fitted(seed=0, steps=3)
    (said,), (done,) = found.algorithm.event.releases, trained.solution.event.releases
    # That of the program is float32.
    assert said.noise_multiplier == pytest.approx(done.noise_multiplier, rel=1e-6)
    assert said.count == done.count == 3
    assert "nothing was spent" in repr(found)


def test_a_step_takes_less_memory_in_smaller_pieces():
    wide = {"first": jnp.ones((P, 20_000)), "last": jnp.zeros((20_000, CLASSES))}
    few, many = (fitted(params=wide, dry_run=True, memory_limit=size) for size in (10**6, 10**8))
    assert few.records_at_once < many.records_at_once and few.pieces > many.pieces
    assert few.bytes_of_step < many.bytes_of_step


def unread(rows):
    raise AssertionError("records were read")


@pytest.mark.parametrize("sharded", [False, True])
def test_no_record_is_read_no_key_used_and_no_file_written(sharded, tmp_path):
    data = Rows(np.zeros((N, P), np.float32), unread, (P,)), Rows(np.zeros(N, int), unread, ())
    spread = dpjax.distributed.shard if sharded else dpjax.distributed.stream
    path, key = tmp_path / "ledger", dpjax.random_key()
    Ledger.create(path, dpjax.PrivacyBudget(10.0, 1e-3)).close()
    before = path.read_bytes()
    kept = {"ledger": path, "label": "made up", "checkpoint": tmp_path / "run"}
    small = dpjax.PrivacyBudget(3.0, 1e-4)
    found = fitted(spread(data), small, dry_run=True, key=key, **kept)
    assert found.pieces == 1
    assert path.read_bytes() == before and not (tmp_path / "run").exists()
    # Refused with a key that had been used.
    dpjax.solve(found.algorithm, records(), key=key, params=START)


@pytest.mark.parametrize("n", [N, N + 1])
def test_a_private_number_of_records_changes_nothing(n):
    data = np.zeros((n, P), np.float32), np.zeros(n, int)
    budget = dpjax.PrivacyBudget(3.0, 1e-4, "add_or_remove_one")
    found = fitted(data, budget, dry_run=True, data_size=N, params=jnp.zeros((P, CLASSES)))
    assert repr(found) == repr(
        fitted(records(), budget, dry_run=True, data_size=N, params=jnp.zeros((P, CLASSES)))
    )


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"memory_limit": 100}, "memory_limit=100 bytes is below what one example needs"),
        ({"data": (np.zeros((0, P)), np.zeros(0))}, "at least one record"),
        ({"held_out": (np.zeros((5, P + 1), np.float32), np.zeros(5, int))}, "held_out"),
        ({"data_size": N + 1}, "data_size"),
        ({"ledger": "small"}, "exceed the budget"),
        ({"ledger": "small", "label": None}, "label is required"),
        ({"part": "a part"}, "pass ledger= too"),
        ({"params": jnp.full((P, CLASSES), jnp.nan)}, "must be finite"),
    ],
)
def test_it_is_refused_where_the_training_would_be(more, words, tmp_path):
    if "ledger" in more:
        more = {"label": "made up", **more, "ledger": tmp_path / "ledger"}
        Ledger.create(more["ledger"], dpjax.PrivacyBudget(1.0, 1e-4)).close()
    with pytest.raises(ValueError, match=words):
        fitted(dry_run=True, **more)
