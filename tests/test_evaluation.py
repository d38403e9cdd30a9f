"""Evaluation: returns and lengths of toys where both are known."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from drawing import constant_policy
from toys import ActionReward, ConstantReward, DelayedReward, TimeLimitOnly, Toy

from rlbotics_jax.evaluation import evaluate


def episodes(environment, action=0.0, clip=None, num_episodes=32, seed=0):
    """Returns the returns and lengths of a constant action."""
    results = evaluate(constant_policy(environment, action, clip), environment, num_episodes, seed)
    assert set(results) == {"returns", "lengths"}
    return results["returns"], results["lengths"]


@pytest.mark.parametrize(
    ("environment", "expected_return", "expected_length"),
    [
        (ConstantReward(), 7.0, 7),  # terminal after episode_length - 1 steps
        (TimeLimitOnly(), 8.0, 8),  # the time limit
        (TimeLimitOnly(episode_length=3), 3.0, 3),
        (DelayedReward(), 1.0, 7),  # undiscounted
    ],
)
def test_known_returns_and_lengths(environment, expected_return, expected_length):
    returns, lengths = episodes(environment)
    np.testing.assert_array_equal(returns, np.full(32, expected_return))
    np.testing.assert_array_equal(lengths, np.full(32, expected_length))
    assert isinstance(returns, np.ndarray) and isinstance(lengths, np.ndarray)


class Uneven(Toy):
    """Reward 1 a step; an episode is over after 2 steps or after 3, so that 8 steps hold several of them."""

    def outcome(self, time, goal, action):
        return 1.0, time + 1 >= jnp.where(goal > 0, 2, 3)


def test_only_the_first_episode_of_each_environment_counts():
    returns, lengths = episodes(Uneven())
    assert set(lengths.tolist()) == {2, 3}
    np.testing.assert_array_equal(returns, lengths)


def test_the_policy_acts_on_the_environment():
    returns, _ = episodes(ActionReward(), action=0.25)
    assert {round(float(value), 4) for value in returns} == {-0.5625, -1.5625}  # -(0.25 - 1)^2, -(0.25 + 1)^2


def test_actions_are_mapped_and_clipped_as_in_training():
    task = ActionReward(action_low=(0.0,), action_high=(10.0,))
    # 3 -> clipped to 1 -> 10: -(10 -+ 1)^2
    assert set(episodes(task, action=3.0)[0].tolist()) == {-81.0, -121.0}
    # 3 -> clipped to 0.5 by env.clip_actions -> 7.5: -(7.5 -+ 1)^2
    assert set(episodes(task, action=3.0, clip=0.5)[0].tolist()) == {-42.25, -72.25}


class Breaks(Toy):
    """Reward 1 a step, and no number in the third."""

    def outcome(self, time, goal, action):
        return jnp.where(time == 2, jnp.nan, 1.0), False


def test_an_episode_that_goes_non_finite_ends_there(allow_nans):
    returns, lengths = episodes(Breaks())
    np.testing.assert_array_equal(returns, np.full(32, 2.0))
    np.testing.assert_array_equal(lengths, np.full(32, 3))


def test_equal_seeds_give_equal_episodes_and_others_differ():
    once, again, other = (episodes(Uneven(), seed=seed)[1] for seed in (0, 0, 1))
    np.testing.assert_array_equal(once, again)
    assert not np.array_equal(once, other)


def test_the_number_of_episodes_is_the_caller_s():
    assert evaluate(constant_policy(Uneven()), Uneven())["returns"].shape == (20,)
    assert episodes(Uneven(), num_episodes=1)[0].shape == (1,)
