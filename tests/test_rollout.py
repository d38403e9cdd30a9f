"""Collection: what a rollout holds, in which order the algorithm is called, and the statistics of its episodes."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import DelayedReward, TimeLimitOnly, Toy

from rlbotics_jax.envs import vectorize
from rlbotics_jax.rollout import Rollout, collect, count_step, first_invalid
from rlbotics_jax.types import PerEnvironmentState, Timestep


def running(returns, lengths, whole=None):
    """Returns environments whose episodes have earned `returns` in `lengths` steps so far."""
    num_envs = len(returns)
    return PerEnvironmentState(
        environment=(),
        observations={"observation": jnp.zeros((num_envs, 1))},
        memory=(),
        episode_return=jnp.float32(returns),
        episode_length=jnp.asarray(lengths, jnp.uint32),
        episode_is_whole=jnp.ones(len(returns), bool) if whole is None else jnp.asarray(whole, bool),
    )


def timestep(rewards, terminated, truncated, valid, log):
    num_envs = len(rewards)
    return Timestep(
        observations={"observation": jnp.ones((num_envs, 1))},
        rewards=jnp.float32(rewards),
        terminated=jnp.asarray(terminated, bool),
        truncated=jnp.asarray(truncated, bool),
        valid=jnp.asarray(valid, bool),
        final_observations=None,
        log={"speed": jnp.float32(log)},
        non_finite={"reward": ~jnp.asarray(valid, bool)},
    )


def test_count_step_by_literals():
    # running on, terminated, truncated, a non-finite row, running on without a valid row
    state, statistics = count_step(
        running([1.0, 2.0, 3.0, 4.0, 5.0], [1, 2, 3, 4, 5]),
        timestep([10, 20, 30, 40, 50], [0, 1, 0, 1, 0], [0, 0, 1, 0, 0], [1, 1, 1, 0, 0], [1, 2, 3, 4, 5]),
    )
    np.testing.assert_array_equal(state.episode_return, [11, 0, 0, 0, 5])
    np.testing.assert_array_equal(state.episode_length, [2, 0, 0, 0, 5])
    np.testing.assert_array_equal(state.observations["observation"], np.ones((5, 1)))
    # Two episodes ended in valid rows: 2 + 20 in 3 steps, 3 + 30 in 4.
    assert statistics.episodes.count == 2
    assert statistics.episodes.sum_return == 55
    assert statistics.episodes.sum_length == 7
    assert statistics.env_steps == 3 and statistics.env_steps.dtype == jnp.uint32
    assert statistics.invalid_steps == 2
    assert (statistics.log["speed"], statistics.log_counts["speed"]) == (6, 3)
    assert statistics.non_finite["reward"] == 2
    assert (statistics.invalid_step, statistics.invalid_environment) == (0, 3)


def test_a_first_episode_that_began_in_the_middle_is_not_counted():
    state, statistics = count_step(
        running([1.0, 2.0, 3.0], [1, 2, 3], whole=[False, False, True]),
        timestep([10, 20, 30], [0, 1, 1], [0, 0, 0], [1, 1, 1], [0, 0, 0]),
    )
    assert statistics.episodes.count == 1 and statistics.episodes.sum_return == 33
    # the second one's next episode is a whole one
    np.testing.assert_array_equal(state.episode_is_whole, [False, True, True])


def test_an_invalid_row_may_hold_anything(allow_nans):
    state, statistics = count_step(
        running([1.0, 1.0], [1, 1]), timestep([jnp.nan, 2.0], [1, 0], [0, 0], [0, 1], [jnp.inf, 1.0])
    )
    assert np.isfinite([*state.episode_return, *jax.tree.leaves(statistics)]).all()
    np.testing.assert_array_equal(state.episode_return, [0, 3])
    assert statistics.log["speed"] == 1


def test_a_metric_is_counted_where_it_occurs(allow_nans):
    """It occurs in the first row, not in the second; the third is invalid."""
    _, statistics = count_step(
        running([0.0] * 3, [0] * 3), timestep([1] * 3, [0] * 3, [0] * 3, [1, 1, 0], [5.0, jnp.nan, 9.0])
    )
    assert (statistics.log["speed"], statistics.log_counts["speed"]) == (5, 1)


def test_no_invalid_row_names_no_environment():
    _, statistics = count_step(running([0.0], [0]), timestep([1], [0], [0], [1], [0]))
    assert (statistics.invalid_step, statistics.invalid_environment, statistics.non_finite["reward"]) == (-1, -1, 0)


@dataclasses.dataclass(frozen=True)
class Counter:
    """Remembers how many steps ago an episode began, and acts by it: what a rollout needs of an algorithm."""

    axis_name: str | None = None

    def act(self, state: Any, observations, memory, key):
        record = {"observations": observations, "memory": memory, "noise": jax.random.uniform(key, memory.shape)}
        return (state * memory)[:, None], memory + 1.0, record

    def process_env_step(self, state, memory, record, timestep, key):
        done = timestep.terminated | timestep.truncated
        noise = jax.random.uniform(key, memory.shape)
        return jnp.where(done, 0.0, memory), {"act": record, "timestep": timestep, "noise": noise}


class Echo(DelayedReward):
    """DelayedReward that shows the action it was given."""

    def observe(self, time, goal):
        return {**super().observe(time, goal), "goal": goal[None]}

    def step(self, state, action):
        state = super().step(state, action)
        return state.replace(metrics={"toy/reward": action[0]})


@dataclasses.dataclass
class Run:
    """Environments under the algorithm above, rollout by rollout."""

    environment: Any
    num_envs: int

    def __post_init__(self):
        self.vectorized = vectorize(self.environment, self.num_envs)
        first = self.vectorized.reset(jax.random.key(0))
        zeros = jnp.zeros(self.num_envs)
        counts = jnp.zeros(self.num_envs, jnp.uint32)
        self.state = PerEnvironmentState(first, first.observations, zeros, zeros, counts, jnp.ones(self.num_envs, bool))
        self.collect = jax.jit(
            lambda state, key, num_steps: collect(Counter(), jnp.float32(2.0), self.vectorized, state, num_steps, key),
            static_argnums=2,
        )

    def next(self, num_steps, seed=1):
        self.state, rollout = self.collect(self.state, jax.random.key(seed), num_steps)
        return rollout


def test_transitions_lead_with_steps_and_environments():
    run = Run(Echo(), 3)
    first = run.state
    rollout = run.next(5)
    assert all(leaf.shape[:2] == (5, 3) for leaf in jax.tree.leaves(rollout.transitions))
    assert rollout.transitions["act"]["observations"]["observation"].shape == (5, 3, 2)
    assert rollout.transitions["act"]["observations"]["goal"].shape == (5, 3, 1)

    seen, given = rollout.transitions["act"]["observations"], rollout.transitions["timestep"].observations
    for group in seen:
        np.testing.assert_array_equal(seen[group][0], first.observations[group])
        np.testing.assert_array_equal(seen[group][1:], given[group][:-1])
        np.testing.assert_array_equal(rollout.last_observations[group], given[group][-1])
        np.testing.assert_array_equal(run.state.observations[group], given[group][-1])


def test_memory_flows_from_act_through_process_env_step_and_between_rollouts():
    run = Run(Echo(), 3)  # an episode lasts 7 steps
    first, second = run.next(5), run.next(5, seed=2)
    np.testing.assert_array_equal(first.transitions["act"]["memory"][:, 0], [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(second.transitions["act"]["memory"][:, 0], [5, 6, 0, 1, 2])
    np.testing.assert_array_equal(first.first_memory, np.zeros(3))
    np.testing.assert_array_equal(first.last_memory, np.full(3, 5.0))
    np.testing.assert_array_equal(second.first_memory, first.last_memory)
    np.testing.assert_array_equal(second.last_memory, np.full(3, 3.0))
    # The environment was given what `act` returned: state * memory.
    np.testing.assert_array_equal(first.transitions["timestep"].log["toy/reward"][:, 0], [0, 2, 4, 6, 8])


def test_episodes_are_counted_where_they_end_also_across_rollouts():
    run = Run(DelayedReward(), 4)
    first, second = run.next(5), run.next(13, seed=2)
    assert first.statistics.episodes.count == 0
    # Steps 7 and 14 of each environment end an episode of 7 steps and return 1.
    assert second.statistics.episodes.count == 8
    assert second.statistics.episodes.sum_return == 8
    assert second.statistics.episodes.sum_length == 56
    assert (first.statistics.env_steps, second.statistics.env_steps) == (20, 52)
    assert second.statistics.invalid_steps == 0
    assert second.statistics.log["toy/reward"] == 8
    np.testing.assert_array_equal(run.state.episode_length, np.full(4, 4))


def test_time_limits_are_truncations():
    rollout = Run(TimeLimitOnly(), 2).next(8)
    given = rollout.transitions["timestep"]
    np.testing.assert_array_equal(given.truncated[:, 0], [False] * 7 + [True])
    assert not given.terminated.any()
    assert rollout.statistics.episodes.sum_return == 16


class Breaks(Toy):
    """Reward 1 a step; in half of the episodes, the third reward is no number."""

    def outcome(self, time, goal, action):
        return jnp.where((time == 2) & (goal > 0), jnp.nan, 1.0), False


def test_invalid_rows_are_left_out_of_the_statistics(allow_nans):
    num_envs = 16
    run = Run(Breaks(), num_envs)
    broken = np.asarray(run.state.environment.current.data[1]) > 0
    num_broken = int(broken.sum())
    assert 0 < num_broken < num_envs
    rollout = run.next(3)
    given = rollout.transitions["timestep"]
    np.testing.assert_array_equal(given.valid[2], ~broken)
    np.testing.assert_array_equal(given.terminated[2], broken)
    assert rollout.statistics.invalid_steps == num_broken
    assert rollout.statistics.non_finite == {"observations.observation": 0, "reward": num_broken}
    assert rollout.statistics.invalid_step == 2
    assert rollout.statistics.invalid_environment == np.flatnonzero(broken)[0]
    assert rollout.statistics.env_steps == 3 * num_envs - num_broken
    assert rollout.statistics.episodes.count == 0
    np.testing.assert_array_equal(run.state.episode_return, np.where(broken, 0.0, 3.0))
    np.testing.assert_array_equal(run.state.memory, np.where(broken, 0.0, 3.0))
    assert rollout.statistics.log["toy/reward"] == 3 * num_envs - num_broken


def test_every_step_and_every_call_has_a_random_key_of_its_own():
    rollout = Run(DelayedReward(), 2).next(6)
    noise = np.concatenate([rollout.transitions["act"]["noise"], rollout.transitions["noise"]])
    assert len(np.unique(noise)) == noise.size


@pytest.mark.parametrize("seed", [1, 2])
def test_restart_states_are_drawn_anew_for_every_rollout(seed):
    run = Run(Echo(), 64)
    before = run.state.environment.initial
    run.next(2, seed)
    fresh = run.state.environment.initial
    keys = jax.random.split(jax.random.split(jax.random.key(seed))[0], 64)
    np.testing.assert_array_equal(fresh.data[1], jax.vmap(Echo().reset)(keys).data[1])
    assert not np.array_equal(fresh.data[1], before.data[1])


def test_equal_keys_give_equal_rollouts():
    once, again, other = Run(Echo(), 3).next(4), Run(Echo(), 3).next(4), Run(Echo(), 3).next(4, seed=9)
    jax.tree.map(np.testing.assert_array_equal, once, again)
    assert not np.array_equal(once.transitions["noise"], other.transitions["noise"])


def test_the_first_invalid_step_over_devices_numbers_all_environments():
    """Two environments a device; the third and the fourth device break first, the first device a step later."""

    def local(step, environment):
        statistics = count_step(running([0.0], [0]), timestep([1], [0], [0], [1], [0]))[1]
        statistics = statistics.replace(invalid_step=step, invalid_environment=environment)
        rollout = Rollout((), (), {"observation": jnp.zeros((2, 1))}, (), statistics)
        return jnp.stack(first_invalid(rollout, "devices"))

    over_devices = jax.pmap(local, axis_name="devices", devices=jax.devices()[:4])
    broken = over_devices(jnp.int32([5, -1, 4, 4]), jnp.int32([0, -1, 1, 0]))
    np.testing.assert_array_equal(broken, [[4, 5]] * 4)
    np.testing.assert_array_equal(over_devices(jnp.full(4, -1), jnp.full(4, -1)), [[-1, -1]] * 4)
