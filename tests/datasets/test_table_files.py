"""Tables as people and programs write them: what is read, and what is said of the others."""

import datetime
import gzip
import io
import random
import re
import sys
import tomllib

import numpy as np
import pytest
from factories import mostly_ci

from dpjax.cli.main import main
from dpjax.datasets import check, delimited, load, template
from dpjax.datasets.delimited import CsvFile
from dpjax.datasets.forms import PLAIN, DateForm, NumberForm
from dpjax.datasets.schema import Schema, column_of

SCHEMA = {
    "label": {"column": "ill", "classes": ["no", "yes"]},
    "columns": {
        "age": {"bounds": [0, 100]},
        "sex": {"levels": ["f", "m"]},
        "cost": {"bounds": [0, 5000]},
    },
}
ROWS = [
    ("age", "sex", "cost", "ill"),
    *(
        (f"{20 + k}", "fm"[k % 2], f"{100.5 * k + 1:.1f}", ("yes", "no", "no")[k % 3])
        for k in range(40)
    ),
]  # fmt: skip


def csv(rows=ROWS, separator=",", end="\n"):
    return end.join(map(separator.join, rows)) + end


def each(column, function):
    """The rows with another text in one column."""
    at = ROWS[0].index(column)
    return [ROWS[0], *((*row[:at], function(row[at]), *row[at + 1 :]) for row in ROWS[1:])]


def german(text):
    return f"{float(text):,.2f}".translate(str.maketrans(",.", ".,"))


def workbook(rows=ROWS):
    openpyxl = pytest.importorskip("openpyxl")
    book, file = openpyxl.Workbook(), io.BytesIO()
    for at, row in enumerate(rows):
        book.active.append([*row] if not at else [float(row[0]), row[1], float(row[2]), row[3]])
    book.save(file)
    return file.getvalue()


T = csv()
# Name: file, its content, how many of 40 records are lost, and what the check says; or what is said
# in place of reading it.
TABLES = {
    "as it should be": ("t.csv", T, 0, ""),
    "Excel says the separator": ("t.csv", "sep=;\r\n" + csv(ROWS, ";", "\r\n"), 0, ""),
    "a byte order mark": ("t.csv", "\ufeff" + T, 0, ""),
    "lines of Windows": ("t.csv", csv(end="\r\n"), 0, ""),
    "every cell in quotes": ("t.csv", csv([[f'"{c}"' for c in row] for row in ROWS]), 0, ""),
    "spaces around cells": ("t.csv", csv(separator=" , "), 0, ""),
    "an empty line within": ("t.csv", T.replace("\n25", "\n\n25"), 0, ""),
    "tabs": ("t.tsv", csv(separator="\t"), 0, ""),
    "bars": ("t.txt", csv(separator="|"), 0, ""),
    "compressed": ("t.csv.gz", gzip.compress(T.encode()), 0, ""),
    "a workbook": ("t.xlsx", workbook, 0, ""),
    "decimal commas between semicolons": (
        "t.csv", csv(each("cost", lambda c: c.replace(".", ",")), ";"), 0, ""),
    "a line of totals": ("t.csv", T + "Total,,80000.5,\n", 1, "is it a line of totals"),
    "a second line of the header": (
        "t.csv", T.replace("ill\n", "ill\nyears,,EUR,\n"), 1, "a second line of the header?"),
    "a line with more cells": (
        "t.csv", T.replace("25,m", "25,m,m"), 1, "than the 4 of the header: 1, the first with 5"),
    "a line with fewer cells": ("t.csv", T.replace("25,m", "25"), 1, "the first with 3"),
    "an open quote": ("t.csv", T.replace("25,m", '25,"m'), 1, "1 records of .* leave a quote open"),
    "a null byte": ("t.csv", T.replace("25,m", "25,m\0"), 1, "'m.x00' 1 times, which is not"),
    "below what can be measured": (
        "t.csv", T.replace("m,503.5", "m,<500"), 1,
        "'cost' that are not written as is declared: '<500' 1 times"),
    "Latin-1 in cells": (
        "t.csv", T.replace(",f,", ",fräulein,").encode("latin-1"), 20, "save the file as UTF-8"),
    "decimal commas between commas": (
        "t.csv", csv(each("cost", lambda c: c.replace(".", ","))), 40, "40, the first with 5; is"),
    "decimal commas in quotes": (
        "t.csv", csv(each("cost", lambda c: f'"{c.replace(".", ",")}"')), 40,
        "'cost' holds numbers written as '1,0': declare decimal = \",\"."),
    "German thousands": (
        "t.csv", csv(each("cost", german), ";"), 30, 'decimal = ",", thousands = "."'),
    "American thousands": (
        "t.csv", csv(each("cost", lambda c: f'"{float(c):,.2f}"')), 30, 'thousands = ","'),
    "a unit behind numbers": ("t.csv", csv(each("age", "{} years".format)), 40, 'suffix = "years"'),
    "percent": ("t.csv", csv(each("age", "{}%".format)), 40, 'suffix = "%"'),
    "dates where numbers are declared": (
        "t.csv", csv(each("age", "24.12.20{}".format)), 40, "bounds that are dates"),
    "a header of spaces": ("t.csv", T.replace("age,sex", " age , sex "), 0, ""),
    "UTF-16": ("t.csv", T.encode("utf-16"), None, "is text in UTF-16: save it as"),
    "UTF-16 without a mark": ("t.csv", T.encode("utf-16-le"), None, "is text in UTF-16"),
    "Latin-1 in the header": ("t.csv", T.replace("sex", "größe").encode("latin-1"), None,
                              "the header of .* is not UTF-8: save"),
    "a separator at the ends of lines": (
        "t.csv", T.replace("\n", ",\n"), None, "or, as the last column, like a separator at the"),
    "separators at the ends of lines": ("t.csv", T.replace("\n", ",,,\n"), None,
                                        "names '' twice.* Separators at the ends of lines"),
    "an index column": (
        "t.csv", T.replace("\n", "\n7,").replace("age", ",age"), None, "looks like row numbers"),
    "an empty first line": ("t.csv", "\n" + T, None, "begins with an empty line: the first"),
    "a title": ("t.csv", "Report of 2024\n\n" + T, None, "must be the header, not a title"),
    "spaces between cells": ("t.txt", csv(separator=" "), None, "separator in the schema may say"),
    "a column twice": ("t.csv", T.replace("cost", "age"), None, "names 'age' twice: rename one"),
    "another case": ("t.csv", T.replace("age", "Age"), None, r"'age' \(did you mean 'Age'\?\)"),
    "an open quote in the header": ("t.csv", T.replace("sex", '"sex'), None, "leaves a quote open"),
    "lines of an old Macintosh": ("t.csv", csv(end="\r"), None, "end in carriage returns alone"),
    "a workbook called .csv": ("t.csv", workbook, None, "as an Excel workbook is: call it .xlsx"),
    "an old workbook called .csv": ("t.csv", b"\xd0\xcf\x11\xe0\xa1", None, "an old Excel: save"),
    "a compressed file called .csv": (
        "t.csv", gzip.compress(T.encode()), None, "compressed by gzip: call it .csv.gz"),
    "a Parquet file called .csv": ("t.csv", b"PAR1\0", None, "a Parquet file: call it .parquet"),
    "a web page called .csv": ("t.csv", "\n<!DOCTYPE html>\n<p>" + T, None, "begins with an empty"),
    "a table of a web page": ("t.csv", "<table><tr><td>age\n", None, "a web page or XML: save it"),
    "a PDF called .csv": ("t.csv", "%PDF-1.4\n", None, "a PDF: export the table"),
    "a CSV called .csv.gz": ("t.csv.gz", T, None, "is damaged, or not of gzip"),
    "half a compressed file": ("t.csv.gz", gzip.compress(T.encode())[:-20], None, "is damaged"),
    "a CSV called .xlsx": ("t.xlsx", T, None, "is no workbook of Excel: File is not a zip file"),
    "an empty file": ("t.csv", "", None, "is empty: the first line must name the columns"),
    "an empty workbook": ("t.xlsx", lambda: workbook([]), None, "begins with an empty row, or is"),
    "a header alone": ("t.csv", T[: T.index("\n")], None, "has no records"),
}  # fmt: skip


def write(folder, name, content):
    content = content() if callable(content) else content
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("name", TABLES)
def test_what_is_read_or_said_of_a_table(name, tmp_path):
    file, content, lost, said = TABLES[name]
    path = write(tmp_path, file, content)
    if lost is None:
        with pytest.raises(ValueError, match=said):
            load(path, schema=SCHEMA)
        return
    found = load(path, schema=SCHEMA)
    wanted = load(write(tmp_path, "wanted.csv", T), schema=SCHEMA)
    null = np.isnan(found.x).any(axis=1) | np.isnan(found.y)
    assert null.sum() == lost
    # All others are as they would be without the strange ones.
    kept = np.isin(np.arange(40), np.flatnonzero(~null) if found.size == 40 else range(40))
    np.testing.assert_array_equal(found.x[~null], wanted.x[kept])
    report = check(path, schema=SCHEMA)
    if not said:
        assert not report.exact_problems and not report.exact_remarks
    assert re.search(said, "\n".join(report.lines()))


# Numbers and dates as they are declared

GERMAN = NumberForm(",", ".")
NUMBERS = [
    (PLAIN, {"1.5": 1.5, "1,5": None, " 2 ": 2, "1_0": 10, "x": None, "": None}),
    (NumberForm(",."), {"1.5": 1.5, "1,5": 1.5, "1.234,5": None, "1,2,3": None}),
    (NumberForm(","), {"1,5": 1.5, "1.5": None, ",5": 0.5, "-1,": -1, "1,5e2": 150, "1 ,5": None}),
    (GERMAN, {"1.234,5": 1234.5, "1.234.567": 1234567, "1234,5": 1234.5, "12.5": None,
              "1.23.456": None, "1,234.5": None, "0,5": 0.5, "+1.000": 1000, "nan": None}),
    (NumberForm(".", ","), {"1,234.5": 1234.5, "1,23": None, "12,345": 12345}),
    (NumberForm(",", " "), {"1 234,5": 1234.5, "1\u202f234": 1234, "1\u00a0234,5": 1234.5}),
    (NumberForm(".", "'"), {"1'234.5": 1234.5, "1\u2019234": 1234}),
    (NumberForm(suffix="kg"), {"72.5 kg": 72.5, "72.5kg": 72.5, "72.5": 72.5, "72.5 g": None,
                               "kg": None, "kg 5": None, "5 kg kg": None}),
    (NumberForm(",", ".", "€"), {"1.234,50 €": 1234.5, "12,5 % €": None}),
    (NumberForm(suffix="mg/dl"), {"5 mg/dl": 5, "5 mg.dl": None}),
]  # fmt: skip


@pytest.mark.parametrize("library", ["pyarrow", None])
@pytest.mark.parametrize(("form", "cells"), NUMBERS)
def test_a_cell_is_a_number_in_the_declared_form_alone(form, cells, library, tmp_path, monkeypatch):
    wanted = [np.nan if number is None else number for number in cells.values()]
    np.testing.assert_array_equal([form.number(cell) for cell in cells], wanted)
    if library is None:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    mark = ";" if form.decimal == ",." else "|"
    path = write(tmp_path, "t.csv", "".join(f"{cell}{mark}\n" for cell in ["a", *cells]))
    path.write_text(path.read_text().replace(mark, f"{mark}b", 1))
    (found,) = next(CsvFile(path).blocks(["a"], {"a": PLAIN if form.decimal == ",." else form}))
    np.testing.assert_array_equal(found, wanted)


DATES = {
    "%d.%m.%Y": {"31.12.2020": "2020-12-31", "1.2.2020": "2020-02-01", "2020-12-31": None,
                 "30.02.2020": None, "31.12.20": None, " 01.02.2020 ": "2020-02-01"},
    "%m/%d/%Y": {"12/31/2020": "2020-12-31", "31/12/2020": None},
    "%d-%b-%Y": {"31-DEC-2020": "2020-12-31", "1-feb-2020": "2020-02-01", "1-Feber-2020": None},
    "%d.%m.%y": {"01.01.68": "2068-01-01", "01.01.69": "1969-01-01"},
    "%d.%m.%Y %H:%M": {"31.12.2020 12:00": "2020-12-31T12:00", "31.12.2020 25:00": None},
    "%Y%m%d": {"20201231": "2020-12-31"},
}  # fmt: skip


@pytest.mark.parametrize("form", DATES)
def test_a_cell_is_a_date_in_the_declared_form_alone(form):
    for cell, day in DATES[form].items():
        wanted = np.nan
        if day is not None:
            wanted = (np.datetime64(day, "m") - np.datetime64(0, "m")) / np.timedelta64(1, "D")
            assert DateForm(form).number(cell) == pytest.approx(
                (datetime.datetime.strptime(cell.strip(), form) - datetime.datetime(1970, 1, 1))
                / datetime.timedelta(days=1)
            )
        np.testing.assert_equal(DateForm(form).number(cell), wanted)
    assert DateForm(form).number(datetime.date(1970, 1, 2)) == 1  # of a data frame, or a workbook


@pytest.mark.parametrize("mark, day", [("§", "2000-01-02"), (",", "0000-01-01")])
@pytest.mark.parametrize("strange", ["", "words{}1\n", 'a"b{}1\n'])
def test_a_strange_record_moves_no_other_date_and_raises_nothing(mark, day, strange, tmp_path):
    text = f"a{mark}b\n{day}{mark}1\n" + strange.format(mark)
    file = CsvFile(write(tmp_path, "t.csv", text), separator=mark)
    days = [float(block[0][0]) for block in file.blocks(["a"], {"a": DateForm()})]
    np.testing.assert_equal(days, [np.nan if day[0] == "0" else 10958.0])


TOML = """
separator = ";"
[numbers]
decimal = ","
thousands = "."
[label]
column = "cost"
bounds = [0, 5000]
[columns.weight]
bounds = [0, 200]
suffix = " kg"
[columns.born]
bounds = [1920-01-01, 2020-01-01]
format = "%d.%m.%Y"
[columns.score]
bounds = [0, 10]
decimal = "."
thousands = ""
"""


def test_a_german_table_is_what_its_schema_says(tmp_path):
    german_rows = [("1.234,5", "72,5 kg", "31.12.1970", "1.5"), ("3,0", "60", "01.01.1930", "2,5")]
    head = "cost;weight;born;score\n"
    path = write(tmp_path, "t.csv", head + csv(german_rows, ";"))
    found = load(path, schema=write(tmp_path, "s.toml", TOML))
    plain = [("1234.5", "72.5", "1970-12-31", "1.5"), ("3", "60", "1930-01-01", "")]
    schema = tomllib.loads(TOML)
    del (
        schema["numbers"],
        schema["columns"]["weight"]["suffix"],
        schema["columns"]["born"]["format"],
    )
    wanted = load(write(tmp_path, "p.csv", head + csv(plain, ";")), schema=schema)
    np.testing.assert_array_equal(found.x, wanted.x)
    np.testing.assert_array_equal(found.y, wanted.y)
    assert np.isnan(found.x).all(axis=1).tolist() == [False, True]
    # A saved model declares it with each column; a data frame is read by the same words.
    for column in found.preprocessing.encoders:
        assert column_of(column.name, column.declaration()) == column
    frame = {
        name: np.array(cells, object)
        for name, cells in zip(head.strip().split(";"), zip(*german_rows, strict=True), strict=True)
    }
    np.testing.assert_array_equal(load(frame, schema=tmp_path / "s.toml").x, wanted.x)
    pandas = pytest.importorskip("pandas")
    np.testing.assert_array_equal(
        load(pandas.DataFrame(frame, dtype="str"), schema=tmp_path / "s.toml").x, wanted.x
    )


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"decimal": ";"}, r"decimal of columns.age of .* must be '\.' or ','"),
        ({"thousands": "."}, "thousands of .* must be one mark"),
        ({"thousands": "5"}, "thousands of .* must be one mark"),
        ({"suffix": 3}, "suffix of .* must be text"),
        ({"suffix": "m2"}, "suffix of .* must hold no digits"),
        ({"format": "%d.%m.%Y"}, "unknown key 'format'"),
        ({"bounds": ["2000-01-01", "2020-01-01"], "format": "%d.%m"}, "and %Y .or %y"),
        ({"bounds": ["2000-01-01", "2020-01-01"], "format": "%d.%m.%Y %Z"}, "format of .* must"),
        ({"bounds": ["2000-01-01", "2020-01-01"], "decimal": ","}, "unknown key 'decimal'"),
    ],
)
def test_what_cannot_be_declared_of_cells(part, message):
    columns = SCHEMA["columns"] | {"age": {"bounds": [0, 1]} | part}
    with pytest.raises(ValueError, match=message):
        Schema.read(SCHEMA | {"columns": columns})


@pytest.mark.parametrize("mark", ["", ";;", '"', 1])
def test_what_cannot_be_a_separator(mark):
    with pytest.raises(ValueError, match="separator of the schema must be the one character"):
        Schema.read(SCHEMA | {"separator": mark})


def test_a_template_proposes_how_numbers_and_dates_are_written(tmp_path, capsys):
    rows = [[german(cost), f"{age} kg", f"{age[::-1]}.03.2020".replace("9", "2"), age]
            for age, _, cost, _ in ROWS[1:]]  # fmt: skip
    path = write(tmp_path, "t.csv", csv([("cost", "weight", "day", "age"), *rows], ";"))
    made = tomllib.loads(template(path))["columns"]
    assert made["cost"] == {"bounds": [], "decimal": ",", "thousands": "."}
    assert made["weight"] == {"bounds": [], "suffix": "kg"}
    assert made["age"] == {"bounds": []}
    doses = [(f"{dose} mg", "1") for dose in ["12,5"] * 19 + ["1.234,56"]]
    made = template(write(tmp_path, "u.csv", csv([("dose", "y"), *doses], ";")))
    assert 'decimal = ","\nthousands = "."\nsuffix = "mg"\n\n' in made
    days = [(f"{day}/{day}/2020", "1") for day in (1, 2, 3)]
    text = template(write(tmp_path, "d.csv", csv([("day", "y"), *days])))
    assert 'format = "%d/%m/%Y"\n# or format = "%m/%d/%Y"\n' in text
    assert main(["data", str(path), "--template", "--label", "age"]) == 0
    assert 'suffix = "kg"' in capsys.readouterr().out


# Pieces


@pytest.mark.parametrize("seed", mostly_ci(range(6), {0}))
def test_c75_pieces_and_pyarrow_change_nothing(seed, tmp_path, monkeypatch):
    """Any text, cut into pieces of any size, with and without pyarrow, has the same cells."""
    rng = random.Random(seed)
    parts = ['"', '""', "\n", "\n", "\r\n", " ", "1.5", "2", "", "1,5", "NA", "a", "\0", "é", "\r"]
    parts.append("\ufeff2")  # of which pyarrow drops the mark where a piece begins
    for _ in range(60):
        mark = rng.choice(",;\t|")
        plain = rng.random() < 0.5
        used = [p for p in parts if p not in ('"', '""', "\0", "\r")] if plain else parts
        text = mark.join("abc") + "\n"
        text += "".join(
            mark.join(rng.choice(used) for _ in range(rng.choice([3, 3, 3, 3, 2, 4])))
            + rng.choice(["\n", "\n", "\r\n"])
            for _ in range(rng.randrange(1, 25))
        )
        path = write(tmp_path, "t.csv", text)
        for breaks in (True, False):
            found = []
            for piece in (2**22, rng.randrange(1, 40)):
                for library in (True, False):
                    monkeypatch.setattr(delimited, "_PIECE", piece)
                    with monkeypatch.context() as patch:
                        if not library:
                            patch.setitem(sys.modules, "pyarrow", None)
                        file = CsvFile(path, breaks)
                        blocks = [*file.blocks(["a", "b"], {"c": PLAIN, "b": PLAIN})]
                    columns = [np.concatenate(part) for part in zip(*blocks, strict=True)]
                    found.append((file.size, *(column.tolist() for column in columns)))
                    assert not columns or len(columns[0]) == file.size
            assert all(str(each) == str(found[0]) for each in found)
