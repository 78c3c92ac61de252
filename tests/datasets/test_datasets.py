"""The named data sets, a user's own tables, and that one record never touches another's row."""

import bz2
import dataclasses
import hashlib
import importlib.util
import json
import pathlib
import sys

import jax
import numpy as np
import pytest

from dpjax import datasets
from dpjax.datasets import check, describe, load, registry, scaling

TESTS = pathlib.Path(__file__).parent
HEADER = "age,ill,bmi"
RECORDS = ["30,1,20", "60,0,25", "90,1,40", "45,0,22"]
BOUNDS = {"age": [0, 100], "bmi": [10, 50]}


def write_csv(folder, records=RECORDS, header=HEADER):
    path = folder / "table.csv"
    path.write_text("\n".join([header, *records, ""]), newline="")
    return path


def write_npz(folder, **arrays):
    path = folder / "table.npz"
    np.savez(path, **arrays)
    return path


def norms(x):
    return np.linalg.norm(x.astype(np.float64), axis=1)


# The named sets


def test_embedded_file_is_the_registered_one():
    entry = registry.spec("randhie")
    shipped = (pathlib.Path(datasets.__file__).parent / entry.archive).read_bytes()
    assert hashlib.sha256(shipped).hexdigest() == entry.checksum
    assert len(shipped) < 100_000


def test_embedded_file_is_what_the_maintainers_script_makes():
    pytest.importorskip("statsmodels")
    location = importlib.util.spec_from_file_location("make", TESTS / "tools" / "make_randhie.py")
    make = importlib.util.module_from_spec(location)
    location.loader.exec_module(make)
    shipped = registry.arrays(registry.spec("randhie"))
    made = make.arrays()
    assert made.keys() == shipped.keys()
    for name, array in made.items():
        np.testing.assert_array_equal(array, shipped[name])
    assert tuple(shipped["columns"]) == registry.spec("randhie").columns


def test_randhie():
    data = load("randhie")
    assert data.x.shape == (20_190, 9) and data.x.dtype == data.y.dtype == np.float32
    assert (data.y == 1).sum() == 13_882 and (data.y == -1).sum() == 6_308
    assert data.unit == "person-year" and data.test_x is None
    length = norms(data.x)
    assert (length == 0).sum() == 106
    np.testing.assert_allclose(length[length > 0], 1.0, atol=1e-6)
    assert check("randhie").exact_outside == {}


def test_ijcnn1(real_data):
    data = load("ijcnn1")
    assert data.x.shape == (35_000, 22) and data.test_x.shape == (91_701, 22)
    assert (data.y == 1).sum() == 3_415
    assert (data.test_y == -1).sum() == 82_989 and (data.test_y == 1).sum() == 8_712
    for x in (data.x, data.test_x):
        np.testing.assert_allclose(norms(x), 1.0, atol=1e-6)
    with np.load(real_data / "ijcnn1.npz") as archive:
        raw = archive["X_train"][:35_000].astype(np.float64)
    np.testing.assert_allclose(data.x, raw / norms(raw)[:, None], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "positive"), [("covtype", 283_301), ("covtype-12", 283_301 + 211_840)]
)
def test_covtype(real_data, name, positive):
    data = load(name)
    assert data.x.shape == (581_012, 54) and data.x.dtype == np.float32
    assert (data.y == 1).sum() == positive and (data.y == -1).sum() == 581_012 - positive
    np.testing.assert_allclose(np.linalg.norm(data.x, axis=1), 1.0, atol=1e-5)


def test_covtype_ranges_are_the_published_minima_and_maxima(real_data):
    with np.load(real_data / "covtype.npz") as archive:
        raw = archive["X"]
    declared = np.array(list(datasets.COVTYPE_RANGES.values()))[:10]
    np.testing.assert_array_equal(declared, np.stack([raw.min(0), raw.max(0)], axis=1)[:10])
    assert len(datasets.COVTYPE_RANGES) == 54 and set(np.unique(raw[:, 10:])) == {0, 1}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("covtyp", "did you mean 'covtype'"),
        ("fashion", "unknown data set 'fashion'"),
        ("table.xls", r"must end in \.csv, \.tsv, \.txt, .*\.xlsx"),
    ],
)
def test_unknown_name(name, message):
    with pytest.raises(ValueError, match=message):
        load(name)


@pytest.mark.parametrize("extra", [{"label": "y"}, {"bounds": {"0": [0, 1]}}])
def test_label_and_bounds_are_for_files(extra):
    with pytest.raises(ValueError, match="apply only to a file"):
        load("randhie", **extra)


def test_describe(no_data):
    by_name = {info.name: info for info in describe()}
    assert by_name["randhie"].available and by_name["randhie"].features == 9
    assert not by_name["ijcnn1"].available and by_name["ijcnn1"].path is None
    assert by_name["covtype"].checksum == by_name["covtype-12"].checksum


# Where a named set comes from


@pytest.mark.parametrize("name", ["ijcnn1", "covtype", "covtype-12"])
@pytest.mark.parametrize("declared", [None, "elsewhere"])
def test_offline_error_says_what_to_set(no_data, monkeypatch, name, declared):
    if declared:
        monkeypatch.setenv("DPJAX_DATA", declared)
    archive = registry.spec(name).archive
    state = f"DPJAX_DATA=elsewhere has no {archive}" if declared else "DPJAX_DATA is not set"
    with pytest.raises(FileNotFoundError, match=rf"{state}.*set DPJAX_DATA=FOLDER.*{archive}"):
        load(name)


@pytest.mark.parametrize("name", ["ijcnn1", "covtype"])
def test_absent_scikit_learn_says_what_to_install(no_data, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(FileNotFoundError, match=r"pip install 'scikit-learn'"):
        load(name)


@pytest.mark.parametrize("variable", ["DPJAX_DATA", "DPJAX_CACHE"])
def test_another_checksum_is_refused(no_data, monkeypatch, tmp_path, variable):
    monkeypatch.setenv(variable, str(tmp_path))
    np.savez(tmp_path / "ijcnn1.npz", X_train=np.zeros((2, 22)))
    with pytest.raises(ValueError, match="its sha256 is"):
        load("ijcnn1")


def fake_archive(monkeypatch, folder):
    """A covtype.npz of three rows, registered as the real one."""
    path = folder / "covtype.npz"
    x = np.zeros((3, 54), np.float32)
    x[:, 0] = [1859, 3858, 1e6]
    np.savez(path, X=x, y=np.array([1, 2, 3], np.uint8))
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    fake = {
        name: dataclasses.replace(entry, checksum=checksum)
        for name, entry in registry.SPECS.items()
    }
    monkeypatch.setattr(registry, "SPECS", fake)


def test_declared_folder_without_the_file_warns_and_falls_back(no_data, monkeypatch):
    no_data.mkdir()
    fake_archive(monkeypatch, no_data)
    monkeypatch.setenv("DPJAX_DATA", "elsewhere")
    with pytest.warns(UserWarning, match="DPJAX_DATA=elsewhere has no covtype.npz"):
        data = load("covtype")
    np.testing.assert_array_equal(data.y, [-1, 1, -1])


def test_covtype_is_clamped_and_scaled_in_place(no_data, monkeypatch):
    no_data.mkdir()
    fake_archive(monkeypatch, no_data)
    data = load("covtype-12")
    np.testing.assert_array_equal(data.y, [1, 1, -1])
    # Elevation is at the lower end in row 0, at the upper end in row 1, above it in row 2. The
    # vertical distance of 0 lies inside its range.
    vertical = 173 / (601 + 173)
    np.testing.assert_allclose(data.x[:, 0] / data.x[:, 4], np.array([0, 1, 1]) / vertical, 1e-5)


def test_covtype_from_scikit_learn(no_data, monkeypatch):
    import sklearn.datasets

    def fetch(data_home, return_X_y, n_retries):
        assert pathlib.Path(data_home) == no_data
        return np.ones((2, 54)), np.array([2, 1], np.int32)

    monkeypatch.setattr(sklearn.datasets, "fetch_covtype", fetch)
    data = load("covtype")
    assert data.x.shape == (2, 54) and data.x.dtype == np.float32
    np.testing.assert_array_equal(data.y, [1, -1])


def test_ijcnn1_from_its_publisher_is_kept_in_the_cache(no_data, monkeypatch):
    files = {
        "ijcnn1.bz2": bz2.compress(b"-1 1:3 22:-4\n1 2:1\n"),
        "ijcnn1.t.bz2": bz2.compress(b"1 5:0.5\n"),
    }
    downloads = []

    def download(url, path):
        downloads.append(url)
        path.write_bytes(files[url.removeprefix(registry.LIBSVM_URL)])

    md5 = {name: hashlib.md5(content).hexdigest() for name, content in files.items()}
    monkeypatch.setattr(registry, "_download", download)
    with pytest.raises(ValueError, match="its md5 is"):
        load("ijcnn1")
    assert not (no_data / "ijcnn1.bz2").exists()

    monkeypatch.setattr(registry, "LIBSVM_MD5", md5)
    downloads.clear()
    for _ in range(2):
        data = load("ijcnn1")
        expected = np.zeros((2, 22))
        expected[0, [0, 21]] = [0.6, -0.8]
        expected[1, 1] = 1
        np.testing.assert_allclose(data.x, expected, atol=1e-7)
        np.testing.assert_array_equal(data.y, [-1, 1])
        np.testing.assert_array_equal(data.test_y, [1])
    assert len(downloads) == 2
    assert {info.name: info.available for info in describe()}["ijcnn1"]


def test_a_data_set_is_a_row_of_the_registry(tmp_path, no_data, monkeypatch):
    row = registry.DatasetInfo(
        name="mine",
        rows=3,
        task="b against a",
        source="here",
        note="",
        archive="mine.npz",
        checksum=None,
        columns=("u", "v"),
        is_positive=lambda y: y == "b",
        test_arrays=("x", "y"),
    )
    monkeypatch.setattr("dpjax.datasets.loaders.SPECS", {"mine": row})
    monkeypatch.setattr("dpjax.datasets.registry.SPECS", {"mine": row})
    with pytest.raises(FileNotFoundError, match=r"FOLDER holds mine\.npz"):
        load("mine")
    monkeypatch.setenv("DPJAX_DATA", str(tmp_path))
    arrays = {"X": np.eye(4, 2), "x": np.eye(2), "y": np.array(["b", "a"])}
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(ValueError, match=r"'y' of 'mine.npz' must be"):
        load("mine")
    np.savez(tmp_path / "mine.npz", **arrays | {"y": np.array(["b", "a", "b", "b"])}, z=1)
    with pytest.raises(ValueError, match=r"'y' of 'mine.npz' must be"):
        load("mine")
    row = dataclasses.replace(row, test_arrays=("X", "labels"))
    monkeypatch.setattr("dpjax.datasets.registry.SPECS", {"mine": row})
    with pytest.raises(ValueError, match=r"'mine.npz' lacks 'labels'; it has X, x, y, z"):
        load("mine")
    row = dataclasses.replace(row, test_arrays=("X", "y"))
    monkeypatch.setattr("dpjax.datasets.registry.SPECS", {"mine": row})
    data = load("mine")
    np.testing.assert_array_equal(data.y, [1, -1, 1])
    np.testing.assert_array_equal(data.test_y, [1, -1, 1, 1])
    with pytest.raises(ValueError, match="is_positive must say which labels of 'mine' are"):
        dataclasses.replace(row, is_positive=None)


# A user's own table


def expected_rows(records, intercept=False):
    rows = np.array([[float(cell) for cell in record.split(",")] for record in records])
    x = (np.clip(rows[:, [0, 2]], [0, 10], [100, 50]) - [0, 10]) / [100, 40]
    x = np.hstack([x, np.ones((len(x), 1))]) if intercept else x
    length = norms(x)[:, None]
    return x / np.where(length == 0, 1, length), np.where(rows[:, 1] == 1, 1.0, -1.0)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("form", ["mapping", "json", "csv"])
def test_csv_is_clamped_scaled_and_normalised(tmp_path, form, intercept):
    records = [*RECORDS, "-1e300,0,1e300", "0,1,10"]
    bounds = BOUNDS
    if form != "mapping":
        bounds = tmp_path / f"bounds.{form}"
        lines = ["column,low,high", *(f"{name},{a},{b}" for name, (a, b) in BOUNDS.items())]
        bounds.write_text(json.dumps(BOUNDS) if form == "json" else "\n".join(lines))
    path = write_csv(tmp_path, records)
    data = load(path, label="ill", bounds=bounds, intercept=intercept, classes=(0, 1))
    x, y = expected_rows(records, intercept)
    np.testing.assert_allclose(data.x, x, atol=1e-6)
    np.testing.assert_array_equal(data.y, y)
    assert (data.name, data.unit, data.max_norm) == ("table", "row", 1.0)
    assert isinstance(data.x, np.ndarray) and data.x.dtype == data.y.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8, bool])
def test_npz_of_any_real_dtype(tmp_path, dtype):
    x = np.array([[0, 1], [1, 1], [0, 0]], dtype)
    path = write_npz(tmp_path, x=x, sick=np.array([True, False, True]), test_x=x, test_sick=x[:, 0])
    data = load(path, label="sick", bounds=[[0, 1], [0, 2]], classes=(False, True))
    expected = np.array([[0, 1], [2 / 5**0.5, 1 / 5**0.5], [0, 0]])
    np.testing.assert_allclose(data.x, expected, atol=1e-6)
    np.testing.assert_allclose(data.test_x, expected, atol=1e-6)
    np.testing.assert_array_equal(data.y, [1, -1, 1])
    np.testing.assert_array_equal(data.test_y, [-1, 1, -1])


@pytest.mark.parametrize(
    ("record", "null_x", "null_y"),
    [
        ("inf,1,20", True, False),
        ("old,1,20", True, False),
        ("30,2,20", False, True),
        ("30,,20", False, True),
        ("30,1", True, True),
    ],
)
def test_a_strange_record_becomes_a_null_record(tmp_path, record, null_x, null_y):
    data = load(write_csv(tmp_path, [record, *RECORDS]), label="ill", bounds=BOUNDS, classes=(0, 1))
    assert np.isnan(data.x[0]).all() == null_x
    assert np.isnan(data.y[0]) == null_y


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("intercept", [False, True])
def test_one_npz_record_alters_its_own_row_alone(tmp_path, dtype, intercept):
    rng = np.random.default_rng(0)
    n = scaling.ROWS_IN_CACHE + 10  # more than one block
    x, y = rng.normal(size=(n, 3)).astype(dtype), rng.integers(0, 2, n).astype(dtype)
    bounds = {"0": [-1, 1], "1": [-2, 2], "2": [0, 1e-3]}
    options = {"bounds": bounds, "classes": (0, 1), "intercept": intercept}
    before = load(write_npz(tmp_path, x=x, y=y), **options)
    for row, cell in ((3, np.inf), (n - 1, np.nan), (n // 2, 1e38), (0, -1e38)):
        changed, labels = x.copy(), y.copy()
        changed[row, 1], labels[row] = cell, 5
        path = write_npz(tmp_path, x=changed, y=labels)
        after = load(path, **options)
        others = np.arange(n) != row
        np.testing.assert_array_equal(after.x[others], before.x[others])
        np.testing.assert_array_equal(after.y[others], before.y[others])
        assert np.isnan(after.y[row])
        assert np.isnan(after.x[row]).all() == (not np.isfinite(cell))


def test_bounds_are_required_and_the_error_says_why(tmp_path):
    with pytest.raises(ValueError, match="would leak it"):
        load(write_csv(tmp_path), label="ill")


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"age": [0, 100]}, "lack the columns 'bmi'"),
        ({**BOUNDS, "height": [0, 1]}, "bounds name 'height'"),
        ({**BOUNDS, "ill": [0, 1]}, "bounds name 'ill'"),
        ({**BOUNDS, "bmi": [50, 10]}, "bounds of column 'bmi'.*low < high"),
        ({**BOUNDS, "bmi": [10, 10]}, "low < high"),
        ({**BOUNDS, "bmi": [0, float("inf")]}, "finite"),
        ({**BOUNDS, "bmi": [float("nan"), 1]}, "finite"),
        ({**BOUNDS, "bmi": [-1e308, 1e308]}, "finite"),
        ({**BOUNDS, "bmi": [0, "high"]}, "two numbers"),
        ({**BOUNDS, "bmi": 3}, "two numbers"),
        ([[0, 1], [0, 1]], "lack the columns 'age', 'bmi'"),
        (7, "must be {column"),
    ],
)
def test_bounds_that_do_not_fit(tmp_path, bounds, message):
    path = tmp_path / "bounds.json"
    path.write_text(json.dumps(bounds))
    for given in (bounds, path):
        with pytest.raises(ValueError, match=message):
            load(write_csv(tmp_path), label="ill", bounds=given)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("bounds.json", "{", "not valid JSON"),
        ("bounds.csv", "", "must have the header column,low,high"),
        ("bounds.csv", "age,0,100\nbmi,10,50", "must have the header column,low,high"),
        ("bounds.csv", "column,low,high\nage,0,1\nage,0,2\nbmi,0,1", "names 'age' twice"),
        ("bounds.csv", "column,low,high\nage,0", "three cells"),
        ("bounds.txt", "{}", "must name a .json or .csv file"),
    ],
)
def test_bad_bounds_file(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load(write_csv(tmp_path), label="ill", bounds=path)


@pytest.mark.parametrize(
    ("text", "label", "message"),
    [
        ("", "ill", "is empty: the first line must name the columns"),
        (HEADER, "ill", "has no record"),
        (f"{HEADER}\n\n \n", "ill", "has no record"),
        (f"{HEADER}\n1,2,3", None, "label must name the label's column"),
        (f"{HEADER}\n1,2,3", "il", "did you mean 'ill'"),
        ("age,age,ill\n1,2,3", "ill", "names 'age' twice"),
        ("ill\n1", "ill", "has no feature"),
        ("\n", "ill", "begins with an empty line: the first line must name the columns"),
    ],
)
def test_bad_csv(tmp_path, text, label, message):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load(path, label=label, bounds=BOUNDS)


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        ("latin-1", r"header of .* is not UTF-8: save the file as UTF-8"),
        ("utf-16", "in UTF-16: save"),
    ],
)
def test_a_header_that_is_not_utf_8(tmp_path, encoding, message):
    path = tmp_path / "table.csv"
    path.write_bytes("âge,ill\n1,2\n".encode(encoding))
    with pytest.raises(ValueError, match=message):
        load(path, label="ill", bounds={"âge": [0, 1]}, classes=(0, 1))


def test_a_bounds_file_that_is_not_utf_8(tmp_path):
    path = tmp_path / "bounds.json"
    path.write_bytes('{"âge": [0, 1]}'.encode("latin-1"))
    with pytest.raises(ValueError, match=r"bounds file .* is not UTF-8"):
        load(write_csv(tmp_path), label="ill", bounds=path, classes=(0, 1))


@pytest.mark.parametrize(
    "names",
    [
        ("X_train", "y_train", "X_test", "y_test"),
        ("x_train", "y_train", "x_test", "y_test"),
        ("X", "y", "X_test", "y_test"),
        ("X_train", "sick", "X_test", "test_sick"),
    ],
)
def test_npz_with_the_usual_names(tmp_path, names):
    x, y = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), np.array([0, 1, 1])
    arrays = dict(zip(names, (x, y, x[:2], y[:2]), strict=True))
    label = "sick" if "sick" in names else None
    options = {"label": label, "bounds": [[0, 1], [0, 1]], "classes": (0, 1)}
    data = load(write_npz(tmp_path, **arrays), **options)
    np.testing.assert_allclose(data.x[0], [1, 0], atol=1e-6)
    np.testing.assert_array_equal(data.y, [-1, 1, 1])
    np.testing.assert_array_equal(data.test.y, [-1, 1])


def test_columns_in_memory_are_a_table(tmp_path):
    columns = {"age": [30, 60, None], "bmi": np.array([20, 25, 30]), "ill": ["no", "yes", "?"]}
    records = np.array([(30.0, 20, "no"), (60, 25, "yes")], "f8,f8,U3")
    records.dtype.names = ("age", "bmi", "ill")
    for table in (columns, records):
        data = load(table, label="ill", bounds=BOUNDS, classes=("no", "yes"))
        np.testing.assert_allclose(data.x[:2], expected_rows(["30,0,20", "60,1,25"])[0], atol=1e-6)
        np.testing.assert_array_equal(data.y[:2], [-1, 1])
    with pytest.raises(ValueError, match=r"'ill' .* holds words, for which bounds .*: convert it"):
        load(records, label="bmi", bounds={"age": [0, 1], "ill": [0, 1]})
    with pytest.raises(ValueError, match=r"'when' .* holds dates, for which bounds"):
        load(columns | {"when": np.zeros(3, "M8[D]")}, label="ill", classes=("no", "yes"))
    with pytest.raises(ValueError, match="a table must be a path, a data frame, or a mapping"):
        load(np.zeros((3, 2)), label="ill")


X, Y = np.zeros((3, 2)), np.zeros(3)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "lacks 'y'"),
        ({"y": Y}, "lacks 'x'"),
        ({"x": X[0], "y": Y}, r"must be \(n, p\)"),
        ({"x": X, "y": Y[:2]}, r"must be \(n, p\)"),
        ({"x": X[:0], "y": Y[:0]}, "has no record"),
        ({"x": X[:, :0], "y": Y}, "has no feature"),
        ({"x": X.astype(str), "y": Y}, "must be numbers"),
        ({"x": X, "y": Y.astype(complex)}, "words, booleans or real numbers"),
        ({"x": X.astype(object), "y": Y}, "not an archive of plain arrays"),
        ({"x": X, "y": Y, "test_x": X}, "or neither"),
        ({"x": X, "y": Y, "test_x": X[:, :1], "test_y": Y}, "must have 2 columns"),
    ],
)
def test_bad_npz(tmp_path, arrays, message):
    with pytest.raises(ValueError, match=message):
        load(write_npz(tmp_path, **arrays), bounds=[[0, 1], [0, 1]])


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"plain text"])
def test_damaged_npz(tmp_path, content):
    path = tmp_path / "table.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not an archive"):
        load(path, bounds=[[0, 1]])


def test_absent_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none\.csv"):
        load(tmp_path / "none.csv", label="ill")  # before the bounds are missed
    with pytest.raises(FileNotFoundError, match="there is no bounds file"):
        load(write_csv(tmp_path), label="ill", bounds=tmp_path / "none.json")


# The owner's check


def test_check_counts_what_load_passes_over(tmp_path):
    records = [*RECORDS, "30,1,20", "-5,1,60", "0,0,10", "inf,1,20", "30,7,x", "1,1"]
    path = write_csv(tmp_path, records)
    report = check(path, label="ill", bounds=BOUNDS, classes=(0, 1))
    assert report.exact_rows == 10
    assert report.exact_class_counts == {0: 3, 1: 5}
    assert report.exact_impossible_labels == 2 and report.exact_other_labels == {"7": 1}
    assert report.exact_nonfinite_rows == 3
    assert report.exact_nonfinite == {"age": 2, "bmi": 2}
    assert report.exact_outside == {"age": 1, "bmi": 1}
    assert report.exact_zero_rows == 1
    assert report.exact_duplicate_rows == 1
    assert report.lines()[0].startswith("NOT PRIVATE: ")
    data = load(path, label="ill", bounds=BOUNDS, classes=(0, 1))
    assert np.isnan(data.x).any(1).sum() == report.exact_nonfinite_rows
    assert (data.x == 0).all(1).sum() == report.exact_zero_rows


def test_check_without_bounds(tmp_path):
    report = check(write_csv(tmp_path), label="ill")
    assert report.exact_outside is None
    assert any("no bounds are declared" in line for line in report.lines())


def test_check_of_a_named_set(real_data):
    report = check("ijcnn1")
    assert report.exact_class_counts == {-1: 31_585, 1: 3_415}
    assert report.exact_nonfinite == {} and report.exact_outside is None


# Dataset


def test_dataset_is_a_pytree():
    data = load("randhie")
    leaves, tree = jax.tree.flatten(data)
    assert len(leaves) == 2
    again = jax.tree.unflatten(tree, leaves)
    assert again.x is data.x and again.unit == "person-year" and again.test_x is None
    assert jax.tree.structure(again) == tree

    shape = jax.eval_shape(lambda data: jax.tree.map(lambda leaf: leaf[:5], data), data)
    assert shape.size == 5 and shape.dimension == 9 and shape.name == "randhie"
    total = jax.jit(lambda data: data.examples[1].sum())(data)
    assert float(total) == 13_882 - 6_308


def test_repr_shows_neither_values_nor_size():
    assert repr(load("randhie")) == "Dataset(name='randhie', unit='person-year', max_norm=1.0)"


# Images


def byte_images(folder, archive, rows, **changed):
    """Writes an archive of a few images of bytes."""
    images = np.tile(np.arange(192, dtype=np.uint8), rows * 16).reshape(rows, 32, 32, 3)
    arrays = {"X_train": images, "y_train": np.uint8([1] * rows), "X_test": images}
    arrays |= {"y_test": [2] * rows} | changed
    path = folder / archive
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def _three():
    x, y = np.arange(6.0).reshape(3, 2), np.arange(3.0)
    return datasets.Dataset(x, y, x, y, name="three", max_norm=1.0)


def test_a_public_part_and_the_others():
    mask = np.array([True, False, True])
    for named in ((mask,), ([0, 2],), ((0, -1), [1]), (mask, ~mask)):
        public, private = _three().split(*named)
        assert (public.y == [0, 2]).all() and (public.x == [[0, 1], [4, 5]]).all()
        assert (private.y == [1]).all() and private.name == "three" and private.max_norm == 1
        assert private.test.size == 3
    units = datasets.group(dataclasses.replace(_three(), max_norm=None), [0, 0, 1], 2)
    public, private = units.split([1])
    assert public.present.tolist() == [[True, False]] and private.present.all()


@pytest.mark.parametrize(
    "named",
    {
        "in both": ([0, 1], [1, 2]),
        "in both, by another name of the last": ([-1], [2]),
        "masks that overlap": ([True, True, False], [False, True, True]),
        "twice in the private part": ([0], [1, 1]),
        "twice in the public part": ([0, 0],),
    }.values(),
)
def test_a_public_part_that_overlaps_the_private_one_is_refused(named):
    with pytest.raises(ValueError, match="named twice"):
        _three().split(*named)


@pytest.mark.parametrize("named", [([5],), ([True],), ([0.5],), ([0], [3]), (["a"],)])
def test_a_part_by_no_indices_is_refused_without_the_number_of_records(named):
    with pytest.raises(ValueError, match="indices of records, or masks") as caught:
        _three().split(*named)
    assert "3" not in str(caught.value)


def test_images_are_scaled_by_the_range_of_a_byte(no_data, monkeypatch, tmp_path):
    monkeypatch.setenv("DPJAX_DATA", str(tmp_path))
    byte_images(tmp_path, "cifar10.npz", 3)
    data = load("cifar10")
    assert (data.x.shape, data.x.dtype, data.y.dtype) == ((3, 32, 32, 3), np.float32, np.int32)
    assert data.x.max() == np.float32(191 / 255) and data.dimension == 3_072
    assert data.name == "cifar10-fifth" and data.unit == "image"  # fewer rows than the whole set


def test_absent_images_say_what_to_set(no_data):
    with pytest.raises(FileNotFoundError, match=r"DPJAX_DATA is not set.*mnist\.npz with"):
        load("mnist")
    assert not {info.name: info.available for info in describe()}["mnist"]


def test_other_images_are_refused(no_data, monkeypatch, tmp_path):
    monkeypatch.setenv("DPJAX_DATA", str(tmp_path))
    byte_images(tmp_path, "mnist.npz", 2)
    with pytest.raises(ValueError, match="its sha256 is"):
        load("mnist")


PIXELS = np.zeros((2, 32, 32, 3), np.uint8)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y_test": None}, "lacks 'y_test'"),
        ({"X_train": PIXELS.astype(np.float32)}, "'X_train' .* must be bytes.*float32"),
        ({"X_train": np.full(PIXELS.shape, np.nan)}, "'X_train' .* must be bytes.*float64"),
        ({"X_test": PIXELS[..., :1]}, r"'X_test' .* \(32, 32, 3\) each, got \(32, 32, 1\)"),
        ({"X_train": PIXELS.reshape(2, -1)}, r"'X_train' .* \(32, 32, 3\) each"),
        ({"X_train": PIXELS[:0], "y_train": np.zeros(0, int)}, "'X_train' .* has no record"),
        ({"y_train": [1]}, "'y_train' .* one label for each record"),
        ({"y_test": [[1], [2]]}, "'y_test' .* one label for each record"),
        ({"y_train": [1, 10]}, "'y_train' .* from 0 to 9, got 1 to 10"),
        ({"y_test": [-1, 3]}, "'y_test' .* from 0 to 9, got -1 to 3"),
        ({"y_train": [0.0, np.nan]}, "'y_train' .* whole numbers .*float64"),
        ({"y_train": np.array([1, "cat"], object)}, "is not an archive of plain arrays"),
    ],
)
def test_malformed_images_name_the_file_and_what_is_wrong(
    no_data, monkeypatch, tmp_path, changed, message
):
    monkeypatch.setenv("DPJAX_DATA", str(tmp_path))
    path = byte_images(tmp_path, "cifar10.npz", 2, **changed)
    with pytest.raises(ValueError, match=message) as raised:
        load("cifar10")
    assert repr(str(path)) in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"plain text"])
def test_damaged_images(no_data, monkeypatch, tmp_path, content):
    monkeypatch.setenv("DPJAX_DATA", str(tmp_path))
    (tmp_path / "cifar10.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"cifar10\.npz' is not an archive of plain arrays"):
        load("cifar10")


def test_images_take_no_label_and_are_no_table(no_data):
    with pytest.raises(ValueError, match="are for tables, not mnist"):
        load("mnist", intercept=True)
    with pytest.raises(ValueError, match="mnist are images"):
        check("mnist")


def test_mnist_is_what_was_published(real_data):
    del real_data
    data = load("mnist")
    assert data.x.shape == (60_000, 28, 28) and data.test_x.shape == (10_000, 28, 28)
    assert np.bincount(data.y).tolist()[:3] == [5923, 6742, 5958]
