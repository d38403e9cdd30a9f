"""Learning quality over seeds: the return at fixed numbers of steps, for the settings that the YAML files leave open.

    python benchmarks/learning.py                      all variants, 5 seeds, prints a table and writes JSON
    python benchmarks/learning.py --variants default --shipped     what a user gets: the shipped configs as they are

Every variant changes one thing of the shipped config. Seeds of all variants are interleaved, so that a machine that
slows down meanwhile slows all of them. docs/defaults.md holds the figures that chose the defaults.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from rlbotics_jax import PPO, evaluate, load_config, make_environment, train
from rlbotics_jax.config import Config
from rlbotics_jax.envs import State
from rlbotics_jax.networks import activate

ITERATIONS = {"MatchGoal": 60, "CartpoleBalance": 150, "CartpoleSwingup": 300}
"""Short of what the configs ship, so that slow variants can be told from fast ones."""

FRACTIONS = (0.2, 0.4, 0.6, 0.8, 1.0)


@dataclasses.dataclass(frozen=True)
class MatchGoal:
    """A toy whose optimum is known: a goal in [-1, 1] is observed for eight steps; the reward is 1 - (a - goal)^2, so
    that the best return is 8."""

    num_actions: int = 1
    action_low: tuple[float, ...] | None = None
    action_high: tuple[float, ...] | None = None
    episode_length: int = 8
    dt: float = 0.1

    def reset(self, key):
        goal = jax.random.uniform(key, (1,), minval=-1.0, maxval=1.0)
        return State(goal, {"observation": goal}, jnp.zeros(()), jnp.zeros((), bool), {})

    def step(self, state, action):
        return state.replace(reward=1.0 - jnp.sum(jnp.square(action - state.data)))


TOYS = {"MatchGoal": MatchGoal}
"""Trained with CartpoleBalance's config."""


class TorchLayers(nn.Module):
    """The MLP with torch's initialisation of linear layers: weights and biases uniform in +-1/sqrt(inputs)."""

    hidden_dims: tuple[int, ...]
    activation: str
    num_outputs: int

    @nn.compact
    def __call__(self, x):
        for width in self.hidden_dims:
            x = activate(self.activation, self.dense(x, width))
        return self.dense(x, self.num_outputs)

    def dense(self, x, width):
        bound = 1.0 / math.sqrt(x.shape[-1])

        def uniform(key, shape, dtype=jnp.float32):
            return jax.random.uniform(key, shape, dtype, -bound, bound)

        return nn.Dense(width, kernel_init=uniform, bias_init=uniform)(x)


class UnitGainPPO(PPO):
    """The actor's last layer is initialised with gain 1 instead of 0.01."""

    @classmethod
    def from_config(cls, config, num_actions):
        algorithm = super().from_config(config, num_actions)
        module = dataclasses.replace(algorithm.actor.module, output_gain=1.0)
        return dataclasses.replace(algorithm, actor=dataclasses.replace(algorithm.actor, module=module))


class UnprimedPPO(PPO):
    """The first rollout, whose observations are raw, is learned from as any other."""

    def is_primed(self, state):
        return jnp.bool_(True)


VARIANTS = {
    "default": {},
    "clipped value loss": {"algorithm": {"use_clipped_value_loss": True}},
    "advantages normalised per mini-batch": {"algorithm": {"normalize_advantage_per_mini_batch": True}},
    "torch initialisation": {"actor": {"class_name": TorchLayers}, "critic": {"class_name": TorchLayers}},
    "actor's last gain 1": {"algorithm": {"class_name": UnitGainPPO}},
    "unprimed normaliser": {"algorithm": {"class_name": UnprimedPPO}},
    "std_type log": {"distribution_cfg": {"std_type": "log"}},
}


def variant_config(task: str, variant: str, seed: int, iterations: int) -> Config:
    """Returns the shipped config of a task with a variant's changes."""
    config = load_config("CartpoleBalance" if task in TOYS else task)
    runner, changes = config.runner, VARIANTS[variant]
    actor = runner.actor.replace(**changes.get("actor", {}))
    actor = actor.replace(distribution_cfg=actor.distribution_cfg.replace(**changes.get("distribution_cfg", {})))
    return config.replace(
        runner=runner.replace(
            seed=seed,
            num_learning_iterations=iterations,
            verbose=False,
            logger=runner.logger.replace(log_dir=None),
            algorithm=runner.algorithm.replace(**changes.get("algorithm", {})),
            actor=actor,
            critic=runner.critic.replace(**changes.get("critic", {})),
        )
    )


def measure(task: str, variant: str, seed: int, iterations: int) -> dict[str, list[float] | float]:
    """Trains once; returns the mean return at fractions of the run, the mean of 20 deterministic episodes of the best
    policy, and the seconds after the first iteration."""
    config = variant_config(task, variant, seed, iterations)
    result = train(config, TOYS[task]() if task in TOYS else None)
    if result.interrupted:
        raise KeyboardInterrupt
    returns, times = result.history["Episodes/mean_reward"], result.history["wall_time"]
    at = [returns[math.ceil(fraction * len(returns)) - 1] for fraction in FRACTIONS]
    environment = TOYS[task]() if task in TOYS else make_environment(config.env)
    deterministic = evaluate(result.policy, environment, num_episodes=20)["returns"].mean()
    return {
        "returns": [float(value) for value in at],
        "deterministic": float(deterministic),
        "seconds": float(times[-1] - times[0]),
    }


def main() -> None:
    """Measures, prints the table of means and worst seeds, and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(ITERATIONS), choices=list(ITERATIONS))
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--shipped", action="store_true", help="as many iterations as the shipped config has")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/learning.json"))
    options = parser.parse_args()

    figures: dict[str, dict[str, list[dict]]] = {}
    for task in options.tasks:
        iterations = ITERATIONS[task]
        if options.shipped and task not in TOYS:
            iterations = load_config(task).runner.num_learning_iterations
        figures[task] = {variant: [] for variant in options.variants}
        for seed in range(options.seeds):
            for variant in options.variants:
                figures[task][variant].append(measure(task, variant, seed, iterations))
        print_table(task, iterations, figures[task])
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(figures, indent=1) + "\n")
    print(f"Wrote {options.output}")


def print_table(task: str, iterations: int, figures: dict[str, list[dict]]) -> None:
    """Prints, for each variant, the mean over seeds at each fraction, the worst seed at the end, the mean and the worst
    seed of the deterministic policy, and the seconds of one run."""
    config = variant_config(task, "default", 0, iterations)
    steps = config.env.num_envs * config.runner.num_steps_per_env * iterations
    head = "".join(f"{fraction * steps / 1e6:>8.2f}M" for fraction in FRACTIONS)
    print(f"\n{task}: mean return of {len(next(iter(figures.values())))} seeds at environment steps")
    print(f"{'':38}{head}   worst  deterministic   worst       s")
    for variant, runs in figures.items():
        returns = np.array([run["returns"] for run in runs])
        deterministic = [run["deterministic"] for run in runs]
        means = "".join(f"{value:>9.1f}" for value in returns.mean(axis=0))
        print(
            f"{variant:38}{means}{returns[:, -1].min():>8.1f}{np.mean(deterministic):>15.1f}{min(deterministic):>8.1f}"
            f"{np.mean([run['seconds'] for run in runs]):>8.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
