"""The transpose of a convolution in a form that stays fast inside loops on a CPU.

JAX's own leaves it to the compiler to reverse the kernel, and once that is moved out of a loop
XLA has no fast program for what is left: 50 times slower in the network of the papers.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax

from dpjax._typing import Array


def is_plain(parameters: dict[str, Any]) -> bool:
    """Returns whether a convolution has neither groups nor a dilated left input."""
    # ``transposed`` reverses the kernel alone: groups or a dilated input would need more.
    groups = parameters["feature_group_count"], parameters["batch_group_count"]
    return groups == (1, 1) and set(parameters["lhs_dilation"]) <= {1}


def transposed(parameters: dict[str, Any], kernel: Array, cotangent: Array, size: Any) -> Array:
    """Returns ``cotangent`` pulled back through a convolution, by one with the reversed kernel.

    The convolution ``is_plain``, its kernel already ``turned``; ``size`` is the shape of its input.
    """
    numbers = parameters["dimension_numbers"]
    spatial = numbers.rhs_spec[2:]
    padding = []
    for axis, (low, _) in enumerate(parameters["padding"]):
        reach = (kernel.shape[spatial[axis]] - 1) * parameters["rhs_dilation"][axis]
        outputs = (cotangent.shape[numbers.out_spec[2 + axis]] - 1) * parameters["window_strides"][
            axis
        ]
        # Every input meets each output that read it, so that the padding is what the kernel reaches
        # beyond.
        before = reach - low
        padding.append((before, size[numbers.lhs_spec[2 + axis]] + reach - outputs - 1 - before))
    return lax.conv_general_dilated(
        cotangent,
        kernel,
        window_strides=(1,) * len(spatial),
        padding=padding,
        lhs_dilation=parameters["window_strides"],
        rhs_dilation=parameters["rhs_dilation"],
        dimension_numbers=lax.ConvDimensionNumbers(
            numbers.out_spec, numbers.rhs_spec, numbers.lhs_spec
        ),
        precision=parameters["precision"],
    )


def turned(parameters: dict[str, Any], kernel: Array) -> Array:
    """Returns a convolution's kernel as its transpose reads it."""
    outputs, inputs, *spatial = parameters["dimension_numbers"].rhs_spec
    return jnp.swapaxes(lax.rev(kernel, spatial), outputs, inputs)
