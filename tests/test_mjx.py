"""What an MJX environment keeps between two steps is all that the next one depends on."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import pytest
from helpers import assert_bit_equal
from mujoco import mjx

from rlbotics_jax.envs.base import third_party
from rlbotics_jax.envs.mjx import IntegrationState, MjxEnvironment

# Each of: an actuator with activation dynamics, contact, a warm-started solver, a welded body, a mocap body.
XML = """
<mujoco>
  <option timestep="0.01" solver="Newton" iterations="2" ls_iterations="4"/>
  <worldbody>
    <geom type="plane" size="5 5 0.1"/>
    <body name="target" mocap="true" pos="0 0 1"/>
    <body name="ball" pos="0 0 0.105">
      <freejoint/>
      <geom type="sphere" size="0.1" mass="1"/>
      <body name="arm">
        <joint name="hinge" type="hinge" axis="0 1 0" damping="0.1"/>
        <geom type="capsule" fromto="0 0 0 0 0 0.3" size="0.02" mass="0.1" contype="0" conaffinity="0"/>
      </body>
    </body>
  </worldbody>
  <equality><connect body1="ball" body2="target" anchor="0 0 0.5" solref="0.5 1"/></equality>
  <actuator><general joint="hinge" dyntype="filter" dynprm="0.1" gainprm="2" ctrlrange="-1 1" ctrllimited="true"/></actuator>
</mujoco>
"""


@dataclasses.dataclass(frozen=True)
class Ball(MjxEnvironment):
    xml: ClassVar[str] = XML


@pytest.fixture(autouse=True)
def _as_a_vectorised_environment():
    """MJX promotes ranks, which the library allows to environments alone."""
    with third_party():
        yield


def test_steps_equal_those_of_the_whole_data_bit_for_bit():
    environment, model = Ball(), mjx.put_model(Ball().model, impl="jax")
    state = environment.reset(jax.random.key(0))
    actions = jax.random.uniform(jax.random.key(1), (40, 1), minval=-1.0, maxval=1.0)

    @jax.jit
    def kept(state, actions):
        return jax.lax.scan(lambda state, action: (environment.step(state, action),) * 2, state, actions)[1].data

    @jax.jit
    def whole(data, actions):
        def step(data, action):
            data = mjx.step(model, data.replace(ctrl=action))
            return data, IntegrationState.of(data)

        return jax.lax.scan(step, data, actions)[1]

    path = kept(state, actions)
    assert_bit_equal(path, whole(mjx.forward(model, mjx.make_data(model, impl="jax")), actions))
    assert path.act.shape == (40, 1) and path.mocap_pos.shape == (40, 1, 3)
    moved = jnp.abs(path.qpos[-1] - path.qpos[0]).max()
    assert float(moved) > 0.01 and float(jnp.abs(path.qacc_warmstart[-1]).max()) > 0.0


def test_the_state_is_a_small_part_of_the_data():
    def size(tree):
        return sum(leaf.size for leaf in jax.tree.leaves(tree))

    state = jax.eval_shape(Ball().reset, jax.random.key(0))
    assert 10 * size(state.data) < size(mjx.make_data(Ball().model, impl="jax"))
