"""Divides a batch into mini-batches: every sample exactly once an epoch, also where the division leaves a remainder."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def mini_batch_indices(
    permutation: Int[Array, " B"], num_mini_batches: int
) -> tuple[Int[Array, "M S"], Bool[Array, "M S"]]:
    """Deals a permutation out to M mini-batches of S = ceil(B / M) rows whose sizes differ by at most one.

    Returns:
        The sample indices of each mini-batch, and whether each is a sample; where it is padding the index is 0.

    Raises:
        ValueError: where there are more mini-batches than samples.
    """
    batch_size = permutation.shape[0]
    if num_mini_batches > batch_size:
        raise ValueError(
            f"runner.algorithm.num_mini_batches is {num_mini_batches}, but a rollout holds only {batch_size} samples "
            "(env.num_envs * runner.num_steps_per_env); lower it."
        )
    size = math.ceil(batch_size / num_mini_batches)
    padding = size * num_mini_batches - batch_size
    indices = jnp.pad(permutation, (0, padding))
    is_sample = jnp.arange(size * num_mini_batches) < batch_size
    # Dealt like cards (row i goes to mini-batch i mod M), so that the padding spreads over the mini-batches.
    return indices.reshape(size, num_mini_batches).T, is_sample.reshape(size, num_mini_batches).T
