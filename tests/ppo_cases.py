"""A small PPO, and rollouts made up for it, for the tests of the update."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlbotics_jax.algorithms import PPO, hyperparameters_of
from rlbotics_jax.algorithms.ppo import Samples, Transition
from rlbotics_jax.config import GaussianDistributionConfig, MLPConfig, OnPolicyRunnerConfig, PPOConfig

T, N = 8, 16
TRUE = jnp.bool_(True)
GROUPS = {"actor": ("observation",), "critic": ("observation",)}


def make_ppo(
    kind: type = PPO,
    num_actions: int = 2,
    groups: dict[str, tuple[str, ...]] = GROUPS,
    hidden_dims: tuple[int, ...] = (16, 16),
    normalized: bool = False,
    distribution: dict[str, Any] | None = None,
    **settings: Any,
) -> tuple[PPO, dict[str, jax.Array]]:
    """A PPO with small networks, and its hyperparameters. `settings` are fields of PPOConfig."""
    model = {"hidden_dims": hidden_dims, "obs_normalization": normalized}
    config = OnPolicyRunnerConfig(
        obs_groups=groups,
        algorithm=PPOConfig(**settings),
        actor=MLPConfig(**model, distribution_cfg=GaussianDistributionConfig(**(distribution or {}))),
        critic=MLPConfig(**model),
    )
    return kind.from_config(config, num_actions), hyperparameters_of(config.algorithm)


def random_observations(seed: int, *, sizes: dict[str, int] | None = None, offset: float = 0.0, scale: float = 1.0):
    """T + 1 steps of observation groups, (T + 1, N, n) each."""
    generator = np.random.default_rng(seed)
    sizes = sizes or {"observation": 3}
    return {
        name: jnp.asarray(offset + scale * generator.normal(size=(T + 1, N, size)), jnp.float32)
        for name, size in sizes.items()
    }


def random_rollout(ppo: PPO, state: Any, seed: int, observations: dict[str, jax.Array] | None = None):
    """What T steps under `state` leave, with random rewards and ends: (rollout, last_observations)."""
    generator = np.random.default_rng(seed)
    observations = random_observations(seed + 1) if observations is None else observations
    steps = {name: leaf[:-1] for name, leaf in observations.items()}
    last = {name: leaf[-1] for name, leaf in observations.items()}
    act = jax.jit(jax.vmap(lambda step, key: ppo.act(state, step, (), key)[2]))
    record = act(steps, jax.random.split(jax.random.key(seed), T))
    terminated = generator.random((T, N)) < 0.1
    truncated = (generator.random((T, N)) < 0.1) & ~terminated
    rollout = Transition(
        act=record,
        rewards=jnp.asarray(generator.normal(size=(T, N)), jnp.float32),
        terminated=jnp.asarray(terminated),
        truncated=jnp.asarray(truncated),
        valid=jnp.ones((T, N), bool),
        final_values=jnp.asarray(generator.normal(size=(T, N)), jnp.float32),
    )
    return rollout, last


def started(ppo: PPO, hyperparameters: dict[str, jax.Array], observations: dict[str, jax.Array] | None = None):
    """A fresh state."""
    observations = random_observations(0) if observations is None else observations
    first = {name: leaf[0] for name, leaf in observations.items()}
    return ppo.init(jax.random.key(0), first, hyperparameters)


def updated(ppo: PPO, state: Any, rollout: Transition, last_observations: dict[str, jax.Array], seed: int = 0):
    """The state and metrics after one compiled update."""
    return jax.jit(ppo.update)(state, rollout, (), last_observations, (), jax.random.key(seed))


def one_batch(ppo: PPO, state: Any, rollout: Transition, last_observations: dict[str, jax.Array]) -> Samples:
    """The whole rollout as one mini-batch."""
    return jax.jit(ppo.samples)(state, rollout, last_observations)[0]


def assert_trees_equal(tree: Any, other: Any) -> None:
    """Equal structure and bits."""
    jax.tree.map(np.testing.assert_array_equal, tree, other)


def global_norm(tree: Any) -> float:
    """The Euclidean norm over all leaves."""
    return float(np.sqrt(sum(float(jnp.sum(jnp.square(leaf))) for leaf in jax.tree.leaves(tree))))


def case(seed=0, kind=PPO, **settings):
    """An algorithm, a fresh state and a rollout of it."""
    ppo, hyperparameters = make_ppo(kind, **settings)
    state = started(ppo, hyperparameters)
    return ppo, state, *random_rollout(ppo, state, seed)


def with_hyperparameters(state, **values):
    return state.replace(hyperparameters=state.hyperparameters | {k: jnp.float32(v) for k, v in values.items()})


def step_function(ppo, old):
    """The compiled mini-batch step against the policy of the state `old`."""
    distribution = old.parameters["actor"]["distribution"]
    return jax.jit(lambda state, batch, adapt=TRUE: ppo._mini_batch_step(state, distribution, batch, adapt))
