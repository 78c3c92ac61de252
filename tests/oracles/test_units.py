"""The unit of privacy: a person with several records is one example, which is protected whole."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import mostly_ci

import dpjax
from dpjax import auditing, datasets, objectives
from dpjax.algorithms import ALL
from dpjax.auditing import canaries, estimators, games
from dpjax.cli.main import main
from dpjax.derivatives import clipped_grad, clipped_hessian, joint_clipped
from dpjax.derivatives.linear import units as linear_units
from dpjax.objectives.classifier import Softmax
from dpjax.objectives.linear import Margin
from dpjax.objectives.units import UnitLoss

LOGISTIC = objectives.logistic()
WEIGHTS = {"gradient_weight": 0.3, "hessian_weight": 0.1}


def rows(n, p, seed=0, scale=1.0):
    """Rows of norm at most ``scale``, and labels."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p)).astype(np.float32)
    x *= scale / np.linalg.norm(x, axis=1, keepdims=True)
    return x, np.sign(rng.normal(size=n)).astype(np.float32)


def units(n, k, p, seed=0, scale=1.0):
    """Units of 0 to k rows; what is not present holds garbage."""
    x, y = rows(n * k, p, seed, scale)
    rng = np.random.default_rng(seed + 1)
    present = rng.random((n, k)) < 0.6
    x, y = x.reshape(n, k, p), y.reshape(n, k)
    x[~present] = rng.choice([np.nan, 1e30, -7.0], size=(~present).sum())[:, None]
    return (x, y), present


def one_by_one(w, data, reduction, clip, weights, mask=None):
    """Sums of clipped gradients and Hessians of logistic units, in float64, by the definition."""
    (x, y), present = data
    p = x.shape[2]
    gradient, hessian = np.zeros(p), np.zeros((p, p))
    for i in range(len(x)):
        if mask is not None and not mask[i]:
            continue
        kept = [j for j in range(x.shape[1]) if present[i, j] and np.isfinite(x[i, j]).all()]
        kept = [j for j in kept if abs(y[i, j]) == 1]
        g, h = np.zeros(p), np.zeros((p, p))
        for j in kept:
            z = np.float64(x[i, j])
            s = 1 / (1 + np.exp(y[i, j] * (z @ w)))
            g, h = g - s * y[i, j] * z, h + s * (1 - s) * np.outer(z, z)
        if kept and reduction == "mean":
            g, h = g / len(kept), h / len(kept)
        norm = sum((np.linalg.norm(v) / q) ** 2 for v, q in ((g, weights[0]), (h, weights[1])) if q)
        factor = min(1, clip / norm**0.5) if norm > 0 else 1
        gradient, hessian = gradient + factor * g, hessian + factor * h
    return gradient, hessian


# Grouping


def test_records_are_grouped_in_their_order_up_to_the_cap():
    x, y = np.arange(14.0).reshape(7, 2).astype(np.float32), np.ones(7, np.float32)
    by = ["b", "a", "b", None, "b", "", "a"]
    data = datasets.group(datasets.Dataset(x, y, name="visits"), by=by, max_records=2)
    assert (data.size, data.dimension, data.unit, data.name) == (2, 2, "person", "visits")
    assert data.x[:, :, 0].tolist() == [[0.0, 4.0], [2.0, 12.0]]
    assert data.present.all()
    records, present = datasets.group((x, y), by=by, max_records=3)
    assert present.tolist() == [[True, True, True], [True, True, False]]
    assert records[0][1, 2].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "owners",
    [
        [3, 1, 3],
        ["c", "a", "c"],
        np.array(["c", None, "c"], object),
        np.array(["2020-01-02", "NaT", "2020-01-02"], "M8[D]"),
        np.array([2**63, 1, 2**63], np.uint64),
    ],
)
def test_every_kind_of_name_makes_the_same_units(owners):
    x = np.arange(3.0)[:, None]
    _, present = datasets.group((x,), by=owners, max_records=2)
    assert present[0].tolist() == [True, True]


def test_which_records_are_kept_depends_on_their_unit_alone():
    x, y = rows(60, 2)
    by = np.random.default_rng(0).integers(0, 9, 60)
    (before, _), _ = datasets.group((x, y), by=by, max_records=3)
    others = by != by[0]
    moved = x.copy()
    moved[others] = 0
    (after, _), _ = datasets.group((moved, y), by=by, max_records=3)
    assert (before[0] == after[0]).all()


@pytest.mark.parametrize(
    ("by", "most", "message"),
    [
        (np.array([1.5, np.nan, 2.0**53]), 2, "stored as float64.*unit_type='number'"),
        (np.float32([2**24, 0.5, np.inf]), 2, "stored as float32"),
        (np.array([True, False, True]), 2, "whole numbers or strings, got bool"),
        ([1, 2], 2, r"one entry for each record\.$"),
        ([None, None, None], 2, "no record has a unit"),
        ([1, 2, 3], 0, "max_records"),
        ([1, 2, 3], 1.5, "max_records"),
    ],
)
def test_what_cannot_name_a_unit_is_refused(by, most, message):
    data = (np.zeros((3, 1)),)
    with pytest.raises(ValueError, match=message):
        datasets.group(data, by=by, max_records=most)


# A name, and the unit it belongs to among "ann", 7 and one of its own; None: to nobody.
NAMES = {
    "text": ("7", 1),
    "bytes": (b"7", 1),
    "a number of NumPy": (np.int64(7), 1),
    "white space": (" ann ", 0),
    "thousands of digits": (10**5_000, None),
    "beyond int64": (2**63, 2),
    "negative": (-1, 2),
    "a long word": ("x" * 100_000, 2),
    "None": (None, None),
    "empty": ("", None),
    "blank": (" ", None),
    "NaN": (float("nan"), None),
    "a whole float": (7.0, 1),
    "a fraction": (7.5, None),
    "a float that other integers round to": (2.0**53, None),
    "a duration": (np.timedelta64(7, "s"), None),
    "a list": ([7], None),
    "an object": (object(), None),
    "a complex number": (7j, None),
}


@pytest.mark.parametrize(("strange", "unit"), NAMES.values(), ids=NAMES.keys())
def test_c70_one_record_changes_its_own_unit_whatever_its_name_is(strange, unit):
    names = np.array(["ann", 7, "bob", "ann", 7], object)
    names[2] = strange
    (places, _), present = datasets.group((np.arange(5), np.arange(5)), by=names, max_records=3)
    held = [row[mask].tolist() for row, mask in zip(places, present, strict=True)]
    expected = [[0, 3], [1, 4], []]
    if unit is not None:
        expected[unit] = sorted([*expected[unit], 2])
    assert held == [records for records in expected if records]


@pytest.mark.parametrize("form", ["list", "csv", "arrow"])
def test_c70_names_that_are_no_utf8_stay_distinct(form, tmp_path):
    """Two persons in one unit would be protected as one."""
    names = [b"M\xfcller", b"M\xf6ller", b"M\xfcller"]
    if form == "csv":
        lines = [b"%s,0.%d,1\n" % (name, place) for place, name in enumerate(names)]
        (tmp_path / "t.csv").write_bytes(b"who,x,y\n" + b"".join(lines))
        more = {"label": "y", "classes": (0, 1), "bounds": {"x": [0, 1]}}
        data = datasets.load(tmp_path / "t.csv", unit="who", max_records=3, **more)
        assert data.present.sum(1).tolist() == [2, 1]
        return
    if form == "arrow":
        arrow = pytest.importorskip("pyarrow")
        names = arrow.Array.from_buffers(arrow.string(), 3, arrow.array(names).buffers())
    _, present = datasets.group((np.zeros(3),), by=names, max_records=3)
    assert present.sum(1).tolist() == [2, 1]


def test_a_missing_name_among_integers_is_nobody_in_a_data_frame():
    pandas = pytest.importorskip("pandas")
    for missing in (None, 3):
        names = pandas.Series([7, 8, 7, missing])  # of floats where one is missing
        _, present = datasets.group((np.zeros(4),), names, 2, unit_type="number")
        assert present.sum(1).tolist() == [2, 1] + [1] * (missing is not None)


def test_objective_and_data_must_both_be_of_units_or_neither():
    x, y = rows(40, 3)
    grouped = datasets.group(datasets.Dataset(x, y), by=np.arange(40) // 4, max_records=4)
    budget = dpjax.PrivacyBudget(1.0, 1e-5)

    def train(objective, data, n):
        algorithm = dpjax.dp_trust_region(objective, budget, data_size=n, dimension=3, steps=1)
        return dpjax.solve(algorithm, data, seed=0)

    with pytest.raises(ValueError, match=r"pass objective\.of_units\(\)"):
        train(LOGISTIC, grouped, 10)
    with pytest.raises(ValueError, match="group the records by"):
        train(LOGISTIC.of_units(), (x, y), 40)
    with pytest.raises(ValueError, match="of units already"):
        LOGISTIC.of_units().of_units()
    with pytest.raises(ValueError, match="grouped into units already"):
        datasets.group(grouped, by=np.arange(10), max_records=2)
    with pytest.raises(ValueError, match="mean"):
        LOGISTIC.of_units("median")


# The loss of a unit


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_loss_of_a_unit_is_that_of_its_valid_records(reduction):
    loss = UnitLoss(LOGISTIC.loss, reduction)
    x, y = rows(5, 3)
    x[1], y[2] = np.nan, 0.0
    present = np.array([True, True, True, True, False])
    w = jnp.array([0.3, -1.0, 2.0])
    value, gradient = jax.jit(jax.value_and_grad(loss))(w, ((x, y), present))
    kept = [LOGISTIC.loss(w, (x[i], y[i])) for i in (0, 3)]
    assert np.isclose(value, sum(kept) / (2 if reduction == "mean" else 1))
    assert np.isfinite(gradient).all()
    assert np.isnan(loss(w, ((x, y), np.zeros(5, bool))))


# Sums in closed form


@pytest.mark.parametrize(
    ("n", "k", "reduction"),
    mostly_ci(
        [*((n, k, "mean") for n, k in ((7, 1), (9, 3), (40, 10), (3, 128))), (9, 3, "sum")],
        [(7, 1, "mean"), (9, 3, "mean"), (9, 3, "sum")],
    ),
)
def test_sums_over_units_are_those_of_the_definition(n, k, reduction):
    data, w = units(n, k, 4, seed=n), np.array([0.5, -1.0, 2.0, 0.0])
    objective, mask = LOGISTIC.of_units(reduction), np.arange(n) != 2
    params = jnp.asarray(w, jnp.float32)
    assert linear_units.can_prepare(objective, data, False)
    clip = 0.2
    sums = (
        clipped_grad(objective, clip_norm=clip),
        clipped_hessian(objective, clip_norm=0.1),
        joint_clipped(objective, **WEIGHTS),
    )
    gradient, hessian, joint = jax.jit(lambda *given: [one(*given) for one in sums])(
        params, data, mask
    )
    want = one_by_one(w, data, reduction, clip, (1, None), mask)[0]
    np.testing.assert_allclose(gradient, want, atol=2e-5 * n)
    want = one_by_one(w, data, reduction, 0.1, (None, 1), mask)[1]
    np.testing.assert_allclose(hessian, want, atol=2e-5 * n)
    want = one_by_one(w, data, reduction, 1.0, (0.3, 0.1), mask)
    for found, expected in zip(joint, want, strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-5 * n)


@functools.partial(jax.jit, static_argnums=0)
def all_sums(objective, w, data):
    gradient = clipped_grad(objective, clip_norm=0.5)(w, data)
    hessian = clipped_hessian(objective, clip_norm=0.1)(w, data)
    return gradient, hessian, *joint_clipped(objective, **WEIGHTS)(w, data)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_closed_form_and_general_path_agree(reduction):
    data, w = units(30, 5, 3), jnp.array([0.5, -1.0, 2.0])
    closed = LOGISTIC.of_units(reduction)
    general = dataclasses.replace(closed, loss=UnitLoss(LOGISTIC.loss, reduction))
    assert not linear_units.can_prepare(general, data, False)

    for found, expected in zip(all_sums(closed, w, data), all_sums(general, w, data), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("reduction", mostly_ci(["mean", "sum"], ["mean"]))
@pytest.mark.parametrize("objective", mostly_ci([LOGISTIC, objectives.softmax(3)], [LOGISTIC]))
def test_outside_of_a_cpu_units_are_held_and_their_sums_agree(objective, reduction, monkeypatch):
    """Also of persons with one row, with none, and with rows that do not count."""
    (x, y), present = units(30, 5, 3)
    x, present = np.array(x), np.array(present)
    x[2, 1:], x[3], present[4], present[5, 1:] = np.nan, np.inf, False, False
    data, units_of = ((x, y), present), objective.of_units(reduction)
    w = jnp.sin(jnp.arange(objective.parameters(3), dtype=jnp.float32))
    here = all_sums.__wrapped__(units_of, w, data)
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert not linear_units.can_prepare(units_of, data, False)
    for found, expected in zip(all_sums.__wrapped__(units_of, w, data), here, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("reduction", mostly_ci(["mean", "sum"], ["mean"]))
@pytest.mark.parametrize("objective", [objectives.softmax(3), objectives.huber(threshold=0.5)])
def test_units_of_other_scores_agree_with_the_general_path(objective, reduction):
    (x, _), present = units(30, 5, 3)
    several = objective.linear.outputs > 1
    y = np.random.default_rng(1).choice([0, 1, 2, 3] if several else [-1, 0.25, 2], (30, 5))
    data = (x, y.astype(np.float32)), present
    w = np.sin(np.arange(objective.parameters(3), dtype=np.float32))
    closed = objective.of_units(reduction)
    general = dataclasses.replace(closed, loss=UnitLoss(objective.loss, reduction))
    assert linear_units.can_prepare(closed, data, False)
    for found, expected in zip(all_sums(closed, w, data), all_sums(general, w, data), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_no_unit_of_several_scores_contributes_more_than_the_clip_norm():
    rng = np.random.default_rng(0)
    objective = objectives.softmax(4).of_units("sum")
    norms = []
    for seed in range(6):
        (x, _), present = cancelling(8, 6, 3.0, seed)
        y = rng.integers(0, 4, (1, 8)).astype(np.float32)
        w = jnp.asarray(rng.normal(size=24), jnp.float32)
        joint = joint_clipped(objective, gradient_weight=0.5, hessian_weight=0.25)
        found = joint(w, ((x, y), present))
        norms.append(np.hypot(2 * np.linalg.norm(found[0]), 4 * np.linalg.norm(found[1])))
    assert 0.5 < max(norms) <= 1


@dataclasses.dataclass(frozen=True)
class Broken(Softmax):
    """The cross-entropy, whose gradient is no number for large scores."""

    def derivatives(self, score, label):
        slope, curve = super().derivatives(score, label)
        return jnp.where(jnp.abs(score).max() > 1, jnp.nan, slope), curve


def test_a_unit_with_a_coefficient_that_is_not_finite_contributes_nothing():
    x = np.array([[[0.1], [9.0]]], np.float32)
    records = ((x, np.zeros((1, 2), np.float32)), np.ones((1, 2), bool))
    units = linear_units.prepare_units(records, None, "mean", labels=Softmax(3).labels)
    weights = {"weights": (1.0, 1.0), "clip_norm": 50.0}
    found = linear_units.unit_sums(Broken(3), units, jnp.arange(3.0), **weights)
    assert not any(np.any(sum_.leading) for sum_ in found)
    found = linear_units.unit_sums(Softmax(3), units, jnp.arange(3.0), **weights)
    assert all(np.any(sum_.leading) for sum_ in found)


def cancelling(k, p, scale, seed):
    """One unit whose rows cancel: x and -x with the same label, of any length."""
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(k // 2, p)) * scale
    x = np.concatenate([half, -half * (1 + 1e-6 * rng.normal(size=(k // 2, 1)))]).astype(np.float32)
    return (x[None], np.ones((1, k), np.float32)), np.ones((1, k), bool)


def length(m):
    return -m


def curved(m):
    return m**2 - m


def square(m):
    return m**2


# Weights of gradient and Hessian, and phi.
WAYS = (((1.0, None), length), ((1.0, 0.5), curved), ((None, 1.0), square))


@jax.jit
def contributions(data):
    """What one unit contributes to each of the sums, at a clip norm of 1."""
    prepared, w = linear_units.prepare_units(data, None, "sum"), jnp.zeros(data[0][0].shape[2])

    def sums(weights, phi):
        return linear_units.unit_sums(Margin(phi), prepared, w, weights, 1.0)

    return [
        [part.leading for part, weight in zip(sums(weights, phi), weights, strict=True) if weight]
        for weights, phi in WAYS
    ]


def norms(data):
    """Their weighted norms, in float64."""
    for (weights, _), parts in zip(WAYS, contributions(data), strict=True):
        held = [weight for weight in weights if weight]
        squares = [np.sum(np.float64(v) ** 2) / q**2 for v, q in zip(parts, held, strict=True)]
        yield sum(squares) ** 0.5


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6, 1e15])
@pytest.mark.parametrize("k", mostly_ci([2, 8, 20, 128], [2, 8, 20]))
def test_no_unit_contributes_more_than_the_clip_norm_even_where_its_rows_cancel(k, scale):
    for seed in range(3):
        data = cancelling(k, 6, scale, seed)
        assert max(norms(data)) <= 1
        aligned = (np.abs(data[0][0]), data[0][1]), data[1]
        added, *others = norms(aligned)
        assert max(added, *others) <= 1
        if scale >= 1:
            assert added > 0.9


def test_a_unit_moves_a_sum_of_many_by_no_more_than_is_charged():
    (x, y), present = units(300, 6, 5, seed=3)
    w = jnp.ones(5)
    clipped = clipped_grad(LOGISTIC.of_units("sum"), clip_norm=0.5)
    program = jax.jit(clipped)
    total = np.float64(program(w, ((x, y), present)))
    for unit in (0, 17, 299):
        without = present.copy()
        without[unit] = False
        moved = np.linalg.norm(total - np.float64(program(w, ((x, y), without))))
        assert moved <= clipped.sensitivity("zero_out", rows=300)


# Whole trainings


def panel(n, seed=0):
    x, y = rows(n * 3, 4, seed)
    return datasets.group(datasets.Dataset(x, y, max_norm=1.0), np.arange(n * 3) % n, 3)


@pytest.mark.parametrize(
    "name", mostly_ci(["dp-tr", "dp-str", "dp-svrg++", "dp-sgd"], ["dp-tr", "dp-sgd"])
)
def test_algorithms_train_on_persons_and_the_guarantee_says_so(name):
    data = panel(400)
    entry = ALL[name]
    algorithm = entry.factory(
        LOGISTIC.of_units(), dpjax.PrivacyBudget(2.0, 1e-5), data_size=data.size, dimension=4
    )
    solution = dpjax.solve(algorithm, data, seed=0)
    assert np.isfinite(solution.params).all()
    statement = str(solution.guarantee())
    assert "one 'person'" in statement
    row_level = entry.factory(
        LOGISTIC, dpjax.PrivacyBudget(2.0, 1e-5), data_size=data.size, dimension=4
    )
    assert algorithm.epsilon(1e-5) == row_level.epsilon(1e-5)


@pytest.mark.ci
def test_outside_of_a_cpu_as_many_persons_count_and_as_much_is_charged(monkeypatch):
    data, budget = panel(300), dpjax.PrivacyBudget(4.0, 1e-5)
    make = functools.partial(
        dpjax.dp_gradient_descent, LOGISTIC.of_units(), data_size=300, dimension=4, steps=3
    )
    found = []
    for backend in ("cpu", "tpu"):
        monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
        jax.clear_caches()
        algorithm = dpjax.with_count(make, budget)
        solution = dpjax.solve(algorithm, data, seed=0)
        found.append((solution, [query.rounding_error for query in algorithm.queries]))
    jax.clear_caches()
    (here, charged), (there, charged_there) = found
    assert charged == charged_there and here.counted == there.counted
    np.testing.assert_allclose(here.params, there.params, rtol=1e-3, atol=1e-4)


@pytest.mark.ci
def test_the_closed_form_trains_as_the_general_path_does():
    data = panel(300)
    budget = dpjax.PrivacyBudget(4.0, 1e-5)
    found = []
    for linear in (LOGISTIC.linear, None):
        objective = dataclasses.replace(
            LOGISTIC.of_units(), loss=UnitLoss(LOGISTIC.loss, "mean", linear)
        )
        algorithm = dpjax.dp_trust_region(
            objective,
            budget,
            data_size=300,
            dimension=4,
            steps=4,
            clip_norm=1.0,
            hessian_clip_norm=0.25,
            radius=1.0,
        )
        found.append(dpjax.solve(algorithm, data, seed=0).params)
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", ["book_keeping", "per_example"])
def test_a_null_record_is_left_out_of_its_unit_of_a_network(method):
    rng = np.random.default_rng(0)

    def loss(w, record):
        return (jnp.tanh(record[0] @ w["a"]) @ w["b"] - record[1]) ** 2

    params = {name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in NET.items()}
    (x, y), present = units(6, 3, 4)
    x[0, 0], present[0] = np.nan, True
    without = present.copy()
    without[0, 0] = False
    total = jax.jit(clipped_grad(objectives.Objective(loss).of_units(), clip_norm=1, method=method))
    found, expected = total(params, ((x, y), present)), total(params, ((x, y), without))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


NET = {"a": (4, 5), "b": (5,)}


def test_persons_are_not_streamed():
    with pytest.raises(ValueError, match="cannot be streamed"):
        dpjax.distributed.stream(panel(20))


# Audits


# Of all records, as of a batch, by CI's audits.
@pytest.mark.ci
@pytest.mark.parametrize("name", ["dp-sgd-person"])
def test_an_audit_with_a_person_as_canary_finds_nearly_what_is_claimed(name):
    found = auditing.audit(name, key=jax.random.key(0), quick=True)
    assert found.passed and not found.refuted and 0.75 <= found.ratio <= 1


def test_the_same_attack_refutes_the_claim_for_single_rows():
    """A person with four rows is not protected by a guarantee for one row."""
    k, n = 4, 10
    algorithm = ALL["dp-gd"].factory(
        canaries.LOSSES["dirac"],
        dpjax.PrivacyBudget(2.0, 1e-5),
        data_size=n,
        dimension=3,
        steps=1,
        step_size=1.0,
        clip_norm=1.0,
        certify=None,
    )
    canary = jnp.zeros((n, 1)).at[:k].set(1.0)
    pair = canaries.NeighbouringPair(jnp.zeros((n, 1)), canary, "zero_out")
    game = games.training(algorithm, pair)
    claimed = game.claim.epsilon(1e-5)
    found = estimators.estimate(*games.play(game, jax.random.key(0), 20_000), game.claim, 1e-5)
    assert found.epsilon_curve > 1.5 * claimed


# Files and the command line


VISITS = """patient,age,sick
P1,30,yes
P2,60,no
P1,31,no
,45,yes
P2,61,yes
P1,32,yes
"""


@pytest.fixture
def visits(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "visits.csv").write_text(VISITS)
    (tmp_path / "b.json").write_text('{"age": [0, 100]}')
    return {"label": "sick", "classes": ("no", "yes"), "bounds": "b.json"}


def test_a_file_is_grouped_by_its_column_which_is_no_feature(visits):
    data = datasets.load("visits.csv", unit="patient", max_records=2, **visits)
    assert (data.size, data.dimension, data.unit) == (2, 1, "patient")
    assert data.preprocessing.columns == ("age",)
    assert data.y.tolist() == [[1.0, -1.0], [-1.0, 1.0]] and data.present.all()
    columns = {"patient": [7, 8, 7, None, 8, 7], "age": [30, 60, 31, 45, 61, 32]}
    table = columns | {"sick": ["yes", "no", "no", "yes", "yes", "yes"]}
    held = datasets.load(table, unit="patient", max_records=2, **visits)
    assert (held.x == data.x).all() and (held.present == data.present).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"unit": "patien", "max_records": 2}, "did you mean 'patient'"),
        ({"unit": "patient"}, "how many records one patient contributes"),
        ({"max_records": 2}, "name the column"),
        ({"unit": "patient", "max_records": 0}, "at least 1"),
        ({"unit": "sick", "max_records": 2}, "both 'sick'"),
        ({"unit": "patient", "max_records": 2, "memory_limit": 10}, "leave memory_limit out"),
    ],
)
def test_a_wrong_unit_is_refused_in_words(visits, given, message):
    with pytest.raises(ValueError, match=message):
        datasets.load("visits.csv", **visits, **given)
    with pytest.raises(ValueError, match="no table of yours"):
        datasets.load("randhie", unit="patient", max_records=2)


def test_an_array_file_has_no_column_of_units(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones((2, 1)), y=np.ones(2))
    with pytest.raises(ValueError, match="have no names"):
        datasets.load(tmp_path / "a.npz", unit="0", max_records=2, bounds=[[0, 1]])


@pytest.mark.ci
def test_the_command_line_trains_on_persons_and_the_model_predicts(visits, capsys):
    command = "run dp-gd --data visits.csv --label sick --classes no,yes --bounds b.json"
    unit = "--steps 2 --unit patient --max-records 2 --intercept --delta 1e-5"
    assert main([*command.split(), *unit.split(), "--dry-run"]) == 0
    assert "memory:" in capsys.readouterr().out
    assert main([*command.split(), *unit.split(), "--exact", "--save", "m"]) == 0
    printed = capsys.readouterr().out
    assert "one 'patient' with all its rows" in printed and "n = 2" in printed
    assert "exact_accuracy" in printed
    assert len(dpjax.load("m").predict({"age": [20, 80]})) == 2
    assert main([*command.split(), *unit.split(), "--estimate", "0.1"]) == 0
    assert "accuracy on the training records" in capsys.readouterr().out
