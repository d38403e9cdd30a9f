"""A convolution of images (B, C, H, W) that is as fast inside a loop as outside.

XLA's CPU compiler brings convolutions into the one layout that its fast kernel takes, but only outside of loops, and
training is a loop: there, an ordinary convolution takes eight times as long and its gradient fourteen times. So this
one, and both parts of its gradient, are written in that layout: inputs (B, H, W, C), kernels (h, w, I, O).
"""

from __future__ import annotations

import functools

import jax
from jaxtyping import Array, Float

Pair = tuple[int, int]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def convolve(
    x: Float[Array, "B C H W"], kernel: Float[Array, "O C h w"], stride: int, dilation: int, padding: Pair
) -> Float[Array, "B O I J"]:
    """Returns y[b, o, i, j] = sum_{c, u, v} kernel[o, c, u, v] x[b, c, s i + d u - p_0, s j + d v - p_1].

    Args:
        x: the images; beyond their edges they are 0.
        kernel: the kernels, as torch's `Conv2d.weight`.
        stride, dilation: s and d, along both axes.
        padding: p, rows and columns added on each side.
    """
    y = _channels_last(
        x.transpose(0, 2, 3, 1),
        kernel.transpose(2, 3, 1, 0),
        window_strides=(stride, stride),
        padding=[(amount, amount) for amount in padding],
        rhs_dilation=(dilation, dilation),
    )
    return y.transpose(0, 3, 1, 2)


def _forward(x: Array, kernel: Array, stride: int, dilation: int, padding: Pair) -> tuple[Array, tuple[Array, Array]]:
    return convolve(x, kernel, stride, dilation, padding), (x, kernel)


def _backward(
    stride: int, dilation: int, padding: Pair, residuals: tuple[Array, Array], gradient: Float[Array, "B O I J"]
) -> tuple[Array, Array]:
    """Returns the gradients of x and of the kernel: that of y, spread out by the stride, convolved with the mirrored
    kernel; and x, batch and channels having changed places, convolved with that of y as the kernel."""
    x, kernel = residuals
    # For each axis: the length of x, its padding, and how far kernel and y reach with dilation and stride.
    axes = [
        (length, amount, dilation * (side - 1) + 1, stride * (steps - 1) + 1)
        for length, amount, side, steps in zip(x.shape[2:], padding, kernel.shape[2:], gradient.shape[2:], strict=True)
    ]
    x_gradient = _channels_last(
        gradient.transpose(0, 2, 3, 1),
        jax.lax.rev(kernel.transpose(2, 3, 0, 1), (0, 1)),
        window_strides=(1, 1),
        padding=[(span - 1 - amount, length - reach + amount) for length, amount, span, reach in axes],
        lhs_dilation=(stride, stride),
        rhs_dilation=(dilation, dilation),
    )
    kernel_gradient = _channels_last(
        x.transpose(1, 2, 3, 0),
        gradient.transpose(2, 3, 0, 1),
        window_strides=(dilation, dilation),
        # Negative where the stride leaves a remainder that no window has seen.
        padding=[(amount, span + reach - 1 - length - amount) for length, amount, span, reach in axes],
        rhs_dilation=(stride, stride),
    )
    return x_gradient.transpose(0, 3, 1, 2), kernel_gradient.transpose(3, 0, 1, 2)


convolve.defvjp(_forward, _backward)

_channels_last = functools.partial(jax.lax.conv_general_dilated, dimension_numbers=("NHWC", "HWIO", "NHWC"))
