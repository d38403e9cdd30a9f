"""Whether a checkpoint fits a config, and a config RLBotics."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from flax import linen as nn
from helpers import small_config
from torch_values import checkpoint, network, normalizer, rlbotics

from bridges.torch_checks import check_exportable, check_fits, check_is_ppo
from rlbotics_jax.algorithms import hyperparameters_of, make_algorithm
from rlbotics_jax.config import ConfigError
from rlbotics_jax.distributions import GaussianDistribution
from rlbotics_jax.envs import EnvironmentSpec

FITTING = {"actor__hidden_dims": [3], "critic__hidden_dims": [2], "critic__obs_normalization": False}
CNN = {"actor__class_name": "CNNModel", "actor__cnn_cfg": {"output_channels": [4]}, "actor__obs_normalization": False}
IMAGE = {"obs_groups__actor": ["image"]}


class OwnModel(nn.Module):
    """A Flax module of one's own."""

    num_outputs: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.num_outputs)(x)


class Shifted(GaussianDistribution):
    """A Gaussian whose action is the sample plus one."""

    def action(self, latent):
        return latent + 1.0


def make(num_actions=1, size=2, **overrides):
    spec = EnvironmentSpec({"observation": (size,), "image": (1, 6, 6)}, num_actions, None, None, 10, 0.1)
    config = small_config(**{f"runner__{key}": value for key, value in {**FITTING, **overrides}.items()})
    algorithm = make_algorithm(config.runner, num_actions)
    hyperparameters = hyperparameters_of(config.runner.algorithm)
    state = jax.eval_shape(lambda: algorithm.init(jax.random.key(0), spec.example_observations(), hyperparameters))
    return algorithm, state


def test_what_fits_passes():
    check_fits(checkpoint(rlbotics()), *make())


def cnn_values():
    actor = {
        "distribution.log_std_param": np.zeros(1, np.float32),
        "cnn.0.weight": np.zeros((4, 1, 3, 3)),
        "cnn.0.bias": np.zeros(4),
    }
    return rlbotics(actor_state_dict={**actor, **network(0, 3, inputs=64)}, optimizer_state_dict=None)


def test_image_model_that_fits_passes():
    check_fits(checkpoint(cnn_values()), *make(**CNN, **IMAGE))


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({"actor__hidden_dims": [4, 5]}, "runner.actor.hidden_dims: the file has [3], the config [4, 5]"),
        ({"critic__hidden_dims": [3]}, "runner.critic.hidden_dims: the file has [2], the config [3]"),
        ({"size": 5}, "runner.obs_groups.actor: the file's actor reads 2 values, observation gives 5"),
        ({"num_actions": 4}, "env.id: the file's actor has 1 outputs, the environment takes 4 actions"),
        ({"actor__obs_normalization": False}, "runner.actor.obs_normalization: the file has true, the config false"),
        ({"critic__obs_normalization": True}, "runner.critic.obs_normalization: the file has false, the config true"),
        ({**CNN, **IMAGE}, "runner.actor.class_name: the file has MLPModel, the config CNNModel"),
        ({"actor__activation": "crelu"}, "runner.actor: of mlp.2.weight the file has [1, 3], the config [1, 6]"),
    ],
)
def test_what_does_not_fit_is_told_with_both_values(arguments, sentence):
    with pytest.raises(ConfigError) as error:
        check_fits(checkpoint(rlbotics()), *make(**arguments))
    assert str(error.value) == f"model.pt: {sentence}"


@pytest.mark.parametrize(("std_type", "name"), [("scalar", "std"), ("log", "log_std")])
def test_standard_deviation_of_other_actions(std_type, name):
    """Whichever of the two the file has, which is the logarithm."""
    values = rlbotics(optimizer_state_dict=None)
    values["actor_state_dict"]["distribution.log_std_param"] = np.zeros(5, np.float32)
    with pytest.raises(ConfigError, match=rf"of distribution.{name}_param the file has \[5\], the config \[1\]"):
        check_fits(checkpoint(values), *make(actor__distribution_cfg__std_type=std_type))


def test_part_that_the_config_has_no_place_for():
    values = cnn_values()
    values["actor_state_dict"] |= {"cnn.2.weight": np.zeros((4, 4, 3, 3)), "cnn.2.bias": np.zeros(4)}
    with pytest.raises(
        ConfigError, match=r"runner.actor: of cnn.2.weight the file has \[4, 4, 3, 3\], the config none"
    ):
        check_fits(checkpoint(values), *make(**CNN, **IMAGE))


@pytest.mark.parametrize(
    ("actor", "sentence"),
    [
        ({}, "runner.actor.obs_normalization: the file has true, the config false"),
        (
            {"actor__obs_normalization": True},
            "runner.actor.image_normalization: the file's CNNModel normalises vectors alone, the config images too; set it",
        ),
    ],
)
def test_an_image_model_that_normalises_its_vectors_alone(actor, sentence):
    values = cnn_values()
    values["actor_state_dict"] |= normalizer()
    with pytest.raises(ConfigError, match=sentence):
        check_fits(checkpoint(values), *make(**{**CNN, **IMAGE, **actor}))


@pytest.mark.parametrize(
    "overrides, sentence",
    [
        ({"actor__obs_clip": 5.0}, "runner.actor.obs_clip: RLBotics clips no observations, this is 5.0"),
        ({"critic__activation": "mish"}, "runner.critic.activation: RLBotics has no activation 'mish'"),
        (
            {**CNN, **IMAGE, "actor__obs_normalization": True},
            "runner.actor.obs_normalization: RLBotics' CNNModel normalises",
        ),
        (
            {**CNN, "obs_groups__actor": ["image", "observation"]},
            "runner.obs_groups.actor: RLBotics' CNNModel reads one image",
        ),
        (
            {"actor__class_name": "test_torch_checks:OwnModel"},
            "runner.actor.class_name: OwnModel has no counterpart in PyTorch",
        ),
        (
            {"actor__distribution_cfg__class_name": "test_torch_checks:Shifted"},
            "runner.actor.distribution_cfg.class_name: Shifted has no counterpart in PyTorch; allowed are "
            "GaussianDistribution and SquashedGaussianDistribution",
        ),
    ],
)
def test_what_rlbotics_has_no_place_for_is_refused(overrides, sentence):
    with pytest.raises(ConfigError) as error:
        check_exportable(*make(**overrides))
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize("overrides", [{}, {**CNN, **IMAGE}, {"actor__activation": "lrelu"}])
def test_what_rlbotics_has_a_place_for_passes(overrides):
    check_exportable(*make(**overrides))


def test_other_algorithms_are_refused():
    with pytest.raises(
        ConfigError, match="runner.algorithm.class_name: PyTorch checkpoints hold the state of PPO, not of object"
    ):
        check_is_ppo(object())
