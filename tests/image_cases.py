"""Small models of images, PPO over them, and rollouts made up for it."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from helpers import small_config
from ppo_cases import N, T, random_rollout, started, updated

from rlbotics_jax.algorithms import PPO, hyperparameters_of
from rlbotics_jax.cnn import CNNModel
from rlbotics_jax.config import CNNConfig, CNNEncoderConfig, GaussianDistributionConfig, OnPolicyRunnerConfig, PPOConfig
from rlbotics_jax.models import GroupModel

ENCODER = CNNEncoderConfig((2, 3), stride=2, activation="tanh")
RANDOM = np.random.default_rng(0)
OBSERVATIONS = {
    "speed": jnp.asarray(RANDOM.normal(size=(T + 1, N, 2)), jnp.float32),
    "camera": jnp.asarray(RANDOM.integers(0, 256, (T + 1, N, 1, 9, 8)), jnp.uint8),
}
FIRST = {group: x[0] for group, x in OBSERVATIONS.items()}
VALID = jnp.asarray(RANDOM.random((T, N)) < 0.8)


def group_model(*groups, encoder=ENCODER, **settings):
    return GroupModel(CNNModel(encoder, (4,), "tanh", 2), groups, 2, **{"normalized": True, **settings})


def make_ppo(groups=("speed", "camera"), normalized=True, encoder=ENCODER, critic_groups=None, **settings):
    """PPO with CNN models and its hyperparameters; `settings` are fields of PPOConfig."""
    model = {"hidden_dims": (8,), "obs_normalization": normalized, "cnn_cfg": encoder}
    config = OnPolicyRunnerConfig(
        obs_groups={"actor": groups, "critic": critic_groups or groups},
        algorithm=PPOConfig(**settings),
        actor=CNNConfig(**model, distribution_cfg=GaussianDistributionConfig()),
        critic=CNNConfig(**model),
    )
    return PPO.from_config(config, 2), hyperparameters_of(config.algorithm)


def primed_case(**settings):
    """PPO, a state whose statistics are those of a first rollout, and a second rollout of it."""
    ppo, hyperparameters = make_ppo(**settings)
    state = started(ppo, hyperparameters, OBSERVATIONS)
    state, _ = updated(ppo, state, *random_rollout(ppo, state, 0, OBSERVATIONS))
    return ppo, state, *random_rollout(ppo, state, 1, OBSERVATIONS)


CNN = {"cnn_cfg": {"output_channels": [4], "stride": 2}}
BOTH = {"actor": ["camera", "mirror"], "critic": ["camera", "mirror"]}


def image_config(actor=CNN, critic=CNN, groups=BOTH, **overrides):
    """A config for PointAtSquare."""
    return small_config(
        **{
            "env__num_envs": 64,
            "env__full_reset": True,
            "runner__num_steps_per_env": 16,
            "runner__obs_groups": groups,
            "runner__actor": {"hidden_dims": [32], "distribution_cfg": {"std_range": [0.05, 1.0]}, **actor},
            "runner__critic": {"hidden_dims": [32], **critic},
            **overrides,
        }
    )
