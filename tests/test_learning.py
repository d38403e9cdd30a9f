"""PPO learns the toys' known values, over three seeds each; and with the wrong bootstrap it does not.

The networks have [16, 16] hidden units; 64 environments step 8 or 16 times an iteration.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ppo_cases import make_ppo
from toys import ActionReward, ConstantReward, DelayedReward, PrivilegedReward, TimeLimitOnly

from rlbotics_jax.algorithms import PPO
from rlbotics_jax.compilation import jit
from rlbotics_jax.envs import vectorize
from rlbotics_jax.step import make_train_step

SEEDS = (0, 1, 2)
GAMMA = 0.9
TIME_LIMIT = 8
# Toys give their own time to the policy; with `full_reset` every episode draws its own goal.
DEFAULTS = {"gamma": GAMMA, "schedule": "fixed", "learning_rate": 3e-3, "num_actions": 1}


class TruncatedIsTerminatedPPO(PPO):
    """The wrong bootstrap: an episode that the time limit cut off is taken for one that ended."""

    def process_env_step(self, state, memory, record, timestep, key):
        ended = timestep.terminated | timestep.truncated
        timestep = timestep.replace(terminated=ended, truncated=jnp.zeros_like(ended))
        return super().process_env_step(state, memory, record, timestep, key)


def trained(toy, num_iterations, num_steps=8, **settings):
    """The algorithm, and its states after training, stacked over the seeds."""
    ppo, hyperparameters = make_ppo(**DEFAULTS | settings)
    init, train_step = make_train_step(ppo, vectorize(toy, 64, full_reset=True), num_steps)
    init = jit(init)
    states = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), *(init(jax.random.key(seed), hyperparameters) for seed in SEEDS)
    )

    @jit
    def train(states, count):
        return jax.lax.fori_loop(0, count, lambda _, states: jax.vmap(train_step)(states)[0], states)

    return ppo, train(states, num_iterations).shared.algorithm


def values(ppo, states, **observations):
    """V of the given observations, (seeds, rows)."""
    rows = {group: jnp.asarray(array, jnp.float32) for group, array in observations.items()}
    return np.asarray(jax.vmap(lambda s: ppo._values(s.parameters, s.normalizers, rows))(states))


def times(last):
    """The observations of the toys that tell the time, at steps 0 ... last."""
    return [[time / TIME_LIMIT, 1.0] for time in range(last + 1)]


def assert_values(result, expected, tolerance):
    """Each seed's values lie within the tolerance."""
    np.testing.assert_allclose(result, np.broadcast_to(expected, result.shape), atol=tolerance)


def test_constant_reward():
    """Reward 1 for seven steps, the last one terminal: V(s_t) = (1 - gamma^(7 - t)) / (1 - gamma)."""
    ppo, states = trained(ConstantReward(), 150)
    expected = [(1 - GAMMA ** (7 - t)) / (1 - GAMMA) for t in range(7)]
    assert_values(values(ppo, states, observation=times(6)), expected, 0.06)


def test_delayed_reward():
    """Reward 1 in the seventh step only: V(s_t) = gamma^(6 - t)."""
    ppo, states = trained(DelayedReward(), 150)
    assert_values(values(ppo, states, observation=times(6)), [GAMMA ** (6 - t) for t in range(7)], 0.03)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("class_name", ["GaussianDistribution", "SquashedGaussianDistribution"])
def test_action_reward(class_name, normalized):
    """Reward -(a - goal)^2 with the goal of +-1 in sight: the mean action is the goal, the value 0 but for the noise."""
    distribution = {"class_name": class_name, "std_range": (0.05, 1.0), "std_type": "log"}
    settings = {"distribution": distribution, "normalized": normalized, "entropy_coef": 0.0, "learning_rate": 1e-2}
    ppo, states = trained(ActionReward(), 150, **settings)
    goals = {"observation": jnp.array([[1.0, 1.0], [-1.0, 1.0]])}
    actions = jax.vmap(lambda s: ppo.policy(ppo.policy_parameters(s))(goals))(states)[..., 0]
    assert_values(np.asarray(actions), [1.0, -1.0], 0.1)
    assert_values(values(ppo, states, **goals), [0.0, 0.0], 0.03)


GOALS = {"observation": np.ones((2, 2)), "privileged": [[1.0, 1.0], [-1.0, 1.0]]}


def test_privileged_critic():
    """The reward is a hidden goal of +-1. Both groups have two features; only the critic is shown the goal."""
    ppo, states = trained(PrivilegedReward(), 100, groups={"actor": ("observation",), "critic": ("privileged",)})
    assert_values(values(ppo, states, **GOALS), [1.0, -1.0], 0.02)


def test_without_the_privileged_group_the_critic_knows_only_the_mean():
    ppo, states = trained(PrivilegedReward(), 100)
    assert_values(values(ppo, states, **GOALS), [0.0, 0.0], 0.2)


def test_time_limit_only():
    """Reward 1 for ever, cut off every eight steps: V = 1 / (1 - gamma) = 10."""
    ppo, states = trained(TimeLimitOnly(), 300, lam=1.0, learning_rate=1e-2)
    assert_values(values(ppo, states, observation=np.ones((1, 2))), [10.0], 0.1)


def test_time_limit_only_with_the_wrong_bootstrap():
    """Taken for terminal, the end is worth 0. With lambda 1 and whole episodes in each rollout, what V (the same in all
    eight states, which look alike) fits is the mean of the finite sums (1 - gamma^k) / (1 - gamma), k = 1 ... 8: 3.593."""
    expected = np.mean([(1 - GAMMA**k) / (1 - GAMMA) for k in range(1, TIME_LIMIT + 1)])
    assert expected == pytest.approx(3.5928, abs=1e-3)
    ppo, states = trained(TimeLimitOnly(), 300, kind=TruncatedIsTerminatedPPO, lam=1.0, learning_rate=1e-2)
    assert_values(values(ppo, states, observation=np.ones((1, 2))), [expected], 0.15)
