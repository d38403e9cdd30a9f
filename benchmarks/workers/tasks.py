"""The tasks of benchmarks/mjx.py and startup.py: the library's own by name, and MuJoCo Playground's cart-pole."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlbotics_jax.config import Config, load_config
from rlbotics_jax.envs import State

PLAYGROUND = "PlaygroundCartpoleBalance"


def task_config(name: str) -> Config:
    """Returns the config of a task; Playground's is trained with CartpoleBalance's."""
    if name != PLAYGROUND:
        return load_config(name)
    config = load_config("CartpoleBalance")
    return config.replace(env=config.env.replace(id=f"{__name__}:{PLAYGROUND}"))


class PlaygroundCartpoleBalance:
    """Playground's CartpoleBalance as this library sees an environment; needs the package `playground`."""

    num_actions = 1
    action_low = (-1.0,)
    action_high = (1.0,)
    dt = 0.01
    episode_length = 1000

    def __init__(self) -> None:
        from mujoco_playground import registry

        self._environment = registry.load("CartpoleBalance", config_overrides={"impl": "jax"})

    def reset(self, key):
        is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        return self._wrapped(self._environment.reset(jax.random.key_data(key) if is_typed else key))

    def step(self, state, action):
        # It writes into the metrics of the state that it is given.
        before = state.data.replace(metrics=dict(state.data.metrics))
        return self._wrapped(self._environment.step(before, action))

    def _wrapped(self, state):
        return State(
            data=state,
            observations={"observation": state.obs},
            reward=state.reward,
            terminated=state.done > 0,
            metrics={},
        )
