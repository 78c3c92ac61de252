"""Networks of the papers and a transformer as flax modules, without layers that mix examples."""

from dpjax.models.networks import CNN, ResNet20
from dpjax.models.transformer import Transformer, next_token

__all__ = ["CNN", "ResNet20", "Transformer", "next_token"]
