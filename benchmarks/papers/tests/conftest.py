"""Fixtures of the papers' suite: no network, pictures kept, and programs that compile fast."""

import pathlib

import compiling
import jax
import matplotlib.figure
import pytest
import sklearn.datasets

jax.config.update("jax_numpy_rank_promotion", "raise")
compiling.install()
compiling.share()


@pytest.fixture(autouse=True)
def optimisation(request):
    """Compiles a test's programs as its mark says."""
    compiling.choose(compiling.mark_of(request.node))


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    """A machine that has no data set and no network."""

    def offline(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.delenv("DPJAX_DATA", raising=False)
    monkeypatch.setenv("DPJAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("dpjax.datasets.registry._download", offline)
    monkeypatch.setattr(sklearn.datasets, "fetch_covtype", offline)


@pytest.fixture
def pictures(monkeypatch):
    """The figures that are written while the test runs, by the name of their file."""
    save, saved = matplotlib.figure.Figure.savefig, {}

    def kept(self, path, **more):
        saved[pathlib.Path(path).stem] = self
        save(self, path, **more)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", kept)
    return saved
