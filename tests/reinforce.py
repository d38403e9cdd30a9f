"""REINFORCE (Williams, 1992), an algorithm that shares nothing with PPO: no critic, one gradient step an iteration."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from rlbotics_jax.collectives import pmean, weighted_mean
from rlbotics_jax.config import ConfigBase
from rlbotics_jax.distributions import GaussianDistribution
from rlbotics_jax.models import Model, make_model
from rlbotics_jax.optimizers import make_optimizer
from rlbotics_jax.registry import DISTRIBUTIONS


@dataclasses.dataclass(frozen=True)
class ReinforceConfig(ConfigBase):
    class_name: str | type = "reinforce:Reinforce"
    learning_rate: float = 0.01
    gamma: float = 0.99

    def validate(self):
        super().validate()
        self.check_positive("learning_rate")
        self.check_range("gamma", 0.0, 1.0)


@struct.dataclass
class ReinforceState:
    parameters: dict[str, Any]
    optimizer: Any
    hyperparameters: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Reinforce:
    """Ascends E[log pi(a_t | s_t) (G_t - b)], G_t the discounted rewards to go, b their mean over the batch."""

    config_class: ClassVar[type] = ReinforceConfig

    actor: Model
    distribution: GaussianDistribution
    num_actions: int
    axis_name: str | None = None

    @classmethod
    def from_config(cls, config, num_actions):
        distribution_cfg = config.actor.distribution_cfg
        distribution = DISTRIBUTIONS.resolve(distribution_cfg.class_name).from_config(distribution_cfg)
        actor = make_model("actor", config, distribution.num_outputs(num_actions), 0.01)
        return cls(actor, distribution, num_actions)

    def init(self, key, observations, hyperparameters):
        distribution = self.distribution.init(self.num_actions)
        parameters = {"network": self.actor.init(key, observations), "distribution": distribution}
        return ReinforceState(parameters, make_optimizer("adam").init(parameters), hyperparameters)

    def initial_memory(self, num_envs):
        return ()

    def act(self, state, observations, memory, key):
        mean = self.actor.apply(state.parameters["network"], None, observations)
        latent = self.distribution.sample(state.parameters["distribution"], mean, key)
        return self.distribution.action(latent), memory, {"observations": observations, "latent": latent}

    def process_env_step(self, state, memory, record, timestep, key):
        done = timestep.terminated | timestep.truncated
        return memory, {**record, "rewards": timestep.rewards, "done": done, "weights": timestep.valid.astype(float)}

    def update(self, state, rollout, first_memory, last_observations, last_memory, key):
        def backward(following, step):
            to_go = step["rewards"] + state.hyperparameters["gamma"] * jnp.where(step["done"], 0.0, following)
            return to_go, to_go

        _, to_go = jax.lax.scan(backward, jnp.zeros_like(rollout["rewards"][0]), rollout, reverse=True)
        baseline = weighted_mean(to_go, rollout["weights"], self.axis_name)

        def loss(parameters):
            outputs = self.actor.apply(parameters["network"], None, rollout["observations"])
            log_prob = self.distribution.log_prob(parameters["distribution"], outputs, rollout["latent"])
            return -weighted_mean(log_prob * (to_go - baseline), rollout["weights"], None)

        value, gradients = pmean(jax.value_and_grad(loss)(state.parameters), self.axis_name)
        direction, optimizer = make_optimizer("adam").update(gradients, state.optimizer)
        step = jax.tree.map(lambda d: state.hyperparameters["learning_rate"] * d, direction)
        parameters = jax.tree.map(jnp.subtract, state.parameters, step)
        constrained = self.distribution.constrain(parameters["distribution"], state.parameters["distribution"])
        state = state.replace(parameters={**parameters, "distribution": constrained}, optimizer=optimizer)
        return state, {"policy_gradient": value, "Diagnostics/return_to_go": baseline}

    def policy_parameters(self, state):
        return state.parameters["network"]

    def policy(self, parameters):
        return lambda observations: self.distribution.mode(self.actor.apply(parameters, None, observations))
