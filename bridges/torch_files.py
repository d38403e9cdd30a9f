"""PyTorch files as plain dicts of numpy arrays: read without running anything in them, written whole or not at all."""

from __future__ import annotations

import importlib
import io
import os
import re
import warnings
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from rlbotics_jax.atomic import replacing

_SAFE = (2, 6)
"""The first version of torch whose `weights_only=True` keeps what it promises."""


def import_torch(purpose: str) -> ModuleType:
    """Returns the package torch, or says in one sentence what needs it and how to install it.

    Raises:
        ImportError: torch is not installed.
    """
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise ImportError(f"{purpose} needs the package 'torch'; install it with: pip install torch") from error


def read_torch_file(path: str | os.PathLike) -> dict[str, Any]:
    """Returns the mapping that a file of `torch.save` holds, its tensors as numpy arrays.

    Only tensors and plain values are read (`weights_only=True`), so that a file from anywhere can do no harm.

    Raises:
        FileNotFoundError, OSError: there is no such file, or it cannot be opened.
        ValueError: the file is none of torch's, a TorchScript module, holds Python objects or is no mapping.
        ImportError: torch is not installed, or older than 2.6.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no checkpoint file '{path}'.")
    torch = import_torch("Reading a PyTorch checkpoint")
    if tuple(int(number) for number in torch.__version__.split(".")[:2]) < _SAFE:
        raise ImportError(
            f"torch {torch.__version__} can be made to run code by what it reads (CVE-2025-32434); update it with: "
            "pip install --upgrade torch"
        )
    if _is_torchscript(path):
        raise ValueError(
            f"'{path}' is a TorchScript module, which holds a policy to run and nothing to train; give a checkpoint, "
            "such as model_best.pt."
        )
    try:
        with warnings.catch_warnings():  # of an unusual pickle, before it is refused
            warnings.simplefilter("ignore")
            values = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:  # the file cannot be opened
        raise
    except Exception as error:  # what a file that is not torch's raises is not one type
        if found := re.search(r"GLOBAL (\S+)", str(error)):
            raise ValueError(
                f"'{path}' holds the Python object {found[1]}, which is not read, because reading it could run code; "
                "save it again with tensors and plain values only."
            ) from error
        raise ValueError(f"'{path}' is no file that torch.save wrote, or is damaged.") from error
    if not isinstance(values, dict):
        raise ValueError(f"'{path}' holds a {type(values).__name__}, not the mapping that a checkpoint is.")
    return _to_numpy(values)


def write_torch_file(values: dict[str, Any], path: str | os.PathLike) -> Path:
    """Writes a mapping with `torch.save`; the file appears whole or not at all. Returns its path."""
    data = io.BytesIO()
    import_torch("Writing a PyTorch checkpoint").save(values, data)
    return write_bytes(data.getvalue(), path)


def write_bytes(data: bytes, path: str | os.PathLike) -> Path:
    """Writes what torch made in memory; the file appears whole or not at all. Returns its path.

    torch itself does not write it: on a full disk torch.save raises a RuntimeError, and the writer of TorchScript ends
    the process.

    Raises:
        OSError: the file cannot be written.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(data)
    return Path(path)


def _is_torchscript(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _to_numpy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_numpy(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_numpy(item) for item in value]
    if not hasattr(value, "detach"):
        return value
    value = value.detach()
    try:
        return np.asarray(value.float() if value.is_floating_point() else value)
    except (TypeError, RuntimeError):  # a sparse or quantised tensor, which is refused where an array is needed
        return value
