"""The log: every iteration once, in the history, on the display and in the run's files."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers import small_config

from rlbotics_jax.blocks import Block
from rlbotics_jax.display import Display, LineDisplay
from rlbotics_jax.history import earlier_history, read_history
from rlbotics_jax.logger import RunLog


def run_log(run=None, display=None, earlier=None):
    return RunLog(run, small_config(), display or Display(), earlier)


def block(first, count, seconds, finished, **metrics):
    base = {"Episodes/count": 5.0, "Episodes/mean_reward": 2.5, "Episodes/mean_length": 10.0, "Loss/value": 0.25}
    rows = [(first + i, {**base, **metrics, "env_steps": 100 * (first + i)}) for i in range(count)]
    return Block(iterations=rows, seconds=seconds, finished=finished, state=None)


def test_history_speed_and_time():
    log = run_log()
    log.begin(0, 5, seconds=10.0, started=1000.0)
    # The second block ran for 2 s, and its metrics arrived 4 s after the first's: an evaluation took the others.
    seen = log.block(block(1, 1, 4.0, 1004.0)) + log.block(block(2, 4, 2.0, 1008.0))
    assert [iteration for iteration, _ in seen] == [1, 2, 3, 4, 5]
    history = log.arrays()
    np.testing.assert_allclose(history["wall_time"], [14.0, 15.0, 16.0, 17.0, 18.0])
    # the first block is mostly compilation, and its speed says nothing
    np.testing.assert_allclose(history["Performance/FPS"], [math.nan, 200.0, 200.0, 200.0, 200.0])
    assert log.seconds == 18.0
    assert history["env_steps"].tolist() == [100, 200, 300, 400, 500]
    assert seen[1][1]["wall_time"] == 15.0 and seen[1][1]["iteration"] == 2


def test_a_metric_that_comes_later_and_one_without_episodes_are_nan():
    log = run_log()
    log.begin(0, 3, 0.0, 0.0)
    log.block(block(1, 1, 1.0, 1.0, **{"Episodes/count": 0.0}))
    log.block(block(2, 1, 1.0, 2.0, **{"Evaluation/mean_reward": 7.0}))
    log.block(block(3, 1, 1.0, 3.0))
    history = log.arrays()
    np.testing.assert_array_equal(history["Evaluation/mean_reward"], [math.nan, 7.0, math.nan])
    np.testing.assert_array_equal(history["Episodes/mean_reward"], [math.nan, 2.5, 2.5])


def test_an_iteration_that_learned_nothing_has_no_losses():
    log = run_log()
    log.begin(0, 1, 0.0, 0.0)
    ((_, metrics),) = log.block(block(1, 1, 1.0, 1.0, **{"Diagnostics/applied_updates": 0.0}))
    assert math.isnan(metrics["Loss/value"]) and "Loss/entropy" not in metrics


def test_lines_every_interval_and_at_the_end(capsys):
    log = run_log(display=LineDisplay(2))
    log.begin(0, 5, 0.0, 0.0)
    log.block(block(1, 5, 1.0, 1.0))
    lines = [line for line in capsys.readouterr().out.splitlines() if "/5 " in line]
    assert [line.split("/")[0].strip() for line in lines] == ["2", "4", "5"]
    assert "return 2.50" in lines[0] and "length 10" in lines[0] and "value 0.2500" in lines[0]


def test_files_hold_a_block_as_soon_as_it_is_recorded(tmp_path):
    log = run_log(tmp_path)
    log.begin(0, 3, 0.0, 0.0)
    log.block(block(1, 3, 1.0, 1.0))
    history = read_history(tmp_path)
    assert history["Loss/value"].tolist() == [0.25] * 3
    assert "Performance/FPS" not in history  # the first block has no speed
    assert next(tmp_path.glob("events.out.tfevents.*")).stat().st_size > 0
    log.close()


def test_a_resumed_run_goes_on_where_it_was(tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    log = run_log(tmp_path / "first")
    log.begin(0, 4, 0.0, 0.0)
    log.block(block(1, 4, 4.0, 4.0))
    log.close()
    # Resumed from iteration 3: the fourth is run again.
    log = run_log(tmp_path / "second", earlier=earlier_history(tmp_path / "first", 3))
    log.begin(3, 5, 3.0, 1000.0)
    log.block(block(4, 1, 2.0, 1002.0))
    log.block(block(5, 1, 0.5, 1002.5))
    log.close()
    for history in (log.arrays(), read_history(tmp_path / "second")):
        assert history["iteration"].tolist() == [1, 2, 3, 4, 5]
        assert history["env_steps"].tolist() == [100, 200, 300, 400, 500]
        np.testing.assert_allclose(history["wall_time"], [1.0, 2.0, 3.0, 5.0, 5.5])
        np.testing.assert_allclose(history["Performance/FPS"], [math.nan] * 4 + [200.0])


def test_a_writer_that_fails_costs_its_file_alone(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.warns(UserWarning, match="metrics.jsonl' failed .* training goes on without it") as caught:
        log = run_log(tmp_path)
    log.begin(0, 3, 0.0, 0.0)
    log.block(block(1, 3, 1.0, 1.0))
    log.close()
    assert len(caught) == 1 and len(log.arrays()["env_steps"]) == 3
    assert next(tmp_path.glob("events.out.tfevents.*")).stat().st_size > 0
