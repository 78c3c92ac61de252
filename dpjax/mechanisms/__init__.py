"""Noise mechanisms: from a key and an array to a noisy array; they never see records."""

from dpjax.mechanisms.ball import add_ball
from dpjax.mechanisms.gaussian import add_symmetric_gaussian, perturb
from dpjax.mechanisms.keys import as_key, derive, fold, random_key, seed_key
from dpjax.mechanisms.noise import Gaussian, Noise, add_gaussian, noisy_argmax, selection_error
from dpjax.mechanisms.tree import PrefixNoise, prefix_noise

__all__ = [
    "Gaussian",
    "Noise",
    "PrefixNoise",
    "add_ball",
    "add_gaussian",
    "add_symmetric_gaussian",
    "as_key",
    "derive",
    "fold",
    "noisy_argmax",
    "perturb",
    "prefix_noise",
    "random_key",
    "seed_key",
    "selection_error",
]
