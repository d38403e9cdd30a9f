"""kill -9 and a full disk: whatever happens while it is saved, a run can go on from a whole checkpoint."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import jax
import pytest
import saving_child
from helpers import assert_bit_equal, small_config
from saving_child import policy_of, state_of, toy_config
from toys import ActionReward

from rlbotics_jax import train
from rlbotics_jax.checkpoint import Checkpoints

HERE = Path(__file__).parent
KILLS = 20


@pytest.fixture
def start(monkeypatch):
    """Starts a function in a process of its own, with a pipe; jax is imported once for all of them."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["saving_child"])

    def start(function, *arguments):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=function, args=(*arguments, theirs), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    return start


def received(pipe):
    """Returns the last number that a killed process sent."""
    last = None
    try:
        while True:
            last = pipe.recv()
    except (EOFError, OSError):
        return last


def test_kill_9_while_saving_leaves_whole_checkpoints(start, tmp_path):
    """Children save in a tight loop and are killed at random; each goes on from what the one before it left."""
    generator, latest = random.Random(0), 0
    for _ in range(KILLS):
        process, pipe = start(saving_child.save_for_ever, tmp_path)
        assert pipe.poll(60) and pipe.recv() == latest + 1
        time.sleep(generator.uniform(0.0, 0.08))
        process.kill()
        process.join()
        begun = received(pipe) or latest + 1
        checkpoints = Checkpoints(tmp_path)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # not even the last one is damaged
            latest = checkpoints.latest() or 0
        # Saving one waits for the one before, and the next may have begun before it was told.
        assert begun - 1 <= latest <= begun + 1
        for iteration in checkpoints.iterations():
            assert_bit_equal(checkpoints.state(iteration, jax.eval_shape(lambda: state_of(0))), state_of(iteration))
            assert_bit_equal(checkpoints.policy(iteration, policy_of(0)), policy_of(iteration))
            assert checkpoints.summary(iteration) == {"iteration": iteration}
    assert latest > KILLS


def child(*arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)])}
    return subprocess.Popen(
        [sys.executable, HERE / "saving_child.py", *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def uninterrupted(iterations):
    return train(small_config(runner__num_learning_iterations=iterations), ActionReward())


def test_a_killed_training_goes_on_bit_exactly(tmp_path):
    process = child("train", tmp_path, 10**6)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("*/*/checkpoints/5")) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    (run,) = tmp_path.glob("*/*")
    done = Checkpoints(run).latest()
    assert done >= 5
    resumed = train(toy_config(str(tmp_path), 3, resume="last"), ActionReward())
    assert resumed.history["iteration"].tolist()[-3:] == [done + 1, done + 2, done + 3]
    assert resumed.run_directory != run
    assert_bit_equal(resumed.state, uninterrupted(done + 3).state)


def test_training_goes_on_while_the_disk_is_full(tmp_path):
    process = child("train", tmp_path, 12, 4)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "trained to 12" in output
    assert errors.count("A checkpoint cannot be written to") == 1 and errors.count("(File too large)") == 2
    assert errors.count("The last checkpoint could not be written to") == 1
    (run,) = tmp_path.glob("*/*")
    saved = Checkpoints(run).latest()
    assert 1 <= saved < 12
    assert not list(run.glob("checkpoints/*tmp*"))
    resumed = train(toy_config(str(tmp_path), 12 - saved, resume="last"), ActionReward())
    assert_bit_equal(resumed.state, uninterrupted(12).state)


def test_the_only_checkpoint_outlives_a_full_disk(start, tmp_path):
    process, pipe = start(saving_child.save_on_a_full_disk, tmp_path)

    def files(iteration):
        folder = f"checkpoints/{iteration}"
        return ["checkpoints", folder, f"{folder}/_CHECKPOINT_METADATA", f"{folder}/arrays.zip"]

    for latest, num_warnings in ((2, 0), (2, 2), (2, 2), (7, 0)):
        assert pipe.poll(60)
        found, there, warned = pipe.recv()
        assert (found, there) == (latest, files(latest))
        assert len(warned) == num_warnings and all("(File too large)" in sentence for sentence in warned)
    process.join()
    assert_bit_equal(Checkpoints(tmp_path).state(7, jax.eval_shape(lambda: state_of(0))), state_of(7))
