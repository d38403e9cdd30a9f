"""Action distributions: diagonal Gaussian and tanh-squashed Gaussian with a state-independent standard deviation.

A distribution is a frozen record of settings. Its learned parameters (the standard deviation) are a small dict that the
algorithm keeps beside the network's; the network's outputs are the mean. All functions work in the *latent* space: the
sample before squashing is what is stored, so that a log-probability never has to invert a saturated tanh.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

LOG_2PI = math.log(2.0 * math.pi)
Parameters = dict[str, Float[Array, " A"]]


@dataclasses.dataclass(frozen=True)
class GaussianDistribution:
    """N(mean, diag(std^2)), the mean from the network, the standard deviation a learned parameter.

    Attributes:
        init_std: initial standard deviation, inside `std_range`.
        std_range: bounds of the standard deviation. The stored parameter is projected onto them after every step: a
            clamp inside the graph has no gradient outside its bounds, so a std that touched one would stay there.
        std_type: the parameter is the standard deviation itself (`scalar`) or its logarithm (`log`).
        learn_std: False keeps the parameter constant, to the bit.
    """

    init_std: float = 1.0
    std_range: tuple[float, float] = (1e-6, 1e6)
    std_type: str = "scalar"
    learn_std: bool = True

    @classmethod
    def from_config(cls, config) -> GaussianDistribution:
        """Builds the distribution from a GaussianDistributionConfig."""
        return cls(config.init_std, tuple(config.std_range), config.std_type, config.learn_std)

    def num_outputs(self, num_actions: int) -> int:
        """Returns how many outputs the network needs for `num_actions` actions."""
        return num_actions

    def init(self, num_actions: int) -> Parameters:
        """Returns the initial parameters: `std` or `log_std`, each (A,)."""
        if self.std_type == "log":
            return {"log_std": jnp.full((num_actions,), math.log(self.init_std), jnp.float32)}
        return {"std": jnp.full((num_actions,), self.init_std, jnp.float32)}

    def std(self, parameters: Parameters) -> Float[Array, " A"]:
        """Returns the standard deviation, without gradient where it is not learned."""
        std = jnp.exp(parameters["log_std"]) if self.std_type == "log" else parameters["std"]
        return std if self.learn_std else jax.lax.stop_gradient(std)

    def constrain(self, new: Parameters, old: Parameters) -> Parameters:
        """Returns what an optimizer step may leave: `new` projected onto the bounds; `old` where std is not learned."""
        if not self.learn_std:
            return old
        low, high = self.std_range
        if self.std_type == "log":
            return {"log_std": jnp.clip(new["log_std"], math.log(low), math.log(high))}
        return {"std": jnp.clip(new["std"], low, high)}

    def sample(self, parameters: Parameters, outputs: Float[Array, "... A"], key: Array) -> Float[Array, "... A"]:
        """Returns a latent sample mean + std * noise."""
        noise = jax.random.normal(key, outputs.shape, outputs.dtype)
        return outputs + self._std_like(parameters, outputs) * noise

    def action(self, latent: Float[Array, "... A"]) -> Float[Array, "... A"]:
        """Returns the action that a latent sample stands for."""
        return latent

    def mode(self, outputs: Float[Array, "... A"]) -> Float[Array, "... A"]:
        """Returns the deterministic action: the mean, mapped as a sample is."""
        return self.action(outputs)

    def log_prob(
        self, parameters: Parameters, outputs: Float[Array, "... A"], latent: Float[Array, "... A"]
    ) -> Float[Array, "..."]:
        """Returns log p(action(latent)), summed over the actions:

        -sum_i [ (z_i - mean_i)^2 / (2 std_i^2) + log std_i + log(2 pi) / 2 ]
        """
        std = self._std_like(parameters, outputs)
        standardised = (latent - outputs) / std
        return -jnp.sum(0.5 * jnp.square(standardised) + jnp.log(std) + 0.5 * LOG_2PI, axis=-1)

    def entropy(self, parameters: Parameters, outputs: Float[Array, "... A"]) -> Float[Array, "..."]:
        """Returns the differential entropy sum_i [ log std_i + (1 + log(2 pi)) / 2 ]."""
        entropy = jnp.sum(jnp.log(self.std(parameters)) + 0.5 * (1.0 + LOG_2PI), axis=-1)
        return jnp.broadcast_to(entropy, outputs.shape[:-1])

    def kl(
        self,
        old_parameters: Parameters,
        old_outputs: Float[Array, "... A"],
        new_parameters: Parameters,
        new_outputs: Float[Array, "... A"],
    ) -> Float[Array, "..."]:
        """Returns KL(old || new), summed over the actions:

            1/2 sum_i [ r_i - 1 - log r_i + ((mean_new - mean_old)_i / std_new_i)^2 ],    r = (std_old / std_new)^2

        This form is exactly 0 for equal distributions; the textbook form leaves rounding of either sign.
        A bijection changes no divergence, so it holds for the squashed Gaussian too.
        """
        old_std, new_std = (self._std_like(parameters, new_outputs) for parameters in (old_parameters, new_parameters))
        ratio = jnp.square(old_std / new_std)
        shift = jnp.square((new_outputs - old_outputs) / new_std)
        return 0.5 * jnp.sum(ratio - 1.0 - jnp.log(ratio) + shift, axis=-1)

    def _std_like(self, parameters: Parameters, outputs: Float[Array, "... A"]) -> Float[Array, "... A"]:
        """Returns the standard deviation, repeated for every row of `outputs`."""
        return jnp.broadcast_to(self.std(parameters), outputs.shape)


# 64 nodes of the trapezoidal rule on [-5.5, 5.5] standard deviations. For an analytic integrand times a Gaussian the
# rule converges geometrically: 1e-6 up to std 2, 1e-3 at std 8.
_NODES = np.linspace(-5.5, 5.5, 64)
_WEIGHTS = np.exp(-0.5 * _NODES**2) / np.exp(-0.5 * _NODES**2).sum()


@dataclasses.dataclass(frozen=True)
class SquashedGaussianDistribution(GaussianDistribution):
    """tanh of a Gaussian sample: actions in (-1, 1), with the exact change of variables."""

    def action(self, latent: Float[Array, "... A"]) -> Float[Array, "... A"]:
        """Returns tanh(latent)."""
        return jnp.tanh(latent)

    def log_prob(
        self, parameters: Parameters, outputs: Float[Array, "... A"], latent: Float[Array, "... A"]
    ) -> Float[Array, "..."]:
        """Returns the density of a = tanh(z): log N(z) - sum_i log(1 - tanh(z_i)^2)."""
        return super().log_prob(parameters, outputs, latent) - jnp.sum(_log_tanh_slope(latent), axis=-1)

    def entropy(self, parameters: Parameters, outputs: Float[Array, "... A"]) -> Float[Array, "..."]:
        """Returns H(a) = H(z) + sum_i E[log(1 - tanh(z_i)^2)], the expectation by quadrature."""
        nodes = jnp.asarray(_NODES, outputs.dtype)
        spread = self.std(parameters)[:, None] * nodes[None, :]
        latents = outputs[..., None] + jnp.broadcast_to(spread, (*outputs.shape, len(_NODES)))
        slope = _log_tanh_slope(latents) @ jnp.asarray(_WEIGHTS, outputs.dtype)
        return super().entropy(parameters, outputs) + jnp.sum(slope, axis=-1)


def _log_tanh_slope(latent: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns log(1 - tanh(z)^2) = 2 (log 2 - |z| - log(1 + exp(-2 |z|))), finite for every z."""
    magnitude = jnp.abs(latent)
    return 2.0 * (math.log(2.0) - magnitude - jnp.log1p(jnp.exp(-2.0 * magnitude)))
