"""The benchmarks' harness, on a worker that computes nothing, and that every script explains itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import harness  # noqa: E402

WORKER = """
import sys
from harness import serve

print("noise on standard output")
calls = []

def work(factor):
    calls.append(factor)
    return {"seconds": factor * len(calls)}

def broken():
    raise ZeroDivisionError("on purpose")

serve(lambda: {"argument": sys.argv[1]}, {"work": work, "broken": broken})
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "worker.py"
    path.write_text(WORKER)
    return path


def test_workers_answer_in_turns(script):
    with harness.Worker(sys.executable, script, "one") as one, harness.Worker(sys.executable, script, "two") as two:
        assert (one.ready["argument"], two.ready["argument"]) == ("one", "two")
        assert one.ready_seconds > 0 and one.ready["peak_memory_mib"] > 1
        seconds = harness.interleave({"one": one, "two": two}, "work", rounds=3, factor=2.0)
        assert seconds == {"one": [2.0, 4.0, 6.0], "two": [2.0, 4.0, 6.0]}


@pytest.mark.parametrize(
    ("what", "sentence"), [("broken", "raised ZeroDivisionError"), ("sleep", "cannot measure 'sleep', only work")]
)
def test_a_worker_that_fails_shows_its_log(script, what, sentence):
    worker = harness.Worker(sys.executable, script, "one")
    with pytest.raises(harness.WorkerError, match=sentence) as error:
        worker.measure(what)
    assert "noise on standard output" in str(error.value)


def test_ratios_and_spread():
    assert harness.ratios([2.0, 6.0], [1.0, 2.0]) == [2.0, 3.0]
    assert harness.spread([3.0, 1.0, 2.0]) == "2 [1-3]"
    assert harness.summary([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0, "rounds": [3.0, 1.0, 2.0]}


@pytest.mark.parametrize("name", ["export", "learning", "mjx", "runs", "startup", "update"])
def test_scripts_explain_themselves(name):
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--help"]
    variables = {**os.environ, "PYTHONPATH": str(BENCHMARKS.parent)}
    result = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert f"python benchmarks/{name}.py" in result.stdout


@pytest.mark.parametrize("name", ["export", "mjx", "runs", "startup", "update"])
def test_recorded_figures_name_their_machine(name):
    figures = json.loads((BENCHMARKS / "results" / f"{name}.json").read_text())
    assert {"date", "cpus", "architecture", "versions"} <= figures.keys()
    assert "jax" in figures["versions"]
