"""Names and layouts of arrays in torch and here."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from helpers import assert_bit_equal, small_config

from bridges.torch_layouts import STD_NAMES
from bridges.torch_names import convert_std, entries, from_torch, positions, std_of, to_torch
from rlbotics_jax.algorithms import hyperparameters_of, make_algorithm
from rlbotics_jax.config import CNNEncoderConfig
from rlbotics_jax.envs import EnvironmentSpec


def ppo_state(shapes, groups, **overrides):
    spec = EnvironmentSpec(shapes, 2, None, None, 10, 0.1)
    config = small_config(
        runner__obs_groups__actor=groups,
        runner__obs_groups__critic=["vector"],
        runner__actor__obs_normalization=False,
        **overrides,
    )
    algorithm = make_algorithm(config.runner, 2)
    state = algorithm.init(jax.random.key(0), spec.example_observations(), hyperparameters_of(config.runner.algorithm))
    return algorithm, state


CNN = {"output_channels": [4, 3], "norm": ["layer", "none"], "max_pool": True, "padding": "zeros"}
SHAPES = {"vector": (5,), "left": (1, 8, 8), "right": (2, 6, 6)}


@pytest.mark.parametrize("groups", [["vector"], ["left"], ["vector", "left", "right"]])
def test_every_array_goes_there_and_back(groups):
    """All parameters have a name of their own, and no value is lost."""
    cnn = {"runner__actor__class_name": "CNNModel", "runner__actor__cnn_cfg": CNN} if "left" in groups else {}
    algorithm, state = ppo_state(SHAPES, groups, **cnn)
    found = entries({"actor": algorithm.actor, "critic": algorithm.critic}, state.parameters)
    names = [(entry.network, entry.name) for entry in found]
    assert len(set(names)) == len(names) == len(jax.tree.leaves(state.parameters))
    assert_bit_equal(from_torch(found, to_torch(found, state.parameters)), state.parameters)


def test_names_and_shapes_are_those_of_torch():
    algorithm, state = ppo_state(
        SHAPES, ["vector", "left", "right"], runner__actor__class_name="CNNModel", runner__actor__cnn_cfg=CNN
    )
    found = entries({"actor": algorithm.actor, "critic": algorithm.critic}, state.parameters)
    shapes = {name: array.shape for name, array in to_torch(found, state.parameters)["actor"].items()}
    assert shapes == {
        "distribution.std_param": (2,),
        "cnns.left.0.weight": (4, 1, 3, 3),
        "cnns.left.0.bias": (4,),
        "cnns.left.1.weight": (4, 8, 8),
        "cnns.left.1.bias": (4, 8, 8),
        "cnns.left.4.weight": (3, 4, 3, 3),
        "cnns.left.4.bias": (3,),
        "cnns.right.0.weight": (4, 2, 3, 3),
        "cnns.right.0.bias": (4,),
        "cnns.right.1.weight": (4, 6, 6),
        "cnns.right.1.bias": (4, 6, 6),
        "cnns.right.4.weight": (3, 4, 3, 3),
        "cnns.right.4.bias": (3,),
        "mlp.0.weight": (16, 5 + 3 * 2 * 2 + 3 * 2 * 2),
        "mlp.0.bias": (16,),
        "mlp.2.weight": (16, 16),
        "mlp.2.bias": (16,),
        "mlp.4.weight": (2, 16),
        "mlp.4.bias": (2,),
    }


def test_positions_count_norms_activations_and_poolings():
    config = CNNEncoderConfig(
        output_channels=(1, 2, 3, 4), norm=("none", "batch", "layer", "none"), max_pool=(True, False, True, False)
    )
    assert positions(config) == [0, 3, 6, 10]


@pytest.mark.parametrize(
    "given, wanted, order, expected",
    [
        ("log_std", "std", 0, 0.5),
        ("log_std", "std", 1, 0.4),
        ("log_std", "std", 2, 0.8),
        ("std", "log_std", 0, np.log(0.5)),
        ("std", "log_std", 1, 0.1),
        ("std", "log_std", 2, 0.05),
        ("std", "std", 1, 0.2),
        ("log_std", "log_std", 2, 0.2),
    ],
)
def test_standard_deviation_follows_the_chain_rule(given, wanted, order, expected):
    """std 0.5; its moments are 0.2. d/d log_std = std d/d std."""
    value = 0.2 if order else {"std": 0.5, "log_std": np.log(0.5)}[given]
    networks = {"actor": {STD_NAMES[given]: np.array([value], np.float32)}, "critic": {}}
    found = convert_std(networks, wanted, np.array([0.5]), order)
    assert list(found["actor"]) == [STD_NAMES[wanted]]
    np.testing.assert_allclose(found["actor"][STD_NAMES[wanted]], [expected], rtol=1e-6)


def test_standard_deviation_is_projected_onto_its_range():
    networks = {"actor": {"distribution.log_std_param": np.log([0.01, 0.3, 9.0])}, "critic": {}}
    found = convert_std(networks, "std", std_of(networks), bounds=(0.1, 2.0))
    np.testing.assert_allclose(found["actor"]["distribution.std_param"], [0.1, 0.3, 2.0], rtol=1e-6)
