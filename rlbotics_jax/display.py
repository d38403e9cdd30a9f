"""What a run shows while it lasts: a live table on a terminal, the same in a notebook, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Mapping

from rich.console import Console
from rich.live import Live

from rlbotics_jax.progress import COLUMNS, REFRESHES_PER_SECOND, Pace, Rows, View, clock


class Display:
    """What a run tells its display; this one shows nothing.

    The order is `compiling`, `begin`, then `compiled` and `update` for the first block, `update` for every other one,
    `close`. A message may come at any time, after `close` too.
    """

    def compiling(self, text: str) -> None:
        """Says what is being compiled, until `compiled`."""

    def begin(self, first: int, last: int) -> None:
        """Says that the iterations first + 1 .. last follow."""

    def compiled(self, seconds: float) -> None:
        """Says how long the first block took, compilation included."""

    def update(self, rows: Rows, seconds: float) -> None:
        """Shows a block of iterations that took `seconds`."""

    def message(self, text: str) -> None:
        """Shows a line that stays."""

    def close(self) -> None:
        """Leaves what was shown last standing."""


def make_display(log_interval: int) -> Display:
    """Returns the display for where standard output goes; 0 shows nothing."""
    if not log_interval:
        return Display()
    if _in_notebook():
        return NotebookDisplay(log_interval)
    is_terminal = getattr(sys.stdout, "isatty", lambda: False)()
    # Inside somebody's live view (a callback that trains again) lines are printed above that one.
    if is_terminal and not hasattr(sys.stdout, "rich_proxied_file"):
        console = Console(file=sys.stdout)
        if console.is_interactive:  # not TERM=dumb, which cannot move the cursor
            return TerminalDisplay(log_interval, console)
    return LineDisplay(log_interval)


def _in_notebook() -> bool:
    """Returns whether this is an IPython kernel; Colab's shell is a subclass."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)


class LineDisplay(Display):
    """One line every `log_interval` iterations, and one for the last."""

    def __init__(self, log_interval: int):
        self._log_interval, self._pace, self._open = log_interval, Pace(), True

    def compiling(self, text: str) -> None:
        self.message(text)

    def begin(self, first: int, last: int) -> None:
        self._pace.begin(first, last)

    def compiled(self, seconds: float) -> None:
        self.message(_compiled(seconds))

    def update(self, rows: Rows, seconds: float) -> None:
        self._pace.add(rows, seconds)
        for iteration, metrics in rows:
            if iteration % self._log_interval == 0 or iteration == self._pace.last:
                self.message(self._line(iteration, metrics))

    def message(self, text: str) -> None:
        if self._open:
            try:
                print(text, flush=True)
            except OSError:  # nobody reads any more (a closed pipe)
                self._open = False

    def _line(self, iteration: int, metrics: Mapping[str, float]) -> str:
        speed = metrics["Performance/FPS"]
        parts = [f"{iteration:>6}/{self._pace.last}", " " * 17 if math.isnan(speed) else f"{speed:>9,.0f} steps/s"]
        for title, name, form, _ in COLUMNS[2:]:
            if math.isfinite(metrics.get(name, math.nan)):
                parts.append(f"{title} {metrics[name]:{form}}")
        remaining = self._pace.remaining()
        if remaining:
            parts.append(f"ETA {clock(remaining)}")
        return "  ".join(parts)


class TerminalDisplay(Display):
    """A live table at the bottom of a terminal. Prints and warnings appear above it.

    A thread of rich's draws, so that the seconds tick while the device works; `update` only says what.
    """

    def __init__(self, log_interval: int, console: Console):
        self._console, self._view = console, View(log_interval, ticking=True)
        self._live = Live(
            self._view,
            console=console,
            refresh_per_second=REFRESHES_PER_SECOND,
            redirect_stderr=sys.stderr.isatty(),  # a file stays a file
        )

    def compiling(self, text: str) -> None:
        self._view.compiling(text)
        with contextlib.suppress(OSError):  # the terminal is gone
            self._live.start(refresh=True)

    def begin(self, first: int, last: int) -> None:
        self._view.begin(first, last)

    def compiled(self, seconds: float) -> None:
        self.message(self._view.compiled())
        self.message(_compiled(seconds))

    def update(self, rows: Rows, seconds: float) -> None:
        self._view.update(rows, seconds)

    def message(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._view.close()
        with contextlib.suppress(OSError):
            if self._live.is_started:  # it keeps what was printed of a line that has no end yet
                sys.stdout.flush()
                sys.stderr.flush()
        with contextlib.suppress(OSError):
            self._live.stop()


class NotebookDisplay(Display):
    """The same table as the output of a notebook's cell, replaced in place after a block."""

    def __init__(self, log_interval: int):
        self._view, self._handle, self._drawn = View(log_interval, ticking=False), None, 0.0

    def compiling(self, text: str) -> None:
        from IPython.display import display

        self._view.compiling(text)
        self._handle = display(self._view, display_id=True)

    def begin(self, first: int, last: int) -> None:
        self._view.begin(first, last)

    def compiled(self, seconds: float) -> None:
        self._view.compiled()
        self.message(_compiled(seconds))

    def update(self, rows: Rows, seconds: float) -> None:
        self._view.update(rows, seconds)
        if time.monotonic() - self._drawn > 1 / REFRESHES_PER_SECOND:
            self._draw()

    def message(self, text: str) -> None:
        print(text, flush=True)

    def close(self) -> None:
        self._view.close()
        self._draw()

    def _draw(self) -> None:
        if self._handle is not None:
            self._handle.update(self._view)
            self._drawn = time.monotonic()


def _compiled(seconds: float) -> str:
    return f"Compiled and ran the first iteration in {seconds:.1f} s."
