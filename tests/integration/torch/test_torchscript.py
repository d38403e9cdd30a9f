"""TorchScript: the `policy.pt` of RLBotics, from policies of this library."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from cases import CASES, CNN_MODEL, SQUASHED, groups_of, shapes_of
from jax_task import JaxTask, assert_close, make_config, runner_section
from policies import fresh_policy
from rlbotics_runner import make_runner
from torch_task import IMAGES, NUM_ACTIONS, VECTORS, observations

from bridges import torch_script
from bridges.torch import ExportError, export_torchscript, load_torch_checkpoint
from rlbotics_jax.algorithms import make_algorithm
from rlbotics_jax.config import ACTIVATIONS, ConfigError
from rlbotics_jax.envs import EnvironmentSpec, environment_spec
from rlbotics_jax.policy import TrainedPolicy
from rlbotics_jax.snapshot import current_policy

RICH_CNN = {
    "class_name": "CNNModel",
    "cnn_cfg": {
        "output_channels": [4, 4, 6],
        "kernel_size": [3, 3, 2],
        "dilation": [1, 2, 1],
        "padding": "reflect",
        "norm": ["batch", "layer", "none"],
        "max_pool": [True, False, False],
        "global_pool": "avg",
    },
}


def make_policy(groups, shapes, dtypes=None, bounds=(None, None), **actor) -> TrainedPolicy:
    """A policy of three actions with statistics far from the identity, where it has any."""
    spec = EnvironmentSpec(shapes, 3, *bounds, 10, 0.02, observation_dtypes=dtypes or {})
    overrides = {f"runner__actor__{key}": value for key, value in actor.items()}
    sets = {"runner__obs_groups__actor": groups, "runner__obs_groups__critic": ["joints"]}
    return fresh_policy(spec, **sets, runner__critic__obs_normalization=False, **overrides)


def assert_same_actions(policy: TrainedPolicy, path, is_one_input: bool = True) -> None:
    """At batch 1, 5 and 64, in the policy's own units."""
    module, act = torch.jit.load(path), policy.algorithm.policy(policy.parameters)
    for rows in (1, 5, 64):
        given = {group: array[:rows] for group, array in policy.typical_observations(64).items()}
        tensors = [torch.tensor(array) for array in given.values()]
        inputs = [torch.cat(tensors, dim=-1)] if is_one_input else tensors
        wanted = np.asarray(act({group: jnp.asarray(array) for group, array in given.items()}))
        np.testing.assert_allclose(module(*inputs).detach(), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(activation, tmp_path):
    """Several groups side by side; squashed, and the range of the actions left outside."""
    bounds = (-9.0,) * 3, (5.0,) * 3
    policy = make_policy(["joints", "command"], VECTORS, bounds=bounds, activation=activation, **SQUASHED)
    path = export_torchscript(policy, tmp_path / "folder" / "policy.pt")
    assert_same_actions(policy, path)
    assert 0.0 < torch.jit.load(path)(1e4 * torch.randn(64, 7)).abs().max() <= 1.0


def test_bounded_observations(tmp_path):
    policy = make_policy(["joints"], VECTORS, obs_clip=0.5)
    assert_same_actions(policy, export_torchscript(policy, tmp_path / "policy.pt"))


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("actor", [RICH_CNN, {**CNN_MODEL, "activation": "crelu", "obs_normalization": False}])
def test_images_alone(actor, dtype, tmp_path):
    policy = make_policy(["camera"], {**VECTORS, **IMAGES}, {"camera": dtype}, **actor)
    assert_same_actions(policy, export_torchscript(policy, tmp_path / "policy.pt"))


@pytest.mark.parametrize("padding", ["zeros", "replicate", "circular", "none"])
def test_images_beside_vectors_are_one_argument_each(padding, tmp_path):
    """In the order of the groups, an image first."""
    cnn = {"output_channels": [4, 3], "kernel_size": 3, "padding": padding, "activation": "crelu", "global_pool": "max"}
    shapes = {**VECTORS, **IMAGES, "wrist": (1, 8, 8)}
    groups, actor = ["camera", "joints", "wrist"], {"class_name": "CNNModel", "cnn_cfg": cnn}
    policy = make_policy(groups, shapes, {"wrist": "uint8"}, **actor)
    assert_same_actions(policy, export_torchscript(policy, tmp_path / "policy.pt"), is_one_input=False)


@pytest.mark.parametrize("case", ["adamw", "cnn"])
def test_it_is_the_module_that_rlbotics_exports(case, tmp_path):
    """The two files of one policy give the same actions."""
    runner = make_runner(
        runner_section(groups_of(case), **CASES[case]), shapes_of(case), bounds=([-2.0] * 3, [3.0] * 3)
    )
    runner.learn(2)
    runner.save(str(tmp_path / "model.pt"))
    runner.export_policy_to_jit(str(tmp_path), "theirs.pt")
    config, task = make_config(groups_of(case), **CASES[case]), JaxTask(tuple(shapes_of(case).items()))
    state = load_torch_checkpoint(tmp_path / "model.pt", config, task)
    algorithm = make_algorithm(config.runner, NUM_ACTIONS)
    policy = current_policy(config, algorithm, environment_spec(task), state)
    export_torchscript(policy, tmp_path / "ours.pt")
    inputs = runner.alg.get_obs_set(observations(shapes_of(case), 64), "actor")
    theirs, ours = (torch.jit.load(tmp_path / f"{name}.pt")(inputs).detach().numpy() for name in ("theirs", "ours"))
    assert_close(ours, theirs)


def test_a_module_that_differs_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setitem(torch_script._ACTIVATIONS, "elu", torch.nn.ReLU)
    with pytest.raises(ExportError, match="TorchScript and JAX differ by"):
        export_torchscript(make_policy(["joints"], VECTORS), tmp_path / "policy.pt")
    assert list(tmp_path.iterdir()) == []


def test_a_module_of_ones_own_is_refused(tmp_path):
    policy = make_policy(["joints"], VECTORS, class_name="own_model:OwnModel")
    with pytest.raises(ConfigError, match=r"runner.actor.class_name: OwnModel has no counterpart in PyTorch"):
        export_torchscript(policy, tmp_path / "policy.pt")
