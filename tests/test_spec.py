"""The action mapping by literals, and what is recorded of an environment."""

from __future__ import annotations

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import PrivilegedReward

from rlbotics_jax.envs import ActionMapping, EnvironmentSpec, environment_spec
from rlbotics_jax.envs.cartpole import CartpoleBalance

INF = math.inf


@pytest.mark.parametrize(
    ("mapping", "actions", "expected"),
    [
        # low + (a + 1) / 2 * (high - low)
        (ActionMapping((-2.0, 0.0), (2.0, 10.0)), [-1.0, -1.0], [-2.0, 0.0]),
        (ActionMapping((-2.0, 0.0), (2.0, 10.0)), [0.5, 0.5], [1.0, 7.5]),
        (ActionMapping((-2.0, 0.0), (2.0, 10.0)), [3.0, -3.0], [2.0, 0.0]),
        # bounds of exactly [-1, 1] clip and nothing else
        (ActionMapping((-1.0,), (1.0,)), [0.3], [0.3]),
        (ActionMapping((-1.0,), (1.0,)), [1.5], [1.0]),
        # a dimension with an infinite bound is passed through, unclipped
        (ActionMapping((-2.0, -INF), (2.0, 4.0)), [9.0, 9.0], [2.0, 9.0]),
        (ActionMapping((-2.0, 0.0), (2.0, INF)), [-0.5, -9.0], [-1.0, -9.0]),
        (ActionMapping((-INF,), (INF,)), [9.0], [9.0]),
        # no bounds
        (ActionMapping(), [9.0, -9.0], [9.0, -9.0]),
        # env.clip_actions comes first
        (ActionMapping(clip=2.0), [9.0, -9.0, 1.0], [2.0, -2.0, 1.0]),
        (ActionMapping((0.0,), (10.0,), clip=0.5), [9.0], [7.5]),
        (ActionMapping((0.0,), (10.0,), clip=5.0), [9.0], [10.0]),
        (ActionMapping((0.0, -INF), (10.0, INF), clip=0.5), [9.0, 9.0], [7.5, 0.5]),
    ],
)
def test_mapping_by_literals(mapping, actions, expected):
    actions, expected = jnp.float32(actions), np.float32(expected)
    np.testing.assert_array_equal(mapping(actions), expected)
    np.testing.assert_array_equal(jax.jit(mapping)(actions), expected)
    batch = jnp.broadcast_to(actions, (2, 3, *actions.shape))
    np.testing.assert_array_equal(mapping(batch), np.broadcast_to(expected, batch.shape))
    assert mapping(actions).dtype == jnp.float32


finite = st.floats(-1e3, 1e3, width=32)


@settings(deadline=None)
@given(a=finite, low=finite, width=st.floats(0.125, 1e3, width=32))
def test_mapped_actions_stay_inside_their_bounds(a, low, width):
    high = float(np.float32(low) + np.float32(width))
    mapped = float(ActionMapping((low,), (high,))(jnp.float32([a]))[0])
    rounding = 1e-6 * max(abs(low), abs(high))
    assert low - rounding <= mapped <= high + rounding
    expected = low + (min(max(a, -1.0), 1.0) + 1.0) / 2.0 * (high - low)
    assert mapped == pytest.approx(expected, abs=4 * rounding)


def test_equal_mappings_are_equal_and_hash_alike():
    assert hash(ActionMapping((0.0,), (1.0,), 2.0)) == hash(ActionMapping((0.0,), (1.0,), 2.0))
    assert ActionMapping((0.0,), (1.0,)) != ActionMapping((0.0,), (2.0,))


def test_the_spec_of_a_task():
    assert environment_spec(CartpoleBalance()) == EnvironmentSpec(
        observation_shapes={"observation": (5,)},
        num_actions=1,
        action_low=(-1.0,),
        action_high=(1.0,),
        episode_length=1000,
        dt=0.01,
        metadata={"action_names": ["slide"]},
    )
    toy = environment_spec(PrivilegedReward())
    assert toy.observation_sizes == {"observation": 2, "privileged": 2}
    assert (toy.action_low, toy.action_high, toy.episode_length, toy.dt) == (None, None, 8, 0.1)


def test_bounds_may_be_arrays():
    spec = environment_spec(PrivilegedReward(action_low=np.array([-2.0], np.float32), action_high=jnp.array([np.inf])))
    assert (spec.action_low, spec.action_high) == ((-2.0,), (INF,))


@pytest.mark.parametrize("bounds", [(None, None), ((-1.0, 0.5), (1.0, 0.75)), ((-INF, 0.5), (INF, 0.75))])
def test_the_spec_survives_json(bounds):
    spec = EnvironmentSpec(
        {"joints": (3,), "camera": (3, 8, 6)},
        2,
        *bounds,
        7,
        0.02,
        {"camera": "uint8"},
        {"action_names": ["a", "b"], "action_scale": [INF, 0.5]},
    )
    read = EnvironmentSpec.from_dict(json.loads(json.dumps(spec.to_dict(), allow_nan=False)))
    assert read == spec
    assert list(read.observation_shapes) == ["joints", "camera"]


def test_example_observations_have_the_sizes_of_the_groups():
    spec = EnvironmentSpec({"joints": (3,), "camera": (3, 8, 6)}, 2, None, None, 7, 0.02, {"camera": "uint8"})
    examples = spec.example_observations(4)
    assert {group: (leaf.shape, leaf.dtype) for group, leaf in examples.items()} == {
        "joints": ((4, 3), jnp.float32),
        "camera": ((4, 3, 8, 6), jnp.uint8),
    }
    assert spec.observation_sizes == {"joints": 3, "camera": 144}
    assert not any(leaf.any() for leaf in examples.values())


def test_a_recorded_environment_that_lacks_a_key():
    with pytest.raises(ValueError, match="The recorded environment has no 'observation_shapes'"):
        EnvironmentSpec.from_dict({"num_actions": 1})
