"""Multi-layer perceptrons in Flax Linen, and the activations that a config can name."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

# Looked up by name at call time, `getattr(jax.nn, name)`: the ONNX exporter patches jax.nn by attribute, and a Linen
# module that held the function itself would be unequal to itself rebuilt.
_JAX_NAMES = {
    "relu": "relu",
    "elu": "elu",
    "selu": "selu",
    "lrelu": "leaky_relu",
    "leaky_relu": "leaky_relu",
    "sigmoid": "sigmoid",
    "softplus": "softplus",
    "swish": "silu",
    "mish": "mish",
    "tanh": "tanh",
}
ACTIVATIONS = (*_JAX_NAMES, "crelu", "gelu", "identity")


def activate(name: str, x: Float[Array, "..."], axis: int = -1) -> Float[Array, "..."]:
    """Returns the named activation of x. `crelu` doubles this axis: [relu(x), relu(-x)]. `gelu` is the exact form."""
    if name == "identity":
        return x
    if name == "crelu":
        return jnp.concatenate([jax.nn.relu(x), jax.nn.relu(-x)], axis=axis)
    if name == "gelu":
        return jax.nn.gelu(x, approximate=False)
    return getattr(jax.nn, _JAX_NAMES[name])(x)


class MLPModel(nn.Module):
    """Dense layers with an activation between them; the last layer is linear.

    Attributes:
        hidden_dims: width of each hidden layer; -1 is the width of the input.
        activation: one of `ACTIVATIONS`.
        num_outputs: width of the last layer.
        output_gain: gain of the last layer's orthogonal initialisation: 0.01 for an actor, so that the first policy is
            close to the mean action in every state, 1 for a critic.

    Weights are orthogonal with gain sqrt(2) in the hidden layers, biases zero (Engstrom et al., Implementation matters
    in deep policy gradients, 2020).
    """

    hidden_dims: tuple[int, ...]
    activation: str
    num_outputs: int
    output_gain: float = 1.0

    @nn.compact
    def __call__(self, x: Float[Array, "B n"]) -> Float[Array, "B m"]:
        width = x.shape[-1]
        for dim in self.hidden_dims:
            dense = nn.Dense(width if dim == -1 else dim, kernel_init=nn.initializers.orthogonal(math.sqrt(2.0)))
            x = activate(self.activation, dense(x))
        return nn.Dense(self.num_outputs, kernel_init=nn.initializers.orthogonal(self.output_gain))(x)
