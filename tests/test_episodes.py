"""Episode statistics: how far the mean reaches back, the ring it reads from, and what may be called the best."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlbotics_jax.episodes import (
    MIN_EPISODES_FOR_BEST,
    REPORTED_EPISODES,
    WINDOW,
    EpisodeMeans,
    EpisodeSums,
    empty_window,
    names_best,
    recent_means,
    record,
)


def sums(count, mean_return, mean_length):
    return EpisodeSums(*map(jnp.float32, (count, count * mean_return, count * mean_length)))


def means_after(*iterations):
    """Returns the means after iterations 0, 1, ... of (count, mean return, mean length)."""
    window = empty_window()
    for iteration, entry in enumerate(iterations):
        window = record(window, jnp.int32(iteration), sums(*entry))
    means = recent_means(window, jnp.int32(len(iterations) - 1))
    return tuple(float(value) for value in (means.count, means.mean_return, means.mean_length))


def test_without_episodes_everything_is_zero():
    assert means_after((0, 0.0, 0.0)) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("iterations", "expected"),
    [
        # fewer than 100 episodes: all of them, each weighted alike
        ([(10, 1.0, 5.0), (30, 5.0, 9.0)], (40.0, 4.0, 8.0)),
        # the latest iteration alone holds enough
        ([(50, -9.0, 1.0), (100, 2.0, 3.0)], (100.0, 2.0, 3.0)),
        ([(50, -9.0, 1.0), (400, 2.0, 3.0)], (400.0, 2.0, 3.0)),
        # 99 are not enough: one iteration more, whole
        ([(7, -50.0, 1.0), (201, 0.0, 1.0), (99, 3.0, 4.0)], (300.0, 0.99, 1.99)),
        # iterations in which no episode ended are passed over
        ([(60, 4.0, 2.0), (0, 0.0, 0.0), (60, 2.0, 4.0), (0, 0.0, 0.0)], (120.0, 3.0, 3.0)),
    ],
)
def test_the_mean_reaches_back_to_the_fewest_iterations_that_hold_100_episodes(iterations, expected):
    assert REPORTED_EPISODES == 100
    assert means_after(*iterations) == pytest.approx(expected, rel=1e-6)


def test_the_ring_wraps_around():
    window = empty_window()
    for slot, iteration in ((WINDOW - 1, WINDOW - 1), (0, WINDOW), (1, WINDOW + 1), (1, 7 * WINDOW + 1)):
        written = record(window, jnp.int32(iteration), sums(3, 2.0, 4.0))
        np.testing.assert_array_equal(np.flatnonzero(written.count), [slot])
        assert (written.sum_return[slot], written.sum_length[slot]) == (6.0, 12.0)


def test_the_mean_reaches_back_over_the_ring_s_end_and_no_further_than_one_round():
    window = empty_window()
    for iteration in range(WINDOW - 2, WINDOW + 2):
        window = record(window, jnp.int32(iteration), sums(30, float(iteration), 1.0))
    means = recent_means(window, jnp.int32(WINDOW + 1))
    assert float(means.count) == 120.0
    assert float(means.mean_return) == pytest.approx(WINDOW - 0.5)

    # An old iteration is overwritten by the one WINDOW later: its episodes are gone.
    window = record(empty_window(), jnp.int32(5), sums(50, 1.0, 1.0))
    assert float(recent_means(window, jnp.int32(WINDOW + 4)).count) == 50.0
    window = record(window, jnp.int32(WINDOW + 5), sums(0, 0.0, 0.0))
    assert float(recent_means(window, jnp.int32(WINDOW + 5)).count) == 0.0


@settings(deadline=None)
@given(counts=st.lists(st.integers(0, 120), min_size=1, max_size=12), start=st.integers(0, 3 * WINDOW))
def test_the_mean_against_a_slow_reference(counts, start):
    window = empty_window()
    for offset, count in enumerate(counts):
        window = _record(window, jnp.int32(start + offset), sums(count, float(offset), 2.0 * offset))
    means = _recent_means(window, jnp.int32(start + len(counts) - 1))

    used, total = 0, 0.0
    for offset in reversed(range(len(counts))):
        if used >= 100:
            break
        used, total = used + counts[offset], total + counts[offset] * offset
    assert float(means.count) == used
    assert float(means.mean_return) == pytest.approx(total / max(used, 1), rel=1e-5)
    assert float(means.mean_length) == pytest.approx(2.0 * total / max(used, 1), rel=1e-5)


_record, _recent_means = jax.jit(record), jax.jit(recent_means)


@pytest.mark.parametrize(
    ("ended", "count", "mean", "best", "expected"),
    [
        (1, MIN_EPISODES_FOR_BEST, 5.0, 4.0, True),
        (1, MIN_EPISODES_FOR_BEST, -5.0, -np.inf, True),
        # not better
        (1, MIN_EPISODES_FOR_BEST, 5.0, 5.0, False),
        (1, MIN_EPISODES_FOR_BEST, 3.0, 4.0, False),
        # too few episodes
        (19, MIN_EPISODES_FOR_BEST - 1, 500.0, -np.inf, False),
        # no episode ended in this iteration: the mean belongs to earlier parameters
        (0, 100, 500.0, -np.inf, False),
        # not a number
        (1, 100, np.nan, -np.inf, False),
    ],
)
def test_what_names_a_best_policy(allow_nans, ended, count, mean, best, expected):
    means = EpisodeMeans(jnp.float32(count), jnp.float32(mean), jnp.float32(1.0))
    assert bool(names_best(means, sums(ended, 0.0, 1.0), jnp.float32(best))) is expected
