"""Interrupts: the first signal asks, a Ctrl-C after it raises or ends the process, and the handlers are put back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rlbotics_jax.interrupts import GRACE_SECONDS, stop_on_interrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_the_first_signal_asks_and_a_ctrl_c_after_it_raises(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), stop_on_interrupt() as stop:
        assert stop.signal is None
        os.kill(os.getpid(), number)
        assert stop.signal is number
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(number) is before


def test_what_a_scheduler_repeats_changes_nothing():
    with stop_on_interrupt() as stop:
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert stop.signal is signal.SIGUSR1


def test_other_threads_change_nothing():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with stop_on_interrupt() as stop:
            seen.append((stop.signal, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(None, before)]


LONG_CALL = """
import hashlib
from rlbotics_jax.interrupts import exit_on_second_interrupt, stop_on_interrupt
with exit_on_second_interrupt(), stop_on_interrupt() as stop:
    print("ready", flush=True)
    {work}
    print("worked on", stop.signal.name, flush=True)
"""


def run_and_signal(work, *signals):
    """Runs the code above, sends it signals, and returns its exit code, its output and the seconds it took to end."""
    code = LONG_CALL.format(work=work)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    started = time.monotonic()
    for number in signals:
        process.send_signal(number)
        time.sleep(0.1)
    output, _ = process.communicate(timeout=120)
    return process.returncode, output, time.monotonic() - started


# It takes some seconds, in which no handler runs although the interpreter is free, as while XLA compiles.
LONG = "hashlib.pbkdf2_hmac('sha512', b'', b'', 8_000_000)"


def test_a_second_ctrl_c_ends_a_call_that_python_cannot_interrupt():
    _, _, undisturbed = run_and_signal(LONG, signal.SIGTERM)
    code, output, seconds = run_and_signal(LONG, signal.SIGINT, signal.SIGINT)
    assert (code, output) == (130, "") and seconds < GRACE_SECONDS + 1.0
    assert undisturbed > seconds  # or this shows nothing


def test_one_signal_lets_the_work_end():
    assert run_and_signal("import time; time.sleep(0.5)", signal.SIGINT)[:2] == (0, "worked on SIGINT\n")
    repeated = run_and_signal("import time; time.sleep(0.5)", signal.SIGTERM, signal.SIGTERM)
    assert repeated[:2] == (0, "worked on SIGTERM\n")
