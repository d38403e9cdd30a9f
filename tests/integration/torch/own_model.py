"""A Flax module of one's own, which torch has no counterpart of."""

from __future__ import annotations

from flax import linen as nn


class OwnModel(nn.Module):
    """One dense layer."""

    num_outputs: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.num_outputs)(x)
