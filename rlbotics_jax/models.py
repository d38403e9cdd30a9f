"""A model: a Flax module, the observation groups it reads, and the normaliser in front of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, PyTree

from rlbotics_jax.config import ConfigError
from rlbotics_jax.normalization import NormalizerState, init_normalizer, merge, normalize
from rlbotics_jax.registry import MODELS
from rlbotics_jax.types import Observations


@dataclasses.dataclass(frozen=True)
class Model:
    """Concatenates its observation groups, normalises them and applies a Flax module.

    Attributes:
        module: a Linen module from (B, n) to (B, num_outputs).
        groups: the observation groups it reads, in this order.
        num_outputs: the width that the module must give.
        normalized: whether the observations are normalised by running statistics.
        obs_clip: bound on the normalised observations, or None.
    """

    module: nn.Module
    groups: tuple[str, ...]
    num_outputs: int
    normalized: bool
    obs_clip: float | None = None

    def concatenate(self, observations: Observations) -> Float[Array, "... n"]:
        """Returns the model's raw input, its groups side by side.

        Raises:
            KeyError: naming the group that the environment does not give.
        """
        for group in self.groups:
            if group not in observations:
                raise KeyError(
                    f"runner.obs_groups names the group {group!r}; the environment gives {sorted(observations)}."
                )
        parts = [observations[group] for group in self.groups]
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)

    def init(self, key: Array, observations: Observations) -> PyTree:
        """Returns the module's parameters. `observations` give the sizes, (N, n) a group.

        Raises:
            ValueError: the module's output is not (N, num_outputs).
        """
        x = self.concatenate(observations)
        output, parameters = self.module.init_with_output(key, x)
        if output.shape != (x.shape[0], self.num_outputs):
            raise ValueError(
                f"{type(self.module).__name__} maps observations {x.shape} to {output.shape}; it must give "
                f"({x.shape[0]}, {self.num_outputs}), as its field num_outputs says."
            )
        return parameters

    def init_normalizer(self, observations: Observations) -> NormalizerState | None:
        """Returns empty statistics, or None where the observations are not normalised."""
        return init_normalizer(self.concatenate(observations).shape[-1]) if self.normalized else None

    def apply(self, parameters: PyTree, normalizer: NormalizerState | None, observations: Observations) -> Array:
        """Returns the module's output (..., num_outputs)."""
        x = self.concatenate(observations)
        if normalizer is not None:
            x = normalize(normalizer, x, self.obs_clip)
        return self.module.apply(parameters, x)

    def merge(
        self,
        normalizer: NormalizerState | None,
        observations: Observations,
        valid: Bool[Array, "..."],
        axis_name: str | None,
    ) -> tuple[NormalizerState | None, Bool[Array, ""]]:
        """Returns the statistics with a batch of raw observations merged in, and whether that was accepted."""
        if normalizer is None:
            return None, jnp.bool_(True)
        return merge(normalizer, self.concatenate(observations), valid, axis_name)


def make_model(name: str, config: Any, num_outputs: int, output_gain: float) -> Model:
    """Builds the model `name` ("actor" or "critic") of an OnPolicyRunnerConfig.

    A user's Flax module is built in the same way: whichever of `hidden_dims`, `activation`, `num_outputs`,
    `output_gain` and its own config's keys it declares as fields, it is given.

    Raises:
        ConfigError: the class is unknown or not built in this version (CNNModel).
    """
    model_config = getattr(config, name)
    try:
        module_class = MODELS.resolve(model_config.class_name)
    except ValueError as error:
        raise ConfigError(f"runner.{name}.class_name", str(error)) from error
    offered = {field.name: getattr(model_config, field.name) for field in dataclasses.fields(model_config)}
    offered |= {"num_outputs": num_outputs, "output_gain": output_gain}
    accepted = {field.name for field in dataclasses.fields(module_class) if field.init} - {"parent", "name"}
    module = module_class(**{field: value for field, value in offered.items() if field in accepted})
    groups = tuple(config.obs_groups[name])
    return Model(module, groups, num_outputs, model_config.obs_normalization, model_config.obs_clip)
