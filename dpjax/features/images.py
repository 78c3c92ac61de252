"""Scattering of images by fixed wavelets, and a public random projection of wide features."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from dpjax import _validate
from dpjax._typing import Array

_ANGLES, _GROUPS = 8, 27
# Pixels in each direction that are averaged to one number of a channel.
_STEP = 4
# A group of channels without structure, as of an empty image, is not blown up.
_LEAST = 1e-5
_RECORDS = 256  # at once


def scattering(images: ArrayLike) -> np.ndarray:
    """Returns the scattering of each image by fixed wavelets, normalised, as rows of length 1.

    Moduli of Morlet wavelets of 8 angles at two scales, and of the first scale's by the second's,
    averaged over 4 x 4 pixels: 81 channels of each colour, so 3,969 numbers of a 28 x 28 image.
    An image is divided by its own largest absolute value, so that its scale says nothing. Channels
    are normalised in 27 groups to mean 0 and variance 1, and the row to length 1.

    Args:
      images: (n, height, width) or (n, height, width, colours), sides a multiple of 4 and at least
        8; uint8, or floating of any scale, as from 0 to 1 or from 0 to 255.

    Returns:
      (n, 81 colours height width / 16), float32, on the host.

    Raises:
      ValueError: for another shape or dtype.

    Privacy: NOT a mechanism. A row is a function of its image alone: nothing is read off the data.
      Of an image with a value that is not finite no number is, so that it is a null record.

    Reference: Bruna and Mallat, "Invariant scattering convolution networks" (2013); Tramer and
      Boneh, "Differentially private learning needs better features" (2021), for the normalisation.

    >>> scattering(np.zeros((3, 28, 28), np.uint8)).shape
    (3, 3969)
    """
    array = np.asarray(images)
    array = array[..., None] if array.ndim == 3 else array
    is_image = array.ndim == 4 and (array.dtype == np.uint8 or array.dtype.kind == "f")
    if not is_image or any(side % _STEP or side < 2 * _STEP for side in array.shape[1:3]):
        raise ValueError(
            "images must be uint8 or floating, of shape (n, height, width) or (n, height, width, "
            f"colours), sides a multiple of {_STEP} and at least {2 * _STEP}, got {array.dtype} of "
            f"shape {np.shape(images)}: convert or pad them."
        )
    filters = _filters(*(side + 2 * _STEP for side in array.shape[1:3]))

    def of_one(image: Array) -> Array:
        largest = jnp.max(jnp.abs(image))
        image = image / jnp.where(largest == 0, 1, largest)
        groups = jax.vmap(lambda one: _scattered(one, *filters), -1, 1)(image).reshape(_GROUPS, -1)
        groups = groups - jnp.mean(groups, axis=1, keepdims=True)
        return groups / jnp.sqrt(jnp.mean(groups**2, axis=1, keepdims=True) + _LEAST)

    return _each(of_one, array.astype(np.float32))


def projection(features: ArrayLike, size: int = 4096, seed: int = 0) -> np.ndarray:
    """Returns features (n, p) times a public random matrix (p, size), as rows of length 1, float32.

    Of ``size`` columns or fewer they stay as they are. The matrix is normal, made from ``seed``.

    Raises:
      ValueError: for features that are not floating, of shape (n, p).

    Privacy: NOT a mechanism; the matrix is public, and a row a function of its record alone.

    >>> projection(np.eye(5000, dtype=np.float32)[:3]).shape
    (3, 4096)
    """
    array, size = np.asarray(features), _validate.positive_int("size", size)
    if array.ndim != 2 or array.dtype.kind != "f":
        raise ValueError(
            f"features must be floating, of shape (n, p), got {array.dtype} of shape {array.shape}."
        )
    array = array.astype(np.float32)
    if array.shape[1] <= size:
        return array
    key = jax.random.key(seed, impl="threefry2x32")
    matrix = jax.random.normal(key, (array.shape[1], size), jnp.float32)
    return _each(lambda row: jnp.dot(row, matrix, precision="highest"), array)


def _each(function: Callable, array: np.ndarray) -> np.ndarray:
    """Returns ``function`` of each record as a row of length 1, the same bits at any place."""

    def row(record: Array) -> Array:
        numbers = function(record).ravel()
        norm = jnp.linalg.norm(numbers)
        return numbers / jnp.where(norm == 0, 1, norm)

    # Filled up, so that all chunks have one shape.
    filled = np.pad(array, ((0, -len(array) % _RECORDS), *((0, 0),) * (array.ndim - 1)))
    return np.asarray(lax.map(row, filled, batch_size=_RECORDS))[: len(array)]


def _scattered(
    image: Array, low: tuple[np.ndarray, ...], fine: np.ndarray, coarse: np.ndarray
) -> Array:
    """Returns the channels (81, height / 4, width / 4) of one colour."""
    image = jnp.pad(image, _STEP, mode="reflect")
    spectrum = jnp.fft.fft2(image)[None]

    def modulus(spectra: Array) -> Array:
        return jnp.abs(jnp.fft.ifft2(spectra))

    def averaged(values: Array) -> Array:
        taken = image.shape[0] // values.shape[1]
        rows, columns = (matrix[:, ::taken] * taken for matrix in low)
        return jnp.einsum("ir,crs,js->cij", rows, values, columns, precision="highest")

    first, second = modulus(spectrum * fine), modulus(_folded(spectrum * coarse, 2))
    twice = modulus(_folded(jnp.fft.fft2(first)[:, None] * coarse[None], 2))
    twice = twice.reshape(-1, *second.shape[1:])
    return jnp.concatenate([averaged(part) for part in (image[None], first, second, twice)])


def _folded(spectra: Array, factor: int) -> Array:
    """Returns the spectra of every ``factor``-th pixel."""
    *lead, rows, columns = spectra.shape
    shape = (*lead, factor, rows // factor, factor, columns // factor)
    return spectra.reshape(shape).mean(axis=(-4, -2))


@functools.lru_cache(maxsize=8)
def _filters(rows: int, columns: int) -> tuple[tuple[np.ndarray, ...], np.ndarray, np.ndarray]:
    """Returns averages of rows and of columns, and the spectra (8, rows, columns) of wavelets."""
    y, x = np.mgrid[-2 * rows : 3 * rows, -2 * columns : 3 * columns]

    def wave(sigma: float, angle: float, frequency: float, slant: float) -> np.ndarray:
        along, across = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
        exponent = -(along**2 + (slant * across) ** 2) / (2 * sigma**2) + 1j * frequency * along
        waves = np.exp(exponent) * slant / (2 * np.pi * sigma**2)
        return waves.reshape(5, rows, 5, columns).sum(axis=(0, 2))  # on a torus

    def wavelet(scale: int, angle: float) -> np.ndarray:
        # Of mean 0: a multiple of the envelope is taken off.
        of_scale = functools.partial(wave, 0.8 * 2**scale, angle, slant=4 / _ANGLES)
        plane, envelope = of_scale(0.75 * np.pi / 2**scale), of_scale(0.0)
        return plane - plane.sum() / envelope.sum() * envelope

    def average(side: int) -> np.ndarray:
        # By a Gaussian on the same torus, without what was added around the image.
        offsets = _STEP * np.arange(1, side // _STEP - 1)[:, None] - np.arange(side)
        offsets = offsets[..., None] + side * np.arange(-2, 3)
        return (np.exp(-((offsets / 1.6) ** 2) / 2) / 1.6).sum(axis=2) / np.sqrt(2 * np.pi)

    angles = np.pi * np.arange(_ANGLES) / _ANGLES
    banks = (np.stack([wavelet(scale, angle) for angle in angles]) for scale in range(2))
    fine, coarse = (np.fft.fft2(bank).real.astype(np.float32) for bank in banks)
    return tuple(average(side).astype(np.float32) for side in (rows, columns)), fine, coarse
