"""Libraries that take long to import, and that few commands need: imported when first used."""

import importlib
from typing import TYPE_CHECKING, Any


class _Lazy:
    """A module in whose place this stands, until something of it is named."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


if TYPE_CHECKING:
    import dp_accounting as dp_accounting
    import orbax.checkpoint as orbax
    from flax import serialization as serialization
    from scipy import linalg as linalg
else:
    dp_accounting, linalg = _Lazy("dp_accounting"), _Lazy("scipy.linalg")
    serialization, orbax = _Lazy("flax.serialization"), _Lazy("orbax.checkpoint")
