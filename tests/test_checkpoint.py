"""Checkpoints: everything comes back to the bit, in order, and only what was asked for is kept."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from helpers import assert_bit_equal

from rlbotics_jax.checkpoint import Checkpoints


@struct.dataclass
class Tree:
    """A state with everything that is hard to store: typed keys, empty arrays, None, tuples, unsigned words."""

    key: jax.Array
    empty: jax.Array
    nothing: None
    pair: tuple
    word: jax.Array


def tree(seed: int) -> Tree:
    return Tree(
        key=jax.random.key(seed),
        empty=jnp.zeros((3, 0)),
        nothing=None,
        pair=(jnp.arange(4.0) + seed, {"a": jnp.bool_(True)}),
        word=jnp.uint32(2**32 - 1),
    )


def test_round_trip_to_the_bit(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    policy = {"last": {"w": jnp.ones(3)}, "best": {"w": jnp.zeros(3)}}
    checkpoints.save(5, tree(1), policy, {"best_score": None, "wall_time": 1.5})
    checkpoints.save(7, tree(2), policy, {"best_score": 3.0, "wall_time": 2.5})
    checkpoints.close()

    reopened = Checkpoints(tmp_path)
    assert reopened.iterations() == [5, 7]
    like = jax.eval_shape(lambda: tree(0))
    assert_bit_equal(reopened.state(5, like), tree(1))
    assert_bit_equal(reopened.state(7, like), tree(2))
    assert_bit_equal(reopened.policy(7, policy), policy)
    assert reopened.summary(5) == {"best_score": None, "wall_time": 1.5}
    reopened.close()


def test_what_is_donated_afterwards_was_copied(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    consume = jax.jit(lambda x: x + 1, donate_argnums=0)
    state = {"x": jnp.arange(1e6)}
    checkpoints.save(1, state, {"last": state, "best": state}, {})
    consume(state["x"])
    checkpoints.close()
    np.testing.assert_array_equal(Checkpoints(tmp_path).state(1, {"x": jnp.zeros(10**6)})["x"], np.arange(1e6))


@pytest.mark.parametrize(("keep", "kept"), [(0, [1, 2, 3, 4]), (2, [3, 4])])
def test_keep_last_n(keep, kept, tmp_path):
    checkpoints = Checkpoints(tmp_path, keep)
    for iteration in (1, 2, 3, 4):
        checkpoints.save(iteration, {"x": jnp.ones(2)}, {"last": jnp.ones(1)}, {})
    checkpoints.close()
    assert Checkpoints(tmp_path).iterations() == kept


def test_other_shapes_are_refused(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"x": jnp.ones(2)}, {"last": jnp.ones(1)}, {})
    with pytest.raises(ValueError):
        checkpoints.state(1, {"x": jnp.ones(3)})
    with pytest.raises(ValueError):
        checkpoints.state(1, {"y": jnp.ones(2)})
    checkpoints.close()
