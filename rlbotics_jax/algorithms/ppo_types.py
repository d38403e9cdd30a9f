"""The pytrees of PPO: its state, and what passes from acting through a rollout to the update."""

from __future__ import annotations

from typing import Any

from flax import struct
from jaxtyping import Array, Bool, Float, PyTree, UInt32

from rlbotics_jax.algorithms.settings import Hyperparameters
from rlbotics_jax.types import Observations


@struct.dataclass
class PPOState:
    """What PPO learns and remembers between updates.

    Attributes:
        parameters: {"actor": {"network", "distribution"}, "critic": {"network"}}; gradients are clipped a top-level
            entry. Encoders that both share are the actor's, so that they are clipped and stepped once.
        normalizers: {"actor", "critic"}: the statistics of `Model.init_normalizer`, moved after each update only.
        optimizer: the optimizer's state.
        hyperparameters: current values of the config's floats, the learning rate among them.
        rejected_updates: mini-batch updates rejected in a row, up to now.
    """

    parameters: dict[str, PyTree]
    normalizers: dict[str, Any]
    optimizer: PyTree
    hyperparameters: Hyperparameters
    rejected_updates: UInt32[Array, ""]


@struct.dataclass
class ActRecord:
    """What acting knew: the observations, the sample before squashing, its log-probability, V(s_t)."""

    observations: Observations
    latent: Float[Array, "N A"]
    outputs: Float[Array, "N A"]
    log_prob: Float[Array, " N"]
    values: Float[Array, " N"]


@struct.dataclass
class Transition:
    """One step of N environments as the update needs it; a rollout is T of them stacked."""

    act: ActRecord
    rewards: Float[Array, " N"]
    terminated: Bool[Array, " N"]
    truncated: Bool[Array, " N"]
    valid: Bool[Array, " N"]
    final_values: Float[Array, " N"]


@struct.dataclass
class Samples:
    """A rollout flattened to B = T * N rows, with the targets of the update."""

    act: ActRecord
    advantages: Float[Array, " B"]
    returns: Float[Array, " B"]
    weights: Float[Array, " B"]
