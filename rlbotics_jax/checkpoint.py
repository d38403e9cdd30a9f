"""Checkpoints of a run, written by orbax: whole or not at all, ordered by iteration, verified, without pickles.

Each holds two trees: `state`, the whole TrainState, for a bit-exact continuation, and `policy`, the last and the best
policy's parameters, for export and evaluation without an environment; and `summary`, a few numbers. They are members of
one zip file, `<run>/checkpoints/<iteration>/arrays.zip`: `<tree>.<dtype>`, the raw numbers of all its leaves of that
dtype, `<tree>.json`, its layout (see `packing`), and `summary.json`. The zip keeps a checksum of every member.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import Array, PyTree

from rlbotics_jax.packing import Layout, difference, dtypes_of, fill, from_json, layout_of, pack, to_json, unpack
from rlbotics_jax.types import TrainState

FOLDER = "checkpoints"
ARCHIVE = "arrays.zip"

ALGORITHM = "shared.algorithm."
"""How the paths of a saved state begin that are the algorithm's own."""

_TREES = ("state", "policy")

_UNFINISHED = ".orbax-checkpoint-tmp"
"""How orbax ends the name of a checkpoint until it is whole, and how one that is being removed is named here."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be read: it is missing, cut short, or not what was written."""


def saved_iterations(run: str | Path) -> list[int]:
    """Returns the iterations that a run has a checkpoint of, in order; reads none of them."""
    return sorted(int(path.name) for path in (Path(run) / FOLDER).glob("*") if path.name.isdigit())


def checkpoint_path(run: Path, iteration: int) -> Path:
    """Returns the folder of a run's checkpoint."""
    return run / FOLDER / str(iteration)


class Checkpoints:
    """The checkpoints in one run directory. Nothing is written or made there before the first `save`."""

    def __init__(self, run: str | Path, keep_last_n: int = 0):
        """Opens the folder `checkpoints` of a run.

        Args:
            run: the run directory.
            keep_last_n: checkpoints kept, the oldest removed first, once a newer one is whole; 0 keeps all.
        """
        self._folder, self._keep = (Path(run) / FOLDER).absolute(), keep_last_n
        # Not orbax's CheckpointManager or its handlers of arrays: a save costs them 35 ms of CPU time, this one 6 ms.
        self._orbax = ocp.Checkpointer(_ArchiveHandler())
        self._thread = ThreadPoolExecutor(1, "checkpoints")  # which begins with the first save
        self._writing: Future[Exception | None] | None = None
        self._warned = False

    def save(self, iteration: int, state: TrainState, policy: PyTree, summary: dict[str, Any]) -> None:
        """Writes a checkpoint in the background. The state is copied first: training donates it meanwhile.

        Waits for the checkpoint before. Where that one could not be written (a full disk) this warns, once a run, and
        goes on: the checkpoints that were whole stay.
        """
        if (error := self._wait()) and not self._warned:
            warnings.warn(
                f"A checkpoint cannot be written to '{self._folder}' ({_reason(error)}); training goes on, and the "
                "next one is tried.",
                stacklevel=2,
            )
            self._warned = True
        trees = dict(zip(_TREES, (state, policy), strict=True))
        layouts = {name: layout_of(tree) for name, tree in trees.items()}
        self._writing = self._thread.submit(self._try_to_write, iteration, pack(trees), layouts, summary)

    def iterations(self) -> list[int]:
        """Returns the iterations that have a checkpoint, in order."""
        return saved_iterations(self._folder.parent)

    def latest(self) -> int | None:
        """Returns the last iteration whose checkpoint is whole, warning of those behind it that are not; or None."""
        for iteration in reversed(self.iterations()):
            try:
                self.verify(iteration)
            except CheckpointError as error:
                warnings.warn(f"{error} It is passed over.", stacklevel=2)
            else:
                return iteration
        return None

    def verify(self, iteration: int) -> None:
        """Reads a whole checkpoint.

        Raises:
            CheckpointError: where it cannot be read. So do all methods below.
        """
        for name in _TREES:
            self._stored(iteration, name)
        self.summary(iteration)

    def state(self, iteration: int, like: TrainState) -> TrainState:
        """Returns a saved state, on the default device. `like` gives the structure; abstract leaves will do.

        Raises:
            ValueError: where the saved state has other leaves, with the first one that differs.
        """
        return self._tree(iteration, "state", like)

    def policy(self, iteration: int, like: PyTree) -> PyTree:
        """Returns the saved policies, structured as `like`, and reads no other tree. Errors as `state`."""
        return self._tree(iteration, "policy", like)

    def leaves(self, iteration: int, paths: Callable[[str], bool]) -> dict[str, Array]:
        """Returns the leaves of the saved state whose paths are wanted."""
        layout, buffers = self._stored(iteration, "state")
        return unpack({path: leaf for path, leaf in layout.items() if paths(path)}, buffers)

    def algorithm_leaves(self, iteration: int, paths: Callable[[str], bool]) -> dict[str, Array]:
        """Returns the leaves of the algorithm's own state whose paths are wanted; all paths are seen from it."""
        saved = self.leaves(iteration, lambda path: path.startswith(ALGORITHM) and paths(path.removeprefix(ALGORITHM)))
        return {path.removeprefix(ALGORITHM): leaf for path, leaf in saved.items()}

    def layout(self, iteration: int) -> Layout:
        """Returns the paths, dtypes and shapes of the saved state."""
        return self._layout(iteration, "state")

    def summary(self, iteration: int) -> dict[str, Any]:
        """Returns the saved numbers."""
        return json.loads(self._read(iteration, "summary.json")[0])

    def close(self) -> None:
        """Waits for what is being written, and warns where it could not be. A second call does nothing."""
        try:
            if error := self._wait():
                saved = self.iterations()
                left = f"the latest there is that of iteration {saved[-1]}" if saved else "there is none"
                warnings.warn(
                    f"The last checkpoint could not be written to '{self._folder}' ({_reason(error)}); {left}.",
                    stacklevel=2,
                )
        finally:
            self._thread.shutdown()
            self._orbax.close()

    def _tree(self, iteration: int, name: str, like: PyTree) -> PyTree:
        layout, buffers = self._stored(iteration, name)
        if found := difference(layout, layout_of(like)):
            path, saved, wanted = found
            raise ValueError(f"'{self._path(iteration)}': {path} is {saved} there, needed is {wanted}.")
        return fill(like, unpack(layout, buffers))

    def _stored(self, iteration: int, name: str) -> tuple[Layout, dict[str, np.ndarray]]:
        """Returns a tree's layout and its buffers by dtype."""
        layout = self._layout(iteration, name)
        dtypes = sorted(dtypes_of(layout))
        buffers = self._read(iteration, *(f"{name}.{dtype}" for dtype in dtypes))
        return layout, {dtype: np.frombuffer(buffer, dtype) for dtype, buffer in zip(dtypes, buffers, strict=True)}

    def _layout(self, iteration: int, name: str) -> Layout:
        return from_json(self._read(iteration, f"{name}.json")[0])

    def _read(self, iteration: int, *members: str) -> list[bytes]:
        path = self._path(iteration)
        try:
            return self._orbax.restore(path, args=_Read(members))
        except Exception as error:  # what a damaged file makes zipfile raise is not one type
            raise CheckpointError(f"'{path}' is no whole checkpoint ({_reason(error)}).") from error

    def _try_to_write(self, *arguments: Any) -> Exception | None:
        """Calls `_write`, on the thread; returns what it raises, which costs a checkpoint and not the training."""
        try:
            self._write(*arguments)
        except Exception as error:
            return error
        return None

    def _write(
        self, iteration: int, buffers: dict[str, Array], layouts: dict[str, Layout], summary: dict[str, Any]
    ) -> None:
        """Writes a checkpoint, and removes what is no longer wanted."""
        self._sweep()
        members: dict[str, Any] = {name: np.asarray(buffer).view(np.uint8).data for name, buffer in buffers.items()}
        members |= {f"{name}.json": to_json(layout).encode() for name, layout in layouts.items()}
        members["summary.json"] = json.dumps(summary).encode()
        try:
            self._orbax.save(self._path(iteration), args=_Write(members), force=True)
            self._retire(iteration)
        finally:
            self._sweep()

    def _retire(self, newest: int) -> None:
        """Gives up the checkpoints that are too many behind the newest. Renamed first, none is seen half removed."""
        earlier = [iteration for iteration in self.iterations() if iteration < newest]
        for old in earlier[::-1][self._keep - 1 :] if self._keep else []:
            with contextlib.suppress(OSError):
                self._path(old).rename(f"{self._path(old)}{_UNFINISHED}")

    def _sweep(self) -> None:
        """Removes what is unfinished: only one process writes to a run."""
        for leftover in self._folder.glob(f"*{_UNFINISHED}"):
            shutil.rmtree(leftover, ignore_errors=True)

    def _wait(self) -> Exception | None:
        """Waits for the checkpoint that is being written; returns why it could not be. It is told only once."""
        writing, self._writing = self._writing, None
        return None if writing is None else writing.result()

    def _path(self, iteration: int) -> Path:
        return checkpoint_path(self._folder.parent, iteration)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


class _ArchiveHandler(ocp.CheckpointHandler):
    """How orbax writes and reads what a checkpoint holds; it makes the folder and gives it its name once all is in."""

    def save(self, directory: Path, args: _Write) -> None:
        with open(directory / ARCHIVE, "wb") as file:
            with zipfile.ZipFile(file, "w") as archive:
                for name, data in args.members.items():
                    archive.writestr(name, data)
            # A disk that turns out to be full while it is flushed says so here, before an older checkpoint is removed.
            file.flush()
            os.fsync(file.fileno())

    def restore(self, directory: Path, args: _Read) -> list[bytes]:
        with zipfile.ZipFile(directory / ARCHIVE) as archive:
            return [archive.read(name) for name in args.members]


@ocp.args.register_with_handler(_ArchiveHandler, for_save=True)
@dataclasses.dataclass
class _Write(ocp.args.CheckpointArgs):
    members: Mapping[str, Any]


@ocp.args.register_with_handler(_ArchiveHandler, for_restore=True)
@dataclasses.dataclass
class _Read(ocp.args.CheckpointArgs):
    members: Sequence[str]
