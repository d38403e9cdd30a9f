"""A task that only its image shows: where the bright square is. Its optimal return is 0."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rlbotics_jax.envs import State

SIZE, SQUARE = 12, 3
PLACES = SIZE - SQUARE + 1


@dataclasses.dataclass(frozen=True)
class PointAtSquare:
    """A square of 3x3 bright pixels in a dark image of 12x12 bytes; the action points at it, (row, column) in [-1, 1].

    Episodes have one step. Its reward is -|action - goal|^2, the goal being the square's place: 0 at best, and
    `BLIND_RETURN` for whoever acts without looking. With `mirrored`, the group `mirror` shows a sign, drawn at random,
    that the goal is multiplied by: then image and vector are both needed.
    """

    mirrored: bool = False
    num_actions: int = 2
    action_low: tuple[float, ...] | None = None
    action_high: tuple[float, ...] | None = None
    episode_length: int = 4
    dt: float = 0.1

    def reset(self, key: Array) -> State:
        place_key, sign_key = jax.random.split(key)
        place = jax.random.randint(place_key, (2,), 0, PLACES)
        sign = jnp.where(jax.random.bernoulli(sign_key) & self.mirrored, -1.0, 1.0)
        observations = {"camera": image(place)}
        if self.mirrored:
            observations["mirror"] = sign[None]
        goal = sign * position(place)
        return State(goal, observations, jnp.zeros(()), jnp.zeros((), bool), {})

    def step(self, state: State, action: Float[Array, "2"]) -> State:
        reward = -jnp.sum(jnp.square(action - state.data))
        return state.replace(reward=reward, terminated=jnp.ones((), bool))


def image(place: Array) -> Array:
    """The square's picture, (1, 12, 12) of 0 and 255."""
    rows, columns = ((jnp.arange(SIZE) >= start) & (jnp.arange(SIZE) < start + SQUARE) for start in place)
    return jnp.where(rows[:, None] & columns[None], 255, 0).astype(jnp.uint8)[None]


def position(place: Array) -> Array:
    """Where the square is, from -1 to 1 along each axis."""
    return 2.0 * place / (PLACES - 1) - 1.0


BLIND_RETURN = -2.0 * sum((2.0 * i / (PLACES - 1) - 1.0) ** 2 for i in range(PLACES)) / PLACES
"""Minus the variance of the goal: -0.815."""
