"""The convolution against XLA's own, whose gradients it writes by hand; and its layout, which is what makes it fast."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlbotics_jax.compilation import jit
from rlbotics_jax.convolution import convolve

RANDOM = np.random.default_rng(0)
CASES = [
    (kernel, stride, dilation, padding)
    for kernel, stride, dilation, padding in itertools.product(
        ((1, 1), (2, 3), (3, 2)), (1, 2, 3), (1, 2), ((0, 0), (1, 0), (1, 2))
    )
    if all(amount <= dilation * (side - 1) for side, amount in zip(kernel, padding, strict=True))
]


def reference(x, kernel, stride, dilation, padding):
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        [(amount, amount) for amount in padding],
        rhs_dilation=(dilation, dilation),
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
    )


def normal(*shape):
    return jnp.asarray(RANDOM.normal(size=shape), jnp.float32)


@pytest.mark.parametrize(("side", "stride", "dilation", "padding"), CASES)
def test_values_and_gradients_are_xlas(side, stride, dilation, padding):
    """Sizes of 11 and 8 leave remainders under strides of 2 and 3."""
    x, kernel, settings = normal(3, 2, 11, 8), normal(4, 2, *side), (stride, dilation, padding)
    expected, pull_expected = jax.vjp(lambda x, k: reference(x, k, *settings), x, kernel)
    found, pull = jax.vjp(lambda x, k: convolve(x, k, *settings), x, kernel)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    direction = normal(*expected.shape)
    for ours, theirs in zip(pull(direction), pull_expected(direction), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-4)


def test_seeds_map_over_it():
    x, kernels = normal(2, 3, 1, 6, 5), normal(2, 4, 1, 3, 3)
    grad = jax.grad(lambda x, k: jnp.sum(jnp.square(convolve(x, k, 2, 1, (1, 1)))), argnums=1)
    mapped = jax.vmap(grad)(x, kernels)
    for i in range(2):
        np.testing.assert_allclose(mapped[i], grad(x[i], kernels[i]), rtol=1e-4, atol=1e-4)


def test_in_a_loop_every_product_has_the_layout_of_the_fast_kernel():
    """Inputs (b, 0, 1, f), kernels (0, 1, i, o), in the compiled program: as XLA's CPU compiler wants them."""
    images, kernel = normal(4, 3, 1, 9, 9), normal(2, 1, 3, 3)

    def loss(kernel, x):
        y = convolve(jnp.tanh(convolve(x, kernel, 2, 1, (1, 1))), jnp.ones((3, 2, 2, 2)), 1, 1, (0, 0))
        return jnp.sum(jnp.square(y))

    def loop(kernel, images):
        return jax.lax.scan(lambda k, x: (k - 0.1 * jax.grad(loss)(k, x), None), kernel, images)[0]

    text = jit(loop).lower(kernel, images).compile().as_text()
    layouts = [line.split("dim_labels=")[1].split(",")[0] for line in text.splitlines() if "dim_labels=" in line]
    assert len(layouts) >= 4 and set(layouts) == {"b01f_01io->b01f"}
