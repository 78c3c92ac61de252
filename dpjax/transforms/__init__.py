"""The door's optax face: noise as ``GradientTransformation``s that know what they release."""

from dpjax.transforms.noise import (
    NoiseState,
    NoiseTransformation,
    add_ball_noise,
    add_tree_noise,
)

__all__ = ["NoiseState", "NoiseTransformation", "add_ball_noise", "add_tree_noise"]
