"""The metadata of an exported policy: texts beside the graph, and the values that they stand for.

ONNX keeps metadata as strings. Lists are comma-separated, as mjlab writes them, with a semicolon inside an entry that
is itself a list, and a flag in a list is 0 or 1; mappings are JSON, in their order; numbers have all their digits.
docs/deployment.md has the keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
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
    """Returns the texts to write. A key whose value is None is left out.

    Raises:
        ValueError: a value that is no text, number, flag, list or mapping of them, or a name with a comma in a list.
    """
    return {key: _encode(key, value) for key, value in values.items() if value is not None}


def decode_metadata(texts: Mapping[str, str]) -> dict[str, Any]:
    """Returns the values that the texts of an exported policy stand for: texts, numbers, flags, lists, mappings.

    What has none of these forms, as another exporter may write it, stays a text.
    """
    return {key: _decode(key, text) for key, text in texts.items()}


def _encode(key: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, Sequence):
        return ",".join(_entry(key, entry) for entry in value)
    return _scalar(key, value)


def _entry(key: str, entry: Any) -> str:
    if isinstance(entry, str):
        if "," in entry or ";" in entry:
            raise ValueError(f"metadata[{key!r}] lists the name {entry!r}; a name in a list has no comma or semicolon.")
        return entry
    if isinstance(entry, Sequence):
        return ";".join(_entry(key, value) for value in entry)
    return _scalar(key, int(entry) if isinstance(entry, bool) else entry)


def _scalar(key: str, value: Any) -> str:
    if not isinstance(value, bool | int | float):
        raise ValueError(
            f"metadata[{key!r}] holds a {type(value).__name__}; allowed are texts, numbers, flags, and lists and "
            "mappings of them."
        )
    return json.dumps(value) if math.isfinite(value) else str(value)


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
