"""Worker: writes RLBotics' own export of the case's actor, through its runner."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from harness import installed_versions, serve
from telekinesis.rlbotics.config import OnPolicyRunnerConfig
from telekinesis.rlbotics.envs.base import VecEnv
from telekinesis.rlbotics.runner import OnPolicyRunner
from tensordict import TensorDict
from update_case import ACTIONS, OBSERVATIONS, random_case
from update_torch import GROUP, build


class Still(VecEnv):
    """An environment of the case's sizes, without action bounds. The runner reads it and never steps it."""

    num_envs, num_actions, device, max_episode_length, cfg = 1, ACTIONS, "cpu", 1000, {}

    def get_observations(self) -> TensorDict:
        return TensorDict({GROUP: torch.zeros(1, OBSERVATIONS)}, batch_size=(1,))

    reset = get_observations

    def step(self, actions: torch.Tensor) -> Any:
        raise RuntimeError("nothing is trained here")


def export(path: Path) -> dict[str, Any]:
    """Writes the file."""
    ppo = build(random_case(1))
    config = OnPolicyRunnerConfig.from_dict(
        {
            "obs_groups": {"actor": [GROUP], "critic": [GROUP]},
            "logger": {"enabled": False, "log_dir": None},
            "algorithm": {},
            "actor": ppo.actor.cfg.to_dict(),
            "critic": ppo.critic.cfg.to_dict(),
        }
    )
    runner = OnPolicyRunner(Still(), config)
    runner.alg.actor.load_state_dict(ppo.actor.state_dict())
    runner.export(str(path.parent), path.name, from_best=False)
    return {"versions": installed_versions("telekinesis-rlbotics", "torch", "onnxscript")}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    path = parser.parse_args().path
    serve(lambda: export(path), {})
