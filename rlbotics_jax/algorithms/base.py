"""The Algorithm protocol: a frozen record of static settings with pure methods, called by the train step in order."""

from __future__ import annotations

from typing import Any, Protocol, Self

from jaxtyping import Array, PyTree

from rlbotics_jax.algorithms.settings import Hyperparameters
from rlbotics_jax.registry import ALGORITHMS
from rlbotics_jax.types import Metrics, Observations, Timestep


class Algorithm(Protocol):
    """What learns. A frozen dataclass, hashable by value; every array lives in the state it returns.

    The state is a flax `struct.dataclass` of the algorithm's own choosing with one field in common:
    `hyperparameters`, a dict of float32 scalars, the current values of the config's float fields.

    Attributes:
        axis_name: the name of the device axis over which gradients and statistics are reduced, or None. The train step
            sets it with `dataclasses.replace`.
        config_class: (class attribute) the config dataclass that `runner.algorithm` of a YAML file is read into.
        parts: (class attribute, optional) what `runner.load` calls the parts of the state, and where in it they are:
            {"actor": "parameters.actor"}. Without it, the parts are the fields of the state.

    Optional: check_observations(shapes) raises ConfigError where a model cannot read the environment's groups, given
    {group: shape}; it is called before anything is compiled.
    """

    axis_name: str | None

    @classmethod
    def from_config(cls, config: Any, num_actions: int) -> Self:
        """Builds the algorithm from an OnPolicyRunnerConfig and the environment's number of actions."""
        ...

    def init(self, key: Array, observations: Observations, hyperparameters: Hyperparameters) -> Any:
        """Returns the initial state. `observations` give the shapes, (N, ...) a group."""
        ...

    def initial_memory(self, num_envs: int) -> PyTree:
        """Returns what the algorithm remembers of each environment between steps; () where it remembers nothing."""
        ...

    def act(self, state: Any, observations: Observations, memory: PyTree, key: Array) -> tuple[Array, PyTree, PyTree]:
        """Returns the actions (N, A) in the policy's own units, the memory, and a record for `process_env_step`."""
        ...

    def process_env_step(
        self, state: Any, memory: PyTree, record: PyTree, timestep: Timestep, key: Array
    ) -> tuple[PyTree, PyTree]:
        """Returns the memory, reset where an episode ended, and what `update` will need of this step."""
        ...

    def update(
        self,
        state: Any,
        rollout: PyTree,
        first_memory: PyTree,
        last_observations: Observations,
        last_memory: PyTree,
        key: Array,
    ) -> tuple[Any, Metrics]:
        """Learns from a rollout, the transitions stacked to (T, N, ...).

        Returns the new state and scalars to log. A name without a slash is logged as `Loss/<name>`; a name such as
        `Diagnostics/kl` as it is.
        """
        ...

    def policy_parameters(self, state: Any) -> PyTree:
        """Returns what acting needs: the actor and its normaliser, nothing else."""
        ...

    def policy(self, parameters: PyTree) -> Any:
        """Returns the deterministic policy f(observations) -> actions, in the policy's own units."""
        ...


def make_algorithm(config: Any, num_actions: int) -> Algorithm:
    """Builds the algorithm that `config.algorithm.class_name` names, from an OnPolicyRunnerConfig.

    Raises:
        ValueError: where the name is unknown, or the config asks for a feature that this version does not build.
    """
    return ALGORITHMS.resolve(config.algorithm.class_name).from_config(config, num_actions)
