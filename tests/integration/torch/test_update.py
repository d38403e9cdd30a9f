"""After a checkpoint is loaded, the next PPO update moves the parameters as RLBotics' own does on the same rollout."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from cases import VECTOR_GROUPS
from jax_task import JaxTask, runner_section, with_env
from rlbotics_runner import make_runner
from torch_task import NUM_ACTIONS, NUM_ENVS, VECTORS

from bridges.torch import load_torch_checkpoint
from bridges.torch_names import entries, to_torch
from rlbotics_jax.algorithms import make_algorithm
from rlbotics_jax.algorithms.ppo_types import ActRecord, Transition

STEPS = 8


def in_jax(tensor):
    return jnp.asarray(tensor.numpy().copy())


def collect(runner):
    """Fills RLBotics' rollout buffer; returns the rollout as this library has it, and the last observations."""
    algorithm, task = runner.alg, runner.env
    observations, history = task.get_observations(), []
    with torch.inference_mode():
        for _ in range(STEPS):
            history.append(observations)
            actions = algorithm.act(observations)
            observations = task.get_observations()
            rewards = 1.0 - (actions - 0.5).square().mean(dim=-1)
            algorithm.process_env_step(observations, rewards, torch.zeros(NUM_ENVS).long(), {})
        algorithm.compute_returns(observations)
    storage, never = algorithm.storage, jnp.zeros((STEPS, NUM_ENVS), bool)
    act = ActRecord(
        observations={group: jnp.stack([in_jax(each[group]) for each in history]) for group in VECTORS},
        latent=in_jax(storage.actions),
        outputs=in_jax(storage.distribution_params[0]),
        log_prob=in_jax(storage.actions_log_prob)[..., 0],
        values=in_jax(storage.values)[..., 0],
    )
    rollout = Transition(act, in_jax(storage.rewards)[..., 0], never, never, ~never, jnp.zeros((STEPS, NUM_ENVS)))
    return rollout, {group: in_jax(observations[group]) for group in VECTORS}


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "rmsprop", "sgd"])
def test_the_next_update_is_the_same_on_both_sides(optimizer, tmp_path):
    """Three epochs of one mini-batch each, whose order does not matter, to 3e-5 of an array's largest movement.

    1.3e-5 was measured, which is the rounding of the parameters.
    """
    algorithm = {"optimizer": optimizer, "schedule": "fixed", "num_mini_batches": 1, "num_learning_epochs": 3}
    algorithm["use_clipped_value_loss"] = True
    section = runner_section(VECTOR_GROUPS, actor={"distribution_cfg": {"std_type": "log"}}, algorithm=algorithm)
    runner, config = make_runner(section, VECTORS), with_env(section)
    runner.learn(3)
    runner.save(str(tmp_path / "model.pt"))
    state = load_torch_checkpoint(tmp_path / "model.pt", config, JaxTask()).shared.algorithm
    algorithm = make_algorithm(config.runner, NUM_ACTIONS)
    rollout, last_observations = collect(runner)
    updated, _ = jax.jit(algorithm.update)(state, rollout, (), last_observations, (), jax.random.key(0))
    runner.alg.update()

    found = entries({"actor": algorithm.actor, "critic": algorithm.critic}, state.parameters)
    before, after = (to_torch(found, each.parameters) for each in (state, updated))
    for network in ("actor", "critic"):
        for name, parameter in getattr(runner.alg, network).named_parameters():
            movement = np.abs(after[network][name] - before[network][name]).max()
            difference = np.abs(after[network][name] - parameter.detach().numpy()).max()
            assert movement > 0.0 and difference <= 3e-5 * movement, (network, name)
