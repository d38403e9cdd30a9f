"""Builds what a config describes, cheap checks first: the environments, the algorithm, and the state to start from."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from rlbotics_jax.algorithms import hyperparameters_of, make_algorithm
from rlbotics_jax.algorithms.base import Algorithm
from rlbotics_jax.algorithms.settings import Hyperparameters
from rlbotics_jax.checkpoint import Checkpoints
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
from rlbotics_jax.step import reconfigure
from rlbotics_jax.types import TrainState


def resolve_config(config: Any) -> Config:
    """Returns a Config from a Config, a mapping, a path or a shipped name; a seed of null is drawn here."""
    if not isinstance(config, Config):
        config = from_dict(config) if isinstance(config, Mapping) else load_config(config)
    if config.runner.seed is None:
        config = config.replace(runner=config.runner.replace(seed=secrets.randbits(32)))
    return config


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
        ConfigError: an observation group that the environment does not give, or a feature that is not built in this
            version.
    """
    spec, runner = environment_spec(environment.environment), config.runner
    for name, groups in runner.obs_groups.items():
        for i, group in enumerate(groups):
            if group not in spec.observation_sizes:
                raise ConfigError(
                    f"runner.obs_groups.{name}[{i}]",
                    f"the environment gives no group {group!r}; allowed are {', '.join(spec.observation_sizes)}",
                )
    try:
        return make_algorithm(runner, environment.environment.num_actions), spec
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError("runner", str(error)) from error


def initial_state(
    config: Config, program: Program, state: TrainState | None, checkpoint: tuple[Path, int] | None
) -> tuple[TrainState, float]:
    """Returns the state to start from and the seconds already trained: given, restored from a checkpoint, or fresh.

    A state that continues keeps what training made of its hyperparameters, save those that the config changed.

    Raises:
        ConfigError: the checkpoint holds a run of other sizes.
    """
    hyperparameters, seconds = hyperparameters_of(config.runner.algorithm), 0.0
    if state is not None:
        _check_fits(state, jax.eval_shape(program.init, jax.random.key(0), hyperparameters))
        state = reconfigure(jax.tree.map(jnp.copy, state), hyperparameters)
    elif checkpoint is not None:
        state, seconds = _restored(program, hyperparameters, *checkpoint)
    else:
        state = program.init(jax.random.key(config.runner.seed), hyperparameters)
    # Committed to its device wherever it comes from: jit compiles once more for a state that is not.
    return jax.device_put(state, jax.config.jax_default_device or jax.devices()[0]), seconds


def _check_fits(state: TrainState, like: TrainState) -> None:
    """Raises where a given state is not one of this config's program, naming the first leaf that differs."""
    given, wanted = (
        {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (state, like)
    )
    for path in [*wanted, *(path for path in given if path not in wanted)]:
        shapes = [tree[path].shape if path in tree else "missing" for tree in (given, wanted)]
        if shapes[0] != shapes[1]:
            raise ConfigError(
                "state",
                f"the state given to train does not fit this config: {path.lstrip('.')} is {shapes[0]}, needed is "
                f"{shapes[1]} (networks, num_envs, algorithm and task must be the same)",
            )


def _restored(
    program: Program, hyperparameters: Hyperparameters, run: Path, iteration: int
) -> tuple[TrainState, float]:
    """Returns a checkpoint's state under these hyperparameters, and the seconds it was trained."""
    like = jax.eval_shape(program.init, jax.random.key(0), hyperparameters)
    checkpoints = Checkpoints(run)
    try:
        state, seconds = checkpoints.state(iteration, like), checkpoints.summary(iteration)["wall_time"]
    except ValueError as error:
        raise ConfigError(
            "runner.logger.resume",
            f"the state in '{run}' does not fit this config (networks, num_envs and task must be the same): {error}",
        ) from error
    finally:
        checkpoints.close()
    return reconfigure(state, hyperparameters), seconds
