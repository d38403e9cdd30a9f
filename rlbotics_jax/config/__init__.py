"""Configuration: frozen dataclasses with RLBotics' YAML schema that validate themselves. Imports no jax."""

from __future__ import annotations

from rlbotics_jax.config.algorithm import OPTIMIZERS, PPOConfig, SymmetryConfig
from rlbotics_jax.config.base import ConfigBase
from rlbotics_jax.config.errors import ConfigError
from rlbotics_jax.config.files import config_hash, find_config, from_dict, load_config, save_config, shipped_configs
from rlbotics_jax.config.models import (
    ACTIVATIONS,
    CNNConfig,
    CNNEncoderConfig,
    GaussianDistributionConfig,
    MLPConfig,
)
from rlbotics_jax.config.runner import FRAMEWORKS, Config, EnvConfig, LoggerConfig, OnPolicyRunnerConfig

__all__ = [
    "ACTIVATIONS",
    "FRAMEWORKS",
    "OPTIMIZERS",
    "CNNConfig",
    "CNNEncoderConfig",
    "Config",
    "ConfigBase",
    "ConfigError",
    "EnvConfig",
    "GaussianDistributionConfig",
    "LoggerConfig",
    "MLPConfig",
    "OnPolicyRunnerConfig",
    "PPOConfig",
    "SymmetryConfig",
    "config_hash",
    "find_config",
    "from_dict",
    "load_config",
    "save_config",
    "shipped_configs",
]
