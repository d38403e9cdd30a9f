"""The parameters of PPO under the names that RLBotics gives them, and back.

    mlp.<2i>.weight (m, n)       Dense_<i>.kernel (n, m), the transpose, of MLPModel and of CNNModel's head
    mlp.<2i>.bias (m,)           Dense_<i>.bias (m,)
    cnn.<k>.weight, .bias        encoder_<group>.kernel_<i>, .bias_<i> of a convolution, as they are
    cnn.<k + 1>.weight, .bias    encoder_<group>.scale_<i>, .shift_<i> of the normalisation behind it, as they are
    distribution.log_std_param   log_std, or log(std)

A network of several image groups has `cnns.<group>.` in place of `cnn.`, as in rsl_rl; RLBotics has none.

What is true of the parameters is true of the optimizer's moments, which have the same tree. Only the moments of the
standard deviation need the chain rule: d loss / d log_std = std * d loss / d std.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import PyTree

from bridges.torch_layouts import NETWORKS, STD_NAMES, Networks
from rlbotics_jax.cnn import CNNModel, encoder_name
from rlbotics_jax.config import CNNEncoderConfig, ConfigError
from rlbotics_jax.models import Model
from rlbotics_jax.networks import MLPModel


@dataclasses.dataclass(frozen=True)
class Entry:
    """One array of the parameters.

    Attributes:
        network: "actor" or "critic".
        name: RLBotics' name.
        path: where it is in PPO's parameters.
        is_transposed: whether torch has the transpose.
    """

    network: str
    name: str
    path: tuple[str, ...]
    is_transposed: bool = False


def entries(models: Mapping[str, Model], parameters: PyTree) -> list[Entry]:
    """Returns all arrays of PPO's parameters in torch's order, which is that of the optimizer.

    Args:
        models: the actor and the critic.
        parameters: `PPOState.parameters`; abstract leaves will do.

    Raises:
        ConfigError: a network or a distribution of another class than the library's own, which torch has no
            counterpart of.
    """
    names = list(parameters["actor"]["distribution"])
    if len(names) != 1 or names[0] not in STD_NAMES:
        raise ConfigError(
            "runner.actor.distribution_cfg.class_name",
            f"a distribution with the parameters {', '.join(names)} has no counterpart in PyTorch",
        )
    found = [Entry("actor", STD_NAMES[names[0]], ("actor", "distribution", names[0]))]
    for network in NETWORKS:
        found += network_entries(network, models[network], parameters[network]["network"])
    return found


def network_entries(network: str, model: Model, parameters: PyTree) -> list[Entry]:
    """Returns the arrays of one network, given its own parameters; raises as `entries`."""
    module, path, layers = model.module, (network, "network", "params"), parameters["params"]
    if type(module) is MLPModel:
        return _dense(network, path, layers)
    if type(module) is not CNNModel:
        raise ConfigError(
            f"runner.{network}.class_name",
            f"{type(module).__name__} has no counterpart in PyTorch; allowed are MLPModel and CNNModel",
        )
    found = []
    for group, prefix in encoder_prefixes(layers).items():
        found += _convolutions(network, prefix, (*path, encoder_name(group)), module.encoder_config(group))
    return found + _dense(network, (*path, "head"), layers["head"])


def encoder_prefixes(layers: Mapping[str, Any]) -> dict[str, str]:
    """Returns image group -> how torch's names of its encoder begin, from a CNNModel's parameters."""
    groups = [name.removeprefix(encoder_name("")) for name in layers if name.startswith(encoder_name(""))]
    return {group: "cnn" if len(groups) == 1 else f"cnns.{group}" for group in groups}


def positions(config: CNNEncoderConfig) -> list[int]:
    """Returns the number k of each convolution among torch's layers; its normalisation, if it has one, is k + 1."""
    found, position = [], 0
    for i in range(len(config.output_channels)):
        norm, max_pool = (v[i] if isinstance(v, tuple) else v for v in (config.norm, config.max_pool))
        found.append(position)
        position += 2 + (norm != "none") + max_pool
    return found


def _dense(network: str, path: tuple[str, ...], layers: Mapping[str, Any]) -> list[Entry]:
    found = []
    for i in range(len(layers)):
        found.append(Entry(network, f"mlp.{2 * i}.weight", (*path, f"Dense_{i}", "kernel"), is_transposed=True))
        found.append(Entry(network, f"mlp.{2 * i}.bias", (*path, f"Dense_{i}", "bias")))
    return found


def _convolutions(network: str, prefix: str, path: tuple[str, ...], config: CNNEncoderConfig) -> list[Entry]:
    found = []
    for i, k in enumerate(positions(config)):
        found.append(Entry(network, f"{prefix}.{k}.weight", (*path, f"kernel_{i}")))
        found.append(Entry(network, f"{prefix}.{k}.bias", (*path, f"bias_{i}")))
        if (config.norm[i] if isinstance(config.norm, tuple) else config.norm) != "none":
            found.append(Entry(network, f"{prefix}.{k + 1}.weight", (*path, f"scale_{i}")))
            found.append(Entry(network, f"{prefix}.{k + 1}.bias", (*path, f"shift_{i}")))
    return found


def to_torch(found: list[Entry], tree: PyTree) -> Networks:
    """Returns the arrays of a tree like PPO's parameters, under torch's names."""
    leaves = flatten_dict(tree)
    networks: Networks = {network: {} for network in NETWORKS}
    for entry in found:
        array = np.asarray(leaves[entry.path], np.float32)
        networks[entry.network][entry.name] = array.T.copy() if entry.is_transposed else array
    return networks


def from_torch(found: list[Entry], networks: Networks) -> PyTree:
    """Returns the tree like PPO's parameters that these arrays are."""
    leaves = {}
    for entry in found:
        array = np.asarray(networks[entry.network][entry.name], np.float32)
        leaves[entry.path] = array.T.copy() if entry.is_transposed else array
    return unflatten_dict(leaves)


def convert_std(
    networks: Networks, wanted: str, std: np.ndarray, order: int = 0, bounds: tuple[float, float] = (0.0, np.inf)
) -> Networks:
    """Returns the arrays with the standard deviation as `wanted`: "std" or "log_std".

    Args:
        networks: parameters, or moments of them.
        wanted: what the actor's array is to be.
        std: the standard deviation, whatever `networks` are.
        order: 0 of parameters; 1 of averages of gradients and 2 of averages of their squares, which become
            std^order times themselves where a standard deviation becomes its logarithm.
        bounds: on the standard deviation.
    """
    actor = dict(networks["actor"])
    (given,) = [name for name in STD_NAMES if STD_NAMES[name] in actor]
    array = actor.pop(STD_NAMES[given])
    if order == 0:
        array = np.clip(std, *bounds)
        array = np.log(array) if wanted == "log_std" else array
    elif given != wanted:
        array = array * std**order if wanted == "log_std" else array / std**order
    return {**networks, "actor": {STD_NAMES[wanted]: array.astype(np.float32), **actor}}


def std_of(networks: Networks) -> np.ndarray:
    """Returns the standard deviation of the actor, in float64."""
    for name, array in STD_NAMES.items():
        if array in networks["actor"]:
            values = np.asarray(networks["actor"][array], np.float64)
            return np.exp(values) if name == "log_std" else values
    raise KeyError("distribution")
