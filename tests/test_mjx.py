"""What an MJX environment keeps between two steps is all that the next one depends on."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from drawing import opengl_or_advice
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


def moved_ball():
    """Returns a state of Ball, as numpy arrays, in which every field that can be is away from its default."""
    state = jax.device_get(jax.jit(Ball().reset)(jax.random.key(0)))
    rng = np.random.default_rng(0)
    data = jax.tree.map(lambda leaf: rng.uniform(0.1, 0.4, leaf.shape).astype(leaf.dtype), state.data)
    return state.replace(data=data.replace(eq_active=np.zeros_like(state.data.eq_active)))


def test_c_mujoco_receives_the_whole_state():
    state, data = moved_ball(), mujoco.MjData(Ball().model)
    assert data.eq_active[0] == 1
    state.data.copy_to(data)
    for field in dataclasses.fields(IntegrationState):
        if (value := getattr(state.data, field.name)) is not None:
            np.testing.assert_array_equal(getattr(data, field.name), value, err_msg=field.name)
    assert data.act[0] > 0 and data.mocap_pos.min() > 0 and data.time > 0


def test_a_state_is_drawn_from_the_task_s_camera():
    @dataclasses.dataclass(frozen=True)
    class Filmed(Ball):
        xml: ClassVar[str] = XML.replace(
            "<worldbody>",
            """<worldbody><camera name="sky" pos="0 0 50"/><camera name="near" pos="0 -1.5 0.3" xyaxes="1 0 0 0 0 1"/>""",
        )
        camera: ClassVar[str | None] = "near"

    rest = jax.device_get(jax.jit(Ball().reset)(jax.random.key(0)))
    moved = rest.replace(data=rest.data.replace(qpos=rest.data.qpos + np.float32([0.3, 0, 0, 0, 0, 0, 0, 0])))
    with opengl_or_advice(), Filmed().renderer(160, 120) as draw:
        first, second, again = draw(rest), draw(moved), draw(rest)
        assert first.shape == (120, 160, 3) and first.dtype == np.uint8
        np.testing.assert_array_equal(first, again)
        changed = np.argwhere(np.abs(first.astype(int) - second).max(axis=-1) > 20)
        assert len(changed) > 200 and np.ptp(changed[:, 1]) > 30  # the ball, where it was and where it is


def test_exported_policies_tell_the_actuators_names():
    @dataclasses.dataclass(frozen=True)
    class Named(MjxEnvironment):
        xml: ClassVar[str] = XML.replace(
            "</actuator>", '<motor name="push" joint="hinge" ctrlrange="-1 1"/></actuator>'
        )

    assert Named().metadata == {"action_names": ["actuator_0", "push"]}
