"""Worker: whole training runs of this library, with and without what they write."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from harness import installed_versions, serve
from tasks import task_config

from rlbotics_jax import train
from rlbotics_jax.config import Config

WARM_UP_ITERATIONS = 50
"""Not counted: the first ones compile, then the blocks find their length."""

NEVER = 10**9


def variant(config: Config, kind: str, folder: str, iterations: int) -> Config:
    """Returns the config of a run that writes nothing ("silent"), logs every iteration, or saves every tenth too."""
    runner = config.runner
    logger = runner.logger.replace(
        enabled=kind != "silent",
        log_dir=folder,
        save_interval=10 if kind == "saving" else NEVER,
        log_interval=10,
    )
    return config.replace(runner=runner.replace(logger=logger, num_learning_iterations=iterations, verbose=False))


def resident_mib() -> float:
    """Returns this process's resident memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="CartpoleBalance")
    config = task_config(parser.parse_args().task)

    def ready() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:  # every variant once, so that nothing is compiled later
            for kind in ("silent", "logging", "saving"):
                train(variant(config, kind, folder, 20))
        return {"versions": installed_versions("jax", "jaxlib", "orbax-checkpoint", "tensorboardX")}

    def run(kind: str, iterations: int) -> dict[str, float]:
        """The median seconds of an iteration."""
        with tempfile.TemporaryDirectory() as folder:
            history = train(variant(config, kind, folder, iterations)).history
        # The median: what logging and saving cost, they cost in every block; what a neighbour costs comes in bursts.
        return {"seconds": float(np.median(np.diff(history["wall_time"][WARM_UP_ITERATIONS:])))}

    def memory(iterations: list[int]) -> dict[str, list[float]]:
        """Resident memory after some iterations of one run that logs and saves."""
        found = {}

        def look(iteration: int, metrics: dict[str, float]) -> None:
            if iteration in iterations:
                found[iteration] = resident_mib()

        with tempfile.TemporaryDirectory() as folder:
            train(variant(config, "saving", folder, max(iterations)), callback=look)
        return {"resident_mib": [found[iteration] for iteration in iterations]}

    serve(ready, {"run": run, "memory": memory})


if __name__ == "__main__":
    main()
