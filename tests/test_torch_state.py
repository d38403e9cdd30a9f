"""What of a PyTorch checkpoint ends where in a state."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest
from helpers import assert_bit_equal, small_config, small_step
from torch_values import checkpoint, network, rlbotics
from toys import ConstantReward

from bridges.torch_state import fill_state
from rlbotics_jax.algorithms import make_algorithm
from rlbotics_jax.counters import to_int


def filled(values, **overrides):
    """A fresh state of a small config, and the same with the checkpoint in it."""
    config = small_config(
        runner__actor__hidden_dims=[3],
        runner__critic__hidden_dims=[2],
        runner__critic__obs_normalization=False,
        **{f"runner__{key}": value for key, value in overrides.items()},
    )
    init, _ = small_step(ConstantReward(), config)
    fresh = init(0)
    return fresh, fill_state(fresh, make_algorithm(config.runner, 1), checkpoint(values))


@pytest.fixture(scope="module")
def states():
    return filled(rlbotics(best_metric=12.5, best_iteration=1))


def test_parameters_and_statistics(states):
    algorithm = states[1].shared.algorithm
    actor, arrays = algorithm.parameters["actor"]["network"]["params"], network(0, 3)
    np.testing.assert_array_equal(actor["Dense_0"]["kernel"], [[0, 2, 4], [1, 3, 5]])
    np.testing.assert_array_equal(actor["Dense_1"]["bias"], arrays["mlp.2.bias"])
    critic = algorithm.parameters["critic"]["network"]["params"]
    np.testing.assert_array_equal(critic["Dense_1"]["kernel"], network(100, 2)["mlp.2.weight"].T)
    np.testing.assert_allclose(algorithm.parameters["actor"]["distribution"]["std"], [0.5], rtol=1e-6)
    statistics = algorithm.normalizers["actor"]
    np.testing.assert_array_equal(statistics.mean, [0, 1])
    np.testing.assert_array_equal(statistics.variance, [4, 4])
    assert to_int(statistics.count) == 2**33 + 5
    assert algorithm.normalizers["critic"] is None


def test_optimizer_follows_the_standard_deviation(states):
    """0.2 and 0.08 are of the logarithm of 0.5: 0.4 and 0.32 of the standard deviation itself."""
    optimizer = states[1].shared.algorithm.optimizer
    np.testing.assert_allclose(optimizer.mu["actor"]["distribution"]["std"], [0.4], rtol=1e-6)
    np.testing.assert_allclose(optimizer.nu["actor"]["distribution"]["std"], [0.32], rtol=1e-6)
    np.testing.assert_array_equal(
        optimizer.mu["critic"]["network"]["params"]["Dense_0"]["kernel"], np.full((2, 2), np.float32(0.2))
    )
    assert int(optimizer.count) == 7
    assert float(states[1].shared.algorithm.hyperparameters["learning_rate"]) == np.float32(3e-4)


def test_best_policy_is_the_files_own(states):
    shared = states[1].shared
    assert int(shared.iteration) == 3
    assert (float(shared.best.score), int(shared.best.iteration)) == (12.5, 2)
    assert_bit_equal(shared.best.parameters["actor"], shared.algorithm.parameters["actor"])
    _, other = filled(rlbotics(best_metric=12.5))
    assert np.isneginf(float(other.shared.best.score)) and int(other.shared.best.iteration) == 0


def test_all_else_is_as_it_was(states):
    fresh, state = states
    assert_bit_equal(state.per_environment, fresh.per_environment)
    assert_bit_equal(state.shared.configured, fresh.shared.configured)
    assert jax.tree.structure(state) == jax.tree.structure(fresh)
    # Strong types too: a weak one would compile the step a second time.
    assert [jax.typeof(leaf) for leaf in jax.tree.leaves(state)] == [
        jax.typeof(leaf) for leaf in jax.tree.leaves(fresh)
    ]


def test_standard_deviation_stays_a_logarithm_where_the_config_says_so():
    _, state = filled(rlbotics(), actor__distribution_cfg__std_type="log")
    np.testing.assert_allclose(
        state.shared.algorithm.parameters["actor"]["distribution"]["log_std"], [np.log(0.5)], rtol=1e-6
    )
    np.testing.assert_allclose(
        state.shared.algorithm.optimizer.mu["actor"]["distribution"]["log_std"], [0.2], rtol=1e-6
    )


def test_standard_deviation_that_was_never_stepped_has_zero_moments():
    values = rlbotics()
    del values["optimizer_state_dict"]["state"][0]
    _, state = filled(values)
    assert float(state.shared.algorithm.optimizer.nu["actor"]["distribution"]["std"][0]) == 0.0
    assert int(state.shared.algorithm.optimizer.count) == 7


def test_another_optimizer_starts_afresh_with_a_warning():
    with pytest.warns(UserWarning, match="'model.pt' has no square_avg: the optimizer rmsprop starts afresh"):
        fresh, state = filled(rlbotics(), algorithm__optimizer="rmsprop")
    assert_bit_equal(state.shared.algorithm.optimizer, fresh.shared.algorithm.optimizer)


def decaying(weight_decay):
    values = rlbotics()
    values["optimizer_state_dict"]["param_groups"][0]["weight_decay"] = weight_decay
    return values


@pytest.mark.parametrize(
    ("decay", "name", "sentence"),
    [
        (0.0, "adamw", "decayed weights by 0.0, the optimizer adamw decays them by 0.01"),
        (0.01, "adam", "decayed weights by 0.01, the optimizer adam decays them by 0.0"),
    ],
)
def test_adam_and_adamw_go_on_as_one_another_with_a_warning(decay, name, sentence):
    with pytest.warns(UserWarning, match=f"^'model.pt' {sentence}.$"):
        _, state = filled(decaying(decay), algorithm__optimizer=name)
    assert int(optax.tree_utils.tree_get(state.shared.algorithm.optimizer, "count")) == 7


def test_moments_that_are_dropped_are_told():
    with pytest.warns(UserWarning, match="^'model.pt' has exp_avg, exp_avg_sq, which the optimizer sgd drops.$"):
        filled(rlbotics(), algorithm__optimizer="sgd")


@pytest.mark.parametrize(("decay", "name"), [(0.0, "adam"), (0.01, "adamw")])
def test_the_same_optimizer_goes_on_without_a_word(decay, name, recwarn):
    filled(decaying(decay), algorithm__optimizer=name)
    assert not [warning for warning in recwarn if "model.pt" in str(warning.message)]
