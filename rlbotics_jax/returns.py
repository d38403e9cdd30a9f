"""Generalised advantage estimation with the two ends of an episode kept apart."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def next_values(
    values: Float[Array, "T N"],
    last_values: Float[Array, " N"],
    final_values: Float[Array, "T N"],
    truncated: Bool[Array, "T N"],
) -> Float[Array, "T N"]:
    """Returns the value of the state that follows step t in the same episode.

        V'_t = V(final observation)  where the time limit cut the episode off,
               V(s_{t+1})            otherwise (`last_values` after the last step).

    Terminal states are left to `gae`, which gives them the value 0.
    """
    following = jnp.concatenate([values[1:], last_values[None]])
    return jnp.where(truncated, final_values, following)


def gae(
    rewards: Float[Array, "T N"],
    values: Float[Array, "T N"],
    next_values: Float[Array, "T N"],
    terminated: Bool[Array, "T N"],
    truncated: Bool[Array, "T N"],
    gamma: Float[Array, ""] | float,
    lam: Float[Array, ""] | float,
    valid: Bool[Array, "T N"] | None = None,
) -> Float[Array, "T N"]:
    """Returns the advantages A_t of T steps, scanned backwards:

        delta_t = r_t + gamma * (1 - terminated_t) * V'_t - V(s_t)
        A_t     = delta_t + gamma * lam * (1 - terminated_t) * (1 - truncated_t) * A_{t+1},    A_T = 0

    A terminal state is worth 0; a truncated episode is worth what its final observation is worth, and in both cases
    nothing flows back over the episode's end. The return targets are A_t + V(s_t).

    Args:
        rewards: r_t.
        values: V(s_t).
        next_values: V'_t, see `next_values`.
        terminated: the episode ended in a terminal state at step t.
        truncated: the episode was cut off at step t.
        gamma: discount in [0, 1].
        lam: GAE's lambda in [0, 1].
        valid: where False, the row is no transition: its advantage is 0, so that the step before it bootstraps from
            V(s_t) as at the end of a rollout.

    Source: Schulman et al., High-dimensional continuous control using generalized advantage estimation (2016), eq. 16;
    Pardo et al., Time limits in reinforcement learning (2018), for the truncated case.
    """
    # Selected, not multiplied by 0 or 1: what a dead state or an invalid row holds may be NaN.
    deltas = rewards + gamma * jnp.where(terminated, 0.0, next_values) - values
    continues = (~(terminated | truncated)).astype(rewards.dtype)
    counts = jnp.ones_like(terminated) if valid is None else valid

    def backward(advantage, step):
        delta, continues_t, counts_t = step
        advantage = jnp.where(counts_t, delta + gamma * lam * continues_t * advantage, 0.0)
        return advantage, advantage

    _, advantages = jax.lax.scan(backward, jnp.zeros_like(values[0]), (deltas, continues, counts), reverse=True)
    return advantages
