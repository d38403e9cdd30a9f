"""RLBotics' own runner on the task, and what its networks compute."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from telekinesis.rlbotics.config import OnPolicyRunnerConfig
from telekinesis.rlbotics.runner import OnPolicyRunner
from tensordict import TensorDict
from torch_task import TorchTask

torch.set_num_threads(1)


def make_runner(section: dict[str, Any], shapes: dict[str, tuple[int, ...]], **task: Any) -> OnPolicyRunner:
    """The runner of a section `runner` that both libraries read."""
    return OnPolicyRunner(TorchTask(shapes, **task), OnPolicyRunnerConfig.from_dict(copy.deepcopy(section)))


def outputs_of(runner: OnPolicyRunner, inputs: TensorDict) -> dict[str, np.ndarray]:
    """As `jax_task.compute`, with the samples before squashing, `latent`, that the log-probabilities are of."""
    runner.alg.eval_mode()
    with torch.no_grad():
        actor_inputs, critic_inputs = (runner.alg.get_obs_set(inputs, name) for name in ("actor", "critic"))
        actor = runner.alg.actor
        actor(actor_inputs, stochastic=True)
        mean, std = actor.output_mean, actor.output_std
        # Near the mean and not large: where tanh saturates, RLBotics' log-probability of a squashed action is not exact.
        latent = (mean + 0.5 * std * torch.randn_like(mean)).clamp(-1.0, 1.0)
        is_squashed = "Squashed" in type(actor.distribution).__name__
        outputs = {
            "mean": mean,
            "std": std[0],
            "latent": latent,
            "log_prob": actor.get_output_log_prob(torch.tanh(latent) if is_squashed else latent),
            "actions": actor(actor_inputs, stochastic=False),
            "values": runner.alg.critic(critic_inputs)[:, 0],
        }
    runner.alg.train_mode()
    return {name: array.numpy() for name, array in outputs.items()}
