"""The compiled programs of a training run, shared by runs of equal shape within one process."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding
from jaxtyping import Array

from rlbotics_jax.algorithms.base import Algorithm
from rlbotics_jax.algorithms.settings import Hyperparameters
from rlbotics_jax.blocks import MAX_BLOCK
from rlbotics_jax.compilation import jit
from rlbotics_jax.envs.vectorize import VectorizedEnvironment
from rlbotics_jax.step import make_block, make_train_step
from rlbotics_jax.types import Metrics, TrainState


@dataclasses.dataclass(frozen=True)
class Program:
    """The jitted functions of a run: `init(key, hyperparameters)`, and `block(state, count)`, which donates."""

    init: Callable[[Array, Hyperparameters], TrainState]
    block: Callable[[TrainState, Any], tuple[TrainState, Metrics]]
    _compiled: dict[jax.Device, Callable] = dataclasses.field(default_factory=dict, compare=False)

    def start(self, key: Array, hyperparameters: Hyperparameters, device: jax.Device) -> TrainState:
        """Returns `init(key, hyperparameters)` on a device, and compiles `block` meanwhile in a thread of its own.

        XLA keeps little more than one core busy, and a block needs only the state's shapes to be compiled.
        """
        like = jax.eval_shape(self.init, key, hyperparameters)
        with ThreadPoolExecutor(1) as thread:
            compiled = thread.submit(self.compile_block, like, device)
            state = jax.device_put(self.init(key, hyperparameters), device)
            compiled.result()
        return state

    def compile_block(self, like: TrainState, device: jax.Device) -> Callable:
        """Returns `block` compiled for one device, by states of these shapes; once per device."""
        if device not in self._compiled:
            sharding = SingleDeviceSharding(device)
            placed = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), like)
            self._compiled[device] = self.block.lower(placed, np.int32(1)).compile()
        return self._compiled[device]

    def run_block(self, state: TrainState, count: np.int32) -> tuple[TrainState, Metrics]:
        """Returns `block(state, count)`; compiles nothing for a device for which it was compiled before."""
        (device,) = state.shared.iteration.devices()
        return self.compile_block(state, device)(state, count)


@functools.lru_cache(maxsize=8)
def make_program(algorithm: Algorithm, environment: VectorizedEnvironment, num_steps_per_env: int) -> Program:
    """Returns the program for these settings; the same object, already compiled, where they are equal to earlier ones.

    Float hyperparameters and seeds are arguments, so that changing them compiles nothing.
    """
    init, train_step = make_train_step(algorithm, environment, num_steps_per_env)
    return Program(init=jit(init), block=jit(make_block(train_step, MAX_BLOCK), donate_argnums=0))
