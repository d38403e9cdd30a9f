"""Devices by the names that a config may use."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path

import jax

_CUDA_HINT = "pip install 'rlbotics-jax[cuda12]' (or [cuda13]) installs the CUDA build of jax"


def resolve_device(name: str) -> jax.Device:
    """Returns the jax device of a config's `env.device`: auto, cpu, gpu, cuda, cuda:N or mps.

    `auto` is the first accelerator, else the CPU. A device that is not there is replaced by the CPU with a warning, as
    in RLBotics; so is `mps`, which this library does not support.
    """
    if name == "auto":
        if jax.default_backend() == "cpu" and nvidia_gpu_present():
            warnings.warn(f"An NVIDIA GPU is present, but jax runs on the CPU: {_CUDA_HINT}.", stacklevel=2)
        return jax.devices()[0]
    if name == "cpu":
        return jax.devices("cpu")[0]
    if name == "mps":
        warnings.warn("env.device is 'mps', which jax does not offer here; training on the CPU.", stacklevel=2)
        return jax.devices("cpu")[0]
    index = int(name.partition(":")[2] or 0)
    try:
        devices = jax.devices("gpu")
    except RuntimeError:
        devices = []
    if index < len(devices):
        return devices[index]
    hint = f" {_CUDA_HINT}." if nvidia_gpu_present() and not devices else ""
    warnings.warn(
        f"env.device is {name!r}, but jax sees {len(devices)} CUDA devices; training on the CPU.{hint}", stacklevel=2
    )
    return jax.devices("cpu")[0]


def nvidia_gpu_present() -> bool:
    """Returns whether the NVIDIA driver is loaded, or its tool installed, and the GPU not hidden on purpose."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1") or os.environ.get("JAX_PLATFORMS") == "cpu"
    return not hidden and (Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None)
