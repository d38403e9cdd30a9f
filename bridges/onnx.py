"""Export: a policy to one ONNX file, from raw observations to actions in the environment's units."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridges.inputs import OUTPUT, Inputs
from bridges.onnx_function import export_function, unjit
from bridges.onnx_parity import ExportError

__all__ = ["ExportError", "export_function", "export_onnx"]


def export_onnx(
    policy: Callable[[dict[str, jax.Array]], jax.Array],
    observation_shapes: Mapping[str, Sequence[int]],
    action_mapping: Callable[[jax.Array], jax.Array],
    path: str | Path,
    metadata: Mapping[str, Any] | None = None,
    samples: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Write `action_mapping(policy(observations))` as an ONNX graph with the weights inside.

    The output is `action`, float32 ["batch", m]. The input is `observation`, float32: the groups side by side,
    ["batch", n], or one image, ["batch", C, H, W]. A policy that reads images and other groups beside them has an input
    for each group, by its name.

    Nothing is written unless ONNX Runtime reproduces JAX; `export_function` has the bound. A component's unit u there
    is half its range, |mapping(1) - mapping(-1)| / 2, so that components in newtons and in radians count alike, and one
    that happens to cancel to nearly zero is not measured against its own rounding noise.

    Args:
        policy: deterministic function of {group: (batch, *shape) float32} giving (batch, m), its parameters closed over
            as arrays and its normaliser inside. Pure, in float32, and not under jit (a jitted function is unwrapped).
        observation_shapes: group -> shape of one observation, (n,) or (C, H, W), in the order in which a deployed
            observation is laid out.
        action_mapping: function of (batch, m) giving (batch, m): from the policy's units to the environment's.
        path: the file to write; missing folders are made, an existing file is replaced at once or not at all.
        metadata: written into the model's metadata. `observation_groups`, the groups' sizes or shapes in order, is
            added.
        samples: group -> observations (k, *shape) that the policy will meet, compared too.

    Returns:
        The path written.

    Raises:
        ImportError: jax2onnx is not installed.
        ValueError: a shape, `samples` or `metadata` is not usable.
        ExportError: the graph cannot be built, gives non-finite actions, or differs from JAX.
    """
    inputs = Inputs.of(observation_shapes)
    policy, action_mapping = unjit(policy), unjit(action_mapping)
    zeros = inputs.split(*(jnp.zeros((1, *shape)) for shape in inputs.shapes.values()))
    shape = np.shape(policy(zeros))
    if len(shape) != 2 or shape[0] != 1:
        raise ExportError(
            f"The policy gives an output of shape {shape} for a batch of 1 observation, not (1, actions)."
        )
    sizes = {group: shape[0] if len(shape) == 1 else list(shape) for group, shape in inputs.groups.items()}
    return export_function(
        lambda *arrays: action_mapping(policy(inputs.split(*arrays))),
        inputs.shapes,
        [OUTPUT],
        path,
        {**(metadata or {}), "observation_groups": sizes},
        None if samples is None else inputs.join(samples),
        _action_units(action_mapping, shape),
    )


def _action_units(action_mapping: Callable[[jax.Array], jax.Array], shape: tuple[int, ...]) -> np.ndarray:
    """Return half the change of each action component from -1 to 1 in the policy's units, 1 where that says nothing."""
    ones = jnp.ones(shape)
    units = np.abs(np.asarray(action_mapping(ones), np.float64) - np.asarray(action_mapping(-ones), np.float64))[0] / 2
    return np.where(np.isfinite(units) & (units > 0), units, 1.0)
