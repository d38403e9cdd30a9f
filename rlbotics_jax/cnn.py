"""Convolutional networks in Flax Linen: the image encoder, and the model that puts an MLP behind one or several.

Images are (B, C, H, W), as in torch, and so are the features: a kernel is torch's `weight` (O, I, h, w) itself, and the
features are flattened in torch's order. Only the kernels of dense layers are the transpose of torch's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.linen.dtypes import promote_dtype
from jaxtyping import Array, Float

from rlbotics_jax.config import CNNEncoderConfig, ConfigError
from rlbotics_jax.config.errors import one_of
from rlbotics_jax.convolution import convolve
from rlbotics_jax.networks import MLPModel, activate
from rlbotics_jax.normalization import along, init_normalizer

BATCH_NORM = "batch_norm"
"""The collection of the batch normalisations' running statistics, which the train step keeps beside the normalisers."""

BATCH_NORM_INPUTS = "batch_norm_inputs"
"""The collection in which an encoder leaves what its batch normalisations read, where it is asked for."""

NORM_EPSILON = 1e-5
"""Added to the variance in layer and batch normalisation; torch's value."""

# For kernels (O, I, h, w). With relu behind it, a layer keeps the second moment of what it reads.
_HE_NORMAL = nn.initializers.variance_scaling(2.0, "fan_in", "normal", in_axis=1, out_axis=0)

# What numpy calls the ways to pad; torch's zeros are the convolution's own.
_NUMPY_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer of an encoder, with the padding that its image asks for.

    Attributes:
        channels, kernel, stride, dilation, norm, max_pool: as the config has them for this layer.
        padding: rows and columns added on each side.
    """

    channels: int
    kernel: int
    stride: int
    dilation: int
    norm: str
    max_pool: bool
    padding: tuple[int, int]


def encoder_layers(config: CNNEncoderConfig, size: tuple[int, int]) -> list[Layer]:
    """Returns the layers of an encoder for images of this height and width.

    Raises:
        ConfigError: naming the key and the layer: a padding that comes out negative or is too large for its mode, or an
            image that is too small.
    """
    layers = []
    for i, channels in enumerate(config.output_channels):
        kernel, stride, dilation, norm, max_pool = (
            value[i] if isinstance(value, tuple) else value
            for value in (config.kernel_size, config.stride, config.dilation, config.norm, config.max_pool)
        )
        padding = tuple(_padding(config.padding, length, kernel, stride, dilation) for length in size)
        told = (
            f"layer {i} reads {size[0]}x{size[1]} values (kernel_size {kernel}, stride {stride}, dilation {dilation})"
        )
        if min(padding) < 0:
            raise ConfigError(
                "padding",
                f"{told}, which {config.padding!r} would pad by {padding[0]}x{padding[1]}; give the layer a larger "
                "kernel_size or a smaller stride, or set padding to none",
            )
        reach = {"reflect": [length - 1 for length in size], "circular": size}.get(config.padding, padding)
        if any(amount > most for amount, most in zip(padding, reach, strict=True)):
            raise ConfigError(
                "padding",
                f"{told}, too few for {config.padding!r} to pad by {padding[0]}x{padding[1]}; set it to zeros",
            )
        span, padded = dilation * (kernel - 1) + 1, [n + 2 * amount for n, amount in zip(size, padding, strict=True)]
        if min(padded) < span:
            raise ConfigError(
                "kernel_size",
                f"{told}, {padded[0]}x{padded[1]} with padding, but its kernel spans {span}x{span}; use a smaller "
                "kernel, fewer layers, smaller strides or no max_pool before it",
            )
        layers.append(Layer(channels, kernel, stride, dilation, norm, max_pool, padding))
        size = tuple((length - span) // stride + 1 for length in padded)
        if max_pool:
            size = tuple(math.ceil(length / 2) for length in size)
    return layers


def _padding(mode: str, length: int, kernel: int, stride: int, dilation: int) -> int:
    """Returns what RLBotics pads on each side: ceil((s floor(n / s) - n - s + d (k - 1) + 1) / 2); 0 for none."""
    if mode == "none":
        return 0
    return math.ceil((stride * (length // stride) - length - stride + dilation * (kernel - 1) + 1) / 2)


class CNNEncoder(nn.Module):
    """Layers of convolution, normalisation, activation and max pooling, then a global pooling, flattened.

    Attributes:
        config: its layers.

    Parameters of layer i: `kernel_i` (O, I, h, w), He normal, and `bias_i` (O,), zero; `scale_i` and `shift_i` of its
    normalisation, (O,) for batch and (O, H, W) for layer, one and zero.

    Batch normalisation uses running statistics only, `norm_i` in the collection `batch_norm`: those of a mini-batch
    would make the policy that learns another than the one that acted. Whoever trains the module moves them, from what
    the collection `batch_norm_inputs` gives where it is mutable.
    """

    config: CNNEncoderConfig

    @nn.compact
    def __call__(self, x: Float[Array, "B C H W"]) -> Float[Array, "B m"]:
        for i, layer in enumerate(encoder_layers(self.config, x.shape[2:])):
            shape = (layer.channels, x.shape[1], layer.kernel, layer.kernel)
            kernel = self.param(f"kernel_{i}", _HE_NORMAL, shape)
            bias = self.param(f"bias_{i}", nn.initializers.zeros, (layer.channels,))
            x, kernel, bias = promote_dtype(x, kernel, bias)  # as dense layers do: whoever asks for float64 gets it
            x = _padded(x, self.config.padding, layer.padding)
            zeros = layer.padding if self.config.padding == "zeros" else (0, 0)
            settings = (layer.stride, layer.dilation, zeros)
            if layer.norm == "batch":
                if self.is_mutable_collection(BATCH_NORM_INPUTS):
                    features = convolve(x, kernel, *settings) + along(1, bias, 4)
                    self.put_variable(BATCH_NORM_INPUTS, f"norm_{i}", features)
                kernel, bias = self._batch_normed(i, kernel, bias)
            x = convolve(x, kernel, *settings) + along(1, bias, 4)
            if layer.norm == "layer":
                scale = self.param(f"scale_{i}", nn.initializers.ones, x.shape[1:])
                shift = self.param(f"shift_{i}", nn.initializers.zeros, x.shape[1:])
                x = _standardized(x) * scale[None] + shift[None]
            x = activate(self.config.activation, x, axis=1)
            if layer.max_pool:
                x = _max_pool(x)
        if self.config.global_pool == "none":
            return jnp.reshape(x, (-1, math.prod(x.shape[1:])))  # the exporter patches this name, not the method
        return (jnp.max if self.config.global_pool == "max" else jnp.mean)(x, axis=(2, 3))

    def _batch_normed(self, i: int, kernel: Array, bias: Array) -> tuple[Array, Array]:
        """Returns kernel and bias of the convolution with the normalisation behind it, which is linear, in them."""
        size = bias.shape[0]
        scale = self.param(f"scale_{i}", nn.initializers.ones, (size,))
        shift = self.param(f"shift_{i}", nn.initializers.zeros, (size,))
        statistics = self.variable(BATCH_NORM, f"norm_{i}", init_normalizer, size).value
        scale = scale / jnp.sqrt(statistics.variance + NORM_EPSILON)
        return kernel * along(0, scale, 4), (bias - statistics.mean) * scale + shift


class CNNModel(nn.Module):
    """Encoders for the image groups, and an MLP over their features behind the vector groups: [vectors..., images...].

    Attributes:
        cnn_cfg: one encoder for all image groups, each with its own weights, or a mapping from image group to encoder.
        hidden_dims, activation, num_outputs, output_gain: of the MLP, as `MLPModel` has them.

    Submodules are `encoder_<group>` for each image group, and `head`.
    """

    cnn_cfg: CNNEncoderConfig | Mapping[str, CNNEncoderConfig]
    hidden_dims: tuple[int, ...]
    activation: str
    num_outputs: int
    output_gain: float = 1.0

    takes_groups = True  # without an annotation, which would make it a field

    @nn.compact
    def __call__(self, observations: Mapping[str, Float[Array, "B ..."]]) -> Float[Array, "B m"]:
        vectors = [x for x in observations.values() if x.ndim == 2]
        features = [
            CNNEncoder(self.encoder_config(group), name=encoder_name(group))(x)
            for group, x in observations.items()
            if x.ndim == 4
        ]
        parts = [*vectors, *features]
        x = parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)
        return MLPModel(self.hidden_dims, self.activation, self.num_outputs, self.output_gain, name="head")(x)

    def encoder_config(self, group: str) -> CNNEncoderConfig:
        """Returns the config of an image group's encoder."""
        return self.cnn_cfg[group] if isinstance(self.cnn_cfg, Mapping) else self.cnn_cfg

    def check_groups(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Checks the groups that the model reads, (n,) or (C, H, W) each, against its encoders.

        Raises:
            ConfigError: with a key of the model's config: there is no image, an encoder without its image group or an
                image group without its encoder, or an image that does not fit the encoder's layers.
        """
        images = {group: shape for group, shape in shapes.items() if len(shape) == 3}
        if not images:
            told = ", ".join(f"{group!r} {shape}" for group, shape in shapes.items())
            raise ConfigError("class_name", f"a CNNModel needs an image group (C, H, W), it reads {told}; use MLPModel")
        has_mapping = isinstance(self.cnn_cfg, Mapping)
        if has_mapping:
            for group in self.cnn_cfg:
                if group not in images:
                    raise ConfigError(f"cnn_cfg.{group}", f"it reads no such image group; {one_of(images, group)}")
            for group in images:
                if group not in self.cnn_cfg:
                    raise ConfigError("cnn_cfg", f"has no encoder for the image group {group!r}; add {group}: {{...}}")
        for group, (_, *size) in images.items():
            try:
                encoder_layers(self.encoder_config(group), tuple(size))
            except ConfigError as error:
                raise error.under(f"cnn_cfg.{group}" if has_mapping else "cnn_cfg") from None


def encoder_name(group: str) -> str:
    """Returns the name of an image group's encoder among a CNNModel's submodules."""
    return f"encoder_{group}"


def _padded(x: Float[Array, "B C H W"], mode: str, padding: tuple[int, int]) -> Array:
    """Returns x padded by what `mode` copies from inside the image; x itself where it is zeros or none.

    By indices rather than by jnp.pad, which the ONNX exporter turns into dozens of nodes.
    """
    if mode not in _NUMPY_MODES:
        return x
    for axis, amount in zip((2, 3), padding, strict=True):
        if amount:
            x = jnp.take(x, np.pad(np.arange(x.shape[axis]), amount, mode=_NUMPY_MODES[mode]), axis=axis)
    return x


def _standardized(x: Float[Array, "B C H W"]) -> Array:
    """Returns (x - mean) / sqrt(variance + 1e-5), both over (C, H, W); in two passes, which lose no digits."""
    deviations = x - jnp.mean(x, axis=(1, 2, 3), keepdims=True)
    variance = jnp.mean(jnp.square(deviations), axis=(1, 2, 3), keepdims=True)
    return deviations / jnp.sqrt(variance + NORM_EPSILON)


def _max_pool(x: Float[Array, "B C H W"]) -> Array:
    """Returns the maxima of 3x3 windows, two apart, from one beyond the edge: (B, C, ceil(H / 2), ceil(W / 2))."""
    # Padded by hand, since the ONNX exporter drops the padding of max_pool; by name, since it patches that function,
    # whose images are (B, H, W, C). It cancels the transposes.
    x = jnp.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-jnp.inf)
    x = nn.max_pool(x.transpose(0, 2, 3, 1), window_shape=(3, 3), strides=(2, 2), padding="VALID")
    return x.transpose(0, 3, 1, 2)
