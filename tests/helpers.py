"""Small runs shared by the tests."""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlbotics_jax.algorithms import hyperparameters_of, make_algorithm
from rlbotics_jax.config import Config, from_dict
from rlbotics_jax.envs import vectorize
from rlbotics_jax.step import make_train_step

SMALL: dict[str, Any] = {
    "env": {"framework": "mjx", "id": "CartpoleBalance", "num_envs": 16, "device": "cpu"},
    "runner": {
        "seed": 0,
        "num_learning_iterations": 3,
        "num_steps_per_env": 8,
        "obs_groups": {"actor": ["observation"], "critic": ["observation"]},
        "logger": {"log_dir": None, "log_interval": 1},
        "algorithm": {"num_learning_epochs": 2, "num_mini_batches": 2},
        "actor": {
            "hidden_dims": [16, 16],
            "obs_normalization": True,
            "distribution_cfg": {"init_std": 1.0, "std_range": [0.05, 2.0]},
        },
        "critic": {"hidden_dims": [16, 16], "obs_normalization": True},
    },
}


def small_config(**overrides: Any) -> Config:
    """Returns a small config. Overrides are dotted paths with double underscores: `runner__algorithm__gamma=0.9`."""
    values = copy.deepcopy(SMALL)
    for path, value in overrides.items():
        *sections, key = path.split("__")
        section = values
        for name in sections:
            section = section.setdefault(name, {})
        section[key] = value
    return from_dict(values)


def small_step(environment: Any, config: Config, axis_name: str | None = None, num_envs: int | None = None):
    """Returns init(seed) and train_step, neither jitted, for an environment and a config."""
    algorithm = make_algorithm(config.runner, environment.num_actions)
    vectorized = vectorize(environment, num_envs or config.env.num_envs)
    init, step = make_train_step(algorithm, vectorized, config.runner.num_steps_per_env, axis_name)
    hyperparameters = hyperparameters_of(config.runner.algorithm)
    return (lambda seed: init(jax.random.key(seed), hyperparameters)), step


def raw(tree: Any) -> Any:
    """Returns the tree as numpy arrays, random keys as their bits."""
    return jax.tree.map(
        lambda x: np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x), tree
    )


def assert_bit_equal(first: Any, second: Any) -> None:
    """Asserts that two trees are equal to the bit."""
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), raw(first), raw(second))


def all_finite(tree: Any) -> bool:
    """Returns whether every element of every leaf is finite."""
    return all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(tree))
