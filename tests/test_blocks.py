"""The dispatch of blocks: boundaries, lengths, order and stopping, on a program that only counts."""

from __future__ import annotations

import contextlib
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlbotics_jax import blocks
from rlbotics_jax.blocks import MAX_BLOCK, TRACED_ITERATIONS, run_blocks
from rlbotics_jax.counters import add, zero_count


@jax.jit
def counting_block(state, count):
    """One number that grows by one an iteration; the metric is the number before."""
    metrics = {"value": state + jnp.arange(MAX_BLOCK, dtype=jnp.float32)}
    metrics["env_steps"] = jax.vmap(lambda _: add(zero_count(), jnp.uint32(5)))(jnp.arange(MAX_BLOCK))
    return state + count, metrics


def run(first, last, interval, pause=0, should_stop=lambda: False):
    started = time.perf_counter()
    return list(run_blocks(counting_block, jnp.float32(first), first, last, interval, pause, started, should_stop))


@pytest.mark.parametrize(("first", "last", "interval"), [(0, 7, 3), (4, 11, 5), (0, 1, 100), (0, 200, 64), (9, 10, 2)])
def test_every_iteration_once_in_order_and_states_at_boundaries(first, last, interval):
    finished = run(first, last, interval)
    rows = [row for block in finished for row in block.iterations]
    assert [iteration for iteration, _ in rows] == list(range(first + 1, last + 1))
    assert [metrics["value"] for _, metrics in rows] == list(range(first, last))
    assert all(metrics["env_steps"] == 5 for _, metrics in rows)
    states = [(block.iterations[-1][0], float(block.state)) for block in finished if block.state is not None]
    boundaries = sorted({*range((first // interval + 1) * interval, last, interval), last})
    assert states == [(boundary, boundary) for boundary in boundaries]


def test_boundaries_of_several_kinds_coincide():
    states = [block.iterations[-1][0] for block in run(0, 20, 6, pause=4) if block.state is not None]
    assert states == [4, 6, 8, 12, 16, 18, 20]


def test_a_state_is_handed_out_while_the_next_block_runs():
    """The copy costs no stop: the block after a boundary is dispatched before the boundary's state is yielded."""
    dispatched, donating = [], jax.jit(counting_block, donate_argnums=0)

    def block(state, count):
        dispatched.append(int(count))
        return donating(state, count)

    for finished in run_blocks(block, jnp.float32(0), 0, 6, 1, 0, time.perf_counter(), lambda: False):
        iteration = finished.iterations[-1][0]
        assert len(dispatched) == min(6, iteration + 1)
        assert float(finished.state) == iteration  # though its successor has consumed the original


def test_a_pause_is_charged_to_no_block():
    dispatched, ends = [], []

    def block(state, count):
        dispatched.append(int(count))
        return counting_block(state, count)

    for finished in run_blocks(block, jnp.float32(0), 0, 12, 0, 4, time.perf_counter(), lambda: False):
        ends.append(finished)
        if finished.iterations[-1][0] in (4, 8):
            assert sum(dispatched) == finished.iterations[-1][0]  # nothing runs meanwhile
            assert float(finished.state) == sum(dispatched)
            time.sleep(0.3)
    assert max(one.seconds for one in ends[1:]) < 0.2
    assert ends[-1].finished - ends[0].finished > 0.6  # but the clock knows of it


def test_a_stop_takes_effect_at_the_end_of_what_was_dispatched():
    finished = []
    for block in run_blocks(counting_block, jnp.float32(0), 0, 10**6, 10**6, 0, 0.0, lambda: bool(finished)):
        finished.append(block)
    last = finished[-1]
    assert float(last.state) == last.iterations[-1][0] == sum(len(block.iterations) for block in finished) < 1000


def test_stopped_before_the_first_dispatch_runs_nothing():
    assert run(0, 5, 1, should_stop=lambda: True) == []


def test_blocks_grow_to_the_time_they_should_last(monkeypatch):
    clock = iter(np.arange(0, 10**6, 0.1))
    monkeypatch.setattr(blocks.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(blocks, "BLOCK_SECONDS", 0.5)
    lengths = [len(block.iterations) for block in run(0, 40, 1000)]
    # one iteration takes 0.1 s by this clock, then a block of any length does
    assert lengths[:2] == [1, 1] and 5 in lengths and sum(lengths) == 40


def test_one_warm_dispatch_of_few_iterations_is_traced_alone(monkeypatch):
    traced, calls = [], []

    @contextlib.contextmanager
    def trace():
        before = len(calls)
        yield
        time.sleep(0.2)  # writing it takes a while
        traced.append(calls[before:])

    def block(state, count):
        calls.append(int(count))
        return counting_block(state, count)

    finished = list(run_blocks(block, jnp.float32(0), 0, 30, 1000, 0, time.perf_counter(), lambda: False, trace))
    # The first dispatch compiles; it takes two more to know how long a warm one lasts.
    assert calls[:3] == [1, 1, 1] and traced == [[calls[3]]] == [[TRACED_ITERATIONS]]
    assert [metrics["value"] for one in finished for _, metrics in one.iterations] == list(range(30))
    slow = [one for one in finished if one.seconds > 0.2 and one.iterations[0][0] > 1]
    assert [len(one.iterations) for one in slow] == [TRACED_ITERATIONS]  # no other block is charged for it
