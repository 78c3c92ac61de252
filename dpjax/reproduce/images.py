"""NOT PRIVATE: labelled images by name, MNIST, CIFAR-10 or a fifth of it, and made ones."""

import dataclasses
import hashlib
import os
import pathlib

import numpy as np

from dpjax.datasets import Dataset
from dpjax.datasets.archives import cache_folder

MADE = "made-images"
_CLASSES, _SEED = 10, 2021


@dataclasses.dataclass(frozen=True)
class Archive:
    """A file of images, and how its pixels are scaled: by numbers that no record decides.

    Args:
      file: name of the NumPy archive.
      title: what is in it, for people.
      checksum: sha256; None for a file that the user made.
      centre: taken off a pixel that was divided by 255.
      scale: that it is divided by then.
    """

    file: str
    title: str
    checksum: str | None
    centre: float = 0.0
    scale: float = 1.0


# Of each name, the first that is there.
ARCHIVES = {
    "mnist": (
        Archive(
            "mnist.npz",
            "MNIST",
            "d2fc8bab397b964798b4c839bd1e705e10a4bb65f4d56a88002229d145796751",
        ),
    ),
    "cifar10": (
        Archive("cifar10.npz", "CIFAR-10, the whole set", None, 0.5, 0.25),
        Archive(
            "cifar10_subset_10k_2k.npz",
            "A FIFTH of CIFAR-10 (1,000 training and 200 test images of each class), not the whole",
            "cff287d7437364bc5af5ec1b7106d65c088c9527d2d03faf08e7c6525671171d",
            0.5,
            0.25,
        ),
    ),
}


def find(name: str) -> tuple[Archive, pathlib.Path] | None:
    """Returns the archive of ``name`` in ``$DPJAX_DATA`` or the cache, or None if neither has one.

    Args:
      name: ``"mnist"`` or ``"cifar10"``.

    >>> find("made-images") is None
    True
    """
    folders = [cache_folder()]
    if declared := os.environ.get("DPJAX_DATA"):
        folders.insert(0, pathlib.Path(declared))
    return next(
        (
            (archive, folder / archive.file)
            for archive in ARCHIVES.get(name, ())
            for folder in folders
            if (folder / archive.file).is_file()
        ),
        None,
    )


def load(name: str, rows: int | None = None) -> tuple[Dataset, str]:
    """Returns images as float32 of order 1 with labels from 0 to 9, and what they are, in words.

    Args:
      name: ``"mnist"``, ``"cifar10"`` or ``"made-images"``.
      rows: so many of the first training records, and of the test records at most; None for all.

    Raises:
      FileNotFoundError: if no archive is on this machine, naming those that would do.
      ValueError: if a file has another checksum than the one known.

    Privacy: raw data. Every pixel is scaled by itself, with public numbers.

    >>> data, title = load("made-images", 20)
    >>> data.x.shape, title
    ((20, 28, 28), 'Made images, drawn from a published seed: ten blurred patterns under noise')
    """
    if name == MADE:
        return _made(rows or 600), (
            "Made images, drawn from a published seed: ten blurred patterns under noise"
        )
    found = find(name)
    if found is None:
        files = " or ".join(archive.file for archive in ARCHIVES[name])
        raise FileNotFoundError(
            f"{name} is not on this machine: set DPJAX_DATA to a folder with {files}, arrays "
            "X_train, y_train, X_test and y_test, images as uint8."
        )
    archive, path = found
    content = path.read_bytes()
    if archive.checksum not in (None, hashlib.sha256(content).hexdigest()):
        raise ValueError(f"{path} has another sha256 than {archive.checksum}; fetch it again.")
    with np.load(path, allow_pickle=False) as raw:
        x, test_x = (_scaled(raw[f"X_{part}"][:rows], archive) for part in ("train", "test"))
        y, test_y = (raw[f"y_{part}"][:rows].astype(np.float32) for part in ("train", "test"))
    return Dataset(x, y, test_x, test_y, name, "image"), archive.title


def _scaled(pixels: np.ndarray, archive: Archive) -> np.ndarray:
    scaled = (pixels.astype(np.float32) / 255 - archive.centre) / archive.scale
    return scaled.astype(np.float32)


def _made(rows: int) -> Dataset:
    random = np.random.default_rng(_SEED)
    # Patterns of 7 x 7 blocks, so that a convolution has something to find.
    patterns = np.kron(random.random((_CLASSES, 7, 7)), np.ones((4, 4)))

    def drawn() -> tuple[np.ndarray, np.ndarray]:
        y = random.integers(_CLASSES, size=rows)
        x = patterns[y] + 0.2 * random.normal(size=(rows, 28, 28))
        return x.clip(0, 1).astype(np.float32), y.astype(np.float32)

    return Dataset(*drawn(), *drawn(), MADE, "image")
