"""Starting points of ``fit``: what an earlier training left, as a tree of arrays."""

import os
import pathlib
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax import traverse_util

from dpjax import _validate
from dpjax._lazy import orbax
from dpjax._typing import PyTree
from dpjax.results import SavedSolution, Solution, load
from dpjax.training.trained import Trained


def tree_of(params: Any) -> PyTree:
    """Returns the tree of arrays in ``params``, which are those of ``fit``.

    Raises:
      ValueError: for a file or folder of something else; or as what reads it.
    """
    found = getattr(params, "solution", params)
    if isinstance(found, Solution | SavedSolution):
        apply: Any = params.network.apply if isinstance(params, Trained) else None
        # The other collections of linen are in no module, as those of nnx are.
        linen = isinstance(getattr(apply, "module", None), nn.Module) and apply.state
        return {"params": found.params, **apply.state} if linen else found.params
    if not isinstance(params, str | os.PathLike):
        return params
    path = pathlib.Path(params).absolute()
    if path.is_dir():
        return _of_orbax(path)
    return _of_safetensors(path) if path.suffix == ".safetensors" else load(path).params


def _of_orbax(path: pathlib.Path) -> PyTree:
    with orbax.PyTreeCheckpointer() as reader:
        if (stored := reader.metadata(path).item_metadata) is None:
            raise ValueError(
                f"{str(path)!r} is no checkpoint of orbax with one tree: name the folder that "
                "holds _METADATA, such as STEP/default of a CheckpointManager."
            )
        # To NumPy, as the devices that wrote it may be others.
        how = jax.tree.map(lambda _: orbax.RestoreArgs(restore_type=np.ndarray), stored.tree)
        return reader.restore(path, restore_args=how)


def _of_safetensors(path: pathlib.Path) -> PyTree:
    try:
        from safetensors import SafetensorError, numpy

        arrays = numpy.load_file(path)
    except ImportError as error:
        raise ImportError(_validate.install("reading .safetensors", "safetensors") + ".") from error
    except SafetensorError as error:
        raise ValueError(f"{str(path)!r} is no file of safetensors: {error}.") from error
    # Names are paths, by dots or slashes.
    named = {name.replace(".", "/"): array for name, array in arrays.items()}
    return traverse_util.unflatten_dict(named, sep="/")
