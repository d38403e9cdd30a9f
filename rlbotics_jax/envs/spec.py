"""What the library needs to know of an environment without building it: sizes, action bounds, timing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rlbotics_jax.envs.base import Environment, third_party
from rlbotics_jax.metadata import decode_metadata, encode_metadata


@dataclasses.dataclass(frozen=True)
class ActionMapping:
    """From the policy's actions, where [-1, 1] spans the range, to physical ones. Training and export share it.

    Attributes:
        low, high: bounds of the physical action or None. A dimension with an infinite bound is passed through.
        clip: bound on the policy's actions before the mapping (env.clip_actions), or None.
    """

    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    clip: float | None = None

    def __call__(self, actions: Float[Array, "... A"]) -> Float[Array, "... A"]:
        """Returns low + (clip(a, -1, 1) + 1) / 2 * (high - low), dimension by dimension."""
        if self.clip is not None:
            actions = jnp.clip(actions, -self.clip, self.clip)
        if self.low is None or self.high is None:
            return actions
        low, high = np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)
        bounded = np.isfinite(low) & np.isfinite(high)
        if not bounded.any():
            return actions
        low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
        scale, offset = (high - low) / 2, (high + low) / 2
        shape = (1,) * (actions.ndim - 1) + (-1,)
        clipped = jnp.clip(actions, -1.0, 1.0)
        actions = clipped if bounded.all() else jnp.where(bounded.reshape(shape), clipped, actions)
        if (scale != 1.0).any():
            actions = actions * scale.reshape(shape).astype(np.float32)
        if (offset != 0.0).any():
            actions = actions + offset.reshape(shape).astype(np.float32)
        return actions


@dataclasses.dataclass(frozen=True)
class EnvironmentSpec:
    """Sizes of the observation groups, actions and timing; written beside a run's config, so that it can be exported
    without its simulator.

    Attributes:
        observation_shapes: group -> shape of one observation: (n,), or (C, H, W) of an image.
        num_actions, action_low, action_high, episode_length, dt: as `Environment` has them.
        observation_dtypes: group -> its dtype, "float32", or "uint8" of an image; float32 where a group is not named.
        metadata: what the environment tells those who deploy its policies, as `Environment.metadata`.
    """

    observation_shapes: dict[str, tuple[int, ...]]
    num_actions: int
    action_low: tuple[float, ...] | None
    action_high: tuple[float, ...] | None
    episode_length: int
    dt: float
    observation_dtypes: dict[str, str] = dataclasses.field(default_factory=dict)
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def observation_sizes(self) -> dict[str, int]:
        """Group -> how many values one observation has."""
        return {group: math.prod(shape) for group, shape in self.observation_shapes.items()}

    def dtype(self, group: str) -> np.dtype:
        """Returns the dtype of a group."""
        return np.dtype(self.observation_dtypes.get(group, "float32"))

    def to_dict(self) -> dict[str, Any]:
        """Returns the spec as JSON values; an infinite bound becomes the string "inf" or "-inf", JSON having none."""
        values = dataclasses.asdict(self)
        values["observation_shapes"] = {group: list(shape) for group, shape in self.observation_shapes.items()}
        values["metadata"] = encode_metadata(self.metadata)
        for name in ("action_low", "action_high"):
            if values[name] is not None:
                values[name] = [bound if math.isfinite(bound) else str(bound) for bound in values[name]]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Returns the spec that `to_dict`, through JSON, describes; other keys are ignored.

        Raises:
            ValueError: where a key is missing.
        """
        required = [field.name for field in dataclasses.fields(cls) if field.default_factory is dataclasses.MISSING]
        if missing := [name for name in required if name not in values]:
            raise ValueError(f"The recorded environment has no {missing[0]!r}; another version has written it.")
        fields = {field.name: values[field.name] for field in dataclasses.fields(cls) if field.name in values}
        fields["observation_shapes"] = {group: tuple(shape) for group, shape in fields["observation_shapes"].items()}
        fields["metadata"] = decode_metadata(fields.get("metadata", {}))
        for name in ("action_low", "action_high"):
            if fields[name] is not None:
                fields[name] = tuple(float(bound) for bound in fields[name])
        return cls(**fields)

    def example_observations(self, num_envs: int = 1) -> dict[str, Array]:
        """Returns zeros of the observations' shapes, (num_envs, ...) a group."""
        return {
            group: jnp.zeros((num_envs, *shape), self.dtype(group)) for group, shape in self.observation_shapes.items()
        }


def environment_spec(environment: Environment) -> EnvironmentSpec:
    """Returns the spec of an environment, from an abstract reset (nothing is computed)."""
    with third_party():
        state = jax.eval_shape(environment.reset, jax.random.key(0))

    def bounds(values: Any) -> tuple[float, ...] | None:
        return None if values is None else tuple(float(value) for value in np.asarray(values).reshape(-1))

    return EnvironmentSpec(
        observation_shapes={group: leaf.shape for group, leaf in state.observations.items()},
        num_actions=environment.num_actions,
        action_low=bounds(environment.action_low),
        action_high=bounds(environment.action_high),
        episode_length=environment.episode_length,
        dt=float(environment.dt),
        observation_dtypes={
            group: str(leaf.dtype) for group, leaf in state.observations.items() if leaf.dtype != jnp.float32
        },
        metadata=decode_metadata(encode_metadata(getattr(environment, "metadata", {}))),
    )
