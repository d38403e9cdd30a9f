"""Every device spelling maps to a device; what is missing is said with the command that mends it."""

from __future__ import annotations

import warnings

import jax
import pytest

from rlbotics_jax import devices
from rlbotics_jax.devices import nvidia_gpu_present, resolve_device


def test_cpu_and_auto_on_a_machine_without_gpu(monkeypatch):
    monkeypatch.setattr(devices, "nvidia_gpu_present", lambda: False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_device("cpu") == jax.devices("cpu")[0]
        assert resolve_device("auto") == jax.devices()[0]


@pytest.mark.parametrize("name", ["gpu", "cuda", "cuda:0", "cuda:3", "mps"])
def test_missing_devices_become_the_cpu_with_a_warning(name):
    with pytest.warns(UserWarning, match=f"env.device is '{name}'.*training on the CPU"):
        assert resolve_device(name) == jax.devices("cpu")[0]


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_a_gpu_without_cuda_build_is_named_with_the_pip_command(name, monkeypatch):
    monkeypatch.setattr(devices, "nvidia_gpu_present", lambda: True)
    with pytest.warns(UserWarning, match=r"pip install 'rlbotics-jax\[cuda12\]'"):
        resolve_device(name)


@pytest.mark.parametrize(("variable", "value"), [("CUDA_VISIBLE_DEVICES", ""), ("JAX_PLATFORMS", "cpu")])
def test_a_hidden_gpu_is_not_missed(variable, value, monkeypatch, tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert nvidia_gpu_present()
    monkeypatch.setenv(variable, value)
    assert not nvidia_gpu_present()
