"""What the live displays draw: a spinner while the program compiles, then a table of iterations over a progress bar."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.jupyter import JupyterMixin
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.text import Text

Rows = Sequence[tuple[int, Mapping[str, float]]]
"""(iteration, metrics) of each iteration of a block."""

REFRESHES_PER_SECOND = 4
"""The most that a live view is drawn; the rows of a block in between cost nothing but their formatting."""

EARLIER_ROWS = 8
"""Log intervals that stay in the live table above the newest iteration."""

PACE_BLOCKS = 10
"""Blocks whose mean speed gives the ETA: enough to smooth a checkpoint or an evaluation among them."""


class Column(NamedTuple):
    title: str
    name: str
    form: str
    width: int


COLUMNS = (
    Column("iteration", "iteration", ".0f", 9),
    Column("steps/s", "Performance/FPS", ",.0f", 9),
    Column("return", "Episodes/mean_reward", ".2f", 7),
    Column("length", "Episodes/mean_length", ".0f", 6),
    Column("value", "Loss/value", ".4f", 6),
    Column("surrogate", "Loss/surrogate", ".4f", 9),
    Column("entropy", "Loss/entropy", ".3f", 7),
    Column("kl", "Diagnostics/kl", ".4f", 6),
    Column("lr", "Learning/learning_rate", ".1e", 7),
    Column("std", "Policy/action_std", ".3f", 5),
)
"""What is shown of an iteration, in every display. With a blank between two columns they fill 80 characters."""


class Pace:
    """How fast iterations go by, and so how long the rest takes."""

    def begin(self, first: int, last: int) -> None:
        self.done, self.last = first, last
        self._compiled, self._recent = False, deque(maxlen=PACE_BLOCKS)
        self._seconds_per_iteration: float | None = None

    def add(self, rows: Rows, seconds: float) -> None:
        """Counts a block. The first one's time is mostly compilation, which says nothing about the rest."""
        self.done = rows[-1][0]
        if self._compiled:
            self._recent.append((len(rows), seconds))
            counts, times = zip(*self._recent, strict=True)
            self._seconds_per_iteration = sum(times) / sum(counts)
        self._compiled = True

    def remaining(self) -> float | None:
        """Returns the seconds until the last iteration; None where no speed is known yet."""
        one = self._seconds_per_iteration
        return None if one is None else (self.last - self.done) * one


class View(JupyterMixin):
    """What the live displays draw: a spinner while the program compiles, then a table with a progress bar under it.

    Args:
        log_interval: iterations between two rows of the table; the newest iteration is always the last row.
        ticking: whether it is drawn often enough for a spinner and seconds that tick.
    """

    def __init__(self, log_interval: int, ticking: bool):
        self._log_interval, self._ticking, self._pace = log_interval, ticking, Pace()
        self._text, self._started, self._ended, self._updated = "", time.monotonic(), None, 0.0
        self._earlier, self._newest = [], None

    def compiling(self, text: str) -> None:
        self._text, self._started = text, time.monotonic()

    def compiled(self) -> str:
        """Ends the spinner and returns its text."""
        text, self._text = self._text, ""
        return text

    def begin(self, first: int, last: int) -> None:
        self._pace.begin(first, last)

    def update(self, rows: Rows, seconds: float) -> None:
        self._pace.add(rows, seconds)
        due = [row for row in rows if row[0] % self._log_interval == 0][-EARLIER_ROWS:]
        # Formatted now: a callback may change its metrics, and drawing gets cheaper.
        earlier = (self._earlier + [_cells(*row) for row in due])[-EARLIER_ROWS:]
        self._earlier, self._newest, self._updated = earlier, _cells(*rows[-1]), time.monotonic()

    def close(self) -> None:
        """Stops the clock: what is drawn from now on is the end."""
        self._ended = time.monotonic()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now = self._ended or time.monotonic()
        seconds = now - self._started
        if self._text and self._ticking:
            spinner = "" if self._ended else "-\\|/"[int(seconds * REFRESHES_PER_SECOND) % 4] + " "
            yield Text(f"{spinner}{self._text}  {seconds:.0f} s")
        elif self._text:
            yield Text(self._text)
        else:
            width = yield from self._table(options.max_width, console.height, options.ascii_only)
            yield from self._bar(width, now, console, options)

    def _table(self, width: int, height: int, ascii_only: bool) -> RenderResult:
        """Yields the table's lines and returns its width: as many columns and rows as the terminal has room for."""
        rows, newest = self._earlier, self._newest
        if newest is not None and (not rows or rows[-1] != newest):
            rows = [*rows, newest]
        rows = rows[-max(1, height - 4) :]  # a title, a rule, the bar and the cursor's line
        shown = [i for i in range(len(COLUMNS)) if not rows or any(row[i] is not None for row in rows)]
        while len(shown) > 1 and _width(shown, 1) > width:
            shown.pop()
        gap = 1 if _width(shown, 2) > width else 2

        def line(cells: Sequence[str | None]) -> str:
            return (" " * gap).join(f"{cells[i] or '':>{COLUMNS[i].width}}" for i in shown)

        yield Text(line([column.title for column in COLUMNS]), "bold cyan", no_wrap=True, overflow="crop")
        yield Text(("-" if ascii_only else "─") * min(width, _width(shown, gap)), "dim")
        for row in rows:
            yield Text(line(row), "bold" if row is newest or row == newest else "", no_wrap=True, overflow="crop")
        return min(width, _width(shown, gap))

    def _bar(self, width: int, now: float, console: Console, options: ConsoleOptions) -> RenderResult:
        done, last, remaining = self._pace.done, self._pace.last, self._pace.remaining()
        text = f"  {done}/{last}  elapsed {clock(now - self._started)}"
        if remaining and not self._ended:
            text += f"  ETA {clock(max(0.0, remaining - (now - self._updated)))}"
        room = width - len(text)
        if room >= 8:
            bar = ProgressBar(last, done, complete_style="cyan", finished_style="green")
            yield from console.render_lines(bar, options.update(width=room, height=1))[0]  # 1: also when empty
        yield Segment((text if room >= 8 else text.strip()[:width]) + "\n")


def _cells(iteration: int, metrics: Mapping[str, float]) -> list[str | None]:
    """Returns what each column shows: "-" where nothing was measured, None where the run has no such metric."""
    values = {**metrics, "iteration": iteration}
    return [_fit(values[name], form, width) if name in values else None for _, name, form, width in COLUMNS]


def _fit(value: float, form: str, width: int) -> str:
    """Returns the number with as many digits as fit, so that no value moves the columns."""
    if not math.isfinite(value):
        return "-"
    texts = (format(value, one) for one in (form, ".2f", ".1f", ".0f", ".1e"))
    return next((text for text in texts if len(text) <= width), format(value, ".0e"))


def _width(columns: Sequence[int], gap: int) -> int:
    return sum(COLUMNS[i].width + gap for i in columns) - gap


def clock(seconds: float) -> str:
    """Returns hours, minutes and seconds, such as 1:02:03."""
    return str(timedelta(seconds=round(seconds)))
