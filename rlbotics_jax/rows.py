"""Choosing between trees row by row: every leaf leads with the rows, whatever axes follow."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree


def select_rows(condition: Bool[Array, " N"], new: PyTree, old: PyTree) -> PyTree:
    """Returns `new` where the row's condition holds, else `old`, leaf by leaf (random keys included)."""

    def choose(n: Array, o: Array) -> Array:
        return jnp.where(condition.reshape((-1,) + (1,) * (n.ndim - 1)), n, o)

    return jax.tree.map(choose, new, old)


def zero_other_rows(keep: Bool[Array, " N"], tree: PyTree) -> PyTree:
    """Returns the tree with zeros in the rows that are not kept."""
    return select_rows(keep, tree, jax.tree.map(jnp.zeros_like, tree))
