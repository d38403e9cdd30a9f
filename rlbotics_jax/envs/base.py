"""The protocol of one pure environment: `reset` and `step` on a pytree, without batch, time limit or auto-reset."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import jax
from flax import struct
from jaxtyping import Array, Bool, Float, PyTree

from rlbotics_jax.types import Observations


@struct.dataclass
class State:
    """One environment between two steps.

    Attributes:
        data: the physics, and whatever else the environment carries (a random key, a goal).
        observations: groups by name, each a float32 vector (n,) or an image (C, H, W): float32, or uint8 from 0 to 255.
        reward: of the step that led here; 0 after a reset.
        terminated: the state is terminal. A time limit is none: `vectorize` adds it.
        metrics: scalars to log, averaged over steps. One that has no value in this step (the success of an episode
            that goes on) is NaN there, and left out of the mean.
    """

    data: PyTree
    observations: Observations
    reward: Float[Array, ""]
    terminated: Bool[Array, ""]
    metrics: dict[str, Float[Array, ""]]


class Environment(Protocol):
    """One environment as two pure functions. Any class with these members is one; no base class is needed.

    A class that compares equal by its settings (a frozen dataclass) lets a second `train` reuse the compiled program.

    Optional members:
        physics(state): a pytree that must stay finite beside observations and reward.
        renderer(width, height): how videos are drawn; a context manager that opens what drawing needs (a window, a
            scene) and yields draw(state) -> the picture, uint8 (height, width, 3). `state` holds numpy arrays, and all
            of it happens in one thread, which need not be the main one.
        metadata: what is written into exported policies for those who deploy them: a dict of strings, numbers and lists
            of them, such as {"action_names": ["hip", "knee"]}; docs/deployment.md has the keys that are in use.

    Attributes:
        num_actions: A.
        action_low, action_high: bounds of the physical action, A floats each, or None where it has none. Where given,
            the policy's actions are clipped to [-1, 1] and mapped onto them before `step` sees them.
        episode_length: time limit in steps.
        dt: seconds between two actions.
    """

    num_actions: int
    action_low: tuple[float, ...] | None
    action_high: tuple[float, ...] | None
    episode_length: int
    dt: float

    def reset(self, key: Array) -> Any:
        """Returns a random initial state, a pytree with the fields of `State`."""
        ...

    def step(self, state: Any, action: Float[Array, " A"]) -> Any:
        """Returns the next state, of the same structure, shapes and dtypes. `action` is physical, not normalised."""
        ...


@contextlib.contextmanager
def third_party() -> Iterator[None]:
    """Traces an environment's own code: implicit rank promotion allowed, full float32 products.

    Physics wants the full product (TF32 is not enough on a GPU), and MJX itself promotes ranks.
    """
    with jax.numpy_rank_promotion("allow"), jax.default_matmul_precision("highest"):
        yield
