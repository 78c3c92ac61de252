"""Coefficients by name and in the units of the columns, against least squares in raw units."""

import csv
import datetime

import numpy as np
import pytest
from scipy import stats

from dpjax.algorithms import ErrorBars
from dpjax.datasets import Preprocessing, load
from dpjax.datasets.encoders import Numeric
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
    printed = repr(found)
    assert all(name in printed for name in (*names, *classes))
    assert len(printed.splitlines()) == 3 + bool(classes)


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
