"""Builds what a config describes, cheap checks first: the environments, the algorithm, and the state to start from."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from rlbotics_jax.algorithms import hyperparameters_of, make_algorithm
from rlbotics_jax.algorithms.base import Algorithm
from rlbotics_jax.checkpoint import Checkpoints
from rlbotics_jax.compatibility import check_given_state
from rlbotics_jax.config import Config, ConfigError, from_dict, load_config
from rlbotics_jax.envs import (
    EnvironmentSpec,
    VectorizedEnvironment,
    check_environment,
    environment_spec,
    make_environment,
    vectorize,
)
from rlbotics_jax.program import Program
from rlbotics_jax.resume import Resume
from rlbotics_jax.step import reconfigure
from rlbotics_jax.transfer import Transfer
from rlbotics_jax.types import TrainState


def resolve_config(config: Any) -> Config:
    """Returns a Config from a Config, a mapping, a path or a shipped name."""
    if isinstance(config, Config):
        return config
    return from_dict(config) if isinstance(config, Mapping) else load_config(config)


def with_seed(config: Config) -> Config:
    """Returns the config with a drawn seed in place of null."""
    if config.runner.seed is not None:
        return config
    return config.replace(runner=config.runner.replace(seed=secrets.randbits(32)))


def build_environment(config: Config, env: Any) -> tuple[Config, VectorizedEnvironment]:
    """Returns the vectorised environment, checked: `env` if given, else the one that `config.env` names.

    The config comes back too: where `env` is vectorised already, its settings are what a run must record.

    Raises:
        ConfigError: an unknown task, or keyword arguments that do not fit.
        ValueError: an environment that breaks the protocol, with the leaf that is wrong.
    """
    environment = make_environment(config.env) if env is None else env
    check_environment(environment.environment if isinstance(environment, VectorizedEnvironment) else environment)
    if isinstance(environment, VectorizedEnvironment):
        vectorized = environment
        section = config.env.replace(
            num_envs=vectorized.num_envs,
            clip_actions=vectorized.action_mapping.clip,
            init_at_random_ep_len=vectorized.init_at_random_ep_len,
            full_reset=vectorized.full_reset,
        )
        config = config.replace(env=section)
    else:
        vectorized = vectorize(
            environment,
            config.env.num_envs,
            clip_actions=config.env.clip_actions,
            init_at_random_ep_len=config.env.init_at_random_ep_len,
            full_reset=config.env.full_reset,
        )
    return config, vectorized


def build_algorithm(config: Config, environment: VectorizedEnvironment) -> tuple[Algorithm, EnvironmentSpec]:
    """Returns the algorithm for an environment, and the environment's spec.

    Raises:
        ConfigError: an observation group that the environment does not give, or that a model cannot read, or a feature
            that is not built in this version.
    """
    spec, runner = environment_spec(environment.environment), config.runner
    for name, groups in runner.obs_groups.items():
        for i, group in enumerate(groups):
            if group not in spec.observation_shapes:
                raise ConfigError(
                    f"runner.obs_groups.{name}[{i}]",
                    f"the environment gives no group {group!r}; allowed are {', '.join(spec.observation_shapes)}",
                )
    try:
        algorithm = make_algorithm(runner, environment.environment.num_actions)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError("runner", str(error)) from error
    if hasattr(algorithm, "check_observations"):
        algorithm.check_observations(spec.observation_shapes)
    return algorithm, spec


def initial_state(
    config: Config,
    program: Program,
    state: TrainState | None = None,
    resume: Resume | None = None,
    transfer: Transfer | None = None,
) -> tuple[TrainState, float]:
    """Returns the state to start from and the seconds already trained: given, resumed, or fresh.

    A state that continues keeps what training made of its hyperparameters, save those that the config changed. A fresh
    one takes over what `transfer` says.

    Raises:
        ConfigError: the given state, or the checkpoint, is one of other sizes.
        CheckpointError: the checkpoint cannot be read.
    """
    hyperparameters, seconds = hyperparameters_of(config.runner.algorithm), 0.0
    if state is not None:
        check_given_state(state, state_like(config, program))
        state = reconfigure(jax.tree.map(jnp.copy, state), hyperparameters)
    elif resume is not None:
        checkpoints = Checkpoints(resume.run)
        state = reconfigure(checkpoints.state(resume.iteration, state_like(config, program)), hyperparameters)
        seconds = checkpoints.summary(resume.iteration)["wall_time"]
    else:
        state = program.init(jax.random.key(config.runner.seed), hyperparameters)
        if transfer is not None:
            state = transfer.apply(state)
    # Committed to its device wherever it comes from: jit compiles once more for a state that is not.
    return jax.device_put(state, jax.config.jax_default_device or jax.devices()[0]), seconds


def state_like(config: Config, program: Program) -> TrainState:
    """Returns the initial state with abstract leaves: shapes and dtypes. Nothing is computed."""
    return jax.eval_shape(program.init, jax.random.key(0), hyperparameters_of(config.runner.algorithm))
