"""Change the algorithm: PPO whose entropy bonus fades, so that it explores early and settles late.

An algorithm is a class with pure methods; PPO's can be overridden one by one. Its settings are a config of its own,
which validates itself, and which a YAML file reaches by naming the class:

    runner:
      algorithm:
        class_name: custom_algorithm:EntropyDecayPPO
        entropy_decay: 0.95

    python examples/custom_algorithm.py                     # about a minute on two CPU cores
    python examples/custom_algorithm.py --iterations 5
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import tyro

from rlbotics_jax import PPO, ConfigError, load_config, train
from rlbotics_jax.config import PPOConfig


@dataclasses.dataclass(frozen=True)
class EntropyDecayConfig(PPOConfig):
    """PPO's keys, and two more: after every iteration the entropy bonus shrinks by a factor, down to a floor."""

    entropy_decay: float = 0.95
    min_entropy_coef: float = 1e-4

    def validate(self) -> None:
        super().validate()
        self.check_range("entropy_decay", 0.0, 1.0)
        if not 0.0 <= self.min_entropy_coef <= self.entropy_coef:
            raise ConfigError(
                "min_entropy_coef", f"must be in [0, entropy_coef = {self.entropy_coef}], got {self.min_entropy_coef}"
            )


class EntropyDecayPPO(PPO):
    """PPO that multiplies `entropy_coef` by `entropy_decay` after every update."""

    config_class = EntropyDecayConfig

    def update(self, state, *arguments):
        state, metrics = super().update(state, *arguments)
        now = state.hyperparameters  # the config's floats live in the state: they change without a new compilation
        entropy_coef = jnp.maximum(now["entropy_coef"] * now["entropy_decay"], now["min_entropy_coef"])
        state = state.replace(hyperparameters={**now, "entropy_coef": entropy_coef})
        return state, {**metrics, "entropy_coef": entropy_coef}  # logged as Loss/entropy_coef


def main(iterations: int = 100) -> None:
    """Trains CartpoleBalance with the algorithm above, and prints how the entropy bonus faded."""
    values = load_config("CartpoleBalance").to_dict()
    values["runner"]["num_learning_iterations"] = iterations
    values["runner"]["algorithm"] |= {"class_name": EntropyDecayPPO, "entropy_decay": 0.9}
    values["runner"]["logger"]["log_dir"] = None

    history = train(values).history
    faded = history["Loss/entropy_coef"]
    print(f"The entropy bonus went from {faded[0]:.5f} to {faded[-1]:.5f} in {iterations} iterations.")
    print(f"Return of the last episodes: {history['Episodes/mean_reward'][-1]:.0f} of 1000")


if __name__ == "__main__":
    tyro.cli(main)
