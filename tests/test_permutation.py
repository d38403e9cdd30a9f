"""The sort-free permutation: a bijection of any size, as even over many draws as a sorted one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlbotics_jax.permutation import random_permutation

DRAWS = 4000


@pytest.fixture(scope="module")
def draws():
    """(DRAWS, 256): permutations of 256 samples."""
    keys = jax.random.split(jax.random.key(0), DRAWS)
    return np.asarray(jax.jit(jax.vmap(lambda key: random_permutation(key, 256)))(keys))


# Square and not, a power of two and not, prime, below and above the size from which there is no sort.
@pytest.mark.parametrize("size", [1, 2, 97, 255, 256, 272, 2400, 8192, 98304])
def test_bijection(size):
    for seed in range(3):
        order = np.asarray(random_permutation(jax.random.key(seed), size))
        assert order.dtype == np.int32
        np.testing.assert_array_equal(np.sort(order), np.arange(size))


def test_literal():
    """The definition, step by step in numpy."""
    key, rows, columns = jax.random.key(3), 16, 17
    bits = np.asarray(jax.random.bits(key, (2, rows + columns)))
    expected = []
    for index in range(rows * columns):
        row, column = index // columns, index % columns
        for i in range(2):
            column = (column + int(bits[i, row]) % columns) % columns
            row = (row + int(bits[i, rows + column]) % rows) % rows
        expected.append(row * columns + column)
    np.testing.assert_array_equal(random_permutation(key, rows * columns), expected)


def test_draws_differ(draws):
    assert len({order.tobytes() for order in draws}) == DRAWS


def test_every_sample_is_everywhere_equally_often(draws):
    """Chi-square of the position of each sample: 255 degrees of freedom, standard deviation sqrt(510)."""
    expected = DRAWS / 256
    for sample in (0, 1, 17, 128, 255):
        positions = np.argmax(draws == sample, axis=1)
        counts = np.bincount(positions, minlength=256)
        assert abs(np.sum((counts - expected) ** 2) / expected - 255) < 5 * np.sqrt(510)


def test_pairs_share_a_mini_batch_as_often_as_chance(draws):
    """Two samples are in the same of four mini-batches with probability 63 / 255, whichever two they are."""
    part = np.empty_like(draws)
    np.put_along_axis(part, draws, np.broadcast_to(np.arange(256) % 4, draws.shape), axis=1)
    one_hot = (part[:, :, None] == np.arange(4)).astype(np.float32)
    together = np.einsum("dik,djk->ij", one_hot, one_hot) / DRAWS
    chance = 63 / 255
    error = (together - chance)[~np.eye(256, dtype=bool)] / np.sqrt(chance * (1 - chance) / DRAWS)
    assert np.abs(error).max() < 5.5  # of 32,640 pairs the largest is near 4.2 by chance
    assert abs(error.std() - 1.0) < 0.05


@pytest.mark.parametrize("group", ["row", "column"])
def test_rows_and_columns_spread_over_mini_batches(draws, group):
    """Of the 16 samples of one row (or column) of the table, the number in one mini-batch has the hypergeometric
    variance 16 * 1/4 * 3/4 * 240/255, and the mean 4."""
    members = np.arange(16) + 48 if group == "row" else np.arange(16) * 16 + 3
    counts = np.isin(draws[:, 1::4], members).sum(axis=1)
    variance = 16 * 0.25 * 0.75 * 240 / 255
    assert abs(counts.mean() - 4.0) < 5 * np.sqrt(variance / DRAWS)
    assert abs(counts.var() / variance - 1.0) < 5 * np.sqrt(2.0 / DRAWS)


def test_under_vmap_as_alone():
    keys = jax.random.split(jax.random.key(1), 3)
    together = jax.vmap(lambda key: random_permutation(key, 512))(keys)
    np.testing.assert_array_equal(together, jnp.stack([random_permutation(key, 512) for key in keys]))
