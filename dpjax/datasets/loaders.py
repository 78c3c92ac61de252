"""``load`` and ``describe``: the named data sets and users' tables, ready for training."""

import dataclasses
import difflib
import fnmatch
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dpjax import _validate
from dpjax.datasets import encoders, registry, scaled
from dpjax.datasets.cells import Kind, check_names
from dpjax.datasets.dataset import Dataset, encoded
from dpjax.datasets.delimited import CsvFile
from dpjax.datasets.labels import Label, declared_classes
from dpjax.datasets.registry import IMAGES, SPECS, DatasetInfo
from dpjax.datasets.scaling import Bounds, read_ranges
from dpjax.datasets.schema import ROW_NUMBERS, Schema, check_features, key_of
from dpjax.datasets.source import OpenTable, Source, few
from dpjax.datasets.sources import is_table, is_table_path, open_source
from dpjax.datasets.units import NOT_GROUPED, group


class Options(NamedTuple):
    """What ``load`` and ``check`` take in place of a schema, see ``load``."""

    label: str | None = None
    bounds: Bounds | None = None
    classes: Sequence[Label] | None = None
    unit: str | None = None
    max_records: int | None = None
    intercept: bool = False
    unit_type: str | None = None


class Table(NamedTuple):
    """A table and what is declared of it; ``unit`` is a row's where no column says whose it is.

    Where ``check`` allows it, columns are ``Unscaled`` and the label has no classes.

    Privacy: raw data.
    """

    name: str
    opened: OpenTable
    schema: Schema
    unit: str = "row"

    def check_declared(self) -> None:
        """Raises for what ``check`` allows to be undeclared, and a training needs."""
        schema, source = self.schema, self.opened.source
        # Left out by ``check_table`` where the classes are still to be declared.
        schema.label.check_stored(source)
        for problem in undeclared_line_breaks(schema, source):
            raise ValueError(problem)
        if schema.unit is not None and self.opened.on_disk:
            raise ValueError(NOT_GROUPED)
        if schema.unit is not None and schema.max_records is None:
            raise ValueError(
                f"max_records must say how many records one {schema.unit} contributes at most, got "
                "None: declare a number without looking at the data."
            )

    def dataset(self) -> Dataset:
        """Returns the rows and labels for training, with one unit a row where there are units.

        Privacy: row i depends on record i alone; a row that is a unit, on its records.
        """
        self.check_declared()
        schema, source = self.schema, self.opened.source
        if schema.private:
            raise ValueError(
                f"bounds of {few(schema.private)} are declared private: `dpjax run` finds them, "
                "and in Python dpjax.statistics.PrivateBounds; or declare bounds = [low, high]."
            )
        label, scale = schema.label, schema.preprocessing
        x, y, owners = encoded(source, scale, label, schema.unit, self.opened.on_disk)
        test_x = test_y = None
        if self.opened.test is not None:
            test_x, test_y, _ = encoded(self.opened.test, scale, label, None, False)
        # Rows have norm 1, or at most 1 where a constant divides them.
        data = Dataset(x, y, test_x, test_y, self.name, self.unit, 1.0, scale)
        if schema.unit is None or schema.max_records is None:
            return data
        return group(data, owners, schema.max_records, schema.unit, schema.unit_type)


def load(
    name_or_path: str | os.PathLike[str] | Any,
    *,
    label: str | None = None,
    bounds: Bounds | None = None,
    intercept: bool = False,
    classes: Sequence[Label] | None = None,
    memory_limit: int | None = None,
    unit: str | None = None,
    max_records: int | None = None,
    schema: Schema | str | os.PathLike[str] | Mapping[str, Any] | None = None,
    unit_type: str | None = None,
    inference: bool = False,
) -> Dataset:
    """Returns a named data set or a user's table: a file, or columns in memory.

    A CSV has a header and one line per record (blank lines are skipped; a schema may declare line
    breaks in quotes), with commas, semicolons, tabs or bars between cells. A ``schema`` declares
    what each column is; for a table of numbers ``label``, ``bounds`` and ``classes`` do. An NPZ has
    the arrays ``x`` (n, p) and ``y`` (n,), and may have ``test_x`` and ``test_y``; or ``X_train``,
    ``y_train``, ``X_test`` and ``y_test``. An NPY is a table (n, columns) of numbers, with columns
    ``"0"``, ``"1"``, ...; Parquet needs pyarrow. A file that ``write`` made needs no options.

    Args:
      name_or_path: ``"randhie"`` (comes with the package), ``"ijcnn1"``, ``"covtype"``,
        ``"covtype-12"``, ``"covtype-7"``, the images ``"mnist"`` and ``"cifar10"``, or a path
        ending in .csv, .npz, .npy or .parquet; or a data frame, or a mapping of columns. The named
        ones are looked for in ``$DPJAX_DATA``, in ``$DPJAX_CACHE`` (``~/.cache/dpjax``), and at
        their publishers, except for images.
      label: the label's column (of an NPZ the label's array, default ``"y"``); for a table only.
      bounds: the declared range of each feature, as ``{column: [low, high]}`` or the path of a
        JSON file that holds it, or of a CSV file ``column,low,high``; for a table only. For an NPZ
        the columns are ``"0"``, ``"1"``, ..., or a list in their order. Values are clamped to the
        range, then scaled to [0, 1].
      intercept: append a feature that is 1 in every row, before the rows are normalised.
      classes: the declared labels, such as ``("No", "Yes")``: of two, the first becomes -1 and
        the second +1; more become 0, 1, ... in their order. Required unless the column is stored
        as booleans.
      memory_limit: bytes of features, in float32, above which the rows of an NPY, a Parquet or an
        uncompressed NPZ file stay on disk: a training reads them in chunks, see
        ``distributed.stream``. Each pass scales them again, unless they are in a file that
        ``write`` made.
      unit: the column of a CSV, a Parquet file, or columns in memory that says whose a record is,
        such as ``"patient"``. All records of one patient are then protected together, see
        ``group``; train with ``objective.of_units()``.
      max_records: the largest number of records that a unit contributes; required with ``unit``.
      unit_type: how the cells of ``unit`` are compared, see ``group``.
      schema: a ``Schema``, the path of a TOML file that holds one, or a mapping like it; for a
        table only. It takes the place of all options but ``memory_limit``, and has an intercept
        unless it says otherwise.
      inference: scale rows so that coefficients can be read, see ``Schema.for_inference``.

    Returns:
      A ``Dataset`` of NumPy arrays, every row divided by its norm, or by a constant where a schema
      declares that or a number as the label, and for inference; images are in [0, 1], with classes
      from 0 up. Its ``preprocessing`` holds the declarations, and scales further records.

    Raises:
      ValueError: for an unknown name, a label, classes, bounds or a schema that are missing, do not
        fit or do not apply, a table without records, or a file with the wrong checksum.
      FileNotFoundError: if the file is absent, or the named set cannot be downloaded.

    Privacy: row i of the result depends on record i alone, so an adjacency of records in the file
    is one of rows here. Nothing is read off the data: ranges, classes and levels are declared. A
    record with a cell that is not a finite number or a declared level, or a label outside the
    classes or the bounds, silently becomes NaN, and training drops it; ``check`` counts such
    records for the data's owner.

    >>> data = load("randhie")
    >>> data, data.x.shape
    (Dataset(name='randhie', unit='person-year', max_norm=1.0), (20190, 9))
    """
    options = Options(label, bounds, classes, unit, max_records, intercept, unit_type)
    if scaled.is_scaled(name_or_path):
        # The file holds all that was declared when it was written.
        _check_left_out(options, f"{str(name_or_path)!r}: the file", schema=schema)
        data = scaled.read(name_or_path, memory_limit)
        scale = data.preprocessing
        if inference and scale is not None and not scale.linear:
            raise ValueError(
                f"the rows of {str(name_or_path)!r} were divided by norms of their own, and "
                'inference needs one constant: declare rows = "constant" in the schema, and write '
                "the file again."
            )
        return data
    # With a schema `open_table` raises, since that is for tables.
    if schema is None and isinstance(name_or_path, str | os.PathLike) and name_or_path in IMAGES:
        if any(option is not None for option in (label, bounds, classes, intercept or None)):
            raise ValueError(
                f"label, bounds, classes and intercept are for tables, not {name_or_path}."
            )
        check_units(name_or_path, options)
        return registry.load_images(str(name_or_path))
    table = open_table(name_or_path, options, schema, memory_limit)
    # Published data without ranges are taken as their publisher scaled them.
    unscaled = any(isinstance(column, encoders.Unscaled) for column in table.schema.columns)
    if unscaled and is_table(name_or_path):
        raise ValueError(undeclared_bounds(table))
    if inference:
        table = table._replace(schema=table.schema.for_inference())
    return table.dataset()


def undeclared_bounds(table: Table) -> str:
    """Returns what to do where no bounds are declared."""
    names = [column.name for column in table.schema.columns]
    named = ", ".join(f'"{name}": [low, high]' for name in names[:3])
    more = ", ..." if len(names) > 3 else ""
    return (
        f"bounds must declare the range of every feature of {table.opened.source.where}, got None: "
        "ranges read off the data would leak it. Declare each column in a schema, which "
        "`dpjax data FILE --template` begins; or, where all columns hold numbers, write the "
        f"ranges that you know without looking at the data, as {{{named}{more}}}, to a JSON "
        "file, and pass its path as bounds, on the command line --bounds FILE."
    )


def open_table(
    name_or_path: str | os.PathLike[str] | Any,
    options: Options = Options(),  # noqa: B008  a tuple
    schema: Schema | str | os.PathLike[str] | Mapping[str, Any] | None = None,
    memory_limit: int | None = None,
) -> Table:
    """Returns the table that ``load`` and ``check`` read, with what is declared of it.

    Privacy: raw data.
    """
    if schema is not None:
        if not is_table(name_or_path):
            named = isinstance(name_or_path, str | os.PathLike)
            shown = repr(str(name_or_path)) if named else type(name_or_path).__name__
            raise ValueError(f"schema is for a table of yours, got {shown}: leave schema out.")
        _check_left_out(options, "schema: the schema")
        return read_table(name_or_path, Schema.read(schema), memory_limit)
    check_units(name_or_path, options)
    # The records of a unit may lie anywhere in a file, so that grouping needs all of them.
    if options.unit is not None and memory_limit is not None:
        raise ValueError(NOT_GROUPED)
    named = isinstance(name_or_path, str | os.PathLike)
    # No named data set has a suffix: that was meant as a file. What is no table raises there.
    if is_table(name_or_path) or not named or pathlib.Path(name_or_path).suffix:
        return read_table(name_or_path, options, memory_limit)
    if name_or_path in IMAGES:
        raise ValueError(f"{name_or_path} are images, not a table of features.")
    entry = registry.spec(str(name_or_path))
    # `check_units` has refused a unit, and an intercept is a choice for named data too.
    label, bounds, classes = options[:3]
    if label is not None or bounds is not None or classes is not None:
        raise ValueError(
            f"label, bounds and classes apply only to a file, got label={label!r}, "
            f"bounds={bounds!r} and classes={classes!r} for the named data set {entry.name!r}: "
            "leave them out."
        )
    records, test, classes = registry.read_named(entry)
    columns = scaled_columns(entry.columns, entry.ranges)
    schema = Schema(encoders.ClassLabel("label", classes), columns, intercept=options.intercept)
    return Table(entry.name, OpenTable(records, test), schema, entry.unit)


def _check_left_out(options: Options, beside: str, **others: Any) -> None:
    """Raises if an option is there beside what declares the same."""
    # False is the default of an intercept, so that nobody has to leave it out.
    values = options._replace(intercept=options.intercept or None)._asdict() | others
    if named := [name for name, value in values.items() if value is not None]:
        them = "it" if len(named) == 1 else "them"
        raise ValueError(f"{' and '.join(named)} must be left out beside {beside} declares {them}.")


def check_units(table: Any, options: Options) -> None:
    """Raises for options on units that do not go together, or with a table or ``Dataset``."""
    unit, most = options.unit, options.max_records
    if unit is None:
        for name, value in (("max_records", most), ("unit_type", options.unit_type)):
            if value is not None:
                raise ValueError(f"{name} is for units: name the column of their ids as unit.")
        return
    if most is not None:
        _validate.positive_int("max_records", most)
    # Its unit is an array of cells, not the name of a column.
    if isinstance(table, Dataset):
        return
    if not is_table(table):
        raise ValueError(f"unit={unit!r} names a column, and this is no table of yours: omit it.")
    if is_table_path(table) and str(table).lower().endswith((".npz", ".npy")):
        raise ValueError(
            f"unit names a column, and those of {str(table)!r} have no names: save the table as "
            "CSV or Parquet, or group its arrays by dpjax.datasets.group."
        )
    if unit == options.label:
        raise ValueError(f"unit and label are both {unit!r}: a label does not tell units apart.")


def describe() -> list[DatasetInfo]:
    """Returns facts about the named data sets, and whether each is on this machine.

    Returns:
      One ``DatasetInfo`` for each name, in the order of the registry.

    Privacy: published facts about published data.

    >>> [info.name for info in describe() if info.name == "randhie" and info.available]
    ['randhie']
    """
    tables = ((entry, registry.find(entry.archive)) for entry in SPECS.values())
    return [
        dataclasses.replace(entry, path=None if path is None else str(path))
        for entry, path in (*tables, *map(registry.find_images, IMAGES))
    ]


def read_table(table: Any, declared: Schema | Options, memory_limit: int | None = None) -> Table:
    """Returns a user's table with what is declared of it, by a schema or the options in its place.

    Privacy: a strange *record* raises nothing; errors depend on the header, the shapes
      and the dtypes of arrays only, which are taken as public.
    """
    if isinstance(declared, Schema):
        # The levels of a column become several features, and an ignored column none.
        width = None if declared.patterns else len(declared.features)
        breaks, label, mark = declared.quoted_line_breaks, declared.label.column, declared.separator
        opened = open_source(table, label, memory_limit, width, breaks, mark)
        schema = _matched(declared, opened.source.names)
    else:
        opened = open_source(table, declared.label, memory_limit)
        schema = _schema_of(opened, declared)
    check_table(schema, opened.source)
    name = pathlib.Path(table).stem if is_table_path(table) else "table"
    return Table(name, opened, schema)


def _matched(schema: Schema, names: Sequence[str]) -> Schema:
    """Returns the schema of a table with these columns, each pattern replaced by its columns."""
    patterns = [name for name in schema.patterns if name not in names]
    taken = {schema.label.column, schema.unit, *(column.name for column in schema.columns)}
    of = {name: [p for p in patterns if fnmatch.fnmatchcase(name, p)] for name in names}
    of = {name: several for name, several in of.items() if name not in taken}
    for name, several in of.items():
        if len(several) > 1:
            raise ValueError(f"the column {name!r} matches {few(several)}: declare it by name.")
    columns, private = list[encoders.Column](), list[str]()
    for column in schema.columns:
        held = [name for name in of if of[name] == [column.name]]
        if column.name in patterns and not held:
            raise ValueError(f"the pattern columns.{key_of(column.name)} matches no column of "
                             "the table: correct it, or remove it.")  # fmt: skip
        private += (held or [column.name]) if column.name in schema.private else []
        repeated = [dataclasses.replace(column, name=name) for name in held]
        columns += repeated if column.name in patterns else [column]
    found = dataclasses.replace(schema, columns=tuple(columns), private=tuple(private))
    check_features("the schema", found.features)
    return found


def check_table(schema: Schema, source: Source) -> None:
    """Raises if a table has other columns than are declared, stores them otherwise, or is empty.

    Privacy: depends on the names of columns, on how they are stored, and on whether n is 0.
    """
    unit = () if schema.unit is None else (schema.unit,)
    declared = [schema.label.column, *unit, *(column.name for column in schema.columns)]
    # All at once: who declares many columns should not start over for each.
    problems = []
    if absent := [name for name in declared if name not in source.names]:
        near = difflib.get_close_matches(absent[0], source.names, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        problems.append(f"the schema declares {few(absent)}{hint}, which {source.where} lacks")
    if missing := [name for name in source.names if name not in declared]:
        problems.append(
            f"the schema declares nothing for {few(missing)} of {source.where}: declare bounds, "
            "levels, order or ignore = true under [columns.NAME] for each; `dpjax data FILE "
            "--template` writes a schema to fill in"
        )
        problems += [
            f"{name!r} looks like row numbers that pandas or R wrote, or, as the last column, like "
            "a separator at the end of each line: declare ignore = true under "
            f"[columns.{key_of(name)}]"
            for name in missing
            if name in ROW_NUMBERS
        ]
    if missing and len(source.names) == 1:
        problems.append(
            "it has one column: its first line must be the header, not a title, and separator in "
            "the schema may say what stands between cells"
        )
    if problems:
        raise ValueError("; ".join(problems) + ".")
    for column in schema.columns:
        column.check_stored(source)
    if schema.label.classes != ():  # else to be declared
        schema.label.check_stored(source)
    for name in unit:
        said = f"the unit {name!r} of {source.where}"
        check_names(said, source.kinds[name], source.stated[name], schema.unit_type)
    if not source.size:
        raise ValueError(f"{source.where} has no records: training needs at least one.")


def _schema_of(opened: OpenTable, options: Options) -> Schema:
    """Returns the schema that label, bounds and classes declare."""
    source, label = opened.source, opened.label or options.label
    if label is None:
        raise ValueError(
            f"label must name the label's column of {source.where}, got None: choose from "
            f"{few(source.names)}, on the command line --label COLUMN; or declare each column in a "
            "schema, which `dpjax data FILE --template` begins."
        )
    _validate.choice("column for the label", label, source.names)
    if options.unit is not None:
        _validate.choice("column for the unit", options.unit, source.names)
    columns = tuple(name for name in source.names if name not in (label, options.unit))
    if not columns:
        raise ValueError(f"{source.where} has no feature column: add one beside the label.")
    classes, kind = options.classes, source.kinds[label]
    # Undeclared classes are left for `check` to suggest, unless the dtype decides: booleans need
    # none declared, and dates are refused.
    if classes is not None or kind not in (Kind.NUMBERS, Kind.WORDS, Kind.MIXED):
        said = f"the column {label!r} of {source.where}"
        classes = declared_classes(classes, said, kind)
    features = scaled_columns(columns, options.bounds)
    # The others follow each other here as there.
    return Schema(encoders.ClassLabel(label, tuple(classes or ())), features, *options[3:])


def scaled_columns(columns: Sequence[str], bounds: Bounds | None) -> tuple[encoders.Column, ...]:
    """Returns columns of numbers with these bounds, see ``read_ranges``; unscaled without any."""
    if bounds is None:
        return tuple(map(encoders.Unscaled, columns))
    ranges = zip(*(end.tolist() for end in read_ranges(bounds, columns)), strict=True)
    return tuple(encoders.Numeric(name, *pair) for name, pair in zip(columns, ranges, strict=True))


def undeclared_line_breaks(schema: Schema, source: Source) -> list[str]:
    """Returns what a schema has to declare of a CSV in which columns may hold any text.

    Where each line is a record, whoever writes a text with line breaks writes further records;
    where it is not, whoever leaves a quote open swallows those of others.

    Privacy: depends on the declaration and the kind of file alone.
    """
    texts = [c.name for c in schema.columns if c.key == "ignore" or getattr(c, "other", False)]
    if not texts or schema.quoted_line_breaks is not None or not isinstance(source, CsvFile):
        return []
    return [
        f"the schema lets {few(texts)} of {source.where} hold any text, and must say whether that "
        "may break lines: declare quoted_line_breaks = true above [label] if cells in quotes hold "
        "line breaks, or false if each line of the file is one record; `dpjax data FILE --check` "
        "counts the lines that leave a quote open."
    ]
