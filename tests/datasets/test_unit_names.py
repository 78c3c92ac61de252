"""Whose a record is: the name that a cell gives to a person, by the declared type of the ids."""

import decimal

import numpy as np
import pytest

import dpjax.estimators
from dpjax import datasets
from dpjax.cli.main import main
from dpjax.datasets.cells import unit_name

TYPES = ("number", "text", None)
# A cell, and its name as a number, as text, and where no type is declared; "" names nobody.
CELLS = {
    "an integer": (7, "7", "7", "7"),
    "digits": ("7", "7", "7", "7"),
    "white space": ("\u00a07 \t", "7", "7", "7"),
    "a point, as pandas writes it": ("7.0", "7", "7.0", "7"),
    "a point alone": ("7.", "7", "7.", "7"),
    "zeros before it": ("007", "7", "007", ""),
    "a sign": ("+7", "7", "+7", ""),
    "an exponent, as R writes it": ("1e+05", "100000", "1e+05", ""),
    "a hexadecimal id": ("12E4", "120000", "12E4", ""),
    "a fraction": ("7.5", "", "7.5", ""),
    "a comma": ("7,0", "", "7,0", ""),
    "thousands": ("1,000", "", "1,000", ""),
    "below 0": ("-7", "-7", "-7", "-7"),
    "negative zero": ("-0", "0", "-0", "0"),
    "digits of another script": ("\u0667", "", "\u0667", ""),
    "underscores": ("1_0", "", "1_0", "1_0"),
    "large digits": (f"{2**53 + 1}", f"{2**53 + 1}", f"{2**53 + 1}", f"{2**53 + 1}"),
    "a large float as text": (f"{2**53}.0", "", f"{2**53}.0", ""),
    "a large exponent": ("1e+16", "", "1e+16", ""),
    "beyond float64": ("1e999", "", "1e999", ""),
    "thousands of digits": ("9" * 5_000, "", "9" * 5_000, ""),
    "a float": (7.0, "7", "", "7"),
    "a float of a fraction": (7.5, "", "", ""),
    "a float of negative zero": (-0.0, "0", "", "0"),
    "a large float": (2.0**53, "", "", ""),
    "a float32 that others round to": (np.float32(2**24), "", "", ""),
    "a large integer": (2**53 + 1, f"{2**53 + 1}", f"{2**53 + 1}", f"{2**53 + 1}"),
    "an integer of NumPy": (np.uint64(2**63), f"{2**63}", f"{2**63}", f"{2**63}"),
    "a decimal": (decimal.Decimal("7.00"), "7", "7", "7"),
    "a decimal of a fraction": (decimal.Decimal("7.5"), "", "", ""),
    "a huge decimal": (decimal.Decimal("1e999999"), "", "", ""),
    "a decimal NaN": (decimal.Decimal("sNaN"), "", "", ""),
    "a word": (" ann", "", "ann", "ann"),
    "bytes": (b"ann", "", "ann", "ann"),
    "a composed letter": ("Zoe\u0301", "", "Zo\u00e9", "Zo\u00e9"),
    "digits with a dash": ("12-345", "", "12-345", "12-345"),
    "points": ("10.0.0.1", "", "10.0.0.1", "10.0.0.1"),
    "a word for a missing cell": ("NA", "", "", ""),
    "NaN as text": ("nan", "", "", ""),
    "empty": (" ", "", "", ""),
    "None": (None, "", "", ""),
    "NaN": (float("nan"), "", "", ""),
    "infinity": (float("inf"), "", "", ""),
    "True": (True, "", "", ""),
    "True of NumPy": (np.True_, "", "", ""),
    "a date": (np.datetime64("2020-01-02"), "", "2020-01-02", "2020-01-02"),
    "a duration": (np.timedelta64(7, "s"), "", "", ""),
}


@pytest.mark.parametrize(("cell", "names"), [(c, n) for c, *n in CELLS.values()], ids=CELLS.keys())
def test_c74_a_cell_names_a_person_by_the_declared_type(cell, names):
    assert [unit_name(cell, kind) for kind in TYPES] == names


IDS = ["7", "7.0", "007", "+7", "8", "8.5", "", "NA", "Zo\u00e9", "Zoe\u0301", "1e3", "ann"]
# Rows of each person, in the order of their first rows.
PERSONS = {"number": [4, 1, 1], "text": [1] * 6 + [2, 1, 1], None: [2, 1, 2, 1]}
OPTIONS = {"label": "y", "classes": (0, 1), "bounds": {"x": [0, 1]}, "unit": "who"}


def held_as(form, ids, tmp_path):
    """A table of one feature, with ids, in a form."""
    table = {"x": [0.5] * len(ids), "y": [0, 1] * (len(ids) // 2), "who": ids}
    if form == "csv":
        lines = ["x,y,who", *(f"{x},{y},{who}" for x, y, who in zip(*table.values(), strict=True))]
        (tmp_path / "t.csv").write_text("\n".join(lines), "utf-8")
        return tmp_path / "t.csv"
    if form == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(
            pyarrow.table(table), tmp_path / "t.parquet", row_group_size=5
        )
        return tmp_path / "t.parquet"
    if form == "array":
        return table | {"who": np.array(ids)}
    if form in ("pandas", "polars"):
        return pytest.importorskip(form).DataFrame(table)
    return table


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("form", ["csv", "parquet", "array", "pandas", "polars", "lists"])
def test_c74_one_person_is_one_unit_in_every_form_of_a_table(form, kind, tmp_path):
    table = held_as(form, IDS, tmp_path)
    data = datasets.load(table, max_records=9, unit_type=kind, **OPTIONS)
    assert data.present.sum(1).tolist() == PERSONS[kind] and data.unit == "who"
    unit = {"column": "who", "max_records": 9} | ({} if kind is None else {"type": kind})
    schema = {"label": {"column": "y", "classes": [0, 1]}, "columns": {"x": {"bounds": [0, 1]}}}
    same = datasets.load(table, schema=schema | {"unit": unit})
    assert same.present.sum(1).tolist() == PERSONS[kind]
    _, present = datasets.group((np.zeros(len(IDS)),), IDS, 9, unit_type=kind)
    assert present.sum(1).tolist() == PERSONS[kind]


def test_c74_an_id_as_integers_and_as_floats_is_one_person(tmp_path):
    """Two exports in one file: pandas writes 7 as 7.0 where another id is missing."""
    table = held_as("csv", ["7", "8", "7.0", "", "8.5", "NaN"], tmp_path)
    for kind in ("number", None):
        data = datasets.load(table, max_records=9, unit_type=kind, **OPTIONS)
        assert data.present.sum(1).tolist() == [2, 1]


LARGE = 2.0**53


@pytest.mark.parametrize("form", ["float64", "float32", "pandas", "Float64", "polars", "parquet"])
def test_c74_ids_stored_as_floats_are_declared(form, tmp_path):
    """By the dtype alone; what other integers round to then is nobody, and raises nothing."""
    cells = [7.0, 8.0, 7.0, LARGE, 8.5, float("nan")]
    table = held_as({"float64": "array", "Float64": "pandas"}.get(form, form), cells, tmp_path)
    if form == "float32":
        table = table | {"who": np.array(cells, np.float32)}
    if form == "Float64":
        table["who"] = table["who"].astype("Float64")
    for kind in (None, "text"):
        with pytest.raises(ValueError, match=r"is stored as .*unit_type='number', or type = "):
            datasets.load(table, max_records=9, unit_type=kind, **OPTIONS)
    data = datasets.load(table, max_records=9, unit_type="number", **OPTIONS)
    assert data.present.sum(1).tolist() == [2, 1]
    schema = {"label": {"column": "y", "classes": [0, 1]}, "columns": {"x": {"bounds": [0, 1]}}}
    unit = {"column": "who", "max_records": 9}
    for read in (datasets.load, datasets.check):
        with pytest.raises(ValueError, match="is stored as"):
            read(table, schema=schema | {"unit": unit})
    schema["unit"] = unit | {"type": "number"}
    assert datasets.load(table, schema=schema).present.sum(1).tolist() == [2, 1]
    report = datasets.check(table, schema=schema)
    assert report.exact_null_rows == 3 and "which names nobody" in report.exact_problems[-1]


def test_c74_every_door_refuses_ids_stored_as_floats():
    x, y, who = np.ones((4, 2), np.float32), np.float32([0, 1, 0, 1]), np.array([7, 8, 7, np.nan])
    doors = {
        "group": lambda: datasets.group((x, y), by=who, max_records=2),
        "fit": lambda: dpjax.fit(
            lambda params, x: x @ params, "cross_entropy", (x, y), dpjax.PrivacyBudget(1.0, 1e-5),
            None, params=np.zeros((2, 2)), groups=who, max_records=2, batch_size=2, steps=1, seed=0,
        ),
        "an estimator": lambda: dpjax.estimators.DPLogisticRegression(
            bounds=(0, 1), classes=(0, 1), epsilon=1.0, max_records=2, random_state=0
        ).fit(x, y, who),
    }  # fmt: skip
    for name, door in doors.items():
        with pytest.raises(ValueError, match="by is stored as float64"):
            door()
            pytest.fail(name)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"unit_type": "int"}, "unknown type of units 'int'. Choose from: number, text"),
        ({"unit_type": "number", "unit": None, "max_records": None}, "unit_type is for units"),
    ],
)
def test_bad_types_of_ids(given, message, tmp_path):
    options = OPTIONS | {"max_records": 2} | given
    with pytest.raises(ValueError, match=message):
        datasets.load(held_as("lists", IDS, tmp_path), **options)
    schema = {"label": {"column": "y", "classes": [0, 1]}, "columns": {"x": {"bounds": [0, 1]}}}
    schema["unit"] = {"column": "who", "max_records": 2, "type": "int"}
    with pytest.raises(ValueError, match="unknown type of units 'int'"):
        datasets.load(held_as("lists", IDS, tmp_path), schema=schema)
    with pytest.raises(ValueError, match="unit_type must be left out beside schema"):
        datasets.load(held_as("lists", IDS, tmp_path), schema=schema, unit_type="text")
    with pytest.raises(ValueError, match="must hold whole numbers or strings, got datetime64"):
        datasets.group((np.zeros(2),), np.zeros(2, "M8[D]"), 1, unit_type="number")


@pytest.mark.ci
def test_the_command_line_takes_the_type_of_the_ids(tmp_path, capsys):
    table = str(held_as("csv", ["007", "007", "008", "7"], tmp_path))
    (tmp_path / "b.json").write_text('{"x": [0, 1]}')
    words = ["run", "--data", table, "--label", "y", "--classes", "0,1", "--unit", "who"]
    words += ["--bounds", str(tmp_path / "b.json"), "--max-records", "2", "--dry-run"]
    for kind, persons in (("number", 2), ("text", 3)):
        assert main([*words, "--unit-type", kind]) == 0
        assert f"n = {persons}" in capsys.readouterr().out.replace("units", "n")


def test_the_check_names_ids_that_are_nobody(tmp_path, capsys):
    table = str(held_as("csv", ["007", "007", "1e3", "", "NA", "9"], tmp_path))
    schema = tmp_path / "s.toml"
    text = '[label]\ncolumn = "y"\nclasses = [0, 1]\n[columns.x]\nbounds = [0, 1]\n'
    schema.write_text(text + '[unit]\ncolumn = "who"\nmax_records = 2\n')
    assert main(["data", table, "--check", "--schema", str(schema)]) == 1
    said = capsys.readouterr().out
    assert "the unit 'who' holds '007' 2 times, '1e3' 1 times, which names nobody" in said
    assert "rows that contribute nothing: 5" in said
    schema.write_text(text + '[unit]\ncolumn = "who"\nmax_records = 2\ntype = "text"\n')
    assert main(["data", table, "--check", "--schema", str(schema)]) == 0
