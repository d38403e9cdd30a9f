"""The terms of PPO's loss and the adaptive rate, against values computed by hand."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlbotics_jax import losses


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 3.0, -3.0),
        (1.1, 2.0, -2.2),
        (1.5, 2.0, -2.4),  # the gain is cut at 1.2
        (0.5, 2.0, -1.0),  # a loss of good actions is not
        (1.5, -2.0, 3.0),  # nor is a gain of bad ones
        (0.5, -2.0, 1.6),  # their loss is cut at 0.8
        (1.5, 0.0, 0.0),
    ],
)
def test_clipped_surrogate(ratio, advantage, expected):
    loss = losses.clipped_surrogate(jnp.log(jnp.array([ratio])), jnp.zeros(1), jnp.array([advantage]), 0.2)
    np.testing.assert_allclose(loss, [expected], rtol=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "slope"),
    [(1.0, 3.0, -3.0), (1.5, 2.0, 0.0), (0.5, 2.0, -1.0), (1.5, -2.0, 3.0), (0.5, -2.0, 0.0)],
)
def test_clipped_surrogate_has_no_gradient_beyond_the_clip(ratio, advantage, slope):
    """d loss / d log_prob = -ratio * A, or 0 where the clip decides."""

    def loss(log_prob):
        return losses.clipped_surrogate(log_prob, jnp.zeros(1), jnp.array([advantage]), 0.2)[0]

    np.testing.assert_allclose(jax.grad(loss)(jnp.log(jnp.array([ratio]))), [slope], rtol=1e-6)


@given(shift=st.floats(-2.0, 2.0), advantage=st.floats(-5.0, 5.0))
@settings(max_examples=30, deadline=None)
def test_clipped_surrogate_is_never_better_than_the_plain_one(shift, advantage):
    loss = losses.clipped_surrogate(jnp.array([shift]), jnp.zeros(1), jnp.array([advantage]), 0.2)
    assert float(loss[0]) >= -math.exp(shift) * advantage - 1e-4


def test_clip_fraction():
    log_ratio = jnp.log(jnp.array([1.5, 0.5, 1.1, 1.0, 0.9]))
    np.testing.assert_array_equal(losses.clip_fraction(log_ratio, jnp.zeros(5), 0.2), [1, 1, 0, 0, 0])


def test_value_loss():
    np.testing.assert_allclose(losses.value_loss(jnp.array([2.0, -1.0]), jnp.array([1.5, 1.0])), [0.25, 4.0])


@pytest.mark.parametrize(
    ("old", "new", "target", "expected"),
    [
        (1.0, 2.0, 1.5, 0.25),  # the plain error; the clipped value 1.2 alone would give .09
        (1.0, 1.45, 1.5, 0.09),  # the clipped value 1.2 errs more
        (1.0, 1.1, 1.5, 0.16),  # inside the bound both are the same
        (1.0, -1.0, 1.5, 6.25),
    ],
)
def test_clipped_value_loss(old, new, target, expected):
    loss = losses.clipped_value_loss(jnp.array([new]), jnp.array([old]), jnp.array([target]), 0.2)
    np.testing.assert_allclose(loss, [expected], rtol=1e-6)


def test_clipped_value_loss_freezes_a_critic_of_large_returns():
    """The bound is absolute: the closer value has the larger loss, so there is no gradient towards it."""

    def loss(value):
        return losses.clipped_value_loss(value, jnp.array([0.0]), jnp.array([100.0]), 0.2)[0]

    assert jax.grad(loss)(jnp.array([0.5]))[0] == 0.0
    assert jax.grad(lambda value: losses.value_loss(value, jnp.array([100.0]))[0])(jnp.array([0.5]))[0] == -199.0


def rate_after(kl, rate=1e-3, target=0.01, minimum=1e-5, maximum=1e-2):
    arguments = (jnp.float32(value) for value in (rate, kl, target, minimum, maximum))
    return float(losses.adaptive_learning_rate(*arguments))


@pytest.mark.parametrize(
    ("kl", "factor"),
    [
        (1.0, 1 / 1.5),
        (0.0201, 1 / 1.5),
        (0.02, 1.0),  # exactly 2 d
        (0.01, 1.0),
        (0.005, 1.0),  # exactly d / 2
        (0.0049, 1.5),
        (1e-9, 1.5),
        (0.0, 1.0),
        (-1e-6, 1.0),
        (math.inf, 1 / 1.5),
    ],
)
def test_adaptive_rate_regions(kl, factor):
    assert rate_after(kl) == pytest.approx(1e-3 * factor, rel=1e-6)


def test_adaptive_rate_ignores_a_nan(allow_nans):
    assert rate_after(math.nan) == np.float32(1e-3)


@pytest.mark.parametrize(
    ("rate", "kl", "bounds", "expected"),
    [
        (1.2e-5, 1.0, {}, 1e-5),
        (9e-3, 1e-4, {}, 1e-2),
        (1e-5, 1.0, {}, 1e-5),
        (1e-2, 1e-4, {}, 1e-2),
        (1e-3, 1.0, {"minimum": 9e-4}, 9e-4),
        (1e-3, 1e-4, {"maximum": 1.1e-3}, 1.1e-3),
    ],
)
def test_adaptive_rate_bounds(rate, kl, bounds, expected):
    assert rate_after(kl, rate, **bounds) == np.float32(expected)


def test_adaptive_rate_outside_its_bounds_stays_while_the_kl_is_on_target():
    assert rate_after(0.01, rate=0.5) == np.float32(0.5)
