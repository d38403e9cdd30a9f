"""examples/cpp/policy.cpp, compiled by the command in its head, beside `bridges.policy.Policy` on the same files.

The environment variable ORT names a folder with the include/ and lib/ of ONNX Runtime; onnxruntime.sh makes one.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import small_config
from onnx import helper

import rlbotics_jax as rl
from bridges.policy import Policy

SOURCE = Path(__file__).parents[3] / "examples" / "cpp" / "policy.cpp"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Compile the example with the documented command; every warning is an error."""
    (command,) = re.findall(r"^// +(g\+\+ .*)$", SOURCE.read_text(), re.MULTILINE)
    folder = tmp_path_factory.mktemp("program")
    command = command.replace("policy.cpp", f"-Wall -Wextra -Werror '{SOURCE}' -isystem $ORT/include", 1)
    subprocess.run(["bash", "-euc", command], check=True, cwd=folder)
    return folder / "policy"


@pytest.fixture(scope="module")
def policy_file(tmp_path_factory):
    """Export a policy whose normaliser has seen one rollout."""
    result = rl.train(small_config(runner__num_learning_iterations=1))
    return result.policy.export(tmp_path_factory.mktemp("policy") / "policy.onnx")


def run(program, *arguments):
    """Return the control time step as it was printed, and the action."""
    result = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    (name, dt), *action = (line.split() for line in result.stdout.splitlines())
    assert name == "dt"
    return dt, np.array(action, np.float32).reshape(-1)


def test_action_and_time_step_are_those_of_the_python_policy(program, policy_file):
    policy = Policy(policy_file)
    observation = np.random.default_rng(0).standard_normal(policy.obs_dim).astype(np.float32)
    dt, action = run(program, policy_file, *observation)
    assert dt == policy.metadata["dt"] and float(dt) == 0.01
    assert np.abs(action).max() > 1e-3
    np.testing.assert_allclose(action, policy.get_action(observation), rtol=1e-6, atol=1e-6)


def test_zeros_where_no_observation_is_given(program, policy_file):
    policy = Policy(policy_file)
    _, action = run(program, policy_file)
    np.testing.assert_allclose(action, policy.get_action(np.zeros(policy.obs_dim)), rtol=1e-6, atol=1e-6)


def test_images_are_read_in_row_major_order(program, tmp_path):
    float32 = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["observation"], ["action"])],
        "policy",
        [helper.make_tensor_value_info("observation", float32, ["batch", 2, 1, 3])],
        [helper.make_tensor_value_info("action", float32, ["batch", 6])],
    )
    path = tmp_path / "policy.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    dt, action = run(program, path, *range(6))
    assert dt == "unknown"
    np.testing.assert_array_equal(action, range(6))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "usage: policy policy.onnx"),
        (("{policy}", 0.0, 1.0), "the policy reads 5 numbers, not 2"),
        (("{policy}", 0, 0, 0, 0, "1.0f"), "1.0f is not a number"),
        (("nowhere.onnx",), "nowhere.onnx"),
    ],
)
def test_bad_input_ends_in_one_sentence(program, policy_file, arguments, message):
    arguments = [str(argument).format(policy=policy_file) for argument in arguments]
    result = subprocess.run([program, *arguments], capture_output=True, text=True)
    assert result.returncode == 1 and result.stderr.startswith("error: ") and message in result.stderr
