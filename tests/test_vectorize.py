"""N environments as one: time limit, restarts, action mapping, and environments that went non-finite."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_bit_equal, raw

from rlbotics_jax.envs import State, vectorize

NUM_ENVS = 6


@dataclasses.dataclass(frozen=True)
class Walk:
    """Counts its steps. `origin` is drawn at every reset, so that each restart can be told from every other."""

    episode_length: int = 5
    num_actions: int = 2
    action_low: tuple[float, ...] | None = None
    action_high: tuple[float, ...] | None = None
    dt: float = 0.1
    terminal_step: int = 1000

    def reset(self, key):
        return self.state(jnp.float32(0), jax.random.uniform(key), jnp.zeros(2), jnp.zeros(()))

    def step(self, state, action):
        time, origin, _ = state.data
        return self.state(time + 1, origin, action, time + 1)

    def state(self, time, origin, action, reward):
        observations = {"observation": jnp.stack([time, origin]), "taken": action}
        return State((time, origin, action), observations, reward, time >= self.terminal_step, {"walk/time": time})


OBSERVATION, REWARD, PHYSICS = 1.0, 2.0, 3.0
"""Actions at which `Fragile` breaks."""


class Fragile(Walk):
    """Breaks in one place where its first action says so."""

    def step(self, state, action):
        def broken(where, value, bad=jnp.nan):
            return jnp.where(action[0] == where, bad, value)

        state = super().step(state, action)
        time, origin, taken = state.data
        return state.replace(
            data=(time, broken(PHYSICS, origin), taken),
            observations={**state.observations, "observation": broken(OBSERVATION, state.observations["observation"])},
            reward=broken(REWARD, state.reward, jnp.inf),
        )


class Watched(Fragile):
    """Names its physics."""

    def physics(self, state):
        return state.data


def run(environment, actions, seed=0):
    """Returns the first state, and the states and timesteps of stepping through `actions` (T, N, A), as numpy."""
    first = environment.begin_rollout(environment.reset(jax.random.key(seed)), jax.random.key(seed + 1000))

    @jax.jit
    def scan(state, actions):
        def body(state, action):
            state, timestep = environment.step(state, action)
            return state, (state, timestep)

        return jax.lax.scan(body, state, actions)[1]

    return raw((first, *scan(first, jnp.asarray(actions, jnp.float32))))


def still(num_steps, num_envs=NUM_ENVS, num_actions=2):
    return np.zeros((num_steps, num_envs, num_actions), np.float32)


def test_every_leaf_leads_with_the_environments():
    _, states, timesteps = run(vectorize(Walk(), NUM_ENVS, full_reset=True), still(3))
    assert all(leaf.shape[:2] == (3, NUM_ENVS) for leaf in jax.tree.leaves((states, timesteps)))
    assert timesteps.rewards.dtype == jnp.float32
    assert all(flag.dtype == bool for flag in (timesteps.terminated, timesteps.truncated, timesteps.valid))


def test_the_time_limit_truncates_every_episode_length_steps():
    _, states, timesteps = run(vectorize(Walk(episode_length=3), NUM_ENVS), still(7))
    np.testing.assert_array_equal(timesteps.truncated[:, 0], [False, False, True, False, False, True, False])
    np.testing.assert_array_equal(timesteps.truncated, np.repeat(timesteps.truncated[:, :1], NUM_ENVS, 1))
    assert not timesteps.terminated.any() and timesteps.valid.all()
    np.testing.assert_array_equal(states.episode_step[:, 0], [1, 2, 0, 1, 2, 0, 1])
    np.testing.assert_array_equal(timesteps.rewards[:, 0], [1, 2, 3, 1, 2, 3, 1])


def test_a_terminal_state_at_the_time_limit_is_terminated_and_not_truncated():
    _, _, timesteps = run(vectorize(Walk(episode_length=3, terminal_step=3), NUM_ENVS), still(6))
    np.testing.assert_array_equal(timesteps.terminated[:, 0], [False, False, True, False, False, True])
    assert not timesteps.truncated.any()


def test_a_terminal_state_restarts_the_time_limit():
    _, states, timesteps = run(vectorize(Walk(episode_length=3, terminal_step=2), NUM_ENVS), still(4))
    np.testing.assert_array_equal(timesteps.terminated[:, 0], [False, True, False, True])
    assert not timesteps.truncated.any()
    np.testing.assert_array_equal(states.episode_step[:, 0], [1, 0, 1, 0])


def test_final_observations_are_those_before_the_restart():
    first, states, timesteps = run(vectorize(Walk(episode_length=2), NUM_ENVS), still(3))
    origin, fresh = first.current.data[1], first.initial.data[1]
    assert not np.any(np.isclose(origin, fresh))
    final, seen = timesteps.final_observations["observation"], timesteps.observations["observation"]
    np.testing.assert_array_equal(final[1], np.stack([np.full(NUM_ENVS, 2.0), origin], 1))
    np.testing.assert_array_equal(seen[1], np.stack([np.zeros(NUM_ENVS), fresh], 1))
    np.testing.assert_array_equal(final[[0, 2]], seen[[0, 2]])
    np.testing.assert_array_equal(states.observations["observation"], seen)


def test_log_and_reward_of_the_last_step_are_of_the_episode_that_ended():
    _, _, timesteps = run(vectorize(Walk(episode_length=2), NUM_ENVS), still(2))
    np.testing.assert_array_equal(timesteps.log["walk/time"][1], np.full(NUM_ENVS, 2.0))
    np.testing.assert_array_equal(timesteps.rewards[1], np.full(NUM_ENVS, 2.0))


def test_restart_states_are_those_of_begin_rollout():
    environment = vectorize(Walk(episode_length=2), NUM_ENVS)
    first, states, timesteps = run(environment, still(4))
    origins = first.initial.data[1]
    assert len(np.unique(origins)) == NUM_ENVS
    for step in (1, 3):
        assert_bit_equal(jax.tree.map(lambda leaf, t=step: leaf[t], states.current), first.initial)
        np.testing.assert_array_equal(timesteps.observations["observation"][step, :, 1], origins)


def test_restart_states_differ_between_rollouts():
    environment = vectorize(Walk(), NUM_ENVS)
    state = environment.reset(jax.random.key(0))
    rollouts = [environment.begin_rollout(state, jax.random.key(seed)) for seed in (1, 2, 1)]
    origins = [np.asarray(rollout.initial.data[1]) for rollout in rollouts]
    assert len(np.unique([*origins[0], *origins[1]])) == 2 * NUM_ENVS
    np.testing.assert_array_equal(origins[0], origins[2])
    assert_bit_equal(rollouts[0].current, state.current)


def test_full_reset_draws_a_new_state_at_every_end():
    environment = vectorize(Walk(episode_length=2), NUM_ENVS, full_reset=True)
    first, _, timesteps = run(environment, still(6))
    restarts = timesteps.observations["observation"][[1, 3, 5]]
    np.testing.assert_array_equal(restarts[..., 0], np.zeros((3, NUM_ENVS)))
    origins = np.concatenate([first.current.data[1][None], restarts[..., 1]])
    assert len(np.unique(origins)) == 4 * NUM_ENVS


def test_full_reset_needs_no_states_from_begin_rollout():
    environment = vectorize(Walk(), NUM_ENVS, full_reset=True)
    state = environment.reset(jax.random.key(0))
    assert_bit_equal(environment.begin_rollout(state, jax.random.key(1)), state)
    assert vectorize(Walk(), NUM_ENVS).reset(jax.random.key(0)).key is None


def test_first_episodes_can_be_spread_over_the_time_limit():
    num_envs, length = 2000, 10
    environment = vectorize(Walk(episode_length=length), num_envs, init_at_random_ep_len=True)
    _, _, timesteps = run(environment, still(2 * length, num_envs))
    ends = timesteps.truncated
    counts = ends[:length].sum(axis=1)
    # Binomial(2000, 1/10): 200 +- 13.4 a step; five standard deviations.
    assert counts.sum() == num_envs and np.all(np.abs(counts - 200) < 67)
    np.testing.assert_array_equal(ends[length:], ends[:length])


def test_equal_seeds_give_equal_environments_and_others_differ():
    environment = vectorize(Walk(episode_length=3), NUM_ENVS, init_at_random_ep_len=True, full_reset=True)
    once, again, other = (run(environment, still(5), seed) for seed in (0, 0, 1))
    assert_bit_equal(once, again)
    assert not np.any(once[0].current.data[1] == other[0].current.data[1])


def taken(environment, actions):
    """Returns the physical actions that the environments took for the policy's `actions` (N, A)."""
    _, _, timesteps = run(environment, np.asarray(actions, np.float32)[None])
    return timesteps.final_observations["taken"][0]


ACTIONS = [[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [0.5, -0.5], [7.0, -7.0]]


def test_actions_are_clipped_and_mapped_onto_the_bounds():
    walk = Walk(action_low=(-2.0, 0.0), action_high=(2.0, 10.0))
    expected = [[-2.0, 0.0], [0.0, 5.0], [2.0, 10.0], [1.0, 2.5], [2.0, 0.0]]
    np.testing.assert_array_equal(taken(vectorize(walk, 5), ACTIONS), np.float32(expected))


def test_clip_actions_bounds_the_policy_s_actions_before_they_are_mapped():
    walk = Walk(action_low=(-2.0, 0.0), action_high=(2.0, 10.0))
    expected = [[-1.0, 2.5], [0.0, 5.0], [1.0, 7.5], [1.0, 2.5], [1.0, 2.5]]
    np.testing.assert_array_equal(taken(vectorize(walk, 5, clip_actions=0.5), ACTIONS), np.float32(expected))


def test_actions_without_bounds_are_passed_on():
    np.testing.assert_array_equal(taken(vectorize(Walk(), 5), ACTIONS), np.float32(ACTIONS))
    clipped = np.clip(np.float32(ACTIONS), -3.0, 3.0)
    np.testing.assert_array_equal(taken(vectorize(Walk(), 5, clip_actions=3.0), ACTIONS), clipped)


BROKEN_ENV, BROKEN_STEP = 2, 3


def broken_and_whole(where, **settings):
    """Returns a run in which one environment breaks once, and the run without."""
    environment = vectorize(Watched(**settings), NUM_ENVS)
    actions = still(6)
    whole = run(environment, actions)
    actions[BROKEN_STEP, BROKEN_ENV, 0] = where
    return run(environment, actions), whole


@pytest.mark.parametrize("where", [OBSERVATION, REWARD, PHYSICS])
def test_a_non_finite_environment_is_terminated_before_the_restart(allow_nans, where):
    (first, states, timesteps), _ = broken_and_whole(where, episode_length=10)
    at = (BROKEN_STEP, BROKEN_ENV)
    assert timesteps.terminated[at] and not timesteps.truncated[at] and not timesteps.valid[at]
    assert timesteps.rewards[at] == 0.0
    assert timesteps.log["walk/time"][at] == 0.0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((states.current, timesteps)))
    # Its physics restarted from the rollout's initial state, and the episode after it runs on as any other.
    restarted = jax.tree.map(lambda leaf: leaf[at], states.current)
    assert_bit_equal(restarted, jax.tree.map(lambda leaf: leaf[BROKEN_ENV], first.initial))
    np.testing.assert_array_equal(states.episode_step[:, BROKEN_ENV], [1, 2, 3, 0, 1, 2])
    np.testing.assert_array_equal(timesteps.rewards[:, BROKEN_ENV], [1, 2, 3, 0, 1, 2])
    np.testing.assert_array_equal(timesteps.valid[:, BROKEN_ENV], [True, True, True, False, True, True])


@pytest.mark.parametrize("where", [OBSERVATION, REWARD, PHYSICS])
def test_the_other_environments_do_not_notice(allow_nans, where):
    (_, *broken), (_, *whole) = broken_and_whole(where, episode_length=4)
    others = np.arange(NUM_ENVS) != BROKEN_ENV
    assert_bit_equal(*(jax.tree.map(lambda leaf: leaf[:, others], tree) for tree in (broken, whole)))
    assert_bit_equal(*(jax.tree.map(lambda leaf: leaf[:BROKEN_STEP], tree) for tree in (broken, whole)))


@pytest.mark.parametrize(
    ("where", "source"), [(OBSERVATION, "observations.observation"), (REWARD, "reward"), (PHYSICS, "physics")]
)
def test_what_was_not_finite_is_reported(allow_nans, where, source):
    (_, _, timesteps), _ = broken_and_whole(where)
    assert set(timesteps.non_finite) == {"observations.observation", "observations.taken", "reward", "physics"}
    for name, rows in timesteps.non_finite.items():
        np.testing.assert_array_equal(
            np.argwhere(rows), [[BROKEN_STEP, BROKEN_ENV]] if name == source else np.empty((0, 2))
        )


def test_breaking_at_the_time_limit_is_terminated_and_not_truncated(allow_nans):
    (_, _, timesteps), _ = broken_and_whole(REWARD, episode_length=BROKEN_STEP + 1)
    np.testing.assert_array_equal(timesteps.terminated[BROKEN_STEP], np.arange(NUM_ENVS) == BROKEN_ENV)
    np.testing.assert_array_equal(timesteps.truncated[BROKEN_STEP], np.arange(NUM_ENVS) != BROKEN_ENV)


def test_a_non_finite_state_needs_no_physics_hook_where_observations_show_it(allow_nans):
    actions = still(2)
    actions[0, 0, 0], actions[0, 1, 0] = OBSERVATION, PHYSICS
    _, _, timesteps = run(vectorize(Fragile(), NUM_ENVS), actions)
    assert "physics" not in timesteps.non_finite
    np.testing.assert_array_equal(timesteps.valid[0], [False, True, True, True, True, True])
    # The hidden NaN shows in the observations one step later.
    np.testing.assert_array_equal(timesteps.valid[1], [True, False, True, True, True, True])


def test_under_full_reset_too_a_broken_environment_restarts_alone(allow_nans):
    environment = vectorize(Watched(episode_length=10), NUM_ENVS, full_reset=True)
    actions = still(2)
    actions[0, BROKEN_ENV, 0] = PHYSICS
    first, states, _ = run(environment, actions)
    times, origins, _ = (leaf[0] for leaf in states.current.data)
    np.testing.assert_array_equal(times, np.where(np.arange(NUM_ENVS) == BROKEN_ENV, 0.0, 1.0))
    same = origins == first.current.data[1]
    np.testing.assert_array_equal(same, np.arange(NUM_ENVS) != BROKEN_ENV)
    assert np.isfinite(origins).all()


def test_environment_code_may_promote_ranks_and_runs_in_full_precision():
    class Promoting(Walk):
        def step(self, state, action):
            assert jax.config.jax_default_matmul_precision == "highest"
            return super().step(state, (jnp.ones((1, 2)) * action)[0])

    _, _, timesteps = run(vectorize(Promoting(), NUM_ENVS), still(1))
    assert timesteps.valid.all()
