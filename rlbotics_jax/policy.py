"""A trained policy: what `train` returns, what a run directory holds, and what is exported."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from rlbotics_jax.algorithms.base import Algorithm
from rlbotics_jax.compilation import jit
from rlbotics_jax.envs.spec import ActionMapping, EnvironmentSpec
from rlbotics_jax.normalization import NormalizerState
from rlbotics_jax.types import Observations


@dataclasses.dataclass(frozen=True)
class TrainedPolicy:
    """The deterministic policy, from raw observations to physical actions.

    Attributes:
        algorithm: knows how to act with the parameters.
        parameters: `algorithm.policy_parameters` of a training state.
        spec: the environment it was trained in.
        action_mapping: from the policy's units to the environment's.
        groups: the observation groups it reads, in order.
        metadata: written beside the exported graph.
    """

    algorithm: Algorithm
    parameters: PyTree
    spec: EnvironmentSpec
    action_mapping: ActionMapping
    groups: tuple[str, ...]
    metadata: Mapping[str, Any]

    def __call__(self, observations: Observations | Array) -> Float[Array, "N A"]:
        """Returns the actions for a batch of observations (N, n), or for a single one (n,).

        Args:
            observations: a dict of groups, or an array where the policy reads a single group.

        Raises:
            ValueError: an array where several groups are needed.
        """
        if not isinstance(observations, Mapping):
            if len(self.groups) > 1:
                raise ValueError(f"This policy reads the groups {', '.join(self.groups)}: pass a dict of them.")
            observations = {self.groups[0]: observations}
        observations = {group: jnp.asarray(observations[group], jnp.float32) for group in self.groups}
        if observations[self.groups[0]].ndim == 1:
            return self(jax.tree.map(lambda leaf: leaf[None], observations))[0]
        return _acting(self.algorithm, self.action_mapping)(self.parameters, observations)

    def export(self, path: str | Path) -> Path:
        """Writes the policy as one ONNX file, after comparing it with JAX; see `bridges.onnx.export_onnx`."""
        from bridges.onnx import export_onnx

        sizes = {group: self.spec.observation_sizes[group] for group in self.groups}
        act = self.algorithm.policy(self.parameters)
        return export_onnx(act, sizes, self.action_mapping, path, self.metadata, _typical(self.parameters))


def _typical(parameters: PyTree) -> np.ndarray | None:
    """Returns 64 observations as the normaliser's statistics describe them, or None where the policy has none.

    The exporter compares on them too: where means are far from zero, its own random inputs are all outliers.
    """
    normalizer = parameters.get("normalizer") if isinstance(parameters, Mapping) else None
    if not isinstance(normalizer, NormalizerState):
        return None
    mean, std = np.asarray(normalizer.mean), np.sqrt(np.asarray(normalizer.variance))
    return (mean + std * np.random.default_rng(0).standard_normal((64, mean.size))).astype(np.float32)


@functools.lru_cache(maxsize=32)
def _acting(algorithm: Algorithm, action_mapping: ActionMapping) -> Callable[[PyTree, Observations], Array]:
    """Returns the compiled policy. The parameters are an argument: never baked into the program (see `compilation`)."""
    return jit(lambda parameters, observations: action_mapping(algorithm.policy(parameters)(observations)))
