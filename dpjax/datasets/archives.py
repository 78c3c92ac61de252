"""Archives of the named data sets: found on this machine, or downloaded from the publisher."""

import bz2
import hashlib
import http.client
import os
import pathlib
import urllib.request
import warnings
import zipfile
import zlib
from tokenize import TokenError
from typing import Any

import numpy as np

from dpjax.datasets.registry import Spec

LIBSVM_URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
LIBSVM_MD5 = {
    "ijcnn1.bz2": "c3e9162f8e38e0b6c0e02d313a59de2b",
    "ijcnn1.t.bz2": "66433ab8089acee9e56dc61ac89a2fe2",
}

# Errors of NumPy for a file that is not an archive of plain arrays.
DAMAGED = (EOFError, OSError, TypeError, ValueError, zipfile.BadZipFile, zlib.error, TokenError)


def cache_folder() -> pathlib.Path:
    """Returns the folder of downloads: ``$DPJAX_CACHE``, or ``~/.cache/dpjax``."""
    default = pathlib.Path.home() / ".cache" / "dpjax"
    return pathlib.Path(os.environ.get("DPJAX_CACHE") or default).absolute()


def find(archive: str) -> pathlib.Path | None:
    """Returns the path of a data set's archive on this machine, or None.

    The shipped file; else the one in ``$DPJAX_DATA``; else the one in the cache.
    """
    folders = [pathlib.Path(__file__).parent, cache_folder()]
    if declared := os.environ.get("DPJAX_DATA"):
        # What was put there on purpose counts before what was once downloaded.
        folders.insert(1, pathlib.Path(declared))
    paths = (folder / archive for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def downloaded(entry: Spec) -> bool:
    """Returns whether the publisher's files are in the cache."""
    cache = cache_folder()
    if entry.archive == "ijcnn1.npz":
        # One of the two alone would still be a download.
        return all((cache / name).is_file() for name in LIBSVM_MD5)
    # The name that scikit-learn's fetcher gives its file.
    return entry.archive == "covtype.npz" and any((cache / "covertype").glob("samples*"))


def arrays(entry: Spec) -> dict[str, np.ndarray]:
    """Returns the arrays of a named data set, from this machine or from its publisher.

    Raises:
      FileNotFoundError: if it is not on this machine and cannot be downloaded, with a remedy.
      ValueError: if a file's checksum differs from the publisher's.
    """
    path = find(entry.archive)
    result = _from_publisher(entry) if path is None else read(path, entry.checksum)
    declared = os.environ.get("DPJAX_DATA")
    # A misspelt folder would otherwise go unnoticed.
    if declared and (path is None or path.parent == cache_folder() != pathlib.Path(declared)):
        warnings.warn(
            f"DPJAX_DATA={declared} has no {entry.archive}; it was read from elsewhere "
            f"({path or cache_folder()}).",
            stacklevel=5,  # the caller of load
        )
    return result


def read(path: pathlib.Path, checksum: str | None) -> dict[str, np.ndarray]:
    """Returns the arrays of an archive by name.

    Raises:
      ValueError: if its checksum differs, or it is not an archive of plain arrays.
    """
    if checksum is not None:
        _verify(path, "sha256", checksum)
    try:
        # Opened here, because numpy leaves a damaged archive's file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except DAMAGED as error:
        raise ValueError(f"{str(path)!r} is not an archive of plain arrays: {error}.") from None


def labelled(
    raw: dict[str, np.ndarray], where: str, names: tuple[str, str], shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the features (n, *shape) and the labels (n,) of an archive, by their names.

    Raises:
      ValueError: if it lacks one of them, has no record, or they are of other shapes.
    """
    if absent := [name for name in names if name not in raw]:
        raise ValueError(f"{where} lacks {absent[0]!r}; it has {', '.join(sorted(raw))}.")
    (features, labels), (x, y) = names, (raw[name] for name in names)
    if x.shape[1:] != shape:
        raise ValueError(f"{features!r} of {where} must be of {shape} each, got {x.shape[1:]}.")
    if len(x) == 0:
        raise ValueError(f"{features!r} of {where} has no record.")
    if y.shape != x.shape[:1]:
        raise ValueError(f"{labels!r} of {where} must be (n,), one label for each record.")
    return x, y


def parse_svmlight(path: pathlib.Path, features: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns features and labels of a bzip2-compressed LIBSVM file, by scikit-learn.

    Lines are ``label index:value ...``, the index from 1; absent entries are 0.

    Returns:
      x (n, features) float32 and y (n,) int8.
    """
    import sklearn.datasets

    read: Any = sklearn.datasets.load_svmlight_file  # its inferred signature is too narrow
    with bz2.open(path) as file:
        x, y = read(file, n_features=features, dtype=np.float32, zero_based=False)
    return x.toarray(), y.astype(np.int8)


def _from_publisher(entry: Spec) -> dict[str, np.ndarray]:
    declared = os.environ.get("DPJAX_DATA")
    state = f"DPJAX_DATA={declared} has no {entry.archive}" if declared else "DPJAX_DATA is not set"
    problem = f"the data set {entry.name!r} is not on this machine ({state})"
    put = f"set DPJAX_DATA=FOLDER, where FOLDER holds {entry.archive}"
    if entry.archive not in FETCHERS:
        raise FileNotFoundError(f"{problem}: {put}.")
    try:
        return FETCHERS[entry.archive](cache_folder(), len(entry.columns))
    except ModuleNotFoundError:
        raise FileNotFoundError(
            f"{problem}, and fetching it needs scikit-learn: pip install 'dpjax[data]', or {put}."
        ) from None
    # The latter where a connection breaks amid a reply.
    except (OSError, http.client.HTTPException) as error:
        raise FileNotFoundError(
            f"{problem}, and its publisher could not be reached ({error}): connect, or {put}."
        ) from error


def _read_ijcnn1(cache: pathlib.Path, features: int) -> dict[str, np.ndarray]:
    import sklearn.datasets  # noqa: F401  so that its absence is known before the download

    for name, checksum in LIBSVM_MD5.items():
        path = cache / name
        if not path.is_file():
            cache.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            _download(LIBSVM_URL + name, part)
            _verify(part, "md5", checksum)
            # Under its own name once it is whole: an interrupted download is begun anew.
            part.replace(path)
        _verify(path, "md5", checksum)
    train_x, train_y = parse_svmlight(cache / "ijcnn1.bz2", features)
    test_x, test_y = parse_svmlight(cache / "ijcnn1.t.bz2", features)
    return {"X_train": train_x, "y_train": train_y, "X_test": test_x, "y_test": test_y}


def _read_covtype(cache: pathlib.Path, features: int) -> dict[str, np.ndarray]:
    # scikit-learn verifies the publisher's checksum. Its first call parses text and needs several
    # times the memory of any later one.
    import sklearn.datasets

    fetch: Any = sklearn.datasets.fetch_covtype
    x, y = fetch(data_home=str(cache), return_X_y=True, n_retries=1)
    return {"X": x[:, :features], "y": y}


FETCHERS = {"ijcnn1.npz": _read_ijcnn1, "covtype.npz": _read_covtype}
"""Archive: function of cache folder and number of features that fetches its arrays, if any does."""


def _download(url: str, path: pathlib.Path):
    # The timeout is of each read, so that a dead connection ends.
    with urllib.request.urlopen(url, timeout=60) as reply, path.open("wb") as file:
        while block := reply.read(1 << 20):
            file.write(block)


def _verify(path: pathlib.Path, algorithm: str, expected: str):
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, algorithm).hexdigest()
    if digest != expected:
        raise ValueError(
            f"{str(path)!r} is another file than the published one, or damaged: its {algorithm} "
            f"is {digest}, expected {expected}. Replace it or remove it."
        )
