"""rlbotics_jax.exports, and the command `export`: files, bundles, and what it refuses without leaving a file."""

from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import pytest
from helpers import small_config
from toys import ActionReward

import rlbotics_jax as rl
from bridges.policy import Policy
from rlbotics_jax import cli
from rlbotics_jax.config import config_hash
from rlbotics_jax.exports import export, export_bundle
from rlbotics_jax.metadata import decode_metadata


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of a toy."""
    folder = str(tmp_path_factory.mktemp("logs"))
    return rl.train(small_config(runner__logger={"log_dir": folder}), ActionReward()).run_directory


@pytest.fixture
def copy(run, tmp_path):
    """A copy of the run's config and checkpoints, to be damaged."""
    shutil.copytree(run / "checkpoints", tmp_path / "run" / "checkpoints")
    shutil.copy(run / "config.json", tmp_path / "run")
    return tmp_path / "run"


def refuse(capsys, *arguments):
    assert cli.main([*map(str, arguments)]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith("error: ") and output.err.count("\n") == 1, output
    return output.err


def test_onnx_is_the_default(run, tmp_path, capsys):
    assert cli.main(["export", str(run), "--output", str(tmp_path / "deep" / "p.onnx")]) == 0
    assert capsys.readouterr().out == f"Written: {tmp_path / 'deep' / 'p.onnx'}\n"
    metadata = decode_metadata(Policy(tmp_path / "deep" / "p.onnx").metadata)
    assert metadata["run_name"] == f"experiment/{run.name}"
    assert metadata["config_hash"] == config_hash(rl.load_config(run / "config.json"))
    assert metadata == decode_metadata(Policy(run / "policy.onnx").metadata)


def test_a_bundle(run, tmp_path, capsys):
    assert cli.main(["export", str(run), "--bundle", str(tmp_path / "robot")]) == 0
    assert capsys.readouterr().out == f"Bundle: {tmp_path / 'robot'}\n"
    files = sorted(path.name for path in (tmp_path / "robot").iterdir())
    assert files == ["example.py", "metadata.json", "policy.onnx", "policy.py"]
    assert json.loads((tmp_path / "robot" / "metadata.json").read_text())["run_name"] == f"experiment/{run.name}"
    observation = np.ones(Policy(run / "policy.onnx").obs_dim, np.float32)
    expected = Policy(run / "policy.onnx").get_action(observation)
    np.testing.assert_array_equal(Policy(tmp_path / "robot" / "policy.onnx").get_action(observation), expected)
    export_bundle(run, tmp_path / "robot", "last")
    assert json.loads((tmp_path / "robot" / "metadata.json").read_text())["which"] == "last"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "tflite"], "invalid choice 'tflite' for argument '--format'"),
        (["--bundle", "FOLDER/robot", "--format", "torch"], "--bundle writes a folder of its own"),
        (["--bundle", "FOLDER/robot", "--output", "p.onnx"], "leave out --output and --format"),
        (["--format", "torch", "--which", "best", "--output", "FOLDER/m.pt"], "writes the last state"),
    ],
)
def test_what_is_refused_leaves_no_file(run, tmp_path, capsys, arguments, message):
    before = sorted(run.iterdir())
    arguments = [argument.replace("FOLDER", str(tmp_path)) for argument in arguments]
    assert message in refuse(capsys, "export", run, *arguments)
    assert sorted(run.iterdir()) == before and not list(tmp_path.iterdir())


def test_an_unknown_format():
    with pytest.raises(ValueError, match="format is 'onx'; allowed are .*; the nearest is 'onnx'"):
        export("run", format="onx")


def test_a_run_without_a_checkpoint(copy, tmp_path, capsys):
    for checkpoint in (copy / "checkpoints").iterdir():
        shutil.rmtree(checkpoint)
    assert "has no checkpoint" in refuse(capsys, "export", copy, "--output", tmp_path / "p.onnx")
    assert "has no checkpoint" in refuse(capsys, "export", copy, "--bundle", tmp_path / "robot")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_observation_size_that_does_not_match(copy, tmp_path, capsys):
    values = json.loads((copy / "config.json").read_text())
    values["environment"]["observation_shapes"]["observation"] = [7]
    (copy / "config.json").write_text(json.dumps(values))
    message = refuse(capsys, "export", copy, "--output", tmp_path / "p.onnx")
    assert "Dense_0.kernel is float32[2, 16] there, needed is float32[7, 16]" in message
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_torch_is_named_where_it_is_missing(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for format in ("torch", "torchscript"):
        message = refuse(capsys, "export", run, "--format", format, "--output", tmp_path / "x.pt")
        assert "torch" in message and "pip install" in message
    assert "pip install" in refuse(capsys, "import", run / "policy.onnx", "--config", run / "config.json")
    assert not list(tmp_path.iterdir())
