"""Wrappers of optax around private chains and after their noise do what the table says of them."""

import contextlib
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.interpreters import partial_eval
from test_transforms import ALL, HOLDS_KEY, KEY, OF_RECORDS, N
from test_transforms import PARAMS as OTHERS
from wrappers import ALONE, PARAMS, PARTS_OF_PROCESS, ROWS, after_noise, wrapped

import dpjax
from dpjax import transforms
from dpjax.auditing import GaussianClaim, estimate
from dpjax.transforms import adaptive, aggregate, gaussian, noise

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
AROUND = {name: row for name, row in ROWS.items() if row.around != ALONE}
THERE = {name.split("(")[0].rpartition(".")[2] for name in ROWS}
REFUSED = {name: row for name, row in AROUND.items() if row.around.startswith("refused")}
OURS = r"around a private chain|an optax.MaskedNode"
ROOMS = (optax, optax.contrib, optax.transforms, optax.schedules, optax.experimental.aggregating)
# Of what these hold, all that are functions or classes of steps are in the table.
FILES = ("_accumulation", "_conditionality", "_freezing", "_masking", "_monitoring", "_aggregating")


def mean():
    return ALL["mean"](KEY)


@pytest.fixture
def drowned(monkeypatch):
    """Noise so loud that nothing of what it is added to is left: exact updates end there.

    Returns the norms of what it was added to, where they can be read.
    """
    norms = []

    def silence(noise, key_of, updates, stddev):
        norm = optax.tree.norm(updates)
        norms.extend([] if isinstance(norm, jax.core.Tracer) else [float(norm)])
        return jax.tree.map(lambda update: jnp.full(jnp.shape(update), 0.5), updates)

    for module in (adaptive, gaussian, noise):
        monkeypatch.setattr(module, "add_noise", silence)
    return norms


def reads_exact(optimizer, updates, params, **passed):
    """Whether what leaves, or any state, depends on the updates that arrive: read off the trace."""
    state = optimizer.init(params)
    traced = jax.make_jaxpr(lambda *given: optimizer.update(*given, **passed))(
        updates, state, params
    )
    _, used = partial_eval.dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))
    return any(used[: len(jax.tree.leaves(updates))])


def noises(optimizer, updates, params, calls, **passed):
    """How many noises so many calls have used."""
    state = optimizer.init(params)
    for _ in range(calls):
        _, state = optimizer.update(updates, state, params, **passed)
    found = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, transforms.NoiseState))
    return sum(int(node.count) for node in found if isinstance(node, transforms.NoiseState))


def paired(row):
    return optax.LookaheadParams.init_synced(PARAMS) if row.paired else PARAMS


def arriving(row):
    return jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), PARAMS) if row.records else PARAMS


def holds(optimizer, row, **passed):
    """Whether exact updates reach an optimizer through noise alone, one a call."""
    updates, params = arriving(row), paired(row)
    if reads_exact(optimizer, updates, params, **passed):
        return False
    used = noises(optimizer, updates, params, 3, **passed)
    return used == 3 or (row.skips and used < 3)


@pytest.mark.parametrize("name", AROUND)
def test_c72_around_a_private_chain(name, drowned):
    row = ROWS[name]
    if row.around.startswith("refused"):
        with pytest.raises(ValueError, match=OURS):
            holds(wrapped(row, mean()), row)
    else:
        assert holds(wrapped(row, mean()), row) == row.around.startswith("right")
        # The sensitivity of the event is that of sums as they arrive, in whatever shape.
        assert drowned == pytest.approx([float(optax.tree.norm(PARAMS))] * len(drowned))
        assert len(drowned) == (0 if row.skips else 3) or not row.around.startswith("right")


@pytest.mark.parametrize("name", ROWS)
def test_c72_after_the_noise(name, drowned):
    row = ROWS[name]
    optimizer = after_noise(row, mean())
    if row.after.startswith("right"):
        assert holds(optimizer, row, **row.passed)
    elif row.after.startswith("refused"):
        with pytest.raises(ValueError, match="hands a function to what follows the noise"):
            holds(optimizer, row, **row.passed)
    else:
        with pytest.raises(ValueError):
            holds(optimizer, row, **row.passed)


@pytest.mark.parametrize("name", REFUSED)
def test_c72_what_is_refused_would_be_wrong(name, drowned, monkeypatch):
    """A wrapper that optax mends falls here: its refusal had no reason any more."""
    for module in (adaptive, aggregate, gaussian, noise):
        for check in ("check_callers", "check_updates"):
            monkeypatch.setattr(module, check, lambda *_, **__: None, raising=False)
    row = ROWS[name]
    try:
        right = holds(wrapped(row, mean()), row, **row.passed)
    except TypeError as error:  # a state with a key cannot be multiplied by 0
        right = "multiply does not accept dtypes" not in str(error)
    # What the first freezes is zero in the end, and took part in the clipping. The other asks again
    # where exact updates lead, and no sum there has the sensitivity of the first.
    assert right == (name in ("selective_transform", "contrib.sam(opaque_mode=True)"))


def public():
    """Yields (name, callable) of what optax offers."""
    for room in ROOMS:
        for name, it in vars(room).items():
            if callable(it) and not name.startswith("_") and it.__module__.startswith("optax"):
                yield name, it


def of_numbers(make):
    parameters = inspect.signature(make).parameters.values()
    return make(**{each.name: 2 for each in parameters if each.default is each.empty})


def makes(it, *, words="GradientT"):
    return words in str(inspect.signature(it).return_annotation)


def needs_more(make):
    """Whether a transformation, made with numbers, asks for more than updates and parameters."""
    try:
        made = of_numbers(make)
        jax.eval_shape(lambda: made.update(PARAMS, made.init(PARAMS), PARAMS))
    except (TypeError, ValueError, AttributeError) as error:
        return "keyword-only arg" in str(error) or "must be provided" in str(error)
    return False


@pytest.mark.filterwarnings("ignore")
def test_c72_every_wrapper_of_optax_has_a_row():
    """Of another version of optax too: what wraps, accumulates, or asks for more than gradients."""
    wanted = set()
    for name, it in public():
        given = inspect.signature(it).parameters.values()
        wraps = any("GradientT" in str(each.annotation) for each in given)
        stands = it.__module__.endswith(FILES) and (makes(it) or makes(it, words="Aggregator"))
        if wraps or stands or (makes(it) and needs_more(it)):
            wanted.add(name)
    assert {"MultiSteps", "sam", "polyak_sgd", "ema", "lbfgs"} <= wanted
    assert wanted - THERE - PARTS_OF_PROCESS == set()


@pytest.mark.filterwarnings("ignore")
def test_c72_every_other_transformation_of_optax_is_right_after_the_noise(drowned):
    untried, tried = set(), 0
    for name, it in public():
        if name not in THERE | PARTS_OF_PROCESS and makes(it):
            try:
                optimizer = optax.chain(mean(), of_numbers(it))
                assert not reads_exact(optimizer, PARAMS, PARAMS)
                tried += 1
            except (TypeError, ValueError):
                untried.add(name)
    # Made of functions, for shapes of their own, or by adding numbers of other ranks.
    assert untried == {
        "scale_by_distance_over_gradients",
        "scale_by_muon",
        "scale_by_schedule",
        "stateless",
        "stateless_with_tree_map",
    }
    assert tried > 80


# Our transformations.


def updates_of(kind, params=OTHERS):
    shape = (N,) if kind in OF_RECORDS else ()
    return jax.tree.map(lambda leaf: jnp.ones(shape + leaf.shape), params)


@pytest.mark.parametrize("kind", ALL)
def test_c72_our_chains_read_exact_updates_for_the_noise_alone(kind, drowned):
    exact = reads_exact(ALL[kind](KEY), updates_of(kind), OTHERS)
    assert exact == (kind in ("clip", "layers"))


ONLY_W = {"w": True, "b": False, "c": False}
HIDDEN = {
    "masked": lambda inner: optax.masked(inner, ONLY_W),
    "by a function": lambda inner: optax.masked(inner, lambda tree: ONLY_W),
    "by label": lambda inner: optax.partition(
        {"ours": inner, "other": optax.sgd(0.1)}, {"w": "ours", "b": "other", "c": "other"}
    ),
    "in a chain": lambda inner: optax.chain(optax.scale(1.0), optax.masked(inner, ONLY_W)),
    "twice": lambda inner: optax.masked(optax.masked(inner, True), ONLY_W),
    "inside": lambda inner: optax.masked(optax.chain(inner, optax.sgd(0.1)), ONLY_W),
}


@pytest.mark.parametrize("kind", {**ALL, **HOLDS_KEY})
def test_c72_a_masked_leaf_is_refused(kind, drowned):
    chain = {**ALL, **HOLDS_KEY}[kind](KEY)
    for hide in HIDDEN.values():
        for begin in (hide(chain).init, jax.jit(hide(chain).init)):
            with pytest.raises(ValueError, match="differentiate the loss by the others alone"):
                begin(OTHERS)
    state, updates = chain.init(OTHERS), updates_of(kind)
    masked = {"w": optax.MaskedNode(), "b": {"deep": (optax.MaskedNode(), jnp.ones(2))}}
    for given in ((updates | masked, state), (updates, state, OTHERS | masked)):
        with pytest.raises(ValueError, match="MaskedNode"):
            jax.jit(chain.update)(*given)
    # All leaves of some, as all of the others, are none that is masked.
    hide = optax.masked(chain, {"w": True, "b": True, "c": True})
    hide.update(updates, hide.init(OTHERS), OTHERS)


@pytest.mark.parametrize("kind", HOLDS_KEY)
def test_c72_a_wrapper_is_refused_around_each_of_our_chains(kind, drowned):
    for row in REFUSED.values():
        with pytest.raises(ValueError, match=OURS):
            optimizer = wrapped(row, HOLDS_KEY[kind](KEY))
            state = optimizer.init(paired(row))
            optimizer.update(updates_of(kind, PARAMS), state, paired(row))


SAMPLER = dpjax.sampling.full_batch(N)
NUMBERS = {
    transforms.noisy_mean: {"clip_norm": 1.0, "noise_multiplier": 1.0, "sampler": SAMPLER},
    transforms.add_gaussian_noise: {"stddev": 1.0},
    transforms.clip_and_sum: {"clip_norm": 1.0},
}


@pytest.mark.parametrize("make", NUMBERS, ids=lambda make: make.__name__)
def test_c72_a_chain_that_is_made_of_injected_numbers_is_refused(make):
    key = {} if make is transforms.clip_and_sum else {"key": KEY}
    with pytest.raises(ValueError, match="inject_hyperparams around a private chain makes it anew"):
        optax.inject_hyperparams(make)(**NUMBERS[make], **key).init(PARAMS)


def test_c72_what_is_absent_is_handed_on_by_nobody(drowned):
    """None, and trees without leaves, hold nothing that could pass by the noise."""
    tree = {"w": jnp.ones(2), "gone": None, "state": optax.EmptyState(), "empty": {}}
    updates, _ = mean().update(tree, mean().init(tree), tree)
    assert jax.tree.structure(updates) == jax.tree.structure(tree)
    assert mean().update({}, mean().init({}), {})[0] == {}


def test_c72_what_follows_the_noise_may_be_masked():
    push = transforms.early_momentum(0.9, 2, 1)
    for after in (transforms.divide_by(2.0), push):
        optimizer = optax.chain(ALL["mean"](KEY), optax.masked(after, ONLY_W))
        optimizer.update(OTHERS, optimizer.init(OTHERS), OTHERS)


def test_c72_a_mapped_chain_is_refused_a_mask():
    keys = jax.random.split(KEY)

    def step(key):
        optimizer = optax.masked(transforms.add_gaussian_noise(1.0, key), ONLY_W)
        return optimizer.update(OTHERS, optimizer.init(OTHERS))[0]

    with pytest.raises(ValueError, match="MaskedNode"):
        jax.vmap(step)(keys)


def test_c72_the_exact_sum_of_a_masked_leaf_refutes_the_event():
    """Unless it is refused: an attacker reads the leaf that has no noise."""
    claim = GaussianClaim(
        transforms.add_gaussian_noise(1.0, KEY).event(1, sensitivity=1.0, relation="zero_out")
    )

    def score(total, key):
        noise = optax.masked(transforms.add_gaussian_noise(1.0, key), {"seen": False, "not": True})
        tree = {"seen": total, "not": jnp.zeros(1)}
        return noise.update(tree, noise.init(tree))[0]["seen"]

    scores = None
    with contextlib.suppress(ValueError):
        keys = jax.random.split(KEY, 4_000)
        attack = jax.vmap(score, (None, 0))
        scores = [np.asarray(attack(jnp.float32(total), keys)) for total in (0.0, 1.0)]
    assert scores is None or estimate(*scores, claim, 1e-5).epsilon_curve <= claim.epsilon(1e-5)
