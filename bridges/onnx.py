"""Export: a JAX policy to one ONNX file, written only if ONNX Runtime and JAX agree on it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridges.onnx_graph import simplify
from rlbotics_jax.atomic import replacing
from rlbotics_jax.extras import missing_package

OPSET = 18
# The IR version that belongs to opset 18. jax2onnx writes 10, which the runtimes that still accept numpy 1 refuse.
IR_VERSION = 8
PARITY_TOLERANCE = 1e-5
PARITY_BATCHES = (1, 7)
PARITY_MAGNITUDES = (0.1, 1.0, 10.0, 100.0)

# jax2onnx patches jax's functions while it traces: two exports at once would undo each other's patches.
_EXPORT_LOCK = threading.Lock()


class ExportError(RuntimeError):
    """The policy could not be exported, or the exported graph does not compute what JAX computes."""


def export_onnx(
    policy: Callable[[dict[str, jax.Array]], jax.Array],
    observation_sizes: Mapping[str, int],
    action_mapping: Callable[[jax.Array], jax.Array],
    path: str | Path,
    metadata: Mapping[str, Any] | None = None,
    samples: np.ndarray | None = None,
) -> Path:
    """Write `action_mapping(policy(observations))` as an ONNX graph with the weights inside.

    The graph has the input `observation` ["batch", n], the concatenation of all groups in their order, and the output
    `action` ["batch", m], both float32, in opset 18. Before anything is written, ONNX Runtime must reproduce JAX (run
    eagerly, with full float32 products) at batch 1 and 7 on random inputs of magnitudes 0.1 to 100, and on `samples`.
    For each of these sets of rows i and each action component j,

        max_i |onnx_ij - jax_ij| / u_j  <=  1e-5 * max_ij |jax_ij| / u_j,     u = |mapping(1) - mapping(-1)| / 2

    so that components in newtons and in radians count alike, and one that happens to cancel to nearly zero is not
    measured against its own rounding noise.

    Args:
        policy: deterministic function of {group: (batch, size) float32} giving (batch, m), its parameters closed over
            as arrays and its normaliser inside. Pure, in float32, and not under jit (a jitted function is unwrapped).
        observation_sizes: group -> number of values, in the order in which a deployed observation is laid out.
        action_mapping: function of (batch, m) giving (batch, m): from the policy's units to the environment's.
        path: the file to write; missing folders are made, an existing file is replaced at once or not at all.
        metadata: written into the model's metadata; what is no string is written as JSON. `observation_groups` (the
            sizes, in order) is added.
        samples: observations (k, n) of the size that the policy will meet, compared too. Random inputs alone lie in
            the tails of a normaliser whose mean is far from zero.

    Returns:
        The path written.

    Raises:
        ImportError: jax2onnx is not installed.
        ValueError: a group size or the shape of `samples` is not usable.
        ExportError: the graph cannot be built, gives non-finite actions, or differs from JAX.
    """
    path = Path(path)
    groups = _check_sizes(observation_sizes)
    to_onnx, onnx = _import_exporter()
    policy, action_mapping = _unjit(policy), _unjit(action_mapping)

    def graph(observation: jax.Array) -> jax.Array:
        return action_mapping(policy(_split(observation, groups)))

    # JAX first: the export may leave traces of its patched functions in JAX's caches.
    inputs = _parity_inputs(sum(groups.values()), samples)
    expected = {name: [_evaluate(graph, batch) for batch in batches] for name, batches in inputs.items()}
    units = _action_units(action_mapping, policy(_split(jnp.zeros((1, sum(groups.values()))), groups)).shape)

    try:
        with _EXPORT_LOCK:
            model = to_onnx(
                graph,
                [("batch", sum(groups.values()))],
                model_name="policy",
                opset=OPSET,
                input_names=["observation"],
                output_names=["action"],
            )
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ExportError(f"jax2onnx cannot convert this policy ({type(error).__name__}: {reason}).") from error
    simplify(model)
    model.ir_version = IR_VERSION
    model.producer_name = "rlbotics-jax"
    entries = {"observation_groups": groups, **(metadata or {})}
    onnx.helper.set_model_props(
        model, {key: value if isinstance(value, str) else json.dumps(value) for key, value in entries.items()}
    )

    _check_parity(model.SerializeToString(), inputs, expected, units)
    with replacing(path) as temporary:
        temporary.write_bytes(model.SerializeToString())
    return path


def _import_exporter() -> tuple[Callable[..., Any], Any]:
    """Return `jax2onnx.to_onnx` and the module `onnx`, or say in one sentence how to install them."""
    try:
        import onnx
        import onnxruntime  # noqa: F401 - the parity check needs it, and it should be missed before the work is done
        from jax2onnx import to_onnx
    except ImportError as error:
        raise missing_package("Exporting a policy", error, "onnx") from error
    return to_onnx, onnx


def _check_sizes(observation_sizes: Mapping[str, int]) -> dict[str, int]:
    groups = {str(name): int(size) for name, size in observation_sizes.items()}
    if not groups or min(groups.values()) < 1:
        raise ValueError(f"observation_sizes must map at least one group to a positive size, not {groups}.")
    return groups


def _unjit(policy: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function under `jax.jit`: the export of a jitted function can poison JAX's compilation cache."""
    while isinstance(policy, jax.stages.Wrapped):
        policy = policy.__wrapped__
    return policy


def _split(observation: jax.Array, groups: Mapping[str, int]) -> dict[str, jax.Array]:
    """Cut (batch, n) into {group: (batch, size)}; a single group is passed on without a slice in the graph."""
    if len(groups) == 1:
        return {next(iter(groups)): observation}
    ends = np.cumsum(list(groups.values()))
    return {
        name: observation[:, end - size : end] for (name, size), end in zip(groups.items(), ends.tolist(), strict=True)
    }


def _evaluate(graph: Callable[[jax.Array], jax.Array], batch: np.ndarray) -> np.ndarray:
    """Evaluate the policy in JAX, operation by operation.

    Eagerly, because the CPU compiler of some jaxlib versions miscomputes products with a constant right-hand side once
    they are fused into one program; with full float32 products, because accelerators shorten them by default.
    """
    with jax.default_matmul_precision("highest"):
        action = np.asarray(graph(jnp.asarray(batch)))
    if action.ndim != 2 or action.shape[0] != batch.shape[0]:
        raise ExportError(
            f"The policy maps observations of shape {batch.shape} to shape {action.shape}, not to (batch, actions)."
        )
    if not np.isfinite(action).all():
        raise ExportError("The policy gives non-finite actions for ordinary observations, so it is not exported.")
    return action


def _parity_inputs(size: int, samples: np.ndarray | None) -> dict[str, list[np.ndarray]]:
    """Return the batches to compare, by a name for the error message."""
    random = np.random.default_rng(0)
    inputs = {
        f"random observations of magnitude {magnitude:g}": [
            (magnitude * random.standard_normal((batch, size))).astype(np.float32) for batch in PARITY_BATCHES
        ]
        for magnitude in PARITY_MAGNITUDES
    }
    if samples is not None:
        samples = np.asarray(samples, np.float32)
        if samples.ndim != 2 or samples.shape[1] != size or not samples.shape[0]:
            raise ValueError(f"samples must have the shape (k, {size}) with k >= 1, not {samples.shape}.")
        inputs["the sample observations"] = [samples[:1], samples]
    return inputs


def _action_units(action_mapping: Callable[[jax.Array], jax.Array], shape: tuple[int, ...]) -> np.ndarray:
    """Return half the change of each action component from -1 to 1 in the policy's units, 1 where that says nothing."""
    ones = jnp.ones(shape)
    units = np.abs(np.asarray(action_mapping(ones), np.float64) - np.asarray(action_mapping(-ones), np.float64))[0] / 2
    return np.where(np.isfinite(units) & (units > 0), units, 1.0)


def _check_parity(
    model: bytes,
    inputs: Mapping[str, list[np.ndarray]],
    expected: Mapping[str, list[np.ndarray]],
    units: np.ndarray,
) -> None:
    """Run the serialised model and raise ExportError where it differs from `expected`; see `export_onnx`."""
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        results = {
            name: [session.run(None, {"observation": b})[0] for b in batches] for name, batches in inputs.items()
        }
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ExportError(f"ONNX Runtime cannot run the exported policy ({reason}).") from error
    size, actions = next(iter(inputs.values()))[0].shape[1], next(iter(expected.values()))[0].shape[1]
    signature = [session.get_inputs()[0].shape, session.get_outputs()[0].shape]
    if signature != [["batch", size], ["batch", actions]]:
        raise ExportError(
            f"The exported policy maps {signature[0]} to {signature[1]} instead of ['batch', {size}] to "
            f"['batch', {actions}], so it was not written."
        )
    for name, reference in expected.items():
        allowed = PARITY_TOLERANCE * (np.abs(np.concatenate(reference)) / units).max() * units
        for wanted, found in zip(reference, results[name], strict=True):
            difference = np.abs(found.astype(np.float64) - wanted).max(axis=0)
            if not (difference <= allowed).all():
                worst = int(np.argmax(np.nan_to_num(difference - allowed, nan=np.inf)))
                raise ExportError(
                    f"ONNX Runtime and JAX differ by {difference[worst]:.2e} in action {worst} at batch {len(wanted)} "
                    f"on {name}, where {allowed[worst]:.2e} is allowed, so the policy was not written."
                )
