"""``Dataset``, and the declared mapping of a table to its rows."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from dpjax._typing import Array, PyTree, pytree_dataclass, static
from dpjax.datasets.cells import check_unmasked
from dpjax.datasets.encoders import AnyLabel, Column, Numeric, Unscaled, label_forms, numeric_forms
from dpjax.datasets.forms import PLAIN, Form
from dpjax.datasets.labels import Label
from dpjax.datasets.rows import Rows
from dpjax.datasets.scaling import linear_scale, normalise
from dpjax.datasets.source import Source, stacked
from dpjax.datasets.sources import open_features
from dpjax.display.cards import Card, HasCard


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """The declared, hence public, mapping of raw features to rows and of labels to numbers.

    ``load`` returns it as ``Dataset.preprocessing``; ``dpjax.save`` writes it beside the
    parameters.

    Args:
      encoders: what is declared of each column that becomes features, in their order; empty for
        images.
      intercept: whether a feature that is 1 is appended.
      classes: the declared labels: of two, the first is -1 and the second +1 in ``y``; more are
        0, 1, ...; None where none are declared.
      label_bounds: declared (low, high) of a label that is a number, mapped to -1 and +1. Rows are
        then divided by a constant, see ``Schema``.
      pixels: of images, declared (low, high) of all pixels, mapped to 0 and 1.
      label: name of the label's column, where it is known, as what follows; for reports.
      unit: name of the column that says whose a record is.
      max_records: how many records of one unit count.
      ignored: names of columns that were declared not to be used.
      constant: whether a constant divides rows with classes as the label too.
      max_norm: declared norm to which longer rows are scaled down before a constant divides them.

    >>> scale = Preprocessing((Numeric("age", 0, 100), Numeric("bmi", 10, 50)))
    >>> scale.rows({"bmi": [30, 50], "age": [50, 0]}).round(4)
    array([[0.7071, 0.7071],
           [0.    , 1.    ]], dtype=float32)
    """

    encoders: tuple[Column, ...]
    intercept: bool = False
    classes: tuple[Label, ...] | None = None
    label_bounds: tuple[float, float] | None = None
    pixels: tuple[float, float] | None = None
    constant: bool = False
    max_norm: float | None = None
    # Not compared, as rows do not depend on them.
    label: str | None = dataclasses.field(default=None, compare=False)
    unit: str | None = dataclasses.field(default=None, compare=False)
    max_records: int | None = dataclasses.field(default=None, compare=False)
    ignored: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    @property
    def linear(self) -> bool:
        """Whether a constant divides rows, so that they are linear in their columns."""
        return self.constant or self.label_bounds is not None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that become features, in their order; empty for images."""
        return tuple(column.name for column in self.encoders)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the p features of a row, such as ``education=school``; empty for images."""
        names = [name for column in self.encoders for name in column.features]
        return (*names, *(("intercept",) if self.intercept else ()))

    def differences(self, other: "Preprocessing") -> list[str]:
        """Returns the names of what the rows of two mappings differ in; the labels may differ.

        >>> scale = Preprocessing((Numeric("age", 0, 100), Numeric("bmi", 10, 50)))
        >>> other = (Numeric("age", 0, 120), Numeric("bmi", 10, 50))
        >>> scale.differences(Preprocessing(other, intercept=True))
        ["'age'", 'the intercept']
        """
        # Images have no columns.
        mine, its = (
            {column.name: column for column in scale.encoders} or {"pixels": scale.pixels}
            for scale in (self, other)
        )
        names = [
            repr(name)
            for name in mine | its
            # Of images the declaration may be None, which is not the same as absent.
            if (name in mine, mine.get(name)) != (name in its, its.get(name))
        ]
        if self.intercept != other.intercept:
            names.append("the intercept")
        # How rows are scaled depends on whether the label has bounds, see `encode`, not on which.
        if (self.label_bounds is None) != (other.label_bounds is None):
            names.append("whether the label is a number")
        elif (self.linear, self.max_norm) != (other.linear, other.max_norm):
            names.append("what rows are divided by")
        if not names and tuple(mine) != tuple(its):
            names.append("the order of the columns")
        return names

    def rows(self, table: Any) -> np.ndarray:
        """Returns the features of ``table`` scaled as in training, (n, p) float32.

        Args:
          table: records with or without labels: the path of a file, a data frame or
            mapping with the named columns, or an array (n, columns) in their order. Values must be
            unscaled; the rows of a ``Dataset`` are scaled already.

        Raises:
          FileNotFoundError: if there is no such file.
          ValueError: if a column is missing or stored otherwise, or an array has another shape.

        Privacy: each row depends on one record alone. A record with a value that is missing, not
          finite, or an undeclared level that has no indicator becomes NaN in every feature.
        """
        if not self.columns:
            # Images have no columns: one declared range is that of all pixels, and no norm divides.
            low, high = self.pixels or (0.0, 1.0)
            pixels = np.asarray(table).astype(np.float32)
            return (np.clip(pixels, low, high) - np.float32(low)) / np.float32(high - low)
        blocks = self.blocks(open_features(table, self.columns))
        # A table without records has no block.
        return np.concatenate([np.empty((0, len(self.features)), np.float32), *blocks])

    def blocks(self, source: Source) -> Iterator[np.ndarray]:
        """Yields the rows of a table's records, scaled as in training.

        Raises:
          ValueError: if a column is stored as what has no valid value.
        """
        for column in self.encoders:
            column.check_stored(source)
        return map(self.encode, source.blocks(*self.wanted))

    def encode(self, cells: Sequence[np.ndarray]) -> np.ndarray:
        """Returns rows (n, p) in float32 of what ``Source.read`` returns for ``wanted``.

        Cells may also be those (n,) of each column.

        Privacy: each row depends on one record alone.
        """
        least, constant = 0.0, None
        # Then a row must stay linear in its columns, so that one constant divides all rows.
        if self.linear:
            least, constant = linear_scale(len(self.encoders), self.intercept, self.max_norm)
        if self._plain:
            # One pass over all columns, where none needs one of its own.
            block = cells[0] if cells[0].ndim == 2 else stacked(cells)
            ends = [(c.low, c.high) for c in self.encoders if isinstance(c, Numeric)]
            ranges: Any = np.array(ends, np.float64).T if ends else None
            return normalise(block, ranges, self.intercept, least, constant)
        # Each encoder scales its own column, so that no ranges are left for `normalise`.
        parts = [c.encode(held, least) for c, held in zip(self.encoders, cells, strict=True)]
        return normalise(np.concatenate(parts, axis=1), None, self.intercept, constant=constant)

    @property
    def wanted(self) -> tuple[list[str], dict[str, Form], tuple[str, ...]]:
        """What to read for ``encode``: the arguments of ``Source.blocks``."""
        if self._plain:
            return [], {}, self.columns
        return [*self.columns], numeric_forms(self.encoders), ()

    @property
    def _plain(self) -> bool:
        """Whether all columns are read and scaled together, as numbers of which none may lack."""
        # By the exact type: Dates is a Numeric, but its cells are no numbers.
        kinds = {type(column) for column in self.encoders}
        lacking = any(getattr(column, "missing", None) is not None for column in self.encoders)
        written = {*numeric_forms(self.encoders).values()} - {PLAIN}
        return kinds in ({Unscaled}, {Numeric}) and not (lacking or written)

    def unscale_labels(self, values: Any) -> np.ndarray:
        """Returns predictions of a label that is a number in its own units.

        In ``values`` (n,) -1 and +1 stand for ``label_bounds``, if those were declared.
        """
        # Without declared bounds these ends make the map the identity.
        low, high = self.label_bounds or (-1.0, 1.0)
        return low + (np.asarray(values, np.float64) + 1) / 2 * (high - low)


@pytree_dataclass
# eq=False, since a comparison of arrays has no single truth value.
@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Features and labels for training, with the name and unit that a guarantee states.

    A JAX pytree: the four arrays are leaves, the rest is static. Nothing is checked here, because
    JAX rebuilds it with tracers; ``load`` checks what it reads. The arrays do not appear in its
    ``repr``, nor does their length, which is private under ``"add_or_remove_one"``.

    Args:
      x: (n, p) float32 features, one record a row, or images (n, ...). A row with a NaN is a null
        record: training drops it.
      y: (n,) float32 labels: -1 or +1, classes from 0 up, or numbers. Of two classes, 0 and -1 are
        the same. A value that is none of those makes a null record.
      test_x: (m, p) float32 held-out features, or None.
      test_y: (m,) float32 held-out labels, or None.
      name: of the data, in results.
      unit: what one row stands for, hence the unit of privacy: ``"row"``, ``"person-year"``, ...
      max_norm: 1.0 if no row has a larger norm (up to float32 rounding), since each was divided by
        its own or all by a constant, else None. Not checked; no guarantee depends on it, but the
        scope of a certificate does.
      preprocessing: the mapping from a table to ``x`` and ``y``, set by ``load``; None for the
        user's arrays, whose labels ``encode_labels`` maps.
      present: (n, K) bool where a row of ``x`` is a unit of up to K records, see ``group``: which
        of them are there. None where a row is one record.

    Privacy: raw data; only an oracle may release anything computed from it.

    >>> data = Dataset(np.ones((3, 2), np.float32), np.ones(3, np.float32), name="ones")
    >>> data
    Dataset(name='ones', unit='row', max_norm=None)
    >>> data.size, data.dimension
    (3, 2)
    """

    x: Array | np.ndarray = dataclasses.field(repr=False)
    y: Array | np.ndarray = dataclasses.field(repr=False)
    test_x: Array | np.ndarray | None = dataclasses.field(default=None, repr=False)
    test_y: Array | np.ndarray | None = dataclasses.field(default=None, repr=False)
    name: str = static(default="data")
    unit: str = static(default="row")
    max_norm: float | None = static(default=None)
    preprocessing: Preprocessing | None = static(default=None, repr=False)
    present: Array | np.ndarray | None = dataclasses.field(default=None, repr=False)

    _repr_html_ = HasCard._repr_html_

    def _card(self) -> Card:
        scale, rows = self.preprocessing, [("unit", self.unit), ("features", str(self.dimension))]
        if self.present is not None:
            rows.append(("records of a unit, at most", str(self.present.shape[1])))
        if scale is not None:  # of a wide table the first columns
            rows.append(("label", str(scale.label_bounds or scale.classes)))
            rows += [(each.name, str(each.declaration())) for each in scale.encoders[:20]]
        return Card(f"Data set {self.name}", tuple(rows))

    @property
    def size(self) -> int:
        """Number of training records, null records included; of units where they are grouped."""
        return self.x.shape[0]

    @property
    def dimension(self) -> int:
        """Number of features, a possible intercept included; for images, number of pixels."""
        # The second axis of units counts their records, not features.
        return math.prod(self.x.shape[1 if self.present is None else 2 :])

    @property
    def examples(self) -> tuple[Any, Any]:
        """The training records as a tree with a shared leading axis.

        ``(x, y)``, or of units ``((x, y), present)``.
        """
        records = self.x, self.y
        return records if self.present is None else (records, self.present)

    @property
    def test(self) -> "Dataset":
        """The held-out records as a separate ``Dataset``.

        Raises:
          ValueError: if there are none.
        """
        if self.test_x is None or self.test_y is None:
            raise ValueError(f"the data set {self.name!r} has no test records.")
        held_out = {"x": self.test_x, "y": self.test_y, "test_x": None, "test_y": None}
        # Held-out records are not grouped.
        return dataclasses.replace(self, **held_out, present=None)

    def split(self, public: Any, private: Any = None) -> tuple["Dataset", "Dataset"]:
        """Returns the records declared public, and the private ones; both keep the test records.

        Args:
          public: indices or a mask of records, which say nothing of the private ones.
          private: as ``public``; by default all others.

        Raises:
          ValueError: if a record is in both parts, or twice in one. Equal rows of two indices are
            not compared.
        """
        rows = np.arange(self.size)
        try:
            shown = rows[np.asarray(public)].ravel()
            rest = np.delete(rows, shown) if private is None else rows[np.asarray(private)].ravel()
        except IndexError:  # whose words have the number of records
            raise ValueError("public and private must be indices of records, or masks.") from None
        if np.unique(np.append(shown, rest)).size < shown.size + rest.size:
            raise ValueError("a record is named twice: it may be public or private, and once.")

        def part(rows: np.ndarray) -> "Dataset":
            leaves = self.x, self.y, self.present
            x, y, present = jax.tree.map(lambda leaf: leaf[rows], leaves)
            return dataclasses.replace(self, x=x, y=y, present=present)

        return part(shown), part(rest)


def check_arrays(name: str, tree: PyTree) -> None:
    """Raises if a leaf of ``tree`` is not an array of numbers, without printing its values."""
    for leaf in jax.tree.leaves(tree):
        check_unmasked(name, leaf)
        dtype = getattr(leaf, "dtype", None)
        # JAX would refuse these too, but further down and without a remedy.
        if isinstance(dtype, np.dtype) and (dtype.kind in "OSTUMm" or dtype.names):
            raise ValueError(
                f"{name} must hold numbers, got an array of dtype {dtype}: pass labels as "
                "dpjax.datasets.encode_labels(y, classes=(...)), from_zero=True for a network; "
                "numbers as x.astype('float32'); words and dates as a table with a schema, "
                "dpjax.datasets.load(table, schema=...)."
            )
        if not isinstance(leaf, np.ndarray | np.generic | jax.Array | int | float | complex | Rows):
            raise ValueError(
                f"{name} must be a Dataset or arrays, and holds a {type(leaf).__name__}. For a "
                "pandas table pass table.to_numpy(dtype='float32'), for sparse x x.toarray()."
            )


class _Encoded:
    """Encoded rows of a table that stays on disk, as an array-like."""

    def __init__(self, source: Source, wanted: tuple[Any, ...], encode: Callable, shape: tuple):
        self._source, self._wanted, self._encode = source, wanted, encode
        self.shape, self.dtype = (source.size, *shape), np.dtype(np.float32)

    def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
        return self._encode(self._source.read(index, *self._wanted))


def encoded(
    source: Source, scale: Preprocessing, label: AnyLabel, unit: str | None, on_disk: bool
) -> tuple[Any, Any, np.ndarray | None]:
    """Returns rows, labels, and the cells that say whose a record is, which are not on disk."""
    if on_disk:
        # Encoded when a pass asks for them: memory holds one chunk, and each pass pays anew.
        x = _Encoded(source, scale.wanted, scale.encode, (len(scale.features),))
        wanted = [label.column], label_forms(label)
        y = _Encoded(source, wanted, lambda cells: label.encode(*cells), ())
        return Rows(x), Rows(y), None
    wanted, numeric, together = scale.wanted
    numeric = numeric | label_forms(label)
    beside = [label.column, *([] if unit is None else [unit])]
    # Columns that are read together come as one array.
    count = len(wanted) + bool(together)
    # Filled block by block: joining blocks at the end would take twice the memory.
    x = np.empty((source.size, len(scale.features)), np.float32)
    y = np.empty(source.size, np.float32)
    owners, start = [], 0
    for block in source.blocks([*wanted, *beside], numeric, together):
        stop = start + len(block[count])
        x[start:stop], y[start:stop] = scale.encode(block[:count]), label.encode(block[count])
        owners += block[count + 1 :]
        start = stop
    return x, y, np.concatenate(owners) if owners else None
