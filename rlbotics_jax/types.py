"""The pytrees that flow through training. Their fields tell the layout: T steps, N environments, n features."""

from __future__ import annotations

from typing import Any

from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt32

from rlbotics_jax.counters import Count

Observations = dict[str, Array]
"""Observation groups by name, each (N, ...)."""

Metrics = dict[str, Array]
"""Scalars by the name under which they are logged, e.g. `Loss/value`."""


@struct.dataclass
class Timestep:
    """What one step of N environments gave; the same from a JAX environment and from a host simulator.

    Attributes:
        observations: what the policy sees next; in environments that were reset, the new episode's first observations.
        rewards: (N,) reward of the transition.
        terminated: (N,) the episode reached a terminal state, whose value is 0.
        truncated: (N,) the episode was cut off by the time limit; never together with `terminated`.
        valid: (N,) False where the row is no real transition (a simulator's reset row, a non-finite state).
        final_observations: the observations before the reset, meaningful where an episode ended; None where the
            environment cannot give them.
        log: the environment's own metrics, each (N,).
        non_finite: by source (`observations.<group>`, `reward`, `physics`), (N,) whether it was not finite; empty where
            the environment is not watched.
    """

    observations: Observations
    rewards: Float[Array, " N"]
    terminated: Bool[Array, " N"]
    truncated: Bool[Array, " N"]
    valid: Bool[Array, " N"]
    final_observations: Observations | None
    log: dict[str, Float[Array, " N"]]
    non_finite: dict[str, Bool[Array, " N"]]


@struct.dataclass
class EpisodeWindow:
    """Sums over the episodes that ended in each of the last W iterations (a ring; slot = iteration mod W)."""

    count: Float[Array, " W"]
    sum_return: Float[Array, " W"]
    sum_length: Float[Array, " W"]


@struct.dataclass
class BestPolicy:
    """The policy with the highest mean return so far: the parameters that acted when the score was earned.

    Attributes:
        parameters: `Algorithm.policy_parameters`.
        score: the mean return; -inf where there is no best yet.
        iteration: the iteration in which it was earned, counted from 1 as in the log; 0 where there is none.
    """

    parameters: PyTree
    score: Float[Array, ""]
    iteration: Int[Array, ""]


@struct.dataclass
class SharedState:
    """The half of a run that is replicated on every device.

    Attributes:
        algorithm: the algorithm's own state: parameters, optimizer, normalisers, hyperparameters.
        configured: the float hyperparameters as the config gave them; a resumed run takes over what has changed since.
        iteration: completed iterations.
        env_steps: valid environment steps, over all environments and devices.
        episodes: the episode window.
        best: the best policy.
        key: the random key.
    """

    algorithm: Any
    configured: dict[str, Float[Array, ""]]
    iteration: Int[Array, ""]
    env_steps: Count
    episodes: EpisodeWindow
    best: BestPolicy
    key: Array


@struct.dataclass
class PerEnvironmentState:
    """The half of a run whose every leaf leads with the number of environments.

    Attributes:
        environment: the environments' states.
        observations: what the policy sees next.
        memory: what the algorithm remembers of each environment.
        episode_return, episode_length: of the running episodes, so far.
        episode_is_whole: False in a first episode that started in the middle of the time limit
            (`init_at_random_ep_len`), which tells nothing about a whole one's return.
    """

    environment: PyTree
    observations: Observations
    memory: PyTree
    episode_return: Float[Array, " N"]
    episode_length: UInt32[Array, " N"]
    episode_is_whole: Bool[Array, " N"]


@struct.dataclass
class TrainState:
    """All that a bit-exact continuation needs: what every device holds alike, and what each environment holds."""

    shared: SharedState
    per_environment: PerEnvironmentState
