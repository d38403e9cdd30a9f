"""The metadata of an exported policy: texts beside the graph, and the values that they stand for.

ONNX keeps metadata as strings. The lists of the keys below are comma-separated, as mjlab writes them, with a semicolon
inside an entry that is itself a list, and a flag in a list is 0 or 1. Everything else is JSON, a text that could not be
taken for it as it is. Numbers have all their digits. docs/deployment.md has the keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_NAMES = frozenset({"action_names", "joint_names", "command_names", "observation_names"})
"""Keys of lists of names."""

_NUMBERS = frozenset(
    {
        "action_low",
        "action_high",
        "action_scale",
        "action_offset",
        "joint_stiffness",
        "joint_damping",
        "default_joint_pos",
        "observation_terms_scale",
        "observation_terms_clip",
        "observation_terms_history_length",
        "observation_terms_flatten_history_dim",
    }
)
"""Keys of lists of numbers."""

_TEXTS = frozenset({"library", "version", "config_hash", "run_name", "run_path", "task", "which"})
"""Keys of texts, some of which could be taken for a number."""


def encode_metadata(values: Mapping[str, Any]) -> dict[str, str]:
    """Returns the texts to write, which `decode_metadata` turns back. A key whose value is None is left out.

    Raises:
        ValueError: a key that is no text; a value that is no text, number, flag, list or mapping of them; in one of the
            known lists another entry than a name without a comma, or a number.
    """
    for key in values:
        if not isinstance(key, str):
            raise ValueError(f"metadata has the key {key!r}; a key is a text.")
    return {key: _encode(key, _plain(value)) for key, value in values.items() if value is not None}


def decode_metadata(texts: Mapping[str, str]) -> dict[str, Any]:
    """Returns the values that the texts of an exported policy stand for: texts, numbers, flags, lists, mappings.

    What has none of these forms, as another exporter may write it, stays a text.
    """
    return {key: _decode(key, text) for key, text in texts.items()}


def _plain(value: Any) -> Any:
    """Returns numpy's and JAX's numbers and arrays, at any depth, as Python's numbers and lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _encode(key: str, value: Any) -> str:
    if key in _NAMES | _NUMBERS:  # one number is a list of one
        return ",".join(_entry(key, entry) for entry in (value if isinstance(value, list) else [value]))
    if isinstance(value, str) and (key in _TEXTS or _decode(key, value) == value):
        return value
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"metadata[{key!r}] holds a {type(value).__name__} that cannot be written ({error}); allowed are texts, "
            "numbers, flags, and lists and mappings of them."
        ) from error


def _entry(key: str, entry: Any) -> str:
    if isinstance(entry, list) and key in _NUMBERS:
        return ";".join(_entry(key, value) for value in entry)
    if isinstance(entry, str) and key in _NAMES and entry and not set(entry) & {",", ";"}:
        return entry
    if isinstance(entry, bool | int | float) and key in _NUMBERS:
        return str(int(entry) if isinstance(entry, bool) else entry)
    wanted = "names without a comma or a semicolon" if key in _NAMES else "numbers"
    raise ValueError(f"metadata[{key!r}] lists {entry!r}; it is a list of {wanted}.")


def _decode(key: str, text: str) -> Any:
    if key in _TEXTS:
        return text
    try:
        if key in _NAMES:
            return text.split(",") if text else []
        if key in _NUMBERS:
            return [_numbers(entry) for entry in text.split(",")] if text else []
        return json.loads(text)
    except ValueError:
        return text


def _numbers(entry: str) -> float | list[float]:
    return [float(number) for number in entry.split(";")] if ";" in entry else float(entry)
