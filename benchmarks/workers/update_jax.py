"""Worker: this library's PPO.update alone, compiled and with its state donated, as the train step runs it."""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
from harness import installed_versions, serve
from update_case import ACTIONS, HIDDEN, SETTINGS, STD_RANGE, Case, random_case

from rlbotics_jax.algorithms import PPO, hyperparameters_of
from rlbotics_jax.algorithms.ppo_types import PPOState, Transition
from rlbotics_jax.compilation import jit
from rlbotics_jax.config import GaussianDistributionConfig, MLPConfig, OnPolicyRunnerConfig, PPOConfig

GROUP = "policy"


def build(case: Case) -> tuple[PPO, PPOState, Transition, dict[str, jax.Array]]:
    """Returns the algorithm, its state with the case's weights and filled statistics, the rollout, and what was
    observed last."""
    model = {"hidden_dims": HIDDEN, "activation": "elu", "obs_normalization": True}
    config = OnPolicyRunnerConfig(
        obs_groups={"actor": (GROUP,), "critic": (GROUP,)},
        algorithm=PPOConfig(**SETTINGS),
        # RLBotics trains the logarithm of the standard deviation, whatever std_type says.
        actor=MLPConfig(**model, distribution_cfg=GaussianDistributionConfig(std_range=STD_RANGE, std_type="log")),
        critic=MLPConfig(**model),
    )
    ppo = PPO.from_config(config, ACTIONS)
    steps, last = {GROUP: jnp.asarray(case.observations[:-1])}, {GROUP: jnp.asarray(case.observations[-1])}
    state = ppo.init(jax.random.key(0), last, hyperparameters_of(config.algorithm))
    for network, layers in case.weights.items():
        parameters = state.parameters[network]["network"]["params"]
        for i, (kernel, bias) in enumerate(layers):
            parameters[f"Dense_{i}"] = {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias)}
    valid = jnp.ones(case.rewards.shape, bool)
    normalizers = {
        name: model.merge(state.normalizers[name], {GROUP: jnp.asarray(case.statistics)}, valid, None)[0]
        for name, model in (("actor", ppo.actor), ("critic", ppo.critic))
    }
    state = state.replace(normalizers=normalizers)

    # What acting draws is replaced by the case's noise, and the probability with it.
    record = jit(jax.vmap(lambda step: ppo.act(state, step, (), jax.random.key(0))[2]))(steps)
    distribution = state.parameters["actor"]["distribution"]
    latent = record.outputs + ppo.distribution.std(distribution) * jnp.asarray(case.noise)
    record = record.replace(latent=latent, log_prob=ppo.distribution.log_prob(distribution, record.outputs, latent))
    rollout = Transition(
        act=record,
        rewards=jnp.asarray(case.rewards),
        terminated=jnp.asarray(case.dones),
        truncated=jnp.zeros_like(valid),
        valid=valid,
        final_values=jnp.zeros_like(record.values),
    )
    return ppo, state, rollout, last


class Updates:
    """The compiled program and its data."""

    def __init__(self, num_envs: int):
        self.num_envs = num_envs

    def ready(self) -> dict[str, Any]:
        """Builds, compiles, and runs once."""
        ppo, self.state, self.rollout, self.last = build(random_case(self.num_envs))
        self.keys = iter(range(2**31))

        def updates(state: PPOState, rollout: Transition, last: dict[str, jax.Array], key: jax.Array, count: jax.Array):
            """`count` updates in one program, as a block of iterations holds them."""

            def one(i: jax.Array, carry: tuple[PPOState, Any]) -> tuple[PPOState, Any]:
                return ppo.update(carry[0], rollout, (), last, (), jax.random.fold_in(key, i))

            _, shapes = jax.eval_shape(ppo.update, state, rollout, (), last, (), key)
            metrics = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
            return jax.lax.fori_loop(0, count, one, (state, metrics))

        started = time.perf_counter()
        arguments = (self.state, self.rollout, self.last, jax.random.key(0), jnp.int32(1))
        self.program = jit(updates, donate_argnums=0).lower(*arguments).compile()
        compile_seconds = time.perf_counter() - started
        self.update()
        return {"compile_seconds": compile_seconds, "versions": installed_versions("jax", "jaxlib", "flax", "optax")}

    def update(self) -> dict[str, Any]:
        """One update from the case's state, on a permutation of its own."""
        state, key = jax.tree.map(jnp.copy, self.state), jax.random.key(next(self.keys))
        jax.block_until_ready((state, key))
        started = time.perf_counter()
        result = self.program(state, self.rollout, self.last, key, jnp.int32(1))
        _, metrics = jax.block_until_ready(result)
        return {
            "seconds": time.perf_counter() - started,
            "value_loss": float(metrics["Loss/value"]),
            "kl": float(metrics["Diagnostics/kl"]),
            "learning_rate": float(metrics["Learning/learning_rate"]),
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("num_envs", type=int)
    updates = Updates(parser.parse_args().num_envs)
    serve(updates.ready, {"update": updates.update})
