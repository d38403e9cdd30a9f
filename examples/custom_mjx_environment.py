"""Train a task of your own: a motor turns an arm to a random angle and holds it there, against gravity.

A task is one class. It brings a MuJoCo model and answers three questions:

    initial_state   where does an episode start?
    observations    what does the policy see?
    reward          what is wanted? One named term each; every term is logged as Reward/<name>.

and a fourth, `terminated`, where an episode can fail. The rest is the library's: copies by the hundred, the time limit,
restarts, and copies whose physics blew up. In a YAML file such a task is named by `id: my_module:ReachAngle`.

    python examples/custom_mjx_environment.py                     # under a minute on two CPU cores
    python examples/custom_mjx_environment.py --iterations 5
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from rlbotics_jax import evaluate, train
from rlbotics_jax.envs.mjx import MjxEnvironment


@dataclasses.dataclass(frozen=True)
class ReachAngle(MjxEnvironment):
    """Turn the arm to the goal. The goal is a joint too, which nothing moves, so that it is part of the physics."""

    episode_length: int = 200
    substeps: ClassVar[int] = 2
    xml: ClassVar[str] = """
    <mujoco model="reach_angle">
      <option timestep="0.01"><flag contact="disable"/></option>
      <worldbody>
        <body name="arm">
          <joint name="arm" axis="0 1 0" damping="0.1"/>
          <geom type="capsule" fromto="0 0 0 0 0 -0.5" size="0.03" mass="0.5"/>
        </body>
        <body name="goal" gravcomp="1">
          <joint name="goal" axis="0 1 0"/>
          <geom type="sphere" pos="0 0 -0.6" size="0.05" rgba="0.2 0.7 0.3 1"/>
        </body>
      </worldbody>
      <actuator>
        <motor joint="arm" ctrllimited="true" ctrlrange="-3 3"/>
      </actuator>
    </mujoco>
    """

    def initial_state(self, key):
        """Arm and goal at any angle (0 hangs down), at rest."""
        return jax.random.uniform(key, (2,), minval=-jnp.pi, maxval=jnp.pi), jnp.zeros(2)

    def observations(self, data):
        """The arm's angle and what is missing to the goal, both without a jump at 180 degrees, and the arm's speed."""
        angle, missing = data.qpos[0], data.qpos[1] - data.qpos[0]
        features = [jnp.cos(angle), jnp.sin(angle), jnp.cos(missing), jnp.sin(missing), data.qvel[0]]
        return {"observation": jnp.stack(features)}

    def reward(self, data, action):
        """At most 1 a step: be close, be still once there, use little torque."""
        close = 0.5 * (1.0 + jnp.cos(data.qpos[1] - data.qpos[0]))
        still = jnp.exp(-jnp.square(data.qvel[0]))
        return {"close": 0.6 * close, "hold": 0.4 * close**8 * still, "torque": -0.01 * jnp.square(action[0])}


def main(iterations: int = 60) -> None:
    """Trains the task, and prints the return of 20 episodes under the policy it found."""
    config = {
        "env": {"framework": "mjx", "id": "ReachAngle", "num_envs": 256},
        "runner": {
            "num_learning_iterations": iterations,
            "num_steps_per_env": 32,
            "obs_groups": {"actor": ["observation"], "critic": ["observation"]},
            "logger": {"experiment": "reach_angle", "log_interval": 10},
            "actor": {
                "hidden_dims": [64, 64],
                "obs_normalization": True,
                "distribution_cfg": {"class_name": "GaussianDistribution", "std_range": [0.1, 1.0]},
            },
            "critic": {"hidden_dims": [64, 64], "obs_normalization": True},
        },
    }
    environment = ReachAngle()
    result = train(config, environment)
    returns = evaluate(result.policy, environment)["returns"]
    print(f"Return of the policy: {np.mean(returns):.1f} of {environment.episode_length}")


if __name__ == "__main__":
    tyro.cli(main)
