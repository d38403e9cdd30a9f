"""bridges.policy: an ONNX file written by hand, run through every kind of input a user may pass."""

from __future__ import annotations

import ast
import inspect
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


def save(path, nodes, inputs, outputs, constants, metadata=None):
    """Write a graph without the exporter. `inputs` and `outputs`: {name: shape}, or {name: (shape, type)}."""

    def described(values):
        pairs = {
            name: value if isinstance(value, tuple) else (value, TensorProto.FLOAT) for name, value in values.items()
        }
        return [helper.make_tensor_value_info(name, type_, shape) for name, (shape, type_) in pairs.items()]

    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(
        [helper.make_node(*node[:3], **(node[3] if len(node) > 3 else {})) for node in nodes],
        "policy",
        described(inputs),
        described(outputs),
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    helper.set_model_props(model, metadata or {})
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


LINEAR = [("MatMul", ["observation", "w"], ["h"]), ("Add", ["h", "b"], ["action"])]
CONSTANTS = {"w": WEIGHT, "b": BIAS}


def save_linear(path, batch="batch", name="observation"):
    nodes = [("MatMul", [name, "w"], ["h"]), LINEAR[1]]
    return save(path, nodes, {name: [batch, 3]}, {"action": [batch, 2]}, CONSTANTS, {"dt": "0.02"})


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return Policy(save_linear(tmp_path_factory.mktemp("policy") / "linear.onnx"))


def test_is_one_file_for_python_3_8_with_numpy_and_onnxruntime():
    """Python 3.8 reads it, and it imports the standard library, numpy and onnxruntime."""
    tree = ast.parse(inspect.getsource(sys.modules[Policy.__module__]), feature_version=(3, 8))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module.split(".")[0] if node.level == 0 else ".")
    assert imported - sys.stdlib_module_names == {"numpy", "onnxruntime"}


def test_properties(policy):
    assert (policy.obs_dim, policy.obs_shape, policy.num_actions) == (3, (3,), 2)
    assert policy.obs_shapes == {"observation": (3,)}
    assert policy.metadata == {"dt": "0.02"}
    assert repr(policy) == f"Policy('{policy.path}', obs_shapes={{'observation': (3,)}}, num_actions=2)"


@pytest.mark.parametrize(
    "observation",
    [
        OBSERVATION,
        tuple(OBSERVATION),
        [1, 2, 4],
        np.array(OBSERVATION, np.float64),
        np.array(OBSERVATION, np.float32),
        np.array(OBSERVATION, np.uint8),
        np.array([1.0, 0.0, 2.0, 0.0, 4.0, 0.0], np.float32)[::2],
        np.array(OBSERVATION, ">f4"),
        jnp.array(OBSERVATION),
        [jnp.float32(value) for value in OBSERVATION],
        {"observation": OBSERVATION},
    ],
    ids=["list", "tuple", "integers", "float64", "float32", "uint8", "strided", "big-endian", "jax", "scalars", "dict"],
)
def test_single_observation_of_any_kind(policy, observation):
    action = policy.get_action(observation)
    assert action.dtype == np.float32
    np.testing.assert_array_equal(action, ACTION)
    policy.reset()  # it has nothing to forget
    np.testing.assert_array_equal(policy.get_action(observation), ACTION)


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


def test_rows_of_a_file_with_a_fixed_batch_of_one(tmp_path):
    """As mjlab and Isaac Lab write them, with names of their own."""
    policy = Policy(save_linear(tmp_path / "fixed.onnx", batch=1, name="obs"))
    assert policy.obs_shapes == {"obs": (3,)} and policy.num_actions == 2
    np.testing.assert_array_equal(policy.get_action(OBSERVATION), ACTION)
    observations = np.random.default_rng(0).standard_normal((5, 3))
    np.testing.assert_allclose(policy.get_action(observations), observations @ WEIGHT + BIAS, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def camera(tmp_path_factory):
    """action = sum over the image (2, 3, 4) / 255, and the last pixel."""
    nodes = [
        ("Div", ["observation", "s"], ["x"]),
        ("Reshape", ["x", "n"], ["f"]),
        ("MatMul", ["f", "w"], ["action"]),
    ]
    constants = {
        "s": np.float32(255),
        "n": np.array([-1, 24]),
        "w": np.stack([np.ones(24), np.eye(24)[-1]], axis=1).astype(np.float32),
    }
    path = tmp_path_factory.mktemp("policy") / "camera.onnx"
    return Policy(save(path, nodes, {"observation": ["batch", 2, 3, 4]}, {"action": ["batch", 2]}, constants))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_images(camera, dtype):
    assert (camera.obs_shape, camera.obs_dim) == ((2, 3, 4), 4)
    image = np.arange(24, dtype=dtype).reshape(2, 3, 4) * 10
    np.testing.assert_allclose(camera.get_action(image), [2760 / 255, 230 / 255], rtol=1e-6)
    np.testing.assert_allclose(camera.get_action(image.tolist()), [2760 / 255, 230 / 255], rtol=1e-6)
    actions = camera.get_action(np.stack([image, image // 10, image]))
    np.testing.assert_allclose(actions[1], [276 / 255, 23 / 255], rtol=1e-6)
    assert actions.shape == (3, 2)
    with pytest.raises(
        ValueError, match=r"'observation' of shape \(2, 3, 4\) or a batch \(batch, 2, 3, 4\), but .*\(24,\)"
    ):
        camera.get_action(image.reshape(-1))


@pytest.fixture(scope="module")
def two_inputs(tmp_path_factory):
    """action = joints @ WEIGHT + command."""
    path = tmp_path_factory.mktemp("policy") / "two.onnx"
    nodes = [("MatMul", ["joints", "w"], ["h"]), ("Add", ["h", "command"], ["action"])]
    inputs = {"joints": ["batch", 3], "command": ["batch", 2]}
    return Policy(save(path, nodes, inputs, {"action": ["batch", 2]}, {"w": WEIGHT}))


def test_several_inputs(two_inputs):
    assert two_inputs.obs_shapes == {"joints": (3,), "command": (2,)}
    action = two_inputs.get_action({"command": [0.5, 0.25], "joints": OBSERVATION})
    np.testing.assert_array_equal(action, ACTION)
    actions = two_inputs.get_action({"joints": [OBSERVATION] * 2, "command": np.zeros((2, 2))})
    np.testing.assert_array_equal(actions, [ACTION - BIAS] * 2)
    for name in ("obs_dim", "obs_shape"):
        with pytest.raises(
            ValueError, match=r"reads 'joints', 'command': use obs_shapes, which has a shape for each\."
        ):
            getattr(two_inputs, name)


@pytest.mark.parametrize(
    ("observation", "sentence"),
    [
        (OBSERVATION, r"reads a dict with 'joints', 'command', but was given list\."),
        ({"joints": OBSERVATION}, r"but was given one with 'joints'\."),
        ({}, r"but was given one with nothing\."),
        ({"joints": OBSERVATION, "commands": [0, 0]}, r"but was given one with 'joints', 'commands'\."),
        ({"joints": OBSERVATION, "command": [0, 0], "camera": [0]}, r"one with 'joints', 'command', 'camera'\."),
        ({"joints": [OBSERVATION], "command": np.zeros((2, 2))}, r"the shapes 'joints' \(1, 3\), 'command' \(2, 2\)\."),
        ({"joints": OBSERVATION, "command": np.zeros((1, 2))}, r"the shapes 'joints' \(3,\), 'command' \(1, 2\)\."),
        ({"joints": OBSERVATION, "command": [0]}, r"expects 'command' of shape \(2,\) .* given shape \(1,\)\."),
        (
            {"joints": OBSERVATION, "command": [0, np.inf]},
            r"finite numbers as 'command', .* given inf at index \(1,\)\.",
        ),
    ],
)
def test_dict_that_does_not_fit(two_inputs, observation, sentence):
    with pytest.raises(ValueError, match=sentence):
        two_inputs.get_action(observation)


def test_dict_with_a_wrong_name_for_the_only_input(policy):
    with pytest.raises(ValueError, match=r"reads a dict with 'observation', but was given one with 'policy'\."):
        policy.get_action({"policy": OBSERVATION})


def test_discrete_actions_stay_integers(tmp_path):
    nodes = [LINEAR[0], ("ArgMax", ["h"], ["action"], {"axis": 1})]
    outputs = {"action": (["batch", 1], TensorProto.INT64)}
    policy = Policy(save(tmp_path / "discrete.onnx", nodes, {"observation": ["batch", 3]}, outputs, {"w": WEIGHT}))
    actions = policy.get_action([[1.0, 2.0, 4.0], [-1.0, 0.0, 1.0]])
    assert actions.dtype == np.int64
    np.testing.assert_array_equal(actions, [[0], [1]])


class Memory:
    """A gated cell with the state h, and a second state, the decaying trace of what was observed; here in numpy:

    z = sigmoid(x Wz + h Uz), c = tanh(x Wc + h Uc), h' = h + z (c - h), t' = t / 2 + x, action = h' Wh + t' Wt
    """

    def __init__(self):
        random = np.random.default_rng(0)
        shapes = {"wz": (3, 4), "uz": (4, 4), "wc": (3, 4), "uc": (4, 4), "wh": (4, 2), "wt": (3, 2)}
        self.weights = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        self.reset(1)

    def reset(self, batch):
        self.h, self.t = np.zeros((batch, 4)), np.zeros((batch, 3))

    def step(self, x):
        w = self.weights
        z = 1 / (1 + np.exp(-(x @ w["wz"] + self.h @ w["uz"])))
        self.h = self.h + z * (np.tanh(x @ w["wc"] + self.h @ w["uc"]) - self.h)
        self.t = self.t / 2 + x
        return self.h @ w["wh"] + self.t @ w["wt"]

    def save(self, path, batch="batch", states='{"t_in": "t_out", "h_in": "h_out"}'):
        nodes = [
            ("MatMul", ["observation", "wz"], ["xz"]),
            ("MatMul", ["h_in", "uz"], ["hz"]),
            ("Add", ["xz", "hz"], ["az"]),
            ("Sigmoid", ["az"], ["z"]),
            ("MatMul", ["observation", "wc"], ["xc"]),
            ("MatMul", ["h_in", "uc"], ["hc"]),
            ("Add", ["xc", "hc"], ["ac"]),
            ("Tanh", ["ac"], ["c"]),
            ("Sub", ["c", "h_in"], ["d"]),
            ("Mul", ["z", "d"], ["zd"]),
            ("Add", ["h_in", "zd"], ["h_out"]),
            ("Mul", ["t_in", "half"], ["t_half"]),
            ("Add", ["t_half", "observation"], ["t_out"]),
            ("MatMul", ["h_out", "wh"], ["ah"]),
            ("MatMul", ["t_out", "wt"], ["at"]),
            ("Add", ["ah", "at"], ["action"]),
        ]
        inputs = {"h_in": [batch, 4], "observation": [batch, 3], "t_in": [batch, 3]}
        outputs = {"h_out": [batch, 4], "action": [batch, 2], "t_out": [batch, 3]}
        metadata = {} if states is None else {"recurrent_states": states}
        return save(path, nodes, inputs, outputs, {**self.weights, "half": np.float32(0.5)}, metadata)


@pytest.mark.parametrize("batch", [None, 1, 3])
def test_recurrent_policy_remembers_until_it_is_reset(tmp_path, batch):
    memory = Memory()
    policy = Policy(memory.save(tmp_path / "memory.onnx"))
    assert (policy.obs_shapes, policy.num_actions) == ({"observation": (3,)}, 2)
    random = np.random.default_rng(1)
    for step in range(20):
        if step in (0, 9):
            memory.reset(batch or 1)
            policy.reset()
        x = random.normal(size=(3,) if batch is None else (batch, 3))
        expected = memory.step(np.atleast_2d(x))
        np.testing.assert_allclose(
            policy.get_action(x), expected[0] if batch is None else expected, rtol=1e-4, atol=1e-5
        )


def test_refused_observation_does_not_move_the_memory(tmp_path):
    memory = Memory()
    policy = Policy(memory.save(tmp_path / "memory.onnx"))
    x = np.ones((2, 3))
    np.testing.assert_allclose(policy.get_action(x), memory.step(x), rtol=1e-5)
    sentence = r"remembers a batch of 2, but was given one of 1: call reset\(\) before the batch changes\."
    with pytest.raises(ValueError, match=sentence):
        policy.get_action(OBSERVATION)
    with pytest.raises(ValueError, match="finite numbers"):
        policy.get_action(x * np.nan)
    np.testing.assert_allclose(policy.get_action(x), memory.step(x), rtol=1e-5)
    policy.reset()
    memory.reset(1)
    np.testing.assert_allclose(policy.get_action(OBSERVATION), memory.step(np.array([OBSERVATION]))[0], rtol=1e-5)


def test_recurrent_file_with_a_fixed_batch_of_one_remembers_one_robot(tmp_path):
    memory = Memory()
    policy = Policy(memory.save(tmp_path / "memory.onnx", batch=1))
    for _ in range(3):
        np.testing.assert_allclose(policy.get_action(OBSERVATION), memory.step(np.array([OBSERVATION]))[0], rtol=1e-5)
    with pytest.raises(ValueError, match=r"remembers one robot, .* given a batch of 2: use a Policy for each\."):
        policy.get_action([OBSERVATION] * 2)


@pytest.mark.parametrize(
    "states",
    [None, "no JSON", '["h_in"]', "3", '{"h_in": ["h_out"]}', '{"h_in": "h_out"}', '{"h": "h_out", "t_in": "t_out"}'],
)
def test_states_that_the_metadata_does_not_name_rightly(tmp_path, states):
    with pytest.raises(ValueError, match=r"is not the model of a policy, .* recurrent_states \{"):
        Policy(Memory().save(tmp_path / "memory.onnx", states=states))


@pytest.mark.parametrize(
    ("observation", "given"),
    [
        (np.zeros(4), r"\(4,\)"),
        (np.zeros((2, 4)), r"\(2, 4\)"),
        (np.zeros((1, 2, 3)), r"\(1, 2, 3\)"),
        (1.0, r"\(\)"),
        (np.zeros((0, 3)), r"\(0, 3\)"),
        ([], r"\(0,\)"),
    ],
)
def test_wrong_shape_names_expected_and_given(policy, observation, given):
    sentence = rf"expects 'observation' of shape \(3,\) or a batch \(batch, 3\), but was given shape {given}\."
    with pytest.raises(ValueError, match=sentence):
        policy.get_action(observation)


@pytest.mark.parametrize(
    "observation", [[[1.0], [1.0, 2.0]], "abc", ["1", "2", "4"], [1.0, None, 2.0], 1j * np.ones(3), None, object()]
)
def test_what_is_no_array_of_numbers_is_refused(policy, observation):
    sentence = r"expects an array of numbers as 'observation', but was given (list|str|ndarray|NoneType|object): ."
    with pytest.raises(ValueError, match=sentence):
        policy.get_action(observation)


@pytest.mark.parametrize(
    ("observation", "found"),
    [
        ([1.0, np.nan, np.inf], r"nan at index \(1,\)"),
        (np.array([[1, 2, 3], [4, -np.inf, 5]], np.float32), r"-inf at index \(1, 1\)"),
        (np.array([0.0, 0.0, 1e300]), r"inf at index \(2,\)"),
    ],
)
def test_number_that_is_not_finite_is_refused(policy, observation, found):
    with pytest.raises(ValueError, match=rf"expects finite numbers as 'observation', but was given {found}\."):
        policy.get_action(observation)


def test_large_number_is_finite(policy):
    np.testing.assert_allclose(policy.get_action(np.array([3e37, -1e37, 0.0], np.float32)), [1e37, 1e37], rtol=1e-6)


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


FREE, ACTIONS = {"observation": ["batch", 3]}, {"action": ["batch", 2]}


@pytest.mark.parametrize(
    ("nodes", "inputs", "outputs"),
    [
        (LINEAR, {"observation": [3]}, {"action": [2]}),
        (LINEAR, {"observation": ["batch", "n"]}, ACTIONS),
        (LINEAR, {"observation": [16, 3]}, {"action": [16, 2]}),
        (LINEAR, FREE, {"action": ["batch", 2], "h": ["batch", 2]}),
        (
            [("Cast", ["x"], ["observation"], {"to": TensorProto.FLOAT}), *LINEAR],
            {"x": (["batch", 3], TensorProto.DOUBLE)},
            ACTIONS,
        ),
        ([*LINEAR[:1], ("ReduceSum", ["h"], ["action"], {"keepdims": 0})], FREE, {"action": []}),
    ],
    ids=["no batch", "free size", "batch of 16", "two outputs", "float64", "scalar"],
)
def test_model_that_is_no_policy(tmp_path, nodes, inputs, outputs):
    path = save(tmp_path / "other.onnx", nodes, inputs, outputs, CONSTANTS)
    with pytest.raises(ValueError, match=r"other.onnx' is not the model of a policy, .*; it has inputs '\w+' tensor\("):
        Policy(path)


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
