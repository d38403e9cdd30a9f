"""The values of a PyTorch checkpoint, taken out only where they are such as training leaves: else one sentence.

`path` is the file and `name` what the sentence calls the value. All raise ValueError. Nothing here needs torch: tensors
have become numpy arrays, save those that are no plain arrays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlbotics_jax.config.errors import shown

_NEVER_NEGATIVE = frozenset({"_var", "count", "running_var", "num_batches_tracked", "exp_avg_sq", "square_avg"})
"""How the names of arrays end that have no negative values."""

_LARGEST = float(np.finfo(np.float32).max)
_MOST = 2**31 - 1
"""Of iterations and of the optimizer's steps, which are counted in int32."""


def mapping(values: Mapping[str, Any], key: str, path: Path) -> Mapping[str, Any]:
    """Returns a part of the file, which has texts as keys; {} where it is missing or None."""
    found = {} if values.get(key) is None else values[key]
    if not isinstance(found, Mapping):
        raise ValueError(f"'{path}' holds a {type(found).__name__} as {key}, not a mapping of names to arrays.")
    for name in found:
        if not isinstance(name, str):
            raise ValueError(f"'{path}' holds {shown(name)} among the names of {key}; allowed are texts.")
    return found


def array(value: Any, name: str, path: Path) -> np.ndarray:
    """Returns an array of finite real numbers; of a layer's weights a matrix; of variances and counts none below 0."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf":
        kind = f"{value.dtype} array" if isinstance(value, np.ndarray) else type(value).__name__
        raise ValueError(f"'{path}' holds a {kind} as {name}, where a plain array of real numbers is needed.")
    if not np.isfinite(value).all():
        raise ValueError(f"'{path}' holds values of {name} that are not finite: its training had failed.")
    if re.split(r"[. ]", name)[-1] in _NEVER_NEGATIVE and (value < 0).any():
        raise ValueError(f"'{path}' holds negative values of {name}, which can have none.")
    if re.search(r"\bmlp\.\d+\.weight$", name) and value.ndim != 2:
        raise ValueError(f"'{path}' holds {name} of shape {value.shape}, where a matrix is needed.")
    return value


def number(value: Any, name: str, path: Path, low: float = -_LARGEST, high: float = _LARGEST) -> float:
    """Returns a real number in [low, high]."""
    is_number = isinstance(value, int | float | np.number | np.ndarray) and np.ndim(value) == 0
    if not is_number or np.asarray(value).dtype.kind not in "iuf" or not low <= value <= high:
        raise ValueError(f"'{path}' holds {shown(value)} as {name}, where a number from {low:g} to {high:g} is needed.")
    return float(value)


def step_count(value: Any, name: str, path: Path) -> int:
    """Returns the steps that an optimizer counts, as a float or an array."""
    return int(number(value, name, path, 0, _MOST))


def completed_iterations(values: Mapping[str, Any], key: str, path: Path) -> int:
    """Returns how many iterations are complete after the one that the file names by its index."""
    index = values[key]
    if type(index) is not int or not 0 <= index < _MOST:
        raise ValueError(
            f"'{path}' holds {shown(index)} as {key}, where a whole number from 0 to {_MOST - 1} is needed."
        )
    return index + 1
