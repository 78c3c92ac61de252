"""``fit``: private training of networks, and what it returns."""

from dpjax.training.fit import fit
from dpjax.training.network import Network
from dpjax.training.trained import Trained

__all__ = [
    "Network",
    "Trained",
    "fit",
]
