"""A schema declares what each column of a table is; nothing but names and dtypes is read off it."""

import datetime
import itertools
import re
import shlex
import tomllib

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax.cli import main
from dpjax.datasets import Schema, check, load, template
from dpjax.datasets.labels import places
from dpjax.datasets.rows import Rows
from dpjax.datasets.source import ROWS_AT_ONCE
from dpjax.results import training_rows

DECLARED = """
quoted_line_breaks = false

[label]
column = "income"
classes = ["no", "yes"]

[columns.age]
bounds = [20, 60]

[columns.begin]
bounds = [2020-01-01, 2020-01-11]

[columns.job]
levels = ["cook", "nurse", 3]
other = true

[columns.grade]
order = ["low", "mid", "high"]

[columns.id]
ignore = true
"""
HEADER = ("age", "begin", "job", "grade", "id", "income")
RECORDS = [
    (30.0, "2020-01-06", "cook", "low", 7, "yes"),
    (60.0, "2020-01-01", "nurse", "mid", 8, "no"),
    (20.0, "2020-01-11", "clown", "high", 9, "no"),
    (70.0, "2019-01-01", "3", "high", 10, "yes"),
]
# Features before they are divided, by hand: age, begin, cook, nurse, 3, other, grade, intercept.
FEATURES = np.array(
    [
        [0.25, 0.5, 1, 0, 0, 0, 0, 1],
        [1, 0, 0, 1, 0, 0, 0.5, 1],
        [0, 1, 0, 0, 0, 1, 1, 1],
        [1, 0, 0, 0, 1, 0, 1, 1],
    ]
)
NAMES = ("age", "begin", "job=cook", "job=nurse", "job=3", "job=other", "grade", "intercept")
SIGNS = [1, -1, -1, 1]
NULL = [np.nan] * 8


def declared(**changed):
    """The schema as a mapping, with some of its parts replaced, or left out where they are None."""
    content = tomllib.loads(DECLARED)
    for path, value in changed.items():
        *parents, name = path.split("__")
        part = content
        for parent in parents:
            part = part.setdefault(parent, {})
        if value is None:
            del part[name]
        else:
            part[name] = value
    return content


def columns(records=RECORDS):
    return dict(zip(HEADER, map(list, zip(*records, strict=True)), strict=True))


def csv_text(records=RECORDS, separator=",", header=HEADER):
    return "".join(f"{separator.join(map(str, line))}\n" for line in (header, *records))


def write(path, text):
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


# Encoding


def test_classes_and_a_row_divided_by_its_norm(tmp_path):
    schema = write(tmp_path / "schema.toml", DECLARED)
    data = load(write(tmp_path / "people.csv", csv_text()), schema=schema)
    norms = np.linalg.norm(FEATURES, axis=1, keepdims=True)
    np.testing.assert_allclose(data.x, FEATURES / norms, atol=1e-7)
    np.testing.assert_array_equal(data.y, SIGNS)
    assert data.preprocessing.features == NAMES and data.dimension == 8
    assert (data.name, data.unit, data.max_norm) == ("people", "row", 1.0)
    assert data.x.dtype == data.y.dtype == np.float32


def test_a_number_as_label_divides_all_rows_by_one_constant():
    numbers = columns() | {"income": [0, 75, 101, None]}
    schema = declared(label={"column": "income", "bounds": [0, 100]})
    data = load(numbers, schema=schema)
    np.testing.assert_array_equal(data.y, np.float32([-1, 0.5, np.nan, np.nan]))
    ranges = np.isin(NAMES, ("age", "begin", "grade"))
    expected = np.where(ranges, 2 * FEATURES - 1, FEATURES) / np.sqrt(5)
    np.testing.assert_allclose(data.x, expected, atol=1e-7)
    scale = data.preprocessing
    assert scale.label_bounds == (0, 100) and scale.classes is None and data.max_norm == 1.0
    np.testing.assert_allclose(scale.unscale_labels(data.y[:2]), [0, 75])
    same = load(columns(), schema=declared()).preprocessing.unscale_labels(data.y[:2])
    np.testing.assert_array_equal(same, data.y[:2])


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("bounds", [None, [0, 1]])
def test_no_row_that_can_be_has_a_norm_above_one(bounds, intercept):
    ends = [(20, 60), ("2020-01-01", "2020-01-11"), ("cook", "?"), ("low", "mid", "high")]
    cells = dict(zip(HEADER, zip(*itertools.product(*ends), strict=True), strict=False))
    label = {"column": "income", **({"bounds": bounds} if bounds else {"classes": ["0", "1"]})}
    rows = len(cells["age"])
    table = cells | {"id": [0] * rows, "income": [1] * rows}
    x = load(table, schema=declared(label=label, intercept=intercept)).x
    assert np.linalg.norm(x.astype(float), axis=1).max() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("cells", "declaration", "expected"),
    [
        (["1", "2.0", 3, True, "x", None], {"levels": [1, 2, 3]}, [0, 1, 2, 0, None, None]),
        ([b"a", " b", "c "], {"levels": ["a", "b", "c"]}, [0, 1, 2]),
        ([True, "False", "true"], {"levels": [False, True]}, [1, 0, None]),
        (np.array([2, 1, 7]), {"levels": ["1", "2.0"]}, [1, 0, None]),
        (np.array([2.0, np.nan]), {"levels": [1, 2], "other": True}, [1, 2]),
        (["", "n/a"], {"levels": ["a"], "other": True}, [1, 1]),
    ],
)
def test_levels_are_compared_as_labels_are(cells, declaration, expected):
    schema = {"label": {"column": "y", "classes": [0, 1]}, "columns": {"c": declaration}}
    x = load({"c": cells, "y": [1] * len(cells)}, schema=schema | {"intercept": False}).x
    found = [None if np.isnan(row).all() else int(row.argmax()) for row in x]
    assert found == expected


def test_the_place_among_labels_is_that_of_the_first_that_is_the_same():
    cells = ["a", "1", 1, 1.0, True, "True", b"b", None, np.nan, "nan", 10**400, " a", "1e0", ()]
    labels = ("True", 1, "a", "b", 2.5, "nan")
    held = np.fromiter(cells, object)
    alone = np.stack([places(held, [label]) for label in labels])  # 0 where it is the same
    of_each = np.where((alone == 0).any(axis=0), (alone == 0).argmax(axis=0), -1)
    assert places(held, labels).tolist() == of_each.tolist()
    assert of_each.tolist() == [2, 1, 1, 1, 0, 0, 3, -1, -1, 5, -1, 2, 1, -1]


@pytest.mark.parametrize(
    ("cell", "place"),
    [
        ("2020-01-06", 0.5),
        (" 2020-01-06T00:00:00 ", 0.5),
        ("2020-01-06 12:00", 0.55),
        ("2020-01-06T02:00+02:00", 0.5),
        ("20200106", 0.5),
        (datetime.date(2020, 1, 6), 0.5),
        (datetime.datetime(2020, 1, 6, 12), 0.55),
        (datetime.datetime(2020, 1, 6, tzinfo=datetime.UTC), 0.5),
        (np.datetime64("2020-01-06"), 0.5),
        ("1066-10-14", 0.0),
        ("9999-12-31", 1.0),
        ("06.01.2020", None),
        ("2020-13-01", None),
        ("0001-01-01T00:00+23:00", None),
        (np.datetime64("NaT"), None),
        (20200106, None),
        (None, None),
    ],
)
def test_dates(cell, place):
    schema = declared(**{"columns__id": {"bounds": ["2020-01-01", datetime.date(2020, 1, 11)]}})
    for name in ("age", "begin", "job", "grade"):
        schema["columns"][name] = {"ignore": True}
    cells = [cell, "2020-01-11"]
    x = load(columns(RECORDS[:2]) | {"id": cells}, schema=schema).x
    assert np.isnan(x[0]).all() if place is None else x[0, 0] / x[0, 1] == pytest.approx(place)
    np.testing.assert_allclose(x[1], [0.5**0.5] * 2, atol=1e-6)


@pytest.mark.parametrize("unit", ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "as", "7D"])
def test_dates_of_numpy_in_every_unit(unit):
    schema = {"label": {"column": "y", "classes": [0, 1]}, "intercept": False}
    schema["columns"] = {"t": {"bounds": ["1970-01-01", "1971-01-01"]}}
    cells = np.array([0, 1, 2**62, -(2**62), "NaT"], f"datetime64[{unit}]")
    x = load({"t": cells, "y": [0] * 5}, schema=schema).preprocessing
    rows = x.rows({"t": cells})
    assert np.isnan(rows[4]).all() and rows[3] == 0 and np.isfinite(rows[:3]).all()
    if unit != "as":  # 2^62 of them are 4.6 s
        assert rows[2] == 1


def test_what_is_missing_counts_as_declared():
    schema = declared(**{"columns__age": {"bounds": [20, 60], "missing": 30}})
    schema["columns"]["begin"] |= {"missing": datetime.date(2020, 1, 6)}
    table = columns() | {"age": ["", 60, 20, 70], "begin": [None, *columns()["begin"][1:]]}
    np.testing.assert_array_equal(load(table, schema=schema).x, load(columns(), schema=schema).x)


# Schemas


GOOD = {
    "no intercept": (declared(intercept=False), NAMES[:-1]),
    "one level and others": (
        declared(columns__job={"levels": ["cook"], "other": True}),
        ("age", "begin", "job=cook", "job=other", "grade", "intercept"),
    ),
    "a level that is false": (
        declared(columns__job={"levels": [False, True]}),
        ("age", "begin", "job=False", "job=True", "grade", "intercept"),
    ),
    "seven classes": (declared(label__classes=list(range(7))), NAMES),
    "a time": (
        declared(columns__begin={"bounds": [datetime.datetime(2020, 1, 1), "2020-01-01T12:00"]}),
        NAMES,
    ),
}


@pytest.mark.parametrize(("schema", "features"), GOOD.values(), ids=GOOD.keys())
def test_good_schemas(schema, features):
    made = Schema.read(schema)
    assert made.features == features and Schema.read(made) is made
    assert hash(made) == hash(Schema.read(schema)) and made == Schema.read(schema)


BAD = {
    "no label": (declared(label=None), "label of the schema must name its column, got None"),
    "no classes": (declared(label__classes=None), "must declare classes.*it declares neither"),
    "classes and bounds": (declared(label__bounds=[0, 1]), "it declares both"),
    "one class": (declared(label__classes=["no"]), "classes of the label .* at least two labels"),
    "a class twice": (declared(label__classes=["no", "no "]), "must be distinct, got 'no ' twice"),
    "a class as number": (declared(label__classes=[1, "1.0"]), "distinct, got '1.0' twice"),
    "label key": (declared(label__class=["a", "b"]), "unknown key 'class'; did you mean 'classes'"),
    "dates as label": (
        declared(label={"column": "begin", "bounds": ["2020-01-01", "2021-01-01"]}),
        "a date cannot be a label",
    ),
    "the label a feature": (
        declared(columns__income={"levels": ["a", "b"]}),
        r"'income' as the label and under \[columns\].*remove \[columns.income\]",
    ),
    "no feature": (
        {"label": {"column": "y", "classes": [0, 1]}, "columns": {"id": {"ignore": True}}},
        "declares no feature",
    ),
    "a kind missing": (declared(columns__age={}), "columns.age .* declares nothing: choose one of"),
    "a kind misspelt": (
        declared(columns__age={"bound": [0, 9]}),
        "age .* declares 'bound': choose",
    ),
    "two kinds": (
        declared(columns__age__levels=["a"]),
        "columns.age .* declares bounds and levels: choose one",
    ),
    "no table": (declared(columns__age=[20, 60]), "columns.age .* must be a table"),
    "bounds the wrong way": (declared(columns__age__bounds=[60, 20]), "finite with low < high"),
    "equal bounds": (declared(columns__age__bounds=[2, 2]), "finite with low < high"),
    "infinite bounds": (declared(columns__age__bounds=[0, float("inf")]), "a finite number"),
    "bounds too far": (declared(columns__age__bounds=[-1e308, 1e308]), "finite with low < high"),
    "three bounds": (declared(columns__age__bounds=[1, 2, 3]), "two numbers or two dates"),
    "words as bounds": (declared(columns__age__bounds=["a", "b"]), "must be a date such as"),
    "a number and a date": (declared(columns__age__bounds=[0, "2020-01-01"]), "one of each"),
    "no bounds": (declared(columns__age__bounds=True), "two numbers or two dates"),
    "missing outside": (declared(columns__age__missing=90), "must lie within its bounds"),
    "missing a word": (declared(columns__age__missing="old"), "missing of columns.age"),
    "a level twice": (declared(columns__job__levels=["a", " a"]), "levels .* distinct"),
    "an equal level": (declared(columns__job__levels=[3, "3.0"]), "levels .* distinct"),
    "an empty level": (declared(columns__job__levels=["a", " "]), "must be words, numbers"),
    "levels a word": (declared(columns__job__levels="cook"), "must be a list of labels"),
    "other a word": (declared(columns__job__other="yes"), "other .* must be True or False"),
    "other declared": (declared(columns__job__levels=["other"]), "the name 'job=other'"),
    "one level in order": (declared(columns__grade__order=["low"]), "order .* at least two labels"),
    "other in order": (declared(columns__grade__other=True), "unknown key 'other'"),
    "a key": (declared(columns__job__othr=True), "unknown key 'othr'; did you mean 'other'"),
    "not ignored": (declared(columns__id__ignore=False), "ignore .* must be true"),
    "a name with a point": (
        declared(columns__hours__per={"bounds": [0, 1]}),
        r'quotes, as in \[columns."hours.per"\]',
    ),
    "a part": (declared(colums={}), "unknown key 'colums'; did you mean 'columns'"),
    "intercept a number": (declared(intercept=1), "intercept .* must be True or False"),
    "a name intercept": (
        declared(columns__intercept={"bounds": [0, 1]}),
        "gives two features the name 'intercept'",
    ),
    "no cap": (declared(unit={"column": "who"}), "max_records .* how many records of one who"),
    "a cap of 0": (declared(unit={"column": "who", "max_records": 0}), "at least 1"),
    "unit a feature": (declared(unit={"column": "age", "max_records": 1}), "'age' as the unit and"),
    "unit the label": (declared(unit={"column": "income", "max_records": 1}), "label and unit"),
    "unit key": (declared(unit={"column": "who", "max": 1}), "unknown key 'max'"),
    "a list": ([1], "must be the path of a TOML file or a mapping"),
}


@pytest.mark.parametrize(("schema", "message"), BAD.values(), ids=BAD.keys())
def test_bad_schemas(schema, message):
    with pytest.raises(ValueError, match=message):
        load(columns(), schema=schema)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[label", "is not valid TOML"),
        (b"[label]\ncolumn = 'y'\n[label]\n", "is not valid TOML.*label"),
        ("[label]\ncolumn = 'é'".encode("latin-1"), "is not UTF-8"),
        (b"", r"label of '.*schema.toml' must name its column"),
        (b"\xef\xbb\xbf[label]\ncolumn = 'y'", "must declare classes"),
    ],
)
def test_bad_files(text, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load(columns(), schema=write(tmp_path / "schema.toml", text))
    with pytest.raises(FileNotFoundError, match=r"there is no schema .*none\.toml"):
        load(columns(), schema=tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("label", "income"),
        ("bounds", {"age": [0, 1]}),
        ("classes", ("no", "yes")),
        ("unit", "id"),
        ("max_records", 3),
        ("intercept", True),
    ],
)
def test_a_schema_replaces_the_other_options(name, value):
    with pytest.raises(ValueError, match=f"{name} must be left out beside schema"):
        load(columns(), schema=declared(), **{name: value})
    for table in ("randhie", "mnist", np.zeros((2, 2))):
        with pytest.raises(ValueError, match="schema is for a table of yours"):
            load(table, schema=declared())


# Tables of other columns


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hours": [1] * 4}, "declares nothing for 'hours' of the table.*--template"),
        ({"": [1] * 4}, r"'' looks like row numbers.*ignore = true under \[columns.\"\"\]"),
        ({"Unnamed: 0": [1] * 4}, r"row numbers.*\[columns.\"Unnamed: 0\"\]"),
        ({"age": None}, "declares 'age', which the table lacks"),
        ({"income": None}, "declares 'income', which the table lacks"),
        (
            {"age": None, "Age": [1] * 4},
            r"'age' \(did you mean 'Age'\?\), which.*nothing for 'Age'",
        ),
        ({"age": np.zeros(4, "M8[D]")}, "'age' .* holds dates, .* declare bounds as dates"),
        ({"begin": np.zeros(4)}, "'begin' .* holds numbers, .* declare bounds as numbers"),
        ({"job": np.zeros(4)}, "levels hold 'cook', but the column 'job' .* holds numbers"),
        ({"grade": np.zeros(4, bool)}, "order hold 'low', but .* holds True and False"),
        ({"grade": np.zeros(4, "M8[D]")}, "'grade' .* holds dates"),
        ({"job": np.zeros(4, complex)}, "'job' .* holds cells of another type.*ignore = true"),
        ({"income": np.zeros(4)}, "classes hold 'no', but the column 'income' .* holds numbers"),
        ({"income": np.zeros(4, "M8[D]")}, "'income' of the table must hold words, .* got dates"),
        ({"age": np.zeros((4, 2))}, "one cell for each record, got 2 axes"),
        ({"job": ["cook"]}, "all columns of the table must have the same number of cells"),
    ],
)
def test_tables_that_do_not_fit(changed, message):
    table = {k: v for k, v in (columns() | changed).items() if v is not None}
    with pytest.raises(ValueError, match=message):
        load(table, schema=declared())


def test_a_model_refuses_tables_of_other_columns():
    scale = load(columns(), schema=declared()).preprocessing
    table = columns()
    for gone in ("income", "id"):
        del table[gone]
    np.testing.assert_array_equal(scale.rows(table | {"new": [0] * 4}), scale.rows(columns()))
    with pytest.raises(ValueError, match="lacks 'job', which the model was trained on"):
        scale.rows({name: cells for name, cells in table.items() if name != "job"})
    with pytest.raises(ValueError, match="'begin' of the table holds numbers"):
        scale.rows(table | {"begin": np.zeros(4)})
    with pytest.raises(ValueError, match=r"array \(n, 4\), .* got 2 axes of 2 columns"):
        scale.rows(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="'begin' of the array holds numbers"):
        scale.rows(np.zeros((2, 4)))


def test_a_table_without_records(tmp_path):
    with pytest.raises(ValueError, match="has no records"):
        load(write(tmp_path / "t.csv", csv_text([])), schema=declared())
    with pytest.raises(ValueError, match="has no records"):
        load({name: [] for name in HEADER}, schema=declared())
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load(tmp_path / "none.csv", schema=declared())


# Files as people have them


QUOTED = csv_text().replace("cook", '"co,ok;x\t|"').replace("low", '"low"')
FILES = {
    "commas": csv_text(),
    "semicolons": csv_text(separator=";"),
    "tabs": csv_text(separator="\t"),
    "bars": csv_text(separator="|"),
    "a byte order mark": "\ufeff" + csv_text(),
    "lines of Windows": csv_text().replace("\n", "\r\n"),
    "blank lines": csv_text().replace("\n", "\n\n \n"),
    "no last line end": csv_text().rstrip(),
    "white space": csv_text(separator=" , "),
    "decimal commas": csv_text(separator=";").replace(".0;", ",0;"),
    "exponents": csv_text().replace("30.0", "3e1"),
}


@pytest.mark.parametrize("text", FILES.values(), ids=FILES.keys())
def test_files_as_people_have_them(text, tmp_path):
    data = load(write(tmp_path / "people.csv", text), schema=declared())
    expected = load(columns(), schema=declared())
    np.testing.assert_array_equal(data.x, expected.x)
    np.testing.assert_array_equal(data.y, expected.y)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_a_quoted_cell_may_hold_any_separator(separator, tmp_path):
    level, cells = "a,b;c|d\te", ['"a,b;c|d\te"', '"say ""hi"""', "1"]
    text = "".join(f"{cell}{separator}yes\n" for cell in ('"the, best;|job"', *cells))
    text = text.replace("yes", "income", 1)
    schema = declared()
    schema["columns"] = {"the, best;|job": {"levels": [level, 'say "hi"', 1]}}
    data = load(write(tmp_path / "t.csv", text), schema=schema | {"intercept": False})
    np.testing.assert_array_equal(data.x, np.eye(3))


def test_a_decimal_comma_is_read_between_semicolons_alone(tmp_path):
    schema = {"label": {"column": "y", "bounds": [0, 10]}, "columns": {"x": {"bounds": [0, 10]}}}
    cells = ["2,5", "2.5", "1.000,5", "1,000,5", ","]
    half = load(
        write(tmp_path / "t.csv", csv_text([(c, c) for c in cells], ";", "xy")), schema=schema
    )
    np.testing.assert_array_equal(half.y, np.float32([-0.5, -0.5, np.nan, np.nan, np.nan]))
    quoted = csv_text([(f'"{c}"', f'"{c}"') for c in cells], ",", "xy")
    other = load(write(tmp_path / "t.csv", quoted), schema=schema)
    assert np.isnan(other.y).tolist() == [True, False, True, True, True]
    assert np.isnan(other.x[:, 0]).tolist() == np.isnan(other.y).tolist()


def test_an_index_column_and_labels_of_other_words(tmp_path):
    records = [(row, *record[:5], record[5].title()) for row, record in enumerate(RECORDS)]
    for name in ("", "Unnamed: 0"):
        path = write(tmp_path / "t.csv", csv_text(records, header=(name, *HEADER)))
        schema = declared(label__classes=["No", "Yes"])
        with pytest.raises(ValueError, match="looks like row numbers that pandas or R wrote"):
            load(path, schema=schema)
        schema["columns"][name] = {"ignore": True}
        np.testing.assert_array_equal(load(path, schema=schema).y, SIGNS)


# Forms of a table


def frames(name):
    """The records as a form of table."""
    held = columns()
    if name == "mapping":
        return held
    if name == "arrays":
        return {k: np.array(v, "M8[D]" if k == "begin" else None) for k, v in held.items()}
    if name == "structured":
        kinds = [("age", "f8"), ("begin", "M8[s]"), ("job", "U9"), ("grade", "S9"), ("id", "i4")]
        return np.array([tuple(r) for r in RECORDS], [*kinds, ("income", "O")])
    if name.startswith("pandas"):
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame(held)
        if name == "pandas dtypes":
            frame["begin"] = pandas.to_datetime(frame["begin"]).dt.tz_localize("UTC")
            frame["age"] = frame["age"].astype("Int64")
            frame[["job", "grade"]] = frame[["job", "grade"]].astype("category")
            frame["income"] = frame["income"].astype("string")
        return frame
    if name.startswith("polars"):
        polars = pytest.importorskip("polars")
        frame = polars.DataFrame(held)
        if name == "polars dtypes":
            to_date = polars.col("begin").str.to_date()
            frame = frame.with_columns(to_date, polars.col("job").cast(polars.Categorical))
        return frame
    pyarrow = pytest.importorskip("pyarrow")
    return pyarrow.table(held)


FRAMES = ["mapping", "arrays", "structured", "pandas", "pandas dtypes", "polars"]
FRAMES += ["polars dtypes", "pyarrow"]


@pytest.mark.parametrize("form", FRAMES)
def test_every_form_of_a_table_gives_the_same_rows(form):
    data, expected = load(frames(form), schema=declared()), load(columns(), schema=declared())
    np.testing.assert_array_equal(data.x, expected.x)
    np.testing.assert_array_equal(data.y, expected.y)
    assert data.preprocessing == expected.preprocessing


def parquet_of(path, held, **options):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = held if isinstance(held, pyarrow.Table) else pyarrow.table(held)
    parquet.write_table(table, path, **options)
    return path


def arrow_columns():
    """The records in the types of arrow that a writer may choose."""
    pyarrow = pytest.importorskip("pyarrow")
    held = columns()
    days = [datetime.date.fromisoformat(cell) for cell in held["begin"]]
    return held | {
        "age": pyarrow.array([int(cell) for cell in held["age"]], pyarrow.int32()),
        "begin": pyarrow.array(days)
        .cast(pyarrow.timestamp("ns"))
        .cast(pyarrow.timestamp("ns", "UTC")),
        "job": pyarrow.array(held["job"]).dictionary_encode(),
        "grade": pyarrow.array(held["grade"], pyarrow.large_string()),
        "id": pyarrow.array([[cell] for cell in held["id"]]),
    }


@pytest.mark.parametrize("typed", [False, True])
def test_parquet(typed, tmp_path):
    held = arrow_columns() if typed else columns()
    path = parquet_of(tmp_path / "people.parquet", held, row_group_size=3)
    expected = load(columns(), schema=declared())
    for limit in (None, 1):
        data = load(path, schema=declared(), memory_limit=limit)
        assert isinstance(data.x, Rows) == isinstance(data.y, Rows) == (limit is not None)
        np.testing.assert_array_equal(np.asarray(data.x), expected.x)
        np.testing.assert_array_equal(np.asarray(data.y), expected.y)
        np.testing.assert_array_equal(data.x[np.array([3, 0])], expected.x[[3, 0]])
    unit = declared(unit={"column": "id", "max_records": 2}, columns__id=None)
    with pytest.raises(ValueError, match="got list" if typed else "leave memory_limit out"):
        load(path, schema=unit, memory_limit=1)


def test_arrays_on_disk(tmp_path):
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=(500, 2)), rng.integers(0, 3, 500)]).astype(np.float32)
    y = rng.integers(0, 2, 500)
    np.save(tmp_path / "t.npy", np.column_stack([x, y]))
    np.savez(tmp_path / "t.npz", X_train=x, y_train=y, X_test=x[:9], y_test=y[:9])
    schema = {"columns": {"0": {"bounds": [-1, 1]}, "1": {"ignore": True}}}
    schema["columns"]["2"] = {"levels": [0, 1]}
    found = []
    for suffix, label in (("npy", "3"), ("npz", "y_train")):
        schema["label"] = {"column": label, "classes": [0, 1]}
        for limit in (None, 100):
            data = load(tmp_path / f"t.{suffix}", schema=schema, memory_limit=limit)
            assert isinstance(data.x, Rows) == (limit is not None)
            found.append((np.asarray(data.x), np.asarray(data.y)))
    assert all(np.array_equal(found[0][0], x, equal_nan=True) for x, _ in found)
    assert all((found[0][1] == y).all() for _, y in found)
    assert np.isnan(found[0][0]).all(axis=1).tolist() == (x[:, 2] == 2).tolist()
    held_out = load(tmp_path / "t.npz", schema=schema)
    np.testing.assert_array_equal(held_out.test_x, held_out.x[:9])
    np.testing.assert_array_equal(held_out.test_y, held_out.y[:9])
    with pytest.raises(ValueError, match="a CSV is read as a whole"):
        load(write(tmp_path / "t.csv", csv_text()), schema=declared(), memory_limit=10)


@pytest.mark.parametrize("form", ["csv", *FRAMES, "parquet"])
def test_persons(form, tmp_path):
    schema = declared(unit={"column": "id", "max_records": 2}, columns__id=None)
    records = [
        (*record[:4], owner, record[5]) for record, owner in zip(RECORDS, "abab", strict=True)
    ]
    table = write(tmp_path / "t.csv", csv_text(records)) if form == "csv" else columns(records)
    if form == "parquet":
        table = parquet_of(tmp_path / "t.parquet", columns(records))
    elif form != "csv" and form not in ("arrays", "structured"):
        table = {name: frames(form)[name] for name in HEADER} | {"id": columns(records)["id"]}
    single = load(columns(), schema=declared())
    data = load(table, schema=schema)
    assert (data.size, data.unit, data.dimension) == (2, "id", 8)
    np.testing.assert_array_equal(data.x, single.x.reshape(2, 2, 8).swapaxes(0, 1))
    np.testing.assert_array_equal(data.y, single.y.reshape(2, 2).T)
    assert data.present.all()


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        (None, "declares 'who', which the table lacks"),
        (np.array([1.5, 2.5, np.nan, 0.5]), "the unit 'who' of the table is stored as float64"),
        (np.zeros(4, bool), "the unit 'who' of the table must hold .* got bool"),
        ([None, "", " ", None], "no record has a unit"),
    ],
)
def test_what_names_no_person(owners, message):
    table = columns() | ({} if owners is None else {"who": owners})
    with pytest.raises(ValueError, match=message):
        load(table, schema=declared(unit={"column": "who", "max_records": 2}))


# One record


STRANGE_LINES = {
    "too few cells": "30,2020-01-06",
    "too many cells": "30,2020-01-06,cook,low,7,yes,8",
    "an open quote": '"30,2020-01-06,cook,low,7,yes',
    "empty cells": ",,,,,",
    "overflow": "1e999,9999-99-99,1e999,-0,0,yes",
    "numbers for words": "1,2,3,4,5,6",
    "words for numbers": "a,b,c,d,e,f",
    "a carriage return": "30\r,2020-01-06,cook\r,low,7,yes",
    "not UTF-8, or a null byte": "30,2020-01-06,\udcff,low,\x00,yes",
    "a huge cell": "9" * 200_000 + ",2020-01-06," + "9" * 5_000 + ",low,7,yes",
    "far out": "1e300,9999-12-31,zebra,high,7,maybe",
}


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("line", STRANGE_LINES.values(), ids=STRANGE_LINES.keys())
def test_c70_one_line_of_a_csv_alters_its_own_row_alone(line, unit, tmp_path):
    schema = (
        declared(unit={"column": "id", "max_records": 1}, columns__id=None) if unit else declared()
    )
    before = load(write(tmp_path / "t.csv", csv_text()), schema=schema)
    for position in (0, 2, 3):
        lines = csv_text().splitlines()
        lines[1 + position] = line
        text = "\n".join(lines).encode("utf-8", "surrogateescape")
        after = load(write(tmp_path / "t.csv", text), schema=schema)
        kept = np.arange(4) != position
        there = kept if after.size == 4 else slice(None)  # of nobody's record there is no unit
        assert unit or after.size == 4
        np.testing.assert_array_equal(after.x[there], before.x[kept])
        np.testing.assert_array_equal(after.y[there], before.y[kept])
        check(tmp_path / "t.csv", schema=schema)


STRANGE_CELLS = [
    None, "", " ", "x", b"\xff", 1, -1.5, 1e308, float("nan"), float("inf"), 10**5_000, 7j, True,
    np.datetime64("NaT"), np.datetime64(2**62, "s"), datetime.date(1, 1, 1), datetime.time(1),
    datetime.datetime.max.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=-23))),
    datetime.timedelta(1), [1, 2], [], {}, (), np.zeros(2), np.zeros((1, 1)), np.float32(3),
    object(), "9" * 5_000, "\x00", "2020-01-06T25:00", "1_0", "٣", Exception("x"), type,
]  # fmt: skip


@pytest.mark.parametrize("name", HEADER)
def test_c70_one_cell_of_any_kind_alters_its_own_row_alone(name):
    numeric = declared(label={"column": "income", "bounds": [0, 100]})
    for schema, table in (
        (declared(), columns()),
        (numeric, columns() | {"income": [1, 50, 2, 3]}),
        (declared(unit={"column": "id", "max_records": 1}, columns__id=None), columns()),
    ):
        before = load(table, schema=schema)
        for cell, row in itertools.product(STRANGE_CELLS, (0, 3)):
            changed = table | {name: [*table[name]]}
            changed[name][row] = cell
            after = load(changed, schema=schema)
            check(changed, schema=schema)
            template(changed)
            kept = np.arange(4) != row
            if schema == numeric or name != "id":
                assert after.x.shape == before.x.shape and after.x.dtype == before.x.dtype
                np.testing.assert_array_equal(after.x[kept], before.x[kept])
                np.testing.assert_array_equal(after.y[kept], before.y[kept])
                assert np.isnan(after.x[row]).all() or not np.isnan(after.x[row]).any()


def test_c70_one_record_among_several_blocks_alters_its_own_row_alone(tmp_path):
    rng = np.random.default_rng(0)
    rows = ROWS_AT_ONCE + 10
    table = {
        "age": rng.uniform(10, 70, rows),
        "begin": np.datetime64("2019-12-25") + rng.integers(0, 30, rows),
        "job": rng.choice(["cook", "nurse", "3", "clown"], rows),
        "grade": rng.choice(["low", "mid", "high", "?"], rows),
        "id": np.arange(rows),
        "income": rng.choice(["no", "yes", "?"], rows),
    }
    extreme = {"age": 1e300, "begin": np.datetime64("1066-01-01"), "job": "zebra", "grade": "z"}
    before = load(table, schema=declared())
    for row in (0, ROWS_AT_ONCE - 1, rows - 1):
        changed = {name: cells.copy() for name, cells in table.items()}
        for name, cell in extreme.items():
            changed[name][row] = cell
        after = load(changed, schema=declared())
        kept = np.arange(rows) != row
        np.testing.assert_array_equal(after.x[kept], before.x[kept])
        np.testing.assert_array_equal(after.y[kept], before.y[kept])
        assert np.isnan(after.x[row]).all()


# What a library makes of a column depends on single cells of it: a missing one changes a dtype.


def nullable(library):
    """A column of whole numbers, and the same with a missing cell, which has another dtype."""
    if library == "lists":
        return [[1], [1], [1]], [[1], None, [1]]
    if library == "pandas":
        pandas = pytest.importorskip("pandas")
        return tuple(pandas.Series(cells, dtype="Int64") for cells in ([1, 2, 1], [1, None, 1]))
    if library == "polars":
        polars = pytest.importorskip("polars")
        return polars.Series([1, 2, 1]), polars.Series([1, None, 1])
    pyarrow = pytest.importorskip("pyarrow")
    return pyarrow.chunked_array([[1, 2, 1]]), pyarrow.chunked_array([[1, None, 1]])


@pytest.mark.parametrize("library", ["lists", "pandas", "polars", "pyarrow"])
@pytest.mark.parametrize("role", ["unit", "bounds", "levels", "label"])
def test_c70_one_missing_cell_raises_no_error(library, role):
    table = {"x": [1, 2, 3], "y": [0, 1, 0]}
    schema = {"label": {"column": "y", "classes": [0, 1]}, "columns": {"x": {"bounds": [0, 4]}}}
    given = {
        "unit": {"unit": {"column": "c", "max_records": 2}},
        "bounds": {"columns": {"x": {"ignore": True}, "c": {"bounds": [0, 9]}}},
        "levels": {"columns": {"x": {"ignore": True}, "c": {"levels": [1, 2]}}},
        "label": {
            "label": {"column": "c", "classes": [1, 2]},
            "columns": {"x": {"bounds": [0, 4]}, "y": {"ignore": True}},
        },
    }[role]  # fmt: skip
    found = []
    for column in nullable(library):
        try:
            found.append(load(table | {"c": column}, schema=schema | given))
        except ValueError as error:
            assert library == "lists" and role == "unit" and "no record has a unit" in str(error)
            return
    full, missing = found
    if role == "unit":
        assert full.size == 2 and missing.size == 1
        np.testing.assert_array_equal(missing.x[0], full.x[0])
        return
    kept = [0, 2]
    np.testing.assert_array_equal(full.x[kept], missing.x[kept])
    np.testing.assert_array_equal(full.y[kept], missing.y[kept])
    assert full.x.dtype == missing.x.dtype and np.isnan([missing.x[1].sum() + missing.y[1]])


def test_parquet_whose_cells_are_missing_or_no_text(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    text = pyarrow.array([b"a", b"\xff", b"b"]).view(pyarrow.string())
    held = {
        "flag": pyarrow.array([True, None, False]),
        "text": text,
        "who": pyarrow.array([2**60 + 1, None, 2**60]),
        "cost": pyarrow.array([1, 2, None], pyarrow.decimal128(5, 2)),
    }
    path = parquet_of(tmp_path / "t.parquet", held)
    schema = {
        "label": {"column": "flag", "classes": [False, True]},
        "unit": {"column": "who", "max_records": 2},
        "columns": {
            "text": {"levels": ["a", "b"], "other": True},
            "cost": {"bounds": [0, 2], "missing": 0},
        },
    }
    data = load(path, schema=schema)
    assert data.size == 2 and data.y[:, 0].tolist() == [
        1,
        -1,
    ]  # ids that float64 does not tell apart
    del schema["unit"]
    schema["columns"]["who"] = {"ignore": True}
    data = load(path, schema=schema)
    np.testing.assert_array_equal(data.y, np.float32([1, np.nan, -1]))
    np.testing.assert_allclose(data.x[:, :3] / data.x[:, -1:], np.eye(3)[[0, 2, 1]])
    np.testing.assert_allclose(data.x[:, 3] / data.x[:, -1], [0.5, 1, 0])


# Templates


def filled(text):
    """A template as a person fills it in for the records."""
    made = tomllib.loads(text)
    made["label"] |= {"column": "income", "classes": ["no", "yes"]}
    made["columns"].pop("income", None)
    for name, declaration in declared()["columns"].items():
        made["columns"][name] = declaration
    return made


@pytest.mark.parametrize("form", ["csv", "semicolons", *FRAMES, "parquet"])
def test_a_template_names_columns_and_kinds_and_is_filled_in(form, tmp_path):
    table = write(tmp_path / "t.csv", csv_text(separator=";" if form == "semicolons" else ","))
    if form == "parquet":
        table = parquet_of(tmp_path / "t.parquet", columns())
    elif form in FRAMES:
        table = frames(form)
    text = template(table)
    kinds = {name: line.partition("# ")[2] for name in HEADER for line in text.splitlines()
             if line.startswith(f"[columns.{name}]")}  # fmt: skip
    dates = "words" if form in ("parquet", "pandas", "polars", "pyarrow") else "dates"
    assert kinds == dict(
        zip(HEADER, ["numbers", dates, *["words"] * 2, "numbers", "words"], strict=True)
    )
    with pytest.raises(
        ValueError, match=r"filled in.* label.column, label.classes, columns.age.bo"
    ):
        Schema.read(write(tmp_path / "schema.toml", text))
    data = load(table, schema=filled(text))
    np.testing.assert_array_equal(data.x, load(columns(), schema=declared()).x)
    labelled = template(table, label="income")
    assert 'column = "income"  # words' in labelled and "[columns.income]" not in labelled
    with pytest.raises(ValueError, match="did you mean 'income'"):
        template(table, label="incom")


def test_a_template_holds_nothing_of_the_records(tmp_path):
    others = [(1e9, "1999-09-09", "zebra", "worst", 12345, "perhaps")] * 3
    texts = [
        template(write(tmp_path / "t.csv", csv_text(records)))
        for records in (RECORDS, others, [*RECORDS, (None,) * 6])
    ]
    assert len(set(texts)) == 1
    assert not any(word in texts[0] for word in ("cook", "yes\n", "2020", "mid"))


def test_a_template_of_strange_names_can_be_read(tmp_path):
    names = [
        "",
        "Unnamed: 0",
        "a.b",
        "é x",
        'say "hi"',
        "back\\slash",
        "#",
        "[x]",
        "\x7f",
        "\t",
        "=",
        "y",
    ]
    made = tomllib.loads(template({name: [1.0] for name in names}, label="y"))
    assert list(made["columns"]) == names[:-1] and made["label"]["column"] == "y"
    assert [name for name in names[:-1] if made["columns"][name] == {"ignore": True}] == names[:2]
    for name in names[2:-1]:
        made["columns"][name] = {"bounds": [0, 1]}
    made["label"]["classes"] = [0, 1]
    assert load({name: [1.0] for name in names}, schema=made).size == 1


def test_an_archive_tells_its_label(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.ones((2, 1)), y=np.ones(2, int))
    assert 'column = "y"  # numbers' in template(tmp_path / "t.npz")
    with pytest.raises(ValueError, match="a table must be a path"):
        template(np.ones(3))


def test_two_columns_of_one_name_are_refused(tmp_path):
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    frame = pandas.DataFrame([[1, 2, 0], [3, 4, 1]], columns=["x", "x", "y"])
    schema = {"label": {"column": "y", "classes": [0, 1]}, "columns": {"x": {"bounds": [0, 9]}}}
    with pytest.raises(ValueError, match=r"names 'x' twice"):
        load(frame, schema=schema)
    twice = pyarrow.table([[1], [2], [0]], names=["x", "x", "y"])
    with pytest.raises(ValueError, match="names 'x' twice"):
        load(parquet_of(tmp_path / "t.parquet", twice), schema=schema)


# Counts for the owner


def test_the_check_counts_what_is_left_out_and_says_what_to_declare(tmp_path):
    records = [
        *RECORDS,
        ("", "2020-01-02", "cook", "low", 1, "yes"),
        (30, "soon", "clown", "low", 2, "yes"),
        (30, "2020-01-02", "", "good", 3, "?"),
        (30, "2020-01-02", "cook", "good", 4, "maybe"),
        (30, "2020-01-02", "cook", "best", 5, "no"),
        RECORDS[0],
        (30, "2020-01-02"),
        (30, "2020-01-02", "cook", "low", 4, "maybe"),
        (30, "2020-01-02", "cook", "low", 4, "maybe"),
    ]
    path = write(tmp_path / "t.csv", csv_text(records))
    report, data = check(path, schema=declared()), load(path, schema=declared())
    assert report.exact_rows == len(records) and report.unit == "row"
    assert report.exact_class_counts == {"no": 3, "yes": 5}
    assert report.exact_impossible_labels == np.isnan(data.y).sum() == 5
    assert report.exact_other_labels == {"maybe": 3}
    assert report.exact_nonfinite == {"age": 2, "begin": 2, "grade": 4}
    assert report.exact_nonfinite_rows == np.isnan(data.x).any(axis=1).sum() == 6
    assert report.exact_outside == {"age": 1, "begin": 1}
    assert report.exact_undeclared == {"job": {"clown": 2}, "grade": {"good": 2, "best": 1}}
    assert report.exact_null_rows == 8 and report.exact_duplicate_rows == 2
    lines = report.lines()
    assert lines[0].startswith("NOT PRIVATE")
    assert "rows that contribute nothing: 8 (to keep" in lines[-3]
    label, grade = report.exact_problems
    assert "'maybe' 3 times; declared are 'no' (as -1), 'yes' (as +1);" in label
    assert "from public knowledge" in label
    assert "'grade' holds 'good' 2 times, 'best' 1 times" in grade and "other = true" in grade
    clean = check(write(tmp_path / "t.csv", csv_text()), schema=declared())
    assert clean.exact_problems == () and clean.exact_null_rows == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"label__classes": ["No", "Yes"]}, "holds 'yes' 2 times, 'no' 2 times; declared are 'No'"),
        ({"label__classes": ["no", "yes", "maybe"]}, "no record has 'maybe'"),
        ({"columns__job": {"bounds": [0, 1]}}, "'job' has no valid value in 3 of 4 records"),
        ({"columns__age__bounds": [200, 300]}, "'age' is outside its declared bounds in 4 of 4"),
    ],
)
def test_the_check_finds_what_is_declared_wrongly(changed, message, tmp_path):
    path = write(tmp_path / "t.csv", csv_text())
    problems = check(path, schema=declared(**changed)).exact_problems
    assert any(message in problem for problem in problems)


def test_the_check_of_lines_of_another_length_and_of_a_number(tmp_path):
    longer = csv_text().replace("yes\n", "yes,\n").replace("no\n", "no,\n")
    path = write(tmp_path / "t.csv", longer)
    *_, problem = check(path, schema=declared()).exact_problems
    assert "more or fewer cells than the header" in problem
    schema = declared(label={"column": "income", "bounds": [0, 100]})
    report = check(columns() | {"income": [1, 2, 200, None]}, schema=schema)
    assert report.exact_class_counts == {"a number within its bounds": 2}
    assert report.exact_other_labels == {"a number outside its bounds": 1}
    persons = declared(unit={"column": "id", "max_records": 1}, columns__id=None)
    assert check(columns() | {"id": [1, 2, None, 4]}, schema=persons).exact_null_rows == 1
    with pytest.raises(ValueError, match="bounds must be left out beside schema"):
        check(path, schema=declared(), bounds={"age": [0, 1]})


# Models


def trained(data, objective):
    algorithm = dpjax.dp_gradient_descent(
        objective,
        dpjax.PrivacyBudget(8.0, 1e-3),
        data_size=data.size,
        dimension=objective.parameters(data.dimension),
        steps=2,
    )
    return dpjax.solve(algorithm, data, seed=0)


def test_a_saved_model_encodes_a_new_table_by_its_schema(tmp_path):
    data = load(columns(), schema=declared(columns__age__missing=30))
    solution = trained(data, dpjax.objectives.logistic_l2(1e-2))
    dpjax.save(tmp_path / "model", solution)
    saved = dpjax.load(tmp_path / "model")
    assert saved.preprocessing == data.preprocessing == solution.preprocessing
    assert hash(saved.preprocessing) == hash(data.preprocessing)
    assert saved.preprocessing.features == NAMES
    new = csv_text(header=HEADER).replace(",yes", "").replace(",no", "").replace(",income", "")
    path = write(tmp_path / "new.csv", new)
    scores = data.x @ np.asarray(solution.params, float)
    for model, table in itertools.product((solution, saved), (path, columns(), data)):
        np.testing.assert_allclose(model.decision_function(table), scores)
        assert set(model.predict(table)) <= {"no", "yes"}
    for model in (solution, saved):
        with pytest.raises(ValueError, match="lacks 'begin', 'job', 'grade', which the model was"):
            model.predict({"age": [3]})
        with pytest.raises(ValueError, match="a level that is not declared"):
            model.predict(columns() | {"grade": ["best"] * 4})


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"columns__age__bounds": [20, 61]}, "'age'"),
        ({"columns__job__levels": ["cook", "nurse"]}, "'job'"),
        ({"columns__job__other": None}, "'job'"),
        ({"columns__grade": {"levels": ["low", "mid", "high"]}}, "'grade'"),
        ({"columns__begin": {"ignore": True}}, "'begin'"),
        ({"columns__id": {"bounds": [0, 9]}, "intercept": False}, "'id', the intercept"),
        ({"label": {"column": "income", "bounds": [0, 1]}}, "whether the label is a number"),
        ({"columns": {n: declared()["columns"][n] for n in reversed(HEADER[:-1])}}, "the order"),
    ],
)
def test_a_table_of_another_schema_is_named(changed, named):
    mine, its = (load(columns(), schema=declared(**part)) for part in (changed, {}))
    with pytest.raises(ValueError, match=f"'table' was scaled by other .* they differ in {named}"):
        training_rows(mine, its.preprocessing)
    same = load(columns(), schema=declared(label__classes=["no", "perhaps"]))
    assert training_rows(same, its.preprocessing) is same.x


def test_a_loss_of_labels_takes_no_number_and_one_of_numbers_does(tmp_path):
    schema = declared(label={"column": "income", "bounds": [0, 100]})
    data = load(columns() | {"income": [0, 75, 101, None]}, schema=schema)
    with pytest.raises(ValueError, match="loss for two labels, but the data declare a number"):
        trained(data, dpjax.objectives.logistic())
    solution = trained(data, dpjax.objectives.least_squares())
    dpjax.save(tmp_path / "model", solution)
    for model in (solution, dpjax.load(tmp_path / "model")):
        assert "Accepted labels: numbers from 0 to 100; a record with any" in model.guarantee()
        scores = data.x @ np.asarray(solution.params, float)
        np.testing.assert_allclose(model.predict(columns()), 50 + 50 * scores)
    with pytest.raises(ValueError, match="is a loss for numbers, but the data declare 2 classes"):
        trained(load(columns(), schema=declared()), dpjax.objectives.least_squares())
    with pytest.raises(ValueError, match="cross-entropy is a loss for two labels"):
        dpjax.fit(
            lambda w, x: x @ w, "cross_entropy", data, dpjax.PrivacyBudget(8.0, 1e-3),
            optax.sgd(0.1), seed=0, batch_size=2, steps=1, params=jnp.zeros((8, 2)),
        )  # fmt: skip


@pytest.mark.ci
def test_a_model_of_several_classes_predicts_those_declared():
    schema = declared(label={"column": "grade", "classes": ["high", "mid", "low"]})
    del schema["columns"]["grade"]
    schema["columns"]["income"] = {"ignore": True}
    data = load(columns(), schema=schema)
    np.testing.assert_array_equal(data.y, [2, 1, 0, 0])
    solution = trained(data, dpjax.objectives.softmax(3))
    assert set(solution.predict(columns())) <= {"low", "mid", "high"}
    assert "Accepted labels: 'high', 'mid', 'low'; a record" in solution.guarantee()


# The command line


def run(*words):
    return main([str(word) for word in words])


def test_from_a_file_to_a_model_by_messages_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [(20 + i % 40, f"2020-01-{1 + i % 11:02}", *RECORDS[i % 4][2:4], i, RECORDS[i % 4][5])
            for i in range(200)]  # fmt: skip
    write(tmp_path / "people.csv", csv_text(rows, separator=";"))

    def say(line):
        status = main(shlex.split(line)[1:])
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    assert "begin its schema with --template" in say("dpjax data people.csv")[1]
    status, text = say("dpjax data people.csv --template --label income --out schema.toml")
    assert status == 0 and "wrote schema.toml: fill it in" in text
    check_it = text.split("next: ")[1].strip()
    status, text = say(check_it)
    assert status == 2 and "still to be filled in" in text
    template_text = (tmp_path / "schema.toml").read_text()
    assert say("dpjax data people.csv --template --label income")[1] == template_text
    assert (
        "exists, and may be filled in"
        in say("dpjax data people.csv --template --out schema.toml")[1]
    )
    (tmp_path / "schema.toml").write_text(DECLARED.replace("low", "lowest"))
    status, text = say(check_it)
    assert status == 1 and "'grade' holds 'low' 50 times" in text and check_it in text
    (tmp_path / "schema.toml").write_text(DECLARED)
    status, text = say(check_it)
    assert status == 0 and "wrong" not in text
    status, text = say(text.split("next: ")[1].splitlines()[0] + " --epsilon 8 --steps 2")
    assert status == 0 and text.startswith("accepted labels: 'no' (as -1), 'yes' (as +1)")
    line = re.search(r"dpjax\.load\('model'\).*?\), for a table with the columns (.*?), with", text)
    assert line[1] == "age, begin, job, grade"
    assert set(dpjax.load("model").predict("people.csv")) <= {"no", "yes"}


@pytest.mark.ci
def test_the_command_line_protects_persons_and_takes_numbers(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "people.csv", csv_text())
    persons = DECLARED.replace(
        "[columns.id]\nignore = true", "[unit]\ncolumn = 'id'\nmax_records = 2"
    )
    write(tmp_path / "persons.toml", persons)
    data = ("--data", "people.csv", "--schema", "persons.toml", "--delta", "1e-5")
    assert run("run", *data, "--dry-run") == 0
    assert "one 'id' with all its rows" in capsys.readouterr().out
    assert run("calibrate", *data) == 0 and "per id" in capsys.readouterr().out
    assert run("compare", *data) == 2
    assert "load the table without a unit" in capsys.readouterr().err
    cost = DECLARED.replace("income", "id").replace("[columns.id]", "[columns.income]")
    write(tmp_path / "cost.toml", cost.replace('classes = ["no", "yes"]', "bounds = [0, 20]"))
    data = ("--data", "people.csv", "--schema", "cost.toml", "--dry-run")
    assert run("run", *data) == 0
    out = capsys.readouterr().out
    assert "accepted labels: numbers from 0 (as -1) to 20 (as +1)" in out
    assert run("run", *data, "--objective", "logistic-l2") == 2
    assert "declare a number with bounds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("data --template", "--template needs the name of a file"),
        ("data people.csv --out x", "--out is for --template"),
        ("data people.csv --template --check", "--check and --template are two commands"),
        ("data people.csv --template --schema s.toml", "--schema does not go with --template"),
        ("data people.csv --check --schema s.toml --intercept", "--intercept must be left out"),
        ("data people.csv --check --schema s.toml --label income", "label must be left out"),
        ("run --data people.csv --schema s.toml --unit id", "unit must be left out"),
        ("run --data people.csv --schema s.toml --save s.toml", "--save and --schema both name"),
        ("run --schema s.toml", "schema is for a table of yours, got 'randhie'"),
        ("run --data people.csv --schema none.toml", "there is no schema 'none.toml'"),
    ],
)
def test_what_the_command_line_refuses(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "people.csv", csv_text())
    write(tmp_path / "s.toml", DECLARED)
    assert run(*words.split()) == 2
    assert message in capsys.readouterr().err


LEVELED = {
    "label": {"column": "ill", "classes": ["no", "yes"]},
    "columns": {
        "age": {"bounds": [0, 100]},
        "city": {"levels": ["a", "b"], "other": True},
        "sex": {"levels": ["F", "M"], "reference": "M"},
    },
}
PATIENTS = {"age": [0.0, 50.0], "city": ["a", "c"], "sex": ["M", "F"], "ill": ["no", "yes"]}


def test_for_inference_one_constant_divides_rows_and_a_reference_has_no_feature(tmp_path):
    schema = Schema.read(LEVELED)
    # A declared reference is left out always, any other for inference alone.
    assert schema.features == ("age", "city=a", "city=b", "city=other", "sex=F", "intercept")
    data = load(PATIENTS, schema=schema, inference=True)
    scale = data.preprocessing
    assert scale.features == ("age", "city=b", "city=other", "sex=F", "intercept")
    by_hand = np.array([[-1, 0, 0, 0, 1], [0, 0, 1, 1, 1]]) / np.sqrt(4)
    np.testing.assert_allclose(data.x, by_hand)
    # Without an intercept one column of levels says where a row begins.
    free = Schema.read(LEVELED | {"intercept": False}).for_inference()
    assert free.features == ("age", "city=a", "city=b", "city=other", "sex=F")
    # With a norm that is declared, the constant is the smaller and longer rows are scaled down.
    short = load(PATIENTS, schema=LEVELED | {"max_norm": 1.5}, inference=True)
    lengths = np.linalg.norm(by_hand * 2, axis=1, keepdims=True)
    np.testing.assert_allclose(short.x, 2 * by_hand / np.maximum(lengths, 1.5), rtol=1e-6)
    assert scale.differences(short.preprocessing) == ["what rows are divided by"]
    # What a file of scaled rows and a saved model say of it is the same.
    dpjax.datasets.write(short, tmp_path / "rows.npz")
    assert load(tmp_path / "rows.npz", inference=True).preprocessing == short.preprocessing
    dpjax.datasets.write(load(PATIENTS, schema=LEVELED), tmp_path / "own.npz")
    with pytest.raises(ValueError, match="declare rows = "):
        load(tmp_path / "own.npz", inference=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": "own"}, "unknown rows of the schema 'own'"),
        ({"max_norm": 0}, "max_norm of the schema"),
        ({"rows": "own_norm", "max_norm": 2.0}, "Choose from: constant"),
        (
            {"columns": {"sex": {"levels": ["F", "M"], "reference": "X"}}},
            "reference of columns.sex of the schema must be one of its levels",
        ),
    ],
)
def test_rows_and_references_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Schema.read(LEVELED | change)


@pytest.mark.ci
def test_a_table_has_a_penalty_that_falls_and_spares_the_intercept(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "people.csv", csv_text())
    write(tmp_path / "s.toml", DECLARED)
    data = ("--data", "people.csv", "--schema", "s.toml", "--delta", "1e-3", "--save", "model")
    for epsilon in (1, 10):
        assert run("run", "dp-gd", *data, "--epsilon", epsilon, "--steps", 2) == 0
        assert run("show", "model") == 0
        # Of four records: 2 / (n epsilon).
        said = f"penalty Nonconvex, strength {0.5 / epsilon:g}, on all weights but the "
        assert said in " ".join(capsys.readouterr().out.split())
    # Theory of DP-SVRG needs strong convexity: it keeps the penalty on all weights.
    svrg = ("dp-svrg", "--objective", "logistic-l2", "--batch-size", 2)
    assert run("run", *svrg, *data) == 0 and run("show", "model") == 0
    assert "penalty L2, strength 0.5 clip" in " ".join(capsys.readouterr().out.split())
