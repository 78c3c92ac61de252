"""Fixtures that several test files share."""

import os
import pathlib

import pytest


@pytest.fixture
def real_data():
    """The folder with the real ijcnn1 and covtype; skips where there is none."""
    if not os.environ.get("DPJAX_DATA"):
        pytest.skip("set DPJAX_DATA to the folder that holds ijcnn1.npz and covtype.npz")
    return pathlib.Path(os.environ["DPJAX_DATA"])


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    """A machine that has no data set and no network; returns its empty cache folder."""

    def offline(*args, **kwargs):
        raise OSError("no route to host")

    cache = tmp_path / "cache"
    monkeypatch.delenv("DPJAX_DATA", raising=False)
    monkeypatch.setenv("DPJAX_CACHE", str(cache))
    monkeypatch.setattr("dpjax.datasets.archives._download", offline)
    sklearn_datasets = pytest.importorskip("sklearn.datasets")
    monkeypatch.setattr(sklearn_datasets, "fetch_covtype", offline)
    return cache
