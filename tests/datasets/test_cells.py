"""What number and what label each kind of cell is: the same in every form of a table."""

import datetime
import decimal

import numpy as np
import pytest

from dpjax.datasets import encode_labels, load
from dpjax.estimators import arrays

CLASSES = [(0, 1), (1, -1), ("no", "yes"), (False, True), ("True", 2.5, 1)]
# A cell, its number, and its code among each of CLASSES; None and "." make a null record.
CELLS = [
    (None, None, "....."),
    ("", None, "....."),
    (" ", None, "....."),
    ("x", None, "....."),
    ("1", 1, "+-.+2"),
    (" 1.0 ", 1, "+-.+2"),
    ("+1", 1, "+-.+2"),
    ("01", 1, "+-.+2"),
    ("1e0", 1, "+-.+2"),
    ("1_0", 10, "....."),
    ("-1", -1, "-+.-."),
    ("-0", 0, "-+.-."),
    ("0x1", None, "....."),
    ("٣", 3, "....."),
    ("½", None, "....."),
    ("1,5", None, "....."),
    ("True", None, "...+0"),
    ("true", None, "....."),
    ("yes", None, "..+.."),
    (" yes ", None, "..+.."),
    ("Yes", None, "....."),
    ("no", None, "..-.."),
    ("nan", None, "....."),
    ("inf", None, "....."),
    ("1e999", None, "....."),
    ("9" * 5_000, None, "....."),
    ("\x00", None, "....."),
    ("\udcff", None, "....."),
    ("2020-01-06", None, "....."),
    (0, 0, "-+.-."),
    (1, 1, "+-.+2"),
    (-1, -1, "-+.-."),
    (2.5, 2.5, "....1"),
    (-0.0, 0, "-+.-."),
    (True, 1, "+-.+0"),
    (False, 0, "-+.-."),
    (10**400, None, "....."),
    (float("nan"), None, "....."),
    (float("inf"), None, "....."),
    (b"1", 1, "+-.+2"),
    (b"yes", None, "..+.."),
    (b"\xff", None, "....."),
    (np.int64(1), 1, "+-.+2"),
    (np.float16(0.5), 0.5, "....."),
    (np.bool_(True), 1, "+-.+0"),
    (np.str_("yes"), None, "..+.."),
    (np.array(1), 1, "+-.+2"),
    (np.zeros(1), None, "....."),
    (decimal.Decimal("1.5"), 1.5, "....."),
    (decimal.Decimal("NaN"), None, "....."),
    (1 + 0j, None, "....."),
    (np.datetime64("2020-01-06"), None, "....."),
    (np.timedelta64(1, "D"), None, "....."),
    (datetime.date(2020, 1, 6), None, "....."),
    ([1], None, "....."),
    ({}, None, "....."),
    (object(), None, "....."),
    (np.ma.masked, None, "....."),
]  # fmt: skip
CODES = {"+": 1.0, "-": -1.0, ".": np.nan}
FORMS = ["mapping", "pandas", "csv", "parquet"]


def read(form, folder, **declared):
    """The CELLS that a form of table can hold, and what is loaded of them as its column ``c``."""
    held = [row for row in CELLS if isinstance(row[0], str) or form in ("mapping", "pandas")]
    if form == "parquet":
        held = [row for row in held if row[0] != "\udcff"]  # which is no text in UTF-8
    cells = [row[0] for row in held]
    table = {"a": [1] * len(held), "c": cells, "y": [at % 2 for at in range(len(held))]}
    if form == "pandas":
        column = np.fromiter(cells, object)
        table = pytest.importorskip("pandas").DataFrame(table | {"c": column})
    elif form == "csv":
        lines = [f'1,"{cell}",{y}' for cell, y in zip(cells, table["y"], strict=True)]
        text, table = "\n".join(["a,c,y", *lines]), folder / "table.csv"
        table.write_text(text, encoding="utf-8", errors="surrogateescape")
    elif form == "parquet":
        pyarrow, parquet = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
        parquet.write_table(pyarrow.table(table), folder / "table.parquet", row_group_size=7)
        table = folder / "table.parquet"
    return held, load(table, **declared)


def numbers(held):
    return np.array([np.nan if row[1] is None else row[1] for row in held])


@pytest.mark.parametrize("form", FORMS[:3])  # a column of text is no column of numbers in Parquet
def test_the_number_of_a_cell(form, tmp_path):
    bounds = {"a": [0, 1], "c": [-16, 16]}
    schema = {
        "label": {"column": "y", "classes": [0, 1]},
        "columns": {name: {"bounds": pair} for name, pair in bounds.items()},
        "intercept": False,
    }
    for declared in ({"label": "y", "classes": (0, 1), "bounds": bounds}, {"schema": schema}):
        held, data = read(form, tmp_path, **declared)
        np.testing.assert_allclose(data.x[:, 1] / data.x[:, 0] * 32 - 16, numbers(held), atol=1e-5)
        assert np.isnan(data.x[:, 0]).tolist() == np.isnan(numbers(held)).tolist()
    schema["label"] = {"column": "c", "bounds": [-16, 16]}
    schema["columns"]["y"] = schema["columns"].pop("c")
    held, data = read(form, tmp_path, schema=schema)
    np.testing.assert_array_equal(data.y * 16, numbers(held))


@pytest.mark.parametrize("place", range(len(CLASSES)))
@pytest.mark.parametrize("form", FORMS)
def test_the_label_of_a_cell(form, place, tmp_path):
    classes = CLASSES[place]
    schema = {
        "label": {"column": "c", "classes": classes},
        "columns": {"a": {"bounds": [0, 1]}, "y": {"bounds": [0, 1]}},
    }
    bounds = {"a": [0, 1], "y": [0, 1]}
    for declared in ({"label": "c", "classes": classes, "bounds": bounds}, {"schema": schema}):
        held, data = read(form, tmp_path, **declared)
        codes = np.array([CODES.get(row[2][place], row[2][place]) for row in held], np.float32)
        np.testing.assert_array_equal(data.y, codes)
    cells = [row[0] for row in held]
    np.testing.assert_array_equal(encode_labels(cells, classes), codes)


def test_the_cells_of_an_estimator():
    cells = [row[0] for row in CELLS]
    np.testing.assert_array_equal(arrays.numbers(cells, -16.0, 16.0) * 16, numbers(CELLS))
    column = np.fromiter(cells, object)[:, None]
    np.testing.assert_array_equal(arrays.features(column)[:, 0], numbers(CELLS))


@pytest.mark.parametrize("label", [{"classes": [0, 1]}, {"bounds": [0, 1]}], ids=str)
def test_columns_are_scaled_alike_together_one_by_one_and_by_an_estimator(label):
    x = 5 * np.random.default_rng(0).normal(size=(3_000, 3))
    x[5, 1], x[6, 2], x[7] = np.nan, np.inf, -4
    table = dict(zip("abc", x.T, strict=True)) | {"y": np.arange(len(x)) % 2}
    columns: dict[str, dict] = {name: {"bounds": [-4, 5]} for name in "abc"}
    schema = {"label": {"column": "y", **label}, "columns": columns}
    together = load(table, schema=schema).x
    columns["a"]["missing"] = 0  # no cell is; but such a column is scaled by itself
    np.testing.assert_array_equal(load(table, schema=schema).x, together)
    scaling = arrays.declare((-4, 5), None, True, 3, linear="bounds" in label)
    np.testing.assert_array_equal(scaling.rows(x), together)
    assert np.flatnonzero(np.isnan(together).any(axis=1)).tolist() == [5, 6]
