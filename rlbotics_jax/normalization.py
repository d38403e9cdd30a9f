"""Running mean and variance of observations, merged in parallel and exactly counted."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from rlbotics_jax.collectives import psum
from rlbotics_jax.counters import Count, add, as_float, zero_count

EPSILON = 1e-2
"""Added to the standard deviation; RLBotics' value, so that its checkpoints keep their meaning."""

MOMENTUM = 0.1
"""Weight of the newest batch in running statistics that follow the network: torch's default."""


@struct.dataclass
class NormalizerState:
    """Statistics of everything seen so far: mean and population variance, each (n,), and the number of rows."""

    mean: Float[Array, " n"]
    variance: Float[Array, " n"]
    count: Count


def init_normalizer(size: int) -> NormalizerState:
    """Returns the statistics of nothing, under which `normalize` is exactly the identity."""
    return NormalizerState(jnp.zeros(size, jnp.float32), jnp.ones(size, jnp.float32), zero_count())


def normalize(
    state: NormalizerState, observations: Float[Array, "..."], clip: float | None = None, axis: int = -1
) -> Float[Array, "..."]:
    """Returns (x - mean) / (std + 0.01), bounded to [-clip, clip] where a bound is given; x itself at count 0.

    `axis` is the axis of the n features: the last one of vectors, the channels of images.
    """
    _check_size(state, observations, axis)
    scale = jnp.where(has_rows(state), jnp.sqrt(state.variance) + EPSILON, 1.0)
    # A reshape, not a broadcast: the exported graph then holds two constants instead of eight nodes.
    mean, scale = (along(axis, vector, observations.ndim) for vector in (state.mean, scale))
    normalized = (observations - mean) / scale
    return normalized if clip is None else jnp.clip(normalized, -clip, clip)


def merge(
    state: NormalizerState,
    observations: Float[Array, "... n"],
    valid: Bool[Array, "..."],
    axis_name: str | None = None,
) -> tuple[NormalizerState, Bool[Array, ""]]:
    """Merges a batch into the statistics, over all devices (Chan et al.'s parallel update):

        delta = mean_b - mean_a,   w = n_b / (n_a + n_b)
        mean  = mean_a + w delta
        var   = (1 - w) var_a + w var_b + w (1 - w) delta^2

    Rows that are invalid or hold a non-finite value are left out. The first merge gives exactly the batch's statistics,
    and a merge without rows changes nothing. A merge whose result would not be finite is dropped.

    Returns:
        The new statistics, and whether the merge was accepted.

    Source: Chan, Golub, LeVeque, Updating formulae and a pairwise algorithm for computing sample variances (1979).
    """
    _check_size(state, observations)
    rows = observations.reshape(-1, observations.shape[-1]).astype(jnp.float32)
    use = valid.reshape(-1) & jnp.all(jnp.isfinite(rows), axis=-1)
    rows = jnp.where(use[:, None], rows, 0.0)

    num_rows = psum(jnp.sum(use, dtype=jnp.uint32), axis_name)
    divisor = jnp.maximum(num_rows, 1).astype(jnp.float32)
    batch_mean = psum(jnp.sum(rows, axis=0), axis_name) / divisor
    deviations = jnp.where(use[:, None], rows - batch_mean[None], 0.0)
    batch_variance = psum(jnp.sum(jnp.square(deviations), axis=0), axis_name) / divisor

    count = add(state.count, num_rows)
    weight = num_rows.astype(jnp.float32) / jnp.maximum(as_float(count), 1.0)
    delta = batch_mean - state.mean
    merged = NormalizerState(
        mean=state.mean + weight * delta,
        variance=(1.0 - weight) * state.variance
        + weight * batch_variance
        + weight * (1.0 - weight) * jnp.square(delta),
        count=count,
    )
    accepted = jnp.all(jnp.isfinite(merged.mean)) & jnp.all(jnp.isfinite(merged.variance))
    use_merged = accepted & (num_rows > 0)
    return jax.tree.map(lambda new, old: jnp.where(use_merged, new, old), merged, state), accepted


def merge_channels(
    state: NormalizerState, images: Float[Array, "N C ..."], valid: Bool[Array, " N"], axis_name: str | None
) -> tuple[NormalizerState, Bool[Array, ""]]:
    """Merges images (N, C, H, W) as `merge` does, each pixel a row of C features; vectors (N, n) are rows themselves.

    The statistics are a channel's, not a pixel's: a pixel of a constant background has no variance, and whatever once
    appears there would be divided by 0.01.
    """
    rows = jnp.moveaxis(images, 1, -1)
    valid = valid.reshape(-1, *(1,) * (rows.ndim - 2))
    return merge(state, rows, jnp.broadcast_to(valid, rows.shape[:-1]), axis_name)


def blend(running: NormalizerState, batch: NormalizerState) -> NormalizerState:
    """Moves running statistics towards those of a batch, and counts the batches:

        running = (1 - w) running + w batch,    w = max(0.1, 1 / (k + 1)),    k batches so far

    The first ten batches weigh alike; from then on w is the momentum of torch's batch normalisation. A batch without
    rows changes nothing.
    """
    weight = jnp.maximum(MOMENTUM, 1.0 / (as_float(running.count) + 1.0))
    blended = NormalizerState(
        mean=(1.0 - weight) * running.mean + weight * batch.mean,
        variance=(1.0 - weight) * running.variance + weight * batch.variance,
        count=add(running.count, jnp.uint32(1)),
    )
    return jax.tree.map(lambda new, old: jnp.where(has_rows(batch), new, old), blended, running)


def is_normalizer(tree: Any) -> bool:
    """Returns whether a node of a tree is a NormalizerState, for `is_leaf`."""
    return isinstance(tree, NormalizerState)


def has_rows(state: NormalizerState) -> Bool[Array, ""]:
    """Returns whether the statistics hold anything yet."""
    return (state.count.low > 0) | (state.count.high > 0)


def along(axis: int, vector: Float[Array, " n"], ndim: int) -> Float[Array, "..."]:
    """Returns the vector as an array of `ndim` axes, all of length 1 but `axis`."""
    shape = [1] * ndim
    shape[axis] = -1
    return vector.reshape(shape)


def _check_size(state: NormalizerState, observations: Array, axis: int = -1) -> None:
    """Raises where the observations' feature axis is not the statistics' (it would broadcast silently)."""
    if observations.ndim < 1 or observations.shape[axis] != state.mean.shape[0]:
        raise ValueError(
            f"The normaliser holds statistics of {state.mean.shape[0]} features; the observations have shape "
            f"{observations.shape}, whose {'last axis' if axis == -1 else f'axis {axis}'} must be "
            f"{state.mean.shape[0]}."
        )
