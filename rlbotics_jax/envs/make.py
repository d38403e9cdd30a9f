"""Builds the environment that the `env:` section of a config names."""

from __future__ import annotations

from typing import Any

from rlbotics_jax.config import ConfigError
from rlbotics_jax.envs.base import Environment
from rlbotics_jax.registry import ENVIRONMENTS


def make_environment(config: Any) -> Environment:
    """Returns the environment of an EnvConfig: a registered name, or an import path `module:Class` with `kwargs`.

    The modules in `imports` are imported first, so that they can register tasks of their own.

    Raises:
        ConfigError: where the task is unknown, an import fails, the keyword arguments do not fit, or the framework has
            no bridge in this version.
    """
    try:
        config.import_modules()
    except ConfigError as error:
        raise error.under("env") from error
    if config.framework != "mjx" and ":" not in config.id:
        raise ConfigError(
            "env.framework",
            f"{config.framework!r} is read but its bridge is not built in this version; allowed: 'mjx' with a built-in "
            "or registered task, or an import path `module:Class` as env.id",
        )
    try:
        environment_class = ENVIRONMENTS.resolve(config.id)
    except ValueError as error:
        raise ConfigError("env.id", str(error)) from error
    try:
        return environment_class(**config.kwargs)
    except TypeError as error:
        raise ConfigError("env.kwargs", f"{config.kwargs!r} do not fit {config.id}: {error}") from error
