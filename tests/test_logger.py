"""The log: every iteration once, in the history, on the display and in the TensorBoard file."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest

from rlbotics_jax.blocks import Block
from rlbotics_jax.display import Display, LineDisplay
from rlbotics_jax.logger import RunLog


def block(first, count, seconds, **metrics):
    base = {"Episodes/count": 5.0, "Episodes/mean_reward": 2.5, "Episodes/mean_length": 10.0, "Loss/value": 0.25}
    rows = [(first + i, {**base, **metrics, "env_steps": 100 * (first + i)}) for i in range(count)]
    return Block(rows, seconds, None)


def test_history_speed_and_time():
    log = RunLog(None, log_metrics=True, display=Display())
    log.begin(0, 5, seconds=10.0)
    seen = list(log.block(block(1, 1, 4.0))) + list(log.block(block(2, 4, 2.0)))
    assert [iteration for iteration, _ in seen] == [1, 2, 3, 4, 5]
    history = log.arrays()
    np.testing.assert_allclose(history["wall_time"], [14.0, 14.5, 15.0, 15.5, 16.0])
    # the first block is mostly compilation, and its speed says nothing
    np.testing.assert_allclose(history["Performance/FPS"], [math.nan, 200.0, 200.0, 200.0, 200.0])
    assert log.seconds == 16.0
    assert history["env_steps"].tolist() == [100, 200, 300, 400, 500]


def test_a_metric_that_comes_later_and_one_without_episodes_are_nan():
    log = RunLog(None, log_metrics=False, display=Display())
    log.begin(0, 2, 0.0)
    first = block(1, 1, 1.0)
    first.iterations[0][1]["Episodes/count"] = 0.0
    list(log.block(first))
    list(log.block(block(2, 1, 1.0, **{"Loss/extra": 7.0})))
    history = log.arrays()
    np.testing.assert_array_equal(history["Loss/extra"], [math.nan, 7.0])
    np.testing.assert_array_equal(history["Episodes/mean_reward"], [math.nan, 2.5])


def test_lines_every_interval_and_at_the_end(capsys):
    log = RunLog(None, log_metrics=False, display=LineDisplay(2))
    log.begin(0, 5, 0.0)
    list(log.block(block(1, 5, 1.0)))
    lines = [line for line in capsys.readouterr().out.splitlines() if "/5 " in line]
    assert [line.split("/")[0].strip() for line in lines] == ["2", "4", "5"]
    assert "return 2.50" in lines[0] and "length 10" in lines[0] and "value 0.2500" in lines[0]


def test_tensorboard_file_holds_the_scalars_under_their_names(tmp_path):
    log = RunLog(tmp_path, log_metrics=True, display=Display())
    log.begin(0, 3, 0.0)
    list(log.block(block(1, 3, 1.0)))
    log.close()
    (path,) = tmp_path.glob("events.out.tfevents.*")
    scalars = read_scalars(path)
    assert scalars[("Loss/value", 2)] == pytest.approx(0.25)
    assert scalars[("Episodes/mean_reward", 3)] == pytest.approx(2.5)
    assert scalars[("Performance/env_steps", 3)] == pytest.approx(300)


def test_a_failing_writer_warns_once_and_the_run_goes_on(tmp_path):
    log = RunLog(tmp_path, log_metrics=True, display=Display())
    log.begin(0, 3, 0.0)
    log._writer.add_scalar = lambda *_: (_ for _ in ()).throw(OSError("No space left on device"))
    with pytest.warns(UserWarning, match="No space left") as caught:
        list(log.block(block(1, 3, 1.0)))
    assert len(caught) == 1 and len(log.arrays()["env_steps"]) == 3


def read_scalars(path) -> dict[tuple[str, int], float]:
    """Reads a TensorBoard file: length, checksum, event, checksum, again and again."""
    from tensorboardX.proto.event_pb2 import Event

    data, position, scalars = path.read_bytes(), 0, {}
    while position < len(data):
        (length,) = struct.unpack_from("<Q", data, position)
        event = Event.FromString(data[position + 12 : position + 12 + length])
        position += length + 16
        for value in event.summary.value:
            scalars[(value.tag, event.step)] = value.simple_value
    return scalars
