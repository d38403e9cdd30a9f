"""The cart-poles: physics against C MuJoCo, rewards by literals and bounds, starts and ends."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlbotics_jax.compilation import jit
from rlbotics_jax.envs import vectorize
from rlbotics_jax.envs.base import third_party
from rlbotics_jax.envs.cartpole import CARTPOLE_XML, MAX_SPEED, CartpoleBalance, CartpoleSwingup
from rlbotics_jax.envs.mjx import mjx

SWINGUP, BALANCE = CartpoleSwingup(), CartpoleBalance()
DATA = mjx.make_data(SWINGUP.model, impl="jax")


def at(x=0.0, angle=0.0, speed=0.0, turn=0.0):
    """Returns the physics at a position (m), angle from upright (rad), speed (m/s) and angular speed (rad/s)."""
    return DATA.replace(qpos=jnp.float32([x, angle]), qvel=jnp.float32([speed, turn]))


@jax.jit
def rewards(qpos, qvel, action):
    return SWINGUP.reward(DATA.replace(qpos=qpos, qvel=qvel), action)


def reward(x=0.0, angle=0.0, speed=0.0, turn=0.0, action=0.0):
    """Returns the named terms as numbers."""
    terms = rewards(jnp.float32([x, angle]), jnp.float32([speed, turn]), jnp.float32([action]))
    return {name: float(term) for name, term in terms.items()}


@pytest.fixture(scope="module")
def trajectory():
    """100 steps of random actions from a hanging pole, in MJX: the first state, the actions and the states."""
    actions = jax.random.uniform(jax.random.key(1), (100, 1), minval=-1.0, maxval=1.0)

    def body(state, action):
        state = SWINGUP.step(state, action)
        return state, state

    def run(key, actions):
        with third_party():
            first = SWINGUP.reset(key)
            return first, jax.lax.scan(body, first, actions)[1]

    first, states = jit(run)(jax.random.key(0), actions)
    return first, np.asarray(actions), states


def test_mjx_equals_c_mujoco(trajectory):
    first, actions, states = trajectory
    model = mujoco.MjModel.from_xml_string(CARTPOLE_XML)
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = first.data.qpos, first.data.qvel
    qpos, qvel = [], []
    for action in actions:
        data.ctrl[:] = action
        mujoco.mj_step(model, data)
        qpos.append(data.qpos.copy())
        qvel.append(data.qvel.copy())
    # float32 against float64, accumulated over a second of motion
    np.testing.assert_allclose(states.data.qpos, qpos, atol=2e-5)
    np.testing.assert_allclose(states.data.qvel, qvel, atol=2e-4)
    assert np.ptp(qpos, axis=0).min() > 0.05


def test_observations_are_those_of_the_physics(trajectory):
    _, _, states = trajectory
    x, angle = np.asarray(states.data.qpos).T
    expected = np.stack([x, np.cos(angle), np.sin(angle), *np.asarray(states.data.qvel).T], axis=1)
    np.testing.assert_allclose(states.observations["observation"], expected, atol=1e-6)


def test_the_terms_sum_to_the_reward_and_are_logged(trajectory):
    _, _, states = trajectory
    assert set(states.metrics) == {f"Reward/{name}" for name in ("upright", "still", "centred", "effort")}
    np.testing.assert_allclose(states.reward, sum(np.asarray(term) for term in states.metrics.values()), atol=1e-6)
    assert np.ptp(states.reward) > 0


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        # upright, at rest, in the middle, without effort
        ({}, {"upright": 0.3, "still": 0.4, "centred": 0.2, "effort": 0.1}),
        ({"action": 1.0}, {"upright": 0.3, "still": 0.4, "centred": 0.2, "effort": 0.0}),
        ({"action": 0.5}, {"upright": 0.3, "still": 0.4, "centred": 0.2, "effort": 0.075}),
        ({"angle": 2 * math.pi}, {"upright": 0.3, "still": 0.4, "centred": 0.2, "effort": 0.1}),
        # hanging
        ({"angle": math.pi}, {"upright": 0.0, "still": 0.0, "centred": 0.0, "effort": 0.0}),
        # level: u = 1/2
        ({"angle": math.pi / 2}, {"upright": 0.15, "still": 0.2, "centred": 0.1, "effort": 0.05}),
        # exp(-4^2 / 8) = exp(-2) = 0.135335
        ({"turn": 4.0}, {"upright": 0.3, "still": 0.0541341, "centred": 0.0270671, "effort": 0.0135335}),
        # exp(-1 / 0.5) = exp(-2)
        ({"x": -1.0}, {"upright": 0.3, "still": 0.4, "centred": 0.0270671, "effort": 0.1}),
        # the cart's speed costs nothing by itself
        ({"speed": 9.0}, {"upright": 0.3, "still": 0.4, "centred": 0.2, "effort": 0.1}),
    ],
)
def test_reward_by_literals(state, expected):
    assert reward(**state) == pytest.approx(expected, abs=1e-6)


@settings(deadline=None)
@given(
    x=st.floats(-100, 100),
    angle=st.floats(-1e4, 1e4),
    speed=st.floats(-1e3, 1e3),
    turn=st.floats(-1e3, 1e3),
    action=st.floats(-1, 1),
)
def test_the_reward_is_between_0_and_1(x, angle, speed, turn, action):
    terms = reward(x, angle, speed, turn, action)
    assert min(terms.values()) >= 0.0
    assert sum(terms.values()) <= 1.0 + 1e-6


@pytest.mark.parametrize("size", [1e3, 1e10, 3e38])
def test_observations_of_a_huge_state_are_finite(size):
    for sign in (1.0, -1.0):
        huge = SWINGUP.observations(at(sign * size, sign * size, sign * size, -sign * size))["observation"]
        assert np.isfinite(huge).all()
        np.testing.assert_array_equal(huge[3:], sign * np.float32([MAX_SPEED, -MAX_SPEED]))


@pytest.mark.parametrize(("angle", "fallen"), [(0.0, False), (0.49, False), (-0.49, False), (0.51, True), (-0.51, True),
                                               (math.pi, True), (2 * math.pi, False)])  # fmt: skip
def test_balance_ends_where_the_pole_leans_beyond_half_a_radian(angle, fallen):
    assert bool(BALANCE.terminated(at(angle=angle))) is fallen
    assert not SWINGUP.terminated(at(angle=angle))


@pytest.mark.parametrize(("task", "angle", "spread"), [(SWINGUP, math.pi, 0.1), (BALANCE, 0.0, 0.05)])
def test_starts(task, angle, spread):
    qpos, qvel = jax.vmap(task.initial_state)(jax.random.split(jax.random.key(0), 1000))
    position, offset = np.abs(np.asarray(qpos) - np.float32([0.0, angle])).T
    assert 0.09 < position.max() <= 0.1 and 0.9 * spread < offset.max() <= spread + 1e-6
    assert 0.005 < np.std(qvel) < 0.02
    assert len(np.unique(qpos[:, 1])) > 900


def test_what_the_tasks_declare():
    for task in (SWINGUP, BALANCE):
        assert (task.num_actions, task.action_low, task.action_high) == (1, (-1.0,), (1.0,))
        assert (task.episode_length, task.dt) == (1000, 0.01)
    assert CartpoleBalance() == CartpoleBalance() != CartpoleBalance(episode_length=5)
    assert hash(CartpoleBalance()) == hash(CartpoleBalance())


def test_swinging_up_needs_a_real_swing_up():
    """Of the 1000 that are possible, no action earns nearly nothing, and full force to one side little."""
    num_envs = 8
    environment = vectorize(SWINGUP, num_envs)
    actions = jnp.where(jnp.arange(num_envs) < num_envs // 2, 0.0, 1.0)[:, None]

    def run(key):
        def body(state, _):
            state, timestep = environment.step(state, actions)
            return state, (timestep.rewards, timestep.terminated)

        return jax.lax.scan(body, environment.reset(key), None, length=SWINGUP.episode_length)[1]

    rewards, terminated = jit(run)(jax.random.key(0))
    assert not terminated.any()
    returns = np.sum(rewards, axis=0)
    assert returns[: num_envs // 2].max() < 10.0
    assert returns[num_envs // 2 :].max() < 200.0


def test_a_reward_of_one_s_own_takes_five_lines():
    @dataclasses.dataclass(frozen=True)
    class Timid(CartpoleBalance):
        def reward(self, data, action):
            terms = super().reward(data, action)
            return {**terms, "timid": -0.5 * jnp.abs(action[0])}

    environment = vectorize(Timid(), 2)
    step = jit(lambda key, actions: environment.step(environment.reset(key), actions)[1])
    timestep = step(jax.random.key(0), jnp.float32([[0.0], [0.5]]))
    np.testing.assert_allclose(timestep.log["Reward/timid"], [0.0, -0.25])
    np.testing.assert_allclose(timestep.rewards, sum(np.asarray(term) for term in timestep.log.values()), atol=1e-6)
