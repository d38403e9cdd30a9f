"""The metrics by iteration: columns in memory, lines of JSON on disk, and back."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pandas
import pytest

from rlbotics_jax.history import METRICS_FILE, History, earlier_history, json_line, read_history

FIRST = {"iteration": 1, "env_steps": 8192, "wall_time": 3.25, "Loss/value": 0.1, "Episodes/mean_reward": math.nan}
SECOND = {"iteration": 2, "env_steps": 2**53 + 1, "wall_time": 4.0, "Loss/value": math.inf, "Evaluation/length": 7.0}
LINES = (
    '{"iteration": 1, "env_steps": 8192, "wall_time": 3.25, "Loss/value": 0.1}\n',
    '{"iteration": 2, "env_steps": 9007199254740993, "wall_time": 4.0, "Evaluation/length": 7.0}\n',
)


@pytest.fixture
def run(tmp_path):
    (tmp_path / METRICS_FILE).write_text("".join(LINES))
    return tmp_path


def test_a_line_holds_what_is_finite():
    assert (json_line(FIRST), json_line(SECOND)) == LINES


def test_columns_are_the_union_of_all_rows_keys():
    history = History()
    history.add(FIRST)
    history.add(SECOND)
    arrays = history.arrays()
    assert list(arrays) == [*FIRST, "Evaluation/length"] and len(arrays["iteration"]) == 2
    np.testing.assert_array_equal(arrays["Episodes/mean_reward"], [math.nan, math.nan])
    np.testing.assert_array_equal(arrays["Evaluation/length"], [math.nan, 7.0])
    np.testing.assert_array_equal(arrays["Loss/value"], [0.1, math.inf])
    assert arrays["env_steps"].tolist() == [8192, 2**53 + 1]  # float64 does not hold the second
    assert arrays["iteration"].dtype == arrays["env_steps"].dtype == np.int64
    arrays["iteration"][0] = 5
    assert history.arrays()["iteration"].tolist() == [1, 2]


def test_a_file_comes_back_exactly(run):
    history = read_history(run)
    assert list(history) == ["iteration", "env_steps", "wall_time", "Loss/value", "Evaluation/length"]
    assert history["env_steps"].tolist() == [8192, 2**53 + 1] and history["env_steps"].dtype == np.int64
    np.testing.assert_array_equal(history["wall_time"], [3.25, 4.0])
    np.testing.assert_array_equal(history["Loss/value"], [0.1, math.nan])
    np.testing.assert_array_equal(history["Evaluation/length"], [math.nan, 7.0])


def test_pandas_reads_a_file_in_one_line(run):
    frame = pandas.read_json(run / METRICS_FILE, lines=True)
    assert frame["iteration"].tolist() == [1, 2] and frame["env_steps"].tolist() == [8192, 2**53 + 1]
    assert frame["wall_time"].tolist() == [3.25, 4.0]  # pandas takes columns of such names for dates
    np.testing.assert_array_equal(frame["Loss/value"], [0.1, math.nan])


@pytest.mark.parametrize("end", [1, 20, len(LINES[1]) - 2])
def test_a_torn_last_line_is_passed_over(run, end):
    (run / METRICS_FILE).write_text(LINES[0] + LINES[1][:end])
    assert read_history(run)["iteration"].tolist() == [1]


def test_a_lost_newline_loses_nothing(run):
    (run / METRICS_FILE).write_text("".join(LINES)[:-1])
    assert read_history(run)["iteration"].tolist() == [1, 2]


@pytest.mark.parametrize(
    "line", ["{", "[1]", "7", "{}", '{"iteration": "1"}', '{"iteration": 1, "env_steps": null}', ""]
)
def test_another_line_that_cannot_be_read_is_named(run, line):
    path = run / METRICS_FILE
    path.write_text(LINES[0] + line + "\n" + LINES[1])
    sentence = f"'{path}', line 2, is not the metrics of an iteration."
    with pytest.raises(ValueError) as caught:
        read_history(run)
    assert str(caught.value) == sentence
    with pytest.warns(UserWarning) as warned:
        assert earlier_history(run, 7).arrays() == {}
    assert str(warned[0].message) == f"{sentence} The resumed run's log begins at iteration 8."


def test_a_run_without_the_file_is_told(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        read_history(tmp_path)
    assert str(caught.value) == f"'{tmp_path}' has no metrics.jsonl (runner.logger.log_metrics writes it)."
    assert earlier_history(tmp_path, 7).arrays() == {}


@pytest.mark.parametrize(("iteration", "expected"), [(0, []), (1, [1]), (2, [1, 2]), (9, [1, 2])])
def test_the_earlier_history_ends_at_the_iteration_that_is_resumed(run, iteration, expected):
    assert [row["iteration"] for row in earlier_history(run, iteration).rows()] == expected


def test_a_long_history_stays_small():
    names = [f"Diagnostics/{i}" for i in range(23)]
    tracemalloc.start()
    history = History()
    for i in range(10**5):
        history.add({"iteration": i, "env_steps": 8192 * i, **dict.fromkeys(names, i + 0.5)})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(history.arrays()["iteration"]) == 10**5 and peak < 30e6
