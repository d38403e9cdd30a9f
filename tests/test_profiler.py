"""The profile that `train(..., profile=True)` writes."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from helpers import small_config
from toys import DelayedReward

from rlbotics_jax import ConfigError, train


def run(tmp_path, capsys, iterations):
    config = small_config(runner__logger__log_dir=str(tmp_path), runner__num_learning_iterations=iterations)
    result = train(config, DelayedReward(), profile=True)
    return result, capsys.readouterr().out


def test_trace_of_warm_iterations(tmp_path, capsys):
    result, printed = run(tmp_path, capsys, 12)
    (line,) = re.findall(r"^Profile: (\S+) \(https://ui.perfetto.dev\), or tensorboard --logdir (\S+)$", printed, re.M)
    assert Path(line[1]) == result.run_directory
    events = json.loads(gzip.decompress(Path(line[0]).read_bytes()))["traceEvents"]
    names = [event["name"] for event in events if event.get("ph") == "X"]
    assert sum("dot" in name for name in names) > 10  # the networks' products
    assert not any("compile" in name.lower() for name in names)
    assert list(Path(line[0]).parent.glob("*.xplane.pb"))
    assert len(result.history["iteration"]) == 12


def test_too_short_a_run_says_so(tmp_path, capsys):
    _, printed = run(tmp_path, capsys, 2)
    assert "No profile: the run was too short, it takes three iterations to warm up." in printed


def test_a_run_that_writes_nothing_has_no_place_for_it():
    with pytest.raises(ConfigError, match=r"^runner.logger: a profile is written into the run's folder: set enabled"):
        train(small_config(), DelayedReward(), profile=True)
