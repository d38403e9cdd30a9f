"""Checkpoints of a run, written by orbax: whole or not at all, ordered by iteration, without pickles.

Each holds three items: `state`, the whole TrainState, for a bit-exact continuation; `policy`, the last and the best
policy's parameters, for export and evaluation without an environment; `summary`, a few numbers as JSON.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jaxtyping import PyTree

from rlbotics_jax.types import TrainState

FOLDER = "checkpoints"


class Checkpoints:
    """The checkpoints in one run directory."""

    def __init__(self, run: str | Path, keep_last_n: int = 0):
        """Opens the folder `checkpoints` of a run.

        Args:
            run: the run directory.
            keep_last_n: checkpoints kept, the oldest removed first; 0 keeps all.
        """
        # Only the saved items' handlers: the manager would otherwise warn that it does not know them.
        options = ocp.CheckpointManagerOptions(max_to_keep=keep_last_n or None)
        self._manager = ocp.CheckpointManager(
            (Path(run) / FOLDER).absolute(),
            options=options,
            item_handlers={
                "state": ocp.StandardCheckpointHandler(),
                "policy": ocp.StandardCheckpointHandler(),
                "summary": ocp.JsonCheckpointHandler(),
            },
        )

    def save(self, iteration: int, state: TrainState, policy: PyTree, summary: dict[str, Any]) -> None:
        """Writes a checkpoint in the background. The state is copied first: training donates it meanwhile."""
        state, policy = jax.tree.map(jnp.copy, (state, policy))
        self._manager.save(
            iteration,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(_by_path(state)),
                policy=ocp.args.StandardSave(_by_path(policy)),
                summary=ocp.args.JsonSave(summary),
            ),
        )

    def iterations(self) -> list[int]:
        """Returns the iterations that have a complete checkpoint, in order."""
        return sorted(self._manager.all_steps())

    def state(self, iteration: int, like: TrainState) -> TrainState:
        """Returns a saved state. `like` gives structure, shapes and dtypes; abstract leaves will do.

        Raises:
            ValueError: where the saved state has another structure or shapes.
        """
        return self._restore_like(iteration, "state", like)

    def policy(self, iteration: int, like: PyTree) -> PyTree:
        """Returns the saved policies, structured as `like`."""
        return self._restore_like(iteration, "policy", like)

    def summary(self, iteration: int) -> dict[str, Any]:
        """Returns the saved numbers."""
        return self._restore(iteration, "summary", ocp.args.JsonRestore())

    def _restore_like(self, iteration: int, item: str, like: PyTree) -> PyTree:
        # Placed on the default device: a checkpoint may come from another machine.
        sharding = jax.sharding.SingleDeviceSharding(jax.config.jax_default_device or jax.devices()[0])
        wanted = {
            path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
            for path, leaf in _by_path(like).items()
        }
        restored = self._restore(iteration, item, ocp.args.StandardRestore(wanted))
        paths, structure = jax.tree_util.tree_flatten_with_path(like)
        leaves = [restored[_name(path)] if leaf.size else jnp.zeros(leaf.shape, leaf.dtype) for path, leaf in paths]
        return jax.tree.unflatten(structure, leaves)

    def _restore(self, iteration: int, item: str, arguments: Any) -> Any:
        return self._manager.restore(iteration, args=ocp.args.Composite(**{item: arguments}))[item]

    def close(self) -> None:
        """Waits for what is being written."""
        self._manager.wait_until_finished()
        self._manager.close()


def _by_path(tree: PyTree) -> dict[str, Any]:
    """Returns the leaves by their path, without empty ones (a model without muscles has them), which orbax refuses."""
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree) if leaf.size}


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")
