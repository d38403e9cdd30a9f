"""Export: a policy to one ONNX file, from raw observations to actions in the environment's units."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridges.onnx_function import export_function, unjit
from bridges.onnx_parity import ExportError

__all__ = ["ExportError", "export_function", "export_onnx"]

INPUT, OUTPUT = "observation", "action"


def export_onnx(
    policy: Callable[[dict[str, jax.Array]], jax.Array],
    observation_shapes: Mapping[str, Sequence[int]],
    action_mapping: Callable[[jax.Array], jax.Array],
    path: str | Path,
    metadata: Mapping[str, Any] | None = None,
    samples: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Write `action_mapping(policy(observations))` as an ONNX graph with the weights inside.

    The output is `action`, float32 ["batch", m]. The input is `observation`, float32: of groups that are vectors their
    concatenation in their order, ["batch", n]; of a policy that reads one image alone the image, ["batch", C, H, W]. A
    policy that reads images and other groups beside them has an input for each group, by its name.

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
    groups = _check_shapes(observation_shapes)
    policy, action_mapping = unjit(policy), unjit(action_mapping)
    is_one_vector = all(len(shape) == 1 for shape in groups.values())

    def observations(*arrays: jax.Array) -> dict[str, jax.Array]:
        return _split(arrays[0], groups) if is_one_vector else dict(zip(groups, arrays, strict=True))

    if is_one_vector:
        inputs = {INPUT: (sum(size for (size,) in groups.values()),)}
    else:
        inputs = groups if len(groups) > 1 else {INPUT: next(iter(groups.values()))}
    if samples is not None:
        rows = [np.asarray(samples[group], np.float32) for group in groups]
        rows = [np.concatenate(rows, axis=-1)] if is_one_vector else rows
        samples = dict(zip(inputs, rows, strict=True))
    described = {group: shape[0] if len(shape) == 1 else list(shape) for group, shape in groups.items()}
    zeros = observations(*(jnp.zeros((1, *shape)) for shape in inputs.values()))
    return export_function(
        lambda *arrays: action_mapping(policy(observations(*arrays))),
        inputs,
        [OUTPUT],
        path,
        {"observation_groups": described, **(metadata or {})},
        samples,
        _action_units(action_mapping, policy(zeros).shape),
    )


def _check_shapes(observation_shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    groups = {str(name): tuple(int(size) for size in shape) for name, shape in observation_shapes.items()}
    if not groups or not all(len(shape) in (1, 3) and min(shape) > 0 for shape in groups.values()):
        raise ValueError(
            "observation_shapes must map at least one group to a shape (n,) or (C, H, W) of positive sizes, not "
            f"{groups}."
        )
    return groups


def _split(observation: jax.Array, groups: Mapping[str, tuple[int, ...]]) -> dict[str, jax.Array]:
    """Cut (batch, n) into {group: (batch, size)}; a single group is passed on without a slice in the graph."""
    if len(groups) == 1:
        return {next(iter(groups)): observation}
    sizes = [size for (size,) in groups.values()]
    ends = np.cumsum(sizes).tolist()
    return {name: observation[:, end - size : end] for name, size, end in zip(groups, sizes, ends, strict=True)}


def _action_units(action_mapping: Callable[[jax.Array], jax.Array], shape: tuple[int, ...]) -> np.ndarray:
    """Return half the change of each action component from -1 to 1 in the policy's units, 1 where that says nothing."""
    ones = jnp.ones(shape)
    units = np.abs(np.asarray(action_mapping(ones), np.float64) - np.asarray(action_mapping(-ones), np.float64))[0] / 2
    return np.where(np.isfinite(units) & (units > 0), units, 1.0)
