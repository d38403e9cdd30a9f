"""Episode statistics: the mean over the most recent iterations that together hold enough episodes.

Every episode of those iterations counts alike, whichever environment it ran in and however short it was.
"""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from rlbotics_jax.types import EpisodeWindow

WINDOW = 512
"""Iterations remembered."""

REPORTED_EPISODES = 100
"""The mean reaches back over as few iterations as hold this many episodes; RLBotics averages over 100 too."""

MIN_EPISODES_FOR_BEST = 20
"""A mean over fewer episodes names no best policy: a single lucky episode would keep the title for good."""


@struct.dataclass
class EpisodeSums:
    """The episodes that ended during one rollout: how many, the sums of their returns and of their lengths."""

    count: Float[Array, ""]
    sum_return: Float[Array, ""]
    sum_length: Float[Array, ""]


@struct.dataclass
class EpisodeMeans:
    """Mean return and length of `count` recent episodes; 0 where there are none."""

    count: Float[Array, ""]
    mean_return: Float[Array, ""]
    mean_length: Float[Array, ""]


def empty_window() -> EpisodeWindow:
    """Returns a window without episodes."""
    return EpisodeWindow(*(jnp.zeros(WINDOW, jnp.float32) for _ in range(3)))


def record(window: EpisodeWindow, iteration: Int[Array, ""], sums: EpisodeSums) -> EpisodeWindow:
    """Returns the window with one iteration's sums in its slot, in place of the iteration WINDOW earlier."""
    slot = iteration % WINDOW
    return EpisodeWindow(
        count=window.count.at[slot].set(sums.count),
        sum_return=window.sum_return.at[slot].set(sums.sum_return),
        sum_length=window.sum_length.at[slot].set(sums.sum_length),
    )


def recent_means(window: EpisodeWindow, iteration: Int[Array, ""]) -> EpisodeMeans:
    """Returns the means over the latest iterations, `iteration` first, until they hold REPORTED_EPISODES episodes."""
    slots = (iteration - jnp.arange(WINDOW)) % WINDOW
    counts = window.count[slots]
    used = jnp.cumsum(counts) - counts < REPORTED_EPISODES
    count, sum_return, sum_length = (
        jnp.sum(jnp.where(used, values[slots], 0.0)) for values in (window.count, window.sum_return, window.sum_length)
    )
    divisor = jnp.maximum(count, 1.0)
    return EpisodeMeans(count, sum_return / divisor, sum_length / divisor)


def names_best(means: EpisodeMeans, sums: EpisodeSums, best_score: Float[Array, ""]) -> Bool[Array, ""]:
    """Returns whether an episode ended, enough of them are in the mean, and the mean beats the best. NaN never does."""
    enough = (sums.count > 0) & (means.count >= MIN_EPISODES_FOR_BEST)
    return enough & (means.mean_return > best_score)
