"""Trees as flat buffers: where each leaf is, and the first one that differs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from helpers import assert_bit_equal

from rlbotics_jax.packing import Leaf, difference, dtypes_of, fill, from_json, layout_of, pack, to_json, unpack

TREE = {
    "a": (jnp.float32([1.0, 2.0]), jnp.uint32(7)),
    "b": {"key": jax.random.split(jax.random.key(3), 2), "matrix": jnp.float32([[3.0], [4.0]])},
    "c": None,
}


def test_every_leaf_is_at_its_offset_in_the_buffer_of_its_dtype():
    layout = layout_of(TREE)
    assert layout == layout_of(jax.eval_shape(lambda: TREE))
    assert {path: (str(leaf), leaf.offset) for path, leaf in layout.items()} == {
        "a.0": ("float32[2]", 0),
        "a.1": ("uint32[]", 0),
        "b.key": ("key<threefry2x32>[2]", 1),  # behind a.1, as its words
        "b.matrix": ("float32[2, 1]", 2),
    }
    buffers = {name: np.asarray(buffer) for name, buffer in pack({"t": TREE}).items()}
    words = jax.random.key_data(TREE["b"]["key"])
    assert buffers["t.float32"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert buffers["t.uint32"].tolist() == [7, *words.reshape(-1).tolist()]
    assert dtypes_of(layout) == {"float32", "uint32"} and len(buffers) == 2
    leaves = unpack(from_json(to_json(layout)), {name.removeprefix("t."): buffer for name, buffer in buffers.items()})
    assert_bit_equal(fill(TREE, leaves), TREE)


def test_fill_keeps_what_is_not_given():
    assert fill({"x": 1, "y": {"z": 2}}, {"y.z": 3}) == {"x": 1, "y": {"z": 3}}


def test_the_first_difference_has_both_values():
    saved = {"x": Leaf("float32", (5, 64), 0), "y": Leaf("uint32", (), 0)}
    assert difference(saved, {"x": Leaf("float32", (5, 64), 99), "y": Leaf("uint32", (), 3)}) is None
    assert difference(saved, {**saved, "x": Leaf("float32", (7, 64), 0)}) == ("x", "float32[5, 64]", "float32[7, 64]")
    assert difference(saved, {"x": saved["x"]}) == ("y", "uint32[]", "missing")
    assert difference({"x": saved["x"]}, saved) == ("y", "missing", "uint32[]")
