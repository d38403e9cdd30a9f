"""The command line, from a checkpoint of RLBotics to files for a robot and back to RLBotics."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from cases import CASES, VECTOR_GROUPS
from jax_task import runner_section, with_env
from rlbotics_runner import make_runner
from torch_task import VECTORS

from rlbotics_jax.cli import main
from rlbotics_jax.config import save_config


def printed(capsys, label: str) -> str:
    """The rest of the line that begins so, of what was printed since the last call."""
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(label)]
    return line.removeprefix(label).strip()


@pytest.fixture
def theirs(tmp_path) -> Path:
    """A run directory of RLBotics."""
    section = runner_section(VECTOR_GROUPS, **CASES["adam"], logger={"log_dir": str(tmp_path / "theirs")})
    runner = make_runner(section, VECTORS)
    runner.learn(3)
    return Path(runner.log_dir)


def test_import_train_and_export(theirs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config = with_env(runner_section(VECTOR_GROUPS, **CASES["adam"], logger={"log_dir": "ours"}))
    save_config(config, "task.json")
    assert main(["import", str(theirs / "model_best.pt"), "--config", "task.json"]) == 0
    program, *words = shlex.split(printed(capsys, "Train on with:"))
    assert program == "rlbotics-jax" and main(words) == 0
    run = Path(printed(capsys, "Run:"))
    assert (run / "policy.onnx").is_file()
    for name, file in (("torch", "model.pt"), ("torchscript", "policy.pt"), ("onnx", "policy.onnx")):
        (run / file).unlink(missing_ok=True)
        assert main(["export", str(run), "--format", name]) == 0
        assert printed(capsys, "Written:") == str(run / file) and (run / file).is_file()
    assert main(["export", str(run), "--bundle", "bundle"]) == 0
    assert {"policy.onnx", "policy.py", "metadata.json", "example.py"} <= {
        path.name for path in Path("bundle").iterdir()
    }
    runner = make_runner(runner_section(VECTOR_GROUPS, **CASES["adam"]), VECTORS)
    runner.load(str(run / "model.pt"))
    runner.learn(1)


def test_bad_input_is_told_in_one_sentence(theirs, capsys):
    """RLBotics' own config.json has no section env."""
    assert main(["import", str(theirs / "model_best.pt"), "--config", str(theirs / "config.json")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {theirs / 'config.json'}: env: the section is missing") and error.count("\n") == 1
