"""The optax face: what is summed, what is added, what is accounted, and that all of it chains."""

import ast
import functools
import math
import pathlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from factories import mostly_ci
from scipy import stats

import dpjax
from dpjax import transforms
from dpjax.accounting import Event, Release, epsilon
from dpjax.auditing import GaussianClaim, estimate
from dpjax.derivatives import rounding
from dpjax.oracles import GradientQuery, Setting
from dpjax.sampling import SinglePass, full_batch, poisson, without_replacement
from dpjax.transforms import aggregate

KEY = jax.random.key(11)
# Each statistical check fails by chance with this probability at most.
LEVEL = 1e-6
BUDGET = dpjax.PrivacyBudget(1.0, 1e-5)
N = 40
SAMPLERS = {
    "all": full_batch(N),
    "poisson": poisson(8, N, budget=BUDGET, count=10),
    "subsets": without_replacement(8, N),
}
PARAMS = {"w": jnp.ones((3, 2)) / 4, "b": jnp.zeros(2), "c": jnp.ones(2) / 3}


def loss(params, x):
    return jnp.sum(jnp.tanh(x @ params["w"] + params["b"]) + (params["c"] * x[:2]) ** 2)


def rows(n=N, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal((n, 3)), jnp.float32)


per_example = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))
clipped_sum = jax.jit(dpjax.clipped_grad(loss, clip_norm=0.5))


def flat(tree):
    return np.concatenate(
        [np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)]
    )


def common(sampler="all", relation="zero_out", key=KEY, noise_multiplier=1.0, **others):
    return {
        "noise_multiplier": noise_multiplier,
        "sampler": SAMPLERS[sampler],
        "relation": relation,
        "key": key,
        **others,
    }


def mean(key, **others):
    return transforms.noisy_mean(0.5, **common(key=key, **others))


STAGES = {"first_steps": 2, "first_on_steps": 1}
MAKERS = {
    "gaussian": lambda key: transforms.add_gaussian_noise(1.0, key),
    "mean": mean,
    "noisy_sgd": lambda key: transforms.noisy_sgd(
        0.1, clip_norm=0.5, momentum=0.9, **common(key=key)
    ),
    "noisy_adam": lambda key: transforms.noisy_adam(0.1, clip_norm=0.5, **common(key=key)),
    "noisy_stagewise_sgd": lambda key: transforms.noisy_stagewise_sgd(
        0.1, clip_norm=0.5, **STAGES, **common(key=key)
    ),
}
OF_RECORDS = {
    "clip": lambda key: transforms.clip_and_sum(0.5),
    "layers": lambda key: transforms.clip_and_sum(0.5, per_layer=True),
    "mean of records": functools.partial(mean, per_example=True),
    "adaptive": lambda key: transforms.adaptive_clip_and_noise(0.5, **common(key=key)),
    "noisy_sgd of records": lambda key: transforms.noisy_sgd(
        optax.cosine_decay_schedule(0.1, 10), clip_norm=0.5, per_example=True, **common(key=key)
    ),
    "noisy_adam by layers": lambda key: transforms.noisy_adam(
        0.1, clip_norm=0.5, per_example=True, per_layer=True, **common(key=key)
    ),
    "noisy_stagewise_sgd of records": lambda key: transforms.noisy_stagewise_sgd(
        0.1, clip_norm=0.5, per_example=True, **STAGES, **common(key=key)
    ),
}
ALL = {**MAKERS, **OF_RECORDS}
HOLDS_KEY = {name: make for name, make in ALL.items() if name not in ("clip", "layers")} | {
    "ball": lambda key: transforms.add_ball_noise(1.0, key),
    "tree": lambda key: transforms.add_tree_noise(1.0, key, horizon=4),
}
# A chain is one training's.


@pytest.mark.parametrize("kind", HOLDS_KEY)
def test_c56_a_chain_is_initialised_once(kind):
    """A second state has the same key and step, so that it repeats the noise of the first."""
    key = dpjax.random_key()
    chain = optax.chain(HOLDS_KEY[kind](key), optax.sgd(0.1))
    chain.init(PARAMS)
    for again in (chain, HOLDS_KEY[kind](key)):
        with pytest.raises(ValueError, match=r"a new dpjax\.random_key\(\) for every training"):
            again.init(PARAMS)
    HOLDS_KEY[kind](dpjax.random_key()).init(PARAMS)


def test_c56_one_noise_twice_in_a_chain_is_refused():
    noise = transforms.add_gaussian_noise(1.0, dpjax.random_key())
    with pytest.raises(ValueError, match="has been used by another training or optimizer chain"):
        optax.chain(noise, optax.sgd(0.1), noise).init(PARAMS)


@pytest.mark.parametrize("kind", HOLDS_KEY)
def test_c56_looking_at_shapes_claims_no_key(kind):
    key = dpjax.random_key()
    chain = HOLDS_KEY[kind](key)
    jax.eval_shape(chain.init, PARAMS)
    jax.eval_shape(lambda: chain.init(PARAMS))
    jax.jit(chain.init).lower(PARAMS)
    assert transforms.checks.holds_noise(chain, PARAMS)
    chain.init(PARAMS)


def test_c56_a_training_and_a_chain_share_no_key():
    algorithm = dpjax.dp_gradient_descent(
        dpjax.objectives.logistic(), BUDGET, data_size=N, dimension=3, steps=1
    )
    first, second = dpjax.random_key(), dpjax.random_key()
    data = (rows(), jnp.ones(N))
    dpjax.solve(algorithm, data, key=first)
    with pytest.raises(ValueError, match="make a chain with a new"):
        mean(first).init(PARAMS)
    mean(second).init(PARAMS)
    with pytest.raises(ValueError, match="or seed=INTEGER"):
        dpjax.solve(algorithm, data, key=second)


def test_c56_a_vmapped_init_is_one():
    """All lanes get the one key, which is read, not traced."""
    chain = mean(dpjax.random_key())
    jax.vmap(chain.init, out_axes=None)(jax.tree.map(lambda leaf: leaf[None], PARAMS))
    with pytest.raises(ValueError, match="has been used"):
        chain.init(PARAMS)


def test_c56_a_key_of_research_can_be_repeated():
    chain = mean(KEY)
    chain.init(PARAMS)
    chain.init(PARAMS)


# Every transformation chains.


def beside_others(kind, key):
    return optax.chain(
        ALL[kind](key),
        optax.clip_by_global_norm(1.0),
        optax.adam(1e-2),
        optax.scale_by_schedule(optax.exponential_decay(1.0, 2, 0.5)),
    )


@pytest.mark.parametrize("kind", mostly_ci(ALL, ["gaussian", "adaptive"]))
def test_it_chains_under_jit_scan_and_vmap_over_keys(kind):
    gradients = per_example(PARAMS, rows())
    if kind in MAKERS:
        gradients = jax.tree.map(lambda leaf: leaf.sum(axis=0) / 10, gradients)

    def train(key):
        optimizer = beside_others(kind, key)

        def step(carry, _):
            updates, state = optimizer.update(gradients, carry[1], carry[0])
            return (optax.apply_updates(carry[0], updates), state), None

        return jax.lax.scan(step, (PARAMS, optimizer.init(PARAMS)), length=3)[0][0]

    keys = jax.random.split(KEY, 3)
    once, many = jax.jit(train)(keys[1]), jax.jit(jax.vmap(train))(keys)
    chex.assert_trees_all_equal_shapes(once, PARAMS)
    found = np.stack([flat(jax.tree.map(lambda leaf, i=i: leaf[i], many)) for i in range(3)])
    np.testing.assert_allclose(found[1], flat(once), rtol=1e-5, atol=1e-5)
    assert np.isfinite(found).all()
    assert np.array_equal(found[0], found[1]) == (kind in ("clip", "layers"))


@pytest.mark.parametrize(
    "kind",
    mostly_ci(
        ["noisy_sgd of records", "noisy_adam by layers", "noisy_stagewise_sgd of records"],
        ["noisy_sgd of records"],
    ),
)
def test_c3_bfloat16_parameters_are_summed_and_perturbed_in_float32(kind):
    start = params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
    gradients = per_example(params, rows())
    chex.assert_trees_all_equal_dtypes(gradients, params)
    optimizer = ALL[kind](KEY)

    def step(carry, _):
        updates, state = optimizer.update(gradients, carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), state), updates

    (params, _), updates = jax.lax.scan(step, (params, optimizer.init(params)), length=3)
    chex.assert_trees_all_equal_dtypes(updates, PARAMS)
    chex.assert_trees_all_equal_shapes_and_dtypes(params, start)


# What is summed.


@jax.jit
def sums(params, x, mask):
    """The same sum by a transformation and by ``clipped_grad``."""
    total = transforms.clip_and_sum(0.7)
    got, _ = total.update(per_example(params, x), total.init(params), params, mask=mask)
    return got, dpjax.clipped_grad(loss, clip_norm=0.7)(params, x, mask)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("n", mostly_ci([1, 300], [300]))
@pytest.mark.parametrize("x64", [False, True])
def test_the_sum_is_that_of_clipped_grad(n, masked, x64):
    mask = jnp.asarray(np.random.default_rng(1).random(n) < 0.5) if masked else None
    with jax.enable_x64(x64):
        dtype = jnp.float64 if x64 else jnp.float32
        params = jax.tree.map(lambda leaf: leaf.astype(dtype), PARAMS)
        got, wanted = sums(params, rows(n).astype(dtype), mask)
    tolerance = 1e-10 if x64 else 1e-5
    np.testing.assert_allclose(flat(got), flat(wanted), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("per_layer", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_c18_a_record_that_is_not_finite_is_a_null_record(bad, per_layer):
    gradients = per_example(PARAMS, rows())
    total = transforms.clip_and_sum(0.7, per_layer=per_layer)
    mask = jnp.arange(N) != 5
    without, _ = total.update(gradients, total.init(PARAMS), PARAMS, mask=mask)
    gradients["b"] = gradients["b"].at[5, 1].set(bad)
    with_it, _ = total.update(gradients, total.init(PARAMS), PARAMS)
    moved = np.abs(flat(with_it) - flat(without)).max()
    # A number that is there is clipped; one that is not takes its record along, every layer of it.
    assert moved <= 0.7 if np.isfinite(bad) else moved == 0


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("norms", [0.7, {"w": 0.1, "b": 0.7, "c": 1.0}], ids=["equal", "given"])
def test_c25_layers_are_clipped_to_a_joint_norm_not_to_the_sum_of_theirs(norms, scale):
    total = transforms.clip_and_sum(norms, per_layer=True)
    bounds = jax.tree.map(lambda _: 0.7 / 3**0.5, PARAMS) if norms == 0.7 else norms
    joint = 0.7 if norms == 0.7 else math.sqrt(0.1**2 + 0.7**2 + 1.0**2)
    assert total.sensitivity("zero_out", rows=1) == pytest.approx(joint, rel=3e-3)
    assert total.sensitivity("replace_one", rows=1) == pytest.approx(2 * joint, rel=3e-3)
    one = jax.tree.map(lambda leaf: scale * leaf[:1], per_example(PARAMS, rows()))
    clipped, _ = total.update(one, total.init(PARAMS), PARAMS)
    for name, bound in bounds.items():
        expected = flat(one[name]) / max(1, np.linalg.norm(flat(one[name])) / bound)
        np.testing.assert_allclose(flat(clipped[name]), expected, rtol=1e-5, atol=1e-18)
        assert np.linalg.norm(flat(clipped[name])) <= bound
    assert np.linalg.norm(flat(clipped)) <= joint
    if scale == 1e12:
        assert np.linalg.norm(flat(clipped)) > 0.999 * joint


@pytest.mark.parametrize("permutation_invariant", [False, True])
@pytest.mark.parametrize("relation", ["zero_out", "add_or_remove_one", "replace_one"])
def test_no_record_moves_the_sum_by_more_than_its_sensitivity(relation, permutation_invariant):
    """Records that all point one way, of a norm that float32 cannot hold: rounding at its worst."""
    n, total = 1000, transforms.clip_and_sum(1 / 3, permutation_invariant=permutation_invariant)
    gradients = jnp.tile(jnp.float32([[1e3, 2e3, -3e3]]), (n, 1))
    base = jnp.ones(n, bool)
    if relation == "replace_one":
        neighbour, mask = gradients.at[3].multiply(-1), base
    elif relation == "zero_out":
        neighbour, mask = gradients, base.at[3].set(False)
    else:
        neighbour, mask = gradients[1:], base[1:]
    summed = [flat(total.update(g, optax.EmptyState(), mask=m)[0])
              for g, m in ((gradients, base), (neighbour, mask))]  # fmt: skip
    moved = np.linalg.norm(summed[0] - summed[1])
    bound = total.sensitivity(relation, rows=n)
    exact = (2 if relation == "replace_one" else 1) / 3
    assert 0.999 * exact < moved <= bound < 1.02 * exact


# What is accounted.


def calls(name):
    """Where a function or method of this name is called in the room, by file and function."""
    found = []
    for path in pathlib.Path(transforms.__file__).parent.glob("*.py"):
        for function in ast.parse(path.read_text()).body:
            for node in ast.walk(function):
                called = isinstance(node, ast.Call) and node.func
                if name in (getattr(called, "attr", None), getattr(called, "id", None)):
                    found.append((path.name, getattr(function, "name", None)))
    return found


def test_noise_is_added_and_an_event_built_in_one_function_of_the_room():
    assert calls("add_tree") == [("noise.py", "add_noise")]
    assert calls("Event") == [("noise.py", "event_of")]
    assert {name for name, _ in calls("released")} == {"noise.py"}
    others = ("perturb", "add_gaussian", "add_ball", "normal", "bits", "Release", "release")
    assert not [name for name in others if calls(name)]


def query(sampler, relation, noise_multiplier):
    objective = dpjax.Objective(loss)
    return GradientQuery(
        setting=Setting(objective, N, relation, SAMPLERS[sampler]),
        noise_multiplier=noise_multiplier,
        clip_norm=0.5,
    )


PAIRS = [
    ("all", "zero_out"),
    ("all", "add_or_remove_one"),
    ("all", "replace_one"),
    ("poisson", "zero_out"),
    ("poisson", "add_or_remove_one"),
    ("poisson", "replace_one"),
    ("subsets", "replace_one"),
]


@pytest.mark.parametrize("of_records", [False, True])
@pytest.mark.parametrize(("sampler", "relation"), PAIRS)
def test_the_event_is_that_of_the_matching_query(sampler, relation, of_records):
    multiplier = 1.2345
    settings = common(sampler, relation, noise_multiplier=multiplier, per_example=of_records)
    optimizer = transforms.noisy_sgd(0.1, clip_norm=0.5, **settings)
    asked = query(sampler, relation, multiplier)
    (ours,), (theirs,) = optimizer.event(10).releases, asked.event(10).releases
    for field in ("name", "count", "noise_multiplier", "sampling", "sampling_probability",
                  "max_batch_size", "data_size", "failure_probability", "mechanism"):  # fmt: skip
        assert getattr(ours, field, None) == getattr(theirs, field, None), field
    # Our sum passes through float32; the query's does not, and is charged for more rows.
    assert theirs.sensitivity <= 1.00002 * ours.sensitivity
    assert ours.sensitivity <= 1.003 * theirs.sensitivity
    assert ours.components[0][0] == "gradient"
    assert ours.components[0][1] == pytest.approx(ours.stddev)
    spent = [
        epsilon(event, 1e-5, relation)
        for event in (optimizer.event(10, dimension=asked.noise_draws), asked.event(10))
    ]
    assert spent[0] == spent[1]
    with pytest.raises(ValueError, match="built for relation"):
        epsilon(optimizer.event(10), 1e-5, {"zero_out": "replace_one"}.get(relation, "zero_out"))


@pytest.mark.parametrize(("sampler", "relation"), PAIRS)
def test_noise_alone_is_accounted_as_in_the_mean(sampler, relation):
    whole = transforms.noisy_mean(0.5, **common(sampler, relation, noise_multiplier=1.5))
    (release,) = whole.event(7).releases
    moved = 2 if relation == "replace_one" else 1
    drawn = SAMPLERS[sampler]
    per_release = release.sensitivity / (moved if sampler == "all" else 1)
    noise = transforms.add_gaussian_noise(release.stddev, KEY)
    event = noise.event(7, sensitivity=moved * per_release, relation=relation, sampler=drawn)
    assert event.releases[0].noise_multiplier == pytest.approx(1.5)
    assert event.releases[0].sensitivity == pytest.approx(release.sensitivity)
    assert event.releases[0].sampling == release.sampling
    if sampler == "all":
        alone = noise.event(7, sensitivity=moved * per_release, relation=relation)
        assert alone.gaussian_mu == pytest.approx(event.gaussian_mu)


@pytest.mark.parametrize("kind", ["mean", "noisy_sgd", "noisy_adam", "noisy_stagewise_sgd"])
def test_the_calibrated_multiplier_meets_the_budget(kind):
    sampler = SAMPLERS["poisson"]
    multiplier = dpjax.accounting.gaussian_multiplier(BUDGET, 10, sampler=sampler)
    settings = common("poisson", noise_multiplier=multiplier)
    maker = {
        "mean": lambda: transforms.noisy_mean(0.5, **settings),
        "noisy_sgd": lambda: transforms.noisy_sgd(0.1, clip_norm=0.5, **settings),
        "noisy_adam": lambda: transforms.noisy_adam(0.1, clip_norm=0.5, **settings),
        "noisy_stagewise_sgd": lambda: transforms.noisy_stagewise_sgd(
            0.1, clip_norm=0.5, **STAGES, **settings
        ),
    }[kind]
    assert 0.99 < epsilon(maker().event(10), BUDGET.delta, BUDGET.relation) <= 1


# What is added.


@functools.partial(jax.jit, static_argnames=("kind",))
def noise_of(kind, key):
    """(steps, entries) of what a transformation adds to zeros, and its shapes."""
    optimizer = ALL[kind](key)
    zeros = jax.tree.map(jnp.zeros_like, PARAMS)

    def step(state, _):
        updates, state = optimizer.update(zeros, state, PARAMS)
        return state, updates

    return jax.lax.scan(step, optimizer.init(PARAMS), length=2_000)[1]


@pytest.mark.parametrize("kind", ["gaussian", "mean"])
def test_the_noise_is_as_loud_as_the_event_says(kind):
    """20,000 draws: 5 % are 10 standard errors."""
    drawn = flat(noise_of(kind, KEY))
    stddev = 1.0 if kind == "gaussian" else ALL[kind](KEY).event(1).releases[0].stddev
    low, high = np.sqrt(stats.chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], drawn.size) / drawn.size)
    assert low < drawn.std() / stddev < high
    assert not low < 0.95 * drawn.std() / stddev < high


def shared_noise(key):
    """The planted bug: one key for every leaf."""

    def update(updates, state, params=None):
        own = jax.random.fold_in(key, state)
        noisy = jax.tree.map(lambda leaf: dpjax.mechanisms.perturb(own, leaf, 1.0), updates)
        return noisy, state + 1

    return optax.GradientTransformation(lambda params: jnp.zeros((), jnp.int32), update)


def repeated_noise(key):
    """The planted bug: one key for every step."""

    def update(updates, state, params=None):
        return dpjax.mechanisms.add_gaussian(key, updates, 1.0), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def independent(make):
    """Whether leaves of one shape, and consecutive steps, get noise of their own."""
    optimizer = make(KEY)
    zeros, state, found = jax.tree.map(jnp.zeros_like, PARAMS), optimizer.init(PARAMS), []
    update = jax.jit(optimizer.update)
    for _ in range(3):
        updates, state = update(zeros, state)
        found.append(updates)
    leaves = [np.asarray(leaf).ravel().tolist() for one in found for leaf in jax.tree.leaves(one)]
    drawn = [number for leaf in leaves for number in leaf]
    return len(set(drawn)) == len(drawn)


def test_c6_leaves_and_steps_get_noise_of_their_own():
    assert independent(MAKERS["gaussian"]) and independent(MAKERS["mean"])
    assert not independent(shared_noise) and not independent(repeated_noise)
    np.testing.assert_array_equal(flat(noise_of("mean", KEY)), flat(noise_of("mean", KEY)))
    other = noise_of("mean", jax.random.key(12))
    assert not np.array_equal(flat(noise_of("mean", KEY)), flat(other))


def test_the_gradient_that_leaves_is_the_mean_over_the_expected_batch():
    sampler = SAMPLERS["poisson"]
    batch = jax.jit(lambda key: sampler.sample(key, N))(KEY)
    x = rows()[batch.indices]
    settings = common("poisson", noise_multiplier=1e-7)
    wanted = clipped_sum(PARAMS, x, batch.mask)
    for of_records in (False, True):
        whole = transforms.noisy_mean(0.5, per_example=of_records, **settings)
        state, update = whole.init(PARAMS), jax.jit(whole.update)
        if of_records:
            got, _ = update(per_example(PARAMS, x), state, PARAMS, mask=batch.mask)
        else:
            got, _ = update(wanted, state, PARAMS)
        np.testing.assert_allclose(flat(got), flat(wanted) / 8, rtol=1e-4, atol=1e-6)


def test_noisy_stagewise_sgd_is_the_papers_loop():
    """Algorithms 1 and 2 in plain NumPy, at hardly any noise."""
    x, total = rows(), clipped_sum
    optimizer = transforms.noisy_stagewise_sgd(
        0.8, momentum=0.9, clip_norm=0.5, first_steps=3, first_on_steps=2,
        **common(noise_multiplier=1e-7),
    )  # fmt: skip
    params, state = PARAMS, optimizer.init(PARAMS)
    plain, taken = jax.tree.map(np.asarray, PARAMS), 0
    move = jax.jit(optimizer.update)
    for stage in range(3):
        before = plain
        for t in range(3 * 2**stage):
            gradient = jax.tree.map(lambda leaf: np.asarray(leaf) / N, total(plain, x))
            rho = 0.9 if t < 2 * 2**stage else 0.0
            after = jax.tree.map(
                lambda w, g, old, rho=rho, k=stage: w - 0.8 / 2**k * g + rho * (w - old),
                plain, gradient, before,
            )  # fmt: skip
            before, plain = plain, after
            updates, state = move(total(params, x), state, params)
            params = optax.apply_updates(params, updates)
            taken += 1
            np.testing.assert_allclose(flat(params), flat(plain), rtol=1e-3, atol=1e-4)
    assert taken == 21


# Public divisors.


def realised(batch):
    """The planted bug: a mean over the records that were drawn."""
    return optax.stateless_with_tree_map(lambda update, _: update / batch.sum())


def moved_by_one_record(make_divide):
    """How far the mean of 8 equal gradients moves where one of them leaves, one time in 8."""
    total, moved = transforms.clip_and_sum(1.0), []
    gradients = jnp.float32([[1.0, 0.0]] * 7 + [[-1.0, 0.0]])
    for mask in (jnp.ones(8, bool), jnp.arange(8) < 7):
        chain = optax.chain(total, make_divide(mask))
        moved.append(flat(chain.update(gradients, chain.init(jnp.zeros(2)), mask=mask)[0]))
    return np.linalg.norm(moved[0] - moved[1])


def test_c39_a_mean_over_the_realised_batch_is_no_clipped_sum():
    bound = transforms.clip_and_sum(1.0).sensitivity("zero_out", rows=8) / 8
    assert moved_by_one_record(lambda mask: transforms.divide_by(8.0)) <= bound
    assert moved_by_one_record(realised) > 1.9 * bound


@pytest.mark.parametrize(
    ("divisor", "message"),
    [
        (0, "above 0"),
        (-1.0, "above 0"),
        (math.inf, "finite"),
        (math.nan, "finite"),
        (None, "must be a number"),
        (jnp.float32(8), "public number declared beforehand"),
        (np.array(8), "public number declared beforehand"),
    ],
)
def test_a_divisor_is_a_public_number(divisor, message):
    with pytest.raises(ValueError, match=message):
        transforms.divide_by(divisor)


def test_c39_a_traced_batch_size_is_refused_and_says_why():
    def step(gradient, mask):
        divide = transforms.divide_by(mask.sum())
        return divide.update(gradient, divide.init(gradient))[0]

    with pytest.raises(ValueError, match=r"changes with a record.*sampler\.expected"):
        jax.jit(step)(jnp.ones(2), jnp.ones(8, bool))


# Adaptive clipping.


def adaptive(key=KEY, **others):
    settings = {"count_stddev": 0.6, "rate": 1.0, **others}
    size = settings.pop("size", 1)
    return transforms.adaptive_clip_and_noise(
        1.0, **{"noise_multiplier": 1.0, "sampler": full_batch(size), "key": key, **settings}
    )


@pytest.mark.parametrize(("multiplier", "count"), [(1.0, 0.6), (1.0, 12.8), (0.4, 0.21), (5.0, 50)])
@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_the_joint_vector_moves_as_far_as_one_gaussian_of_that_multiplier(
    relation, multiplier, count
):
    """Worst cases on the transformation's own sums: what each record does to (gradient, count)."""
    own = transforms.gradient_multiplier(multiplier, count)
    assert 1 / own**2 + 1 / (2 * count) ** 2 == pytest.approx(1 / multiplier**2)
    clip = 0.3
    lengths = [0.0, 0.1, clip * (1 - 1e-5), clip, clip * (1 + 1e-5), 1.0, 1e30]
    ways = np.float32([[1, 0], [-1, 0], [0, 1], [0.6, -0.8]])
    records = [np.float32(length) * way for length in lengths for way in ways]
    records += list(np.float32([[np.nan, 1], [np.inf, 0]]))
    others = jnp.float32([[0.1, 0.2], [3.0, -1.0]])

    def vector(record):
        gradients = jnp.concatenate([others, jnp.zeros((1, 2)) if record is None else record[None]])
        mask = jnp.array([True, True, record is not None])
        total, balance = aggregate.clipped_sum(gradients, (clip,), mask)
        return np.append(np.asarray(total, np.float64) / (own * clip), balance / 2 / count)

    null = vector(None)
    vectors = np.stack([vector(record) for record in records])
    ends = vectors if relation == "replace_one" else null[None]
    moved = np.linalg.norm(vectors[:, None] - ends[None], axis=-1).max()
    bound = (2 if relation == "replace_one" else 1) / multiplier
    assert 0.9999 * bound < moved <= bound * (1 + rounding.sum_rounding_error(3, relation))


def attacked(make, runs=100_000):
    """Scores of the best attacker on one step, with and without one record at the clip norm."""
    count = 0.6
    record = jnp.full((1, 1), 1 - 1e-5)  # within the clip norm, as far as its slack
    own = transforms.gradient_multiplier(make.keywords["noise_multiplier"], count)

    def score(mask, key):
        chain = make(key)
        total, state = chain.update(record, chain.init(jnp.zeros(1)), mask=mask)
        fraction = 0.5 - jnp.log(state.clip_norm)
        return total[0] / own**2 + (fraction - 0.5) / 2 / count**2

    keys = jax.random.split(KEY, 2 * runs)
    scores = jax.jit(jax.vmap(score, (None, 0)))
    return [np.asarray(scores(jnp.array([there]), keys[there::2])) for there in (False, True)]


@pytest.mark.ci
def test_the_count_is_part_of_the_guarantee_and_an_audit_finds_where_it_is_not():
    """Planted: gradient noise as for the whole budget, beside a count that nobody accounts."""
    honest = functools.partial(adaptive, noise_multiplier=1.0)
    claim = GaussianClaim(honest(KEY).event(1))
    found = estimate(*attacked(honest), claim, 1e-5)
    assert 0.9 < found.epsilon_curve / claim.epsilon(1e-5) <= 1
    # With z_g = 1 beside the same count the joint multiplier is 0.77; 1 is what is claimed.
    joint = 1 / math.sqrt(1 + 1 / 1.2**2)
    planted = functools.partial(adaptive, noise_multiplier=joint)
    assert transforms.gradient_multiplier(joint, 0.6) == pytest.approx(1)
    wrong = GaussianClaim(Event((Release("gradient", 1, noise_multiplier=1.0),), "zero_out"))
    scores, own = attacked(planted), planted(KEY).event(1)
    assert estimate(*scores, wrong, 1e-5).epsilon_curve > 1.2 * wrong.epsilon(1e-5)
    right = estimate(*scores, GaussianClaim(own), 1e-5)
    assert right.epsilon_curve < epsilon(own, 1e-5, "zero_out")


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
@pytest.mark.parametrize("sampler", ["all", "poisson"])
def test_both_noises_are_those_of_the_event(sampler, relation):
    """4,000 draws each: 15 % are 13 standard errors."""
    runs = 4_000

    def step(key):
        chain = adaptive(key, sampler=SAMPLERS[sampler], relation=relation, count_stddev=3.0)
        mask = jnp.zeros(N if sampler == "all" else SAMPLERS[sampler].max_batch_size, bool)
        updates, state = chain.update(jnp.zeros((*mask.shape, 1)), chain.init(0), mask=mask)
        return updates[0], jnp.log(state.clip_norm)

    gradient, log = jax.jit(jax.vmap(step))(jax.random.split(KEY, runs))
    made = adaptive(sampler=SAMPLERS[sampler], relation=relation, count_stddev=3.0)
    stddevs = dict(made.event(1).releases[0].components)
    expected = float(SAMPLERS[sampler].expected)
    low, high = np.sqrt(stats.chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], runs) / runs)
    shares = [
        np.std(gradient) / expected / stddevs["gradient over clip norm"],
        np.std(log) / stddevs["fraction"],
    ]
    assert low < min(shares) and max(shares) < high
    moved = 2 if (sampler, relation) == ("all", "replace_one") else 1
    assert stddevs["fraction"] == pytest.approx(3 * moved / expected)
    own = transforms.gradient_multiplier(1.0, 3.0) * moved / expected
    assert stddevs["gradient over clip norm"] == pytest.approx(own, rel=1e-2)
    assert stddevs["gradient over clip norm"] > own  # rounding costs a little
    assert made.event(5).releases[0].count == 5


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.8])
def test_the_clip_norm_finds_the_quantile(quantile):
    """The fraction's noise is 1/20, so in the end it holds the quantile within 0.1."""
    lengths = np.random.default_rng(4).lognormal(1.0, 1.0, 500).astype(np.float32)
    chain = adaptive(size=500, quantile=quantile, rate=0.2, count_stddev=None)

    def step(state, _):
        return chain.update(jnp.asarray(lengths)[:, None], state)[1], state.clip_norm

    norms = jax.lax.scan(step, chain.init(0), length=200)[1]
    held = np.mean(lengths <= np.exp(np.log(norms[100:]).mean()))
    assert abs(held - quantile) < 0.1
    assert np.mean(np.diff(norms) != 0) > 0.9  # noise on a grid may be 0


def test_the_clip_norm_never_leaves_the_floats():
    for fraction, end in ((1e9, 1e-20), (-1e9, 1e20)):
        moved = transforms.next_clip_norm(1.0, fraction, quantile=0.5, rate=0.2)
        assert float(moved) == pytest.approx(end)
    chain = adaptive(size=4, count_stddev=10.0)
    state = chain.init(0)._replace(clip_norm=jnp.float32(1e-20))
    updates, _ = jax.jit(chain.update)(jnp.ones((4, 2)), state)
    assert np.isfinite(updates).all() and (np.asarray(updates) != 0).all()


# Optimizers that break noise.


NO_STEPS = {
    "adam": optax.adam(1e-3),
    "chain": optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, 0.9)),
}
STEPS = {
    "bare": optax.MultiSteps(optax.adam(1e-3), 2),
    "as transformation": optax.MultiSteps(optax.adam(1e-3), 2).gradient_transformation(),
    "in a chain": optax.chain(
        optax.scale(1.0), optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation()
    ),
    "masked": optax.masked(optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation(), True),
    "injected": optax.inject_hyperparams(
        lambda rate: optax.MultiSteps(optax.sgd(rate), 2).gradient_transformation()
    )(rate=0.1),
    "by label": optax.multi_transform(
        {
            "slow": optax.sgd(0.1),
            "fast": optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation(),
        },
        {"w": "slow", "b": "fast", "c": "slow"},
    ),
}


@pytest.mark.parametrize("kind", STEPS)
def test_c15_multi_steps_are_found_wherever_they_are(kind):
    with pytest.raises(ValueError, match=r"Micro-batching belongs to the gradient.*memory_limit="):
        transforms.check_optimizer(STEPS[kind], PARAMS)


@pytest.mark.parametrize("kind", NO_STEPS)
def test_other_optimizers_pass(kind):
    transforms.check_optimizer(NO_STEPS[kind], PARAMS)
    assert not transforms.holds_noise(NO_STEPS[kind], PARAMS)


@pytest.mark.parametrize("kind", ALL)
def test_noise_is_found_wherever_it_is(kind):
    noisy = kind not in ("clip", "layers")
    inside = optax.chain(optax.scale(2.0), optax.masked(ALL[kind](KEY), True))
    assert transforms.holds_noise(inside, PARAMS) == noisy
    assert transforms.holds_noise(ALL[kind](KEY)) == noisy


def test_c15_what_multi_steps_does_to_noise():
    """The mean of two pieces holds two noises, or two draws would share one."""
    noise, pieces = MAKERS["gaussian"](KEY), optax.MultiSteps(optax.sgd(1.0), 2)
    with pytest.raises(ValueError, match=r"adds the noise of one step .*memory_limit="):
        optax.MultiSteps(optax.chain(noise, optax.sgd(1.0)), 2).init(PARAMS)
    optimizer = optax.chain(noise, pieces.gradient_transformation())
    zeros = jnp.zeros(20_000)
    state, update = optimizer.init(zeros), jax.jit(optimizer.update)
    for _ in range(2):
        updates, state = update(zeros, state)
    found = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, transforms.NoiseState))
    (used,) = [int(node.count) for node in found if isinstance(node, transforms.NoiseState)]
    assert used == 2
    assert float(jnp.std(updates)) == pytest.approx(used**-0.5, rel=0.05)
    with pytest.raises(ValueError, match="breaks the noise"):
        transforms.check_optimizer(optimizer, zeros)


# Bad input.


def of_records(**others):
    return transforms.noisy_mean(0.5, **common("poisson", per_example=True, **others))


CAPACITY = SAMPLERS["poisson"].max_batch_size
BAD = {
    "norm": (lambda: transforms.clip_and_sum(0.0), "clip_norm must be a finite number above 0"),
    "norms": (lambda: transforms.clip_and_sum({"w": 1.0}), "pass per_layer=True"),
    "a norm by layer": (
        lambda: transforms.clip_and_sum({"w": -1.0}, per_layer=True),
        "clip_norm must be",
    ),
    "no norms": (lambda: transforms.clip_and_sum({}, per_layer=True), "clip_norm must be"),
    "other layers": (
        lambda: transforms.clip_and_sum({"v": 1.0}, per_layer=True).update(
            {"w": jnp.ones((2, 1))}, optax.EmptyState()
        ),
        "must be a pytree like the gradients",
    ),
    "integers": (
        lambda: transforms.clip_and_sum(1.0).update(jnp.ones((2, 1), int), optax.EmptyState()),
        "must be floating",
    ),
    "a number": (
        lambda: transforms.clip_and_sum(1.0).update(jnp.ones(()), optax.EmptyState()),
        "leading axis of records",
    ),
    "a mean": (
        lambda: transforms.clip_and_sum(1.0).update(PARAMS, optax.EmptyState(), PARAMS),
        r"has another shape where the parameter has \(2,\); take jax.vmap",
    ),
    "a leaf too few": (
        lambda: transforms.clip_and_sum(1.0).update({"w": jnp.ones((2, 3, 2))}, (), PARAMS),
        "where the parameter has",
    ),
    "unequal rows": (
        lambda: transforms.clip_and_sum(1.0).update([jnp.ones((2, 1)), jnp.ones((3, 1))], ()),
        "the same number of rows",
    ),
    "relation": (
        lambda: transforms.clip_and_sum(1.0).sensitivity("zero-out", rows=2),
        "unknown relation",
    ),
    "rows": (lambda: transforms.clip_and_sum(1.0).sensitivity("zero_out", rows=0), "rows"),
    "stddev": (lambda: transforms.add_gaussian_noise(0.0, KEY), "stddev"),
    "key": (lambda: transforms.add_gaussian_noise(1.0, None), "key must be"),
    "rbg": (
        lambda: transforms.add_gaussian_noise(1.0, jax.random.key(0, impl="rbg")),
        "threefry",
    ),
    "sensitivity": (
        lambda: transforms.add_gaussian_noise(1.0, KEY).event(
            1, sensitivity=0.0, relation="zero_out"
        ),
        "sensitivity",
    ),
    "steps": (
        lambda: transforms.add_gaussian_noise(1.0, KEY).event(
            0, sensitivity=1.0, relation="zero_out"
        ),
        "count",
    ),
    "multiplier": (lambda: mean(KEY, noise_multiplier=0.0), "noise_multiplier"),
    "no sampler": (
        lambda: transforms.noisy_mean(1.0, noise_multiplier=1.0, sampler=8, key=KEY),
        "sampler must be one of dpjax.sampling",
    ),
    "a single pass": (
        lambda: transforms.noisy_mean(
            1.0, noise_multiplier=1.0, sampler=SinglePass(10, 0, 10), key=KEY
        ),
        "use add_tree_noise",
    ),
    "subsets": (lambda: mean(KEY, sampler="subsets"), "relation='replace_one' only"),
    "layers of a sum": (lambda: mean(KEY, per_layer=True), "needs per_example=True"),
    "rows for a sum": (
        lambda: mean(KEY).update(per_example(PARAMS, rows()), mean(KEY).init(PARAMS), PARAMS),
        "pass per_example=True",
    ),
    "no mask": (
        lambda: of_records().update(
            per_example(PARAMS, rows(CAPACITY)), of_records().init(PARAMS), PARAMS
        ),
        r"Pass update\(..., mask=batch.mask\)",
    ),
    "too many rows": (
        lambda: of_records().update(
            per_example(PARAMS, rows(CAPACITY + 1)), of_records().init(PARAMS), PARAMS
        ),
        "those of one draw",
    ),
    "momentum": (
        lambda: transforms.noisy_sgd(0.1, clip_norm=1.0, momentum=1.0, **common()),
        "momentum must be at least 0 and below 1",
    ),
    # It is 1 in float32: nothing would ever be forgotten.
    "momentum almost 1": (
        lambda: transforms.noisy_sgd(0.1, clip_norm=1.0, momentum=1 - 1e-9, **common()),
        "momentum must be at least 0 and below 1 in float32",
    ),
    "b1": (lambda: transforms.noisy_adam(0.1, clip_norm=1.0, b1=1.5, **common()), "b1"),
    "eps": (lambda: transforms.noisy_adam(0.1, clip_norm=1.0, eps=0.0, **common()), "eps"),
    "stages": (
        lambda: transforms.noisy_stagewise_sgd(
            0.1, clip_norm=1.0, first_steps=2, first_on_steps=3, **common()
        ),
        "first_on_steps",
    ),
    "a count that is all": (lambda: adaptive(count_stddev=0.5), "raise count_stddev"),
    "quantile": (lambda: adaptive(quantile=1.0), "quantile"),
    "rate": (lambda: adaptive(rate=0.0), "rate"),
    "adaptive without mask": (
        lambda: adaptive(sampler=SAMPLERS["poisson"], count_stddev=2.0).update(
            jnp.ones((2, 1)), adaptive().init(0)
        ),
        "mask must say",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case):
    make, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("kind", ["noisy_sgd", "noisy_adam", "noisy_stagewise_sgd"])
def test_an_alias_names_the_argument_that_is_none_or_is_missing(kind):
    make = functools.partial(
        getattr(transforms, kind), 0.1, **STAGES if kind == "noisy_stagewise_sgd" else {}
    )
    with pytest.raises(TypeError, match="'clip'"):
        make(clip_norm=1.0, clip=1.0, **common())
    with pytest.raises(TypeError, match="'clip_norm'"):
        make(**common())


def test_extra_arguments_reach_the_mask_through_chains_of_chains():
    whole = optax.chain(optax.chain(of_records(noise_multiplier=1e-7)), optax.scale(1.0))
    mask = jnp.arange(CAPACITY) < 5
    gradients = per_example(PARAMS, rows(CAPACITY))
    got, _ = jax.jit(whole.update)(gradients, whole.init(PARAMS), PARAMS, mask=mask)
    wanted = clipped_sum(PARAMS, rows(CAPACITY), mask)
    np.testing.assert_allclose(flat(got), flat(wanted) / 8, rtol=1e-4, atol=1e-6)
