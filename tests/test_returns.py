"""Advantages: literal values for each end of an episode, limits, invariances, and a slow forward-view reference."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlbotics_jax.returns import gae, next_values

jit_gae = jax.jit(gae)


def advantages(rewards, values, last_values, final_values, terminated, truncated, gamma, lam, valid=None):
    """The advantages that PPO computes, from numpy arrays."""

    def to_float(array):
        return jnp.asarray(array, jnp.float32)

    values, terminated, truncated = to_float(values), jnp.asarray(terminated), jnp.asarray(truncated)
    following = next_values(values, to_float(last_values), to_float(final_values), truncated)
    valid = None if valid is None else jnp.asarray(valid)
    return np.asarray(jit_gae(to_float(rewards), values, following, terminated, truncated, gamma, lam, valid))


def forward_view(rewards, values, last_values, final_values, terminated, truncated, gamma, lam, valid):
    """A_t = sum_k (gamma lam)^k delta_{t+k} up to the episode's end, term by term in float64."""
    num_steps, num_envs = rewards.shape
    result = np.zeros((num_steps, num_envs))
    for n in range(num_envs):
        for t in range(num_steps):
            weight = 1.0
            for k in range(t, num_steps):
                if not valid[k, n]:
                    break
                if terminated[k, n]:
                    following = 0.0
                elif truncated[k, n]:
                    following = final_values[k, n]
                else:
                    following = values[k + 1, n] if k + 1 < num_steps else last_values[n]
                result[t, n] += weight * (rewards[k, n] + gamma * following - values[k, n])
                if terminated[k, n] or truncated[k, n]:
                    break
                weight *= gamma * lam
    return result


def random_episodes(seed, num_steps=9, num_envs=4):
    generator = np.random.default_rng(seed)
    shape = (num_steps, num_envs)
    return {
        "rewards": generator.normal(size=shape),
        "values": generator.normal(size=shape),
        "last_values": generator.normal(size=num_envs),
        "final_values": generator.normal(size=shape),
        "terminated": generator.random(shape) < 0.2,
        "truncated": generator.random(shape) < 0.2,
    }


def oracle_episode(terminated, truncated, final_value=2.0):
    """Three steps of which the second ends the episode in the given ways, one column each."""
    num_envs = len(terminated)
    ends = (
        np.array([[False] * num_envs, terminated, [False] * num_envs]),
        np.array([[False] * num_envs, truncated, [False] * num_envs]),
    )
    values = np.repeat([[0.5], [0.6], [0.7]], num_envs, axis=1)
    final_values = np.full((3, num_envs), final_value)
    return advantages(np.ones((3, num_envs)), values, np.full(num_envs, 0.4), final_values, *ends, 0.9, 0.8)


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [
        (False, True, [2.624, 2.2, 0.66]),
        (True, False, [1.328, 0.4, 0.66]),
        (False, False, [2.123744, 1.5052, 0.66]),
        (True, True, [1.328, 0.4, 0.66]),
    ],
    ids=["truncated", "terminated", "no end", "both flags count as terminated"],
)
def test_literal_advantages(terminated, truncated, expected):
    np.testing.assert_allclose(oracle_episode([terminated], [truncated])[:, 0], expected, rtol=1e-6)


def test_columns_do_not_mix():
    result = oracle_episode([False, True, False, True], [True, False, False, True])
    np.testing.assert_allclose(result[0], [2.624, 1.328, 2.123744, 1.328], rtol=1e-6)


def test_bootstrapping_from_the_state_before_the_last_step_gives_other_numbers():
    """V(s_t) instead of V(final observation), which is what an environment without final observations falls back to."""
    np.testing.assert_allclose(oracle_episode([False], [True], final_value=0.6)[:, 0], [1.7168, 0.94, 0.66], rtol=1e-6)


def test_next_values_take_the_final_observation_where_truncated():
    values, final_values = jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[10.0, 20.0], [30.0, 40.0]])
    truncated = jnp.array([[True, False], [False, True]])
    following = next_values(values, jnp.array([5.0, 6.0]), final_values, truncated)
    np.testing.assert_array_equal(following, [[10.0, 4.0], [5.0, 40.0]])


def test_invalid_row_has_no_advantage_and_its_predecessor_bootstraps_from_its_value():
    """One invalid row at t=1: A_2 = 1 + .9*.4 - .7, A_1 = 0, A_0 = 1 + .9*.6 - .5."""
    never = np.zeros((3, 1), bool)
    valid = np.array([[True], [False], [True]])
    result = advantages(np.ones((3, 1)), [[0.5], [0.6], [0.7]], [0.4], np.zeros((3, 1)), never, never, 0.9, 0.8, valid)
    np.testing.assert_allclose(result[:, 0], [1.04, 0.0, 0.66], rtol=1e-6)


def test_a_nan_in_an_invalid_row_stays_there(allow_nans):
    episodes = random_episodes(3)
    episodes["truncated"][:] = False
    valid = np.ones((9, 4), bool)
    valid[5, 2] = False
    clean = advantages(**episodes, gamma=0.9, lam=0.8, valid=valid)
    episodes["rewards"][5, 2] = np.nan
    np.testing.assert_array_equal(advantages(**episodes, gamma=0.9, lam=0.8, valid=valid), clean)


def test_a_value_that_a_terminal_step_does_not_use_may_be_anything(allow_nans):
    episodes = random_episodes(4)
    episodes["terminated"][5, 2] = episodes["truncated"][5, 2] = True
    clean = advantages(**episodes, gamma=0.9, lam=0.8)
    episodes["final_values"][5, 2] = np.inf
    np.testing.assert_array_equal(advantages(**episodes, gamma=0.9, lam=0.8), clean)


@given(
    seed=st.integers(0, 10_000),
    gamma=st.floats(0.0, 1.0),
    lam=st.floats(0.0, 1.0),
    invalid=st.sampled_from([0.0, 0.2]),
    shape=st.sampled_from([(9, 4), (1, 1)]),
)
@settings(max_examples=60, deadline=None)
def test_equals_the_forward_view(seed, gamma, lam, invalid, shape):
    episodes = random_episodes(seed, *shape)
    valid = np.random.default_rng(seed + 1).random(shape) >= invalid
    result = advantages(**episodes, gamma=gamma, lam=lam, valid=valid)
    np.testing.assert_allclose(
        result, forward_view(**episodes, gamma=gamma, lam=lam, valid=valid), rtol=2e-5, atol=2e-5
    )


def test_lambda_zero_is_the_one_step_error():
    episodes = random_episodes(0)
    following = np.concatenate([episodes["values"][1:], episodes["last_values"][None]])
    following = np.where(episodes["truncated"], episodes["final_values"], following)
    deltas = episodes["rewards"] + 0.9 * following * ~episodes["terminated"] - episodes["values"]
    np.testing.assert_allclose(advantages(**episodes, gamma=0.9, lam=0.0), deltas, rtol=1e-5, atol=1e-6)


def test_lambda_one_is_the_discounted_return_minus_the_value():
    episodes = random_episodes(1)
    episodes["terminated"][:] = episodes["truncated"][:] = False
    discounts = 0.9 ** np.arange(10)
    for t in range(9):
        following = np.vstack([episodes["rewards"][t:], episodes["last_values"][None]])
        expected = discounts[: 10 - t] @ following - episodes["values"][t]
        np.testing.assert_allclose(advantages(**episodes, gamma=0.9, lam=1.0)[t], expected, rtol=1e-5, atol=1e-5)


def test_gamma_zero_is_the_reward_minus_the_value():
    episodes = random_episodes(2)
    expected = episodes["rewards"] - episodes["values"]
    np.testing.assert_allclose(advantages(**episodes, gamma=0.0, lam=0.7), expected, rtol=1e-6, atol=1e-7)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_environments_may_be_reordered(seed):
    episodes, order = random_episodes(seed), np.random.default_rng(seed).permutation(4)
    reordered = {name: array[..., order] for name, array in episodes.items()}
    np.testing.assert_array_equal(
        advantages(**reordered, gamma=0.97, lam=0.9), advantages(**episodes, gamma=0.97, lam=0.9)[:, order]
    )


@given(seed=st.integers(0, 10_000), scale=st.floats(1e-3, 1e3))
@settings(max_examples=20, deadline=None)
def test_scale_with_rewards_and_values(seed, scale):
    episodes = random_episodes(seed)
    names = ("rewards", "values", "last_values", "final_values")
    scaled = episodes | {name: scale * episodes[name] for name in names}
    expected = scale * advantages(**episodes, gamma=0.97, lam=0.9)
    np.testing.assert_allclose(advantages(**scaled, gamma=0.97, lam=0.9), expected, rtol=1e-4, atol=1e-5 * scale)
