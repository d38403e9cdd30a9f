"""A model: a Flax module, the observation groups it reads, and the normalisers in front of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from flax.core import FrozenDict
from jaxtyping import Array, Bool, Float, PyTree

from rlbotics_jax.cnn import BATCH_NORM, BATCH_NORM_INPUTS
from rlbotics_jax.config import ConfigError
from rlbotics_jax.normalization import (
    NormalizerState,
    blend,
    init_normalizer,
    is_normalizer,
    merge,
    merge_channels,
    normalize,
)
from rlbotics_jax.registry import MODELS
from rlbotics_jax.types import Observations


def scaled(observations: Array) -> Float[Array, "..."]:
    """Returns x / 255 in float32 where x is of bytes, as images are stored; else x itself."""
    return observations.astype(jnp.float32) / 255.0 if observations.dtype == jnp.uint8 else observations


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

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Checks the shapes of the environment's groups.

        Raises:
            ConfigError: with a key of the model's config, where the module cannot read one of its groups.
        """
        for group in self.groups:
            if len(shapes[group]) != 1:
                raise ConfigError(
                    "class_name",
                    f"{type(self.module).__name__} reads vectors, but the group {group!r} has the shape "
                    f"{shapes[group]}; use CNNModel with a cnn_cfg, or leave the group out of runner.obs_groups",
                )

    def read(self, observations: Observations) -> PyTree:
        """Returns the module's input before normalisation: the groups side by side, (..., n).

        Raises:
            KeyError: naming the group that the environment does not give.
        """
        parts = list(self._own(observations).values())
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)

    def init(self, key: Array, observations: Observations) -> PyTree:
        """Returns the module's parameters. `observations` give the sizes, (N, ...) a group.

        Raises:
            ValueError: the module's output is not (N, num_outputs).
        """
        x = self.read(observations)
        output, variables = self.module.init_with_output(key, x)
        num_rows = jax.tree.leaves(x)[0].shape[0]
        if output.shape != (num_rows, self.num_outputs):
            raise ValueError(
                f"{type(self.module).__name__} maps observations {jax.tree.map(jnp.shape, x)} to {output.shape}; it "
                f"must give ({num_rows}, {self.num_outputs}), as its field num_outputs says."
            )
        return variables

    def init_normalizer(self, observations: Observations) -> Any:
        """Returns empty statistics, or None where the observations are not normalised."""
        return init_normalizer(self.read(observations).shape[-1]) if self.normalized else None

    def apply(self, parameters: PyTree, normalizer: Any, observations: Observations) -> Array:
        """Returns the module's output (..., num_outputs)."""
        x = self.read(observations)
        if normalizer is not None:
            x = normalize(normalizer, x, self.obs_clip)
        return self.module.apply(parameters, x)

    def merge(
        self, normalizer: Any, observations: Observations, valid: Bool[Array, "T N"], axis_name: str | None
    ) -> tuple[Any, Bool[Array, ""]]:
        """Returns the statistics with a rollout's raw observations merged in, and whether that was accepted."""
        if normalizer is None:
            return None, jnp.bool_(True)
        return merge(normalizer, self.read(observations), valid, axis_name)

    def merge_batch_norm(
        self,
        parameters: PyTree,
        normalizer: Any,
        observations: Observations,
        valid: Bool[Array, "T N"],
        axis_name: str | None,
    ) -> tuple[Any, Bool[Array, ""]]:
        """As `merge`, for the statistics inside the network, of which a module that reads a vector has none."""
        return normalizer, jnp.bool_(True)

    def _own(self, observations: Observations) -> dict[str, Array]:
        """Returns the groups in their order, images scaled."""
        for group in self.groups:
            if group not in observations:
                raise KeyError(
                    f"runner.obs_groups names the group {group!r}; the environment gives {sorted(observations)}."
                )
        return {group: scaled(observations[group]) for group in self.groups}


@struct.dataclass
class GroupStatistics:
    """What a `GroupModel` keeps fixed between two updates.

    Attributes:
        observations: {group: statistics}, a value's in a vector, a channel's in an image; {} where nothing is
            normalised.
        batch_norm: the running statistics of the module's batch normalisations, {encoder: {norm_i: statistics}}, whose
            `count` counts updates; {} where there are none.
    """

    observations: dict[str, NormalizerState]
    batch_norm: PyTree


@dataclasses.dataclass(frozen=True)
class GroupModel(Model):
    """Hands its groups to the module apart: {group: (B, n) or (B, C, H, W)} in their order, each normalised by itself.

    Its statistics are a `GroupStatistics`, also where they are empty.

    Attributes:
        images_normalized: whether images are normalised where vectors are.
    """

    images_normalized: bool = True

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """As `Model.check`; a module's own `check_groups` then sees the shapes of its groups."""
        for group in self.groups:
            if len(shapes[group]) not in (1, 3):
                raise ConfigError(
                    "class_name",
                    f"{type(self.module).__name__} reads vectors (n,) and images (C, H, W), but the group {group!r} "
                    f"has the shape {shapes[group]}; leave it out of runner.obs_groups",
                )
        if hasattr(self.module, "check_groups"):
            self.module.check_groups({group: shapes[group] for group in self.groups})

    def read(self, observations: Observations) -> dict[str, Array]:
        """Returns the groups in their order, not yet normalised; raises as `Model.read`."""
        return self._own(observations)

    def init(self, key: Array, observations: Observations) -> PyTree:
        """As `Model.init`; what the batch normalisations add is no parameter."""
        variables = super().init(key, observations)
        return {name: value for name, value in variables.items() if name not in (BATCH_NORM, BATCH_NORM_INPUTS)}

    def init_normalizer(self, observations: Observations) -> GroupStatistics:
        """Returns empty statistics of the groups, where they are normalised, and of the batch normalisations."""
        groups = self.read(observations)
        variables = jax.eval_shape(lambda: self.module.init(jax.random.key(0), groups))
        return GroupStatistics(
            observations={
                group: init_normalizer(x.shape[1])
                for group, x in groups.items()
                if self.normalized and (self.images_normalized or x.ndim == 2)
            },
            batch_norm=_empty(variables.get(BATCH_NORM, {})),
        )

    def apply(self, parameters: PyTree, normalizer: GroupStatistics, observations: Observations) -> Array:
        """Returns the module's output (B, num_outputs)."""
        variables = {**parameters, BATCH_NORM: normalizer.batch_norm}
        return self.module.apply(variables, self._normalized(normalizer, observations))

    def merge(
        self, normalizer: GroupStatistics, observations: Observations, valid: Bool[Array, "T N"], axis_name: str | None
    ) -> tuple[GroupStatistics, Bool[Array, ""]]:
        """As `Model.merge`; a pixel is a row."""
        merged, accepted = _merge_steps(
            normalizer.observations,
            lambda step: {group: scaled(step[group]) for group in normalizer.observations},
            observations,
            valid,
            axis_name,
        )
        return normalizer.replace(observations=merged), accepted

    def merge_batch_norm(
        self,
        parameters: PyTree,
        normalizer: GroupStatistics,
        observations: Observations,
        valid: Bool[Array, "T N"],
        axis_name: str | None,
    ) -> tuple[GroupStatistics, Bool[Array, ""]]:
        """Moves the batch normalisations' statistics towards those of a rollout (see `blend`), as the network and its
        normalisers, both given as the next rollout will have them, see it."""
        running = normalizer.batch_norm
        if not running:
            return normalizer, jnp.bool_(True)

        def one_pass(_: Array, carry: tuple[PyTree, Array]) -> tuple[PyTree, Array]:
            variables = {**parameters, BATCH_NORM: carry[0]}

            def inputs(step: Observations) -> PyTree:
                groups = self._normalized(normalizer, step)
                return self.module.apply(variables, groups, mutable=[BATCH_NORM_INPUTS])[1][BATCH_NORM_INPUTS]

            batch, accepted = _merge_steps(_empty(running), inputs, observations, valid, axis_name)
            return jax.tree.map(blend, running, batch, is_leaf=is_normalizer), accepted

        # What a layer reads depends on the statistics of the layers before it: with every pass one more is final.
        num_passes = len(jax.tree.leaves(running, is_leaf=is_normalizer))
        moved, accepted = jax.lax.fori_loop(0, num_passes, one_pass, (running, jnp.bool_(True)))
        return normalizer.replace(batch_norm=moved), accepted

    def _normalized(self, normalizer: GroupStatistics, observations: Observations) -> dict[str, Array]:
        statistics = normalizer.observations
        return {
            group: normalize(statistics[group], x, self.obs_clip, axis=1) if group in statistics else x
            for group, x in self.read(observations).items()
        }


def _empty(statistics: PyTree) -> PyTree:
    """Returns the tree with statistics of nothing in place of its statistics, which may be abstract."""
    return jax.tree.map(lambda state: init_normalizer(state.mean.shape[0]), statistics, is_leaf=is_normalizer)


def _merge_steps(
    statistics: PyTree,
    rows: Callable[[Observations], PyTree],
    observations: Observations,
    valid: Bool[Array, "T N"],
    axis_name: str | None,
) -> tuple[PyTree, Bool[Array, ""]]:
    """Merges T steps, one after the other, into a tree of statistics, and returns whether all were accepted.

    `rows` gives, of the observations of one step, a tree like `statistics` with arrays (N, C, ...): as floats, the
    images of a whole rollout would take four times the rollout's memory.
    """
    states, structure = jax.tree.flatten(statistics, is_leaf=is_normalizer)

    def merge_step(carry: tuple[list, Array], step: tuple[Observations, Array]) -> tuple[tuple[list, Array], None]:
        (states, accepted), (observations, valid) = carry, step
        arrays = structure.flatten_up_to(rows(observations))
        merged = [merge_channels(s, x, valid, axis_name) for s, x in zip(states, arrays, strict=True)]
        states = [state for state, _ in merged]
        return (states, jnp.all(jnp.array([accepted, *(flag for _, flag in merged)]))), None

    (states, accepted), _ = jax.lax.scan(merge_step, (states, jnp.bool_(True)), (observations, valid))
    return jax.tree.unflatten(structure, states), accepted


def make_model(name: str, config: Any, num_outputs: int, output_gain: float) -> Model:
    """Builds the model `name` ("actor" or "critic") of an OnPolicyRunnerConfig.

    A user's Flax module is built in the same way: whichever of `hidden_dims`, `activation`, `num_outputs`,
    `output_gain` and its own config's keys it declares as fields, it is given. It is called with the groups side by
    side, (B, n); with the class attribute `takes_groups = True` (not annotated, so that it is no field), with a dict of
    them instead, {group: (B, n) or (B, C, H, W)} in the order of `obs_groups`, normalised each.

    Raises:
        ConfigError: the class is unknown.
    """
    model_config = getattr(config, name)
    try:
        module_class = MODELS.resolve(model_config.class_name)
    except ValueError as error:
        raise ConfigError(f"runner.{name}.class_name", str(error)) from error
    offered = {field.name: getattr(model_config, field.name) for field in dataclasses.fields(model_config)}
    offered |= {"num_outputs": num_outputs, "output_gain": output_gain}
    accepted = {field.name for field in dataclasses.fields(module_class) if field.init} - {"parent", "name"}
    given = {field: value for field, value in offered.items() if field in accepted}
    # A module is hashed by its fields.
    given = {field: FrozenDict(value) if isinstance(value, dict) else value for field, value in given.items()}
    module = module_class(**given)
    groups = tuple(config.obs_groups[name])
    common = (module, groups, num_outputs, model_config.obs_normalization, model_config.obs_clip)
    if not getattr(module_class, "takes_groups", False):
        return Model(*common)
    return GroupModel(*common, images_normalized=getattr(model_config, "image_normalization", True))
