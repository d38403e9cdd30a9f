"""Starting a new run from parts of another: `runner.init_from` names the run, `runner.load` the parts.

Neither the other run's environment nor its task is needed, only leaves of the same shapes.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from rlbotics_jax.algorithms.base import Algorithm
from rlbotics_jax.checkpoint import ALGORITHM, Checkpoints, checkpoint_path
from rlbotics_jax.config import Config, ConfigError
from rlbotics_jax.config.errors import one_of, shown
from rlbotics_jax.packing import Layout, difference, fill, layout_of
from rlbotics_jax.resume import locate
from rlbotics_jax.types import BestPolicy, TrainState

KEY = "runner.init_from"


@dataclasses.dataclass(frozen=True)
class Transfer:
    """What a new run takes over, checked already.

    Attributes:
        algorithm: of the new run.
        run, iteration: the checkpoint that it comes from; the path is absolute.
        loaded: the parts that are taken: names, and where they are in the algorithm's state.
        left: the names of the parts that are not.
    """

    algorithm: Algorithm
    run: Path
    iteration: int
    loaded: dict[str, str]
    left: tuple[str, ...]

    def __str__(self) -> str:
        """What was loaded and what was not, as a line for the user."""
        left = f" Not loaded: {', '.join(self.left)}." if self.left else ""
        return f"From '{self.run}' iteration {self.iteration}: {', '.join(self.loaded)}.{left}"

    def record(self, config: Config) -> Config:
        """Returns the config that begins just so when it is run again: the run may have later checkpoints then."""
        checkpoint = checkpoint_path(self.run, self.iteration)
        return config.replace(runner=config.runner.replace(init_from=str(checkpoint)))

    def apply(self, state: TrainState) -> TrainState:
        """Returns a fresh state with the parts in it. Its best policy is its own, which has no score yet."""
        leaves = Checkpoints(self.run).algorithm_leaves(
            self.iteration, lambda path: any(_is_in(path, part) for part in self.loaded.values())
        )
        algorithm = fill(state.shared.algorithm, leaves)
        # Copied: the state is donated, and a buffer can be donated only once.
        parameters = jax.tree.map(jnp.copy, self.algorithm.policy_parameters(algorithm))
        best = BestPolicy(parameters, jnp.float32(-jnp.inf), jnp.int32(0))
        return state.replace(shared=state.shared.replace(algorithm=algorithm, best=best))


def find_transfer(config: Config, algorithm: Algorithm, like: TrainState) -> Transfer:
    """Returns what `runner.init_from` and `runner.load` ask for.

    Args:
        config: the whole config.
        algorithm: its algorithm. The names of the parts are its attribute `parts`, else the fields of its state.
        like: the new run's state; abstract leaves will do.

    Raises:
        ConfigError: an unknown part, no run, a checkpoint that cannot be read, or a leaf of another shape.
    """
    parts = _parts(algorithm, like.shared.algorithm)
    for i, name in enumerate(config.runner.load):
        if name not in parts:
            raise ConfigError(f"runner.load[{i}]", f"got {shown(name)}; {one_of(parts, name)}")
    run, iteration = locate(KEY, config.runner.init_from, config)
    saved, wanted = Checkpoints(run).layout(iteration), layout_of(like)
    loaded = {name: parts[name] for name in config.runner.load}
    for name, part in loaded.items():
        if found := difference(*(_within(layout, ALGORITHM + part) for layout in (saved, wanted))):
            path, there, here = found
            raise ConfigError(
                KEY,
                f"{name}: {path.removeprefix(ALGORITHM)} is {there} in '{run}' and {here} here; leave it out of "
                "runner.load, or give both the same networks and observations",
            )
    return Transfer(algorithm, run, iteration, loaded, tuple(name for name in parts if name not in loaded))


def _parts(algorithm: Algorithm, state: Any) -> dict[str, str]:
    return getattr(algorithm, "parts", None) or {field.name: field.name for field in dataclasses.fields(state)}


def _within(layout: Layout, part: str) -> Layout:
    return {path: leaf for path, leaf in layout.items() if _is_in(path, part)}


def _is_in(path: str, part: str) -> bool:
    return path == part or path.startswith(f"{part}.")
