"""What a run tells while it lasts: lines on the terminal, a TensorBoard file, and the history that `train` returns."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rlbotics_jax.blocks import Block

_COLUMNS = (
    ("return", "Episodes/mean_reward", ".2f"),
    ("length", "Episodes/mean_length", ".0f"),
    ("value", "Loss/value", ".4f"),
    ("surrogate", "Loss/surrogate", ".4f"),
    ("kl", "Diagnostics/kl", ".4f"),
    ("std", "Policy/action_std", ".3f"),
    ("lr", "Learning/learning_rate", ".1e"),
)
_OF_UPDATES = ("Loss/surrogate", "Loss/value", "Loss/entropy", "Diagnostics/kl", "Diagnostics/clip_fraction")
"""Means over the mini-batch updates of an iteration."""


class RunLog:
    """Receives every iteration's metrics once, in order.

    Attributes:
        seconds: wall time trained so far, resumed parts included.
    """

    def __init__(self, run: Path | None, log_metrics: bool, print_every: int):
        """Opens the TensorBoard file in `run` (None writes nothing); prints a line every `print_every` iterations
        (0 prints nothing)."""
        self.seconds = 0.0
        self._history: dict[str, list[float]] = {}
        self._print_every, self._last, self._env_steps = print_every, 0, None
        self._writer, self._warned = None, False
        if run is not None and log_metrics:
            from tensorboardX import SummaryWriter

            self._writer = self._guarded(lambda: SummaryWriter(str(run)))

    def begin(self, first: int, last: int, seconds: float) -> None:
        """Says which iterations follow, and how long the run has been trained before."""
        self._first, self._last, self.seconds = first, last, seconds

    def message(self, text: str) -> None:
        """Prints a line, unless nothing is to be printed or nobody reads any more (a closed pipe)."""
        if self._print_every:
            try:
                print(text, flush=True)
            except OSError:
                self._print_every = 0

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
            self.message(f"Compiled and ran the first iteration in {block.seconds:.1f} s.")
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
            if self._print_every and (iteration % self._print_every == 0 or iteration == self._last):
                self.message(self._line(iteration, metrics))
        self.seconds += block.seconds
        return block.iterations

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the history, one array a metric."""
        return {name: np.asarray(values) for name, values in self._history.items()}

    def close(self) -> None:
        """Finishes the TensorBoard file."""
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

    def _line(self, iteration: int, metrics: dict[str, float]) -> str:
        speed = metrics["Performance/FPS"]
        parts = [f"{iteration:>6}/{self._last}", " " * 17 if math.isnan(speed) else f"{speed:>9,.0f} steps/s"]
        for title, name, form in _COLUMNS:
            if name in metrics and math.isfinite(metrics[name]):
                parts.append(f"{title} {metrics[name]:{form}}")
        return "  ".join(parts)
