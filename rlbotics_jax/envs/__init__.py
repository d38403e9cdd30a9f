"""Pure environments: the protocol, its vectorised form, and the tasks that ship with the library."""

from rlbotics_jax.envs.base import Environment, State
from rlbotics_jax.envs.check import check_environment
from rlbotics_jax.envs.make import make_environment
from rlbotics_jax.envs.spec import ActionMapping, EnvironmentSpec, environment_spec
from rlbotics_jax.envs.vectorize import VectorizedEnvironment, VectorizedState, vectorize

__all__ = [
    "ActionMapping",
    "Environment",
    "EnvironmentSpec",
    "State",
    "VectorizedEnvironment",
    "VectorizedState",
    "check_environment",
    "environment_spec",
    "make_environment",
    "vectorize",
]
