"""``fit``, private training of networks, and its result ``Trained``."""

from dpjax.training.dry_run import DryRun
from dpjax.training.fit import fit
from dpjax.training.network import Network
from dpjax.training.trained import Trained

__all__ = [
    "DryRun",
    "Network",
    "Trained",
    "fit",
]
