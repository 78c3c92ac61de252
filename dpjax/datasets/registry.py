"""The named data sets: their contents, sources and declared feature ranges."""

import dataclasses
import math
from collections.abc import Callable
from types import MappingProxyType

import numpy as np

from dpjax import _validate

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
        "hlthg": (0.0, 1.0),
        "hlthf": (0.0, 1.0),
        "hlthp": (0.0, 1.0),
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
        "hillshade_9am": (0.0, 254.0),
        "hillshade_noon": (0.0, 254.0),
        "hillshade_3pm": (0.0, 254.0),
        "horizontal_distance_to_fire_points": (0.0, 7173.0),
        **{f"wilderness_area_{i}": (0.0, 1.0) for i in range(1, 5)},
        **{f"soil_type_{i}": (0.0, 1.0) for i in range(1, 41)},
    }
)
"""Declared range of each feature of ``covtype``."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """One named data set.

    Args:
      rows: number of training records; the archive's further ones are left out.
      checksum: sha256 of its archive, or None for an archive that the user makes.
      ranges: declared range of each feature, or None if rows are only normalised.
      is_positive: which labels are +1, as a function of their array; None for several classes, each
        a label of its own, counted from 1.
      arrays: names of features and labels in the archive.
      test_arrays: those of the test set, if there is one.
      shape: of an image of bytes, in an archive with ``X_train``, ``y_train``, ``X_test`` and
        ``y_test``.
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
    ranges: MappingProxyType[str, tuple[float, float]] | None = dataclasses.field(
        default=None, repr=False
    )
    unit: str = "row"
    is_positive: Callable[[np.ndarray], np.ndarray] | None = dataclasses.field(
        default=None, repr=False
    )
    classes: int = 2
    arrays: tuple[str, str] = ("X", "y")
    test_arrays: tuple[str, str] | None = None
    shape: tuple[int, ...] = ()

    def __post_init__(self):
        if self.classes == 2 and self.is_positive is None:
            raise ValueError(f"is_positive must say which labels of {self.name!r} are +1.")

    @property
    def features(self) -> int:
        """Number of features, without an intercept; of pixels."""
        return len(self.columns) or math.prod(self.shape)


_COVTYPE = Spec(
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

SPECS = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            Spec(
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
            Spec(
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
)


def spec(name: str) -> Spec:
    """Returns the entry of a named data set.

    Raises:
      ValueError: with the nearest names, if there is no such set.
    """
    return SPECS[_validate.choice("data set", name, SPECS)]
