"""What child processes do until they are killed, or their disk is full: they save, or they train."""

from __future__ import annotations

import resource
import sys
import warnings

import jax
import numpy as np
from helpers import small_config
from toys import ActionReward

from rlbotics_jax.checkpoint import Checkpoints
from rlbotics_jax.compilation import enable_compilation_cache


def state_of(iteration: int) -> dict:
    """Returns a state of 1 MB that tells its iteration in every element."""
    return {
        "key": jax.random.key(iteration),
        "floats": np.arange(200_000, dtype=np.float32) + np.float32(iteration),
        "words": np.full((300, 100), iteration, np.uint32),
        "nested": ({"flag": np.array([iteration % 2 == 0] * 5)},),
    }


def policy_of(iteration: int) -> dict:
    return {"last": np.full(50, iteration, np.float32), "best": np.full(50, -iteration, np.float32)}


def save(checkpoints: Checkpoints, iteration: int) -> None:
    checkpoints.save(iteration, state_of(iteration), policy_of(iteration), {"iteration": iteration})


def save_for_ever(run, progress) -> None:
    """Goes on behind the latest whole checkpoint; `progress` is told each iteration whose writing has begun."""
    enable_compilation_cache()
    checkpoints = Checkpoints(run, keep_last_n=3)
    iteration = checkpoints.latest() or 0
    while True:
        iteration += 1
        save(checkpoints, iteration)
        progress.send(iteration)


def limit_files(size: int) -> None:
    """Lets no file of this process grow beyond `size` bytes, as on a full disk; -1 lifts the limit."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def save_on_a_full_disk(run, results) -> None:
    """Sends what is there, and what was warned: while the disk is full, and after it has space again."""
    for size, iterations in ((-1, (1, 2)), (100_000, (3, 4)), (0, (5, 6)), (-1, (7,))):
        checkpoints = Checkpoints(run, keep_last_n=1)
        limit_files(size)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for iteration in iterations:
                save(checkpoints, iteration)
            checkpoints.close()
        files = sorted(path.relative_to(run).as_posix() for path in run.rglob("*"))
        results.send((checkpoints.latest(), files, [str(warning.message) for warning in caught]))


def train(log_dir: str, iterations: int, disk_is_full_after: int | None = None):
    """Trains a toy that is saved after every iteration."""
    from rlbotics_jax import train

    def callback(iteration, metrics):
        if iteration == disk_is_full_after:
            limit_files(1000)

    return train(toy_config(log_dir, iterations), ActionReward(), callback=callback)


def toy_config(log_dir: str, iterations: int, **logger):
    logger = {"log_dir": log_dir, "log_interval": 10**6, "save_interval": 1, **logger}
    return small_config(runner__num_learning_iterations=iterations, runner__logger=logger)


if __name__ == "__main__":
    name, log_dir, *numbers = sys.argv[1:]
    result = {"train": train}[name](log_dir, *map(int, numbers))
    print(f"trained to {int(result.state.shared.iteration)}")
