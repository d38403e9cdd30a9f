"""Whether a PyTorch checkpoint fits a config, and whether RLBotics has a place for all that a config's state holds."""

from __future__ import annotations

import re
from collections.abc import Mapping

import jax
import numpy as np

from bridges.torch_layouts import NETWORKS, TorchCheckpoint
from bridges.torch_names import convert_std, entries, std_of, to_torch
from bridges.torch_statistics import statistics_to_torch
from rlbotics_jax.algorithms import PPO
from rlbotics_jax.algorithms.base import Algorithm
from rlbotics_jax.algorithms.ppo_types import PPOState
from rlbotics_jax.cnn import CNNModel
from rlbotics_jax.config import ConfigError
from rlbotics_jax.config.errors import shown
from rlbotics_jax.distributions import GaussianDistribution, SquashedGaussianDistribution
from rlbotics_jax.models import Model

_WITHOUT_COUNTERPART = ("crelu", "softplus", "mish")
"""Activations that RLBotics builds no network with. (Nor with lrelu, which is its leaky_relu.)"""


def check_is_ppo(algorithm: Algorithm) -> PPO:
    """Returns the algorithm, which must be PPO or derive from it: PyTorch checkpoints hold nothing else.

    Raises:
        ConfigError: it is another.
    """
    if not isinstance(algorithm, PPO):
        raise ConfigError(
            "runner.algorithm.class_name",
            f"PyTorch checkpoints hold the state of PPO, not of {type(algorithm).__name__}",
        )
    return algorithm


def check_fits(checkpoint: TorchCheckpoint, algorithm: PPO, state: PPOState) -> None:
    """Raises where a checkpoint is not one of this config's networks.

    The activation, the class of the distribution and the order of the observations are nowhere in a checkpoint: nothing
    tells where they differ.

    Args:
        checkpoint: what was read.
        algorithm, state: of the config; abstract leaves will do.

    Raises:
        ConfigError: the key, with the checkpoint's value and the config's.
    """
    state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), state)
    models = {"actor": algorithm.actor, "critic": algorithm.critic}
    wanted = to_torch(entries(models, state.parameters), state.parameters)
    (std_type,) = state.parameters["actor"]["distribution"]
    networks = convert_std(
        checkpoint.networks, std_type, std_of(checkpoint.networks), bounds=algorithm.distribution.std_range
    )
    try:
        for name in NETWORKS:
            parameters = state.parameters[name]["network"]
            buffers = statistics_to_torch(models[name], parameters, state.normalizers[name])
            given = networks[name]
            if algorithm.settings.share_cnn_encoders and name == "critic":
                given = {key: array for key, array in given.items() if not key.startswith("cnn")}
            _check_network(name, models[name], given, wanted[name] | buffers)
    except ConfigError as error:
        raise error.in_file(str(checkpoint.path)) from None


def _check_network(name: str, model: Model, given: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> None:
    key, is_cnn = f"runner.{name}", bool(_parts(wanted, "cnn"))
    if bool(_parts(given, "cnn")) != is_cnn:
        there, here = ("MLPModel", "CNNModel") if is_cnn else ("CNNModel", "MLPModel")
        raise ConfigError(f"{key}.class_name", f"the file has {there}, the config {here}")
    normalizes = bool(_parts(given, "obs_normalizer"))
    if is_cnn and normalizes and model.normalized and model.images_normalized:
        raise ConfigError(
            f"{key}.image_normalization",
            "the file's CNNModel normalises vectors alone, the config images too; set it to false",
        )
    if normalizes != model.normalized:
        there, here = shown(normalizes), shown(model.normalized)
        raise ConfigError(f"{key}.obs_normalization", f"the file has {there}, the config {here}")
    theirs, mine = _widths(given), _widths(wanted)
    if theirs[1:-1] != mine[1:-1]:
        raise ConfigError(f"{key}.hidden_dims", f"the file has {theirs[1:-1]}, the config {mine[1:-1]}")
    if theirs[0] != mine[0]:
        groups, what = " + ".join(model.groups), "features" if is_cnn else "values"
        raise ConfigError(
            f"runner.obs_groups.{name}", f"the file's {name} reads {theirs[0]} {what}, {groups} gives {mine[0]}"
        )
    if theirs[-1] != mine[-1]:
        raise ConfigError(
            "env.id", f"the file's {name} has {theirs[-1]} outputs, the environment takes {mine[-1]} actions"
        )
    for part in {**wanted, **given}:
        there, here = (str(list(arrays[part].shape)) if part in arrays else "none" for arrays in (given, wanted))
        if there != here:
            raise ConfigError(key, f"of {part} the file has {there}, the config {here}")


def _parts(arrays: Mapping[str, np.ndarray], first: str) -> list[str]:
    return [part for part in arrays if part.startswith(first)]


def _widths(arrays: Mapping[str, np.ndarray]) -> list[int]:
    """Returns the widths of an MLP: of its input, its hidden layers and its output."""
    weights = {
        int(part.split(".")[1]): array for part, array in arrays.items() if re.fullmatch(r"mlp\.\d+\.weight", part)
    }
    layers = [weights[i].shape for i in sorted(weights)]
    return [layers[0][1], *(outputs for outputs, _ in layers)] if layers else []


def check_exportable(algorithm: PPO, state: PPOState) -> None:
    """Raises where RLBotics has no place for the distribution or a part of the networks.

    Raises:
        ConfigError: the key and its value.
    """
    models = {"actor": algorithm.actor, "critic": algorithm.critic}
    entries(models, state.parameters)  # raises where a network is a class of its own
    distribution, allowed = type(algorithm.distribution), (GaussianDistribution, SquashedGaussianDistribution)
    if distribution not in allowed:
        names = " and ".join(each.__name__ for each in allowed)
        raise ConfigError(
            "runner.actor.distribution_cfg.class_name",
            f"{distribution.__name__} has no counterpart in PyTorch; allowed are {names}",
        )
    for name, model in models.items():
        key, module = f"runner.{name}", model.module
        activations = {f"{key}.activation": module.activation}
        if isinstance(module, CNNModel):
            if len(model.groups) > 1:
                raise ConfigError(
                    f"runner.obs_groups.{name}",
                    f"RLBotics' CNNModel reads one image alone, this one reads {', '.join(model.groups)}",
                )
            if model.normalized:
                raise ConfigError(f"{key}.obs_normalization", "RLBotics' CNNModel normalises nothing, this one is true")
            activations[f"{key}.cnn_cfg.activation"] = module.encoder_config(model.groups[0]).activation
        for path, activation in activations.items():
            if activation in _WITHOUT_COUNTERPART:
                raise ConfigError(path, f"RLBotics has no activation {activation!r}")
        if model.obs_clip is not None:
            raise ConfigError(f"{key}.obs_clip", f"RLBotics clips no observations, this is {model.obs_clip}")
