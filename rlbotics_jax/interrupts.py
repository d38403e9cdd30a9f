"""Ctrl-C and SIGTERM as a request to stop at the next safe point, so that no training is lost."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class StopRequest:
    """Whether somebody asked the run to stop."""

    def __init__(self) -> None:
        self.requested = False


@contextlib.contextmanager
def stop_on_interrupt() -> Iterator[StopRequest]:
    """Turns the first SIGINT or SIGTERM into a request; a second one raises KeyboardInterrupt as usual.

    A signal that raised at once could fall between donating a state and receiving its successor, and lose both.
    Outside the main thread, where Python delivers no signals, nothing is changed.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if request.requested:
            raise KeyboardInterrupt
        request.requested = True

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
