"""Line breaks in the quotes of a CSV: what one record is, and what says so."""

import csv
import io
import random

import numpy as np
import pytest
from factories import mostly_ci

import dpjax
from dpjax.cli.main import main
from dpjax.datasets import check, load, template
from dpjax.datasets.delimited import CsvFile

SCHEMA = {
    "label": {"column": "y", "classes": [0, 1]},
    "columns": {"x": {"bounds": [0, 1]}, "note": {"levels": ["c"], "other": True}},
}
PARSED, LINES = (SCHEMA | {"quoted_line_breaks": breaks} for breaks in (True, False))
NOTE = "hello\n" + "0.9,c,1\n" * 50 + "bye"


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def table(notes, end="\n", separator=",", start=""):
    """A CSV of three columns, as the module ``csv`` writes it."""
    file = io.StringIO()
    lines = csv.writer(file, delimiter=separator, lineterminator=end)
    lines.writerow(["x", "note", "y"])
    lines.writerows((k % 10 / 10, note, k % 2) for k, note in enumerate(notes))
    return start + file.getvalue()


NOTES = ["c", "c", NOTE, "c"]
FORMS = {
    "a line break": table(NOTES),
    "lines of Windows": table([note.replace("\n", "\r\n") for note in NOTES], "\r\n"),
    "a byte order mark": table(NOTES, start="\ufeff"),
    "semicolons": table(NOTES, separator=";"),
    "tabs": table(NOTES, separator="\t"),
    "bars": table(NOTES, separator="|"),
    "doubled quotes": table(["c", '"\n"",c\n"', '""\n', "c"]),
    "a quote at the start of a line": table(["c", '\n"\n""\n', "c", "c"]),
    "blank lines": table(["c", "\n\n \n", "c", "c"]).replace("c,0", "c,0\n", 1),
    "a lone carriage return": table(["c", "a\rb\n", "a\r\nb", "c"]),
    "a quote within a cell": table(NOTES).replace("0.0,c", '0.0,5" of c', 1),
    "a quote in the header": table(NOTES).replace("note", '"no""te"'),
    "a line break in the header": table(NOTES).replace("note", '"no\nte"'),
    "no last line end": table(NOTES).rstrip(),
    "a null byte": table(["c", "\0\n\0", "c", "c"]),
    "many lines": table(["c", "1,c,1\n" * 20_000, "c", "c"]),
}


def schema_of(text):
    name = next(csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline="")), [])
    name = name[1] if len(name) == 3 else "note"
    return PARSED | {"columns": {"x": {"bounds": [0, 1]}, name: SCHEMA["columns"]["note"]}}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS.keys())
def test_c75_records_are_as_rfc_4180_parses_them(text, tmp_path):
    path = write(tmp_path / "t.csv", text)
    data = load(path, schema=schema_of(text))
    assert data.y.tolist() == [-1, 1, -1, 1] and data.size == 4
    report = check(path, schema=schema_of(text))
    assert report.exact_rows == 4 and report.exact_problems == ()


def test_c75_any_text_is_split_as_by_the_module_csv(tmp_path):
    rng = random.Random(0)
    for _ in range(300):
        mark = rng.choice(",;\t|")
        parts = ['"', '"', '""', "\n", "\r\n", " ", "a", mark, mark]
        text = mark.join("abc") + "\n" + "".join(rng.choices(parts, k=rng.randrange(30)))
        file = CsvFile(write(tmp_path / "t.csv", text), quoted_line_breaks=True)
        held = [list(zip(*block, strict=True)) for block in file.blocks("abc")]
        records = list(csv.reader(io.StringIO(text, newline=""), delimiter=mark))[1:]
        # Of other lengths they are empty, and a blank line is none.
        wanted = [tuple(map(str.strip, r)) if len(r) == 3 else ("",) * 3 for r in records]
        full = [record for record in wanted if any(record)]
        assert [record for block in held for record in block if any(record)] == full


# One record, of any number of lines


STRANGE = {
    "a text of further records": f'0.5,"{NOTE}",1\n',
    "quotes in quotes": '0.5,"""\n"",""\n",1\n',
    "more cells": '0.5,"a\nb",1,"c\nd"\n',
    "fewer cells": '"0.5\n"\n',
    "a quote within a cell": '0.5,5" of "x,1\n',
    "not UTF-8": b'0.5,"\xff\n\xfe",1\n',
    "a huge cell": '0.5,"' + "9\n" * 100_000 + '",1\n',
    "a label of lines": '0.5,c,"1\n"\n',
}


@pytest.mark.parametrize("record", STRANGE.values(), ids=STRANGE.keys())
@pytest.mark.parametrize("place", [0, 2, 3])
def test_c75_one_parsed_record_alters_its_own_row_alone(record, place, tmp_path):
    lines = table("cccc").encode().splitlines(keepends=True)
    before = load(write(tmp_path / "t.csv", b"".join(lines)), schema=PARSED)
    lines[1 + place] = record if isinstance(record, bytes) else record.encode()
    after = load(write(tmp_path / "t.csv", b"".join(lines)), schema=PARSED)
    kept = np.arange(4) != place
    assert after.size == 4
    np.testing.assert_array_equal(after.x[kept], before.x[kept])
    np.testing.assert_array_equal(after.y[kept], before.y[kept])


def test_c75_by_lines_a_stray_quote_swallows_no_other_record(tmp_path):
    text = table("cccc").replace("0.1,c", '"0.1,c')
    data = load(write(tmp_path / "t.csv", text), schema=LINES)
    assert data.size == 4 and np.isnan(data.y).tolist() == [False, True, False, False]
    parsed = check(tmp_path / "t.csv", schema=PARSED)
    assert parsed.exact_rows == 2 and "up to the end of the file" in parsed.exact_problems[0]


# What is declared, and what is flagged


def test_c75_a_csv_that_may_hold_any_text_says_whether_it_breaks_lines(tmp_path):
    """By the declaration alone: whether a line leaves a quote open depends on a record."""
    said = set()
    for notes in ("cccc", NOTES):
        path = write(tmp_path / "t.csv", table(notes))
        for note in (SCHEMA["columns"]["note"], {"ignore": True}):
            columns = SCHEMA["columns"] | {"note": note}
            with pytest.raises(ValueError, match="declare quoted_line_breaks = true above") as info:
                load(path, schema=SCHEMA | {"columns": columns})
            said.add(str(info.value))
    assert len(said) == 1
    columns = SCHEMA["columns"] | {"note": {"levels": ["c"]}}
    assert load(path, schema=SCHEMA | {"columns": columns}).size == 55  # each line is a record
    frame = {"x": [0.5] * 4, "note": NOTES, "y": [0, 1, 0, 1]}
    assert load(frame, schema=SCHEMA).size == 4
    with pytest.raises(ValueError, match="quoted_line_breaks of the schema must be True or False"):
        load(path, schema=SCHEMA | {"quoted_line_breaks": 1})


def test_c75_a_header_that_leaves_a_quote_open_is_refused(tmp_path):
    for text, schema in ((FORMS["a line break in the header"], LINES), ('x,"note,y\n1', PARSED)):
        with pytest.raises(ValueError, match=r"the header of .* leaves a quote open: close it, or"):
            load(write(tmp_path / "t.csv", text), schema=schema)


TOML = """{breaks}
[label]
column = "y"
classes = [0, 1]
[columns.x]
bounds = [0, 1]
[columns.note]
levels = ["c"]
"""
WORDS = {
    "check": ["data", "t.csv", "--check", "--schema", "s.toml"],
    "check without a schema": ["data", "t.csv", "--check", "--label", "y"],
    "template": ["data", "t.csv", "--template"],
    "dry run": ["run", "--data", "t.csv", "--schema", "s.toml", "--dry-run"],
    "dry run of a search": ["tune", "--data", "t.csv", "--schema", "s.toml", "--dry-run"],
}


@pytest.mark.parametrize("way", mostly_ci(WORDS, WORDS.keys() - {"dry run"}))
def test_c75_lines_that_leave_a_quote_open_are_flagged(way, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = WORDS[way]
    write(tmp_path / "t.csv", table(NOTES * 60))
    write(tmp_path / "s.toml", TOML.format(breaks=""))
    assert main(words) == 1
    found = capsys.readouterr()
    assert "NOT PRIVATE" in found.out + found.err
    assert "records of 't.csv' leave a quote open. Where cells in quotes" in found.out + found.err
    write(tmp_path / "s.toml", TOML.format(breaks="quoted_line_breaks = true"))
    if "s.toml" in words and "--check" not in words:
        assert main(words) == 0
    elif "--schema" in words:
        write(tmp_path / "t.csv", table("ccc" * 80))
        assert main(words) == 0


@pytest.mark.parametrize(
    ("text", "breaks"),
    [
        (table(["c", "d"]), "false"),
        (table(["c", "d"]) + '0.1,"c,0\n', "false"),  # a stray quote, which swallows what follows
        *((FORMS[form], "true") for form in ("a line break", "a line break in the header")),
    ],
)
def test_the_template_declares_line_breaks_where_a_later_line_closes_the_quotes(
    text, breaks, tmp_path
):
    assert f"quoted_line_breaks = {breaks}  #" in template(write(tmp_path / "t.csv", text))


# Predictions


def test_c75_there_is_one_prediction_for_each_parsed_record(tmp_path, capsys):
    frame = {"x": [k / 200 for k in range(200)], "note": ["c", "d"] * 100}
    data = load(frame | {"y": [int(k > 100) for k in range(200)]}, schema=SCHEMA)
    algorithm = dpjax.dp_gradient_descent(
        dpjax.objectives.logistic_nonconvex(regularization=1e-3), dpjax.PrivacyBudget(5.0, 1e-4),
        data_size=data.size, dimension=data.dimension, steps=2,
    )  # fmt: skip
    model = dpjax.solve(algorithm, data, seed=0)
    dpjax.save(tmp_path / "model", model)
    notes = ["a\nb", "c", 'd"\n0.9,c', "c"]
    path = write(tmp_path / "new.csv", table(notes))
    wanted = model.predict({"x": [0.0, 0.1, 0.2, 0.3], "note": notes}).tolist()
    assert model.predict(path).tolist() == wanted
    assert main(["predict", str(tmp_path / "model"), str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == list(map(str, wanted))
