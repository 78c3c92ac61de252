"""NOT PRIVATE: the images that networks are trained on, MNIST, CIFAR-10 or made ones."""

import dataclasses

import numpy as np

from dpjax import datasets
from dpjax.datasets import Dataset
from dpjax.datasets.images import find_images

MADE = "made-images"
_CLASSES, _SEED = 10, 2021
# Taken off a colour in [0, 1], and divided by: round numbers that no record decides.
_CENTRE, _SCALE = 0.5, 0.25


def here(name: str) -> bool:
    """Returns whether the images of ``name`` are on this machine.

    Args:
      name: ``"mnist"`` or ``"cifar10"``.
    """
    return find_images(name)[1] is not None


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
    whole, info = datasets.load(name), find_images(name)[0]
    kept = {
        field: np.asarray(getattr(whole, field)[:rows]) for field in ("x", "y", "test_x", "test_y")
    }
    for field in ("x", "test_x") if name == "cifar10" else ():
        kept[field] = ((kept[field] - _CENTRE) / _SCALE).astype(np.float32)
    return dataclasses.replace(whole, **kept), f"{info.source}. {info.note.removesuffix('.')}"


def _made(rows: int) -> Dataset:
    random = np.random.default_rng(_SEED)
    # Patterns of 7 x 7 blocks, so that a convolution has something to find.
    patterns = np.kron(random.random((_CLASSES, 7, 7)), np.ones((4, 4)))

    def drawn() -> tuple[np.ndarray, np.ndarray]:
        y = random.integers(_CLASSES, size=rows)
        x = patterns[y] + 0.2 * random.normal(size=(rows, 28, 28))
        return x.clip(0, 1).astype(np.float32), y.astype(np.float32)

    return Dataset(*drawn(), *drawn(), MADE, "image")
