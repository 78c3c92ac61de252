"""Networks of the papers as flax modules, without layers that mix examples."""

from dpjax.models.networks import CNN, ResNet20

__all__ = ["CNN", "ResNet20"]
