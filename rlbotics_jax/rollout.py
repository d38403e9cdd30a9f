"""Collection: a scan of act, environment step and process_env_step over T steps of N environments."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, PyTree, UInt32

from rlbotics_jax.algorithms.base import Algorithm
from rlbotics_jax.collectives import device_index, pmin
from rlbotics_jax.envs.vectorize import VectorizedEnvironment
from rlbotics_jax.episodes import EpisodeSums
from rlbotics_jax.types import Observations, PerEnvironmentState, Timestep


@struct.dataclass
class RolloutStatistics:
    """What a rollout leaves for the log: sums over its steps and environments.

    Attributes:
        episodes: the episodes that ended.
        env_steps: valid steps.
        invalid_steps: the others.
        log, log_counts: sums of the environment's metrics over the valid steps in which they occur, and how many those
            are: where a metric is NaN it does not occur.
        non_finite: by source, the steps at which it was not finite.
        invalid_step, invalid_environment: where the first invalid step was: the step of the rollout, from 0, and the
            lowest index of an environment that had one then; -1 where all were valid.
    """

    episodes: EpisodeSums
    env_steps: UInt32[Array, ""]
    invalid_steps: Float[Array, ""]
    log: dict[str, Float[Array, ""]]
    log_counts: dict[str, Float[Array, ""]]
    non_finite: dict[str, Float[Array, ""]]
    invalid_step: Int[Array, ""]
    invalid_environment: Int[Array, ""]


@struct.dataclass
class Rollout:
    """T steps of N environments: the algorithm's transitions, what surrounds them, and their statistics."""

    transitions: PyTree
    first_memory: PyTree
    last_observations: Observations
    last_memory: PyTree
    statistics: RolloutStatistics


def collect(
    algorithm: Algorithm,
    algorithm_state: PyTree,
    environment: VectorizedEnvironment,
    state: PerEnvironmentState,
    num_steps: int,
    key: Array,
) -> tuple[PerEnvironmentState, Rollout]:
    """Runs the policy for `num_steps` steps.

    Returns:
        The environments afterwards, and the rollout, whose transitions lead with (T, N).
    """
    restart_key, scan_key = jax.random.split(key)
    state = state.replace(environment=environment.begin_rollout(state.environment, restart_key))
    first_memory = state.memory

    def step(state: PerEnvironmentState, step_keys: Array):
        act_key, process_key = step_keys
        actions, memory, record = algorithm.act(algorithm_state, state.observations, state.memory, act_key)
        environment_state, timestep = environment.step(state.environment, actions)
        memory, transition = algorithm.process_env_step(algorithm_state, memory, record, timestep, process_key)
        state, statistics = count_step(state.replace(memory=memory), timestep)
        return state.replace(environment=environment_state), (transition, statistics)

    state, (transitions, statistics) = jax.lax.scan(step, state, jax.random.split(scan_key, (num_steps, 2)))
    sums = jax.tree.map(lambda per_step: jnp.sum(per_step, axis=0, dtype=per_step.dtype), statistics)
    first = jnp.argmax(statistics.invalid_step >= 0).astype(jnp.int32)
    return state, Rollout(
        transitions=transitions,
        first_memory=first_memory,
        last_observations=state.observations,
        last_memory=state.memory,
        statistics=sums.replace(
            invalid_step=jnp.where(statistics.invalid_step[first] >= 0, first, -1),
            invalid_environment=statistics.invalid_environment[first],
        ),
    )


def count_step(state: PerEnvironmentState, timestep: Timestep) -> tuple[PerEnvironmentState, RolloutStatistics]:
    """Adds one step to the running episodes; returns them (reset where done) and the sums over the N rows.

    Invalid rows add neither reward nor length. An episode that ended in one, or that did not begin at its beginning, is
    not counted.
    """
    valid = timestep.valid
    episode_return = state.episode_return + jnp.where(valid, timestep.rewards, 0.0)
    episode_length = state.episode_length + valid.astype(jnp.uint32)
    done = timestep.terminated | timestep.truncated
    ended = (done & valid & state.episode_is_whole).astype(jnp.float32)
    all_valid = jnp.all(valid)
    occurs = {name: valid & ~jnp.isnan(values) for name, values in timestep.log.items()}
    statistics = RolloutStatistics(
        episodes=EpisodeSums(jnp.sum(ended), jnp.sum(ended * episode_return), jnp.sum(ended * episode_length)),
        env_steps=jnp.sum(valid, dtype=jnp.uint32),
        invalid_steps=jnp.sum(~valid, dtype=jnp.float32),
        log={name: jnp.sum(timestep.log[name], where=rows) for name, rows in occurs.items()},
        log_counts={name: jnp.sum(rows, dtype=jnp.float32) for name, rows in occurs.items()},
        non_finite={source: jnp.sum(rows, dtype=jnp.float32) for source, rows in timestep.non_finite.items()},
        invalid_step=jnp.where(all_valid, jnp.int32(-1), 0),
        invalid_environment=jnp.where(all_valid, -1, jnp.argmin(valid).astype(jnp.int32)),
    )
    state = state.replace(
        observations=timestep.observations,
        episode_return=jnp.where(done, 0.0, episode_return),
        episode_length=jnp.where(done, 0, episode_length),
        episode_is_whole=state.episode_is_whole | done,
    )
    return state, statistics


def first_invalid(rollout: Rollout, axis_name: str | None) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """Returns the first step that was invalid on any device, and the lowest environment then; -1 where all were valid.

    Environments are numbered over all devices.
    """
    statistics, never = rollout.statistics, jnp.iinfo(jnp.int32).max
    num_envs = jax.tree.leaves(rollout.last_observations)[0].shape[0]
    step = jnp.where(statistics.invalid_step < 0, never, statistics.invalid_step)
    first = pmin(step, axis_name)
    environment = statistics.invalid_environment + num_envs * device_index(axis_name)
    environment = pmin(jnp.where(step == first, environment, never), axis_name)
    return jnp.where(first == never, -1, first), jnp.where(first == never, -1, environment)
