"""The settings that a search draws from: a grid, or a list of their own."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from dpjax import _validate

Settings = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]
"""A grid, name -> values; or every setting by itself. One that is listed twice is drawn twice as
often."""

# Each setting is calibrated, and held as an algorithm of its own.
_MOST = 4_096


def expand(settings: Settings) -> tuple[dict[str, Any], ...]:
    """Returns every setting of a grid, or those of a list, as dictionaries of arguments.

    Args:
      settings: name -> values, of which all combinations are taken; or a sequence of dictionaries.

    Raises:
      ValueError: for what is neither, an empty list, or more than 4,096 settings.

    Privacy: public; a grid that was chosen after looking at the data is a release.

    >>> expand({"radius": [3, 12], "damping": [0.5]})
    ({'radius': 3, 'damping': 0.5}, {'radius': 12, 'damping': 0.5})
    """
    if isinstance(settings, Mapping):
        grid = {name: _values(name, values) for name, values in settings.items()}
        found = [
            dict(zip(grid, combination, strict=True))
            for combination in itertools.product(*grid.values())
        ]
    else:
        # Anything but a dictionary is left out here, and the count below reveals it.
        listed = list(settings) if hasattr(settings, "__iter__") else [settings]
        found = [dict(setting) for setting in listed if isinstance(setting, Mapping)]
        if len(found) != len(listed):
            raise ValueError(
                "settings must be a dict of names and values, such as {'radius': [3, 12]}, or a "
                f"list of dicts, got {_validate.shown(settings)}."
            )
    if not found or not all(found):
        raise ValueError("settings name nothing to vary: give each name at least one value.")
    if len(found) > _MOST:
        raise ValueError(
            f"settings are {len(found):,} in all, more than {_MOST:,}: leave some values out. A "
            "search sees a few of them only."
        )
    return tuple(found)


def _values(name: str, values: Any) -> list[Any]:
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        raise ValueError(
            f"settings of {name!r} must be a sequence of values, such as [0.3, 1], got {values!r}."
        )
    # Values of an array become plain numbers, which factories check.
    return [value.item() if hasattr(value, "item") else value for value in values]


def default_settings(grid: Mapping[str, Sequence[Any]], name: str) -> dict[str, list[Any]]:
    """Returns the grid that a registry row declares for its algorithm.

    Raises:
      ValueError: if it declares none.

    >>> default_settings({"radius": (3.0, 12.0)}, "dp-tr")
    {'radius': [3.0, 12.0]}
    """
    if not grid:
        raise ValueError(
            f"{name} has no settings that a search takes by default: name them, such as "
            "step_size=0.1,0.3,1."
        )
    return {parameter: list(values) for parameter, values in grid.items()}
