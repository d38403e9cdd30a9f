"""Worker: RLBotics' PPO.update alone, on as many threads as torch takes by default."""

from __future__ import annotations

import argparse
import copy
import itertools
import time
from typing import Any

import torch
from harness import installed_versions, serve
from telekinesis.rlbotics.algorithms import PPO
from telekinesis.rlbotics.config import GaussianDistributionConfig, MLPConfig, PPOConfig
from telekinesis.rlbotics.models import MLPModel
from telekinesis.rlbotics.rollout import RolloutBuffer
from tensordict import TensorDict
from update_case import ACTIONS, HIDDEN, OBSERVATIONS, SETTINGS, STD_RANGE, STEPS, Case, random_case

GROUP = "policy"


def build(case: Case) -> PPO:
    """Returns RLBotics' PPO with the case's weights and filled statistics, and its rollout in the storage."""
    num_envs = case.rewards.shape[1]
    model = {"hidden_dims": HIDDEN, "activation": "elu", "obs_normalization": True}
    distribution = GaussianDistributionConfig(std_range=STD_RANGE, std_type="log")
    actor = MLPModel(MLPConfig(**model, distribution_cfg=distribution), OBSERVATIONS, ACTIONS)
    critic = MLPModel(MLPConfig(**model), OBSERVATIONS, 1)
    storage = RolloutBuffer("rl", num_envs, STEPS, (OBSERVATIONS,), (ACTIONS,), critic_obs_shape=(OBSERVATIONS,))
    ppo = PPO(PPOConfig(**SETTINGS), actor, critic, storage, {"actor": [GROUP], "critic": [GROUP]})
    for network, layers in case.weights.items():
        linear = [layer for layer in getattr(ppo, network).mlp if isinstance(layer, torch.nn.Linear)]
        for layer, (kernel, bias) in zip(linear, layers, strict=True):
            layer.weight.data, layer.bias.data = torch.tensor(kernel.T).contiguous(), torch.tensor(bias)
    for network in (actor, critic):
        network.update_normalization(torch.tensor(case.statistics).reshape(-1, OBSERVATIONS))

    # Statistics that moved during the rollout would change the policy before the first step.
    ppo.eval_mode()
    steps = [TensorDict({GROUP: torch.tensor(step)}, batch_size=(num_envs,)) for step in case.observations]
    noise, sampled = torch.tensor(case.noise), actor.distribution
    with torch.inference_mode():
        for t in range(STEPS):
            sampled.sample = lambda t=t: sampled.mean + sampled.std * noise[t]
            ppo.act(steps[t])
            ppo.process_env_step(steps[t + 1], torch.tensor(case.rewards[t]), torch.tensor(case.dones[t]), {})
        ppo.compute_returns(steps[-1])
    del sampled.sample
    ppo.train_mode()
    return ppo


class Updates:
    """RLBotics' PPO, and what it was before the first update."""

    def __init__(self, num_envs: int):
        self.num_envs = num_envs

    def ready(self) -> dict[str, Any]:
        """Builds, and runs once, which allocates what torch and its optimizer keep."""
        torch.manual_seed(0)
        self.ppo = build(random_case(self.num_envs))
        self.initial = [copy.deepcopy(network.state_dict()) for network in (self.ppo.actor, self.ppo.critic)]
        self.update()
        return {
            "threads": torch.get_num_threads(),
            "versions": installed_versions("telekinesis-rlbotics", "torch", "tensordict"),
        }

    def update(self) -> dict[str, Any]:
        """One update from the case's state, on a permutation of its own."""
        ppo = self.ppo
        for network, initial in zip((ppo.actor, ppo.critic), self.initial, strict=True):
            network.load_state_dict(initial)
        for value in itertools.chain.from_iterable(state.values() for state in ppo.optimizer.state.values()):
            value.zero_()
        ppo.learning_rate = ppo.optimizer.param_groups[0]["lr"] = SETTINGS["learning_rate"]
        started = time.perf_counter()
        losses = ppo.update()
        return {
            "seconds": time.perf_counter() - started,
            "value_loss": losses["value"],
            "kl": ppo.diagnostics["kl"],
            "learning_rate": ppo.learning_rate,
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("num_envs", type=int)
    updates = Updates(parser.parse_args().num_envs)
    serve(updates.ready, {"update": updates.update})
