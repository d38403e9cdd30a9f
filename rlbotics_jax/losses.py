"""The terms of PPO's loss, per sample and unreduced, and the rule for the adaptive learning rate."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def clipped_surrogate(
    log_prob: Float[Array, " B"],
    old_log_prob: Float[Array, " B"],
    advantages: Float[Array, " B"],
    clip_param: Float[Array, ""] | float,
) -> Float[Array, " B"]:
    """Returns PPO's surrogate loss, to be minimised:

        -min(rho * A, clip(rho, 1 - epsilon, 1 + epsilon) * A),    rho = pi(a|s) / pi_old(a|s)

    Source: Schulman et al., Proximal policy optimization algorithms (2017), eq. 7.
    """
    ratio = jnp.exp(log_prob - old_log_prob)
    clipped = jnp.clip(ratio, 1.0 - clip_param, 1.0 + clip_param)
    return -jnp.minimum(ratio * advantages, clipped * advantages)


def clip_fraction(
    log_prob: Float[Array, " B"], old_log_prob: Float[Array, " B"], clip_param: Float[Array, ""] | float
) -> Float[Array, " B"]:
    """Returns 1 where the probability ratio left [1 - epsilon, 1 + epsilon], else 0."""
    return (jnp.abs(jnp.exp(log_prob - old_log_prob) - 1.0) > clip_param).astype(log_prob.dtype)


def value_loss(values: Float[Array, " B"], returns: Float[Array, " B"]) -> Float[Array, " B"]:
    """Returns the squared error (V - R)^2."""
    return jnp.square(values - returns)


def clipped_value_loss(
    values: Float[Array, " B"],
    old_values: Float[Array, " B"],
    returns: Float[Array, " B"],
    clip_param: Float[Array, ""] | float,
) -> Float[Array, " B"]:
    """Returns the pessimistic squared error

        max((V - R)^2, (V_old + clip(V - V_old, -epsilon, epsilon) - R)^2)

    The bound is absolute: with returns of hundreds, epsilon = 0.2 freezes the critic. Use `value_loss` then.
    """
    clipped = old_values + jnp.clip(values - old_values, -clip_param, clip_param)
    return jnp.maximum(jnp.square(values - returns), jnp.square(clipped - returns))


def adaptive_learning_rate(
    learning_rate: Float[Array, ""],
    kl: Float[Array, ""],
    desired_kl: Float[Array, ""] | float,
    minimum: Float[Array, ""] | float,
    maximum: Float[Array, ""] | float,
) -> Float[Array, ""]:
    """Returns the learning rate that follows a measured KL(old || new) = k with target d:

    max(minimum, rate / 1.5)    where k > 2 d
    min(maximum, rate * 1.5)    where 0 < k < d / 2
    rate                        otherwise, also where k is 0 or NaN
    """
    lowered = jnp.maximum(minimum, learning_rate / 1.5)
    raised = jnp.minimum(maximum, learning_rate * 1.5)
    rate = jnp.where(kl > 2.0 * desired_kl, lowered, learning_rate)
    return jnp.where((kl > 0.0) & (kl < 0.5 * desired_kl), raised, rate)
