"""Worker: this library on an MJX task: stepping alone, collection alone, the update alone, and training.

Every measurement is one dispatch of `--iterations` iterations' worth of that work.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from harness import installed_versions, serve
from tasks import task_config

from rlbotics_jax.algorithms import hyperparameters_of
from rlbotics_jax.build import build_algorithm, build_environment
from rlbotics_jax.compilation import enable_compilation_cache, jit
from rlbotics_jax.envs.base import third_party
from rlbotics_jax.program import make_program
from rlbotics_jax.rollout import Rollout, collect
from rlbotics_jax.types import PerEnvironmentState


class Stages:
    """The compiled stages of one task, and the states they work on."""

    def __init__(self, task: str, iterations: int, num_envs: int | None, num_steps: int | None):
        config = task_config(task)
        config = config.replace(env=config.env.replace(num_envs=num_envs or config.env.num_envs))
        self.config, self.environment = build_environment(config, None)
        self.algorithm, _ = build_algorithm(self.config, self.environment)
        self.iterations = iterations
        self.num_steps = num_steps or config.runner.num_steps_per_env
        self.env_steps = iterations * self.num_steps * self.environment.num_envs

    def ready(self) -> dict[str, Any]:
        """Compiles, with the persistent cache that the environment variables name, and runs everything once."""
        enable_compilation_cache()
        started = time.perf_counter()
        program = make_program(self.algorithm, self.environment, self.num_steps)
        state = program.init(jax.random.key(0), hyperparameters_of(self.config.runner.algorithm))
        block = program.block.lower(state, np.int32(1)).compile()
        compile_seconds = time.perf_counter() - started
        memory = block.memory_analysis()

        rollout = jit(self.rollout)(state.shared.algorithm, state.per_environment, jax.random.key(0))[1]
        state, _ = block(state, np.int32(2))  # the first only fills the normaliser
        keys = jax.random.split(jax.random.key(1), self.iterations)
        self.stages: dict[str, Callable[[], Any]] = {}
        for name, function, arguments in (
            ("stepping", self.stepping, (state.per_environment.environment.current, keys)),
            ("collection", self.collection, (state.shared.algorithm, state.per_environment, rollout, keys)),
            ("update", self.update, (state.shared.algorithm, rollout, keys)),
        ):
            self.stages[name] = self._repeated(jit(function), arguments)
            self.stages[name]()
        self.state, self.block = jax.tree.map(jnp.copy, state), block  # the block donates it
        return {
            "compile_seconds": compile_seconds,
            "state_mib": memory.argument_size_in_bytes / 2**20,
            "temporary_mib": memory.temp_size_in_bytes / 2**20,
            "versions": installed_versions("jax", "jaxlib", "flax", "optax", "mujoco", "mujoco-mjx", "playground"),
        }

    def stepping(self, states: Any, keys: jax.Array) -> Any:
        """Random actions through the bare vmapped step, no limits, no resets."""
        environment, num_envs = self.environment.environment, self.environment.num_envs
        low, high = np.float32(environment.action_low), np.float32(environment.action_high)

        def step(states: Any, key: jax.Array) -> tuple[Any, None]:
            actions = jax.random.uniform(key, (num_envs, len(low)), minval=low, maxval=high)
            return jax.vmap(environment.step)(states, actions), None

        def steps(states: Any, key: jax.Array) -> tuple[Any, None]:
            return jax.lax.scan(step, states, jax.random.split(key, self.num_steps))

        with third_party():
            return jax.lax.scan(steps, states, keys)[0]

    def rollout(
        self, algorithm_state: Any, state: PerEnvironmentState, key: jax.Array
    ) -> tuple[PerEnvironmentState, Rollout]:
        """One iteration's collection."""
        return collect(self.algorithm, algorithm_state, self.environment, state, self.num_steps, key)

    def collection(self, algorithm_state: Any, state: PerEnvironmentState, rollout: Rollout, keys: jax.Array) -> Any:
        """Rollouts, each written out whole, so that nothing of it is optimised away."""

        def one(carry: tuple[PerEnvironmentState, Rollout], key: jax.Array) -> tuple[Any, None]:
            return self.rollout(algorithm_state, carry[0], key), None

        return jax.lax.scan(one, (state, rollout), keys)[0]

    def update(self, algorithm_state: Any, rollout: Rollout, keys: jax.Array) -> Any:
        """Updates on one and the same rollout."""

        def one(state: Any, key: jax.Array) -> tuple[Any, Any]:
            return self.algorithm.update(
                state,
                rollout.transitions,
                rollout.first_memory,
                rollout.last_observations,
                rollout.last_memory,
                key,
            )

        return jax.lax.scan(one, algorithm_state, keys)

    def training(self) -> dict[str, float]:
        """The block of iterations that `train` dispatches, its state donated."""
        started = time.perf_counter()
        self.state, _ = jax.block_until_ready(self.block(self.state, np.int32(self.iterations)))
        return self._answer(time.perf_counter() - started)

    def measure(self, stage: str) -> dict[str, float]:
        """One dispatch of a stage."""
        started = time.perf_counter()
        self.stages[stage]()
        return self._answer(time.perf_counter() - started)

    def _answer(self, seconds: float) -> dict[str, float]:
        return {"seconds": seconds, "env_steps_per_second": self.env_steps / seconds}

    @staticmethod
    def _repeated(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[], Any]:
        return lambda: jax.block_until_ready(function(*arguments))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="CartpoleBalance")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--num-envs", type=int, help="the config's, unless given")
    parser.add_argument("--num-steps", type=int, help="the config's, unless given")
    options = parser.parse_args()
    stages = Stages(options.task, options.iterations, options.num_envs, options.num_steps)
    serve(
        stages.ready,
        {
            "training": stages.training,
            **{name: lambda name=name: stages.measure(name) for name in ("stepping", "collection", "update")},
        },
    )
