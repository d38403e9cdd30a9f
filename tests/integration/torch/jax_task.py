"""The same task in JAX, configs for it, and what a state of PPO computes."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from torch_task import EPISODE_LENGTH, NUM_ACTIONS, NUM_ENVS, VECTORS

from rlbotics_jax.algorithms import PPO, make_algorithm
from rlbotics_jax.algorithms.ppo_types import PPOState
from rlbotics_jax.config import Config, from_dict
from rlbotics_jax.envs import State


@dataclasses.dataclass(frozen=True)
class JaxTask:
    """As `torch_task.TorchTask`; `shapes` are items, so that it can be hashed."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...] = tuple(VECTORS.items())
    action_low: tuple[float, ...] | None = None
    action_high: tuple[float, ...] | None = None
    num_actions: int = NUM_ACTIONS
    episode_length: int = EPISODE_LENGTH
    dt: float = 0.02

    def reset(self, key: jax.Array) -> State:
        return self._state(key, jnp.zeros(()))

    def step(self, state: State, action: jax.Array) -> State:
        return self._state(state.data, 1.0 - jnp.mean(jnp.square(action - 0.5)))

    def _state(self, key: jax.Array, reward: jax.Array) -> State:
        key, *keys = jax.random.split(key, 1 + len(self.shapes))
        observations = {
            group: jax.random.uniform(k, shape) if len(shape) == 3 else 2.0 + 3.0 * jax.random.normal(k, shape)
            for k, (group, shape) in zip(keys, self.shapes, strict=True)
        }
        return State(key, observations, reward, jnp.zeros((), bool), {})


def runner_section(groups: dict[str, list[str]], **sections: Any) -> dict[str, Any]:
    """The section `runner` of a config, of keys that RLBotics has too; `sections` are merged into it."""
    runner: dict[str, Any] = {
        "obs_groups": groups,
        "seed": 0,
        "num_learning_iterations": 2,
        "num_steps_per_env": 8,
        "verbose": False,
        "logger": {"log_dir": None},
        "algorithm": {"num_learning_epochs": 2, "num_mini_batches": 2, "learning_rate": 3e-3},
        "actor": {"hidden_dims": [16, 12], "distribution_cfg": {"init_std": 0.7, "std_range": [0.1, 2.0]}},
        "critic": {"hidden_dims": [14]},
    }
    return _merged(runner, copy.deepcopy(sections))


def make_config(groups: dict[str, list[str]], **sections: Any) -> Config:
    """The whole config; arguments as above."""
    return with_env(runner_section(groups, **sections))


def with_env(runner: dict[str, Any]) -> Config:
    """The whole config of a section `runner`."""
    env = {"id": "jax_task:JaxTask", "num_envs": NUM_ENVS, "device": "cpu"}
    return from_dict({"env": env, "runner": runner})


def _merged(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    for key, value in changes.items():
        values[key] = _merged(values.get(key, {}), value) if isinstance(value, dict) else value
    return values


def compute(config: Config, state: PPOState, observations: dict[str, np.ndarray], latent: np.ndarray) -> dict[str, Any]:
    """The distribution's mean and std, log-probabilities of samples before any squashing, deterministic actions, values."""
    ppo: PPO = make_algorithm(config.runner, NUM_ACTIONS)
    groups = {group: jnp.asarray(array) for group, array in observations.items()}
    mean = ppo.actor.apply(state.parameters["actor"]["network"], state.normalizers["actor"], groups)
    distribution = state.parameters["actor"]["distribution"]
    outputs = {
        "mean": mean,
        "std": ppo.distribution.std(distribution),
        "log_prob": ppo.distribution.log_prob(distribution, mean, jnp.asarray(latent)),
        "actions": ppo.distribution.mode(mean),
        "values": ppo._values(state.parameters, state.normalizers, groups),
    }
    return {name: np.asarray(array) for name, array in outputs.items()}


def assert_close(found: np.ndarray, wanted: np.ndarray, name: str = "") -> None:
    """Within 1e-5 of the largest magnitude, or of 1."""
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * max(1.0, np.abs(wanted).max()), err_msg=name)
