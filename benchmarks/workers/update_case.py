"""What both update workers start from: sizes, settings, and a random rollout and weights drawn with numpy.

The numbers of RLBotics' shipped locomotion files: adaptive schedule, observation normalisation on both networks.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

OBSERVATIONS, ACTIONS, STEPS = 48, 12, 24
HIDDEN = (512, 256, 128)
EPOCHS, MINI_BATCHES = 5, 4
SETTINGS = {
    "optimizer": "adam",
    "learning_rate": 1e-3,
    "num_learning_epochs": EPOCHS,
    "num_mini_batches": MINI_BATCHES,
    "schedule": "adaptive",
    "desired_kl": 0.01,
    "clip_param": 0.2,
    "entropy_coef": 0.005,
    "gamma": 0.99,
    "lam": 0.95,
    "max_grad_norm": 1.0,
    "value_loss_coef": 1.0,
    "use_clipped_value_loss": False,
}
"""Fields of PPOConfig, which both libraries have under these names."""

STD_RANGE = (0.2, 2.0)


@dataclasses.dataclass(frozen=True)
class Case:
    """One rollout of N environments. The observations hold one step more than the rest, for the last value.

    Attributes:
        observations: (T + 1, N, 48), with a mean and a scale of its own for each number, as sensors have.
        statistics: (T, N, 48), an earlier rollout, which fills the normaliser.
        noise: (T, N, 12), standard normal; the action is mean + std * noise.
        rewards: (T, N).
        dones: (T, N), about one in a hundred, all of them terminations.
        weights: for "actor" and "critic", (kernel, bias) of each layer; kernels are (inputs, outputs).
    """

    observations: np.ndarray
    statistics: np.ndarray
    noise: np.ndarray
    rewards: np.ndarray
    dones: np.ndarray
    weights: dict[str, list[tuple[np.ndarray, np.ndarray]]]


def random_case(num_envs: int) -> Case:
    """Returns the case of this size; the same numbers wherever it is called."""
    generator = np.random.default_rng(0)
    shape = (STEPS, num_envs)
    mean, scale = generator.normal(size=OBSERVATIONS), generator.uniform(0.5, 2.0, OBSERVATIONS)

    def normal(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape, np.float32)

    def layers(num_outputs: int) -> list[tuple[np.ndarray, np.ndarray]]:
        widths = (OBSERVATIONS, *HIDDEN, num_outputs)
        return [
            (normal(inputs, outputs) / np.float32(np.sqrt(inputs)), np.zeros(outputs, np.float32))
            for inputs, outputs in itertools.pairwise(widths)
        ]

    statistics, observations = (
        (mean + scale * normal(steps, num_envs, OBSERVATIONS)).astype(np.float32) for steps in (STEPS, STEPS + 1)
    )
    return Case(
        observations=observations,
        statistics=statistics,
        noise=normal(*shape, ACTIONS),
        rewards=normal(*shape),
        dones=generator.random(shape) < 0.01,
        weights={"actor": layers(ACTIONS), "critic": layers(1)},
    )
