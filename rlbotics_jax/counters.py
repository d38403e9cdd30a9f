"""Counts that stay exact past 2^32: two uint32 words, because JAX has no uint64 without x64.

A float32 stops counting at 2^24 and a uint32 wraps at 2^32, which 4096 environments reach within an hour.
"""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, UInt32


@struct.dataclass
class Count:
    """The non-negative integer high * 2^32 + low."""

    high: UInt32[Array, ""]
    low: UInt32[Array, ""]


def zero_count() -> Count:
    """Returns the count 0."""
    return Count(high=jnp.uint32(0), low=jnp.uint32(0))


def add(count: Count, increment: UInt32[Array, ""]) -> Count:
    """Returns count + increment, with the carry into the high word. `increment` is one uint32."""
    increment = jnp.asarray(increment, jnp.uint32)
    low = count.low + increment
    return Count(high=count.high + (low < increment).astype(jnp.uint32), low=low)


def as_float(count: Count) -> Float[Array, ""]:
    """Returns the count as float32, rounded to its 24 significant bits: for ratios, never for counting."""
    return count.high.astype(jnp.float32) * 2.0**32 + count.low.astype(jnp.float32)


def to_int(count: Count) -> int:
    """Returns the exact count as a Python integer (host only)."""
    return (int(count.high) << 32) + int(count.low)
