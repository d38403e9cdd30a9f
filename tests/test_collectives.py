"""Weighted moments, on one device and over an axis of several."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlbotics_jax.collectives import fold_in_device, pmean, psum, weighted_mean, weighted_sum, weighted_variance

VALUES = jnp.array([1.0, 2.0, 4.0, 9.0])
ALL = jnp.ones(4)


def test_literals():
    assert float(weighted_sum(VALUES, ALL, None)) == 16.0
    assert float(weighted_mean(VALUES, ALL, None)) == 4.0
    assert float(weighted_variance(VALUES, ALL, None)) == 9.5
    assert float(weighted_variance(VALUES, ALL, None, ddof=1)) == pytest.approx(38 / 3)
    assert float(weighted_mean(VALUES, jnp.array([1.0, 0.0, 1.0, 0.0]), None)) == 2.5


def test_torch_and_numpy_disagree_about_the_default_and_parity_needs_the_unbiased_one():
    assert float(weighted_variance(VALUES, ALL, None, ddof=1)) == pytest.approx(np.var(VALUES, ddof=1))
    assert float(weighted_variance(VALUES, ALL, None)) == pytest.approx(np.var(VALUES))


def test_a_single_row_has_variance_zero():
    one = jnp.array([0.0, 0.0, 1.0, 0.0])
    assert float(weighted_variance(VALUES, one, None, ddof=1)) == 0.0


def test_nothing_has_mean_and_variance_zero():
    assert float(weighted_mean(VALUES, jnp.zeros(4), None)) == 0.0
    assert float(weighted_variance(VALUES, jnp.zeros(4), None, ddof=1)) == 0.0


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_rows_of_weight_zero_may_hold_anything(allow_nans, poison):
    values, weights = jnp.array([1.0, poison, 3.0]), jnp.array([1.0, 0.0, 1.0])
    assert float(weighted_sum(values, weights, None)) == 4.0
    assert float(weighted_mean(values, weights, None)) == 2.0
    assert float(weighted_variance(values, weights, None)) == 1.0


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_four_devices_agree_with_one(seed):
    generator = np.random.default_rng(seed)
    values = jnp.asarray(generator.normal(size=(4, 6)), jnp.float32)
    weights = jnp.asarray(generator.random((4, 6)) < 0.6, jnp.float32)
    for function in (weighted_sum, weighted_mean, weighted_variance):
        each = jax.vmap(lambda v, w, f=function: f(v, w, "devices"), axis_name="devices")(values, weights)
        np.testing.assert_allclose(each, np.full(4, function(values, weights, None)), rtol=1e-5, atol=1e-6)


def test_sums_and_means_over_an_axis():
    tree = {"a": jnp.array([1.0, 3.0])}
    total = jax.vmap(lambda t: psum(t, "devices"), axis_name="devices")(tree)
    mean = jax.vmap(lambda t: pmean(t, "devices"), axis_name="devices")(tree)
    np.testing.assert_array_equal(total["a"], [4.0, 4.0])
    np.testing.assert_array_equal(mean["a"], [2.0, 2.0])
    assert psum(tree, None) is tree and pmean(tree, None) is tree


def test_each_device_folds_its_own_key():
    key = jax.random.key(0)
    assert fold_in_device(key, None) is key
    keys = jax.vmap(lambda _: fold_in_device(key, "devices"), axis_name="devices")(jnp.zeros(4))
    assert len({tuple(row) for row in np.asarray(jax.random.key_data(keys)).tolist()}) == 4
