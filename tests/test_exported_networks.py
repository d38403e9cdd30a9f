"""Every network that a config can name, exported as a whole: the nodes of its graph, and its actions."""

from __future__ import annotations

import itertools
import json

import numpy as np
import onnx
import pytest
from flax import linen as nn
from policies import fresh_policy

from bridges.policy import Policy
from rlbotics_jax.config import ACTIVATIONS, config_hash
from rlbotics_jax.envs import EnvironmentSpec
from rlbotics_jax.metadata import decode_metadata

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
    assert_equal_actions(Policy(path).get_action(given), policy(observations))


def assert_equal_actions(found, expected):
    expected = np.asarray(expected)
    assert np.abs(expected).max() > 1e-4
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


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


IMAGE = EnvironmentSpec({"camera": (3, 12, 11)}, 2, None, None, 100, 0.02, {"camera": "uint8"})
CONVOLUTIONS = ["Conv", "Elu", "Conv", "Elu"]


def cnn(groups=("camera",), obs_normalization=True, **encoder):
    encoder = {"output_channels": [4, 6], **encoder}
    model = {"class_name": "CNNModel", "hidden_dims": [8], "cnn_cfg": encoder}
    return {
        "runner__obs_groups": {"actor": list(groups), "critic": list(groups)},
        "runner__actor": {**model, "obs_normalization": obs_normalization, "distribution_cfg": {"init_std": 1.0}},
        "runner__critic": model,
    }


def padded(layers):
    return [node for name in layers for node in (["Gather", "Gather", name] if name == "Conv" else [name])]


@pytest.mark.parametrize(
    ("encoder", "expected"),
    [
        ({}, [*CONVOLUTIONS, "Reshape"]),
        ({"padding": "zeros", "stride": [2, 1], "dilation": [1, 2]}, [*CONVOLUTIONS, "Reshape"]),
        ({"padding": "reflect"}, [*padded(CONVOLUTIONS), "Reshape"]),
        ({"padding": "replicate"}, [*padded(CONVOLUTIONS), "Reshape"]),
        ({"padding": "circular"}, [*padded(CONVOLUTIONS), "Reshape"]),
        ({"norm": "batch"}, [*CONVOLUTIONS, "Reshape"]),
        (
            {"norm": ["layer", "none"]},
            ["Conv", "LayerNormalization", "Elu", "Conv", "Elu", "Reshape"],
        ),
        ({"max_pool": [True, False]}, ["Conv", "Elu", "MaxPool", "Conv", "Elu", "Reshape"]),
        ({"global_pool": "max"}, [*CONVOLUTIONS, "ReduceMax"]),
        ({"global_pool": "avg"}, [*CONVOLUTIONS, "ReduceMean"]),
        ({"activation": "crelu"}, [*["Conv", "Relu", "Neg", "Relu", "Concat"] * 2, "Reshape"]),
    ],
    ids=lambda value: "-".join(value) or "plain" if isinstance(value, dict) else "",
)
def test_every_encoder(encoder, expected, tmp_path):
    policy = fresh_policy(IMAGE, **cnn(**encoder))
    path = policy.export(tmp_path / "policy.onnx")
    assert nodes(path) == ["Div", "Sub", "Div", *expected, "Gemm", "Elu", "Gemm"]
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 12, 11), np.uint8)
    assert_equal_actions(Policy(path).get_action(images), policy(images))
    assert_equal_actions(Policy(path).get_action(images[0]), policy(images[0]))


def test_an_image_beside_vectors(tmp_path):
    shapes = {"camera": (3, 12, 11), "joints": (5,), "command": (2,)}
    spec = EnvironmentSpec(shapes, 2, (-2.0, 0.0), (2.0, 10.0), 100, 0.02)
    policy = fresh_policy(spec, **cnn(("joints", "camera", "command"), obs_normalization=False))
    path = policy.export(tmp_path / "policy.onnx")
    concatenated = [*CONVOLUTIONS, "Reshape", "Concat", "Gemm", "Elu", "Gemm", "Clip", "Mul", "Add"]
    assert nodes(path) == concatenated
    assert list(Policy(path).obs_shapes) == ["joints", "camera", "command"]
    observations = policy.typical_observations(3)
    assert_equal_actions(Policy(path).get_action(observations), policy(observations))


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
