"""Trains and saves with the rsl_rl that is installed, and writes what its networks compute.

    PYTHONPATH=RSL_RL python write_rsl_rl.py FOLDER

FOLDER then holds, for each case, <case>.pt, a checkpoint, and <case>.npz: observations by group, `actions` that were
sampled, and their `log_prob`, the distribution's `mean` and `std`, and the critic's `values`.
"""

from __future__ import annotations

import copy
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_task import IMAGES, VECTORS, TorchTask, observations

MAJOR, MINOR = (int(number) for number in version("rsl-rl-lib").split(".")[:2])
ACTOR, CRITIC = ["joints", "command"], ["joints", "privileged"]
CNN = {
    "output_channels": [4, 6],
    "kernel_size": 3,
    "stride": [2, 1],
    "padding": "zeros",
    "norm": ["batch", "layer"],
    "activation": "elu",
    "max_pool": [False, True],
}
PLAIN_CNN = {**CNN, "norm": "none"}
TWO_IMAGES = {**IMAGES, "wrist": (1, 8, 8)}
PPO = {
    "class_name": "PPO",
    "num_learning_epochs": 2,
    "num_mini_batches": 2,
    "learning_rate": 3e-3,
    "schedule": "adaptive",
    "desired_kl": 0.01,
    "rnd_cfg": None,
    "symmetry_cfg": None,
}


def train_cfg(
    std_type: str,
    normalized: bool,
    cnn: dict[str, Any] | None,
    recurrent: bool,
    cameras: dict[str, tuple[int, ...]] = IMAGES,
    algorithm: dict[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """The runner's config in this version's schema; `algorithm` are changes of its section, `changes` of the actor's."""
    policy_set = "policy" if MAJOR == 3 else "actor"
    images = list(cameras) if cnn else []
    common = {
        "num_steps_per_env": 8,
        "save_interval": 100,
        "obs_groups": {policy_set: ACTOR + images, "critic": CRITIC + images},
    }
    common |= {"multi_gpu": None, "run_name": "", "logger": "tensorboard", "algorithm": PPO | (algorithm or {})}
    if MAJOR == 3:
        kind = "ActorCriticRecurrent" if recurrent else "ActorCriticCNN" if cnn else "ActorCritic"
        policy = {
            "class_name": kind,
            "actor_hidden_dims": [16, 12],
            "critic_hidden_dims": [14],
            "activation": "elu",
            "init_noise_std": 0.7,
            "noise_std_type": std_type,
            "actor_obs_normalization": normalized,
            "critic_obs_normalization": normalized,
        } | changes
        if cnn:
            policy |= {"actor_cnn_cfg": copy.deepcopy(cnn), "critic_cnn_cfg": copy.deepcopy(cnn)}
        return {**common, "policy": policy}
    prefix = "rsl_rl.models:" if MAJOR == 4 else ""
    kind = f"{prefix}{'RNNModel' if recurrent else 'CNNModel' if cnn else 'MLPModel'}"
    model = {"class_name": kind, "activation": "elu", "obs_normalization": normalized}
    if cnn:
        model["cnn_cfg"] = {group: copy.deepcopy(cnn) for group in images}
    if MAJOR == 4:
        actor = {"stochastic": True, "init_noise_std": 0.7, "noise_std_type": std_type} | changes
    else:
        kind = "HeteroscedasticGaussianDistribution" if changes else "GaussianDistribution"
        actor = {"distribution_cfg": {"class_name": kind, "init_std": 0.7, "std_type": std_type}}
    common["algorithm"]["class_name"] = "rsl_rl.algorithms:PPO" if MAJOR == 4 else "PPO"
    return {
        **common,
        "actor": {**model, "hidden_dims": [16, 12], **actor},
        "critic": {**copy.deepcopy(model), "hidden_dims": [14]},
    }


def write(folder: Path, case: str, shapes: dict[str, tuple[int, ...]], cfg: dict[str, Any], is_plain: bool) -> None:
    from rsl_rl.runners import OnPolicyRunner

    torch.manual_seed(0)
    runner = OnPolicyRunner(TorchTask(shapes), cfg, log_dir=str(folder / "logs"), device="cpu")
    runner.learn(3)
    runner.save(str(folder / f"{case}.pt"))
    if not is_plain:
        return
    inputs = observations(shapes, 32)
    with torch.no_grad():
        if MAJOR == 3:
            policy = runner.alg.policy.eval()
            actions = policy.act(inputs)
            outputs = (
                policy.action_mean,
                policy.action_std,
                policy.get_actions_log_prob(actions),
                policy.evaluate(inputs),
            )
        else:
            actor, critic = runner.alg.actor.eval(), runner.alg.critic.eval()
            actions = actor(inputs, stochastic_output=True)
            outputs = actor.output_mean, actor.output_std, actor.get_output_log_prob(actions), critic(inputs)
    names = ("mean", "std", "log_prob", "values")
    arrays = {name: array.detach().numpy() for name, array in zip(names, outputs, strict=True)}
    arrays |= {group: inputs[group].numpy() for group in shapes} | {"actions": actions.numpy()}
    np.savez(folder / f"{case}.npz", **arrays, learning_rate=runner.alg.learning_rate)


def main(folder: Path) -> None:
    """Write the cases that this version has."""
    write(folder, "scalar", VECTORS, train_cfg("scalar", True, None, False), True)
    write(folder, "log", VECTORS, train_cfg("log", False, None, False), True)
    write(folder, "recurrent", VECTORS, train_cfg("scalar", False, None, True), False)
    if (MAJOR, MINOR) >= (3, 3):
        write(folder, "cnn", {**VECTORS, **IMAGES}, train_cfg("scalar", False, CNN, False), True)
        write(folder, "normalized_cnn", {**VECTORS, **IMAGES}, train_cfg("scalar", True, CNN, False), True)
        two = train_cfg("scalar", False, PLAIN_CNN, False, cameras=TWO_IMAGES)
        write(folder, "two_cnn", {**VECTORS, **TWO_IMAGES}, two, True)
        write(
            folder, "state_dependent", VECTORS, train_cfg("scalar", False, None, False, state_dependent_std=True), False
        )
    if MAJOR >= 4:
        algorithm = {"share_cnn_encoders": True, "optimizer": "adamw"}
        shared = train_cfg("scalar", False, PLAIN_CNN, False, cameras=TWO_IMAGES, algorithm=algorithm)
        write(folder, "shared_cnn", {**VECTORS, **TWO_IMAGES}, shared, True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
