"""A bundle: the folder that a robot needs to run an exported policy, and nothing else of this library."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bridges import policy as policy_module
from rlbotics_jax.metadata import decode_metadata

POLICY, CODE, METADATA, EXAMPLE = FILES = ("policy.onnx", "policy.py", "metadata.json", "example.py")
"""What a bundle holds."""


def write_bundle(policy_file: str | Path, directory: str | Path) -> Path:
    """Writes policy.onnx, policy.py (`bridges.policy`), metadata.json and example.py, a control loop to start from.

    metadata.json holds the policy's metadata as `decode_metadata` reads it; a number that is not finite is written as
    text, "inf", since JSON has none. The folder appears whole or not at all.

    Args:
        policy_file: an exported policy, of this library or another.
        directory: the folder to write; missing parents are made. An empty folder or an earlier bundle is replaced, but
            the example.py in it is kept: it may be somebody's control loop by now.

    Returns:
        The folder.

    Raises:
        FileNotFoundError: there is no such policy.
        ValueError: the file holds no policy.
        FileExistsError: as `check_replaceable`.
        ImportError: onnxruntime, which reads the metadata, is not installed.
        OSError: the folder cannot be written.
    """
    texts = policy_module.Policy(policy_file).metadata
    values = decode_metadata(dict(sorted(texts.items())))  # onnxruntime gives them in any order
    metadata = json.dumps(_without_infinities(values), indent=2, ensure_ascii=False)
    with _replacing_folder(Path(directory)) as folder:
        shutil.copyfile(policy_file, folder / POLICY)
        shutil.copyfile(policy_module.__file__, folder / CODE)
        (folder / METADATA).write_text(metadata + "\n", encoding="utf-8")
        kept = Path(directory) / EXAMPLE
        shutil.copyfile(kept if kept.is_file() else Path(__file__).with_name("bundle_example.py"), folder / EXAMPLE)
    return Path(directory)


@contextlib.contextmanager
def _replacing_folder(directory: Path) -> Iterator[Path]:
    """Gives a temporary folder beside `directory` and moves it into its place; after an error all is as it was."""
    check_replaceable(directory)
    directory = directory.resolve()  # the folder behind a link, not the link
    with contextlib.ExitStack() as stack:
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            temporary = tempfile.TemporaryDirectory(prefix=f".{directory.name}.", dir=directory.parent)
        except OSError as error:  # which names a folder that nobody gave
            raise OSError(error.errno, error.strerror, str(directory)) from error
        workspace = stack.enter_context(temporary)
        new, old = Path(workspace, "new"), Path(workspace, "old")
        new.mkdir()
        yield new
        try:
            if directory.exists():
                directory.rename(old)
            new.rename(directory)
        except BaseException:
            if old.exists() and not directory.exists():
                old.rename(directory)
            raise


def check_replaceable(directory: Path) -> None:
    """Checks that `write_bundle` may write to `directory`: that it is missing, empty, or an earlier bundle.

    Raises:
        FileExistsError: it is not, or it is the working folder.
    """
    if not directory.exists():
        return
    if not directory.is_dir():
        raise FileExistsError(f"'{directory}' is a file; name a folder for the bundle.")
    if directory.samefile(Path.cwd()):  # a shell would be left in a folder that is gone
        raise FileExistsError(
            f"'{directory}' is the working folder, which cannot be replaced; name a new folder in it."
        )
    names = {entry.name for entry in directory.iterdir()} - {"__pycache__"}  # what running example.py leaves
    if names and names != set(FILES):
        other = ", ".join(repr(name) for name in sorted(names - set(FILES))[:3])
        found = f"holds {other}" if other else "holds only a part of one"
        raise FileExistsError(
            f"'{directory}' is no bundle that could be replaced (it {found}); name a new folder, or empty this one."
        )


def _without_infinities(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [_without_infinities(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_infinities(item) for key, item in value.items()}
    return value
