"""What torch keeps in buffers: the statistics of the observations, and those of batch normalisations, and back.

obs_normalizer._mean, _var (1, n), count        NormalizerState mean, variance (n,), count, of the vectors side by side
cnn.<k>.running_mean, running_var (O,)          NormalizerState norm_<i> of encoder_<group>, count of updates
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bridges.torch_names import encoder_prefixes, positions
from rlbotics_jax.cnn import encoder_name
from rlbotics_jax.counters import Count, to_int
from rlbotics_jax.models import GroupStatistics, Model
from rlbotics_jax.normalization import EPSILON, NormalizerState

_OBSERVATIONS = ("obs_normalizer._mean", "obs_normalizer._var", "obs_normalizer.count")


def statistics_to_torch(model: Model, network: PyTree, statistics: Any) -> dict[str, np.ndarray]:
    """Returns the buffers of a network.

    Args:
        model: the actor or the critic.
        network: its parameters, whole.
        statistics: as `Model.init_normalizer`.
    """
    if statistics is None:
        return {}
    states = _observations(model, statistics)
    buffers = {}
    if states:
        means, variances, counts = zip(*(_arrays(state) for state in states.values()), strict=True)
        mean, variance, count = np.concatenate(means)[None], np.concatenate(variances)[None], counts[0]
        # Empty statistics are the identity here; there they give x / (std + 0.01).
        std = np.sqrt(variance) if count else np.full_like(variance, 1.0 - EPSILON)
        buffers |= zip((*_OBSERVATIONS, "obs_normalizer._std"), (mean, variance, count, std), strict=True)
    for encoder, layer, names in _batch_norms(model, network, statistics):
        buffers |= zip(names, _arrays(statistics.batch_norm[encoder][layer]), strict=True)
    return buffers


def statistics_from_torch(model: Model, network: PyTree, like: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Returns the statistics in these arrays, of the kind that `like` is; arguments as above."""
    if like is None:
        return None
    states = _observations(model, like)
    if states:
        merged = _state(arrays, _OBSERVATIONS)
        ends = np.cumsum([state.mean.size for state in states.values()])[:-1]
        parts = zip(jnp.split(merged.mean, ends), jnp.split(merged.variance, ends), strict=True)
        states = {group: NormalizerState(*part, merged.count) for group, part in zip(states, parts, strict=True)}
    if isinstance(like, NormalizerState):
        return states[""]
    batch_norm: dict[str, dict[str, NormalizerState]] = {}
    for encoder, layer, names in _batch_norms(model, network, like):
        batch_norm.setdefault(encoder, {})[layer] = _state(arrays, names)
    return like.replace(observations=states, batch_norm=batch_norm)


def _observations(model: Model, statistics: NormalizerState | GroupStatistics) -> dict[str, NormalizerState]:
    """Returns the observations' statistics, of all side by side, or of each group in the order in which they stand."""
    if isinstance(statistics, NormalizerState):
        return {"": statistics}
    return {group: statistics.observations[group] for group in model.groups if group in statistics.observations}


def _batch_norms(model: Model, network: PyTree, statistics: Any) -> list[tuple[str, str, tuple[str, ...]]]:
    """Returns (encoder, layer, torch's names of mean, variance and count) of all batch normalisations."""
    found = []
    if not isinstance(statistics, GroupStatistics):
        return found
    for group, prefix in encoder_prefixes(network["params"]).items():
        numbers = positions(model.module.encoder_config(group))
        for layer in statistics.batch_norm.get(encoder_name(group), {}):
            k = numbers[int(layer.removeprefix("norm_"))] + 1
            names = tuple(f"{prefix}.{k}.{name}" for name in ("running_mean", "running_var", "num_batches_tracked"))
            found.append((encoder_name(group), layer, names))
    return found


def _state(arrays: Mapping[str, np.ndarray], names: tuple[str, ...]) -> NormalizerState:
    mean, variance, count = (arrays[name] for name in names)
    high, low = divmod(int(count), 2**32)
    mean, variance = (jnp.asarray(array, jnp.float32).reshape(-1) for array in (mean, variance))
    return NormalizerState(mean, variance, Count(jnp.uint32(high), jnp.uint32(low)))


def _arrays(state: NormalizerState) -> tuple[np.ndarray, ...]:
    return np.asarray(state.mean), np.asarray(state.variance), np.asarray(to_int(state.count))
