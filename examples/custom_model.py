"""Bring a network of your own: a residual network with layer normalisation, as actor and as critic.

A network is a Flax Linen module from (batch, n) to (batch, num_outputs). Whichever of these fields it declares, it is
given: `hidden_dims` and `activation` from the config, `num_outputs`, and `output_gain`, the gain that the last layer's
initial weights should have (small for an actor). A YAML file names it, too:

    runner:
      actor:
        class_name: custom_model:ResidualModel

Observations are normalised in front of it, and the ONNX export takes it as it is.

    python examples/custom_model.py                     # about a minute on two CPU cores
    python examples/custom_model.py --iterations 5
"""

from __future__ import annotations

import flax.linen as nn
import tyro

from rlbotics_jax import load_config, train
from rlbotics_jax.networks import activate


class ResidualModel(nn.Module):
    """Blocks x + Dense(activation(Dense(LayerNorm(x)))), one for each of `hidden_dims`, which are the inner widths."""

    hidden_dims: tuple[int, ...]
    activation: str
    num_outputs: int
    output_gain: float
    width: int = 64

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(self.width)(x)
        for dim in self.hidden_dims:
            inner = activate(self.activation, nn.Dense(dim)(nn.LayerNorm()(x)))
            x = x + nn.Dense(self.width)(inner)
        return nn.Dense(self.num_outputs, kernel_init=nn.initializers.orthogonal(self.output_gain))(x)


def main(iterations: int = 100) -> None:
    """Trains CartpoleBalance with the network above, and exports it."""
    values = load_config("CartpoleBalance").to_dict()
    values["runner"]["num_learning_iterations"] = iterations
    values["runner"]["logger"]["log_dir"] = None
    for model in ("actor", "critic"):
        values["runner"][model] |= {"class_name": ResidualModel, "hidden_dims": [64, 64]}

    result = train(values)
    print(f"Return of the last episodes: {result.history['Episodes/mean_reward'][-1]:.0f} of 1000")
    print(f"Wrote {result.policy.export('residual_policy.onnx')}")


if __name__ == "__main__":
    tyro.cli(main)
