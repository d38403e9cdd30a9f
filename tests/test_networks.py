"""Activations against their formulas, widths, and the initialisation of the MLP."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlbotics_jax.config.models import ACTIVATIONS as CONFIG_ACTIVATIONS
from rlbotics_jax.networks import ACTIVATIONS, MLPModel, activate

SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772
X = np.array([[-30.0, -3.0, -1.0, -0.1, 0.0, 0.2, 1.0, 2.5, 30.0]])


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def softplus(x):
    return np.log1p(np.exp(x))


FORMULAS = {
    "relu": lambda x: np.maximum(x, 0.0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "selu": lambda x: SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(x)),
    "crelu": lambda x: np.concatenate([np.maximum(x, 0.0), np.maximum(-x, 0.0)], axis=-1),
    "lrelu": lambda x: np.where(x > 0, x, 0.01 * x),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "softplus": softplus,
    "gelu": lambda x: 0.5 * x * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0))),
    "swish": lambda x: x * sigmoid(x),
    "mish": lambda x: x * np.tanh(softplus(x)),
    "identity": lambda x: x,
}


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_activation(name):
    np.testing.assert_allclose(activate(name, jnp.asarray(X, jnp.float32)), FORMULAS[name](X), rtol=2e-5, atol=2e-6)


def test_every_name_a_config_accepts_is_built():
    assert set(FORMULAS) == set(ACTIVATIONS) == set(CONFIG_ACTIVATIONS)


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_activation_gradient_is_finite_far_out(name):
    gradient = jax.grad(lambda x: activate(name, x).sum())(jnp.array([[-1e4, -100.0, 0.0, 100.0, 1e4]]))
    assert bool(jnp.isfinite(gradient).all())


def kernels(module, num_inputs, key=0):
    """Kernels and biases in order, by a forward pass over a batch of two."""
    parameters = module.init(jax.random.key(key), jnp.zeros((2, num_inputs)))["params"]
    layers = [parameters[f"Dense_{i}"] for i in range(len(parameters))]
    return [layer["kernel"] for layer in layers], [layer["bias"] for layer in layers]


def test_minus_one_is_the_width_of_the_input():
    weights, _ = kernels(MLPModel((8, -1, 4), "elu", 3), 6)
    assert [weight.shape for weight in weights] == [(6, 8), (8, 6), (6, 4), (4, 3)]


def test_crelu_doubles_what_the_next_layer_reads():
    weights, _ = kernels(MLPModel((8, 4), "crelu", 3), 6)
    assert [weight.shape for weight in weights] == [(6, 8), (16, 4), (8, 3)]


@pytest.mark.parametrize("gain", [0.01, 1.0])
def test_orthogonal_with_gains_and_zero_biases(gain):
    """K^T K = gain^2 I where a layer narrows, K K^T = gain^2 I where it widens."""
    weights, biases = kernels(MLPModel((16, 8), "elu", 3, gain), 6)
    for weight, expected in zip(weights, (math.sqrt(2.0), math.sqrt(2.0), gain), strict=True):
        gram = weight.T @ weight if weight.shape[0] >= weight.shape[1] else weight @ weight.T
        np.testing.assert_allclose(gram, expected**2 * np.eye(len(gram)), atol=2e-6)
    for bias in biases:
        np.testing.assert_array_equal(bias, np.zeros_like(bias))


def test_seeds_differ():
    (first, *_), _ = kernels(MLPModel((8,), "elu", 3), 6, key=0)
    (second, *_), _ = kernels(MLPModel((8,), "elu", 3), 6, key=1)
    assert not np.allclose(first, second)


def test_forward_pass_has_a_linear_last_layer():
    module, x = MLPModel((4,), "tanh", 2), jax.random.normal(jax.random.key(1), (5, 3))
    (first, last), (bias, last_bias) = kernels(module, 3)
    parameters = module.init(jax.random.key(0), jnp.zeros((2, 3)))
    expected = np.tanh(x @ first + bias[None]) @ last + last_bias[None]
    np.testing.assert_allclose(module.apply(parameters, x), expected, rtol=1e-5, atol=1e-6)


def test_a_module_equals_itself_rebuilt():
    """Otherwise the compiled train step would be thrown away with every new module."""
    assert MLPModel((4,), "mish", 2) == MLPModel((4,), "mish", 2)
    assert hash(MLPModel((4,), "mish", 2)) == hash(MLPModel((4,), "mish", 2))
