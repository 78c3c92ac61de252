"""Frozen features: each row is of its record alone, and they are those of the definition."""

import numpy as np
import pytest

from dpjax.features import projection, scattering

RANDOM = np.random.default_rng(0)
GREY = RANDOM.integers(0, 256, (300, 12, 16)).astype(np.uint8)
COLOUR = RANDOM.random((5, 8, 8, 3)).astype(np.float32)
WIDE = RANDOM.normal(size=(300, 600)).astype(np.float32)


@pytest.mark.parametrize(
    ("function", "data", "width"),
    [
        (scattering, GREY, 81 * 12),
        (scattering, COLOUR, 3 * 81 * 4),
        (lambda rows: projection(rows, 50), WIDE, 50),
    ],
    ids=["grey", "colour", "projection"],
)
def test_a_row_is_a_function_of_its_record_alone(function, data, width):
    rows = function(data)
    assert rows.shape == (len(data), width) and rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)
    # In another order, beside others, and beside one that is not finite or 0: the same bits.
    order = RANDOM.permutation(len(data))
    assert np.array_equal(function(data[order]), rows[order])
    other = data.astype(np.float32) / (255 if data.dtype == np.uint8 else 1)
    other[1], other[2] = np.nan, 0
    found = function(other)
    rest = np.delete(np.arange(len(data)), [1, 2])
    np.testing.assert_allclose(found[rest], rows[rest], atol=1e-5)
    assert not np.isfinite(found[1]).any() and np.isfinite(found[2]).all()


@pytest.mark.parametrize("scale", [2.0**-20, 255.0, 2.0**100])
def test_the_scale_of_an_image_changes_nothing(scale):
    """Pixels from 0 to 255 as floats gave other features than as uint8, in silence."""
    rows, scaled = (scattering(GREY.astype(np.float32) * by) for by in (1, np.float32(scale)))
    np.testing.assert_allclose(scaled, rows, atol=1e-5)
    np.testing.assert_allclose(scattering(GREY), rows, atol=1e-5)


def test_the_scattering_is_that_of_its_definition():
    """Against moduli at full resolution, from which folding differs by its aliases alone."""
    image = GREY[0][:8, :8] / GREY[0][:8, :8].max()
    x = np.fft.fft2(np.pad(image, 4, mode="reflect"))
    grid = np.stack(np.meshgrid(*[np.arange(-32, 32)] * 2, indexing="ij"), axis=-1)

    def spectrum(sigma, angle, frequency, slant):
        along = grid @ [np.sin(angle), np.cos(angle)]
        across = grid @ [np.cos(angle), -np.sin(angle)]
        envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
        wave = envelope * np.exp(1j * frequency * along)
        wave -= wave.sum() / envelope.sum() * envelope * (frequency > 0)
        wave *= slant / (2 * np.pi * sigma**2)
        return np.fft.fft2(wave.reshape(4, 16, 4, 16).sum(axis=(0, 2)))

    low = spectrum(1.6, 0, 0, 1)
    bank = [
        [spectrum(0.8 * 2**j, np.pi * t / 8, 0.75 * np.pi / 2**j, 0.5) for t in range(8)]
        for j in range(2)
    ]
    fine, coarse = ([np.abs(np.fft.ifft2(x * psi)) for psi in scale] for scale in bank)
    twice = [np.abs(np.fft.ifft2(np.fft.fft2(u) * psi)) for u in fine for psi in bank[1]]
    means = [np.fft.ifft2(np.fft.fft2(u) * low).real[4:-4:4, 4:-4:4] for u in fine + coarse + twice]
    first = np.fft.ifft2(x * low).real[4:-4:4, 4:-4:4]
    groups = np.stack([first, *means]).reshape(27, -1)
    groups = groups - groups.mean(axis=1, keepdims=True)
    groups /= np.sqrt((groups**2).mean(axis=1, keepdims=True) + 1e-5)
    expected = groups.ravel() / np.linalg.norm(groups)
    found = scattering(image[None])[0]
    assert found @ expected > 0.999
    np.testing.assert_allclose(found, expected, atol=0.01)


def test_a_projection_keeps_inner_products_and_leaves_few_columns_alone():
    rows = WIDE / np.linalg.norm(WIDE, axis=1, keepdims=True)
    small = projection(rows, 500)
    assert np.abs(small @ small.T - rows @ rows.T).max() < 6 / np.sqrt(500)
    assert np.array_equal(projection(rows, 600), rows)
    assert not np.array_equal(small, projection(rows, 500, seed=1))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: scattering(np.zeros((3, 28))), "images must be uint8 .* of shape"),
        (lambda: scattering(np.zeros((3, 30, 28))), "multiple of 4 and at least 8, got float64"),
        (
            lambda: scattering(np.zeros((3, 28, 28), np.int64)),
            "uint8 or floating",
        ),
        (lambda: projection(np.zeros((3, 8), np.int32)), "features must be floating"),
        (lambda: projection(WIDE, 0), "size must be at least 1"),
    ],
)
def test_what_is_no_image_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
