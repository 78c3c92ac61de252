"""A schema beside the columns of a table: its patterns matched, its declarations checked."""

import dataclasses
import difflib
import fnmatch
from collections.abc import Sequence

from dpjax.datasets.cells import check_names
from dpjax.datasets.encoders import ClassLabel, Column
from dpjax.datasets.schema import ROW_NUMBERS, Schema, check_features, key_of
from dpjax.datasets.source import Source, few


def matched(schema: Schema, names: Sequence[str]) -> Schema:
    """Returns the schema of a table with these columns, each pattern replaced by its columns."""
    patterns = [name for name in schema.patterns if name not in names]
    taken = {schema.label.column, schema.unit, *(column.name for column in schema.columns)}
    of = {name: [p for p in patterns if fnmatch.fnmatchcase(name, p)] for name in names}
    of = {name: several for name, several in of.items() if name not in taken}
    for name, several in of.items():
        if len(several) > 1:
            raise ValueError(f"the column {name!r} matches {few(several)}: declare it by name.")
    columns, private = list[Column](), list[str]()
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
    if not isinstance(schema.label, ClassLabel) or schema.label.classes:  # else to be declared
        schema.label.check_stored(source)
    for name in unit:
        said = f"the unit {name!r} of {source.where}"
        check_names(said, source.kinds[name], source.stated[name], schema.unit_type)
    if not source.size:
        raise ValueError(f"{source.where} has no records: training needs at least one.")
