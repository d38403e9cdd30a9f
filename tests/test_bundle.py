"""bridges.bundle: what a robot is given runs by itself, and appears whole or not at all."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import bridges.policy
from bridges.bundle import write_bundle

FILES = {"policy.onnx", "policy.py", "metadata.json", "example.py"}


def save_policy(path, inputs, metadata):
    """Write action = sum of each input + [0.5, -1], one input of any shape after the other."""
    nodes = []
    for name in inputs:
        nodes.append(helper.make_node("Flatten", [name], [f"{name}_flat"]))
        nodes.append(helper.make_node("ReduceSum", [f"{name}_flat", "axes"], [f"{name}_sum"], keepdims=1))
    nodes.append(helper.make_node("Sum", [*(f"{name}_sum" for name in inputs), "offset"], ["action"]))
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape]) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("action", TensorProto.FLOAT, ["batch", 2])],
        [
            numpy_helper.from_array(np.array([1]), "axes"),
            numpy_helper.from_array(np.array([[0.5, -1.0]], np.float32), "offset"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    helper.set_model_props(model, metadata)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


@pytest.fixture
def policy_file(tmp_path):
    metadata = {"dt": "0.005", "action_low": "-1.0,-inf", "task": "Möve", "observation_groups": '{"a": 3}'}
    return save_policy(tmp_path / "trained.onnx", {"observation": (3,)}, metadata)


def run_example(bundle, elsewhere):
    """Run example.py as `python -I`, without this library's folder, environment variables or working directory."""
    command = [sys.executable, "-I", str(bundle / "example.py")]
    return subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, timeout=60)


def test_bundle_holds_the_policy_its_code_and_its_metadata(policy_file, tmp_path):
    bundle = write_bundle(policy_file, tmp_path / "robots" / "arm")
    assert bundle == tmp_path / "robots" / "arm" and [entry.name for entry in bundle.parent.iterdir()] == ["arm"]
    assert {entry.name for entry in bundle.iterdir()} == FILES
    assert (bundle / "policy.onnx").read_bytes() == policy_file.read_bytes()
    assert (bundle / "policy.py").read_bytes() == Path(bridges.policy.__file__).read_bytes()
    text = (bundle / "metadata.json").read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=pytest.fail) == {
        "dt": 0.005,
        "action_low": [-1.0, "-inf"],
        "task": "Möve",
        "observation_groups": {"a": 3},
    }
    assert bundle.stat().st_mode & 0o777 == tmp_path.joinpath("robots").stat().st_mode & 0o777


@pytest.mark.parametrize(
    "inputs", [{"observation": (3,)}, {"observation": (3, 8, 8)}, {"state": (3,), "camera": (1, 4, 4)}]
)
def test_example_runs_with_the_four_files_alone(tmp_path, inputs):
    path = save_policy(tmp_path / "trained.onnx", inputs, {"dt": "0.005", "task": "reach"})
    bundle = write_bundle(path, tmp_path / "bundle")
    path.unlink()
    moved = tmp_path / "robot" / "somewhere else"
    moved.parent.mkdir()
    shutil.move(bundle, moved)
    result = run_example(moved, tmp_path / "robot")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == f"inputs {inputs}, 2 actions"
    assert lines[1:3] == ["dt: 0.005", "task: reach"]
    assert lines[3:] == [f"step {step}: action [0.5, -1.0]" for step in range(5)]


def test_example_is_python_3_8(policy_file, tmp_path):
    text = (write_bundle(policy_file, tmp_path / "bundle") / "example.py").read_text(encoding="utf-8")
    ast.parse(text, feature_version=(3, 8))


def test_earlier_bundle_and_empty_folder_are_replaced(policy_file, tmp_path):
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    write_bundle(policy_file, bundle)
    (bundle / "example.py").write_text("my robot")
    (bundle / "policy.py").write_text("old")
    (bundle / "__pycache__").mkdir()
    other = save_policy(tmp_path / "other.onnx", {"observation": (4,)}, {})
    write_bundle(other, bundle)
    assert {entry.name for entry in bundle.iterdir()} == FILES
    assert (bundle / "policy.onnx").read_bytes() == other.read_bytes()
    assert (bundle / "metadata.json").read_text() == "{}\n" and (bundle / "policy.py").read_text() != "old"
    assert (bundle / "example.py").read_text() == "my robot"
    assert {entry.name for entry in tmp_path.iterdir()} == {"bundle", "trained.onnx", "other.onnx"}
    write_bundle(bundle / "policy.onnx", bundle)  # a bundle out of its own file
    assert (bundle / "policy.onnx").read_bytes() == other.read_bytes()


def test_bundle_behind_a_link_is_replaced_there(policy_file, tmp_path):
    write_bundle(policy_file, tmp_path / "bundle")
    (tmp_path / "link").symlink_to(tmp_path / "bundle")
    write_bundle(policy_file, tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and {entry.name for entry in (tmp_path / "bundle").iterdir()} == FILES


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["notes.txt"], "holds 'notes.txt'"),
        ([*FILES, "gains.yaml"], "holds 'gains.yaml'"),
        (["policy.py"], "holds only a part of one"),
    ],
)
def test_folder_with_other_files_is_refused_and_kept(policy_file, tmp_path, names, found):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in names:
        (folder / name).write_text("mine")
    with pytest.raises(
        FileExistsError, match=rf"folder' is no bundle that could be replaced \(it {found}\); name a new"
    ):
        write_bundle(policy_file, folder)
    assert {entry.name: entry.read_text() for entry in folder.iterdir()} == dict.fromkeys(names, "mine")
    assert {entry.name for entry in tmp_path.iterdir()} == {"folder", "trained.onnx"}


def test_file_and_working_folder_are_refused(policy_file, tmp_path, monkeypatch):
    with pytest.raises(FileExistsError, match=r"trained.onnx' is a file; name a folder"):
        write_bundle(policy_file, policy_file)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(FileExistsError, match=r"'\.' is the working folder, which cannot be replaced"):
        write_bundle(policy_file, ".")


def test_what_is_no_policy_leaves_nothing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no policy file '.*nothing\.onnx'\."):
        write_bundle(tmp_path / "nothing.onnx", tmp_path / "bundle")
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(ValueError, match="cannot be loaded as an ONNX model"):
        write_bundle(tmp_path / "text.onnx", tmp_path / "deep" / "bundle")
    assert [entry.name for entry in tmp_path.iterdir()] == ["text.onnx"]


def test_failure_leaves_the_earlier_bundle(policy_file, tmp_path, monkeypatch):
    bundle = write_bundle(policy_file, tmp_path / "bundle")
    before = {entry.name: entry.read_bytes() for entry in bundle.iterdir()}
    other = save_policy(tmp_path / "other.onnx", {"observation": (4,)}, {})
    monkeypatch.setattr(bridges.policy, "__file__", str(tmp_path / "missing.py"))
    with pytest.raises(FileNotFoundError):
        write_bundle(other, bundle)
    assert {entry.name: entry.read_bytes() for entry in bundle.iterdir()} == before
    assert {entry.name for entry in tmp_path.iterdir()} == {"bundle", "trained.onnx", "other.onnx"}
