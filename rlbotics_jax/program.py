"""The compiled programs of a training run, shared by runs of equal shape within one process."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

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


@functools.lru_cache(maxsize=8)
def make_program(algorithm: Algorithm, environment: VectorizedEnvironment, num_steps_per_env: int) -> Program:
    """Returns the program for these settings; the same object, already compiled, where they are equal to earlier ones.

    Float hyperparameters and seeds are arguments, so that changing them compiles nothing.
    """
    init, train_step = make_train_step(algorithm, environment, num_steps_per_env)
    return Program(init=jit(init, optimize=False), block=jit(make_block(train_step, MAX_BLOCK), donate_argnums=0))
