"""Evaluation: the deterministic policy in fresh environments, one whole episode in each."""

from __future__ import annotations

import errno
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from rlbotics_jax.algorithms.base import Algorithm
from rlbotics_jax.atomic import replacing
from rlbotics_jax.compilation import jit
from rlbotics_jax.envs.base import Environment
from rlbotics_jax.envs.make import make_environment
from rlbotics_jax.envs.vectorize import VectorizedEnvironment, vectorize
from rlbotics_jax.policy import TrainedPolicy
from rlbotics_jax.registry import import_path
from rlbotics_jax.runs import load_policy, recorded_environment, run_config

EVALUATION_FILE = "evaluation.json"


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
    returns, lengths = _episodes(policy.algorithm, vectorized)(policy.parameters, episode_key(seed))
    return {"returns": np.asarray(returns), "lengths": np.asarray(lengths)}


def episode_key(seed: int) -> Array:
    """Returns the key of evaluated episodes, which is not that of a training run with the same seed."""
    return jax.random.fold_in(jax.random.key(seed), 0xE7A1)


def summarize(results: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Returns mean, std, min and max of the returns (`mean_reward`, ...), and the mean length, of `evaluate`."""
    returns = results["returns"].astype(np.float64)
    return {
        "mean_reward": float(returns.mean()),
        "std_reward": float(returns.std()),
        "min_reward": float(returns.min()),
        "max_reward": float(returns.max()),
        "mean_length": float(results["lengths"].mean()),
    }


def load_run_environment(run: str | Path) -> Environment:
    """Returns the environment that a run's config names.

    Raises:
        ValueError: the run trained another, an object given to `train`.
    """
    environment = make_environment(run_config(run).env)
    trained, named = recorded_environment(run).get("class"), import_path(type(environment))
    if trained != named:
        raise ValueError(
            f"'{run}' trained {trained}, an object given to train, while its config names {named}; call "
            "rlbotics_jax.evaluate(load_policy(run), environment) with the object."
        )
    return environment


def evaluate_run(
    run: str | Path, num_episodes: int = 20, seed: int = 0, which: str | None = None, output: str | Path | None = None
) -> dict[str, Any]:
    """Evaluates a run's policy in the environment that its config names, and writes what came out as JSON.

    Args:
        run: the run directory.
        num_episodes, seed: as `evaluate`.
        which: "best", "last", or None for the best where there is one.
        output: the file; `evaluation.json` in the run by default.

    Returns:
        What the file holds: the policy and its iteration, the seed, `summarize`'s figures, and each episode's return
        and length.
    """
    output = Path(output or Path(run) / EVALUATION_FILE)
    if output.is_dir():
        raise IsADirectoryError(errno.EISDIR, "A folder stands where the figures are to be written", str(output))
    output.parent.mkdir(parents=True, exist_ok=True)  # before anything is simulated
    environment, policy = load_run_environment(run), load_policy(run, which)
    results = evaluate(policy, environment, num_episodes, seed)
    report = {
        "task": policy.metadata["task"],
        "policy": policy.metadata["which"],
        "iteration": policy.metadata["iteration"],
        "episodes": num_episodes,
        "seed": seed,
        **summarize(results),
        "returns": results["returns"].tolist(),
        "lengths": results["lengths"].tolist(),
    }
    with replacing(output) as temporary:
        temporary.write_text(json.dumps(report, indent=2) + "\n")
    return report


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
