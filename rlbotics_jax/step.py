"""The train step: one pure function from TrainState to TrainState, and its two halves, collect and learn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from rlbotics_jax.algorithms.base import Algorithm
from rlbotics_jax.algorithms.settings import Hyperparameters
from rlbotics_jax.collectives import fold_in_device, psum
from rlbotics_jax.counters import add, zero_count
from rlbotics_jax.envs.vectorize import VectorizedEnvironment
from rlbotics_jax.episodes import empty_window, names_best, recent_means, record
from rlbotics_jax.rollout import Rollout, collect, first_invalid
from rlbotics_jax.types import BestPolicy, Metrics, PerEnvironmentState, SharedState, TrainState

Init = Callable[[Array, Hyperparameters], TrainState]
Step = Callable[[TrainState], tuple[TrainState, Metrics]]


def make_train_step(
    algorithm: Algorithm, environment: VectorizedEnvironment, num_steps_per_env: int, axis_name: str | None = None
) -> tuple[Init, Step]:
    """Returns the two pure functions of a training run.

        init(key, hyperparameters) -> state
        train_step(state) -> (state, metrics)

    One step collects `num_steps_per_env` steps of every environment and learns from them. Both functions can be
    jitted; `train_step` can be looped, its state donated, and vmapped over seeds. Several seeds are initialised one by
    one: `jit(vmap(init))` with orthogonal initialisation hangs on jaxlib 0.10.2.

    Args:
        algorithm: from `make_algorithm`.
        environment: from `vectorize`; with several devices, the environments of one device.
        num_steps_per_env: T.
        axis_name: the device axis, e.g. "devices" under `jax.pmap(train_step, axis_name="devices")`. Gradients and all
            statistics are then reduced over it, and what a run shares stays equal on all devices to the bit.
    """
    algorithm = dataclasses.replace(algorithm, axis_name=axis_name)

    def init(key: Array, hyperparameters: Hyperparameters) -> TrainState:
        environment_key, algorithm_key, run_key = jax.random.split(key, 3)
        environment_state = environment.reset(environment_key)
        observations = environment_state.observations
        algorithm_state = algorithm.init(algorithm_key, observations, hyperparameters)
        num_envs = environment.num_envs
        shared = SharedState(
            algorithm=algorithm_state,
            configured=hyperparameters,
            iteration=jnp.int32(0),
            env_steps=zero_count(),
            episodes=empty_window(),
            best=BestPolicy(algorithm.policy_parameters(algorithm_state), jnp.float32(-jnp.inf), jnp.int32(0)),
            key=run_key,
        )
        per_environment = PerEnvironmentState(
            environment=environment_state,
            observations=observations,
            memory=algorithm.initial_memory(num_envs),
            episode_return=jnp.zeros(num_envs, jnp.float32),
            episode_length=jnp.zeros(num_envs, jnp.uint32),
            episode_is_whole=environment_state.episode_step == 0,
        )
        # The state is donated, and a buffer can be donated only once; several leaves start as the same array.
        return jax.tree.map(jnp.copy, _strongly_typed(TrainState(shared, per_environment)))

    def train_step(state: TrainState) -> tuple[TrainState, Metrics]:
        key, iteration_key = jax.random.split(state.shared.key)
        collect_key, update_key = jax.random.split(fold_in_device(iteration_key, axis_name))
        per_environment, rollout = collect(
            algorithm, state.shared.algorithm, environment, state.per_environment, num_steps_per_env, collect_key
        )
        shared, metrics = learn(algorithm, state.shared.replace(key=key), rollout, update_key)
        return _strongly_typed(TrainState(shared, per_environment)), metrics

    return init, train_step


def learn(algorithm: Algorithm, shared: SharedState, rollout: Rollout, key: Array) -> tuple[SharedState, Metrics]:
    """Updates the algorithm on a rollout, and the run's counters, episode window and best policy.

    A score belongs to the parameters that acted, so the best policy is taken from before the update.

    Returns:
        The new shared state, and the iteration's metrics: scalars by name, and `env_steps`, the exact `Count` so far.
    """
    axis_name = algorithm.axis_name
    statistics = psum(rollout.statistics, axis_name)
    episodes = record(shared.episodes, shared.iteration, statistics.episodes)
    means = recent_means(episodes, shared.iteration)
    invalid_step, invalid_environment = first_invalid(rollout, axis_name)
    acted = BestPolicy(algorithm.policy_parameters(shared.algorithm), means.mean_return, shared.iteration + 1)
    improved = names_best(means, statistics.episodes, shared.best.score)
    best = jax.tree.map(lambda new, old: jnp.where(improved, new, old), acted, shared.best)

    algorithm_state, update_metrics = algorithm.update(
        shared.algorithm,
        rollout.transitions,
        rollout.first_memory,
        rollout.last_observations,
        rollout.last_memory,
        key,
    )
    env_steps = add(shared.env_steps, statistics.env_steps)
    logged = {
        name if "/" in name else f"Environment/{name}": _mean(total, statistics.log_counts[name])
        for name, total in statistics.log.items()
    }
    learned = {name if "/" in name else f"Loss/{name}": value for name, value in update_metrics.items()}
    for name, value in learned.items():
        if jnp.shape(value) != ():
            raise ValueError(f"{type(algorithm).__name__}.update returns {name} of shape {value.shape}; log scalars.")
    metrics = {
        "Episodes/mean_reward": means.mean_return,
        "Episodes/mean_length": means.mean_length,
        "Episodes/count": means.count,
        "Diagnostics/invalid_steps": statistics.invalid_steps,
        "NonFinite/step": invalid_step,
        "NonFinite/environment": invalid_environment,
        **{f"NonFinite/{source}": count for source, count in statistics.non_finite.items()},
        "env_steps": env_steps,
    }
    if taken := logged.keys() & (metrics.keys() | learned.keys()):
        raise ValueError(
            f"The environment logs {', '.join(sorted(taken))}, names of the library's own metrics; rename."
        )
    metrics |= logged | learned
    shared = shared.replace(
        algorithm=algorithm_state,
        iteration=shared.iteration + 1,
        env_steps=env_steps,
        episodes=episodes,
        best=best,
    )
    return shared, metrics


def _mean(total: Float[Array, ""], count: Float[Array, ""]) -> Float[Array, ""]:
    """Returns the mean; NaN, which the log leaves out, where there is nothing to average."""
    return jnp.where(count > 0, total / jnp.maximum(count, 1.0), jnp.nan)


def make_block(train_step: Step, max_iterations: int) -> Callable[[TrainState, Array], tuple[TrainState, Metrics]]:
    """Returns block(state, count): `count` train steps in one program, `count` traced, so that it compiles once.

    The metrics come back stacked to (max_iterations,), of which the first `count` are filled. To be jitted with the
    state donated.
    """
    # Jitted inside, so that measuring the metrics' shapes and the loop's body share one trace.
    train_step = jax.jit(train_step)

    def block(state: TrainState, count: Array) -> tuple[TrainState, Metrics]:
        _, shapes = jax.eval_shape(train_step, state)
        buffers = jax.tree.map(lambda leaf: jnp.zeros((max_iterations, *leaf.shape), leaf.dtype), shapes)

        def iteration(i: Array, carry: tuple[TrainState, Metrics]) -> tuple[TrainState, Metrics]:
            state, buffers = carry
            state, metrics = train_step(state)
            # Not .at[i].set: scatters take longer to compile.
            return state, jax.tree.map(lambda b, v: jax.lax.dynamic_update_index_in_dim(b, v, i, 0), buffers, metrics)

        return jax.lax.fori_loop(0, count, iteration, (state, buffers))

    return block


def reconfigure(state: TrainState, hyperparameters: Hyperparameters) -> TrainState:
    """Returns a state that continues under a config's hyperparameters.

    A value that the config changed since it was last applied takes effect; one that it left alone stays what training
    made of it (an adapted learning rate, an annealed coefficient).
    """
    shared = state.shared
    current = {
        name: jnp.where(value == shared.configured[name], shared.algorithm.hyperparameters[name], value)
        for name, value in hyperparameters.items()
    }
    shared = shared.replace(algorithm=shared.algorithm.replace(hyperparameters=current), configured=hyperparameters)
    return state.replace(shared=shared)


def _strongly_typed(tree: PyTree) -> PyTree:
    """Returns the tree without weak types, which would compile the step a second time."""
    return jax.tree.map(lambda leaf: leaf if _is_key(leaf) else jax.lax.convert_element_type(leaf, leaf.dtype), tree)


def _is_key(leaf: Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
