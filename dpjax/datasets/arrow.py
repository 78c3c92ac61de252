"""Cells of a pyarrow column; none of them raises an error."""

from typing import Any

import numpy as np


def arrow_cells(column: Any) -> np.ndarray:
    """Returns the cells (n,) of a pyarrow column: floats and dates by their dtype, else objects.

    Privacy: raw data. Text that is not UTF-8 raises no error, which would depend on a record.
    """
    from pyarrow import types

    kind = column.type
    if types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if types.is_floating(kind) or types.is_date(kind) or types.is_timestamp(kind):
        return np.asarray(column)
    if types.is_integer(kind) and not column.null_count:
        return np.asarray(column)
    try:
        values = column.to_pylist()
    except UnicodeDecodeError:
        import pyarrow

        large = types.is_large_string(kind)
        held = column.cast(pyarrow.large_binary() if large else pyarrow.binary()).to_pylist()
        values = [
            None if cell is None else cell.decode("utf-8", "surrogateescape") for cell in held
        ]
    return np.fromiter(values, object, len(values))
