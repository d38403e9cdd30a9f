"""Configs of actor and critic networks and of the action distribution."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlbotics_jax.config.base import ConfigBase
from rlbotics_jax.config.choice import chosen_config
from rlbotics_jax.config.errors import ConfigError, one_of, shown
from rlbotics_jax.registry import DISTRIBUTIONS, MODELS

ACTIVATIONS = (
    "relu",
    "elu",
    "selu",
    "crelu",
    "lrelu",
    "leaky_relu",
    "tanh",
    "sigmoid",
    "softplus",
    "gelu",
    "swish",
    "mish",
    "identity",
)
STD_TYPES = ("scalar", "log")
PADDING_MODES = ("none", "zeros", "reflect", "replicate", "circular")
NORM_TYPES = ("none", "batch", "layer")
GLOBAL_POOL_TYPES = ("none", "max", "avg")


@dataclass(frozen=True)
class GaussianDistributionConfig(ConfigBase):
    """A diagonal Gaussian over actions whose standard deviation does not depend on the state.

    Attributes:
        class_name: GaussianDistribution, SquashedGaussianDistribution (through tanh), an import path or a class.
        init_std: first standard deviation, in units of the normalised action. 1.0 covers the action range [-1, 1] from
            the first rollout on; every shipped RLBotics file has it.
        std_range: smallest and largest standard deviation; the parameter is projected into it after every step. The
            default does not bound in practice; the files of RLBotics have [0.2, 1.5] or [0.2, 2.0], to keep exploring.
        std_type: what the trained parameter is: the standard deviation itself (scalar) or its logarithm (log). scalar
            is RLBotics' default.
        learn_std: whether it is trained. true, since a policy must be able to settle.
    """

    class_name: str | type = "GaussianDistribution"
    init_std: float = 1.0
    std_range: tuple[float, float] = (1e-6, 1e6)
    std_type: str = "scalar"
    learn_std: bool = True

    def validate(self) -> None:
        super().validate()
        self.check_class_name(DISTRIBUTIONS)
        self.check_one_of("std_type", STD_TYPES)
        self.check_positive("init_std")
        low, high = self.std_range
        if not 0.0 < low < high:
            raise ConfigError("std_range", f"must be [min, max] with 0 < min < max, got [{low}, {high}]")
        if not low <= self.init_std <= high:
            raise ConfigError("init_std", f"must lie in std_range [{low}, {high}], got {self.init_std}")


def _distribution(value: Any) -> ConfigBase | None:
    return None if value is None else chosen_config(value, DISTRIBUTIONS, GaussianDistributionConfig)


@dataclass(frozen=True)
class MLPConfig(ConfigBase):
    """A multi-layer perceptron, as actor (with a distribution) or critic (without).

    Attributes:
        class_name: MLPModel, an import path `module:Class` or a class: a Flax module of your own.
        hidden_dims: widths of the hidden layers; -1 is the width of the input; one number is one layer. Three layers of
            256 are RLBotics' default, sized for locomotion with dozens of joints.
        activation: relu, elu, selu, crelu, lrelu, leaky_relu, tanh, sigmoid, softplus, gelu, swish, mish or identity.
            elu is smooth and is what all shipped files use.
        obs_normalization: subtract the running mean and divide by the running standard deviation. The first rollout of
            a run then only fills the statistics and teaches nothing (docs/defaults.md). false, as in
            RLBotics, though all of its shipped files switch it on.
        obs_clip: bound on the absolute value of a normalised observation, or null. null keeps RLBotics' formula, so
            that its checkpoints mean the same; a bound protects against a feature that was constant and then changes.
        distribution_cfg: the action distribution; the actor needs one, a critic has none.
    """

    class_name: str | type = "MLPModel"
    hidden_dims: tuple[int, ...] = (256, 256, 256)
    activation: str = "elu"
    obs_normalization: bool = False
    obs_clip: float | None = None
    distribution_cfg: ConfigBase | None = field(default=None, metadata={"parse": _distribution})

    def validate(self) -> None:
        super().validate()
        self.check_class_name(MODELS)
        self.check_not_empty("hidden_dims")
        for i, width in enumerate(self.hidden_dims):
            if width != -1 and width <= 0:
                raise ConfigError(
                    f"hidden_dims[{i}]", f"must be greater than 0, or -1 for the input width, got {width}"
                )
        self.check_one_of("activation", ACTIVATIONS)
        self.check_positive("obs_clip")


@dataclass(frozen=True)
class CNNEncoderConfig(ConfigBase):
    """A stack of convolutions over images (C, H, W). Values per layer: one for all layers, or a list of one per layer.

    Attributes:
        output_channels: channels of each layer; its length is the number of layers. Three layers, as in RLBotics.
        kernel_size: side of the square kernel, per layer. 3 is the smallest centred kernel.
        stride: stride of the convolution, per layer. 1 leaves nothing out.
        dilation: spacing of the kernel's points, per layer. 1 has no gaps.
        padding: none, zeros, reflect, replicate or circular, by as much as RLBotics does: about half of what the kernel
            spans, less with a stride. none, as in RLBotics.
        norm: none, batch or layer, per layer. batch divides by running statistics, which move once an iteration. none,
            since every move of the statistics disturbs what was learned on the ones before.
        activation: after each layer, by one of the names that the MLP's activation has; crelu doubles the channels. elu
            as there.
        max_pool: whether to pool (3x3, stride 2, padding 1) after a layer, per layer. false, as in RLBotics.
        global_pool: none, max or avg over the last feature map; none keeps where things are in the image.
        flatten: true; the MLP behind it cannot read features that are not flattened.
    """

    output_channels: tuple[int, ...] = (32, 64, 64)
    kernel_size: int | tuple[int, ...] = 3
    stride: int | tuple[int, ...] = 1
    dilation: int | tuple[int, ...] = 1
    padding: str = "none"
    norm: str | tuple[str, ...] = "none"
    activation: str = "elu"
    max_pool: bool | tuple[bool, ...] = False
    global_pool: str = "none"
    flatten: bool = True

    def validate(self) -> None:
        super().validate()
        self.check_not_empty("output_channels")
        num_layers = len(self.output_channels)
        for name in ("kernel_size", "stride", "dilation", "norm", "max_pool"):
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != num_layers:
                raise ConfigError(name, f"must be one value or {num_layers}, one per layer, got {shown(value)}")
        for name in ("output_channels", "kernel_size", "stride", "dilation"):
            for key, entry in self._entries(name):
                if entry <= 0:
                    raise ConfigError(key, f"must be greater than 0, got {entry}")
        for key, entry in self._entries("norm"):
            if entry not in NORM_TYPES:
                raise ConfigError(key, f"got {shown(entry)}; {one_of(NORM_TYPES, entry)}")
        self.check_one_of("padding", PADDING_MODES)
        self.check_one_of("activation", ACTIVATIONS)
        self.check_one_of("global_pool", GLOBAL_POOL_TYPES)
        if not self.flatten:
            raise ConfigError("flatten", "must be true, since an MLP reads the features, got false")

    def _entries(self, name: str) -> list[tuple[str, Any]]:
        value = getattr(self, name)
        return (
            [(f"{name}[{i}]", entry) for i, entry in enumerate(value)] if isinstance(value, tuple) else [(name, value)]
        )


def _encoders(value: Any) -> CNNEncoderConfig | dict[str, CNNEncoderConfig] | None:
    """One encoder for all image groups, or a mapping of groups to encoders: the one whose values are mappings."""
    if value is None or isinstance(value, CNNEncoderConfig):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError("", f"must be an encoder, a mapping of groups to encoders or null, got {shown(value)}")
    if not any(isinstance(item, Mapping | CNNEncoderConfig) for item in value.values()):
        return CNNEncoderConfig.from_dict(value)
    return {
        group: item if isinstance(item, CNNEncoderConfig) else CNNEncoderConfig.from_dict(item, str(group))
        for group, item in value.items()
    }


@dataclass(frozen=True)
class CNNConfig(MLPConfig):
    """An MLP behind convolutional encoders, one for each image among the observation groups; vectors join behind them.

    Every key of `MLPConfig` configures the MLP.

    Attributes:
        class_name: CNNModel, or a Flax module of your own (see `rlbotics_jax.models.make_model`).
        cnn_cfg: one encoder, of which each image group has its own copy, or a mapping from image group to encoder. It
            has no useful default, since images differ, and must be given.
        image_normalization: whether obs_normalization is for images too, which are normalised by channel; false is for
            the vectors beside them alone, as in rsl_rl. true, so that the switch means all observations.
    """

    class_name: str | type = "CNNModel"
    cnn_cfg: CNNEncoderConfig | dict[str, CNNEncoderConfig] | None = field(default=None, metadata={"parse": _encoders})
    image_normalization: bool = True

    def validate(self) -> None:
        super().validate()
        if self.cnn_cfg is None:
            names = ", ".join(item.name for item in dataclasses.fields(CNNEncoderConfig))
            raise ConfigError("cnn_cfg", f"a CNNModel needs an encoder: a mapping with keys of {names}, got null")


def model_config(value: Any) -> ConfigBase:
    """The config of `runner.actor` or `runner.critic`: by `class_name`, or CNNConfig where only `cnn_cfg` tells."""
    names_cnn = isinstance(value, Mapping) and "cnn_cfg" in value and "class_name" not in value
    config = chosen_config(value, MODELS, CNNConfig if names_cnn else MLPConfig)
    if not isinstance(config, MLPConfig):
        raise ConfigError("class_name", f"a model's config must derive from MLPConfig, not {type(config).__name__}")
    return config
