"""Ctrl-C, SIGTERM and SIGUSR1 as a request to stop at the next safe point, so that no training is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from types import FrameType

_REQUESTS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
"""SIGUSR1 is what SLURM sends before a job's time is over (`sbatch --signal=USR1@120`); Windows has none."""

GRACE_SECONDS = 1.0
"""How long a second Ctrl-C waits for Python to react before it ends the process."""


class StopRequest:
    """Whether somebody asked the run to stop.

    Attributes:
        signal: the first signal that did, or None.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def is_set(self) -> bool:
        """Whether a signal came."""
        return self.signal is not None


@contextlib.contextmanager
def stop_on_interrupt() -> Iterator[StopRequest]:
    """Turns the first SIGINT, SIGTERM or SIGUSR1 into a request; a Ctrl-C after it raises KeyboardInterrupt as usual.

    A signal that raised at once could fall between donating a state and receiving its successor, and lose both. A
    repeated SIGTERM or SIGUSR1 changes nothing: schedulers send them to a job more than once.
    Outside the main thread, where Python delivers no signals, nothing is changed.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if request.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal = request.signal or signal.Signals(number)

    previous = {number: signal.signal(number, handle) for number in _REQUESTS}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def exit_on_second_interrupt() -> Iterator[None]:
    """Ends the process at a Ctrl-C that follows another request to stop. For command lines: it ends a notebook too.

    Python runs its handlers between two bytecodes of the main thread: not while XLA compiles, which may take minutes,
    and only once for two signals. Here a thread counts them as they arrive, and leaves Python `GRACE_SECONDS` to react.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    is_over, twice = threading.Event(), threading.Event()

    def watch() -> None:
        requested = False
        while numbers := reader.recv(64):
            for number in numbers:
                if requested and number == signal.SIGINT:
                    twice.set()
                    if not is_over.wait(GRACE_SECONDS):
                        _exit()
                requested |= number in _REQUESTS

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        writer.close()  # ends the thread
        if twice.is_set():  # neither would threads that still work let the process end
            _exit()
        is_over.set()
        watcher.join()
        reader.close()


def _exit() -> None:
    with contextlib.suppress(OSError, ValueError):
        if sys.stdout.isatty():
            os.write(sys.stdout.fileno(), b"\033[?25h")  # the cursor, which a live table hides
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(128 + signal.SIGINT)
