"""Networks of the papers as flax modules, without layers that mix examples."""

from dpjax.models.cnn import CNN
from dpjax.models.resnet import ResNet20

__all__ = ["CNN", "ResNet20"]
