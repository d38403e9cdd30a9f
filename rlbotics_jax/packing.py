"""Trees of arrays as a few flat buffers, one a dtype, and the layout that says which leaf is where in them."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from rlbotics_jax.compilation import jit


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of a tree.

    Attributes:
        dtype: its dtype's name; `key<threefry2x32>` for random keys of that kind, which are stored as their words.
        shape: its shape; of keys, without the axis of their words.
        offset: where it begins in the buffer of its dtype, in elements.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int = dataclasses.field(compare=False)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


Layout = dict[str, Leaf]
"""The leaves of a tree by their path, such as `shared.algorithm.parameters.actor.network.params.Dense_0.kernel`."""


def layout_of(tree: PyTree) -> Layout:
    """Returns where `pack` puts every leaf. Abstract leaves will do."""
    leaves, structure = jax.tree.flatten(tree)
    return dict(_layout(structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)))


@functools.lru_cache(maxsize=8)  # every checkpoint of a run asks for the same two, which take 2 ms
def _layout(structure: Any, leaves: tuple[tuple[tuple[int, ...], Any], ...]) -> Layout:
    tree = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
    layout, sizes = {}, defaultdict(int)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        dtype = _dtype_of(leaf.dtype)
        buffer, shape = _stored(dtype, leaf.shape)
        layout[_name(path)] = Leaf(dtype, leaf.shape, sizes[buffer])
        sizes[buffer] += math.prod(shape)
    return layout


def pack(trees: Mapping[str, PyTree]) -> dict[str, Array]:
    """Returns {"<name>.<dtype>": buffer}: copies of all leaves of a tree in the flat buffer of their dtype.

    One program does it, since several hundred small copies take longer than an iteration of training. Arrays that are
    spread over several devices are gathered when their buffer is read.
    """
    return _packer()(trees)


@functools.cache
def _packer() -> Callable[[Mapping[str, PyTree]], dict[str, Array]]:
    def pack(trees: Mapping[str, PyTree]) -> dict[str, Array]:
        buffers = defaultdict(list)
        for name, tree in trees.items():
            for leaf in jax.tree.leaves(tree):
                is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
                stored = jax.random.key_data(leaf) if is_key else leaf
                buffers[f"{name}.{stored.dtype}"].append(stored.reshape(-1))
        # Copied, because jit may hand back an argument that it returns unchanged, and training donates it.
        return {name: jnp.copy(jnp.concatenate(parts)) for name, parts in buffers.items()}

    return jit(pack, optimize=False)


def dtypes_of(layout: Layout) -> set[str]:
    """Returns the dtypes of the buffers that hold these leaves."""
    return {_stored(leaf.dtype, leaf.shape)[0] for leaf in layout.values()}


def unpack(layout: Layout, buffers: Mapping[str, np.ndarray]) -> dict[str, Array]:
    """Returns the leaves by path, on the default device, from the buffers of their dtypes."""
    stored = {}
    for path, leaf in layout.items():
        buffer, shape = _stored(leaf.dtype, leaf.shape)
        stored[path] = buffers[buffer][leaf.offset :][: math.prod(shape)].reshape(shape)
    # Not sharing numpy's memory, which could not be donated.
    arrays = jax.device_put(stored, may_alias=False)
    return {
        path: jax.random.wrap_key_data(array, impl=_kind_of_keys(layout[path].dtype))
        if _is_key(layout[path].dtype)
        else array
        for path, array in arrays.items()
    }


def fill(like: PyTree, leaves: Mapping[str, Array]) -> PyTree:
    """Returns the tree of `like` with the leaves of these paths in it; a path that is not given keeps its own."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: leaves.get(_name(path), leaf), like)


def difference(saved: Layout, wanted: Layout) -> tuple[str, str, str] | None:
    """Returns the first path that differs, and what is there in the one and in the other; None where nothing does."""
    for path in [*wanted, *saved]:
        if saved.get(path) != wanted.get(path):
            return path, str(saved.get(path, "missing")), str(wanted.get(path, "missing"))
    return None


def to_json(layout: Layout) -> str:
    """Returns the layout as JSON: {path: [dtype, shape, offset]}."""
    return json.dumps({path: [leaf.dtype, leaf.shape, leaf.offset] for path, leaf in layout.items()})


def from_json(text: str | bytes) -> Layout:
    """Returns the layout that `to_json` wrote."""
    return {path: Leaf(dtype, tuple(shape), offset) for path, (dtype, shape, offset) in json.loads(text).items()}


def _dtype_of(dtype: Any) -> str:
    if not jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return str(dtype)
    names = []  # jax tells the kind of a key, but not of its dtype
    jax.eval_shape(lambda key: names.append(jax.random.key_impl(key)), jax.ShapeDtypeStruct((), dtype))
    return f"key<{names[0]}>"


def _stored(dtype: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Returns the dtype and shape in which a leaf is stored."""
    if not _is_key(dtype):
        return dtype, shape
    words = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=_kind_of_keys(dtype))))
    return str(words.dtype), (*shape, *words.shape)


def _is_key(dtype: str) -> bool:
    return dtype.startswith("key<")


def _kind_of_keys(dtype: str) -> str:
    return dtype.removeprefix("key<").removesuffix(">")


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")
