"""The checkpoints of RLBotics and of the rsl_rl versions, brought to one form.

    RLBotics 0.1           {actor,critic}_state_dict: distribution.log_std_param, obs_normalizer.*, cnn.*, mlp.*
    rsl_rl 5               {actor,critic}_state_dict: distribution.{std,log_std}_param, obs_normalizer.*, cnns.*, mlp.*
    rsl_rl 4               {actor,critic}_state_dict: {std,log_std}, obs_normalizer.*, cnns.*, mlp.*
    rsl_rl 3               model_state_dict: {std,log_std}, {actor,critic}{,_obs_normalizer,_cnns}.*

All have `optimizer_state_dict`, and the last finished iteration counted from 0, `iteration` or `iter`. Nothing here
needs torch: the values are numpy arrays.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

NETWORKS = ("actor", "critic")

STD_NAMES = {"std": "distribution.std_param", "log_std": "distribution.log_std_param"}
"""The standard deviation and its logarithm, which is the only one that RLBotics has."""

Networks = dict[str, dict[str, np.ndarray]]
"""{"actor": arrays by name, "critic": arrays by name}, in the order of the file."""

_BUFFERS = frozenset({"_mean", "_var", "_std", "count", "running_mean", "running_var", "num_batches_tracked"})
"""How the names of arrays end that are no parameters, so that the optimizer does not know them."""

_KNOWN = frozenset(
    {
        "actor_state_dict",
        "critic_state_dict",
        "model_state_dict",
        "optimizer_state_dict",
        "iteration",
        "iter",
        "infos",
        "best_metric",
        "best_iteration",
    }
)

_REFUSED = {
    "rnd": "random network distillation (RND)",
    "student": "a distillation",
    "teacher": "a distillation",
    "memory": "a recurrent network",
    "rnn": "a recurrent network",
}
"""What the first word of a name tells of a checkpoint that has no counterpart here."""


@dataclasses.dataclass(frozen=True)
class TorchCheckpoint:
    """What a checkpoint holds, under the names of RLBotics.

    Attributes:
        path: the file.
        networks: parameters and statistics.
        iteration: completed iterations.
        learning_rate: the optimizer's, or None where the file has no optimizer.
        step: the optimizer's steps; 0 where it keeps none.
        moments: the optimizer's averages by torch's name, such as `exp_avg`; parameters never stepped have none.
        best: score and iteration, counted from 1, where the file is the best of its run.
    """

    path: Path
    networks: Networks
    iteration: int
    learning_rate: float | None
    step: int
    moments: dict[str, Networks]
    best: tuple[float, int] | None


def parse_checkpoint(values: Mapping[str, Any], path: Path) -> TorchCheckpoint:
    """Returns the checkpoint that a file's values are.

    Raises:
        ValueError: it is none of RLBotics or rsl_rl, or holds a part that is not known here, which is named.
    """
    for key in values:
        if key not in _KNOWN:
            raise ValueError(_refusal(path, key))
    arrays = _with_one_encoder_named(_arrays(values, path))
    networks: Networks = {network: {} for network in NETWORKS}
    for network, name, array in arrays:
        if not np.isfinite(array).all():
            raise ValueError(f"'{path}' holds values of {network} {name} that are not finite: its training had failed.")
        networks[network][name] = array
    if not STD_NAMES.values() & networks["actor"].keys():
        raise ValueError(
            f"'{path}' has no standard deviation as a parameter of its own: a state-dependent one, or another "
            "distribution than a Gaussian, has no counterpart here."
        )
    iteration = values.get("iteration", values.get("iter"))
    if not isinstance(iteration, int):
        raise ValueError(f"'{path}' tells no iteration; it is no checkpoint of RLBotics or rsl_rl.")
    best = None
    if values.get("best_iteration") is not None and values.get("best_metric") is not None:
        best = float(values["best_metric"]), int(values["best_iteration"]) + 1
    optimizer = _optimizer(_mapping(values, "optimizer_state_dict", path), arrays, path)
    return TorchCheckpoint(path, networks, iteration + 1, *optimizer, best)


def _arrays(values: Mapping[str, Any], path: Path) -> list[tuple[str, str, np.ndarray]]:
    """Returns (network, name, array) of all parameters and statistics, in the order in which torch counts them."""
    if "model_state_dict" in values:
        model = _mapping(values, "model_state_dict", path)
        return [(*_of_version_3(name, path), array) for name, array in model.items()]
    arrays = []
    for network in NETWORKS:
        if f"{network}_state_dict" not in values:
            raise ValueError(f"'{path}' has no {network}_state_dict; it is no checkpoint of RLBotics or rsl_rl (>= 3).")
        for name, array in _mapping(values, f"{network}_state_dict", path).items():
            if name.split(".")[0] not in ("mlp", "obs_normalizer", "cnn", "cnns", "distribution", *STD_NAMES):
                raise ValueError(_refusal(path, name))
            arrays.append((network, STD_NAMES.get(name, name), array))
    return arrays


def _mapping(values: Mapping[str, Any], key: str, path: Path) -> Mapping[str, Any]:
    """Returns a part of the file, {} where it is missing or None."""
    found = {} if values.get(key) is None else values[key]
    if not isinstance(found, Mapping):
        raise ValueError(f"'{path}' holds a {type(found).__name__} as {key}, not a mapping of names to arrays.")
    return found


def _with_one_encoder_named(arrays: list[tuple[str, str, np.ndarray]]) -> list[tuple[str, str, np.ndarray]]:
    """Returns the arrays with the encoder of a network that has one alone called `cnn`, as RLBotics calls it.

    rsl_rl has `cnns.<group>`, and the group may have another name here.
    """
    groups = {network: set() for network in NETWORKS}
    for network, name, _ in arrays:
        if name.startswith("cnns."):
            groups[network].add(name.split(".")[1])
    return [
        (network, re.sub(r"^cnns\.[^.]+", "cnn", name) if len(groups[network]) == 1 else name, array)
        for network, name, array in arrays
    ]


def _of_version_3(name: str, path: Path) -> tuple[str, str]:
    """Returns the network and the later name of an array of rsl_rl 3, which kept both networks in one module."""
    if name in STD_NAMES:
        return "actor", STD_NAMES[name]
    first, _, rest = name.partition(".")
    for network in NETWORKS:
        parts = {network: "mlp", f"{network}_obs_normalizer": "obs_normalizer", f"{network}_cnns": "cnns"}
        if first in parts:
            return network, f"{parts[first]}.{rest}"
    raise ValueError(_refusal(path, name))


def _refusal(path: Path, name: str) -> str:
    what = _REFUSED.get(name.split("_")[0].split(".")[0], "a part that is not known here")
    return f"'{path}' holds {what} ({name}), which has no counterpart here."


def _optimizer(
    saved: Mapping[str, Any], arrays: list[tuple[str, str, np.ndarray]], path: Path
) -> tuple[float | None, int, dict[str, Networks]]:
    """Returns learning rate, steps and moments. torch numbers the parameters in the order of the networks' own."""
    if not saved:
        return None, 0, {}
    parameters = [entry for entry in arrays if entry[1].rpartition(".")[2] not in _BUFFERS]
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    if len(numbers) != len(parameters):
        raise ValueError(
            f"'{path}' has an optimizer of {len(numbers)} parameters and networks of {len(parameters)}: they do not "
            "belong together."
        )
    moments: dict[str, Networks] = {}
    steps = []
    for (network, name, parameter), number in zip(parameters, numbers, strict=True):
        for moment, array in saved["state"].get(number, {}).items():
            if moment == "step":
                steps.append(int(array))
            elif array is not None:
                if array.shape != parameter.shape:
                    raise ValueError(
                        f"'{path}' has {moment} of shape {array.shape} for {network} {name} of shape "
                        f"{parameter.shape}: optimizer and networks do not belong together."
                    )
                moments.setdefault(moment, {network: {} for network in NETWORKS})[network][name] = array
    # The least: encoders that two networks share are stepped twice there.
    return float(saved["param_groups"][0]["lr"]), min(steps, default=0), moments
