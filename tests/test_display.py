"""The display of a run, on pseudo-terminals, in pipes and in a notebook's kernel."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from helpers import small_config
from jupyter_client.manager import start_new_kernel

from rlbotics_jax.display import Display, LineDisplay, make_display
from rlbotics_jax.progress import COLUMNS

ROOT = Path(__file__).parents[1]

ROWS = """
import math, sys, time, warnings
from rlbotics_jax.display import make_display

def rows(first, last):
    metrics = {
        "Performance/FPS": 98765.4, "Episodes/mean_reward": -1234.56, "Episodes/mean_length": 1000.0,
        "Loss/value": 0.25, "Loss/surrogate": -0.0123, "Loss/entropy": -1.5, "Diagnostics/kl": 0.01,
        "Learning/learning_rate": 1e-3, "Policy/action_std": 0.5,
    }
    nothing_learned = {name: math.nan for name in metrics if name.startswith(("Loss", "Diag", "Perf"))}
    return [(i, metrics | {"Episodes/mean_reward": float(i)} | (nothing_learned if i == 1 else {}))
            for i in range(first, last + 1)]
"""
exec(ROWS)

DRIVEN = f"""{ROWS}
from rlbotics_jax.cli import _show_warning
warnings.showwarning = _show_warning
display = make_display(10)
try:
    display.compiling("Compiling for cpu: Task, 16 environments.")
    if "patient" in sys.argv:
        time.sleep(1.3)
    display.begin(0, 60)
    display.compiled(1.25)
    display.update(rows(1, 1), 1.25)
    for first in range(2, 60, 2):
        display.update(rows(first, first + 1), 0.01)
        time.sleep(0.02)
        if first == 30 and "quiet" not in sys.argv:
            print("printed [bold]by[/bold] a callback")
            warnings.warn("something is off")
        if first == 40 and "fail" in sys.argv:
            raise RuntimeError("broken")
    if "quiet" not in sys.argv:
        print("no end", end="")
    display.update(rows(60, 60), 0.01)
finally:
    display.close()
display.message("after the end")
open("done", "w").close()
"""


class Terminal:
    """A pseudo-terminal with a process in it, and the screen that its output makes.

    The screen knows just what rich writes, so that anything else is noticed.
    """

    CODES = re.compile(r"\x1b\[(\?25[lh]|2K|1A|[\d;]*m)|\r|\n|[^\x00-\x1f]+")

    def __init__(self, command, columns=80, lines=24, **process):
        self.main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        variables = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
        variables |= {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", **process.pop("env", {})}
        files = {"stdin": other, "stdout": other, "stderr": other, **process}
        self.process = subprocess.Popen(command, env=variables, start_new_session=True, **files)
        os.close(other)
        self.columns, self.raw = columns, b""

    def read(self, until=None, seconds=120.0):
        """Reads up to the pattern `until`, or to the end of the process."""
        deadline = time.monotonic() + seconds
        while until is None or not re.search(until, self.text):
            assert select.select([self.main], [], [], deadline - time.monotonic())[0], self.text
            try:
                data = os.read(self.main, 65536)
            except OSError:  # how Linux says that the other end is closed
                data = b""
            if not data:
                assert until is None, self.text
                break
            self.raw += data
        return self

    @property
    def text(self):
        return self.raw.decode(errors="ignore")

    def end(self):
        """Returns the exit code."""
        self.read()
        os.close(self.main)
        return self.process.wait(timeout=60)

    def screen(self):
        """Returns the lines that stand on the terminal, as if it were endlessly high."""
        lines, row, column, position = [""], 0, 0, 0
        while position < len(self.text):
            code = self.CODES.match(self.text, position)
            assert code is not None, repr(self.text[position : position + 40])
            position, piece = code.end(), code.group()
            if piece == "\r":
                column = 0
            elif piece == "\n":
                row += 1
                lines += [""] * (row == len(lines))
            elif piece == "\x1b[2K":
                lines[row] = ""
            elif piece == "\x1b[1A":
                row -= 1
                assert row >= 0
            elif piece[0] != "\x1b":
                lines[row] = lines[row].ljust(column)[:column] + piece + lines[row][column + len(piece) :]
                column += len(piece)
                assert column <= self.columns, lines[row]
        return [line.rstrip() for line in lines]

    def cursor_is_shown(self):
        return "\x1b[?25l" in self.text and self.text.rindex("\x1b[?25h") > self.text.rindex("\x1b[?25l")


def python(code, *arguments):
    return [sys.executable, "-c", code, *arguments]


TABLE_AT_80 = [
    "iteration   steps/s  return length  value surrogate entropy     kl      lr   std",
    "─" * 80,
    *(
        f"{i:>9}    98,765 {i:>4}.00   1000 0.2500   -0.0123  -1.500 0.0100 1.0e-03 0.500"
        for i in (10, 20, 30, 40, 50, 60)
    ),
]


def test_a_terminal_shows_a_spinner_then_a_table_and_leaves_it_standing():
    started = time.monotonic()
    terminal = Terminal(python(DRIVEN, "patient"))
    assert terminal.end() == 0
    seconds = time.monotonic() - started
    assert re.search(r"[-\\|/] Compiling for cpu: Task, 16 environments\.  0 s", terminal.text)
    assert "Compiling for cpu: Task, 16 environments.  1 s" in terminal.text  # it ticks
    assert re.search(r"/60  elapsed 0:00:0\d  ETA 0:00:00", terminal.text)
    *above, bar, after, end = terminal.screen()
    assert above == [
        "Compiling for cpu: Task, 16 environments.",
        "Compiled and ran the first iteration in 1.2 s.",
        "printed [bold]by[/bold] a callback",
        "warning: something is off",
        "no end",
        *TABLE_AT_80,
    ]
    assert re.fullmatch(r"━{56}  60/60  elapsed 0:00:\d\d", bar)
    assert (after, end) == ("after the end", "")
    assert terminal.cursor_is_shown()
    assert "\x1b[1;36m" in terminal.text  # in colours
    # by the clock, not once a block: at most 4 a second, with every line printed, and at the end
    assert terminal.text.count("elapsed") <= 4 * seconds + 6


def test_a_wide_terminal_without_colours():
    terminal = Terminal(python(DRIVEN), columns=120, env={"NO_COLOR": "1"})
    assert terminal.end() == 0
    assert (
        "iteration    steps/s   return  length   value  surrogate  entropy      kl       lr    std" in terminal.screen()
    )
    assert set(re.findall(r"\x1b\[([\d;]*)m", terminal.text)) <= {"0", "1", "2"}  # plain, bold, dim
    assert re.search("━ +[0-9]+/60  elapsed", terminal.text)  # what is left of the bar is blank
    assert terminal.cursor_is_shown()


def test_a_small_terminal_without_unicode():
    terminal = Terminal(python(DRIVEN), columns=50, lines=8, env={"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"})
    assert terminal.end() == 0
    assert terminal.text.isascii()
    table = terminal.screen()[-9:-3]
    assert table[:2] == ["iteration    steps/s   return  length   value", "-" * 45]
    assert [line.split()[0] for line in table[2:]] == ["30", "40", "50", "60"]


def test_a_failure_leaves_the_table_and_the_cursor():
    terminal = Terminal(python(DRIVEN, "fail"))
    assert terminal.end() == 1
    lines = terminal.screen()
    bar = next(i for i, line in enumerate(lines) if "41/60  elapsed" in line)
    assert lines[bar - 1].split()[:3] == ["41", "98,765", "41.00"]
    assert lines[bar + 1].startswith("Traceback") and lines[-2] == "RuntimeError: broken"
    assert terminal.cursor_is_shown()


def test_a_terminal_that_cannot_move_its_cursor_gets_lines():
    terminal = Terminal(python(DRIVEN), columns=200, env={"TERM": "dumb"})
    assert terminal.end() == 0
    assert "\x1b" not in terminal.text
    assert re.findall(r"(\d+)/60 ", "\n".join(terminal.screen())) == ["10", "20", "30", "40", "50", "60"]


def test_a_terminal_that_goes_away_does_no_harm(tmp_path):
    terminal = Terminal(python(f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN){DRIVEN}", "quiet"))
    terminal.read(until="elapsed")
    os.close(terminal.main)
    terminal.process.wait(timeout=60)
    assert (tmp_path / "done").exists()


def test_standard_error_in_a_file_stays_there(tmp_path):
    with open(tmp_path / "errors", "w") as errors:
        terminal = Terminal(python(DRIVEN), stderr=errors)
        assert terminal.end() == 0
    assert (tmp_path / "errors").read_text() == "warning: something is off\n"
    assert "something is off" not in terminal.text


def test_a_live_view_inside_another_one_prints_lines():
    code = f"{ROWS}\nfrom rich.live import Live\nwith Live('outer'):\n    print(type(make_display(1)).__name__)"
    terminal = Terminal(python(code))
    assert terminal.end() == 0
    assert terminal.screen()[0] == "LineDisplay"


def test_training_in_a_terminal_is_interrupted(tmp_path):
    """The command itself: compiled, shown, and stopped by Ctrl-C's signal."""
    config = small_config(runner__num_learning_iterations=10**6)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    terminal = Terminal([sys.executable, "-m", "rlbotics_jax.cli", "train", "config.json"])
    terminal.read(until="ETA", seconds=240)
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130
    compiling, compiled, _, _, *rows, bar, stopped, end = terminal.screen()
    assert re.match(r"Compiling for .*: CartpoleBalance, 16 environments\.$", compiling)
    assert re.match(r"Compiled and ran the first iteration in [\d.]+ s\.$", compiled)
    iterations = [int(row.split()[0]) for row in rows]
    newest = iterations[-1]
    assert iterations == list(range(max(1, newest - 7), newest + 1))
    assert f" {newest}/1000000  elapsed" in bar and "ETA" not in bar and end == ""
    assert stopped == f"Stopped by SIGINT after iteration {newest} of 1000000."
    assert terminal.cursor_is_shown()


def test_a_pipe_gets_lines_and_may_be_closed(tmp_path):
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "FORCE_COLOR": "1"}  # which makes no terminal of a pipe
    result = subprocess.run(python(DRIVEN), capture_output=True, text=True, env=variables)
    lines = result.stdout.splitlines()
    assert lines[:2] == ["Compiling for cpu: Task, 16 environments.", "Compiled and ran the first iteration in 1.2 s."]
    assert lines[2] == (
        "    10/60     98,765 steps/s  return 10.00  length 1000  value 0.2500  surrogate -0.0123  entropy -1.500"
        "  kl 0.0100  lr 1.0e-03  std 0.500  ETA 0:00:00"
    )
    assert sum("/60 " in line for line in lines) == 6 and lines[-1] == "after the end"
    (tmp_path / "done").unlink()
    head = subprocess.Popen(python(DRIVEN, "quiet"), stdout=subprocess.PIPE, env=variables)
    assert head.stdout.readline().startswith(b"Compiling")
    head.stdout.close()
    head.wait(timeout=60)
    assert (tmp_path / "done").exists()


def test_lines_say_when_the_run_ends(capsys):
    display = make_display(100)
    assert isinstance(display, LineDisplay)
    display.begin(0, 300)
    display.update(rows(1, 1), 50.0)  # compilation, which does not count
    display.update(rows(2, 100), 99.0)
    display.update(rows(101, 200), 200.0)
    display.update(rows(201, 300), 300.0)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("ETA ")[2] for line in lines] == ["0:03:20", "0:02:30", ""]


def test_nothing_is_shown_where_nothing_is_asked_for(capsys):
    display = make_display(0)
    assert type(display) is Display
    display.compiling("text")
    display.begin(0, 3)
    display.compiled(1.0)
    display.update(rows(1, 3), 1.0)
    display.message("text")
    display.close()
    assert capsys.readouterr().out == ""


def test_a_notebook_updates_one_output_in_place():
    code = DRIVEN.replace('open("done", "w").close()', 'print(type(display).__name__, "ipywidgets" in sys.modules)')
    messages, started = [], time.monotonic()
    manager, client = start_new_kernel(kernel_name="python3", env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        reply = client.execute_interactive(code, timeout=60, output_hook=messages.append)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    seconds = time.monotonic() - started
    assert reply["content"]["status"] == "ok"
    (shown,) = [message["content"] for message in messages if message["msg_type"] == "display_data"]
    updates = [message["content"] for message in messages if message["msg_type"] == "update_display_data"]
    assert {update["transient"]["display_id"] for update in updates} == {shown["transient"]["display_id"]}
    assert "Compiling for cpu: Task, 16 environments." in shown["data"]["text/html"]
    assert 3 <= len(updates) <= 4 * seconds + 2
    assert any("ETA" in update["data"]["text/html"] for update in updates)
    last = re.sub("<[^>]*>", "", updates[-1]["data"]["text/html"]).splitlines()
    assert last[0].split() == [column.title for column in COLUMNS]
    assert [line.split()[0] for line in last[2:8]] == ["10", "20", "30", "40", "50", "60"]
    assert "60/60  elapsed" in last[8]
    streams = {"stdout": "", "stderr": ""}
    for message in messages:
        if message["msg_type"] == "stream":
            streams[message["content"]["name"]] += message["content"]["text"]
    assert streams["stdout"].splitlines() == [
        "Compiled and ran the first iteration in 1.2 s.",
        "printed [bold]by[/bold] a callback",
        "no endafter the end",
        "NotebookDisplay False",
    ]
    assert streams["stderr"] == "warning: something is off\n"
