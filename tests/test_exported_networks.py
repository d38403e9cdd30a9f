"""Every network that a config can name, exported as a whole: the nodes of its graph, and its actions."""

from __future__ import annotations

import itertools
import json

import numpy as np
import onnx
import pytest
from flax import linen as nn
from policies import fresh_policy

from bridges.metadata import decode_metadata
from bridges.policy import Policy
from rlbotics_jax.config import ACTIVATIONS, config_hash
from rlbotics_jax.envs import EnvironmentSpec

SPEC = EnvironmentSpec({"observation": (6,)}, 2, None, None, 100, 0.02)
BOUNDED = EnvironmentSpec({"observation": (6,)}, 2, (-2.0, 0.0), (2.0, 10.0), 100, 0.02)

# What one would write by hand in opset 18, which has no Gelu and no Swish.
NODES = {
    "relu": ["Relu"],
    "elu": ["Elu"],
    "selu": ["Selu"],
    "lrelu": ["LeakyRelu"],
    "leaky_relu": ["LeakyRelu"],
    "tanh": ["Tanh"],
    "sigmoid": ["Sigmoid"],
    "softplus": ["Softplus"],
    "mish": ["Mish"],
    "identity": [],
    "swish": ["Sigmoid", "Mul"],
    "crelu": ["Relu", "Neg", "Relu", "Concat"],
    "gelu": ["Mul", "Mul", "Erf", "Add", "Mul"],
}


def nodes(path):
    return [node.op_type for node in onnx.load(path).graph.node]


def assert_same_actions(policy, path, batch=5):
    observations = policy.typical_observations(batch)
    given = np.concatenate(list(observations.values()), axis=-1)
    expected = np.asarray(policy(observations))
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(Policy(path).get_action(given), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_every_activation_has_its_nodes():
    assert NODES.keys() == set(ACTIVATIONS)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(activation, tmp_path):
    policy = fresh_policy(SPEC, runner__actor__activation=activation)
    path = policy.export(tmp_path / "policy.onnx")
    layers = itertools.chain.from_iterable(["Gemm", *NODES[activation]] for _ in range(2))
    assert nodes(path) == ["Sub", "Div", *layers, "Gemm"]
    assert_same_actions(policy, path)


@pytest.mark.parametrize(
    ("spec", "overrides", "last"),
    [
        (SPEC, {}, []),
        (BOUNDED, {}, ["Clip", "Mul", "Add"]),
        (SPEC, {"env__clip_actions": 3.0}, ["Clip"]),
        (SPEC, {"runner__actor__distribution_cfg": {"class_name": "SquashedGaussianDistribution"}}, ["Tanh"]),
        (
            BOUNDED,
            {"runner__actor__distribution_cfg": {"class_name": "SquashedGaussianDistribution"}},
            ["Tanh", "Clip", "Mul", "Add"],
        ),
    ],
    ids=["gaussian", "bounded", "clip_actions", "squashed", "squashed and bounded"],
)
def test_what_stands_behind_the_network(spec, overrides, last, tmp_path):
    policy = fresh_policy(spec, **overrides)
    path = policy.export(tmp_path / "policy.onnx")
    assert nodes(path) == ["Sub", "Div", "Gemm", "Elu", "Gemm", "Elu", "Gemm", *last]
    assert_same_actions(policy, path)


def test_without_normaliser_and_with_a_clip_of_it(tmp_path):
    plain = fresh_policy(SPEC, runner__actor__obs_normalization=False)
    assert nodes(plain.export(tmp_path / "plain.onnx"))[0] == "Gemm"
    clipped = fresh_policy(SPEC, runner__actor__obs_clip=5.0)
    path = clipped.export(tmp_path / "clipped.onnx")
    assert nodes(path)[:4] == ["Sub", "Div", "Clip", "Gemm"]
    assert_same_actions(clipped, path)


def test_several_groups_are_one_observation_in_the_order_of_the_config(tmp_path):
    spec = EnvironmentSpec({"command": (3,), "joints": (5,), "privileged": (2,)}, 2, None, None, 100, 0.02)
    groups = {"actor": ["joints", "command"], "critic": ["privileged"]}
    policy = fresh_policy(spec, runner__obs_groups=groups)
    path = policy.export(tmp_path / "policy.onnx")
    assert list(json.loads(Policy(path).metadata["observation_groups"]).items()) == [("joints", 5), ("command", 3)]
    assert list(policy.typical_observations()) == ["joints", "command"]
    assert_same_actions(policy, path)


class Residual(nn.Module):
    """A Flax module of a user's own."""

    hidden_dims: tuple[int, ...]
    num_outputs: int

    @nn.compact
    def __call__(self, x):
        for width in self.hidden_dims:
            x = nn.LayerNorm()(nn.Dense(width)(x))
            x = x + nn.tanh(nn.Dense(width)(x))
        return nn.Dense(self.num_outputs)(x)


def test_a_module_of_ones_own(tmp_path):
    policy = fresh_policy(BOUNDED, runner__actor__class_name=Residual)
    assert_same_actions(policy, policy.export(tmp_path / "policy.onnx"))


def test_the_metadata_of_a_policy(tmp_path):
    spec = EnvironmentSpec(
        {"observation": (6,)}, 2, (-1.0, -np.inf), (1.0, np.inf), 100, 0.02, metadata={"action_names": ["hip", "knee"]}
    )
    run = tmp_path / "2026-01-31_10-15-00"
    policy = fresh_policy(spec, run=run, env__clip_actions=4.0)
    metadata = decode_metadata(Policy(policy.export(tmp_path / "policy.onnx")).metadata)
    assert metadata == {
        "library": "rlbotics-jax",
        "version": metadata["version"],
        "config_hash": metadata["config_hash"],
        "run_name": "experiment/2026-01-31_10-15-00",
        "task": "CartpoleBalance",
        "which": "best",
        "iteration": 2,
        "score": 1.5,
        "observation_groups": {"observation": 6},
        "normalized": True,
        "dt": 0.02,
        "action_names": ["hip", "knee"],
        "action_low": [-1.0, -np.inf],
        "action_high": [1.0, np.inf],
        "action_clip": 4.0,
        "action_scale": [1.0, 1.0],
        "action_offset": [0.0, 0.0],
        "recurrent_states": {},
    }


def test_a_simulator_says_what_is_left_to_do_with_an_action():
    spec = EnvironmentSpec({"observation": (6,)}, 2, None, None, 100, 0.02, metadata={"action_scale": [0.25, 0.5]})
    metadata = fresh_policy(spec).metadata
    assert metadata["action_scale"] == [0.25, 0.5] and metadata["action_offset"] == [0.0, 0.0]
    assert metadata["run_name"] is None and metadata["action_low"] is None


def test_the_hash_of_a_config():
    from helpers import small_config

    first, second = small_config(), small_config(runner__algorithm__gamma=0.5)
    assert config_hash(first) == config_hash(small_config()) != config_hash(second)
    assert len(config_hash(first)) == 64 and int(config_hash(first), 16)
