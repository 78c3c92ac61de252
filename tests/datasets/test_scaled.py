"""Files of scaled rows: what ``write`` makes is read again, and any other is refused in words."""

import io
import json
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.datasets import Dataset, Preprocessing, load, write
from dpjax.datasets.encoders import Numeric

X, Y = np.ones((4, 2), np.float32), np.array([1, -1, 1, -1], np.float32)
DECLARED = {"name": "n", "unit": "row", "max_norm": 1.0, "preprocessing": None}
AGE = {
    "encoders": [["age", {"bounds": [0, 9]}]],
    "intercept": False,
    "classes": None,
    "label_bounds": None,
    "pixels": None,
}


def craft(path, arrays, declared, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, array in arrays.items():
            held = io.BytesIO()
            np.save(held, array, allow_pickle=True)
            archive.writestr(f"{name}.npy", held.getvalue())
        text = declared if isinstance(declared, str) else json.dumps(declared)
        archive.writestr("dpjax.json", text)
    return path


@pytest.mark.parametrize(
    ("arrays", "declared"),
    [
        ({}, "{"),
        ({}, [1]),
        ({}, {"name": "n"}),
        ({}, DECLARED | {"more": 1}),
        ({}, DECLARED | {"max_norm": "1"}),
        ({}, DECLARED | {"max_norm": float("nan")}),
        ({}, DECLARED | {"unit": None}),
        ({}, DECLARED | {"preprocessing": "all"}),
        ({}, DECLARED | {"preprocessing": AGE}),
        ({"x": None}, DECLARED),
        ({"y": None}, DECLARED),
        ({"y": Y[:2]}, DECLARED),
        ({"x": np.full((4, 2), None)}, DECLARED),
        ({"x": np.full((4, 2), "word")}, DECLARED),
        ({"x": np.asfortranarray(X)}, DECLARED),
        ({"test_x": X}, DECLARED),
        ({"x": X[:, None], "y": Y[:, None], "present": np.ones((4, 1))}, DECLARED),
    ],
)
@pytest.mark.parametrize("memory_limit", [None, 1])
def test_a_file_that_was_changed_is_refused(tmp_path, arrays, declared, memory_limit):
    held = {"x": X, "y": Y} | arrays
    held = {name: array for name, array in held.items() if array is not None}
    path = craft(tmp_path / "changed.npz", held, declared)
    with pytest.raises(ValueError, match="Write it again from its table"):
        load(path, memory_limit=memory_limit)


def test_a_compressed_or_damaged_file_is_refused(tmp_path):
    path = craft(tmp_path / "small.npz", {"x": X, "y": Y}, DECLARED, zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match="compressed"):
        load(path)
    path = tmp_path / "whole.npz"
    write(Dataset(X, Y), path)
    whole = path.read_bytes()
    header = whole.index(b"NUMPY") + 9
    for damaged in (
        whole[:header] + b"}" * 20 + whole[header + 20 :],
        whole[: len(whole) // 2],
        whole[-22:],  # the end of an archive without its beginning
        b"",
    ):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"damaged|not an archive"):
            load(path)


@pytest.mark.parametrize(
    "data",
    [
        Dataset(X, Y[:2]),
        Dataset(X, Y, X),
        Dataset(X, Y, preprocessing=Preprocessing((Numeric("age", 0.0, 9.0),))),
        Dataset(jnp.asarray(X, jnp.bfloat16), Y),
    ],
)
def test_what_could_not_be_read_is_not_written(tmp_path, data):
    with pytest.raises(ValueError, match="x and y must be arrays of numbers"):
        write(data, tmp_path / "data.npz")
    assert not list(tmp_path.iterdir())


def test_a_declared_norm_of_numpy_is_written(tmp_path):
    write(Dataset(X, Y, max_norm=np.float32(2.0)), tmp_path / "data.npz")
    assert load(tmp_path / "data.npz").max_norm == 2.0
