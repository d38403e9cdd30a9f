"""Whether a run can go on under a config: what its state was shaped by must be the same."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

from rlbotics_jax.checkpoint import Checkpoints
from rlbotics_jax.config import Config, ConfigError
from rlbotics_jax.config.errors import shown
from rlbotics_jax.envs.spec import EnvironmentSpec
from rlbotics_jax.packing import difference, layout_of
from rlbotics_jax.registry import ALGORITHMS, DISTRIBUTIONS, MODELS, import_path
from rlbotics_jax.resume import KEY, Resume
from rlbotics_jax.runs import recorded_config
from rlbotics_jax.types import TrainState

_CLASSES = {
    "runner.algorithm.class_name": ALGORITHMS,
    "runner.actor.class_name": MODELS,
    "runner.critic.class_name": MODELS,
    "runner.actor.distribution_cfg.class_name": DISTRIBUTIONS,
}
_MEANING = (*_CLASSES, "runner.algorithm.optimizer", "runner.actor.activation", "runner.critic.activation")
"""Keys under another value of which a state means something else, even where its shapes are the same; so are the
observation sets."""

_SHAPES = (
    "env.num_envs",
    "runner.actor.hidden_dims",
    "runner.critic.hidden_dims",
    "runner.actor.obs_normalization",
    "runner.critic.obs_normalization",
    "runner.actor.image_normalization",
    "runner.critic.image_normalization",
    "runner.actor.cnn_cfg",
    "runner.critic.cnn_cfg",
    "runner.algorithm.share_cnn_encoders",
    "runner.actor.distribution_cfg.std_type",
)
"""Keys that explain a state of other shapes."""

_ABSENT = object()


def check_fits(resume: Resume, config: Config, spec: EnvironmentSpec, like: TrainState) -> None:
    """Raises where a checkpoint's state is not one of this config, before anything is written.

    Args:
        resume: the checkpoint.
        config: the whole config.
        spec: of this config's environment.
        like: this config's state; abstract leaves will do.

    Raises:
        ConfigError: the key, or the part of the state, that differs, with both values.

    Warns where the environment's keyword arguments differ.
    """
    where = f"the checkpoint '{resume.checkpoint}'"
    mine, theirs = config.to_dict(), recorded_config(resume.run)
    for key in (*_MEANING, *(f"runner.obs_groups.{name}" for name in config.runner.obs_groups)):
        _compare(key, mine, theirs, where)
    if both := _both_values("env.kwargs", mine, theirs, where):  # a curriculum, or a mistake
        warnings.warn(f"env.kwargs: {both}; the run goes on with the former.", stacklevel=2)
    found = difference(Checkpoints(resume.run).layout(resume.iteration), layout_of(like))
    if found is None:
        return
    for key in _SHAPES:
        _compare(key, mine, theirs, where)
    if "environment" in theirs:
        _compare_shapes(EnvironmentSpec.from_dict(theirs["environment"]), spec, where)
    raise ConfigError(KEY, misfit(where, found))


def check_given_state(state: TrainState, like: TrainState) -> None:
    """Raises where a state given to `train` is not one of this config's program, with the first leaf that differs."""
    if found := difference(layout_of(state), layout_of(like)):
        raise ConfigError("state", misfit("the state given to train", found))


def misfit(what: str, found: tuple[str, str, str]) -> str:
    """Returns the sentence for a `packing.difference` of a state and what a config needs."""
    path, there, needed = found
    return (
        f"{what} does not fit this config: {path} is {there}, needed is {needed} (networks, num_envs, algorithm and "
        "task must be the same)"
    )


def _compare(key: str, mine: dict[str, Any], theirs: dict[str, Any], where: str) -> None:
    """Raises where a key has another value than the run recorded; one that either of them lacks is passed over."""
    if both := _both_values(key, mine, theirs, where):
        kept = "environments' states" if key == "env.num_envs" else "networks and its optimizer"
        raise ConfigError(
            key, f"{both}; a resumed run keeps its {kept}; to start a new one from parts of it use runner.init_from"
        )


def _both_values(key: str, mine: dict[str, Any], theirs: dict[str, Any], where: str) -> str | None:
    """Returns the words that tell both values of a key; None where they mean the same, or one is absent."""
    wanted, saved = _value(mine, key), _value(theirs, key)
    if _ABSENT in (wanted, saved) or wanted == saved or _meaning(key, wanted) == _meaning(key, saved):
        return None
    return f"this config has {shown(wanted)}, {where} {shown(saved)}"


def _compare_shapes(saved: EnvironmentSpec, wanted: EnvironmentSpec, where: str) -> None:
    """Raises where observations or actions have other shapes than the run recorded."""
    old, new = (
        {f"the shape of observation group {group!r}": shape for group, shape in spec.observation_shapes.items()}
        | {"the number of actions": spec.num_actions}
        for spec in (saved, wanted)
    )
    for name in {**new, **old}:
        there, here = old.get(name, "missing"), new.get(name, "missing")
        if there != here:
            raise ConfigError(KEY, f"{name} is {there} in {where} and {here} in this config's environment")


def _value(values: Any, key: str) -> Any:
    for name in key.split("."):
        values = values.get(name, _ABSENT) if isinstance(values, dict) else _ABSENT
    return values


def _meaning(key: str, value: Any) -> Any:
    """Returns a value in the one spelling that it is compared in: a class's import path, an activation's long name."""
    if key in _CLASSES:
        with contextlib.suppress(ValueError):  # it cannot be imported any more
            return import_path(_CLASSES[key].resolve(value))
    return "leaky_relu" if key.endswith(".activation") and value == "lrelu" else value
