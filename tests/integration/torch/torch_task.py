"""A task for the PyTorch libraries, without physics: observations far from mean 0 and std 1. It needs torch alone."""

from __future__ import annotations

import torch
from tensordict import TensorDict

NUM_ENVS, NUM_ACTIONS, EPISODE_LENGTH = 8, 3, 6
VECTORS = {"joints": (5,), "command": (2,), "privileged": (4,)}
IMAGES = {"camera": (2, 9, 8)}


class TorchTask:
    """The environment of RLBotics' and rsl_rl's runners. The reward is highest for the action 0.5."""

    num_envs, num_actions, max_episode_length, device, cfg = NUM_ENVS, NUM_ACTIONS, EPISODE_LENGTH, "cpu", {}

    def __init__(self, shapes: dict[str, tuple[int, ...]], bounds: tuple[list[float], list[float]] | None = None):
        self.shapes = shapes
        self.episode_length_buf = torch.arange(NUM_ENVS) % EPISODE_LENGTH
        if bounds is not None:
            self.action_low, self.action_high = (torch.tensor(bound) for bound in bounds)

    def get_observations(self) -> TensorDict:
        return observations(self.shapes, NUM_ENVS)

    def reset(self) -> TensorDict:
        return self.get_observations()

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        self.episode_length_buf += 1
        time_outs = self.episode_length_buf >= EPISODE_LENGTH
        self.episode_length_buf[time_outs] = 0
        rewards = 1.0 - (actions - 0.5).square().mean(dim=-1)
        return self.get_observations(), rewards, time_outs.long(), {"time_outs": time_outs, "log": {}}


def observations(shapes: dict[str, tuple[int, ...]], rows: int) -> TensorDict:
    """Random observations; the k-th vector group has mean 3 k - 2 and std 4 / (k + 1), images are in [0, 1)."""
    groups = {
        group: torch.rand(rows, *shape)
        if len(shape) == 3
        else 3.0 * k - 2.0 + 4.0 / (k + 1) * torch.randn(rows, *shape)
        for k, (group, shape) in enumerate(shapes.items())
    }
    return TensorDict(groups, batch_size=[rows])
