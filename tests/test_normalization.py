"""Running statistics of observations: literals of the parallel merge, exact counts, masks, bounds, shapes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlbotics_jax.counters import Count, to_int
from rlbotics_jax.normalization import EPSILON, NormalizerState, init_normalizer, merge, normalize


def column(*values):
    """Observations of one feature."""
    return jnp.asarray(values, jnp.float32)[:, None]


def merged(state, observations, valid=None):
    """The statistics after one accepted merge."""
    observations = jnp.asarray(observations, jnp.float32)
    valid = jnp.ones(observations.shape[:-1], bool) if valid is None else jnp.asarray(valid)
    state, accepted = merge(state, observations, valid)
    assert bool(accepted)
    return state


def assert_equal(state, other):
    jax.tree.map(np.testing.assert_array_equal, state, other)


def assert_statistics(state, rows, rtol=1e-5, atol=1e-6):
    rows = np.asarray(rows, np.float64)
    np.testing.assert_allclose(state.mean, rows.mean(0), rtol=rtol, atol=atol)
    np.testing.assert_allclose(state.variance, rows.var(0), rtol=rtol, atol=atol)
    assert to_int(state.count) == len(rows)


def test_parallel_merge_literal():
    """{0, 2} and {10, 14, 12}: averaging the variances would lose the term between the two."""
    state = merged(merged(init_normalizer(1), column(0, 2)), column(10, 14, 12))
    np.testing.assert_allclose(state.mean, [7.6], rtol=1e-6)
    np.testing.assert_allclose(state.variance, [31.04], rtol=1e-6)
    assert to_int(state.count) == 5


def test_parallel_merge_literal_over_two_devices():
    """The same rows, {0, 2} on one device and {10, 14, 12} on another (with a row of padding)."""
    rows = jnp.stack([column(0, 2, 99), column(10, 14, 12)])
    valid = jnp.array([[True, True, False], [True, True, True]])
    state, accepted = jax.vmap(lambda r, v: merge(init_normalizer(1), r, v, "devices"), axis_name="devices")(
        rows, valid
    )
    np.testing.assert_allclose(state.mean, [[7.6], [7.6]], rtol=1e-6)
    np.testing.assert_allclose(state.variance, [[31.04], [31.04]], rtol=1e-6)
    np.testing.assert_array_equal(state.count.low, [5, 5])
    assert bool(accepted.all())


def test_devices_agree_with_one_batch():
    generator = np.random.default_rng(0)
    start = merged(init_normalizer(3), generator.normal(5.0, 2.0, (10, 3)))
    rows = jnp.asarray(generator.normal(-3.0, 7.0, (4, 8, 3)), jnp.float32)
    valid = jnp.asarray(generator.random((4, 8)) < 0.7)
    state, _ = jax.vmap(lambda r, v: merge(start, r, v, "devices"), axis_name="devices")(rows, valid)
    expected = merged(start, rows, valid)
    for device in range(4):
        mine = jax.tree.map(lambda leaf, i=device: leaf[i], state)
        np.testing.assert_allclose(mine.mean, expected.mean, rtol=1e-6)
        np.testing.assert_allclose(mine.variance, expected.variance, rtol=1e-6)
        assert to_int(mine.count) == to_int(expected.count)


def test_first_merge_is_exactly_the_batch():
    rows = jnp.asarray(np.random.default_rng(1).normal(3.0, 2.0, (32, 4)), jnp.float32)
    state = merged(init_normalizer(4), rows)
    mean = jnp.sum(rows, axis=0) / 32
    np.testing.assert_array_equal(state.mean, mean)
    np.testing.assert_array_equal(state.variance, jnp.sum(jnp.square(rows - mean[None]), axis=0) / 32)
    assert_statistics(state, rows)


def test_one_environment_and_a_constant_feature_have_variance_zero_and_stay_finite():
    state = merged(init_normalizer(2), [[3.0, -1.0]])
    np.testing.assert_array_equal(state.variance, [0.0, 0.0])
    np.testing.assert_allclose(normalize(state, jnp.array([3.0, -0.5])), [0.0, 50.0], rtol=1e-6)
    np.testing.assert_array_equal(normalize(state, jnp.array([3.0, -0.5]), clip=10.0), [0.0, 10.0])


def test_count_zero_is_exactly_the_identity():
    rows = jnp.asarray(np.random.default_rng(2).normal(size=(16, 5)), jnp.float32)
    np.testing.assert_array_equal(normalize(init_normalizer(5), rows), rows)


def test_formula():
    state = merged(init_normalizer(1), column(0, 4))
    np.testing.assert_allclose(normalize(state, column(6)), [[4.0 / (2.0 + EPSILON)]], rtol=1e-6)
    assert EPSILON == 0.01


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 4, 3)])
def test_any_leading_axes(shape):
    state = merged(init_normalizer(3), np.random.default_rng(3).normal(size=(9, 3)))
    rows = jnp.asarray(np.random.default_rng(4).normal(size=shape), jnp.float32)
    expected = (np.asarray(rows) - np.asarray(state.mean)) / (np.sqrt(np.asarray(state.variance)) + 0.01)
    np.testing.assert_allclose(normalize(state, rows), expected, rtol=1e-5, atol=1e-6)


def test_clip_bounds_both_sides():
    state = merged(init_normalizer(1), column(-1, 1))
    np.testing.assert_array_equal(normalize(state, column(-100, 100), clip=5.0), [[-5.0], [5.0]])
    np.testing.assert_array_equal(normalize(init_normalizer(1), column(-100, 1), clip=5.0), [[-5.0], [1.0]])


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_non_finite_row_is_left_out(allow_nans, poison):
    rows = np.random.default_rng(5).normal(2.0, 3.0, (64, 4)).astype(np.float32)
    rows[17, 2] = poison
    state = merged(init_normalizer(4), rows)
    assert_statistics(state, np.delete(rows, 17, axis=0), rtol=1e-6, atol=1e-6)


def test_invalid_rows_are_left_out():
    rows = np.random.default_rng(6).normal(2.0, 3.0, (8, 16, 4)).astype(np.float32)
    valid = np.random.default_rng(7).random((8, 16)) < 0.5
    assert_statistics(merged(init_normalizer(4), rows, valid), rows[valid])


def test_merging_nothing_changes_nothing():
    state = merged(init_normalizer(2), np.random.default_rng(8).normal(size=(8, 2)))
    assert_equal(merged(state, np.full((8, 2), 1e6), np.zeros(8, bool)), state)
    assert_equal(merged(init_normalizer(2), np.ones((8, 2)), np.zeros(8, bool)), init_normalizer(2))


def test_a_merge_of_only_non_finite_rows_changes_nothing(allow_nans):
    state = merged(init_normalizer(2), np.random.default_rng(9).normal(size=(8, 2)))
    assert_equal(merged(state, np.full((8, 2), np.nan)), state)


def test_a_merge_that_would_not_be_finite_is_dropped_and_reported(allow_nans):
    """Finite rows whose squares overflow."""
    state = merged(init_normalizer(1), column(0, 2))
    after, accepted = merge(state, column(1e30, -1e30), jnp.ones(2, bool))
    assert not bool(accepted)
    assert_equal(after, state)


@pytest.mark.parametrize("start", [2**31 - 10, 2**32 - 10, 2**33 + 2**24 + 1])
def test_counts_exactly_where_float32_and_uint32_do_not(start):
    count = Count(jnp.uint32(start >> 32), jnp.uint32(start & 0xFFFFFFFF))
    state = NormalizerState(jnp.zeros(1), jnp.ones(1), count)
    for merges in range(1, 4):
        state = merged(state, column(*range(7)))
        assert to_int(state.count) == start + 7 * merges


def test_old_statistics_weigh_more_than_a_new_batch():
    count = Count(jnp.uint32(1), jnp.uint32(0))
    state = merged(NormalizerState(jnp.zeros(1), jnp.ones(1), count), jnp.full((2**12, 1), 1000.0))
    np.testing.assert_allclose(state.mean, [1000.0 * 2**12 / (2**32 + 2**12)], rtol=1e-5)


@given(seed=st.integers(0, 10_000), offset=st.floats(-50.0, 50.0))
@settings(max_examples=20, deadline=None)
def test_any_order_and_any_split_give_the_statistics_of_all_rows(seed, offset):
    generator = np.random.default_rng(seed)
    batches = [offset + generator.normal(i, 1.0 + i, (size, 3)).astype(np.float32) for i, size in enumerate((5, 16, 2))]
    for order in (range(3), generator.permutation(3)):
        state = init_normalizer(3)
        for i in order:
            state = merged(state, batches[i])
        assert_statistics(state, np.concatenate(batches), rtol=1e-4, atol=1e-4)


def test_a_large_offset_does_not_cancel():
    """E[x^2] - E[x]^2 in float32 would give 0 or a negative variance here."""
    rows = 1e4 + np.random.default_rng(10).normal(0.0, 0.1, (512, 1))
    state = merged(merged(init_normalizer(1), rows[:256]), rows[256:])
    np.testing.assert_allclose(state.variance, np.float32(rows).astype(np.float64).var(0), rtol=0.02)


@pytest.mark.parametrize("shape", [(8, 4), (8, 1), (8, 6), (1,), ()])
def test_wrong_shapes_raise(shape):
    state, rows = init_normalizer(5), jnp.zeros(shape)
    with pytest.raises(ValueError, match="statistics of 5 features"):
        normalize(state, rows)
    with pytest.raises(ValueError, match="statistics of 5 features"):
        merge(state, rows, jnp.ones(shape[:-1], bool))
