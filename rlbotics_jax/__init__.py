"""Functional reinforcement learning for robots in JAX: one pure train step, MuJoCo MJX, ONNX export.

The public names below are imported when they are first used (PEP 562), so that `import rlbotics_jax` is fast and
`import rlbotics_jax.config` needs no jax.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

try:
    __version__ = version("rlbotics-jax")
except PackageNotFoundError:  # a checkout that was never installed
    __version__ = "0.0.0"

_MODULE_OF = {
    "Config": "config",
    "ConfigError": "config",
    "load_config": "config",
    "register_algorithm": "registry",
    "register_distribution": "registry",
    "register_environment": "registry",
    "register_model": "registry",
    "Environment": "envs",
    "check_environment": "envs",
    "make_environment": "envs",
    "vectorize": "envs",
    "PPO": "algorithms",
    "make_algorithm": "algorithms",
    "Timestep": "types",
    "TrainState": "types",
    "make_train_step": "step",
    "TrainingError": "guards",
    "TrainResult": "training",
    "train": "training",
    "evaluate": "evaluation",
    "export": "exports",
    "load_run": "runs",
}

__all__ = ["__version__", *_MODULE_OF]

if TYPE_CHECKING:
    from rlbotics_jax.algorithms import PPO, make_algorithm
    from rlbotics_jax.config import Config, ConfigError, load_config
    from rlbotics_jax.envs import Environment, check_environment, make_environment, vectorize
    from rlbotics_jax.evaluation import evaluate
    from rlbotics_jax.exports import export
    from rlbotics_jax.guards import TrainingError
    from rlbotics_jax.registry import (
        register_algorithm,
        register_distribution,
        register_environment,
        register_model,
    )
    from rlbotics_jax.runs import load_run
    from rlbotics_jax.step import make_train_step
    from rlbotics_jax.training import TrainResult, train
    from rlbotics_jax.types import Timestep, TrainState


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
