"""Frozen features of images, each of one record and of public numbers alone."""

from dpjax.features.images import projection, scattering

__all__ = ["projection", "scattering"]
