"""bridges.policy: an ONNX file written by hand, run through every kind of input a user may pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bridges.policy import Policy

ROOT = Path(__file__).parents[1]

# action = observation @ WEIGHT + BIAS
WEIGHT = np.array([[1.0, 0.0], [2.0, -1.0], [0.0, 0.5]], np.float32)
BIAS = np.array([0.5, 0.25], np.float32)
OBSERVATION = [1.0, 2.0, 4.0]
ACTION = np.array([5.5, 0.25], np.float32)


def save_linear(path, inputs=1, rank=2):
    """Write `observation @ WEIGHT + BIAS` without the exporter; `inputs` and `rank` make files that are no policy."""
    shape = ["batch", 3] if rank == 2 else [3]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["observation", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["action"])],
        "policy",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ["observation", "extra"][:inputs]],
        [helper.make_tensor_value_info("action", TensorProto.FLOAT, ["batch", 2] if rank == 2 else [2])],
        [numpy_helper.from_array(WEIGHT, "w"), numpy_helper.from_array(BIAS, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    helper.set_model_props(model, {"dt": "0.02"})
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return Policy(save_linear(tmp_path_factory.mktemp("policy") / "linear.onnx"))


def test_properties(policy):
    assert (policy.obs_dim, policy.num_actions) == (3, 2)
    assert policy.metadata == {"dt": "0.02"}
    assert repr(policy) == f"Policy('{policy.path}', obs_dim=3, num_actions=2)"


@pytest.mark.parametrize(
    "observation",
    [
        OBSERVATION,
        tuple(OBSERVATION),
        [1, 2, 4],
        np.array(OBSERVATION, np.float64),
        np.array(OBSERVATION, np.float32),
        np.array([1.0, 0.0, 2.0, 0.0, 4.0, 0.0])[::2],
        jnp.array(OBSERVATION),
    ],
    ids=["list", "tuple", "integers", "float64", "float32", "strided", "jax"],
)
def test_single_observation_of_any_kind(policy, observation):
    action = policy.get_action(observation)
    assert action.dtype == np.float32
    np.testing.assert_array_equal(action, ACTION)


@pytest.mark.parametrize("batch", [1, 2, 64])
def test_batch_keeps_its_dimension(policy, batch):
    observations = np.random.default_rng(0).standard_normal((batch, 3))
    actions = policy.get_action(observations.tolist())
    assert actions.shape == (batch, 2) and actions.dtype == np.float32
    np.testing.assert_allclose(actions, observations @ WEIGHT + BIAS, rtol=1e-5, atol=1e-6)


def test_tensor_that_numpy_refuses_is_detached_first(policy):
    class Tensor:
        """Behaves like a torch tensor with gradients on an accelerator: numpy may read it only after detach().cpu()."""

        def __init__(self, on_host=False):
            self.on_host = on_host

        def detach(self):
            return self

        def cpu(self):
            return Tensor(on_host=True)

        def __array__(self, dtype=None, copy=None):
            if not self.on_host:
                raise TypeError("can't convert cuda tensor")
            return np.array(OBSERVATION, dtype)

    np.testing.assert_array_equal(policy.get_action(Tensor()), ACTION)


@pytest.mark.parametrize(
    ("observation", "given"),
    [
        (np.zeros(4), r"\(4,\)"),
        (np.zeros((2, 4)), r"\(2, 4\)"),
        (np.zeros((1, 2, 3)), r"\(1, 2, 3\)"),
        (1.0, r"\(\)"),
        (np.zeros((0, 2)), r"\(0, 2\)"),
    ],
)
def test_wrong_shape_names_expected_and_given(policy, observation, given):
    with pytest.raises(ValueError, match=rf"shape \(3,\) or a batch \(batch, 3\), but was given shape {given}\."):
        policy.get_action(observation)


@pytest.mark.parametrize("observation", [{"policy": [1.0]}, [[1.0], [1.0, 2.0]], "abc", object()])
def test_what_is_no_array_of_numbers_is_refused(policy, observation):
    with pytest.raises(
        ValueError, match=r"expects an array of numbers as observation, but was given (dict|list|str|object)"
    ):
        policy.get_action(observation)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no policy file '.*nothing\.onnx'\."):
        Policy(tmp_path / "nothing.onnx")
    with pytest.raises(FileNotFoundError):
        Policy(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not an onnx file"])
def test_file_that_is_no_onnx_model(tmp_path, content):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"'.*model\.onnx' cannot be loaded as an ONNX model: .") as caught:
        Policy(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{"inputs": 2}, {"rank": 1}])
def test_model_that_is_no_policy(tmp_path, options):
    with pytest.raises(ValueError, match="is not the model of a feed-forward policy"):
        Policy(save_linear(tmp_path / "other.onnx", **options))


def test_missing_onnxruntime_names_the_pip_command(tmp_path):
    path = save_linear(tmp_path / "linear.onnx")
    code = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "from bridges.policy import Policy\n"
        f"try: Policy({str(path)!r})\n"
        "except ImportError as error: print(error)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == (
        "Running an exported policy needs onnxruntime; install it with: pip install onnxruntime"
    )
