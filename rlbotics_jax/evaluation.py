"""Evaluation: the deterministic policy in fresh environments, one whole episode in each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from rlbotics_jax.algorithms.base import Algorithm
from rlbotics_jax.compilation import jit
from rlbotics_jax.envs.base import Environment
from rlbotics_jax.envs.make import make_environment
from rlbotics_jax.envs.vectorize import VectorizedEnvironment, vectorize
from rlbotics_jax.policy import TrainedPolicy
from rlbotics_jax.registry import import_path


def evaluate(
    policy: TrainedPolicy, environment: Environment, num_episodes: int = 20, seed: int = 0
) -> dict[str, np.ndarray]:
    """Runs `num_episodes` episodes side by side.

    Raises:
        ValueError: fewer than one episode.

    Returns:
        `returns`, the undiscounted sums of rewards, and `lengths`, the numbers of steps, each (num_episodes,).
    """
    if num_episodes < 1:
        raise ValueError(f"num_episodes is {num_episodes}; allowed: 1 or more.")
    vectorized = vectorize(environment, num_episodes, clip_actions=policy.action_mapping.clip)
    returns, lengths = _episodes(policy.algorithm, vectorized)(policy.parameters, jax.random.key(seed))
    return {"returns": np.asarray(returns), "lengths": np.asarray(lengths)}


def evaluate_run(run: str | Path, num_episodes: int = 20, seed: int = 0) -> dict[str, np.ndarray]:
    """Runs the policy of a run directory in the environment that its config names; see `evaluate`."""
    from rlbotics_jax.runs import load_policy, recorded_environment, run_config

    environment = make_environment(run_config(run).env)
    trained, named = recorded_environment(run).get("class"), import_path(type(environment))
    if trained != named:
        raise ValueError(
            f"'{run}' trained {trained}, an object given to train, while its config names {named}; call "
            "rlbotics_jax.evaluate(load_policy(run), environment) with the object."
        )
    return evaluate(load_policy(run), environment, num_episodes, seed)


@functools.lru_cache(maxsize=8)
def _episodes(algorithm: Algorithm, environment: VectorizedEnvironment) -> Callable[[PyTree, Array], tuple]:
    """Returns the compiled function (parameters, key) -> (returns, lengths)."""

    def run(parameters: PyTree, key: Array) -> tuple[Array, Array]:
        act = algorithm.policy(parameters)

        def step(carry, _):
            state, running, total, length = carry
            state, timestep = environment.step(state, act(state.observations))
            total = total + jnp.where(running, timestep.rewards, 0.0)
            length = length + running.astype(jnp.int32)
            running = running & ~(timestep.terminated | timestep.truncated)
            return (state, running, total, length), None

        num_envs = environment.num_envs
        carry = (
            environment.reset(key),
            jnp.ones(num_envs, bool),
            jnp.zeros(num_envs),
            jnp.zeros(num_envs, jnp.int32),
        )
        (_, _, total, length), _ = jax.lax.scan(step, carry, None, length=environment.environment.episode_length)
        return total, length

    return jit(run)
