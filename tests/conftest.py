"""The suite's settings: strict numerics, eight forced host devices, and compiled programs kept between runs."""

from __future__ import annotations

import os

# Before jax starts its backend.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()

import jax
import pytest
import yaml

from rlbotics_jax.compilation import enable_compilation_cache
from rlbotics_jax.config import shipped_configs

# Implicit rank promotion hides wrong shapes; a NaN that leaves a compiled function is an error. Tests that inject NaNs
# use the fixture `allow_nans`.
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_nans", True)
enable_compilation_cache()


@pytest.fixture
def allow_nans():
    """Lets NaNs pass, for a test that injects them."""
    with jax.debug_nans(False):
        yield


@pytest.fixture(autouse=True)
def _run_directories_in_tmp(tmp_path, monkeypatch):
    """Runs every test in an empty folder, so that none writes logs into the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def config_file(tmp_path):
    """Write CartpoleBalance with changes; `change` receives the whole mapping."""

    def write(change=lambda values: None):
        values = yaml.safe_load(shipped_configs()["mjx/CartpoleBalance"].read_text())
        change(values)
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(values))
        return str(path)

    return write
