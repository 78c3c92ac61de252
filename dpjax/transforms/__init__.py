"""The door's optax face: noise as ``GradientTransformation``s that know what they release."""

from dpjax.transforms.momentum import EarlyMomentumState, early_momentum
from dpjax.transforms.noise import (
    NoiseState,
    NoiseTransformation,
    add_ball_noise,
    add_tree_noise,
)
from dpjax.transforms.schedules import inverse_power, stage_of, stagewise

__all__ = [
    "EarlyMomentumState",
    "NoiseState",
    "NoiseTransformation",
    "add_ball_noise",
    "add_tree_noise",
    "early_momentum",
    "inverse_power",
    "stage_of",
    "stagewise",
]
