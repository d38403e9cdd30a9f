"""The image encoder: literals, an independent forward pass in loops, its initialisation, and what it refuses."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlbotics_jax.cnn import CNNEncoder, CNNModel, encoder_layers
from rlbotics_jax.config import CNNEncoderConfig, ConfigError
from rlbotics_jax.config.models import ACTIVATIONS, PADDING_MODES
from rlbotics_jax.counters import zero_count
from rlbotics_jax.networks import activate
from rlbotics_jax.normalization import NormalizerState, is_normalizer

IMAGE = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]


def encode(x, kernels=(), variables=None, **config):
    """The features of one image (C, H, W), or of images (B, C, H, W), under these kernels, with biases of zero."""
    config = {"output_channels": (1,), "kernel_size": 1, "activation": "identity", **config}
    x = jnp.asarray(x, jnp.float32)
    encoder, batch = CNNEncoder(CNNEncoderConfig(**config)), x if x.ndim == 4 else x[None]
    initial = encoder.init(jax.random.key(0), batch)
    given = {f"kernel_{i}": jnp.asarray(kernel, jnp.float32) for i, kernel in enumerate(kernels)}
    params = {**initial["params"], **given, **(variables or {}).get("params", {})}
    features = encoder.apply({**initial, **(variables or {}), "params": params}, batch)
    return np.asarray(features if x.ndim == 4 else features[0])


def corner_kernel(size):
    """The kernel that returns the upper left corner of what it sees."""
    return np.eye(size * size)[0].reshape(1, 1, size, size)


@pytest.mark.parametrize(
    ("padding", "expected"),
    [
        ("none", [[1]]),
        ("zeros", [[0, 0, 0], [0, 1, 2], [0, 4, 5]]),
        ("reflect", [[5, 4, 5], [2, 1, 2], [5, 4, 5]]),
        ("replicate", [[1, 1, 2], [1, 1, 2], [4, 4, 5]]),
        ("circular", [[9, 7, 8], [3, 1, 2], [6, 4, 5]]),
    ],
)
def test_padding_literal(padding, expected):
    result = encode([IMAGE], [corner_kernel(3)], kernel_size=3, padding=padding)
    np.testing.assert_array_equal(result, np.ravel(expected))


@pytest.mark.parametrize(
    ("length", "kernel", "stride", "dilation", "amount"),
    [(16, 3, 1, 1, 1), (16, 8, 4, 1, 2), (15, 8, 4, 1, 1), (13, 3, 1, 2, 2), (12, 3, 2, 1, 1), (11, 3, 2, 1, 0)],
)
def test_automatic_amount_of_padding(length, kernel, stride, dilation, amount):
    """ceil((s floor(n / s) - n - s + d (k - 1) + 1) / 2)"""
    config = CNNEncoderConfig(
        output_channels=(1,), kernel_size=kernel, stride=stride, dilation=dilation, padding="zeros"
    )
    assert encoder_layers(config, (length, 20))[0].padding[0] == amount


def test_convolution_literal():
    """Correlation, not flipped: 1 * 1 + 2 * 5 in the first window; then a bias and two output channels."""
    kernel = np.array([[[[1.0, 0.0], [0.0, 2.0]]], [[[0.0, 1.0], [0.0, 0.0]]]])
    bias = {"params": {"bias_0": jnp.array([0.5, -1.0])}}
    result = encode([IMAGE], [kernel], bias, output_channels=(2,), kernel_size=2)
    np.testing.assert_allclose(result, [11.5, 14.5, 20.5, 23.5, 1.0, 2.0, 4.0, 5.0])


def test_stride_and_dilation_literal():
    image = np.arange(25.0).reshape(1, 5, 5)
    np.testing.assert_array_equal(encode(image, [np.ones((1, 1, 1, 1))], stride=2), [0, 2, 4, 10, 12, 14, 20, 22, 24])
    result = encode(image, [np.ones((1, 1, 2, 2))], kernel_size=2, dilation=3)
    np.testing.assert_array_equal(result, [0 + 3 + 15 + 18, 40, 56, 60])


def test_features_are_flattened_channel_by_channel():
    image = np.arange(12.0).reshape(2, 2, 3)
    identity = np.eye(2).reshape(2, 2, 1, 1)
    np.testing.assert_array_equal(encode(image, [identity], output_channels=(2,)), image.ravel())


def test_max_pool_literal():
    """Negative everywhere: what lies beyond the edge must not count as 0."""
    image = -np.arange(1.0, 17.0).reshape(1, 4, 4)
    result = encode(image, [np.ones((1, 1, 1, 1))], max_pool=True)
    np.testing.assert_array_equal(result, [-1, -2, -5, -6])


@pytest.mark.parametrize(("pool", "expected"), [("max", [9.0, 4.0]), ("avg", [5.0, -2.0])])
def test_global_pool_literal(pool, expected):
    image = np.stack([np.array(IMAGE), np.array([[4.0, -8.0, -2.0]] * 3)])
    result = encode(image, [np.eye(2).reshape(2, 2, 1, 1)], output_channels=(2,), global_pool=pool)
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_layer_norm_literal():
    """Over channels, rows and columns: {1, 3, 5, 7} has mean 4 and variance 5; scale and shift are an element's own."""
    image = np.array([[[1.0, 3.0]], [[5.0, 7.0]]])
    affine = {"scale_0": jnp.array([[[1.0, 2.0]], [[3.0, 4.0]]]), "shift_0": jnp.array([[[0.0, 0.0]], [[1.0, 1.0]]])}
    identity = np.eye(2).reshape(2, 2, 1, 1)
    result = encode(image, [identity], {"params": affine}, output_channels=(2,), norm="layer")
    np.testing.assert_allclose(result, np.array([-3, -2, 3, 12]) / math.sqrt(5 + 1e-5) + [0, 0, 1, 1], rtol=1e-6)


def test_layer_norm_keeps_its_digits_far_from_zero():
    result = encode(1000.0 + np.array([[[1.0, 3.0, 5.0, 7.0]]]), [np.ones((1, 1, 1, 1))], norm="layer")
    np.testing.assert_allclose(result, np.array([-3, -1, 1, 3]) / math.sqrt(5 + 1e-5), rtol=1e-6)


def test_batch_norm_literal():
    """(x - 3) / sqrt(4 + 1e-5) * 2 + 1 by the running statistics, whatever the batch holds."""
    variables = {
        "params": {"scale_0": jnp.array([2.0]), "shift_0": jnp.array([1.0])},
        "batch_norm": {"norm_0": NormalizerState(jnp.array([3.0]), jnp.array([4.0]), zero_count())},
    }
    result = encode([[[1.0, 3.0, 5.0]]], [np.ones((1, 1, 1, 1))], variables, norm="batch")
    np.testing.assert_allclose(result, [-1.0, 1.0, 3.0], rtol=1e-5, atol=1e-6)


def test_crelu_doubles_the_channels():
    image = np.array([[[1.0, -2.0]], [[-3.0, 4.0]]])
    result = encode(image, [np.eye(2).reshape(2, 2, 1, 1)], output_channels=(2,), activation="crelu")
    np.testing.assert_array_equal(result, [1, 0, 0, 4, 0, 2, 3, 0])


def padded_index(index, length, mode):
    """The index inside the image of one beyond its edge; None where there is a zero."""
    if 0 <= index < length:
        return index
    if mode == "reflect":
        return -index if index < 0 else 2 * (length - 1) - index
    return {"zeros": None, "replicate": min(max(index, 0), length - 1), "circular": index % length}[mode]


def looped_layer(x, kernel, bias, layer, mode):
    """One convolution in float64, element by element."""
    (batch, channels, *size), (outputs, _, side, _) = x.shape, kernel.shape
    span = layer.dilation * (side - 1) + 1
    sizes = [(n + 2 * p - span) // layer.stride + 1 for n, p in zip(size, layer.padding, strict=True)]
    result = np.zeros((batch, outputs, *sizes))
    for row, column in np.ndindex(*sizes):
        window = np.zeros((batch, channels, side, side))
        for i, j in np.ndindex(side, side):
            at = [
                padded_index(start * layer.stride - amount + k * layer.dilation, length, mode)
                for start, amount, k, length in zip((row, column), layer.padding, (i, j), size, strict=True)
            ]
            if None not in at:
                window[:, :, i, j] = x[:, :, at[0], at[1]]
        result[:, :, row, column] = np.einsum("bcij,ocij->bo", window, kernel) + bias
    return result


def looped_encoder(config, variables, x):
    """The whole encoder in float64; batch normalisation unfolded."""
    x, p = np.asarray(x, np.float64), {name: np.asarray(v, np.float64) for name, v in variables["params"].items()}
    for i, layer in enumerate(encoder_layers(config, x.shape[2:])):
        x = looped_layer(x, p[f"kernel_{i}"], p[f"bias_{i}"], layer, config.padding)
        if layer.norm == "batch":
            state = variables["batch_norm"][f"norm_{i}"]
            mean, variance, scale, shift = (
                np.asarray(v, np.float64)[None, :, None, None]
                for v in (state.mean, state.variance, p[f"scale_{i}"], p[f"shift_{i}"])
            )
            x = (x - mean) / np.sqrt(variance + 1e-5) * scale + shift
        if layer.norm == "layer":
            flat = x.reshape(len(x), -1)
            flat = (flat - flat.mean(1, keepdims=True)) / np.sqrt(flat.var(1, keepdims=True) + 1e-5)
            x = flat.reshape(x.shape) * p[f"scale_{i}"] + p[f"shift_{i}"]
        x = np.asarray(activate(config.activation, jnp.asarray(x, jnp.float32), axis=1), np.float64)
        if layer.max_pool:
            rows, columns = (math.ceil(n / 2) for n in x.shape[2:])
            pooled = np.zeros((*x.shape[:2], rows, columns))
            for r, c in np.ndindex(rows, columns):
                window = x[:, :, max(2 * r - 1, 0) : 2 * r + 2, max(2 * c - 1, 0) : 2 * c + 2]
                pooled[:, :, r, c] = window.max(axis=(2, 3))
            x = pooled
    pool = {"none": lambda x: x.reshape(len(x), -1), "max": lambda x: x.max((2, 3)), "avg": lambda x: x.mean((2, 3))}
    return pool[config.global_pool](x)


def shaken(variables, seed=0):
    """The variables with every number random, variances positive."""
    random = np.random.default_rng(seed)

    def shake(leaf):
        if is_normalizer(leaf):
            mean, variance = random.normal(size=leaf.mean.shape), random.uniform(0.3, 3.0, leaf.mean.shape)
            return leaf.replace(mean=jnp.asarray(mean, jnp.float32), variance=jnp.asarray(variance, jnp.float32))
        return leaf + jnp.asarray(0.2 * random.normal(size=leaf.shape), jnp.float32)

    return jax.tree.map(
        shake, {name: variables[name] for name in ("params", "batch_norm") if name in variables}, is_leaf=is_normalizer
    )


@pytest.mark.parametrize("padding", PADDING_MODES)
@pytest.mark.parametrize(
    "settings",
    [
        {"kernel_size": (5, 3), "stride": (2, 1), "norm": ("batch", "layer"), "max_pool": (True, False)},
        {"kernel_size": (3, 2), "stride": (1, 2), "dilation": (2, 3), "norm": ("layer", "batch"), "global_pool": "avg"},
        {
            "kernel_size": (4, 3),
            "stride": (3, 1),
            "max_pool": (False, True),
            "activation": "crelu",
            "global_pool": "max",
        },
    ],
    ids=["strided", "dilated", "pooled"],
)
def test_equals_a_forward_pass_in_loops(padding, settings):
    config = CNNEncoderConfig(output_channels=(3, 4), padding=padding, **settings)
    x = np.random.default_rng(1).normal(size=(2, 2, 17, 14)).astype(np.float32)
    encoder = CNNEncoder(config)
    variables = shaken(encoder.init(jax.random.key(0), x))
    expected = looped_encoder(config, variables, x)
    np.testing.assert_allclose(encoder.apply(variables, x), expected, rtol=1e-4, atol=1e-5 * abs(expected).max())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_comes_after_every_layer(activation):
    config = CNNEncoderConfig(output_channels=(3, 2), activation=activation)
    x = np.random.default_rng(2).normal(size=(2, 1, 6, 7)).astype(np.float32)
    encoder = CNNEncoder(config)
    variables = shaken(encoder.init(jax.random.key(0), x))
    expected = looped_encoder(config, variables, x)
    np.testing.assert_allclose(encoder.apply(variables, x), expected, rtol=1e-4, atol=1e-5)


def test_gradients_of_padded_and_pooled_layers_are_finite():
    config = CNNEncoderConfig((3,), padding="reflect", max_pool=True, norm="layer")
    encoder, x = CNNEncoder(config), jnp.zeros((2, 1, 5, 5))
    variables = encoder.init(jax.random.key(0), x)
    gradients = jax.grad(lambda v: jnp.sum(jnp.square(encoder.apply(v, x))))(variables)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize("padding", ["reflect", "replicate", "circular"])
def test_a_model_evaluated_in_float64_stays_there(padding):
    config = CNNEncoderConfig((3, 2), padding=padding, norm=("batch", "layer"), max_pool=True)
    x = np.random.default_rng(3).normal(size=(2, 1, 9, 8))
    encoder = CNNEncoder(config)
    variables = shaken(encoder.init(jax.random.key(0), x.astype(np.float32)))
    with jax.enable_x64(True):
        features = encoder.apply(variables, jnp.asarray(x))
        assert features.dtype == jnp.float64
    np.testing.assert_allclose(features, looped_encoder(config, variables, x), rtol=1e-5, atol=1e-5)


def test_initialisation():
    """Kernels are normal with variance 2 / fan_in, fan_in = 3 * 5 * 5; biases zero, scales one."""
    encoder = CNNEncoder(CNNEncoderConfig((256,), kernel_size=5, norm="batch"))
    params = encoder.init(jax.random.key(0), jnp.zeros((1, 3, 8, 8)))["params"]
    kernel = np.asarray(params["kernel_0"])
    assert kernel.shape == (256, 3, 5, 5)
    assert kernel.std() == pytest.approx(math.sqrt(2 / 75), rel=0.02) and abs(kernel.mean()) < 0.01
    assert abs(kernel).max() > 3.2 * kernel.std()  # not truncated
    np.testing.assert_array_equal(params["bias_0"], np.zeros(256))
    np.testing.assert_array_equal(params["scale_0"], np.ones(256))
    np.testing.assert_array_equal(params["shift_0"], np.zeros(256))


@pytest.mark.parametrize(
    ("settings", "size", "message"),
    [
        (
            {"padding": "zeros", "kernel_size": (3, 1), "stride": (1, 4)},
            (8, 8),
            r"padding: layer 1 reads 8x8 values \(kernel_size 1, stride 4, dilation 1\), which 'zeros' would pad by "
            "-1x-1; give the layer a larger kernel_size or a smaller stride, or set padding to none",
        ),
        (
            {"padding": "reflect", "kernel_size": (3, 9)},
            (8, 4),
            r"padding: layer 1 reads 8x4 values .*too few for 'reflect' to pad by 4x4; set it to zeros",
        ),
        (
            {"padding": "circular", "kernel_size": (3, 11)},
            (8, 4),
            r"padding: layer 1 reads 8x4 values .*too few for 'circular' to pad by 5x5; set it to zeros",
        ),
        (
            {"kernel_size": 5, "max_pool": True},
            (12, 30),
            r"kernel_size: layer 1 reads 4x13 values .*, 4x13 with padding, but its kernel spans 5x5; use a smaller",
        ),
    ],
)
def test_images_that_do_not_fit_are_refused_with_the_layer(settings, size, message):
    config = CNNEncoderConfig(output_channels=(2, 2), **settings)
    with pytest.raises(ConfigError, match=message):
        encoder_layers(config, size)


def test_features_that_are_not_flattened_are_refused():
    with pytest.raises(ConfigError, match="flatten: must be true, since an MLP reads the features, got false"):
        CNNEncoderConfig(flatten=False)


def test_the_model_joins_vectors_then_images_each_in_order():
    """The head's first kernel is the identity, so that it shows what it reads."""
    encoder = CNNEncoderConfig((1,), kernel_size=1, activation="identity")
    model = CNNModel(encoder, (6,), "identity", 6)
    groups = {
        "left": jnp.full((1, 1, 1, 2), 10.0),
        "speed": jnp.array([[1.0]]),
        "right": jnp.full((1, 1, 1, 1), 20.0),
        "angle": jnp.array([[2.0, 3.0]]),
    }
    params = model.init(jax.random.key(0), groups)["params"]
    assert set(params) == {"encoder_left", "encoder_right", "head"}
    assert not np.allclose(params["encoder_left"]["kernel_0"], params["encoder_right"]["kernel_0"])
    one = {"kernel_0": jnp.ones((1, 1, 1, 1)), "bias_0": jnp.zeros(1)}
    dense = {"kernel": jnp.eye(6), "bias": jnp.zeros(6)}
    params = {"encoder_left": one, "encoder_right": one, "head": {"Dense_0": dense, "Dense_1": dense}}
    np.testing.assert_array_equal(model.apply({"params": params}, groups), [[1, 2, 3, 10, 10, 20]])


def test_a_model_equals_itself_rebuilt():
    """Otherwise the compiled train step would be thrown away with every new model."""
    first, second = (CNNModel(CNNEncoderConfig(stride=[2, 1, 1]), (4,), "elu", 2) for _ in range(2))
    assert first == second and hash(first) == hash(second)
