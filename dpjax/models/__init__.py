"""Networks of the papers as flax modules, without layers that couple examples."""

from dpjax.models.cnn import CNN

__all__ = ["CNN"]
