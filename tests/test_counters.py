"""Counts of two uint32 words, against Python's integers."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlbotics_jax.counters import Count, add, as_float, to_int, zero_count


def count_of(value):
    return Count(high=jnp.uint32(value >> 32), low=jnp.uint32(value & 0xFFFFFFFF))


def test_zero():
    assert to_int(zero_count()) == 0
    assert float(as_float(zero_count())) == 0.0


@pytest.mark.parametrize("start", [0, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 2**31, 2**40 - 1])
@pytest.mark.parametrize("increment", [0, 1, 98304, 2**32 - 1])
def test_literal_sums(start, increment):
    assert to_int(add(count_of(start), jnp.uint32(increment))) == start + increment


@given(start=st.integers(0, 2**63), increments=st.lists(st.integers(0, 2**32 - 1), max_size=6))
@settings(max_examples=50, deadline=None)
def test_counts_exactly(start, increments):
    count = count_of(start)
    for increment in increments:
        count = add(count, jnp.asarray(np.uint32(increment)))
    assert to_int(count) == start + sum(increments)


def test_float32_would_lose_the_increment_that_the_count_keeps():
    assert np.float32(2**24) + np.float32(1) == np.float32(2**24)
    assert to_int(add(count_of(2**24), jnp.uint32(1))) == 2**24 + 1


@given(value=st.integers(0, 2**63))
@settings(max_examples=50, deadline=None)
def test_as_float_is_the_rounded_value(value):
    np.testing.assert_allclose(float(as_float(count_of(value))), float(value), rtol=2e-7)
