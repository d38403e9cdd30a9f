"""What leaves a run: its policy as ONNX or TorchScript, its state as a PyTorch checkpoint, or a bundle for a robot."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rlbotics_jax.config.errors import one_of, shown
from rlbotics_jax.runs import POLICY_FILE, load_policy

FILES = {"onnx": POLICY_FILE, "torchscript": "policy.pt", "torch": "model.pt"}
"""The formats, and how a file is called where no name is given."""


def export(run: str | Path, output: str | Path | None = None, which: str | None = None, format: str = "onnx") -> Path:
    """Writes a run's policy, or its state, as one file. The environment is not needed.

    Args:
        run: the run directory.
        output: the file; by default policy.onnx, policy.pt or model.pt in the run.
        which: the policy: "best", "last", or None for the best where there is one. A PyTorch checkpoint is always of
            the last state.
        format: "onnx" (`bridges.onnx`), "torchscript" or "torch", a checkpoint for RLBotics (both `bridges.torch`).

    Returns:
        The path written.

    Raises:
        FileNotFoundError, ValueError: as `load_policy`; also an unknown format, and "torch" with which="best".
        ConfigError, ImportError, ExportError: what `bridges.onnx.export_onnx` and `bridges.torch` cannot write.
    """
    if format not in FILES:
        raise ValueError(f"format is {shown(format)}; {one_of(FILES, format)}.")
    path = Path(output or Path(run) / FILES[format])
    if format == "torch":
        from bridges.torch import export_torch_checkpoint

        if which == "best":
            raise ValueError("The format 'torch' writes the last state, to go on from; leave out which='best'.")
        return export_torch_checkpoint(run, path)
    policy = load_policy(run, which)
    if format == "torchscript":
        from bridges.torch import export_torchscript

        return export_torchscript(policy, path)
    return policy.export(path)


def export_bundle(run: str | Path, directory: str | Path, which: str | None = None) -> Path:
    """Writes the folder that a robot needs to run a policy: policy.onnx, policy.py, metadata.json and example.py.

    Raises:
        FileNotFoundError, ValueError, ImportError, ExportError: as `export`.
        FileExistsError: `directory` holds something else; see `bridges.bundle.write_bundle`.
    """
    from bridges.bundle import check_replaceable, write_bundle

    check_replaceable(Path(directory))
    with tempfile.TemporaryDirectory() as temporary:
        return write_bundle(load_policy(run, which).export(Path(temporary) / POLICY_FILE), directory)
