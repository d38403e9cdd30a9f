"""Toy environments whose optimal value is known, for tests of learning."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rlbotics_jax.envs import State


@dataclasses.dataclass(frozen=True)
class Toy:
    """A one-dimensional task without physics. Subclasses give observations, reward and termination of a step count."""

    episode_length: int = 8
    num_actions: int = 1
    action_low: tuple[float, ...] | None = None
    action_high: tuple[float, ...] | None = None
    dt: float = 0.1

    def reset(self, key: Array) -> State:
        goal = jnp.where(jax.random.bernoulli(key), 1.0, -1.0)
        return self.state(jnp.int32(0), goal, jnp.zeros(()), jnp.zeros((), bool))

    def step(self, state: State, action: Float[Array, " A"]) -> State:
        time, goal = state.data
        reward, terminated = self.outcome(time, goal, action)
        return self.state(time + 1, goal, jnp.asarray(reward, jnp.float32), jnp.asarray(terminated, bool))

    def state(self, time, goal, reward, terminated) -> State:
        return State((time, goal), self.observe(time, goal), reward, terminated, {"toy/reward": reward})

    def observe(self, time, goal) -> dict[str, Array]:
        return {"observation": jnp.stack([time / self.episode_length, jnp.ones(())]).astype(jnp.float32)}

    def outcome(self, time, goal, action):
        raise AssertionError("a toy defines its outcome")


class ConstantReward(Toy):
    """Reward 1 a step, terminal after `episode_length - 1` steps: V(s_0) is the finite geometric sum."""

    def outcome(self, time, goal, action):
        return 1.0, time + 1 >= self.episode_length - 1


class TimeLimitOnly(Toy):
    """Reward 1 a step for ever, cut off by the time limit; observations tell no time: V = 1 / (1 - gamma)."""

    def observe(self, time, goal):
        return {"observation": jnp.ones((2,), jnp.float32)}

    def outcome(self, time, goal, action):
        return 1.0, False


class DelayedReward(Toy):
    """Reward 1 in the last step only, which is terminal: V(s_t) = gamma^(steps left - 1)."""

    def outcome(self, time, goal, action):
        last = time + 1 >= self.episode_length - 1
        return jnp.where(last, 1.0, 0.0), last


class ActionReward(Toy):
    """Reward -(a - goal)^2 with the goal observed; one-step episodes: the optimal action is the goal, its value 0."""

    def observe(self, time, goal):
        return {"observation": jnp.stack([goal, jnp.ones(())])}

    def outcome(self, time, goal, action):
        return -jnp.square(action[0] - goal), True


class PrivilegedReward(Toy):
    """The reward is the hidden goal, which only the group `privileged` shows: the value is +-1, to the actor 0."""

    def observe(self, time, goal):
        return {"observation": jnp.ones((2,), jnp.float32), "privileged": jnp.stack([goal, jnp.ones(())])}

    def outcome(self, time, goal, action):
        return goal, True


class WideObservations(TimeLimitOnly):
    """As TimeLimitOnly, with 64 observations: wide against the few other numbers that a rollout holds a step."""

    def observe(self, time, goal):
        return {"observation": jnp.full((64,), time, jnp.float32)}
