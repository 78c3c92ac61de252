"""Clipping and noise as optax transformations that know what they release."""

from dpjax.transforms.adaptive import (
    AdaptiveState,
    adaptive_clip_and_noise,
    gradient_multiplier,
    next_clip_norm,
)
from dpjax.transforms.aggregate import ClippingTransformation, clip_and_sum, divide_by
from dpjax.transforms.checks import check_no_multi_steps, check_optimizer, holds_noise
from dpjax.transforms.gaussian import (
    add_gaussian_noise,
    noisy_adam,
    noisy_mean,
    noisy_sgd,
    noisy_stagewise_sgd,
)
from dpjax.transforms.noise import NoiseState, NoiseTransformation, add_ball_noise, add_tree_noise
from dpjax.transforms.second_order import TrustRegionLinkState, trust_region
from dpjax.transforms.stages import (
    EarlyMomentumState,
    StageSteps,
    check_on_steps,
    check_stages,
    early_momentum,
    stage_of,
    stagewise,
    updates_in,
)

__all__ = [
    "AdaptiveState",
    "ClippingTransformation",
    "EarlyMomentumState",
    "NoiseState",
    "NoiseTransformation",
    "StageSteps",
    "TrustRegionLinkState",
    "adaptive_clip_and_noise",
    "add_ball_noise",
    "add_gaussian_noise",
    "add_tree_noise",
    "check_no_multi_steps",
    "check_on_steps",
    "check_optimizer",
    "check_stages",
    "clip_and_sum",
    "divide_by",
    "early_momentum",
    "gradient_multiplier",
    "holds_noise",
    "next_clip_norm",
    "noisy_adam",
    "noisy_mean",
    "noisy_sgd",
    "noisy_stagewise_sgd",
    "stage_of",
    "stagewise",
    "trust_region",
    "updates_in",
]
