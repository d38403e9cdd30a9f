"""What becomes of every iteration's metrics: speed and time are added, then they are kept, written and shown."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from rlbotics_jax.blocks import Block
from rlbotics_jax.config import Config
from rlbotics_jax.display import Display
from rlbotics_jax.history import History
from rlbotics_jax.writers import open_writers

_OF_UPDATES = ("Loss/surrogate", "Loss/value", "Loss/entropy", "Diagnostics/kl", "Diagnostics/clip_fraction")
"""Means over the mini-batch updates of an iteration."""


class RunLog:
    """Receives every iteration's metrics once, in order.

    It adds `iteration`, `wall_time` (s) and Performance/FPS (environment steps per second). Performance/collect_time
    and Performance/learn_time are left out where collection and update are one program: there is nothing between them
    to measure.

    Attributes:
        seconds: wall time of the run until the last block's end: resumed parts, compilation and evaluations included.
    """

    def __init__(self, run: Path | None, config: Config, display: Display, earlier: History | None = None):
        """Opens the run's writers.

        Args:
            run: the run directory; None writes nothing.
            config: says what is written.
            display: shows the run.
            earlier: the iterations before a resumed run's: the history and metrics.jsonl begin with them.
        """
        self.seconds = 0.0
        self._display, self._history = display, earlier or History()
        self._writers = open_writers(run, config, self._history)
        self._env_steps, self._first, self._origin = 0, 0, 0.0

    def compiling(self, text: str) -> None:
        """Shows what is being compiled."""
        self._display.compiling(text)

    def begin(self, first: int, last: int, seconds: float, started: float) -> None:
        """Says which iterations follow.

        Args:
            first, last: completed iterations before and after.
            seconds: how long the run has been trained before.
            started: when it went on, by `time.perf_counter`: before the program was compiled.
        """
        self._first, self.seconds, self._origin = first, seconds, started - seconds
        self._display.begin(first, last)

    def message(self, text: str) -> None:
        """Shows a line."""
        self._display.message(text)

    def block(self, block: Block) -> list[tuple[int, dict[str, float]]]:
        """Records a block's iterations and returns each with all its metrics, speed and time included."""
        count, begun = len(block.iterations), self.seconds
        self.seconds = block.finished - self._origin
        compiled = block.iterations[0][0] == self._first + 1
        if compiled:
            self._display.compiled(block.seconds)
        rows = []
        for i, (iteration, measured) in enumerate(block.iterations, start=1):
            steps, self._env_steps = measured["env_steps"] - self._env_steps, measured["env_steps"]
            metrics = {
                "iteration": iteration,
                "env_steps": measured["env_steps"],
                "wall_time": begun + (self.seconds - begun) * i / count,
                # The first block's time is mostly compilation.
                "Performance/FPS": math.nan if compiled else steps * count / block.seconds,
                **measured,
            }
            if metrics["Episodes/count"] == 0:
                metrics["Episodes/mean_reward"] = metrics["Episodes/mean_length"] = math.nan
            if metrics.get("Diagnostics/applied_updates") == 0:  # nothing was learned, so no loss was measured
                metrics |= {name: math.nan for name in _OF_UPDATES if name in metrics}
            self._history.add(metrics)
            self._writers.write(iteration, metrics)
            rows.append((iteration, metrics))
        self._writers.flush()
        self._display.update(rows, block.seconds)
        return rows

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the history, one array a metric."""
        return self._history.arrays()

    def close(self) -> None:
        """Finishes the display and the files."""
        self._display.close()
        self._writers.close()
