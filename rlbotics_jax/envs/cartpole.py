"""Cart-pole on a rail, balanced from upright (CartpoleBalance) or swung up from hanging (CartpoleSwingup).

The classic task of Barto, Sutton and Anderson (1983) as a MuJoCo model of our own: a 1 kg cart on a rail of 3.6 m, a
pole of 1 m and 0.1 kg, a motor of 10 N, 100 actions a second. Episodes last 1000 steps (10 s).
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rlbotics_jax.envs.mjx import MjxEnvironment, mjx
from rlbotics_jax.types import Observations

CARTPOLE_XML = """
<mujoco model="cartpole">
  <option timestep="0.01" integrator="Euler" solver="Newton" iterations="1" ls_iterations="4">
    <flag contact="disable" eulerdamp="disable"/>
  </option>
  <visual>
    <headlight ambient="0.4 0.4 0.4" diffuse="0.3 0.3 0.3" specular="0 0 0"/>
  </visual>
  <asset>
    <texture type="skybox" builtin="gradient" rgb1="0.95 0.97 1" rgb2="0.65 0.75 0.85" width="32" height="192"/>
  </asset>
  <worldbody>
    <light pos="0 -2 4" dir="0 0.5 -1" diffuse="0.4 0.4 0.4" specular="0 0 0" castshadow="false"/>
    <camera name="side" pos="0 -5.2 0" xyaxes="1 0 0 0 0 1"/>
    <geom name="rail" type="capsule" fromto="-2 0 0 2 0 0" size="0.02" rgba="0.4 0.4 0.4 1"/>
    <body name="cart">
      <joint name="slider" type="slide" axis="1 0 0" limited="true" range="-1.8 1.8" damping="0.05"/>
      <geom name="cart" type="box" size="0.2 0.1 0.08" mass="1" rgba="0.2 0.4 0.7 1"/>
      <body name="pole">
        <joint name="hinge" type="hinge" axis="0 1 0" damping="0.002"/>
        <geom name="pole" type="capsule" fromto="0 0 0 0 0 1" size="0.03" mass="0.1" rgba="0.8 0.5 0.2 1"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor name="slide" joint="slider" gear="10" ctrllimited="true" ctrlrange="-1 1"/>
  </actuator>
</mujoco>
"""

MAX_SPEED = 50.0
"""Bound of the observed speeds, m/s and rad/s, far above what the motor reaches."""


@dataclasses.dataclass(frozen=True)
class CartpoleSwingup(MjxEnvironment):
    """Swing the pole up from hanging, then balance it in the middle of the rail.

    The rail is too short to throw the pole up in one push: it must be pumped. Nothing is terminal.

    Observations (group `observation`, 5): cart position (m), cosine and sine of the pole's angle from upright, cart
    speed (m/s), pole speed (rad/s). Reward in [0, 1]: see `reward`.
    """

    xml: ClassVar[str] = CARTPOLE_XML
    forward_at_reset: ClassVar[bool] = False

    def initial_state(self, key: Array) -> tuple[Float[Array, "2"], Float[Array, "2"]]:
        """Cart within 0.1 m of the middle, pole hanging within 0.1 rad, nearly at rest."""
        return _scattered(key, angle=math.pi, spread=0.1)

    def observations(self, data: mjx.Data) -> Observations:
        """Returns the five numbers above. The angle is observed through its cosine and sine: it grows without bound."""
        position, angle = data.qpos
        speeds = jnp.clip(data.qvel, -MAX_SPEED, MAX_SPEED)
        return {"observation": jnp.stack([position, jnp.cos(angle), jnp.sin(angle), speeds[0], speeds[1]])}

    def reward(self, data: mjx.Data, action: Float[Array, "1"]) -> dict[str, Float[Array, ""]]:
        """Returns, with u = (1 + cos(angle)) / 2, 1 for upright, and s = exp(-angular speed^2 / 8), 1 for rest:

        upright   0.3 u
        still     0.4 u s                         (a pole that spins is upright half of the time)
        centred   0.2 u s exp(-x^2 / 0.5)         x: distance from the rail's middle (m)
        effort    0.1 u s (1 - action^2)
        """
        upright = 0.5 * (1.0 + jnp.cos(data.qpos[1]))
        still = upright * jnp.exp(-jnp.square(data.qvel[1]) / 8.0)
        return {
            "upright": 0.3 * upright,
            "still": 0.4 * still,
            "centred": 0.2 * still * jnp.exp(-jnp.square(data.qpos[0]) / 0.5),
            "effort": 0.1 * still * (1.0 - jnp.square(action[0])),
        }


@dataclasses.dataclass(frozen=True)
class CartpoleBalance(CartpoleSwingup):
    """Keep the pole upright, the cart in the middle of the rail and everything at rest; a fallen pole is terminal."""

    def initial_state(self, key: Array) -> tuple[Float[Array, "2"], Float[Array, "2"]]:
        """Cart within 0.1 m of the middle, pole within 0.05 rad of upright, nearly at rest."""
        return _scattered(key, angle=0.0, spread=0.05)

    def terminated(self, data: mjx.Data) -> Bool[Array, ""]:
        """Returns whether the pole leans by more than 0.5 rad."""
        return jnp.cos(data.qpos[1]) < math.cos(0.5)


def _scattered(key: Array, angle: float, spread: float) -> tuple[Float[Array, "2"], Float[Array, "2"]]:
    """Returns positions around the middle of the rail and `angle`, and small velocities."""
    position_key, velocity_key = jax.random.split(key)
    offsets = jax.random.uniform(position_key, (2,), minval=-1.0, maxval=1.0)
    return jnp.array([0.0, angle]) + jnp.array([0.1, spread]) * offsets, 0.01 * jax.random.normal(velocity_key, (2,))
