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
from rlbotics_jax.models import GroupStatistics
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
        """Returns the actions for a batch of observations (N, ...), or for a single one.

        Args:
            observations: a dict of groups, or an array where the policy reads a single group.

        Raises:
            ValueError: an array where several groups are needed, or a dict that lacks one.
        """
        if not isinstance(observations, Mapping):
            if len(self.groups) > 1:
                raise ValueError(f"This policy reads the groups {', '.join(self.groups)}: pass a dict of them.")
            observations = {self.groups[0]: observations}
        if missing := [group for group in self.groups if group not in observations]:
            raise ValueError(f"This policy reads the group {missing[0]!r}; given are {', '.join(observations)}.")
        observations = {group: jnp.asarray(observations[group], self.spec.dtype(group)) for group in self.groups}
        if observations[self.groups[0]].ndim == len(self.spec.observation_shapes[self.groups[0]]):
            return self(jax.tree.map(lambda leaf: leaf[None], observations))[0]
        return _acting(self.algorithm, self.action_mapping)(self.parameters, observations)

    def export(self, path: str | Path) -> Path:
        """Writes the policy as one ONNX file, after comparing it with JAX; see `bridges.onnx.export_onnx`.

        The graph takes every observation as float32; an image that is uint8 here is scaled inside.
        """
        from bridges.onnx import export_onnx

        act, shapes = self.act_on_floats(), self.shapes
        return export_onnx(act, shapes, self.action_mapping, path, self.metadata, self.typical_observations())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Group -> shape of one observation, in the order of `groups`."""
        return {group: self.spec.observation_shapes[group] for group in self.groups}

    def act_on_floats(self) -> Callable[[Observations], Float[Array, "N A"]]:
        """Returns the policy as a function of float32 observations to actions in its own units, as it is deployed.

        Images that are uint8 in training come as their grey values, 0 to 255.
        """
        act = self.algorithm.policy(self.parameters)
        images = {group for group in self.groups if self.spec.dtype(group) == np.uint8}
        # As the model does with uint8.
        return lambda observations: act({g: x / 255.0 if g in images else x for g, x in observations.items()})

    def typical_observations(self, num_samples: int = 64) -> dict[str, np.ndarray]:
        """Returns random observations like those it was trained on, (num_samples, *shape) a group.

        They are drawn from the normaliser's statistics, and from all grey values for uint8 images. A policy is compared
        with its exported graph on them: where means are far from zero, other random inputs are all outliers.
        """
        random = np.random.default_rng(0)
        statistics = self._statistics()
        observations = {}
        for group in self.groups:
            shape = (num_samples, *self.shapes[group])
            if self.spec.dtype(group) == np.uint8:
                observations[group] = random.integers(0, 256, shape, np.uint8)
            else:
                mean, std = statistics.get(group, (0.0, 1.0))
                observations[group] = (mean + std * random.standard_normal(shape)).astype(np.float32)
        return observations

    def _statistics(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Returns mean and standard deviation of the groups that are normalised, in shapes that broadcast to theirs."""
        normalizer = self.parameters.get("normalizer") if isinstance(self.parameters, Mapping) else None
        if isinstance(normalizer, NormalizerState):  # of the groups side by side
            ends = np.cumsum([self.spec.observation_sizes[group] for group in self.groups])[:-1]
            mean, std = (np.split(np.asarray(x), ends) for x in (normalizer.mean, jnp.sqrt(normalizer.variance)))
            return dict(zip(self.groups, zip(mean, std, strict=True), strict=True))
        statistics = {}
        for group, state in (normalizer.observations if isinstance(normalizer, GroupStatistics) else {}).items():
            shape = (-1,) + (1,) * (len(self.spec.observation_shapes[group]) - 1)  # of an image: one value a channel
            statistics[group] = tuple(np.asarray(x).reshape(shape) for x in (state.mean, jnp.sqrt(state.variance)))
        return statistics


@functools.lru_cache(maxsize=32)
def _acting(algorithm: Algorithm, action_mapping: ActionMapping) -> Callable[[PyTree, Observations], Array]:
    """Returns the compiled policy. The parameters are an argument: never baked into the program (see `compilation`)."""
    return jit(lambda parameters, observations: action_mapping(algorithm.policy(parameters)(observations)))
