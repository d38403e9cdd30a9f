"""What the bridge to PyTorch says without PyTorch, and about files that are not there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import small_config
from toys import ConstantReward

from bridges.torch import config_beside, load_torch_checkpoint, rlbotics_runner_section, save_torch_checkpoint
from bridges.torch_files import import_torch
from rlbotics_jax.config import ConfigError
from rlbotics_jax.importing import import_checkpoint
from rlbotics_jax.training import train


@pytest.fixture
def no_torch(monkeypatch):
    """torch as it is where it is not installed."""
    monkeypatch.setitem(sys.modules, "torch", None)


def test_missing_torch_is_told_with_the_command(no_torch, tmp_path):
    sentence = r"needs the package 'torch'; install it with: pip install torch$"
    with pytest.raises(ImportError, match=f"^Testing {sentence}"):
        import_torch("Testing")
    (tmp_path / "model.pt").write_bytes(b"")
    with pytest.raises(ImportError, match=f"^Reading a PyTorch checkpoint {sentence}"):
        load_torch_checkpoint(tmp_path / "model.pt", small_config())
    with pytest.raises(ImportError, match=f"^Writing a PyTorch checkpoint {sentence}"):
        save_torch_checkpoint(
            train(small_config(runner__num_learning_iterations=1), ConstantReward()), tmp_path / "new.pt"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_bridge_imports_without_torch():
    """Neither the library nor the bridge imports it before it is needed."""
    script = "import sys; sys.modules['torch'] = None; import bridges.torch, rlbotics_jax.importing"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[1])


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no checkpoint file '.*missing.pt'"):
        load_torch_checkpoint(tmp_path / "missing.pt", small_config())
    with pytest.raises(FileNotFoundError, match=r"There is no config.json beside '.*model.pt': give the config"):
        config_beside(tmp_path / "model.pt")


def test_import_needs_a_folder_to_write_to(tmp_path):
    with pytest.raises(ValueError, match="runner.logger.log_dir: a run is to be written"):
        import_checkpoint(tmp_path / "model.pt", small_config(runner__logger__log_dir=None))


def test_import_needs_the_section_env(tmp_path):
    """RLBotics' config.json, which lies beside its checkpoints, is the section `runner` alone."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(rlbotics_runner_section(small_config())))
    with pytest.raises(ConfigError, match=r"config.json: env: the section is missing: this is a section `runner`"):
        import_checkpoint(tmp_path / "model.pt", path)
    path.write_text(json.dumps({"environment": {}}))
    with pytest.raises(ConfigError, match="config.json: env: this key is required"):
        import_checkpoint(tmp_path / "model.pt", path)


def test_import_of_nothing_leaves_nothing(tmp_path):
    config = small_config(runner__logger__log_dir=str(tmp_path / "logs"))
    with pytest.raises(FileNotFoundError):
        import_checkpoint(tmp_path / "missing.pt", config)
    assert not (tmp_path / "logs").exists()
