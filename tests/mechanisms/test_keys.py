"""Keys of trainings: none by default, none truncated, none shared by two trainings."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from factories import Crash, in_threads

import dpjax
from dpjax.driver import program, resume
from dpjax.driver.loop import own_key
from dpjax.mechanisms import keys as mechanism_keys
from dpjax.mechanisms import seed_key
from dpjax.oracles import bind

KEY = jax.random.key(7)
TRAIN = pytest.mark.parametrize("train", [dpjax.solve, dpjax.run])


def records(n=40):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, 3)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True), rng.choice(np.float32([-1, 1]), n)


def build(epsilon=1.0, objective=None, **more):
    objective = dpjax.objectives.logistic() if objective is None else objective
    budget = dpjax.PrivacyBudget(epsilon, 1e-4)
    more = {"data_size": 40, "dimension": 3, "steps": 2} | more
    return dpjax.dp_gradient_descent(objective, budget, **more)


def word(key):
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, True, None, "1"])
def test_c4_a_seed_that_would_be_truncated_raises(seed):
    with pytest.raises(ValueError, match="seed must be an integer from 0"):
        seed_key(seed)


def test_c4_seeds_keep_all_their_bits():
    seeds = [0, 1, 2**31, 2**32, 2**32 + 1, 2**63, 2**64 - 1]
    assert len({word(seed_key(seed)) for seed in seeds}) == len(seeds)
    # What jax.random.key keeps of them without x64.
    assert word(jax.random.key(np.uint32(1))) == word(seed_key(1)) != word(seed_key(2**32 + 1))
    assert word(seed_key(np.uint64(2**63))) == word(seed_key(2**63))


def test_c4_random_keys_hold_128_bits_of_entropy():
    keys = [dpjax.random_key() for _ in range(200)]
    words = np.array([word(key) for key in keys])
    assert words.shape[1] == 4
    assert all(len(set(column)) == 200 for column in words.T)
    bits = np.unpackbits(words.astype(np.uint32).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(bits.size)


@TRAIN
def test_c5_there_is_no_default_key(train):
    with pytest.raises(ValueError, match=r"random_key\(\), or "):
        train(build(), records())
    with pytest.raises(ValueError, match="not both"):
        train(build(), records(), key=KEY, seed=1)


@TRAIN
def test_c6_a_seed_is_a_choice_by_name_and_the_solution_says_so(train):
    solution = train(build(), records(), seed=7)
    again = dpjax.solve(build(), records(), seed=7)
    assert np.array_equal(solution.params, again.params)
    assert solution.reproducible and not solution.releasable
    assert solution.guarantee().startswith("NOT FOR RELEASE: reproducible")
    released = train(build(), records(), key=dpjax.random_key())
    assert released.releasable and "NOT FOR RELEASE" not in released.guarantee()


@TRAIN
def test_c6_a_random_key_is_for_one_training(train):
    key = dpjax.random_key()
    with pytest.raises(ValueError, match="rows"):
        train(build(data_size=41), records(), key=key)
    train(build(), records(), key=key)  # what was refused used no key
    for again in (dpjax.solve, dpjax.run):
        with pytest.raises(ValueError, match="has been used by another training"):
            again(build(), records(), key=key)
    first, second = jax.random.split(dpjax.random_key())
    train(build(), records(), key=first)
    train(build(), records(), key=second)


def fold(algorithm=None, key=KEY):
    algorithm = build() if algorithm is None else algorithm
    return word(jax.jit(own_key)(key, algorithm, records(), jnp.zeros(3)))


def test_c6_one_key_for_two_configurations_shares_no_noise():
    shifted = dpjax.Objective(lambda w, e: jnp.sum(w) + e[1], constants=(1.0, 1.0, 1.0))
    other = dpjax.Objective(lambda w, e: jnp.sum(w) + e[0][0], constants=(1.0, 1.0, 1.0))
    folded = [
        fold(),
        fold(build(1.1)),
        fold(build(2.0)),
        fold(build(steps=3)),
        fold(build(step_size=0.25)),
        fold(build(objective=dpjax.objectives.sigmoid_l2())),
        fold(build(objective=shifted, initial_gap=1.0)),
        fold(build(objective=other, initial_gap=1.0)),
        fold(key=jax.random.key(8)),
    ]
    assert len(set(folded)) == len(folded)
    assert fold() == folded[0]


def test_c6_the_attack_on_one_key_for_two_noise_scales_fails():
    """Two trainings with noise s z and t z would give the gradient away by one linear equation."""
    data = records()
    answers = {}
    for epsilon in (1.0, 4.0):
        algorithm = build(epsilon, steps=1, step_size=1.0)
        solution = dpjax.solve(algorithm, data, key=KEY)
        answers[float(algorithm.query.stddev)] = -np.asarray(solution.params, np.float64)
    (s, a), (t, b) = answers.items()
    guess = (t * a - s * b) / (t - s)
    objective = dpjax.objectives.logistic()
    mean = jax.vmap(jax.grad(objective.loss), (None, 0))(jnp.zeros(3), data)
    error = np.abs(guess - np.asarray(mean).mean(0)).max()
    assert error > 0.05 * min(s, t)
    # Planted: the same noise in both, as before keys were folded.
    z = np.random.default_rng(1).standard_normal(3)
    guess = (t * (mean.mean(0) + s * z) - s * (mean.mean(0) + t * z)) / (t - s)
    assert np.abs(guess - mean.mean(0)).max() < 1e-5


def test_c6_a_key_is_folded_alike_in_a_loop_a_batch_and_a_sweep():
    algorithms = [build(1.0), build(2.0)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *algorithms)
    swept = jax.vmap(lambda algorithm: own_key(KEY, algorithm, records(), jnp.zeros(3)))(stacked)
    assert [word(key) for key in swept] == [fold(algorithm) for algorithm in algorithms]
    keys = jax.random.split(KEY, 2)
    batch = jax.vmap(lambda key: own_key(key, algorithms[0], records(), jnp.zeros(3)))(keys)
    assert [word(key) for key in batch] == [fold(key=key) for key in keys]


def test_c4_a_key_of_a_short_seed_is_not_for_release():
    assert dpjax.solve(build(), records(), key=dpjax.random_key()).releasable
    assert not dpjax.solve(build(), records(), key=jax.random.key(3)).releasable
    assert not dpjax.run(build(), records(), key=jax.random.key(3)).releasable


WIDE = jax.random.key(3, impl="threefry4x32")
DERIVED = {
    "folded": jax.random.fold_in(KEY, 1),
    "split": jax.random.split(KEY)[0],
    "legacy": jax.random.PRNGKey(3),
    "128 bits of a seed": WIDE,
    "128 bits, folded": jax.random.fold_in(WIDE, 1),
    "128 bits, split": jax.random.split(WIDE)[1],
}


@pytest.mark.parametrize("key", DERIVED.values(), ids=DERIVED)
@TRAIN
def test_c64_a_key_that_may_come_from_a_seed_is_not_for_release(train, key, monkeypatch):
    monkeypatch.setattr(mechanism_keys, "_CLAIMED", {})  # one key serves several tests here
    solution = train(build(), records(), key=key)
    assert solution.reproducible and not solution.releasable
    assert solution.guarantee().startswith(
        "NOT FOR RELEASE: reproducible noise. Its key comes, or may come, from a seed, and"
    )


def test_c64_a_batch_of_short_keys_is_not_for_release():
    """A traced key cannot be read, but its generator is known."""
    batch = jax.vmap(lambda key: dpjax.solve(build(), records(), key=key))
    assert not batch(jax.random.split(KEY, 2)).releasable
    assert batch(jax.random.split(dpjax.random_key(), 2)).releasable


# A key in the wrong place.

WORDS = (1137562370, 3437641404, 2206785069, 3306660511)
KEYS = {
    "list": list(WORDS),
    "tuple": WORDS[:2],
    "numpy": np.uint32(WORDS),
    "raw": jnp.uint32(WORDS),
    "half": np.int64(WORDS[:2]),
    "text": " ".join(map(str, WORDS)),
    "number": WORDS[0] << 64 | WORDS[1],
    "bytes": np.uint32(WORDS).tobytes(),
    "batch": jax.random.wrap_key_data(jnp.uint32([WORDS]), impl="threefry4x32"),
    "rbg": jax.random.wrap_key_data(jnp.uint32(WORDS), impl="rbg"),
    "typed": jax.random.wrap_key_data(jnp.uint32(WORDS), impl="threefry4x32"),
}
BUDGET = dpjax.PrivacyBudget(1.0, 1e-4)
MISPLACED = {
    "key of solve": lambda key: dpjax.solve(build(), records(), key=key),
    "seed of solve": lambda key: dpjax.solve(build(), records(), seed=key),
    "key of run": lambda key: dpjax.run(build(), records(), key=key),
    "key of a chain": lambda key: dpjax.transforms.add_gaussian_noise(1.0, key),
    "stddev": lambda key: dpjax.transforms.add_gaussian_noise(key, KEY),
    "budget": lambda key: dpjax.dp_trust_region(dpjax.objectives.logistic(), key),
    "sampler": lambda key: dpjax.transforms.noisy_mean(
        1.0, noise_multiplier=1.0, sampler=key, key=KEY
    ),
    "optimizer": lambda key: dpjax.fit(
        lambda w, x: x @ w,
        "cross_entropy",
        (records()[0], np.zeros(40, int)),
        BUDGET,
        key,
        key=KEY,
        batch_size=10,
        steps=2,
        params=jnp.zeros((3, 2)),
    ),
}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("place", MISPLACED)
def test_c62_no_error_prints_the_words_of_a_key(place, kind):
    key = KEYS[kind]
    if kind == "typed" and place.startswith("key"):
        return  # where it belongs
    if kind in ("text", "number") and not place.startswith(("key", "seed")):
        return  # elsewhere numbers and words are shown, for nobody keeps a key as one
    with pytest.raises((ValueError, TypeError)) as error:
        MISPLACED[place](key)
    assert not any(str(word) in str(error.value) for word in (*WORDS, KEYS["number"]))


# Keys of two users at once.


def fit(algorithm, data, key):
    """A training of a function, of the same size."""
    budget = dpjax.PrivacyBudget(1.0, 1e-4)
    x, y = data
    return dpjax.fit(
        lambda w, x: jnp.stack([x @ w, -x @ w]),
        "cross_entropy",
        (x, (y > 0).astype(int)),
        budget,
        optax.sgd(0.1),
        key=key,
        batch_size=10,
        steps=2,
        params=jnp.zeros(3),
    ).solution


@pytest.mark.parametrize(
    ("train", "place", "name"),
    [
        (dpjax.solve, program, "_solve"),
        (dpjax.run, resume.Journal, "begin"),
        (fit, resume.Journal, "begin"),
    ],
    ids=["solve", "run", "fit"],
)
# A toy table: noise drowns its gradients, as a warning then says.
@pytest.mark.filterwarnings("ignore:the noisy gradients cannot be told:RuntimeWarning")
def test_c57_one_key_in_two_threads_trains_once(train, place, name, meeting):
    meeting(place, name)
    key = dpjax.random_key()
    results = in_threads(*[lambda: train(build(), records(), key=key)] * 2)
    refused = [result for result in results if isinstance(result, ValueError)]
    assert len(refused) == 1 and "has been used by another training" in str(refused[0])
    assert sum(isinstance(result, dpjax.Solution) for result in results) == 1


def test_c57_a_thread_that_is_refused_the_key_spends_nothing(tmp_path, meeting):
    meeting(resume.Journal, "begin")
    key, budget = dpjax.random_key(), dpjax.PrivacyBudget(8.0, 1e-4)
    with dpjax.Ledger.create(tmp_path / "ledger", budget) as ledger:
        calls = [lambda: dpjax.run(build(), records(), key=key, ledger=ledger, label="rows")] * 2
        assert sum(isinstance(result, ValueError) for result in in_threads(*calls)) == 1
        assert len(ledger.entries) == 1


def test_c57_a_training_that_did_not_begin_gives_its_key_back(tmp_path, monkeypatch):
    key, small = dpjax.random_key(), dpjax.PrivacyBudget(0.1, 1e-4)
    ledger = dpjax.Ledger.create(tmp_path / "ledger", small)
    with ledger, pytest.raises(ValueError, match="exceed the budget"):
        dpjax.run(build(), records(), key=key, ledger=ledger, label="rows")
    broken = dpjax.Objective(lambda w, e: w @ e[0] + None, constants=(1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="loss of objective"):
        dpjax.solve(build(objective=broken, initial_gap=1.0), records(), key=key)
    with monkeypatch.context() as patch, pytest.raises(TypeError):
        patch.setattr(program, "_solve", lambda *args, **more: None + 1)
        dpjax.solve(build(), records(), key=key)
    dpjax.solve(build(), records(), key=key)
    with pytest.raises(ValueError, match="has been used"):
        dpjax.solve(build(), records(), key=key)


def test_c57_an_interrupted_run_keeps_its_key_for_itself(crash, tmp_path):
    key, folder = dpjax.random_key(), tmp_path / "run"
    crash(0)
    with pytest.raises(Crash):
        dpjax.run(build(), records(), key=key, checkpoint=folder)
    crash(None)
    for train in (dpjax.solve, dpjax.run):
        with pytest.raises(ValueError, match="has been used by another training"):
            train(build(), records(), key=key)
    for _ in range(2):
        assert dpjax.run(build(), records(), checkpoint=folder).releasable


@pytest.mark.parametrize("kind", ["rbg", "unsafe_rbg"])
def test_c8_the_pieces_refuse_other_generators_too(kind):
    key = jax.random.key(0, impl=kind)
    query = build().query
    for call in (
        lambda: dpjax.mechanisms.add_gaussian(key, jnp.zeros(2), 1.0),
        lambda: query.answer(key, bind(query, records()), jnp.zeros(3)),
    ):
        with pytest.raises(ValueError, match="threefry"):
            call()


@pytest.mark.parametrize("impl", ["threefry2x32", "threefry4x32"])
def test_folding_is_that_of_jax_to_the_bit(impl):
    words = np.random.default_rng(0).integers(0, 2**32, (2, 1_000), np.uint64).astype(np.uint32)
    words[:, :4] = [[0, 1, 2**31, 2**32 - 1], [0, 2**32 - 1, 2**31, 1]]
    keys = jax.random.split(jax.random.key(3, impl=impl), 1_000)
    both = jax.jit(jax.vmap(mechanism_keys.fold))(keys, jnp.asarray(words.T))
    again = jax.vmap(jax.random.fold_in)(jax.vmap(jax.random.fold_in)(keys, words[0]), words[1])
    assert bool((both == again).all())
    one = mechanism_keys.fold(keys[0], jnp.asarray(words[:, 0]))
    assert word(one) == word(both[0])


def test_c7_one_random_key_for_the_data_sets_of_a_transformation_is_refused():
    x, y = records()
    key, both = dpjax.random_key(), jnp.stack([x, x])

    def train(x, key=key):
        return dpjax.solve(build(), (x, y), key=key).params

    def fresh(x):
        return train(x, dpjax.random_key())

    for whole in (
        *(lambda f=f: jax.vmap(f)(both) for f in (train, fresh)),
        *(lambda f=f: jax.jit(f)(x) for f in (train, fresh)),
    ):
        with pytest.raises(ValueError, match="Pass the key as an argument"):
            whole()
    keys = jnp.stack([dpjax.random_key(), dpjax.random_key()])
    first, second = jax.vmap(train)(both, keys)
    assert not np.allclose(first, second)
    train(x)  # what was refused used no key


def test_c64_a_forked_process_holds_no_key_for_release():
    key = dpjax.random_key()
    assert not mechanism_keys.guessable(key)
    mechanism_keys._forget()  # as in the child of a fork
    assert mechanism_keys.guessable(key)
    assert not mechanism_keys.guessable(dpjax.random_key())
