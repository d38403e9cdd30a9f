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

from bridges import torch_numbers

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
        learning_rate, weight_decay: the optimizer's, or None where the file has no optimizer, or it knows no decay.
        step: the optimizer's steps; 0 where it keeps none.
        moments: the optimizer's averages by torch's name, such as `exp_avg`; parameters never stepped have none.
        best: score and iteration, counted from 1, where the file is the best of its run.
    """

    path: Path
    networks: Networks
    iteration: int
    learning_rate: float | None
    weight_decay: float | None
    step: int
    moments: dict[str, Networks]
    best: tuple[float, int] | None


def parse_checkpoint(values: Mapping[str, Any], path: Path) -> TorchCheckpoint:
    """Returns the checkpoint that a file's values are.

    Raises:
        ValueError: it is none of RLBotics or rsl_rl, or holds a part that is not known here, which is named, or a value
            that no training leaves there.
    """
    _check_keys(values, path)
    arrays = _with_one_encoder_named(_arrays(values, path))
    networks: Networks = {network: {} for network in NETWORKS}
    for network, name, array in arrays:
        networks[network][name] = torch_numbers.array(array, f"{network} {name}", path)
    stds = [name for network, name, _ in arrays if network == "actor" and name in STD_NAMES.values()]
    if not stds:
        raise ValueError(
            f"'{path}' has no standard deviation as a parameter of its own: a state-dependent one, or another "
            "distribution than a Gaussian, has no counterpart here."
        )
    if len(stds) > 1:
        raise ValueError(f"'{path}' has more than one standard deviation: {', '.join(stds)}.")
    if values.get("iteration", values.get("iter")) is None:
        raise ValueError(f"'{path}' tells no iteration; it is no checkpoint of RLBotics or rsl_rl.")
    iteration = torch_numbers.completed_iterations(values, "iteration" if "iteration" in values else "iter", path)
    best = None
    if values.get("best_iteration") is not None and values.get("best_metric") is not None:
        best = (
            torch_numbers.number(values["best_metric"], "best_metric", path),
            torch_numbers.completed_iterations(values, "best_iteration", path),
        )
    optimizer = _optimizer(torch_numbers.mapping(values, "optimizer_state_dict", path), arrays, path)
    return TorchCheckpoint(path, networks, iteration, *optimizer, best)


def _check_keys(values: Mapping[str, Any], path: Path) -> None:
    """Raises where the keys of a file tell that it is something else than a checkpoint that can be read."""
    if "obs_norm_state_dict" in values:
        raise ValueError(
            f"'{path}' has the observation statistics of rsl_rl 2 (obs_norm_state_dict), whose layout is not read; "
            "give a checkpoint of rsl_rl 3 to 5, or one that was trained without empirical_normalization."
        )
    if values and all(isinstance(value, np.ndarray) for value in values.values()):
        raise ValueError(
            f"'{path}' holds arrays alone, as the state_dict of one network does, from which training cannot go on; "
            "give the whole checkpoint, such as model_best.pt."
        )
    for key in values:
        if key not in _KNOWN:
            raise ValueError(_refusal(path, key))


def _arrays(values: Mapping[str, Any], path: Path) -> list[tuple[str, str, np.ndarray]]:
    """Returns (network, name, array) of all parameters and statistics, in the order in which torch counts them."""
    if "model_state_dict" in values:
        model = torch_numbers.mapping(values, "model_state_dict", path)
        return [(*_of_version_3(name, path), array) for name, array in model.items()]
    arrays = []
    for network in NETWORKS:
        if f"{network}_state_dict" not in values:
            raise ValueError(f"'{path}' has no {network}_state_dict; it is no checkpoint of RLBotics or rsl_rl (>= 3).")
        for name, array in torch_numbers.mapping(values, f"{network}_state_dict", path).items():
            if name.split(".")[0] not in ("mlp", "obs_normalizer", "cnn", "cnns", "distribution", *STD_NAMES):
                raise ValueError(_refusal(path, name))
            arrays.append((network, STD_NAMES.get(name, name), array))
    return arrays


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


def _refusal(path: Path, name: Any) -> str:
    what = _REFUSED.get(re.split(r"[_.]", str(name))[0], "a part that is not known here")
    return f"'{path}' holds {what} ({name}), which has no counterpart here."


def _optimizer(
    saved: Mapping[str, Any], arrays: list[tuple[str, str, np.ndarray]], path: Path
) -> tuple[float | None, float | None, int, dict[str, Networks]]:
    """Returns learning rate, weight decay, steps and moments.

    torch numbers the parameters in the order of the networks' own.
    """
    if not saved:
        return None, None, 0, {}
    try:
        groups = saved["param_groups"]
        rate, decay = groups[0]["lr"], groups[0].get("weight_decay")
        numbers = [number for group in groups for number in group["params"]]
        states = [dict(saved["state"].get(number, {})) for number in numbers]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"'{path}' holds an optimizer_state_dict that is no optimizer's of torch; save the file again without it."
        ) from error
    rate = torch_numbers.number(rate, "learning rate", path, low=0.0)
    decay = None if decay is None else torch_numbers.number(decay, "weight decay", path)
    parameters = [entry for entry in arrays if entry[1].rpartition(".")[2] not in _BUFFERS]
    if len(numbers) != len(parameters):
        raise ValueError(
            f"'{path}' has an optimizer of {len(numbers)} parameters and networks of {len(parameters)}: they do not "
            "belong together."
        )
    moments: dict[str, Networks] = {}
    steps = []
    for (network, name, parameter), state in zip(parameters, states, strict=True):
        for moment, value in state.items():
            what = f"{network} {name} {moment}"
            if moment == "step":
                steps.append(torch_numbers.step_count(value, what, path))
            elif value is not None:
                array = torch_numbers.array(value, what, path)
                if array.shape != parameter.shape:
                    raise ValueError(
                        f"'{path}' has {moment} of shape {array.shape} for {network} {name} of shape "
                        f"{parameter.shape}: optimizer and networks do not belong together."
                    )
                moments.setdefault(moment, {network: {} for network in NETWORKS})[network][name] = array
    # The least: encoders that two networks share are stepped twice there.
    return rate, decay, min(steps, default=0), moments
