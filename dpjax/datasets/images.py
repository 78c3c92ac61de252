"""The named image data sets, scaled from bytes to [0, 1], for networks."""

import dataclasses
import os
import pathlib
from types import MappingProxyType

import numpy as np

from dpjax.datasets import registry
from dpjax.datasets.dataset import Dataset, Preprocessing
from dpjax.datasets.registry import Spec

_CIFAR = Spec(
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
IMAGES = MappingProxyType(
    {
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
)


def find_images(name: str) -> tuple[Spec, pathlib.Path | None]:
    """Returns the archive of a named set that is on this machine, or the last one and None."""
    for images in IMAGES[name]:
        if (path := registry.find(images.archive)) is not None:
            return images, path
    return IMAGES[name][-1], None


def load_images(name: str) -> Dataset:
    """Returns a named image data set: x (n, ...) float32 in [0, 1], y (n,) int32 from 0 up.

    Raises:
      FileNotFoundError: if none of its archives is on this machine.
      ValueError: if the archive differs from the published one. Unlike a user's table these data
        are public, so a message may depend on a record.
    """
    images, path = find_images(name)
    if path is None:
        declared = os.environ.get("DPJAX_DATA")
        state = f"DPJAX_DATA={declared} has none" if declared else "DPJAX_DATA is not set"
        wanted = " or ".join(known.archive for known in IMAGES[name])
        raise FileNotFoundError(
            f"the images {name!r} are not on this machine ({state}): set DPJAX_DATA=FOLDER, where "
            f"FOLDER holds {wanted} with the arrays X_train, y_train, X_test and y_test."
        )
    raw = registry.read_archive(path, images.checksum)
    x, y = _images(images, path, raw, "train")
    test_x, test_y = _images(images, path, raw, "test")
    return Dataset(
        x,
        y,
        test_x=test_x,
        test_y=test_y,
        # So that a result on a fifth does not pass for one on the whole.
        name=name if len(x) == IMAGES[name][0].rows else f"{name}-fifth",
        unit=images.unit,
        preprocessing=Preprocessing((), classes=tuple(range(images.classes)), pixels=(0.0, 255.0)),
    )


def _images(
    entry: Spec, path: pathlib.Path, raw: dict[str, np.ndarray], part: str
) -> tuple[np.ndarray, np.ndarray]:
    """Returns images in [0, 1] and their labels, or raises unless they are what is declared."""
    where, names = repr(str(path)), (f"X_{part}", f"y_{part}")
    x, y = registry.labelled(raw, where, names, entry.shape)
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
