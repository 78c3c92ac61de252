"""Coefficients by name and in the units of the columns, against least squares in raw units."""

import csv
import dataclasses
import datetime
import json

import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression

from dpjax.algorithms import ErrorBars, PopulationBars
from dpjax.datasets import Preprocessing, load
from dpjax.datasets.encoders import Numeric
from dpjax.diagnostics import exact_optimum
from dpjax.objectives import logistic_l2, softmax
from dpjax.results.coefficients import coefficients

N = 200
CITIES, GRADES = ["bern", "oslo", "rome"], ["low", "mid", "high"]
FIRST, LAST = datetime.date(2000, 1, 1), datetime.date(2020, 12, 31)
SCHEMA = {
    "quoted_line_breaks": False,
    "label": {"column": "rent", "bounds": [100, 900]},
    "columns": {
        "id": {"ignore": True},
        "area": {"bounds": [20, 140]},
        "city": {"levels": CITIES},
        "built": {"bounds": [FIRST, LAST]},
        "grade": {"order": GRADES},
    },
}
NAMES = ("area", "city=bern", "city=oslo", "city=rome", "built", "grade", "intercept")


def homes():
    """Columns as a person knows them: areas, cities, dates, grades, and rents with an error."""
    rng = np.random.default_rng(0)
    area, city = rng.uniform(20, 140, N).round(1), rng.integers(3, size=N)
    days, grade = rng.integers((LAST - FIRST).days + 1, size=N), rng.integers(3, size=N)
    rent = 150 + 3 * area + np.array([0, 60, -40])[city] + days / 100 + 25 * grade
    return area, city, days, grade, (rent + rng.normal(0, 20, N)).round(2)


@pytest.fixture
def data(tmp_path):
    area, city, days, grade, rent = homes()
    with open(tmp_path / "homes.csv", "w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["id", "area", "city", "built", "grade", "rent"])
        for row in range(N):
            day = FIRST + datetime.timedelta(int(days[row]))
            cells = [CITIES[city[row]], day, GRADES[grade[row]], rent[row]]
            lines.writerow([row, area[row], *cells])
    return load(tmp_path / "homes.csv", schema=SCHEMA)


def raw_fit():
    """Ordinary least squares in raw units, levels about their mean: values and pseudo-inverse."""
    area, city, days, grade, rent = homes()
    levels = np.eye(3)[city]
    # Bern and Oslo against Rome: the three effects sum to 0.
    design = np.stack(
        [area, levels[:, 0] - levels[:, 2], levels[:, 1] - levels[:, 2], days, grade, np.ones(N)], 1
    )
    # From those six to the seven names.
    named = np.insert(np.eye(6), 3, [0.0, -1.0, -1.0, 0.0, 0.0, 0.0], axis=0)
    inverse = named @ np.linalg.pinv(design)
    return inverse @ rent, inverse


def bars_of(estimate, covariance):
    return ErrorBars(estimate, covariance, 0.0, 0.0, True, True, True)


def test_least_squares_has_the_coefficients_and_intervals_of_raw_units(data):
    rows, half_range = data.x.astype(np.float64), 400.0
    inverse = np.linalg.pinv(rows, rcond=1e-6)
    params, covariance = inverse @ data.y, inverse @ inverse.T
    found = coefficients(params, data.preprocessing, bars_of(params, covariance), numeric=True)
    values, raw = raw_fit()
    assert found.names == NAMES
    assert found.per == ("1", "", "", "", "day", "level", "")
    np.testing.assert_allclose(found.values, values, rtol=1e-3, atol=1e-3)
    span = np.array([120, 1, 1, 1, (LAST - FIRST).days, 2, np.nan])
    np.testing.assert_array_equal(found.spans, span)
    assert found.refusal is None and "In the units of the label" in found.caption
    stddev = half_range * np.sqrt((raw**2).sum(axis=1))
    expected = stats.norm.ppf(0.975) * stddev
    np.testing.assert_allclose((found.upper - found.lower) / 2, expected, rtol=1e-3)
    np.testing.assert_allclose((found.upper + found.lower) / 2, found.values, rtol=1e-5)
    # Planted: without what parameters have in common the interval of the intercept is another.
    alone = bars_of(params, np.diag(np.diag(covariance)))
    wrong = coefficients(params, data.preprocessing, alone, numeric=True)
    assert abs((wrong.upper - wrong.lower)[-1] / 2 / expected[-1] - 1) > 0.05


def test_predictions_are_the_sum_of_the_coefficients(data):
    params = np.random.default_rng(1).normal(size=data.dimension)
    found = dict(
        zip(NAMES, coefficients(params, data.preprocessing, None, numeric=True).values, strict=True)
    )
    area, city, days, grade, _ = homes()
    by_name = found["intercept"] + found["area"] * area + found["built"] * days
    by_name += found["grade"] * grade + np.array([found[f"city={c}"] for c in CITIES])[city]
    predicted = data.preprocessing.unscale_labels(data.x.astype(np.float64) @ params)
    np.testing.assert_allclose(by_name, predicted, rtol=1e-4)


NORMED = Preprocessing((Numeric("age", 0, 9), Numeric("income", 0, 9)), True, ("no", "yes"))
SOFT = ("bern", "oslo", "rome")


@pytest.mark.parametrize(
    ("scale", "classes", "names", "caption"),
    [
        (NORMED, (), ("age", "income", "intercept"), "Each row was divided by its own norm"),
        (NORMED, SOFT, ("age", "income", "intercept"), "Each row was divided by its own norm"),
        (None, (), ("feature 0", "feature 1", "feature 2"), "as the rows were passed"),
        (None, SOFT, ("feature 0", "feature 1", "feature 2"), "as the rows were passed"),
    ],
)
def test_of_classes_the_parameters_are_named_and_not_rescaled(scale, classes, names, caption):
    params = np.arange(3.0 * max(len(classes), 1))
    bars = bars_of(params, np.diag(params + 1) ** 2)
    found = coefficients(params, scale, bars, classes=classes)
    shape = (len(classes), 3) if classes else (3,)
    assert found.names == names and caption in found.caption
    assert found.classes == (classes or None)
    np.testing.assert_array_equal(found.values, params.reshape(shape))
    half = (found.upper - found.lower) / 2
    np.testing.assert_allclose(half, 1.96 * (params + 1).reshape(shape), rtol=1e-3)
    np.testing.assert_allclose(found.noise, half, rtol=1e-5)
    printed = repr(found)
    assert all(name in printed for name in (*names, *classes))
    # A head, a rule, a line each, and an empty one between classes.
    assert len(printed.splitlines()) == 6 * max(len(classes), 1) - 1


@pytest.mark.parametrize(
    ("bars", "why"),
    [
        (None, "the gradient and the Hessian of all records"),
        (
            ErrorBars(np.ones(3), np.eye(3), 0.0, 0.0, False, True, True),
            "cut off by the trust region",
        ),
    ],
)
def test_without_intervals_the_reason_is_said(bars, why):
    found = coefficients(np.ones(3), NORMED, bars)
    assert found.lower is None and found.upper is None
    assert why in found.refusal and why in found.interval_caption and "[" not in repr(found)
    # Where the noise is known it stands there all the same.
    assert (bars is not None) == ("+- 1.96" in repr(found))


# People with a number, levels and an order, and an illness of two or three kinds.
M = 4_000
ILL = ("no", "mild", "severe")
PEOPLE: dict = {
    "columns": {
        "age": {"bounds": [20, 80]},
        "city": {"levels": CITIES, "reference": "rome"},
        "smokes": {"levels": ["no"], "other": True},
        "grade": {"order": GRADES},
    },
}


def people(classes):
    rng = np.random.default_rng(0)
    age, grade = rng.uniform(20, 80, M), rng.integers(3, size=M)
    city, smokes = rng.integers(3, size=M), rng.integers(2, size=M)
    scores = np.stack([0 * age, 0.05 * (age - 50) + (city == 0), 0.03 * (age - 60) + smokes], 1)
    place = np.argmax(scores[:, :classes] + rng.gumbel(size=(M, classes)), axis=1)
    table = {
        "age": age,
        "city": np.array(CITIES)[city],
        "smokes": np.array(["no", "yes"])[smokes],
        "grade": np.array(GRADES)[grade],
        "ill": np.array(ILL)[place],
    }
    design = np.stack([age, city == 0, city == 1, smokes, grade, np.ones(M)], 1)
    schema = PEOPLE | {"label": {"column": "ill", "classes": ILL[:classes]}}
    return table, schema, design, place


@pytest.mark.parametrize("classes", [2, 3])
def test_for_inference_coefficients_are_log_odds_per_unit(classes):
    table, schema, design, place = people(classes)
    data = load(table, schema=schema, inference=True)
    objective = logistic_l2(1e-9) if classes == 2 else softmax(3, 1e-9)
    params, _ = exact_optimum(objective.free_intercept(), (data.x, data.y))
    named = () if classes == 2 else ILL
    found = coefficients(np.asarray(params), data.preprocessing, None, classes=named)
    # An "other" level is called so.
    names = ("age", "city=bern", "city=oslo", "smokes=other", "grade", "intercept")
    assert found.names == names and found.classes == (named[1:] or None)
    wanted = LogisticRegression(C=np.inf, tol=1e-8, max_iter=5_000).fit(
        (design[:, :-1] - design[:, :-1].mean(axis=0)), place
    )
    slopes = wanted.coef_ if classes == 2 else wanted.coef_[1:] - wanted.coef_[0]
    np.testing.assert_allclose(np.atleast_2d(found.values)[:, :-1], slopes, rtol=0.01, atol=0.002)
    assert "city=rome" in found.caption and "log-odds" in found.caption
    # Planted: columns that are read as if each row had been divided by its own norm.
    normed = dataclasses.replace(data.preprocessing, constant=False)
    wrong = coefficients(np.asarray(params), normed, None, classes=named)
    assert "own norm" in wrong.caption
    assert abs(np.atleast_2d(wrong.values)[0, 0] / np.atleast_2d(found.values)[0, 0] - 1) > 1


def of_population(strength):
    values = np.array([0.0, 3.0, -4.0])
    covariance = np.array([[4.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
    bars = PopulationBars(values, covariance, covariance / 4, strength, 0.0, True)
    return coefficients(values, NORMED, bars, penalty="L2, strength 1e-05"), covariance


def test_a_summary_has_what_people_know_and_what_noise_alone_gives():
    found, covariance = of_population(3.0)
    np.testing.assert_allclose(found.errors, np.sqrt(np.diag(covariance)))
    np.testing.assert_allclose(found.z, found.values / found.errors)
    np.testing.assert_allclose(found.p_values, 2 * stats.norm.sf(np.abs(found.z)))
    np.testing.assert_allclose(found.upper - found.values, 1.96 * found.errors, rtol=1e-4)
    np.testing.assert_allclose(found.noise, 1.96 * found.errors / 2, rtol=1e-4)
    assert found.within_noise.tolist() == [True, False, False]
    words = found.summary()
    heads = ("coef", "std err", "z", "P>|z|", "[0.025", "0.975]", "noise alone")
    assert all(head in words.splitlines()[0] for head in heads) and "(0)" in words
    assert "sampling" in words and "L2, strength 1e-05" in " ".join(words.split())
    held = json.loads(json.dumps(found.to_dict()))
    assert held["p_values"] == found.p_values.tolist() and held["within_noise"][0]


def test_where_columns_vary_too_little_those_with_the_widest_noise_are_named():
    found, covariance = of_population(0.3)
    widest = found.names[int(np.argmax(np.diag(covariance)))]
    assert found.refusal.endswith(f"; noise alone is widest for {widest}")


def test_without_an_interval_noise_alone_stands_beside_every_coefficient():
    found, _ = of_population(0.4)
    assert found.errors is None and found.p_values is None and found.noise is not None
    words = " ".join(found.summary().split())
    assert "P>|z|" not in words.split("No intervals")[0] and words.count("+-") == 3
    assert "raise epsilon" in words
    # Without curvature the noise has no bound, and no number understates it.
    flat = ErrorBars(np.ones(3), np.eye(3), 0.0, 0.0, True, False, True)
    unbounded = coefficients(np.ones(3), NORMED, flat)
    assert unbounded.to_dict()["noise"] == [None] * 3 and repr(unbounded).count("no bound") == 3


def test_a_declared_norm_changes_no_unit():
    table, schema, _, _ = people(2)
    rng, found = np.random.default_rng(1), []
    for most in (None, 2.0):
        data = load(table, schema=schema | ({"max_norm": most} if most else {}), inference=True)
        lengths = np.linalg.norm(data.x, axis=1)
        assert lengths.max() <= 1 + 1e-6
        params = rng.normal(size=data.dimension)
        held = coefficients(params, data.preprocessing, None)
        inside = lengths < 1 - 1e-6
        design = people(2)[2]
        np.testing.assert_allclose(
            (design @ held.values)[inside], (data.x @ params)[inside], rtol=1e-3, atol=1e-4
        )
        found.append(inside.mean())
    assert found[0] > 0.99 and 0.1 < found[1] < 0.99
