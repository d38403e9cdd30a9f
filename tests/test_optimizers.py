"""The four optimizers, two steps each by hand with torch's defaults, and clipping by global norm."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlbotics_jax.optimizers import OPTIMIZERS, clip_by_global_norm, make_optimizer

RATE = 0.01
START = np.array([1.0, -2.0, 0.5])
GRADIENTS = (np.array([0.3, -0.1, 2.0]), np.array([-0.2, 0.4, 1.0]))


def adam(parameters, decay=0.0):
    """torch.optim.Adam(lr, betas=(0.9, 0.999), eps=1e-8); with `decay`, AdamW's."""
    first, second = np.zeros(3), np.zeros(3)
    for step, gradient in enumerate(GRADIENTS, start=1):
        parameters = parameters * (1.0 - RATE * decay)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        corrected = first / (1 - 0.9**step), second / (1 - 0.999**step)
        parameters = parameters - RATE * corrected[0] / (np.sqrt(corrected[1]) + 1e-8)
        yield parameters


def sgd(parameters):
    """torch.optim.SGD(lr): no momentum."""
    for gradient in GRADIENTS:
        parameters = parameters - RATE * gradient
        yield parameters


def rmsprop(parameters):
    """torch.optim.RMSprop(lr, alpha=0.99, eps=1e-8), epsilon outside the root."""
    square = np.zeros(3)
    for gradient in GRADIENTS:
        square = 0.99 * square + 0.01 * gradient**2
        parameters = parameters - RATE * gradient / (np.sqrt(square) + 1e-8)
        yield parameters


EXPECTED = {"adam": adam, "adamw": lambda start: adam(start, decay=1e-2), "sgd": sgd, "rmsprop": rmsprop}


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_two_steps_with_torch_defaults(name):
    optimizer, parameters = make_optimizer(name), jnp.asarray(START, jnp.float32)
    state = optimizer.init(parameters)
    for gradient, expected in zip(GRADIENTS, EXPECTED[name](START), strict=True):
        direction, state = optimizer.update(jnp.asarray(gradient, jnp.float32), state, parameters)
        parameters = parameters - RATE * direction
        np.testing.assert_allclose(parameters, expected, rtol=2e-6)


def test_every_optimizer_has_an_expectation():
    assert set(EXPECTED) == set(OPTIMIZERS)


def test_global_norm_literal():
    """Clipping each element would give [1, 1]."""
    clipped, norm = clip_by_global_norm(jnp.array([3.0, 4.0]), 1.0)
    np.testing.assert_allclose(clipped, [0.6, 0.8], rtol=1e-6)
    assert float(norm) == 5.0


def test_global_norm_is_over_all_leaves():
    clipped, norm = clip_by_global_norm({"a": jnp.array([[3.0]]), "b": jnp.array([0.0, 4.0])}, 2.5)
    assert float(norm) == 5.0
    np.testing.assert_allclose(clipped["a"], [[1.5]], rtol=1e-6)
    np.testing.assert_allclose(clipped["b"], [0.0, 2.0], rtol=1e-6)


def test_small_gradients_are_left_alone_to_the_bit():
    gradients = jnp.array([0.3, -0.4])
    np.testing.assert_array_equal(clip_by_global_norm(gradients, 1.0)[0], gradients)
    np.testing.assert_array_equal(clip_by_global_norm(jnp.zeros(2), 1.0)[0], [0.0, 0.0])


@given(seed=st.integers(0, 10_000), scale=st.floats(1e-3, 1e3), max_norm=st.floats(0.1, 10.0))
@settings(max_examples=30, deadline=None)
def test_clipping_keeps_the_direction_and_bounds_the_norm(seed, scale, max_norm):
    gradients = jnp.asarray(scale * np.random.default_rng(seed).normal(size=5), jnp.float32)
    clipped, norm = clip_by_global_norm(gradients, max_norm)
    assert float(jnp.linalg.norm(clipped)) <= max_norm * (1 + 1e-5)
    np.testing.assert_allclose(clipped * norm, gradients * jnp.linalg.norm(clipped), rtol=1e-4, atol=1e-6 * scale**2)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("leaf", ["a", "b"])
def test_one_element_that_is_not_finite_shows_in_the_norm(allow_nans, poison, leaf):
    tree = {"a": jnp.ones((2, 2)), "b": jnp.zeros(3)}
    assert np.isfinite(clip_by_global_norm(tree, 1.0)[1])
    assert not np.isfinite(clip_by_global_norm({**tree, leaf: tree[leaf].at[-1].set(poison)}, 1.0)[1])
