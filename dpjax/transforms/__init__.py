"""The door's optax face: noise as ``GradientTransformation``s that know what they release."""

from dpjax.transforms.momentum import EarlyMomentumState, check_on_steps, early_momentum
from dpjax.transforms.noise import (
    NoiseState,
    NoiseTransformation,
    add_ball_noise,
    add_tree_noise,
)
from dpjax.transforms.schedules import (
    StageSteps,
    check_stages,
    inverse_power,
    stage_of,
    stagewise,
    updates_in,
)

__all__ = [
    "EarlyMomentumState",
    "NoiseState",
    "NoiseTransformation",
    "StageSteps",
    "add_ball_noise",
    "add_tree_noise",
    "check_on_steps",
    "check_stages",
    "early_momentum",
    "inverse_power",
    "stage_of",
    "stagewise",
    "updates_in",
]
