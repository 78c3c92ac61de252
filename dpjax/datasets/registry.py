"""The named data sets: contents, declared ranges, and archives found here or downloaded.

Unlike a user's table these data are public, so an error may depend on a record.
"""

import dataclasses
import hashlib
import http.client
import math
import os
import pathlib
import urllib.request
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from dpjax import _validate
from dpjax.datasets.columnar import Matrix, opened
from dpjax.datasets.dataset import Dataset, Preprocessing

LIBSVM_URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
LIBSVM_MD5 = {
    "ijcnn1.bz2": "c3e9162f8e38e0b6c0e02d313a59de2b",
    "ijcnn1.t.bz2": "66433ab8089acee9e56dc61ac89a2fe2",
}

# The codebook gives lncoins = ln(1 + coinsurance) with coinsurance in 0..100, fmde = ln(MDE /
# (0.01 coinsurance)) with MDE up to 1,000 dollars at 25 %, and the indicators; the ranges of lpi
# and disea are round numbers around what was published. All are treated as public for benchmarks.
RANDHIE_RANGES = MappingProxyType(
    {
        "lncoins": (0.0, 4.6152),
        "idp": (0.0, 1.0),
        "lpi": (0.0, 7.2),
        "fmde": (0.0, 8.3),
        "physlm": (0.0, 1.0),
        "disea": (0.0, 60.0),
        **dict.fromkeys(("hlthg", "hlthf", "hlthp"), (0.0, 1.0)),
    }
)
"""Declared range of each feature of ``randhie``."""

# Lowest and highest published value of each column, as min-max scaling in the papers uses them;
# treated as public for benchmarks.
COVTYPE_RANGES = MappingProxyType(
    {
        "elevation": (1859.0, 3858.0),
        "aspect": (0.0, 360.0),
        "slope": (0.0, 66.0),
        "horizontal_distance_to_hydrology": (0.0, 1397.0),
        "vertical_distance_to_hydrology": (-173.0, 601.0),
        "horizontal_distance_to_roadways": (0.0, 7117.0),
        **{f"hillshade_{time}": (0.0, 254.0) for time in ("9am", "noon", "3pm")},
        "horizontal_distance_to_fire_points": (0.0, 7173.0),
        **{f"wilderness_area_{i}": (0.0, 1.0) for i in range(1, 5)},
        **{f"soil_type_{i}": (0.0, 1.0) for i in range(1, 41)},
    }
)
"""Declared range of each feature of ``covtype``."""


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """Published facts about a named data set, and what its archive holds.

    Args:
      name: its name in ``load``.
      rows: number of training records; the archive's further ones are left out.
      task: the meaning of +1 against -1.
      source: its publisher.
      note: terms, preprocessing, and remarks for whoever quotes a number.
      archive: the file that holds it.
      checksum: sha256 of its archive, or None for one that the user makes.
      columns: names of the features; of images none.
      ranges: declared range of each feature, or None if rows are only normalised.
      unit: what one row stands for.
      is_positive: which labels are +1, as a function of their array; None for several classes, each
        a label of its own, counted from 1.
      classes: how many there are.
      arrays: names of features and labels in the archive.
      test_arrays: those of the test set, if there is one.
      shape: of an image of bytes, in an archive with ``X_train``, ``y_train``, ``X_test`` and
        ``y_test``.
      path: the archive on this machine, or None.
    """

    name: str
    rows: int
    task: str
    source: str
    note: str
    archive: str
    checksum: str | None
    # Not shown: of covtype they are 54 names and their ranges.
    columns: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    ranges: Mapping[str, tuple[float, float]] | None = dataclasses.field(default=None, repr=False)
    unit: str = "row"
    is_positive: Callable[..., np.ndarray] | None = dataclasses.field(default=None, repr=False)
    classes: int = 2
    arrays: tuple[str, str] = ("X", "y")
    test_arrays: tuple[str, str] | None = None
    shape: tuple[int, ...] = ()
    path: str | None = None

    def __post_init__(self):
        if self.classes == 2 and self.is_positive is None:
            raise ValueError(f"is_positive must say which labels of {self.name!r} are +1.")

    @property
    def features(self) -> int:
        """Number of features, without an intercept; of pixels."""
        return len(self.columns) or math.prod(self.shape)

    @property
    def available(self) -> bool:
        """Whether ``load`` needs no network for it."""
        if self.path is not None:
            return True
        cache = cache_folder()
        if self.archive == "ijcnn1.npz":
            # One of the two alone would still be a download.
            return all((cache / name).is_file() for name in LIBSVM_MD5)
        # The name that scikit-learn's fetcher gives its file.
        return self.archive == "covtype.npz" and any((cache / "covertype").glob("samples*"))


_COVTYPE = DatasetInfo(
    name="covtype",
    rows=581_012,
    columns=tuple(COVTYPE_RANGES),
    task="class 2 (lodgepole pine) against the other six",
    source="Covertype, UCI Machine Learning Repository (Blackard and Dean, 1998)",
    note="CC BY 4.0. Scaled by published ranges, then each row by its norm. No test set.",
    archive="covtype.npz",
    checksum="872418712644959ce7af8f6c6b2bc901ce3a8050fd77705ca9f46a0b83175a66",
    ranges=COVTYPE_RANGES,
    is_positive=lambda y: y == 2,
)

SPECS = {
    spec.name: spec
    for spec in (
        DatasetInfo(
            name="randhie",
            rows=20_190,
            columns=tuple(RANDHIE_RANGES),
            task="any outpatient visit in the year (mdvis > 0) or none",
            source="RAND Health Insurance Experiment, subset shipped by statsmodels",
            note="Public domain. Several rows per person, at most 5: the guarantee is per "
            "person-year. Scaled by declared ranges, then each row by its norm. No test set.",
            archive="randhie.npz",
            checksum="3ab407ca18f887facebad48a52cb219da606f2977da4c07e9ef3d803d84ead56",
            ranges=RANDHIE_RANGES,
            unit="person-year",
            arrays=("x", "mdvis"),
            is_positive=lambda visits: visits > 0,
        ),
        DatasetInfo(
            name="ijcnn1",
            rows=35_000,  # ijcnn1.tr; the publisher's ijcnn1 appends 14,990 of validation
            # The publisher numbers its features and names none.
            columns=tuple(map(str, range(22))),
            task="the competition's two classes, about 1 in 10 positive",
            source="LIBSVM Data, ijcnn1.tr and ijcnn1.t (Prokhorov, IJCNN 2001)",
            note="No terms stated. Each row divided by its norm, nothing else. Always "
            "predicting -1 scores 90.50 % on the test set of 91,701 rows.",
            archive="ijcnn1.npz",
            checksum="7d761a512ada02e3998444a8ed332f1c0d0b377e9941c41ed0b84a71b1d68900",
            arrays=("X_train", "y_train"),
            test_arrays=("X_test", "y_test"),
            is_positive=lambda y: y > 0,
        ),
        _COVTYPE,
        dataclasses.replace(
            _COVTYPE,
            name="covtype-12",
            task="classes 1 and 2 (spruce/fir, lodgepole pine) against the other five",
            note=_COVTYPE.note + " Always predicting +1 scores 85.2 %.",
            is_positive=lambda y: np.isin(y, (1, 2)),
        ),
        dataclasses.replace(
            _COVTYPE,
            name="covtype-7",
            task="the seven classes of cover",
            note=_COVTYPE.note + " Always predicting class 2 scores 48.8 %.",
            is_positive=None,
            classes=7,
        ),
    )
}

_CIFAR = DatasetInfo(
    name="cifar10",
    archive="cifar10.npz",
    # The user makes this archive, so its bytes differ from one machine to another.
    checksum=None,
    rows=50_000,
    shape=(32, 32, 3),
    unit="image",
    classes=10,
    task="10 classes of images, for networks: dpjax.fit",
    source="CIFAR-10 (Krizhevsky, 2009)",
    note="No terms stated. An archive of the whole set, made from the publisher's files.",
)

# For a name with several archives, the first one on this machine is read.
IMAGES = {
    "mnist": (
        dataclasses.replace(
            _CIFAR,
            name="mnist",
            archive="mnist.npz",
            checksum="d2fc8bab397b964798b4c839bd1e705e10a4bb65f4d56a88002229d145796751",
            rows=60_000,
            shape=(28, 28),
            source="The MNIST database of handwritten digits (LeCun, Cortes and Burges)",
            note="Commonly stated as CC BY-SA 3.0. Bytes divided by 255. Test set of 10,000.",
        ),
    ),
    "cifar10": (
        _CIFAR,
        dataclasses.replace(
            _CIFAR,
            archive="cifar10_subset_10k_2k.npz",
            checksum="cff287d7437364bc5af5ec1b7106d65c088c9527d2d03faf08e7c6525671171d",
            rows=10_000,
            note="A FIFTH of CIFAR-10: the first 1,000 training and 200 test images of each "
            "class. Results do not compare with published ones. Bytes divided by 255.",
        ),
    ),
}


def spec(name: str) -> DatasetInfo:
    """Returns the entry of a named data set; an unknown name raises with the nearest ones."""
    return SPECS[_validate.choice("data set", name, SPECS)]


def cache_folder() -> pathlib.Path:
    """Returns the folder of downloads: ``$DPJAX_CACHE``, or ``~/.cache/dpjax``."""
    default = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "dpjax"
    return pathlib.Path(os.environ.get("DPJAX_CACHE") or default).absolute()


def find(archive: str) -> pathlib.Path | None:
    """Returns an archive's path: shipped, else in ``$DPJAX_DATA``, else in the cache; or None."""
    folders = [pathlib.Path(__file__).parent, cache_folder()]
    if declared := os.environ.get("DPJAX_DATA"):
        # What was put there on purpose counts before what was once downloaded.
        folders.insert(1, pathlib.Path(declared))
    paths = (folder / archive for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def read_named(entry: DatasetInfo) -> tuple[Matrix, Matrix | None, tuple[int, ...]]:
    """Returns the records of a named table, held-out ones or None, and the classes of its labels.

    Privacy: raw data.
    """
    raw = arrays(entry)

    def matrix(names: tuple[str, str], rows: int | None = None) -> Matrix:
        x, y = _labelled(entry, raw, repr(entry.archive), names)
        if entry.is_positive:
            y = np.where(entry.is_positive(y), np.float32(1), np.float32(-1))
        return Matrix(repr(entry.name), x[:rows], entry.columns, {"label": y[:rows]})

    test = matrix(entry.test_arrays) if entry.test_arrays else None
    # Several classes are counted from 1, as their publisher does.
    classes = (-1, 1) if entry.is_positive else tuple(range(1, entry.classes + 1))
    # Some publishers append other records to the training set.
    return matrix(entry.arrays, entry.rows), test, classes


def _labelled(
    entry: DatasetInfo, raw: dict[str, np.ndarray], where: str, names: tuple[str, str]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the features (n, p), or images, and the labels (n,) of an archive, by their names."""
    if absent := [name for name in names if name not in raw]:
        raise ValueError(f"{where} lacks {absent[0]!r}; it has {', '.join(sorted(raw))}.")
    (features, labels), (x, y) = names, (raw[name] for name in names)
    shape = entry.shape or (entry.features,)
    if x.shape[1:] != shape:
        raise ValueError(f"{features!r} of {where} must be of {shape} each, got {x.shape[1:]}.")
    if len(x) == 0:
        raise ValueError(f"{features!r} of {where} has no record.")
    if y.shape != x.shape[:1]:
        raise ValueError(f"{labels!r} of {where} must be (n,), one label for each record.")
    return x, y


def arrays(entry: DatasetInfo) -> dict[str, np.ndarray]:
    """Returns the arrays of a named data set, from this machine or from its publisher."""
    path = find(entry.archive)
    result = _from_publisher(entry) if path is None else read_archive(path, entry.checksum)
    declared = os.environ.get("DPJAX_DATA")
    # A misspelt folder would otherwise go unnoticed.
    if declared and (path is None or path.parent == cache_folder() != pathlib.Path(declared)):
        warnings.warn(
            f"DPJAX_DATA={declared} has no {entry.archive}; it was read from elsewhere "
            f"({path or cache_folder()}).",
            stacklevel=5,  # the caller of load
        )
    return result


def read_archive(path: pathlib.Path, checksum: str | None) -> dict[str, np.ndarray]:
    """Returns the arrays of an archive by name; another checksum, or no archive, raises."""
    if checksum is not None:
        _verify(path, "sha256", checksum)
    with opened(path) as archive:
        return {name: archive[name] for name in archive.files}


def _from_publisher(entry: DatasetInfo) -> dict[str, np.ndarray]:
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
            f"{problem}; {_validate.install('fetching it', 'scikit-learn')}, or {put}."
        ) from None
    # The latter where a connection breaks amid a reply.
    except (OSError, http.client.HTTPException) as error:
        raise FileNotFoundError(
            f"{problem}, and its publisher could not be reached ({error}): connect, or {put}."
        ) from error


def _read_ijcnn1(cache: pathlib.Path, features: int) -> dict[str, np.ndarray]:
    # Before the download, so that its absence is known.
    import sklearn.datasets

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
    read: Any = sklearn.datasets.load_svmlight_files  # its inferred signature is too narrow
    paths = [str(cache / name) for name in LIBSVM_MD5]
    x, y, test_x, test_y = read(paths, n_features=features, dtype=np.float32, zero_based=False)
    return {"X_train": x.toarray(), "y_train": y, "X_test": test_x.toarray(), "y_test": test_y}


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


def find_images(name: str) -> tuple[DatasetInfo, pathlib.Path | None]:
    """Returns the archive of a named set that is on this machine, or the last one and None."""
    for images in IMAGES[name]:
        if (path := find(images.archive)) is not None:
            return images, path
    return IMAGES[name][-1], None


def load_images(name: str) -> Dataset:
    """Returns a named image data set: x (n, ...) float32 in [0, 1], y (n,) int32 from 0 up."""
    images, path = find_images(name)
    if path is None:
        declared = os.environ.get("DPJAX_DATA")
        state = f"DPJAX_DATA={declared} has none" if declared else "DPJAX_DATA is not set"
        wanted = " or ".join(known.archive for known in IMAGES[name])
        raise FileNotFoundError(
            f"the images {name!r} are not on this machine ({state}): set DPJAX_DATA=FOLDER, where "
            f"FOLDER holds {wanted} with the arrays X_train, y_train, X_test and y_test."
        )
    raw = read_archive(path, images.checksum)
    train, test = (_images(images, repr(str(path)), raw, part) for part in ("train", "test"))
    # So that a result on a fifth does not pass for one on the whole.
    name = name if len(train[0]) == IMAGES[name][0].rows else f"{name}-fifth"
    scale = Preprocessing((), classes=tuple(range(images.classes)), pixels=(0.0, 255.0))
    return Dataset(*train, *test, name, images.unit, preprocessing=scale)


def _images(
    entry: DatasetInfo, where: str, raw: dict[str, np.ndarray], part: str
) -> tuple[np.ndarray, np.ndarray]:
    """Returns images in [0, 1] and their labels, or raises unless they are what is declared."""
    names = (f"X_{part}", f"y_{part}")
    x, y = _labelled(entry, raw, where, names)
    # Floats may be scaled already: a second division by 255 would make all images nearly black.
    if x.dtype != np.uint8:
        raise ValueError(f"{names[0]!r} of {where} must be bytes, got {x.dtype}.")
    integer = y.dtype.kind in "iu"
    if not integer or y.min() < 0 or y.max() >= entry.classes:
        held = f"{y.min()} to {y.max()}" if integer else y.dtype
        raise ValueError(
            f"{names[1]!r} of {where} must be whole numbers from 0 to "
            f"{entry.classes - 1}, got {held}."
        )
    return x.astype(np.float32) / np.float32(255), y.astype(np.int32)
