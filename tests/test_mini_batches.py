"""Every sample is in exactly one mini-batch, also where the division leaves a remainder."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rlbotics_jax.algorithms.mini_batches import mini_batch_indices


def dealt(permutation, num_mini_batches):
    """The samples of each mini-batch, without the padding."""
    indices, is_sample = mini_batch_indices(jnp.asarray(permutation), num_mini_batches)
    assert indices.shape == is_sample.shape == (num_mini_batches, -(-len(permutation) // num_mini_batches))
    return [np.asarray(row)[np.asarray(use)] for row, use in zip(indices, is_sample, strict=True)]


@given(batch_size=st.integers(1, 9), num_mini_batches=st.integers(1, 5), seed=st.integers(0, 1000))
@settings(max_examples=12, deadline=None)
def test_every_sample_once_and_sizes_differ_by_at_most_one(batch_size, num_mini_batches, seed):
    assume(num_mini_batches <= batch_size)
    permutation = np.random.default_rng(seed).permutation(batch_size)
    parts = dealt(permutation, num_mini_batches)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(batch_size))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("batch_size", "num_mini_batches", "sizes"),
    [(5, 4, [2, 1, 1, 1]), (12, 4, [3, 3, 3, 3]), (15, 4, [4, 4, 4, 3]), (4, 4, [1, 1, 1, 1]), (7, 1, [7])],
)
def test_literal_sizes(batch_size, num_mini_batches, sizes):
    assert [len(part) for part in dealt(np.arange(batch_size), num_mini_batches)] == sizes


def test_dealt_like_cards():
    parts = dealt(np.array([3, 1, 4, 0, 2]), 2)
    np.testing.assert_array_equal(parts[0], [3, 4, 2])
    np.testing.assert_array_equal(parts[1], [1, 0])


def test_padding_stays_inside_the_batch():
    indices, _ = mini_batch_indices(jnp.arange(5), 4)
    assert int(indices.max()) < 5 and int(indices.min()) >= 0


def test_more_mini_batches_than_samples():
    with pytest.raises(ValueError, match=r"runner.algorithm.num_mini_batches is 6, .* only 5 samples"):
        mini_batch_indices(jnp.arange(5), 6)
