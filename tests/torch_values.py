"""Checkpoints as their files' values, without torch: an actor 2 -> 3 -> 1 and a critic 2 -> 2 -> 1."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from bridges.torch_layouts import TorchCheckpoint, parse_checkpoint

PATH = Path("model.pt")


def network(start: float, hidden: int, inputs: int = 2, outputs: int = 1) -> dict[str, np.ndarray]:
    """The arrays of an MLP: consecutive numbers from `start` on."""
    shapes = {"mlp.0.weight": (hidden, inputs), "mlp.0.bias": (hidden,), "mlp.2.weight": (outputs, hidden)}
    arrays = {}
    for name, shape in {**shapes, "mlp.2.bias": (outputs,)}.items():
        size = math.prod(shape)
        arrays[name] = np.arange(start, start + size, dtype=np.float32).reshape(shape)
        start += size
    return arrays


def normalizer(size: int = 2) -> dict[str, np.ndarray]:
    """Statistics of 2^33 + 5 rows."""
    mean, variance = np.arange(size, dtype=np.float32)[None], np.full((1, size), 4.0, np.float32)
    names = {"_mean": mean, "_var": variance, "_std": np.sqrt(variance), "count": np.asarray(2**33 + 5)}
    return {f"obs_normalizer.{name}": array for name, array in names.items()}


def rlbotics(std: float = 0.5, hidden: int = 3, **changes: Any) -> dict[str, Any]:
    """What RLBotics saves after three iterations; `changes` are of the top level."""
    actor = {"distribution.log_std_param": np.full(1, math.log(std), np.float32), **normalizer(), **network(0, hidden)}
    values = {
        "actor_state_dict": actor,
        "critic_state_dict": network(100, 2),
        "optimizer_state_dict": optimizer(),
        "iteration": 2,
        "best_metric": None,
    }
    return values | changes


def optimizer() -> dict[str, Any]:
    """Adam after 7 steps: 0.2 is every average of gradients, 0.08 of their squares."""
    arrays = [np.zeros(1), *network(0, 3).values(), *network(0, 2).values()]
    state = {
        i: {"step": np.float32(7), "exp_avg": np.full_like(array, 0.2), "exp_avg_sq": np.full_like(array, 0.08)}
        for i, array in enumerate(arrays)
    }
    return {"state": state, "param_groups": [{"lr": 3e-4, "params": list(state)}]}


def checkpoint(values: dict[str, Any]) -> TorchCheckpoint:
    return parse_checkpoint(values, PATH)
