"""Algorithms: the protocol that the train step drives, and PPO."""

from rlbotics_jax.algorithms.base import Algorithm, make_algorithm
from rlbotics_jax.algorithms.ppo import PPO
from rlbotics_jax.algorithms.settings import StaticSettings, hyperparameters_of

__all__ = ["PPO", "Algorithm", "StaticSettings", "hyperparameters_of", "make_algorithm"]
