"""RLBotics' section `runner` and this library's config, both ways."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlbotics_jax.build import resolve_config
from rlbotics_jax.config import Config, ConfigError, PPOConfig, from_dict, load_config
from rlbotics_jax.envs import VectorizedEnvironment
from rlbotics_jax.registry import import_path
from rlbotics_jax.runs import CONFIG_FILE

_UNKNOWN_THERE = frozenset(
    {
        "eval_interval",
        "eval_episodes",
        "early_stopping_threshold",
        "early_stopping_patience",
        "init_from",
        "load",
        "wandb_project",
        "min_learning_rate",
        "max_learning_rate",
        "max_rejected_updates",
        "obs_clip",
        "image_normalization",
    }
)
"""Keys that RLBotics 0.1 has in no section."""


def config_beside(path: str | os.PathLike, env: Any = None) -> Config:
    """Returns the config that lies beside a checkpoint as config.json, where RLBotics' runner writes it.

    RLBotics writes no section `env`: `env` then gives the task and the number of environments. Whatever `std_type` says
    there, it is log here, because it is the logarithm that RLBotics trains.

    Args:
        path: the checkpoint.
        env: a vectorised environment; not needed where the file has the section.

    Raises:
        FileNotFoundError: there is no config.json.
        ConfigError: it cannot be used, or lacks the section `env` and none is given.
    """
    file = Path(path).parent / CONFIG_FILE
    if not file.is_file():
        raise FileNotFoundError(f"There is no {CONFIG_FILE} beside '{path}': give the config.")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        values = {}
    if "obs_groups" not in values:  # it is a whole config, or load_config tells what is wrong with it
        return load_config(file)
    if not isinstance(env, VectorizedEnvironment):
        problem = "RLBotics writes no such section: give a config that has one, or env=vectorize(environment, num_envs)"
        raise ConfigError("env", problem, str(file))
    section = {"id": import_path(type(env.environment)), "num_envs": env.num_envs}
    try:
        config = from_dict({"env": section, "runner": values})
    except ConfigError as error:
        raise error.in_file(str(file)) from error.__cause__
    actor = config.runner.actor
    actor = actor.replace(distribution_cfg=actor.distribution_cfg.replace(std_type="log"))
    return config.replace(runner=config.runner.replace(actor=actor))


def rlbotics_runner_section(config: Any) -> dict[str, Any]:
    """Returns the section `runner` as RLBotics reads it: `OnPolicyRunnerConfig.from_dict(section)`.

    With it RLBotics goes on from what `save_torch_checkpoint` writes. Keys that RLBotics has not are left out, also
    those of a class of one's own, in whose place stands the library's; `resume` is null, because it names a run of this
    library; `lrelu` is called leaky_relu. A mirror function that `symmetry_cfg` names must be one of torch there.

    Args:
        config: as `train` takes it.
    """
    section = _known(resolve_config(config).runner.to_dict())
    known = {field.name for field in dataclasses.fields(PPOConfig)}
    section["algorithm"] = {key: value for key, value in section["algorithm"].items() if key in known}
    section["algorithm"]["class_name"] = "PPO"
    section["logger"]["resume"] = None
    return section


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a section, and those in it, with the keys and names that RLBotics knows."""
    known = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            known[key] = _known(value)
        elif key == "class_name":
            known[key] = re.split("[.:]", value)[-1]
        elif key not in _UNKNOWN_THERE:
            known[key] = "leaky_relu" if (key, value) == ("activation", "lrelu") else value
    return known
