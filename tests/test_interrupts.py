"""Interrupts: the first signal asks, the second raises, and the handlers are put back."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from rlbotics_jax.interrupts import stop_on_interrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_asks_second_raises(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), stop_on_interrupt() as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert stop.requested
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_other_threads_change_nothing():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with stop_on_interrupt() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, before)]
