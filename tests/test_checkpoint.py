"""Checkpoints: everything comes back to the bit, in order, verified, and only what was asked for is kept."""

from __future__ import annotations

import json
import shutil
import warnings
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from helpers import assert_bit_equal
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rlbotics_jax.checkpoint import ARCHIVE, CheckpointError, Checkpoints


@struct.dataclass
class Tree:
    """A state with everything that is hard to store: typed keys, empty arrays, None, tuples, unsigned words."""

    key: jax.Array
    empty: jax.Array
    nothing: None
    pair: tuple
    word: jax.Array
    half: jax.Array
    keys: jax.Array
    lonely: jax.Array


def tree(seed: int) -> Tree:
    return Tree(
        key=jax.random.key(seed),
        empty=jnp.zeros((3, 0)),
        nothing=None,
        pair=(jnp.arange(4.0) + seed, {"a": jnp.bool_(True)}, -jnp.inf * jnp.ones(2)),
        word=jnp.uint32(2**32 - 1),
        half=jnp.asarray([[1.5], [-3.0]], jnp.bfloat16),
        keys=jax.random.split(jax.random.key(seed, impl="rbg"), 3),
        lonely=jnp.zeros((0, 2), jnp.int8),  # the only one of its dtype, and empty
    )


POLICY = {"last": {"w": jnp.ones(3)}, "best": {"w": jnp.zeros(3)}}


def save(run, *iterations, keep=0):
    """Saves states that tell their iteration."""
    checkpoints = Checkpoints(run, keep)
    for iteration in iterations:
        checkpoints.save(iteration, {"x": jnp.full(200, iteration)}, POLICY, {"iteration": iteration})
    checkpoints.close()
    return Checkpoints(run)


def archive(run, iteration):
    return run / "checkpoints" / str(iteration) / ARCHIVE


def test_round_trip_to_the_bit(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(5, tree(1), POLICY, {"best_score": None, "wall_time": 1.5})
    checkpoints.save(10, tree(2), POLICY, {"best_score": 3.0, "wall_time": 2.5})
    checkpoints.close()

    reopened = Checkpoints(tmp_path)
    assert reopened.iterations() == [5, 10] and reopened.latest() == 10
    like = jax.eval_shape(lambda: tree(0))
    for iteration, seed in ((5, 1), (10, 2)):
        restored = reopened.state(iteration, like)
        assert_bit_equal(restored, tree(seed))
        assert jax.tree.map(lambda leaf: leaf.dtype, restored) == jax.tree.map(lambda leaf: leaf.dtype, like)
    assert_bit_equal(reopened.policy(10, POLICY), POLICY)
    assert reopened.summary(5) == {"best_score": None, "wall_time": 1.5}


def test_what_is_donated_before_and_after_is_no_one_else_s(tmp_path, allow_nans):
    """Under jax_debug_nans nothing is donated."""
    checkpoints = Checkpoints(tmp_path)
    consume = jax.jit(lambda x: x + 1, donate_argnums=0)
    state = {"x": jnp.arange(1e6)}
    checkpoints.save(1, state, {"last": state, "best": state}, {})
    consume(state["x"])
    assert state["x"].is_deleted()
    checkpoints.close()
    restored = Checkpoints(tmp_path).state(1, {"x": jnp.zeros(10**6)})["x"]
    np.testing.assert_array_equal(consume(restored), np.arange(1e6) + 1)
    assert restored.is_deleted()


def test_arrays_of_several_devices_are_gathered(tmp_path):
    mesh = Mesh(np.array(jax.devices()), ("devices",))
    rows = jnp.arange(32.0).reshape(16, 2)
    state = {
        "sharded": jax.device_put(rows, NamedSharding(mesh, PartitionSpec("devices"))),
        "replicated": jax.device_put(jnp.ones(3), NamedSharding(mesh, PartitionSpec())),
    }
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state, POLICY, {})
    checkpoints.close()
    assert_bit_equal(Checkpoints(tmp_path).state(1, state), {"sharded": rows, "replicated": jnp.ones(3)})


def test_the_file_explains_itself(tmp_path):
    """A reader needs a zip, JSON and numpy."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"a": {"b": jnp.arange(3.0)}, "c": jnp.float32([[7.0, 8.0]])}, POLICY, {"iteration": 1})
    checkpoints.close()
    with zipfile.ZipFile(archive(tmp_path, 1)) as file:
        layout = json.loads(file.read("state.json"))
        numbers = np.frombuffer(file.read("state.float32"), np.float32)
        assert json.loads(file.read("summary.json")) == {"iteration": 1}
    assert layout == {"a.b": ["float32", [3], 0], "c": ["float32", [1, 2], 3]}
    assert numbers.tolist() == [0.0, 1.0, 2.0, 7.0, 8.0]
    assert {path: str(leaf) for path, leaf in checkpoints.layout(1).items()} == {
        "a.b": "float32[3]",
        "c": "float32[1, 2]",
    }
    assert {path: leaf.tolist() for path, leaf in checkpoints.leaves(1, "c".__eq__).items()} == {"c": [[7.0, 8.0]]}


@pytest.mark.parametrize(("keep", "kept"), [(0, [1, 2, 3, 10]), (2, [3, 10]), (1, [10])])
def test_keep_last_n(keep, kept, tmp_path):
    assert save(tmp_path, 1, 2, 3, 10, keep=keep).iterations() == kept
    assert sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir()) == kept


def test_only_older_ones_are_removed(tmp_path):
    """What a damaged newer checkpoint left does not push out the one that was written."""
    save(tmp_path, 1, 9)
    assert save(tmp_path, 2, keep=1).iterations() == [2, 9]


def test_nothing_is_made_before_the_first_save(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.iterations() == [] and checkpoints.latest() is None
    checkpoints.close()
    assert list(tmp_path.iterdir()) == []


def test_other_shapes_are_refused(tmp_path):
    checkpoints = save(tmp_path, 1)
    for like, sentence in (
        ({"x": jnp.ones(3, int)}, r"checkpoints/1': x is int32\[200\] there, needed is int32\[3\]"),
        ({"x": jnp.ones(200)}, r"x is int32\[200\] there, needed is float32\[200\]"),
        ({"y": jnp.ones(2)}, r"y is missing there, needed is float32\[2\]"),
        ({}, r"x is int32\[200\] there, needed is missing"),
    ):
        with pytest.raises(ValueError, match=sentence):
            checkpoints.state(1, like)


def test_a_damaged_checkpoint_is_told_and_the_one_before_it_taken(tmp_path):
    checkpoints = save(tmp_path, 1, 2, 3, 4)
    like = {"x": jnp.zeros(200, int)}
    file = archive(tmp_path, 4)
    file.write_bytes(file.read_bytes()[:-100])
    archive(tmp_path, 3).unlink()
    shutil.rmtree(tmp_path / "checkpoints" / "2")
    (tmp_path / "checkpoints" / "2").mkdir()
    with pytest.warns(UserWarning) as caught:
        assert checkpoints.latest() == 1
    assert [str(warning.message).replace(str(tmp_path), "RUN") for warning in caught] == [
        "'RUN/checkpoints/4' is no whole checkpoint (File is not a zip file). It is passed over.",
        "'RUN/checkpoints/3' is no whole checkpoint (No such file or directory). It is passed over.",
        "'RUN/checkpoints/2' is no whole checkpoint (No such file or directory). It is passed over.",
    ]
    for iteration in (2, 3, 4, 5):
        with pytest.raises(CheckpointError, match=f"checkpoints/{iteration}' is no whole checkpoint"):
            checkpoints.state(iteration, like)
    assert_bit_equal(checkpoints.state(1, like), {"x": jnp.full(200, 1)})


def test_no_flipped_byte_goes_unnoticed(tmp_path):
    """Wherever a byte changes, the checkpoint either is refused or gives what was saved."""
    checkpoints = save(tmp_path, 1)
    like, file = {"x": jnp.zeros(200, int)}, archive(tmp_path, 1)
    whole, refused = file.read_bytes(), 0
    positions = range(0, len(whole), 7)
    for position in positions:
        damaged = bytearray(whole)
        damaged[position] ^= 0x55
        file.write_bytes(damaged)
        try:
            checkpoints.verify(1)
            assert_bit_equal(checkpoints.state(1, like), {"x": jnp.full(200, 1)})
            assert checkpoints.summary(1) == {"iteration": 1}
        except CheckpointError:
            refused += 1
    assert refused > 0.8 * len(positions)
    for size in range(0, len(whole), 50):
        file.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            checkpoints.verify(1)


def sentences(caught, run):
    return [str(warning.message).replace(str(run), "RUN") for warning in caught]


def test_a_write_that_fails_warns_once_and_the_last_one_always(tmp_path):
    save(tmp_path, 1)
    checkpoints = Checkpoints(tmp_path, keep_last_n=1)
    folder, hidden = tmp_path / "checkpoints", tmp_path / "hidden"
    folder.rename(hidden)
    folder.write_text("")  # a file stands where the folder should be
    with pytest.warns(UserWarning) as caught:
        for iteration in (2, 3, 4):
            checkpoints.save(iteration, {"x": jnp.ones(2)}, POLICY, {})
        checkpoints.close()
        checkpoints.close()
    first, last = sentences(caught, tmp_path)
    assert first.startswith("A checkpoint cannot be written to 'RUN/checkpoints' (")
    assert first.endswith("); training goes on, and the next one is tried.")
    assert last.startswith("The last checkpoint could not be written to 'RUN/checkpoints' (")
    assert last.endswith("); there is none.")
    folder.unlink()
    hidden.rename(folder)
    checkpoints = Checkpoints(tmp_path, keep_last_n=1)
    assert checkpoints.iterations() == [1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoints.save(5, {"x": jnp.ones(2)}, POLICY, {})
        checkpoints.close()
    assert checkpoints.latest() == 5 and checkpoints.iterations() == [5]


def test_whatever_a_write_raises_costs_a_checkpoint_only(tmp_path):
    """Not only what a disk does: no error of the thread comes out of `save` or `close`."""
    checkpoints = Checkpoints(tmp_path)
    with pytest.warns(UserWarning) as caught:
        checkpoints.save(1, {"x": jnp.ones(2)}, POLICY, {})
        checkpoints.save(2, {"x": jnp.ones(2)}, POLICY, {"no JSON": object()})
        checkpoints.save(3, {"x": jnp.ones(2)}, POLICY, {})
        checkpoints.save(4, {"x": jnp.ones(2)}, POLICY, {"no JSON": object()})
        checkpoints.close()
    reason = "(Object of type object is not JSON serializable)"
    assert sentences(caught, tmp_path) == [
        f"A checkpoint cannot be written to 'RUN/checkpoints' {reason}; training goes on, and the next one is tried.",
        f"The last checkpoint could not be written to 'RUN/checkpoints' {reason}; the latest there is that of iteration 3.",
    ]
    assert checkpoints.iterations() == [1, 3]


class Exits(dict):
    """A summary that ends the thread which writes it, as an interrupt ends the one that waits."""

    def items(self):
        raise SystemExit


def test_what_ended_the_wait_is_raised_once(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"x": jnp.ones(2)}, POLICY, Exits(a=1))
    with pytest.raises(SystemExit):
        checkpoints.close()
    checkpoints.close()


def test_leftovers_of_a_killed_process_are_ignored_and_removed(tmp_path):
    save(tmp_path, 1)
    leftover = tmp_path / "checkpoints" / "2.orbax-checkpoint-tmp"
    leftover.mkdir()
    (leftover / ARCHIVE).write_text("half")
    assert Checkpoints(tmp_path).latest() == 1 and leftover.is_dir()  # a reader removes nothing
    assert save(tmp_path, 3).iterations() == [1, 3]
    assert not leftover.exists()
