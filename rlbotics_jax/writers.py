"""What every iteration is written to: metrics.jsonl, a TensorBoard file and, where asked for, Weights & Biases."""

from __future__ import annotations

import contextlib
import math
import socket
import struct
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from rlbotics_jax.config import Config
from rlbotics_jax.extras import missing_package
from rlbotics_jax.history import METRICS_FILE, History, json_line

WANDB_INIT_SECONDS = 30
"""The most that a run waits for Weights & Biases at its start."""

WANDB_FINISH_SECONDS = 20
"""The same at its end: a job in a queue is killed soon after. What was not sent by then can be with `wandb sync`."""


class Writer(Protocol):
    """Anything that takes the metrics of every iteration. Any exception of its drops it from the run."""

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Takes an iteration; `metrics` may hold NaN."""

    def flush(self) -> None:
        """Brings to others' eyes what was taken: called after every block of iterations."""

    def close(self) -> None:
        """Ends the writing."""


class Writers:
    """The writers of a run. One that fails is named in a warning and dropped: it costs its log, never the training."""

    def __init__(self, makers: Mapping[str, Callable[[], Writer]]):
        """Opens each writer; the keys say what it does, as a warning begins: "Writing 'x'"."""
        self._writers: dict[str, Writer] = {}
        for task, make in makers.items():
            self._guarded(task, lambda task=task, make=make: self._writers.update({task: make()}))

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self._each(lambda writer: writer.write(iteration, metrics))

    def flush(self) -> None:
        self._each(lambda writer: writer.flush())

    def close(self) -> None:
        self._each(lambda writer: writer.close())
        self._writers = {}

    def _each(self, call: Callable[[Writer], None]) -> None:
        for task, writer in list(self._writers.items()):
            self._guarded(task, lambda writer=writer: call(writer))

    def _guarded(self, task: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            warnings.warn(f"{task} failed ({reason}); training goes on without it.", stacklevel=4)
            if task in self._writers:
                with contextlib.suppress(Exception):
                    self._writers.pop(task).close()


def open_writers(run: Path | None, config: Config, earlier: History) -> Writers:
    """Opens what the config asks for in a run directory; nothing where there is none.

    Args:
        run: the run directory, or None.
        config: of the run.
        earlier: the iterations before a resumed run's, with which its metrics.jsonl begins. The others' x-axes go on.
    """
    logger, makers = config.runner.logger, {}
    if run is not None and logger.log_metrics:
        path = run / METRICS_FILE
        makers[f"Writing '{path}'"] = lambda: MetricsFile(path, earlier)
        makers[f"Writing the TensorBoard file in '{run}'"] = lambda: TensorBoardWriter(run)
    if run is not None and logger.wandb_project is not None:
        makers["Logging to Weights & Biases"] = lambda: WandbWriter(run, config)
    return Writers(makers)


class MetricsFile:
    """metrics.jsonl, one line an iteration."""

    def __init__(self, path: Path, earlier: History):
        self._file = path.open("w", encoding="utf-8")
        for row in earlier.rows():
            self._file.write(json_line(row))

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self._file.write(json_line(metrics))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoardWriter:
    """A TensorBoard event file: one event an iteration, which is its step, with a scalar (float32) a metric.

    tensorboardX's SummaryWriter hands its events to a thread through a bounded queue: on a full disk that thread dies
    and training would wait for it forever. Its EventsWriter calls fsync at every flush. So only its messages and its
    checksum are used.
    """

    def __init__(self, run: Path):
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.record_writer import masked_crc32c

        self._event, self._summary, self._checksum = Event, Summary, masked_crc32c
        path = run / f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}"
        self._file = path.open("wb")
        self._record(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in _scalars(metrics).items()]
        self._record(self._event(wall_time=time.time(), step=iteration, summary=self._summary(value=values)))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _record(self, event: Any) -> None:
        """Writes length, checksum, event, checksum."""
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        for part in (length, data):
            self._file.write(part + struct.pack("<I", self._checksum(part)))


class WandbWriter:
    """A run on Weights & Biases, named as the run directory, in the experiment's group; its files lie in RUN/wandb.

    Raises:
        ImportError: the package is missing.
        RuntimeError: nobody is logged in. Nobody is asked to: the run may be a job in a queue.
    """

    def __init__(self, run: Path, config: Config):
        try:
            import wandb
        except ImportError as error:
            raise missing_package("it", error, "wandb") from error
        is_online = wandb.setup().settings.mode not in ("offline", "disabled")
        # Whoever has a run of their own going is logged in.
        if is_online and wandb.run is None and not wandb.login(prompt=False, verify=False):
            raise RuntimeError("nobody is logged in; run `wandb login`, or set WANDB_API_KEY or WANDB_MODE=offline")
        self._run = wandb.init(
            project=config.runner.logger.wandb_project,
            group=config.runner.logger.experiment,
            name=run.name,
            config=config.to_dict(),
            dir=run,
            reinit="create_new",  # a run of the user's own is not ours to finish
            settings=wandb.Settings(
                console="off",  # the live table is no log
                quiet=True,
                init_timeout=WANDB_INIT_SECONDS,
                finish_timeout=WANDB_FINISH_SECONDS,
            ),
        )

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self._run.log(_scalars(metrics), step=iteration)

    def flush(self) -> None:
        """Does nothing: a process of wandb's own sends."""

    def close(self) -> None:
        self._run.finish()


def _scalars(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the finite metrics that have a section in their name, and the environment steps in theirs."""
    scalars = {name: value for name, value in metrics.items() if "/" in name and math.isfinite(value)}
    return scalars | {"Performance/env_steps": metrics["env_steps"]}
