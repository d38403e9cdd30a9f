"""Worker: Brax's PPO on one of this library's MJX tasks, with the task's sizes, networks and hyperparameters.

Runs in an environment with brax and what this library's environments import. Brax runs the same simulation: the task is
wrapped, its step function is not. The ready answer comes with the first training result; each `training` request then
lets Brax train one more epoch of `--iterations` iterations.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
from harness import Requests, installed_versions

MAX_EPOCHS = 100_000
"""Far more than are ever asked for: the worker ends when no request comes any more."""


def replicate(tree: Any, devices: list[jax.Device]) -> Any:
    """Returns the tree with a copy on each device, stacked along a new leading axis, as pmap itself lays it out."""
    return jax.pmap(lambda _, tree: tree, in_axes=(0, None), devices=devices)(jnp.arange(len(devices)), tree)


# JAX removed it; Brax 0.14.2 still calls it. To be set before Brax is imported.
jax.device_put_replicated = replicate

from brax.envs.base import Env as BraxEnv  # noqa: E402
from brax.envs.base import State as BraxState  # noqa: E402
from brax.training.agents.ppo import networks, train  # noqa: E402
from tasks import task_config  # noqa: E402

from rlbotics_jax.config import Config  # noqa: E402
from rlbotics_jax.envs import State, make_environment  # noqa: E402
from rlbotics_jax.networks import activate  # noqa: E402


class Wrapped(BraxEnv):
    """One of this library's environments as Brax sees one; actions in [-1, 1] are mapped onto its bounds."""

    def __init__(self, environment: Any, group: str):
        self.environment, self.group = environment, group
        self.low, self.high = jnp.array(environment.action_low), jnp.array(environment.action_high)

    @property
    def observation_size(self) -> int:
        shapes = jax.eval_shape(self.environment.reset, jax.random.key(0))
        return shapes.observations[self.group].shape[0]

    @property
    def action_size(self) -> int:
        return self.environment.num_actions

    @property
    def backend(self) -> str:
        return "mjx"

    def reset(self, rng: jax.Array) -> BraxState:
        state = self.environment.reset(rng)
        return BraxState(
            pipeline_state=state.data,
            obs=state.observations[self.group],
            reward=state.reward,
            done=state.terminated.astype(jnp.float32),
            metrics=state.metrics,
            info={},
        )

    def step(self, state: BraxState, action: jax.Array) -> BraxState:
        before = State(
            data=state.pipeline_state,
            observations={self.group: state.obs},
            reward=state.reward,
            terminated=state.done > 0,
            metrics=state.metrics,
        )
        fraction = 0.5 * (jnp.clip(action, -1.0, 1.0) + 1.0)
        after = self.environment.step(before, self.low + fraction * (self.high - self.low))
        return state.replace(
            pipeline_state=after.data,
            obs=after.observations[self.group],
            reward=after.reward,
            done=after.terminated.astype(jnp.float32),
            metrics={**state.metrics, **after.metrics},  # Brax's evaluation adds one of its own
        )


class NoMoreRequests(Exception):
    """Leaves Brax's training loop."""


def training_arguments(config: Config, num_envs: int, num_steps: int) -> dict[str, Any]:
    """Returns Brax's arguments for a config of this library.

    Its trajectories are whole rollouts of one environment: a mini-batch holds num_envs / num_mini_batches of them.
    """
    algorithm, actor, critic = config.runner.algorithm, config.runner.actor, config.runner.critic
    return {
        "num_envs": num_envs,
        "unroll_length": num_steps,
        "batch_size": num_envs // algorithm.num_mini_batches,
        "num_minibatches": algorithm.num_mini_batches,
        "num_updates_per_batch": algorithm.num_learning_epochs,
        "learning_rate": algorithm.learning_rate,
        "learning_rate_schedule": "ADAPTIVE_KL" if algorithm.schedule == "adaptive" else "NONE",
        "desired_kl": algorithm.desired_kl,
        "entropy_cost": algorithm.entropy_coef,
        "discounting": algorithm.gamma,
        "gae_lambda": algorithm.lam,
        "clipping_epsilon": algorithm.clip_param,
        "max_grad_norm": algorithm.max_grad_norm,
        "vf_loss_coefficient": 2.0 * algorithm.value_loss_coef,  # Brax halves the squared error
        "normalize_observations": actor.obs_normalization,
        "network_factory": functools.partial(
            networks.make_ppo_networks,
            policy_hidden_layer_sizes=actor.hidden_dims,
            value_hidden_layer_sizes=critic.hidden_dims,
            activation=functools.partial(activate, actor.activation),
            distribution_type="normal",
            noise_std_type="scalar",
            init_noise_std=actor.distribution_cfg.init_std,
        ),
    }


def main() -> None:
    """Trains under the harness's direction."""
    started = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="CartpoleBalance")
    parser.add_argument("--iterations", type=int, default=1, help="iterations of one training epoch")
    parser.add_argument("--num-envs", type=int, help="the config's, unless given")
    parser.add_argument("--num-steps", type=int, help="the config's, unless given")
    parser.add_argument(
        "--evaluations", action="store_true", help="evaluate between two epochs, as Brax does by default"
    )
    options = parser.parse_args()
    requests = Requests()

    config = task_config(options.task)
    num_envs = options.num_envs or config.env.num_envs
    num_steps = options.num_steps or config.runner.num_steps_per_env
    environment = make_environment(config.env)
    (group,) = config.runner.obs_groups["actor"]
    epoch_steps = num_envs * num_steps * options.iterations
    epoch_started = None

    def progress(env_steps: int, metrics: dict[str, Any]) -> None:
        nonlocal epoch_started
        now = time.perf_counter()
        if env_steps == 0:  # evaluated before training
            return
        if epoch_started is None:
            first = {"compile_seconds": now - started, "env_steps_per_epoch": epoch_steps, "device": device_name()}
            requests.answer(first | {"versions": versions()})
        else:
            speed = float(metrics["training/sps"])
            requests.answer(
                {
                    "seconds": epoch_steps / speed,  # by Brax's own clock, which stops between two epochs
                    "wall_seconds": now - epoch_started,
                    "env_steps": epoch_steps,
                    "env_steps_per_second": speed,
                }
            )
        while (request := requests.next()) is not None:
            if request[0] == "training":
                epoch_started = time.perf_counter()
                return
            requests.refuse(f"cannot measure {request[0]!r}, only training")
        raise NoMoreRequests

    with contextlib.suppress(NoMoreRequests):
        train.train(
            environment=Wrapped(environment, group),
            episode_length=environment.episode_length,
            num_timesteps=MAX_EPOCHS * epoch_steps,
            num_evals=MAX_EPOCHS + 1,  # one of them before training
            run_evals=options.evaluations,
            progress_fn=progress,
            seed=config.runner.seed or 0,
            **training_arguments(config, num_envs, num_steps),
        )


def device_name() -> str:
    """Returns what Brax trains on."""
    return jax.devices()[0].device_kind


def versions() -> dict[str, str]:
    """Returns the versions that matter for speed."""
    return installed_versions("brax", "jax", "jaxlib", "flax", "optax", "mujoco", "mujoco-mjx")


if __name__ == "__main__":
    main()
