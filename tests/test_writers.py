"""The writers: what they write reads back, and one that fails costs its own log alone."""

from __future__ import annotations

import json
import math
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import small_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlbotics_jax.history import History, read_history
from rlbotics_jax.writers import TensorBoardWriter, Writers, open_writers

ROOT = Path(__file__).parents[1]
METRICS = {"iteration": 3, "env_steps": 300, "wall_time": 1.5, "Loss/value": 0.1, "Environment/height": math.nan}


def test_every_file_holds_every_finite_metric(tmp_path):
    writers = open_writers(tmp_path, small_config(), History())
    writers.write(3, METRICS)
    writers.write(4, METRICS | {"iteration": 4, "env_steps": 2**24 + 1, "Environment/height": 2.0})
    writers.flush()  # what others see of a run that goes on
    assert (tmp_path / "metrics.jsonl").read_text() == (
        '{"iteration": 3, "env_steps": 300, "wall_time": 1.5, "Loss/value": 0.1}\n'
        '{"iteration": 4, "env_steps": 16777217, "wall_time": 1.5, "Loss/value": 0.1, "Environment/height": 2.0}\n'
    )
    assert read_scalars(tmp_path) == {
        ("Loss/value", 3): pytest.approx(0.1),
        ("Performance/env_steps", 3): 300,
        ("Loss/value", 4): pytest.approx(0.1),
        ("Environment/height", 4): 2.0,
        ("Performance/env_steps", 4): 2**24,  # float32
    }
    writers.close()


def test_tensorboard_reads_its_file(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    for iteration in (1, 2):
        writer.write(iteration, METRICS)
    writer.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert events.Tags()["scalars"] == ["Loss/value", "Performance/env_steps"]
    assert [(event.step, event.value) for event in events.Scalars("Performance/env_steps")] == [(1, 300), (2, 300)]


def test_a_resumed_runs_metrics_begin_with_the_earlier_ones(tmp_path):
    earlier = History()
    earlier.add({"iteration": 1, "env_steps": 100, "Loss/value": math.nan})
    earlier.add({"iteration": 2, "env_steps": 200, "Loss/value": 0.5})
    writers = open_writers(tmp_path, small_config(), earlier)
    writers.write(3, METRICS)
    writers.close()
    assert (tmp_path / "metrics.jsonl").read_text().splitlines()[0] == '{"iteration": 1, "env_steps": 100}'
    assert read_history(tmp_path)["iteration"].tolist() == [1, 2, 3]
    assert {step for _, step in read_scalars(tmp_path)} == {3}


def test_nothing_is_written_without_a_run_or_where_it_is_not_wanted(tmp_path):
    for run, wanted in ((None, True), (tmp_path, False)):
        writers = open_writers(run, small_config(runner__logger={"log_metrics": wanted}), History())
        writers.write(3, METRICS)
        writers.close()
    assert list(tmp_path.iterdir()) == []


class Recorder:
    """A writer that fails in one of its methods."""

    def __init__(self, failing=None):
        self.failing, self.calls = failing, []

    def _called(self, name):
        self.calls.append(name)
        if name == self.failing:
            raise RuntimeError("the wire\nis cut")

    def write(self, iteration, metrics):
        self._called("write")

    def flush(self):
        self._called("flush")

    def close(self):
        self._called("close")


@pytest.mark.parametrize(
    ("failing", "calls"),
    [
        ("write", ["write", "close"]),
        ("flush", ["write", "flush", "close"]),
        ("close", ["write", "flush", "write", "flush", "close", "close"]),
    ],
)
def test_a_failing_writer_is_named_once_and_dropped(failing, calls):
    broken, whole = Recorder(failing), Recorder()
    with pytest.warns(UserWarning) as caught:
        writers = Writers({"Sending": lambda: broken, "Opening": lambda: {}["door"], "Writing": lambda: whole})
        for _ in range(2):
            writers.write(3, METRICS)
            writers.flush()
        writers.close()
    assert [str(warning.message) for warning in caught] == [
        "Opening failed ('door'); training goes on without it.",
        "Sending failed (the wire is cut); training goes on without it.",
    ]
    assert broken.calls == calls
    assert whole.calls == ["write", "flush", "write", "flush", "close"]


FULL_DISK = """
import resource, sys
from pathlib import Path
from rlbotics_jax.blocks import Block
from rlbotics_jax.display import Display
from rlbotics_jax.logger import RunLog
sys.path.insert(0, "tests")
from helpers import small_config

log = RunLog(Path(sys.argv[1]), small_config(), Display())
log.begin(0, 60, 0.0, 0.0)
metrics = {f"Loss/{i}": 0.5 for i in range(20)} | {"Episodes/count": 1.0}

def block(i):
    log.block(Block(iterations=[(i, metrics | {"env_steps": 100 * i})], seconds=1.0, finished=float(i), state=None))

for i in range(1, 31):
    block(i)
resource.setrlimit(resource.RLIMIT_FSIZE, (12000, 12000))
for i in range(31, 61):
    block(i)
log.close()
print(len(log.arrays()["iteration"]))
"""


def test_a_full_disk_costs_the_files_and_not_the_run(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", FULL_DISK, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
    )
    assert (done.returncode, done.stdout) == (0, "60\n"), done.stderr
    warned = [line for line in done.stderr.splitlines() if "UserWarning" in line]
    assert len(warned) == 2 and all("File too large); training goes on without it." in line for line in warned)
    assert "metrics.jsonl' failed" in done.stderr and "Writing the TensorBoard file in" in done.stderr
    assert "Exception ignored" not in done.stderr
    # what was whole before is read
    read = read_history(tmp_path)["iteration"].tolist()
    assert read == list(range(1, len(read) + 1)) and 10 < len(read) < 60
    assert len(EventAccumulator(str(tmp_path)).Reload().Scalars("Loss/1")) > 10


WANDB = """
import sys
from pathlib import Path
sys.path.insert(0, "tests")
from helpers import small_config
from rlbotics_jax import writers
from rlbotics_jax.history import History

if "missing" in sys.argv:
    sys.modules["wandb"] = None
writers.WANDB_INIT_SECONDS = 1
config = small_config(runner__logger={"log_metrics": False, "wandb_project": "robots", "experiment": "walk"})
writers = writers.open_writers(Path(sys.argv[1]), config, History())
for i in range(5, 8):
    writers.write(i, {"env_steps": 100 * i, "Loss/value": i / 4, "Loss/nothing": float("nan")})
writers.flush()
writers.close()
"""


def run_wandb(run, *arguments, **environment):
    """Runs the script in a terminal's absence, without anybody's login; returns what it warned of."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    home = {"HOME": str(run), "NETRC": str(run / "netrc"), "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    run.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", WANDB, str(run), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env=kept | home | environment,
    )
    assert done.returncode == 0, done.stderr
    return [line.partition("UserWarning: ")[2] for line in done.stderr.splitlines() if "UserWarning" in line]


def test_wandb_offline_holds_the_scalars(tmp_path):
    assert run_wandb(tmp_path / "2026-01-01_10-00-00", WANDB_MODE="offline") == []
    (path,) = tmp_path.glob("2026-01-01_10-00-00/wandb/offline-run-*/*.wandb")
    history, described = [], None
    for record in read_wandb(path):
        if record.HasField("run"):
            described = record.run
        if record.HasField("history"):
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            history.append((record.history.step.num, float(items["Loss/value"]), float(items["Performance/env_steps"])))
            assert "Loss/nothing" not in items
    assert history == [(5, 1.25, 500.0), (6, 1.5, 600.0), (7, 1.75, 700.0)]
    assert (described.project, described.run_group) == ("robots", "walk")
    assert described.display_name == "2026-01-01_10-00-00"
    recorded = {item.key: json.loads(item.value_json) for item in described.config.update}
    assert recorded["runner"]["logger"]["wandb_project"] == "robots"


@pytest.mark.parametrize(
    ("arguments", "environment", "reason"),
    [
        (["missing"], {}, r"it needs the package 'wandb'; install it with: pip install 'rlbotics-jax\[wandb\]'"),
        ([], {}, "nobody is logged in; run `wandb login`, or set WANDB_API_KEY or WANDB_MODE=offline"),
        ([], {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9"}, ".*connection refused.*"),
    ],
)
def test_wandb_that_cannot_start_is_told_once(tmp_path, arguments, environment, reason):
    (warned,) = run_wandb(tmp_path / "run", *arguments, **environment)
    assert re.fullmatch(rf"Logging to Weights & Biases failed \({reason}\); training goes on without it\.", warned)


def read_scalars(run) -> dict[tuple[str, int], float]:
    """Reads a run's TensorBoard file: length, checksum, event, checksum, again and again."""
    from tensorboardX.proto.event_pb2 import Event

    (path,) = run.glob("events.out.tfevents.*")
    data, position, scalars = path.read_bytes(), 0, {}
    while position < len(data):
        (length,) = struct.unpack_from("<Q", data, position)
        event = Event.FromString(data[position + 12 : position + 12 + length])
        position += length + 16
        for value in event.summary.value:
            scalars[(value.tag, event.step)] = value.simple_value
    return scalars


def read_wandb(path):
    """Yields the records of an offline run: LevelDB's log format, in blocks of 32 KiB, behind 7 bytes of its own."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, parts = path.read_bytes(), 7, b""
    while position < len(data):
        if 32768 - position % 32768 < 7:  # no room for a header: the block is padded
            position += 32768 - position % 32768
            continue
        _checksum, length, kind = struct.unpack_from("<IHB", data, position)
        parts += data[position + 7 : position + 7 + length]
        position += length + 7
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""
