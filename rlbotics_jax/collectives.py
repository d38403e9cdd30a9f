"""Reductions over the devices that share one training run, and the weighted moments built on them.

Every function takes an optional axis name. Without one, a run has a single device and the reduction is the identity;
so the train step is written once for one device and for many.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree


def psum(tree: PyTree, axis_name: str | None) -> PyTree:
    """Returns the sum over all devices."""
    return tree if axis_name is None else jax.lax.psum(tree, axis_name)


def pmean(tree: PyTree, axis_name: str | None) -> PyTree:
    """Returns the mean over all devices."""
    return tree if axis_name is None else jax.lax.pmean(tree, axis_name)


def pmin(tree: PyTree, axis_name: str | None) -> PyTree:
    """Returns the minimum over all devices."""
    return tree if axis_name is None else jax.lax.pmin(tree, axis_name)


def device_index(axis_name: str | None) -> Int[Array, ""]:
    """Returns which of the devices this is, from 0."""
    return jnp.int32(0) if axis_name is None else jax.lax.axis_index(axis_name)


def fold_in_device(key: Array, axis_name: str | None) -> Array:
    """Returns a key that differs between devices; the key itself where there is one device."""
    return key if axis_name is None else jax.random.fold_in(key, device_index(axis_name))


def weighted_sum(values: Float[Array, "..."], weights: Float[Array, "..."], axis_name: str | None) -> Float[Array, ""]:
    """Returns sum_i w_i x_i over all devices. Rows of weight 0 may hold anything, NaN included: in
    the value, not in the gradient."""
    return psum(jnp.sum(jnp.where(weights > 0, weights * values, 0.0)), axis_name)


def weighted_mean(values: Float[Array, "..."], weights: Float[Array, "..."], axis_name: str | None) -> Float[Array, ""]:
    """Returns sum_i w_i x_i / sum_i w_i over all devices; 0 where all weights are 0."""
    total = psum(jnp.sum(weights), axis_name)
    return weighted_sum(values, weights, axis_name) / jnp.maximum(total, 1.0)


def weighted_variance(
    values: Float[Array, "..."], weights: Float[Array, "..."], axis_name: str | None, ddof: int = 0
) -> Float[Array, ""]:
    """Returns sum_i w_i (x_i - mean)^2 / (sum_i w_i - ddof) over all devices, in two passes, for weights of 0 or 1.

    The denominator is at least 1, so that a single row has variance 0 rather than NaN.
    """
    mean = weighted_mean(values, weights, axis_name)
    total = psum(jnp.sum(weights), axis_name)
    return weighted_sum(jnp.square(values - mean), weights, axis_name) / jnp.maximum(total - ddof, 1.0)
