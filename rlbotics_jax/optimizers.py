"""The four optimizers a config can name, with torch's default arguments, and clipping by global norm.

An optimizer here gives a *direction*; the step is `parameters - learning_rate * direction`, so that the learning rate
is an ordinary array of the train state, which the adaptive rule changes and vmap maps over.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

OPTIMIZERS = {
    "adam": lambda: optax.scale_by_adam(b1=0.9, b2=0.999, eps=1e-8),
    # torch.optim.AdamW decays by 1e-2 (optax.adamw by 1e-4)
    "adamw": lambda: optax.chain(optax.scale_by_adam(b1=0.9, b2=0.999, eps=1e-8), optax.add_decayed_weights(1e-2)),
    "sgd": optax.identity,
    # torch.optim.RMSprop: alpha 0.99, epsilon outside the root (optax: 0.9, inside)
    "rmsprop": lambda: optax.scale_by_rms(decay=0.99, eps=1e-8, eps_in_sqrt=False),
}


def make_optimizer(name: str) -> optax.GradientTransformation:
    """Returns the named optimizer (adam, adamw, sgd, rmsprop) without its learning rate."""
    return OPTIMIZERS[name]()


def clip_by_global_norm(gradients: PyTree, max_norm: Float[Array, ""] | float) -> tuple[PyTree, Float[Array, ""]]:
    """Returns g * min(1, max_norm / (|g| + 1e-6)) and the norm |g| over all leaves, as torch's clip_grad_norm_.

    The norm is finite only where every element is, and the sum of their squares does not overflow.
    """
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(gradient)) for gradient in jax.tree.leaves(gradients)))
    scale = jnp.minimum(1.0, max_norm / (norm + 1e-6))
    return jax.tree.map(lambda gradient: gradient * scale, gradients), norm
