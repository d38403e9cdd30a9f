"""A random permutation without a sort, which costs more than a third of a small policy's update on a CPU."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

ROUNDS = 2
"""Of a shift along the columns and one along the rows each: the four rounds of Luby and Rackoff."""

MIN_ROWS = 16
"""Fewer shifts than this mix poorly. Such sizes (under 256, or without a divisor near the root) are sorted."""


def random_permutation(key: Array, size: int) -> Int[Array, " size"]:
    """Returns a random bijection of 0 .. size - 1.

    The indices are laid out as a table of r rows and c columns, size = r * c, and shifted along each axis by amounts
    that are drawn for every line of the other axis, twice:

        column <- (column + a[row]) mod c,   a ~ uniform{0 .. c - 1}^r
        row    <- (row + b[column]) mod r,   b ~ uniform{0 .. r - 1}^c

    Every shift can be undone, so the whole is a bijection for any r and c. It needs r + c random numbers a round where
    a sort needs r * c and their order.

    Source: the Feistel network with random round functions of Luby and Rackoff, How to construct pseudorandom
    permutations from pseudorandom functions (1988), over Z_r x Z_c as in Black and Rogaway, Ciphers with arbitrary
    finite domains (2002).
    """
    rows = next(divisor for divisor in range(math.isqrt(size), 0, -1) if size % divisor == 0)
    if rows < MIN_ROWS:
        return jax.random.permutation(key, size)
    columns = size // rows
    bits = jax.random.bits(key, (ROUNDS, rows + columns))
    row, column = jnp.divmod(jnp.arange(size), columns)
    for i in range(ROUNDS):
        column = _shift(column, bits[i, :rows], row, columns)
        row = _shift(row, bits[i, rows:], column, rows)
    return row * columns + column


def _shift(position: Array, bits: Array, line: Array, length: int) -> Array:
    """Returns (position + shift[line]) mod length."""
    shifted = position + (bits % length).astype(jnp.int32)[line]
    return jnp.where(shifted >= length, shifted - length, shifted)
