"""``matched``: the schema of a wide table, whose patterns stand for many columns."""

import dataclasses
import fnmatch
from collections.abc import Sequence

from dpjax.datasets.encoders import Column
from dpjax.datasets.schema import Schema, check_features, key_of
from dpjax.datasets.source import few


def matched(schema: Schema, names: Sequence[str]) -> Schema:
    """Returns the schema of a table with these columns, each pattern replaced by its columns.

    Raises:
      ValueError: for a pattern that matches no column which is not declared by its name, or a
        column that two match.
    """
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
