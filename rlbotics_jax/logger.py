"""What a run records: the history that `train` returns and a TensorBoard file. What it shows is its display's."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rlbotics_jax.blocks import Block
from rlbotics_jax.display import Display

_OF_UPDATES = ("Loss/surrogate", "Loss/value", "Loss/entropy", "Diagnostics/kl", "Diagnostics/clip_fraction")
"""Means over the mini-batch updates of an iteration."""


class RunLog:
    """Receives every iteration's metrics once, in order.

    Attributes:
        seconds: wall time trained so far, resumed parts included.
    """

    def __init__(self, run: Path | None, log_metrics: bool, display: Display):
        """Opens the TensorBoard file in `run` (None writes nothing)."""
        self.seconds = 0.0
        self._history: dict[str, list[float]] = {}
        self._display, self._env_steps = display, None
        self._writer, self._warned = None, False
        if run is not None and log_metrics:
            from tensorboardX import SummaryWriter

            self._writer = self._guarded(lambda: SummaryWriter(str(run)))

    def compiling(self, text: str) -> None:
        """Shows what is being compiled."""
        self._display.compiling(text)

    def begin(self, first: int, last: int, seconds: float) -> None:
        """Says which iterations follow, and how long the run has been trained before."""
        self._first, self.seconds = first, seconds
        self._display.begin(first, last)

    def message(self, text: str) -> None:
        """Shows a line."""
        self._display.message(text)

    def warn_once(self, text: str) -> None:
        """Warns, unless this run has warned so before."""
        if not self._warned:
            warnings.warn(text, stacklevel=2)
        self._warned = True

    def block(self, block: Block) -> list[tuple[int, dict[str, float]]]:
        """Records a block's iterations and returns each with all its metrics, speed and time included."""
        count = len(block.iterations)
        compiled = block.iterations[0][0] == self._first + 1
        if compiled:
            self._display.compiled(block.seconds)
        for i, (iteration, metrics) in enumerate(block.iterations):
            steps = metrics["env_steps"] - (self._env_steps or 0)
            self._env_steps = metrics["env_steps"]
            metrics["iteration"] = iteration
            metrics["wall_time"] = self.seconds + block.seconds * (i + 1) / count
            # The first block's time is mostly compilation.
            metrics["Performance/FPS"] = math.nan if compiled else steps * count / block.seconds
            if metrics["Episodes/count"] == 0:
                metrics["Episodes/mean_reward"] = metrics["Episodes/mean_length"] = math.nan
            if metrics.get("Diagnostics/applied_updates") == 0:  # nothing was learned, so no loss was measured
                metrics |= {name: math.nan for name in _OF_UPDATES if name in metrics}
            self._remember(metrics)
            self._write(iteration, metrics)
        self._display.update(block.iterations, block.seconds)
        self.seconds += block.seconds
        return block.iterations

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the history, one array a metric."""
        return {name: np.asarray(values) for name, values in self._history.items()}

    def close(self) -> None:
        """Finishes the display and the TensorBoard file."""
        self._display.close()
        if self._writer is not None:
            self._guarded(self._writer.close)

    def _remember(self, metrics: dict[str, float]) -> None:
        length = len(next(iter(self._history.values()), []))
        for name in metrics:
            self._history.setdefault(name, [math.nan] * length)
        for name, values in self._history.items():
            values.append(metrics.get(name, math.nan))

    def _write(self, iteration: int, metrics: dict[str, float]) -> None:
        """Writes the finite scalars."""
        scalars = {name: value for name, value in metrics.items() if "/" in name and math.isfinite(value)}
        scalars["Performance/env_steps"] = metrics["env_steps"]
        for name, value in scalars.items():
            if self._writer is not None:
                self._guarded(lambda name=name, value=value: self._writer.add_scalar(name, value, iteration))

    def _guarded(self, write: Callable[[], Any]) -> Any:
        """Runs what writes to the TensorBoard file. A full disk costs the log, never the training."""
        try:
            return write()
        except Exception as error:
            warnings.warn(
                f"The TensorBoard file cannot be written ({error}); training goes on without it.", stacklevel=2
            )
            self._writer = None
