"""Policies as training leaves them, without training: random networks behind statistics far from the identity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from helpers import small_config

from rlbotics_jax.algorithms import hyperparameters_of, make_algorithm
from rlbotics_jax.counters import Count
from rlbotics_jax.envs import EnvironmentSpec
from rlbotics_jax.normalization import NormalizerState
from rlbotics_jax.policy import TrainedPolicy
from rlbotics_jax.snapshot import choose_policy

SUMMARY = {"iteration": 3, "best_iteration": 2, "best_score": 1.5}


def fresh_policy(spec: EnvironmentSpec, seed: int = 0, run: Path | None = None, **overrides: Any) -> TrainedPolicy:
    """Returns the policy of a config (`small_config` with overrides) for an environment of this spec.

    Its statistics have means in the hundreds and standard deviations over decades; a thousandth of that where there are
    uint8 images, which are normalised in [0, 1].
    """
    config = small_config(**overrides)
    algorithm = make_algorithm(config.runner, spec.num_actions)
    state = algorithm.init(
        jax.random.key(seed), spec.example_observations(), hyperparameters_of(config.runner.algorithm)
    )
    random = np.random.default_rng(seed)
    scale = 1e-3 if "uint8" in spec.observation_dtypes.values() else 1.0

    def seen(leaf: Any) -> Any:
        if not isinstance(leaf, NormalizerState):
            return leaf
        mean = scale * 300.0 * random.standard_normal(leaf.mean.shape)
        variance = scale * np.exp(2.0 * random.standard_normal(leaf.mean.shape))
        return NormalizerState(jnp.float32(mean), jnp.float32(variance), Count(jnp.uint32(1000), jnp.uint32(0)))

    parameters = jax.tree.map(
        seen, algorithm.policy_parameters(state), is_leaf=lambda leaf: isinstance(leaf, NormalizerState)
    )
    return choose_policy(config, algorithm, spec, {"last": parameters, "best": parameters}, SUMMARY, run=run)
