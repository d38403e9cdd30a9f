"""The dispatch of blocks of iterations: the device works on the next block while the host reads the last one."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlbotics_jax.counters import Count, to_int
from rlbotics_jax.types import Metrics, TrainState

MAX_BLOCK = 64
"""Iterations that one dispatch can run."""

BLOCK_SECONDS = 2.0
"""What one dispatch should last: long enough to cost nothing, short enough for prompt logs and interrupts."""

TRACED_ITERATIONS = 3
"""Iterations that a profile holds: enough to see what repeats, few enough for a viewer."""


@dataclasses.dataclass(frozen=True)
class Block:
    """Finished iterations.

    Attributes:
        iterations: (iteration, metrics) of each; iterations count from 1.
        seconds: wall time that it took: since the previous block had finished, a pause between them left out.
        finished: when it had, by `time.perf_counter`.
        state: the train state after the last one at a boundary, which no later block consumes; else None.
    """

    iterations: list[tuple[int, dict[str, float]]]
    seconds: float
    finished: float
    state: TrainState | None


def run_blocks(
    block: Callable[[TrainState, Any], tuple[TrainState, Metrics]],
    state: TrainState,
    first: int,
    last: int,
    save_interval: int,
    pause_interval: int,
    started: float,
    should_stop: Callable[[], bool],
    trace: Callable[[], contextlib.AbstractContextManager] | None = None,
) -> Iterator[Block]:
    """Runs the iterations first + 1 .. last and yields them in blocks, one block late.

    Boundaries are the multiples of the intervals, the last iteration, and where `should_stop` ends the run. A state is
    handed out there alone: a copy, made on the device in line with the iterations, so that what the host does with it
    delays none (the last is the state itself). At a pause nothing else runs meanwhile, and no block is charged for that
    time.

    Args:
        block: block(state, count) -> (state, metrics), see `step.make_block`; donates its state.
        state: the state after `first` iterations.
        first, last: completed iterations before and after.
        save_interval: iterations between two boundaries that are no pauses; 0 for none.
        pause_interval: iterations between two pauses; 0 for none.
        started: when the first block's time began, by `time.perf_counter`: before the program was compiled.
        should_stop: asked before every dispatch.
        trace: the context of one dispatch of at most `TRACED_ITERATIONS`, the first after compiling and warming up,
            with nothing else running.
    """
    done, finished, seconds_per_iteration = first, started, None
    pending: tuple[int, int, Metrics, TrainState | None] | None = None
    intervals = [interval for interval in (save_interval, pause_interval) if interval]

    def fetch() -> Block:
        nonlocal finished, seconds_per_iteration
        start, count, buffers, copy = pending
        metrics = jax.device_get(buffers)
        now = time.perf_counter()
        seconds, finished = now - finished, now
        # The first block includes the compilation, which says nothing about the next.
        seconds_per_iteration = seconds / count if start > first else None
        rows = [(start + i + 1, _row(metrics, i)) for i in range(count)]
        return Block(rows, seconds, finished, copy)

    while done < last and not should_stop():
        boundary = min([last, *((done // interval + 1) * interval for interval in intervals)])
        # One iteration until it is known how long one takes.
        wanted = 1 if seconds_per_iteration is None else int(BLOCK_SECONDS / seconds_per_iteration)
        count = max(1, min(wanted, MAX_BLOCK, boundary - done))
        if trace is not None and seconds_per_iteration is not None:
            count = min(count, TRACED_ITERATIONS)
            if pending is not None:  # so that neither block's time is counted as the other's
                yield fetch()
                pending = None
            with trace():
                state, buffers = jax.block_until_ready(block(state, np.int32(count)))
            trace = None
        else:
            state, buffers = block(state, np.int32(count))
        if pending is not None:
            yield fetch()
        done += count
        # The last state is donated to nobody, so it needs no copy.
        pending = (done - count, count, buffers, _copy(state) if done == boundary < last else None)
        if pause_interval and done % pause_interval == 0 and done < last:
            yield fetch()
            pending, finished = None, time.perf_counter()
    if pending is not None:
        pending = (*pending[:3], state)
        yield fetch()


@jax.jit
def _copy(state: TrainState) -> TrainState:
    return jax.tree.map(jnp.copy, state)


def _row(metrics: Metrics, i: int) -> dict[str, float]:
    """Returns the i-th iteration's metrics as Python numbers."""
    columns = jax.tree.map(lambda column: column[i], metrics)
    return {name: to_int(value) if isinstance(value, Count) else float(value) for name, value in columns.items()}
