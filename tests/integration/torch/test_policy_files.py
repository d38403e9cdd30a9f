"""ONNX files: RLBotics' own Policy class runs ours, and `bridges.policy.Policy` runs theirs, with the same actions."""

from __future__ import annotations

import numpy as np
import pytest
from cases import CASES, groups_of, shapes_of
from jax_task import assert_close, runner_section
from policies import fresh_policy
from rlbotics_runner import make_runner, outputs_of
from telekinesis.rlbotics.policy import Policy as TheirPolicy
from torch_task import IMAGES, VECTORS, observations

from bridges.policy import Policy
from rlbotics_jax.envs import EnvironmentSpec

LOW, HIGH = (-2.0, -0.5, 10.0), (3.0, 0.5, 40.0)
SQUASHED = "SquashedGaussianDistribution"


@pytest.mark.parametrize("bounds", [(None, None), (LOW, HIGH)], ids=["free", "bounded"])
@pytest.mark.parametrize("distribution", ["GaussianDistribution", SQUASHED])
def test_their_policy_class_runs_our_file(distribution, bounds, tmp_path):
    """Single observations and batches of two groups, with statistics far from the identity."""
    spec = EnvironmentSpec(VECTORS, 3, *bounds, 10, 0.02)
    sets = {"runner__obs_groups__actor": ["joints", "command"], "runner__obs_groups__critic": ["privileged"]}
    policy = fresh_policy(spec, **sets, runner__actor__distribution_cfg__class_name=distribution)
    theirs = TheirPolicy(policy.export(tmp_path / "policy.onnx"))
    assert (theirs.obs_dim, theirs.num_actions) == (7, 3)

    groups = policy.typical_observations(32)
    batch = np.concatenate(list(groups.values()), axis=-1)
    wanted = np.asarray(policy(groups))
    assert np.ptp(wanted, axis=0).min() > 0
    np.testing.assert_allclose(theirs.get_action(batch), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    np.testing.assert_allclose(theirs.get_action(batch[7]), wanted[7], rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_their_policy_class_runs_our_file_of_an_image_policy(dtype, tmp_path):
    """In batches: a single image it takes for a batch of something else."""
    spec = EnvironmentSpec(IMAGES, 3, LOW, HIGH, 10, 0.02, observation_dtypes={"camera": dtype})
    sets = {"runner__obs_groups__actor": ["camera"], "runner__obs_groups__critic": ["camera"]}
    cnn = {"runner__actor__class_name": "CNNModel", "runner__actor__cnn_cfg": CASES["cnn"]["actor"]["cnn_cfg"]}
    critic = {key.replace("actor", "critic"): value for key, value in cnn.items()}
    policy = fresh_policy(spec, **sets, **cnn, **critic)
    theirs = TheirPolicy(policy.export(tmp_path / "policy.onnx"))
    images = policy.typical_observations(16)["camera"]
    wanted = np.asarray(policy(images))
    np.testing.assert_allclose(theirs.get_action(images), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("bounds", [None, (list(LOW), list(HIGH))], ids=["free", "bounded"])
@pytest.mark.parametrize("case", ["adam", "adamw", "cnn"])
def test_our_policy_class_runs_their_file(case, bounds, tmp_path):
    """What RLBotics' runner exports: Gaussian and squashed, vectors and images, with the range inside."""
    runner = make_runner(runner_section(groups_of(case), **CASES[case]), shapes_of(case), bounds=bounds)
    runner.learn(2)
    file = runner.export(str(tmp_path), from_best=False)
    ours, theirs = Policy(file), TheirPolicy(file)
    inputs = observations(shapes_of(case), 16)
    batch = runner.alg.get_obs_set(inputs, "actor").numpy()
    assert ours.obs_shape == batch.shape[1:] and ours.num_actions == 3

    wanted = outputs_of(runner, inputs)["actions"]
    if bounds is not None:
        low, high = (np.array(bound, np.float32) for bound in bounds)
        wanted = low + 0.5 * (np.clip(wanted, -1.0, 1.0) + 1.0) * (high - low)
    assert_close(ours.get_action(batch), wanted)
    assert_close(ours.get_action(batch[3]), wanted[3])
    np.testing.assert_array_equal(ours.get_action(batch), theirs.get_action(batch))
