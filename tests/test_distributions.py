"""Gaussian and squashed Gaussian: literals, independent quadrature, sampling, bounds and what is learned."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlbotics_jax.config import GaussianDistributionConfig
from rlbotics_jax.distributions import GaussianDistribution, SquashedGaussianDistribution

KINDS = (GaussianDistribution, SquashedGaussianDistribution)
finite = st.floats(-3.0, 3.0)
deviations = st.floats(0.05, 4.0)


def with_std(kind, std, std_type="log"):
    """A distribution, and the parameters under which its standard deviation is `std`."""
    std = jnp.atleast_1d(jnp.asarray(std, jnp.float32))
    return kind(std_type=std_type), {"log_std": jnp.log(std)} if std_type == "log" else {"std": std}


def gaussian_log_density(z, mean, std):
    """log N(z; mean, std^2) in float64."""
    z, mean, std = (np.asarray(value, np.float64) for value in (z, mean, std))
    return -0.5 * ((z - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)


def log_slope(z):
    """log(1 - tanh(z)^2) in float64, from cosh."""
    return -2.0 * (np.abs(z) + np.log1p(np.exp(-2.0 * np.abs(z))) - np.log(2.0))


def squashed_entropy(mean, std):
    """H(tanh z) = H(z) + E[log(1 - tanh(z)^2)], by the trapezoidal rule on 100 001 points over +-12 std."""
    z = mean + std * np.linspace(-12.0, 12.0, 100_001)
    density = np.exp(gaussian_log_density(z, mean, std))
    return 0.5 + 0.5 * np.log(2 * np.pi) + np.log(std) + np.trapezoid(density * log_slope(z), z)


def entropy_of(kind, mean, std):
    distribution, parameters = with_std(kind, std)
    return float(distribution.entropy(parameters, jnp.full((1, 1), mean, jnp.float32))[0])


class TestGaussian:
    @given(z=finite, mean=finite, std=deviations, std_type=st.sampled_from(["log", "scalar"]))
    @settings(max_examples=40, deadline=None)
    def test_log_prob(self, z, mean, std, std_type):
        distribution, parameters = with_std(GaussianDistribution, std, std_type)
        result = distribution.log_prob(parameters, jnp.array([[mean]]), jnp.array([[z]]))
        np.testing.assert_allclose(result, [gaussian_log_density(z, mean, std)], rtol=2e-4, atol=1e-5)

    def test_log_prob_sums_over_the_actions(self):
        distribution, parameters = with_std(GaussianDistribution, [1.0, 2.0])
        result = distribution.log_prob(parameters, jnp.zeros((3, 2)), jnp.full((3, 2), 0.5))
        expected = gaussian_log_density(0.5, 0.0, 1.0) + gaussian_log_density(0.5, 0.0, 2.0)
        np.testing.assert_allclose(result, np.full(3, expected), rtol=1e-6)

    @pytest.mark.parametrize(("std", "expected"), [(1.0, 1.418939), (8.0, 3.498380)])
    def test_entropy(self, std, expected):
        assert entropy_of(GaussianDistribution, 0.5, std) == pytest.approx(expected, abs=1e-5)

    def test_entropy_gradient_is_one_for_each_log_std(self):
        distribution, parameters = with_std(GaussianDistribution, [0.3, 1.0, 2.0])
        gradient = jax.grad(lambda p: distribution.entropy(p, jnp.ones((5, 3))).mean())(parameters)
        np.testing.assert_allclose(gradient["log_std"], [1.0, 1.0, 1.0], rtol=1e-6)

    def test_action_and_mode_are_the_sample_and_the_mean(self):
        distribution = GaussianDistribution()
        np.testing.assert_array_equal(distribution.action(jnp.array([3.0, -4.0])), [3.0, -4.0])
        np.testing.assert_array_equal(distribution.mode(jnp.array([3.0, -4.0])), [3.0, -4.0])


@pytest.mark.parametrize("kind", KINDS)
class TestKL:
    def test_literal_and_direction(self, kind):
        """KL(N(0, 1) || N(.1, .9)); squashing changes no divergence."""
        distribution, old = with_std(kind, 1.0)
        _, new = with_std(kind, 0.9)
        zero, tenth = jnp.zeros((1, 1)), jnp.full((1, 1), 0.1)
        assert float(distribution.kl(old, zero, new, tenth)[0]) == pytest.approx(0.018096, abs=1e-6)
        assert float(distribution.kl(new, tenth, old, zero)[0]) == pytest.approx(0.015361, abs=1e-6)

    @pytest.mark.parametrize("std_type", ["log", "scalar"])
    def test_exactly_zero_for_equal_policies(self, kind, std_type):
        generator = np.random.default_rng(0)
        distribution, parameters = with_std(kind, generator.uniform(0.01, 5.0, 16), std_type)
        outputs = jnp.asarray(generator.normal(size=(32, 16)), jnp.float32)
        np.testing.assert_array_equal(distribution.kl(parameters, outputs, parameters, outputs), np.zeros(32))

    def test_sums_over_the_actions_and_is_positive(self, kind):
        generator = np.random.default_rng(1)
        (distribution, old), (_, new) = (with_std(kind, generator.uniform(0.3, 2.0, 3)) for _ in range(2))
        means = jnp.asarray(generator.normal(size=(2, 8, 3)), jnp.float32)
        result = distribution.kl(old, means[0], new, means[1])
        (old_std, new_std), shift = (np.exp(np.float64(p["log_std"])) for p in (old, new)), means[1] - means[0]
        ratio = (old_std / new_std) ** 2
        expected = 0.5 * (ratio - 1 - np.log(ratio) + (np.float64(shift) / new_std) ** 2).sum(-1)
        np.testing.assert_allclose(result, expected, rtol=1e-5)
        assert (expected > 0).all()


class TestSquashed:
    @pytest.mark.parametrize(
        ("mean", "std", "expected", "tolerance"),
        [
            (0.5, 1.0, 0.5202, 1e-4),
            (0.5, 8.0, -7.988, 2e-3),
            (0.0, 1.0, 0.6698, 1e-4),
            (0.0, 2.0, -0.0012, 1e-4),
            (0.0, 5.0, -3.6940, 1e-3),
        ],
    )
    def test_entropy_literals(self, mean, std, expected, tolerance):
        assert entropy_of(SquashedGaussianDistribution, mean, std) == pytest.approx(expected, abs=tolerance)
        assert squashed_entropy(mean, std) == pytest.approx(expected, abs=6e-4)

    @given(mean=finite, std=st.floats(0.05, 2.0))
    @settings(max_examples=30, deadline=None)
    def test_entropy_against_quadrature(self, mean, std):
        expected = squashed_entropy(mean, std)
        assert entropy_of(SquashedGaussianDistribution, mean, std) == pytest.approx(expected, abs=2e-5)

    def test_entropy_falls_where_the_base_entropy_rises(self):
        """With the base's entropy as bonus, a squashed policy is pushed into saturation."""
        distribution, parameters = with_std(SquashedGaussianDistribution, 2.0)
        gradient = jax.grad(lambda p: distribution.entropy(p, jnp.zeros((1, 1)))[0])(parameters)["log_std"][0]
        step = 1e-4
        slope = (squashed_entropy(0.0, 2.0 * np.exp(step)) - squashed_entropy(0.0, 2.0 * np.exp(-step))) / (2 * step)
        assert float(gradient) == pytest.approx(slope, abs=1e-4) and slope < 0

    @pytest.mark.parametrize(("z", "expected"), [(7.0, -12.805), (8.0, -18.305), (10.0, -32.305)])
    def test_log_prob_literals(self, z, expected):
        """In float32 tanh(10) is 1, so a stored action could not be inverted."""
        distribution, parameters = with_std(SquashedGaussianDistribution, 1.0)
        for sign in (1.0, -1.0):
            result = distribution.log_prob(parameters, jnp.zeros((1, 1)), jnp.full((1, 1), sign * z))
            assert float(result[0]) == pytest.approx(expected, abs=1e-3)

    @given(z=st.floats(-20.0, 20.0), mean=finite, std=deviations)
    @settings(max_examples=40, deadline=None)
    def test_log_prob(self, z, mean, std):
        distribution, parameters = with_std(SquashedGaussianDistribution, std)
        result = distribution.log_prob(parameters, jnp.array([[mean]]), jnp.array([[z]]))
        expected = gaussian_log_density(z, mean, std) - log_slope(z)
        np.testing.assert_allclose(result, [expected], rtol=2e-4, atol=2e-4)

    def test_log_prob_gradient_is_finite_in_saturation(self):
        distribution, parameters = with_std(SquashedGaussianDistribution, 1.0)
        gradient = jax.grad(lambda z: distribution.log_prob(parameters, jnp.zeros(1), z))(jnp.array([50.0]))
        assert float(gradient[0]) == pytest.approx(-48.0)

    def test_action_and_mode_are_inside_the_bounds(self):
        distribution = SquashedGaussianDistribution()
        np.testing.assert_allclose(distribution.action(jnp.array([0.0, 0.5, 40.0])), [0.0, math.tanh(0.5), 1.0])
        np.testing.assert_allclose(distribution.mode(jnp.array([-0.5])), [math.tanh(-0.5)], rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("mean", "std"), [(0.4, 0.5), (-1.0, 1.5)])
class TestDensity:
    def test_normalises(self, kind, mean, std):
        """The density of the action, integrated over the actions, is 1."""
        distribution, parameters = with_std(kind, std)
        latent = np.linspace(mean - 8 * std, mean + 8 * std, 4001)
        log_prob = distribution.log_prob(
            parameters, jnp.full((4001, 1), mean, jnp.float32), jnp.asarray(latent[:, None], jnp.float32)
        )
        actions = np.tanh(latent) if kind is SquashedGaussianDistribution else latent
        assert np.trapezoid(np.exp(np.float64(log_prob)), actions) == pytest.approx(1.0, abs=1e-3)

    def test_samples_follow_it(self, kind, mean, std):
        """20 000 samples: latent moments within 4 standard errors, E[log p] within 4 of minus the entropy."""
        distribution, parameters = with_std(kind, std)
        outputs = jnp.full((20_000, 1), mean, jnp.float32)
        latent = distribution.sample(parameters, outputs, jax.random.key(0))
        assert float(latent.mean()) == pytest.approx(mean, abs=4 * std / math.sqrt(20_000))
        assert float(latent.std()) == pytest.approx(std, rel=4 / math.sqrt(40_000))
        log_prob = np.asarray(distribution.log_prob(parameters, outputs, latent))
        entropy = float(distribution.entropy(parameters, outputs)[0])
        assert -log_prob.mean() == pytest.approx(entropy, abs=4 * float(log_prob.std()) / math.sqrt(20_000))


class TestParameter:
    def test_scalar_and_log(self):
        scalar, log = GaussianDistribution(0.5, std_type="scalar"), GaussianDistribution(0.5, std_type="log")
        np.testing.assert_array_equal(scalar.init(3)["std"], np.full(3, 0.5, np.float32))
        np.testing.assert_allclose(log.init(3)["log_std"], np.full(3, math.log(0.5)), rtol=1e-6)
        for distribution, slope in ((scalar, 1.0), (log, 0.5)):
            parameters = distribution.init(3)
            np.testing.assert_allclose(distribution.std(parameters), np.full(3, 0.5), rtol=1e-6)
            gradient = jax.grad(lambda p, d=distribution: d.std(p).sum())(parameters)
            np.testing.assert_allclose(jax.tree.leaves(gradient)[0], np.full(3, slope), rtol=1e-6)

    @pytest.mark.parametrize("std_type", ["scalar", "log"])
    def test_projected_onto_its_bounds(self, std_type):
        distribution = GaussianDistribution(0.5, (0.25, 2.0), std_type)
        store = np.log if std_type == "log" else np.asarray
        (name,) = distribution.init(1)
        new = {name: jnp.asarray(store([0.01, 0.25, 0.5, 2.0, 100.0]), jnp.float32)}
        projected = distribution.constrain(new, distribution.init(5))
        np.testing.assert_array_equal(projected[name], np.float32(store([0.25, 0.25, 0.5, 2.0, 2.0])))

    def test_a_scalar_that_was_pushed_below_zero_comes_back(self):
        distribution = GaussianDistribution(std_type="scalar")
        projected = distribution.constrain({"std": jnp.array([-3.0])}, distribution.init(1))
        assert float(distribution.std(projected)[0]) == np.float32(1e-6)

    @pytest.mark.parametrize("std_type", ["scalar", "log"])
    def test_the_gradient_does_not_vanish_at_a_bound(self, std_type):
        distribution = GaussianDistribution(2.0, (0.25, 2.0), std_type)
        gradient = jax.grad(lambda p: distribution.entropy(p, jnp.zeros((1, 1)))[0])(distribution.init(1))
        assert float(jax.tree.leaves(gradient)[0][0]) == pytest.approx(1.0 if std_type == "log" else 0.5)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("std_type", ["scalar", "log"])
    def test_not_learned(self, kind, std_type):
        distribution = kind(0.7, std_type=std_type, learn_std=False)
        old = distribution.init(2)

        def loss(parameters):
            outputs, latent = jnp.ones((4, 2)), jnp.zeros((4, 2))
            terms = distribution.log_prob(parameters, outputs, latent), distribution.entropy(parameters, outputs)
            return jnp.sum(terms[0] + terms[1])

        for leaf in jax.tree.leaves(jax.grad(loss)(old)):
            np.testing.assert_array_equal(leaf, [0.0, 0.0])
        decayed = jax.tree.map(lambda leaf: leaf * 0.99, old)
        assert distribution.constrain(decayed, old) is old

    def test_from_config(self):
        config = GaussianDistributionConfig(init_std=0.5, std_range=(0.1, 2.0), std_type="log", learn_std=False)
        assert GaussianDistribution.from_config(config) == GaussianDistribution(0.5, (0.1, 2.0), "log", False)
        assert GaussianDistribution().num_outputs(7) == 7
