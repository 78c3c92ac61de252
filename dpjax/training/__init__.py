"""``fit``: private training of networks, and what it returns."""

from dpjax.training.checks import check_no_multi_steps, check_optimizer, holds_noise
from dpjax.training.fit import fit
from dpjax.training.network import Network
from dpjax.training.trained import Trained

__all__ = [
    "Network",
    "Trained",
    "check_no_multi_steps",
    "check_optimizer",
    "fit",
    "holds_noise",
]
