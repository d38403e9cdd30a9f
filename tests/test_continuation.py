"""Runs as a cluster treats them: each part a process of its own, from the command line, on MJX with an adaptive rate.

Every part ends in the middle of what was a block of the whole run, and saves at another interval.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import small_config

from rlbotics_jax.checkpoint import Checkpoints
from rlbotics_jax.history import METRICS_FILE, read_history
from rlbotics_jax.runs import recorded_config

ROOT = Path(__file__).parents[1]
TIMES = {"wall_time", "Performance/FPS"}


def command(*arguments):
    return [sys.executable, "-m", "rlbotics_jax.cli", *map(str, arguments)]


def variables():
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def run(*arguments):
    """Runs the command line in a process of its own; returns what it printed."""
    result = subprocess.run(command(*arguments), capture_output=True, text=True, env=variables())
    assert result.returncode == 0, result.stderr
    return result.stdout


def new_run(output):
    (line,) = [line for line in output.splitlines() if line.startswith("Run: ")]
    return Path(line.removeprefix("Run: "))


def leaves(run, iteration):
    return Checkpoints(run).leaves(iteration, lambda path: True)


def assert_same_state(first, second, iteration):
    """Every leaf of the two runs' checkpoints is equal to the bit."""
    one, other = leaves(first, iteration), leaves(second, iteration)
    assert one.keys() == other.keys() and len(one) > 100
    for path, leaf in one.items():
        assert np.asarray(_bits(leaf)).tobytes() == np.asarray(_bits(other[path])).tobytes(), path


def _bits(leaf):
    import jax

    return jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def assert_same_metrics(first, second):
    one, other = read_history(first), read_history(second)
    assert one.keys() == other.keys()
    for name in one.keys() - TIMES:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The config's file, and an undisturbed run of 14 iterations."""
    folder = tmp_path_factory.mktemp("a folder with blanks")
    config = small_config(
        runner__logger={"log_dir": str(folder / "logs"), "save_interval": 7, "log_interval": 1},
        runner__num_learning_iterations=14,
        runner__algorithm__schedule="adaptive",
    )
    path = folder / "task.json"
    path.write_text(json.dumps(config.to_dict()))
    return path, new_run(run("train", path))


def test_a_queued_job_goes_on_until_its_total_bit_for_bit(whole):
    path, reference = whole
    experiment = ["--runner.logger.experiment", "queued"]
    first = new_run(run("train", path, *experiment, "--resume", "auto", "-i", 5))
    assert leaves(first, 5)["shared.iteration"] == 5
    second = new_run(run("train", path, *experiment, "--resume", "auto", "-i", 9, "--runner.logger.save-interval", 2))
    third = new_run(run("train", path, *experiment, "--resume", "auto"))
    assert len({first, second, third}) == 3
    # What ran afresh runs afresh again, and what went on goes on from the same checkpoint.
    assert recorded_config(first)["runner"]["logger"]["resume"] is None
    assert recorded_config(third)["runner"]["logger"]["resume"] == str(second / "checkpoints" / "9")
    assert_same_state(third, reference, 14)
    assert_same_metrics(third, reference)
    adapted = read_history(reference)["Learning/learning_rate"]
    assert len(set(adapted.tolist())) > 3  # or an adaptive rate that is lost would not show
    assert np.all(np.diff(read_history(third)["wall_time"]) > 0)
    # Once more: the total is reached, so that nothing is trained or written.
    before = sorted(third.parent.iterdir())
    output = run("train", path, *experiment, "--resume", "auto")
    assert f"'{third}' is complete, at iteration 14: nothing is left to do." in output and new_run(output) == third
    assert sorted(third.parent.iterdir()) == before


def test_config_json_gives_the_run_again(whole):
    _, reference = whole
    again = new_run(run("train", reference / "config.json"))
    assert again != reference and again.parent == reference.parent
    assert_same_state(again, reference, 14)
    assert_same_metrics(again, reference)
    assert recorded_config(again)["runner"] == recorded_config(reference)["runner"]
    assert (again / METRICS_FILE).read_text().count("\n") == 14


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 138)])
def test_the_line_of_a_stopped_run_goes_on_with_it(whole, number, code):
    path, total = whole[0], 10**6
    process = subprocess.Popen(command("train", path, "-i", total), stdout=subprocess.PIPE, text=True, env=variables())
    while not process.stdout.readline().startswith("     3/"):
        assert process.poll() is None
    process.send_signal(number)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == code, output
    stopped = new_run(output)
    (line,) = [line for line in output.splitlines() if line.startswith("Stopped by")]
    done = Checkpoints(stopped).latest()
    assert line.startswith(
        f"Stopped by {number.name} after iteration {done} of {total}; go on with: rlbotics-jax train"
    )
    assert (stopped / "policy.onnx").is_file() and not list(stopped.glob(".*"))
    arguments = shlex.split(line.partition("rlbotics-jax ")[2])
    assert arguments == ["train", f"{stopped}/config.json", "--resume", str(stopped), "-i", str(total - done)]
    if number is signal.SIGTERM:
        resumed = new_run(run(*arguments[:-1], 2))  # two more are enough
        assert read_history(resumed)["iteration"].tolist() == list(range(1, done + 3))


def test_a_second_ctrl_c_ends_it_at_once_and_leaves_nothing_half(whole, tmp_path):
    path, _ = whole
    process = subprocess.Popen(
        command("train", path, "-i", 10**6, "--log-dir", tmp_path, "--no-cache", "--runner.actor.hidden-dims", 24),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=variables(),
    )
    assert process.stdout.readline().startswith("Compiling for")
    time.sleep(1.0)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    # Once the interpreter is on its way out, the signal itself ends it, which a shell tells as 130 too.
    assert process.wait(timeout=60) in (130, -signal.SIGINT)
    assert time.monotonic() - started < 3.0  # in the middle of a compilation, which takes several times as long
    for left in tmp_path.rglob("*"):
        assert left.is_dir() or left.name in ("config.json", METRICS_FILE) or "tfevents" in left.name, left
