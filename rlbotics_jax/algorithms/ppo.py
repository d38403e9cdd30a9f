"""Proximal policy optimization with clipped surrogate, adaptive learning rate and generalised advantages.

Source: Schulman et al., Proximal policy optimization algorithms (2017); the adaptive rate as in Rudin et al., Learning
to walk in minutes using massively parallel deep reinforcement learning (2022).
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from rlbotics_jax import losses
from rlbotics_jax.algorithms.mini_batches import mini_batch_indices
from rlbotics_jax.algorithms.ppo_types import ActRecord, PPOState, Samples, Transition
from rlbotics_jax.algorithms.settings import Hyperparameters, StaticSettings
from rlbotics_jax.collectives import pmean, weighted_mean, weighted_sum, weighted_variance
from rlbotics_jax.config import ConfigError, PPOConfig
from rlbotics_jax.distributions import GaussianDistribution
from rlbotics_jax.models import Model, make_model
from rlbotics_jax.normalization import has_rows, is_normalizer
from rlbotics_jax.optimizers import clip_by_global_norm, make_optimizer
from rlbotics_jax.permutation import random_permutation
from rlbotics_jax.registry import DISTRIBUTIONS
from rlbotics_jax.returns import gae, next_values
from rlbotics_jax.rows import zero_other_rows
from rlbotics_jax.sharing import check_sharing, with_encoders, without_encoders
from rlbotics_jax.types import Metrics, Observations, Timestep

ACTOR_OUTPUT_GAIN = 0.01
CRITIC_OUTPUT_GAIN = 1.0


@dataclasses.dataclass(frozen=True)
class PPO:
    """PPO as an `Algorithm`.

    Subclass it and override `update` (or `loss`) to change it; name a subclass of PPOConfig as `config_class` to add
    fields to the YAML file.
    """

    config_class: ClassVar[type] = PPOConfig
    parts: ClassVar[dict[str, str]] = {
        "actor": "parameters.actor",
        "critic": "parameters.critic",
        "normalizer": "normalizers",
        "optimizer": "optimizer",
    }

    settings: StaticSettings
    actor: Model
    critic: Model
    distribution: GaussianDistribution
    num_actions: int
    axis_name: str | None = None

    @classmethod
    def from_config(cls, config: Any, num_actions: int) -> Self:
        """Builds PPO from an OnPolicyRunnerConfig; refuses what this version reads but does not build."""
        for key in ("rnd_cfg", "symmetry_cfg"):
            if getattr(config.algorithm, key) is not None:
                raise ConfigError(f"runner.algorithm.{key}", "is read but not built in this version; set it to null")
        distribution_cfg = config.actor.distribution_cfg
        distribution = DISTRIBUTIONS.resolve(distribution_cfg.class_name).from_config(distribution_cfg)
        num_outputs = distribution.num_outputs(num_actions)
        return cls(
            settings=StaticSettings.of(config.algorithm),
            actor=make_model("actor", config, num_outputs, ACTOR_OUTPUT_GAIN),
            critic=make_model("critic", config, 1, CRITIC_OUTPUT_GAIN),
            distribution=distribution,
            num_actions=num_actions,
        )

    def check_observations(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Checks that the models can read the environment's groups, given their shapes.

        Raises:
            ConfigError: naming the model, the group and its shape.
        """
        for name, model in (("actor", self.actor), ("critic", self.critic)):
            try:
                model.check(shapes)
            except ConfigError as error:
                raise error.under(f"runner.{name}") from None
        if self.settings.share_cnn_encoders:
            check_sharing(self.actor, self.critic, shapes)

    def init(self, key: Array, observations: Observations, hyperparameters: Hyperparameters) -> PPOState:
        """Returns freshly initialised networks, empty statistics and optimizer."""
        actor_key, critic_key = jax.random.split(key)
        critic = self.critic.init(critic_key, observations)
        critic_normalizer = self.critic.init_normalizer(observations)
        if self.settings.share_cnn_encoders:
            critic, critic_normalizer = without_encoders(critic, critic_normalizer)
        parameters = {
            "actor": {
                "network": self.actor.init(actor_key, observations),
                "distribution": self.distribution.init(self.num_actions),
            },
            "critic": {"network": critic},
        }
        return PPOState(
            parameters=parameters,
            normalizers={"actor": self.actor.init_normalizer(observations), "critic": critic_normalizer},
            optimizer=make_optimizer(self.settings.optimizer).init(parameters),
            hyperparameters=hyperparameters,
            rejected_updates=jnp.uint32(0),
        )

    def initial_memory(self, num_envs: int) -> tuple[()]:
        """A feed-forward policy remembers nothing."""
        return ()

    def act(
        self, state: PPOState, observations: Observations, memory: tuple[()], key: Array
    ) -> tuple[Float[Array, "N A"], tuple[()], ActRecord]:
        """Samples actions a ~ pi(. | s_t) and evaluates V(s_t)."""
        distribution_parameters = state.parameters["actor"]["distribution"]
        outputs = self._actor_outputs(state.parameters, state.normalizers, observations)
        latent = self.distribution.sample(distribution_parameters, outputs, key)
        groups = {*self.actor.groups, *self.critic.groups}
        record = ActRecord(
            observations={group: observations[group] for group in groups},
            latent=latent,
            outputs=outputs,
            log_prob=self.distribution.log_prob(distribution_parameters, outputs, latent),
            values=self._values(state.parameters, state.normalizers, observations),
        )
        return self.distribution.action(latent), memory, record

    def process_env_step(
        self, state: PPOState, memory: tuple[()], record: ActRecord, timestep: Timestep, key: Array
    ) -> tuple[tuple[()], Transition]:
        """Adds V(final observation) where the time limit cut an episode off."""
        if timestep.final_observations is None:
            warnings.warn(
                "The environment gives no final observations: where the time limit cuts an episode off, the value of "
                "the state before the last step stands in for the value of the last one.",
                stacklevel=2,
            )
            final_values = record.values
        else:
            # Most steps truncate nothing; the branch saves a pass of the critic on them (under vmap both run).
            final_values = jax.lax.cond(
                jnp.any(timestep.truncated),
                lambda: self._values(state.parameters, state.normalizers, timestep.final_observations),
                lambda: jnp.zeros_like(record.values),
            )
        return memory, Transition(
            record, timestep.rewards, timestep.terminated, timestep.truncated, timestep.valid, final_values
        )

    def update(
        self,
        state: PPOState,
        rollout: Transition,
        first_memory: tuple[()],
        last_observations: Observations,
        last_memory: tuple[()],
        key: Array,
    ) -> tuple[PPOState, Metrics]:
        """Runs the epochs of mini-batch steps, each epoch on a fresh permutation, then merges the statistics.

        The first rollout of a policy that normalises its observations only fills the statistics (see `is_primed`).
        """
        samples, explained_variance = self.samples(state, rollout, last_observations)
        samples = samples.replace(weights=samples.weights * self.is_primed(state))
        batch_size = samples.weights.shape[0]
        old_distribution = state.parameters["actor"]["distribution"]
        num_mini_batches = self.settings.num_mini_batches

        def mini_batch_step(carry, mini_batch):
            state, step = carry
            indices, is_sample = mini_batch
            batch = jax.tree.map(lambda leaf: leaf[indices], samples)
            batch = batch.replace(weights=batch.weights * is_sample)
            # A weight of 0 keeps an invalid row out of the loss, but not a NaN in it out of the gradient.
            batch = zero_other_rows(batch.weights > 0, batch)
            # Before the first step of an iteration nothing has moved, and its KL is rounding.
            state, metrics = self._mini_batch_step(state, old_distribution, batch, adapt=step > 0)
            return (state, step + 1), metrics

        def epoch(carry, epoch_key):
            permutation = self.permutation(epoch_key, batch_size)
            return jax.lax.scan(mini_batch_step, carry, mini_batch_indices(permutation, num_mini_batches))

        epoch_keys = jax.random.split(key, self.settings.num_learning_epochs)
        (state, _), metrics = jax.lax.scan(epoch, (state, jnp.int32(0)), epoch_keys)

        applied, rejected = metrics.pop("applied"), metrics.pop("rejected")
        metrics = {name: weighted_mean(value, applied, None) for name, value in metrics.items()}
        state, rejected_merges = self._merge_normalizers(state, rollout)
        metrics |= {
            "Diagnostics/explained_variance": explained_variance,
            "Diagnostics/applied_updates": jnp.sum(applied),
            "Diagnostics/rejected_updates": jnp.sum(rejected),
            "Diagnostics/consecutive_rejected_updates": state.rejected_updates.astype(jnp.float32),
            "Diagnostics/rejected_normalizer_merges": rejected_merges,
            "Learning/learning_rate": state.hyperparameters["learning_rate"],
            "Policy/action_std": jnp.mean(self.distribution.std(state.parameters["actor"]["distribution"])),
        }
        return state, metrics

    def samples(
        self, state: PPOState, rollout: Transition, last_observations: Observations
    ) -> tuple[Samples, Float[Array, ""]]:
        """Returns the rollout as (T * N) rows with advantages and returns, and the critic's explained variance.

        Advantages are normalised over the whole batch, (A - mean) / (std + 1e-8) with the unbiased standard deviation,
        unless `normalize_advantage_per_mini_batch` asks for it later. The explained variance is
        1 - Var(R - V) / Var(R): 1 is a perfect critic, 0 no better than the mean return.
        """
        hyperparameters, values = state.hyperparameters, rollout.act.values
        last_values = self._values(state.parameters, state.normalizers, last_observations)
        following = next_values(values, last_values, rollout.final_values, rollout.truncated)
        advantages = gae(
            rollout.rewards,
            values,
            following,
            rollout.terminated,
            rollout.truncated,
            hyperparameters["gamma"],
            hyperparameters["lam"],
            rollout.valid,
        )
        returns = advantages + values
        weights = rollout.valid.astype(values.dtype)
        variance = weighted_variance(returns, weights, self.axis_name)
        residual = weighted_variance(advantages, weights, self.axis_name)
        explained_variance = jnp.where(variance > 0, 1.0 - residual / jnp.where(variance > 0, variance, 1.0), 0.0)
        if not self.settings.normalize_advantage_per_mini_batch:
            advantages = self._normalized(advantages, weights)
        samples = Samples(rollout.act, advantages, returns, weights)
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), samples), explained_variance

    def is_primed(self, state: PPOState) -> Bool[Array, ""]:
        """Returns whether the observation statistics hold anything yet; True where nothing is normalised.

        What is learned on raw observations is lost when the first statistics rescale them: docs/defaults.md has the
        figures. So the first rollout, which counts as any other, teaches nothing.
        """
        statistics = jax.tree.leaves(state.normalizers, is_leaf=is_normalizer)
        return jnp.all(jnp.array([has_rows(each) for each in statistics], bool))

    def permutation(self, key: Array, batch_size: int) -> Array:
        """Returns the order in which one epoch visits the samples."""
        return random_permutation(key, batch_size)

    def loss(
        self, parameters: dict[str, PyTree], state: PPOState, old_distribution: PyTree, batch: Samples
    ) -> tuple[Float[Array, ""], Metrics]:
        """Returns surrogate + value_loss_coef * value - entropy_coef * entropy, and its terms.

        Each term is the mean over the valid rows of all devices, so that the mean of the devices' gradients is the
        gradient of the whole.
        """
        hyperparameters, record = state.hyperparameters, batch.act
        num_rows = pmean(jnp.sum(batch.weights), self.axis_name)

        def mean(rows: Float[Array, " B"]) -> Float[Array, ""]:
            return weighted_sum(rows, batch.weights, None) / jnp.where(num_rows > 0, num_rows, 1.0)

        new_distribution = parameters["actor"]["distribution"]
        outputs = self._actor_outputs(parameters, state.normalizers, record.observations)
        values = self._values(parameters, state.normalizers, record.observations)
        log_prob = self.distribution.log_prob(new_distribution, outputs, record.latent)
        clip_param = hyperparameters["clip_param"]
        if self.settings.use_clipped_value_loss:
            value_rows = losses.clipped_value_loss(values, record.values, batch.returns, clip_param)
        else:
            value_rows = losses.value_loss(values, batch.returns)

        surrogate = mean(losses.clipped_surrogate(log_prob, record.log_prob, batch.advantages, clip_param))
        value = mean(value_rows)
        entropy = mean(self.distribution.entropy(new_distribution, outputs))
        total = surrogate + hyperparameters["value_loss_coef"] * value - hyperparameters["entropy_coef"] * entropy
        return total, {
            "Loss/surrogate": surrogate,
            "Loss/value": value,
            "Loss/entropy": entropy,
            "Diagnostics/kl": mean(self.distribution.kl(old_distribution, record.outputs, new_distribution, outputs)),
            "Diagnostics/clip_fraction": mean(losses.clip_fraction(log_prob, record.log_prob, clip_param)),
        }

    def policy_parameters(self, state: PPOState) -> PyTree:
        """Returns the actor's parameters and its normaliser."""
        return {"actor": state.parameters["actor"], "normalizer": state.normalizers["actor"]}

    def policy(self, parameters: PyTree) -> Callable[[Observations], Float[Array, "N A"]]:
        """Returns the policy that takes the mode of the action distribution."""

        def act(observations: Observations) -> Float[Array, "N A"]:
            outputs = self.actor.apply(parameters["actor"]["network"], parameters["normalizer"], observations)
            return self.distribution.mode(outputs)

        return act

    def _mini_batch_step(
        self, state: PPOState, old_distribution: PyTree, batch: Samples, adapt: Bool[Array, ""]
    ) -> tuple[PPOState, Metrics]:
        """One gradient step. A step whose gradients are not finite leaves parameters and optimizer bit-equal."""
        if self.settings.normalize_advantage_per_mini_batch:
            batch = batch.replace(advantages=self._normalized(batch.advantages, batch.weights))
        hyperparameters, parameters = state.hyperparameters, state.parameters
        gradients, metrics = jax.grad(self.loss, has_aux=True)(parameters, state, old_distribution, batch)
        gradients, metrics = pmean((gradients, metrics), self.axis_name)

        learning_rate = hyperparameters["learning_rate"]
        if self.settings.schedule == "adaptive":
            adapted = losses.adaptive_learning_rate(
                learning_rate,
                metrics["Diagnostics/kl"],
                hyperparameters["desired_kl"],
                hyperparameters["min_learning_rate"],
                hyperparameters["max_learning_rate"],
            )
            learning_rate = jnp.where(adapt, adapted, learning_rate)

        max_norm = hyperparameters["max_grad_norm"]
        clipped = {name: clip_by_global_norm(gradient, max_norm) for name, gradient in gradients.items()}
        gradients = {name: gradient for name, (gradient, _) in clipped.items()}
        # A finite loss can have a gradient that is not (an overflowing ratio), so the gradients decide, by their norms:
        # a sum of squares is finite only where every term is.
        finite = jnp.isfinite(sum(norm for _, norm in clipped.values()))
        has_rows = pmean(jnp.sum(batch.weights), self.axis_name) > 0
        accepted = finite & has_rows
        optimizer = make_optimizer(self.settings.optimizer)
        direction, optimizer_state = optimizer.update(gradients, state.optimizer, parameters)
        stepped = jax.tree.map(lambda parameter, d: parameter - learning_rate * d, parameters, direction)
        stepped["actor"]["distribution"] = self.distribution.constrain(
            stepped["actor"]["distribution"], parameters["actor"]["distribution"]
        )

        def keep(new: PyTree, old: PyTree) -> PyTree:
            return jax.tree.map(lambda n, o: jnp.where(accepted, n, o), new, old)

        state = state.replace(
            parameters=keep(stepped, parameters),
            optimizer=keep(optimizer_state, state.optimizer),
            hyperparameters={**hyperparameters, "learning_rate": learning_rate},
            rejected_updates=jnp.where(finite, state.rejected_updates * ~has_rows, state.rejected_updates + 1),
        )
        applied, rejected = (flag.astype(learning_rate.dtype) for flag in (accepted, ~finite))
        return state, {**metrics, "applied": applied, "rejected": rejected}

    def _merge_normalizers(self, state: PPOState, rollout: Transition) -> tuple[PPOState, Float[Array, ""]]:
        """Returns the state with the rollout's raw observations in its statistics, and how many merges were dropped."""
        normalizers, rejected = {}, jnp.float32(0.0)
        batch = (rollout.act.observations, rollout.valid, self.axis_name)
        for name, model in (("actor", self.actor), ("critic", self.critic)):
            merged, accepted = model.merge(state.normalizers[name], *batch)
            normalizers[name], also = model.merge_batch_norm(state.parameters[name]["network"], merged, *batch)
            rejected += 1.0 - (accepted & also)
        return state.replace(normalizers=normalizers), rejected

    def _normalized(self, advantages: Array, weights: Array) -> Array:
        """Returns (A - mean) / (std + 1e-8) over the rows of weight 1, on all devices."""
        mean = weighted_mean(advantages, weights, self.axis_name)
        std = jnp.sqrt(weighted_variance(advantages, weights, self.axis_name, ddof=1))
        return (advantages - mean) / (std + 1e-8)

    def _actor_outputs(self, parameters: PyTree, normalizers: PyTree, observations: Observations) -> Array:
        return self.actor.apply(parameters["actor"]["network"], normalizers["actor"], observations)

    def _values(self, parameters: PyTree, normalizers: PyTree, observations: Observations) -> Float[Array, "..."]:
        network, normalizer = parameters["critic"]["network"], normalizers["critic"]
        if self.settings.share_cnn_encoders:
            actors = parameters["actor"]["network"], normalizers["actor"]
            network, normalizer = with_encoders(network, normalizer, *actors)
        return self.critic.apply(network, normalizer, observations)[..., 0]
