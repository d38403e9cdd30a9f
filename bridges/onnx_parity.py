"""Whether an exported policy computes what JAX computes: both are run on the same inputs, alone and in batches."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

TOLERANCE = 1e-5
BATCHES = (1, 2, 64)
MAGNITUDES = (0.1, 1.0, 10.0, 100.0)

ROUNDING_MARGIN, LARGEST_TOLERANCE = 40.0, 1e-2
"""How many times its own rounding error JAX's result may be away from ONNX Runtime's, which rounds in another order,
where that is more than the tolerance; but no more than so much of the largest action. Of 40 policies that squash large
numbers 25 were refused without it, none with it."""

Function = Callable[..., tuple[jax.Array, ...]]
Arrays = dict[str, np.ndarray]


class ExportError(RuntimeError):
    """The policy could not be exported, or the exported graph does not compute what JAX computes."""


@dataclasses.dataclass(frozen=True)
class Reference:
    """What JAX computes on one set of inputs.

    Attributes:
        inputs: 64 rows each.
        outputs: for each of the batch sizes, the outputs on the first rows.
        rounding: for each output, how far float32 is from float64: the largest error of each component. Far from the
            data a policy may be ill-conditioned (a squashed difference of large numbers); there, no two float32
            programs agree to 1e-5. Zero where the function does not run in float64.
    """

    inputs: Arrays
    outputs: list[tuple[np.ndarray, ...]]
    rounding: list[np.ndarray]


def evaluate_all(
    function: Function,
    shapes: Mapping[str, tuple[int, ...]],
    output_names: Sequence[str],
    samples: Mapping[str, np.ndarray] | None,
) -> dict[str, Reference]:
    """Returns what JAX computes on all inputs to compare on, by what an error calls them.

    Args:
        function: from arrays to a tuple of arrays.
        shapes: input -> shape of one row.
        output_names: of the function.
        samples: inputs that the policy will meet, (k, *shape) each; random ones alone lie in the tails of a normaliser
            whose mean is far from zero.

    Raises:
        ValueError: samples of another shape.
        ExportError: as `evaluate`, or an output that is not finite. Far from zero it may be so.
    """
    random = np.random.default_rng(0)
    rows = max(BATCHES)
    inputs = {
        f"random observations of magnitude {magnitude:g}": {
            name: (magnitude * random.standard_normal((rows, *shape))).astype(np.float32)
            for name, shape in shapes.items()
        }
        for magnitude in MAGNITUDES
    }
    far = list(inputs)[MAGNITUDES.index(1.0) + 1 :]
    if samples is not None:
        inputs["the sample observations"] = {
            name: _rows(name, np.asarray(samples[name], np.float32), shape, rows) for name, shape in shapes.items()
        }
    references = {}
    for name, arrays in inputs.items():
        reference = evaluate(function, arrays, output_names)
        if all(np.isfinite(output).all() for outputs in reference.outputs for output in outputs):
            references[name] = reference
        elif name not in far:
            raise ExportError(f"The policy gives actions that are not finite on {name}, so it is not exported.")
    return references


def evaluate(function: Function, inputs: Arrays, output_names: Sequence[str]) -> Reference:
    """Runs the function in JAX, operation by operation.

    Eagerly, because the CPU compiler of some jaxlib versions miscomputes products with a constant right-hand side once
    they are fused into one program; with full float32 products, because accelerators shorten them by default.

    Raises:
        ExportError: another number of outputs, or one that is no batch.
    """
    with jax.default_matmul_precision("highest"):
        outputs = [tuple(np.asarray(out) for out in function(*_batch(inputs, size))) for size in BATCHES]
    for size, results in zip(BATCHES, outputs, strict=True):
        if len(results) != len(output_names):
            raise ExportError(f"The policy gives {len(results)} outputs, not {', '.join(output_names)}.")
        for result in results:
            if result.ndim < 2 or result.shape[0] != size:
                raise ExportError(
                    f"The policy gives an output of shape {result.shape} for a batch of {size} observations, not one "
                    f"of shape ({size}, n)."
                )
    exact = outputs[-1]
    with jax.enable_x64(True), contextlib.suppress(Exception):
        exact = tuple(np.asarray(out, np.float64) for out in function(*_batch(inputs, BATCHES[-1], np.float64)))
    with np.errstate(invalid="ignore"):  # an infinity less another, where the function is not finite
        errors = [_columns(np.abs(a - b)).max(axis=0) for a, b in zip(exact, outputs[-1], strict=True)]
    return Reference(inputs, outputs, errors)


def check_parity(
    model: bytes,
    shapes: Mapping[str, tuple[int, ...]],
    output_names: Sequence[str],
    references: Mapping[str, Reference],
    units: np.ndarray | None,
) -> None:
    """Raises ExportError where ONNX Runtime differs from JAX; see `onnx_function.export_function` for the bound.

    Args:
        model: the serialised graph.
        shapes: input -> shape of one row.
        output_names: the outputs, in order.
        references: what JAX computed, by what an error calls the inputs.
        units: of the first output's components; 1 where it is None.
    """
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        found = {
            name: [
                session.run(list(output_names), {key: rows[:size] for key, rows in reference.inputs.items()})
                for size in BATCHES
            ]
            for name, reference in references.items()
        }
    except Exception as error:
        raise ExportError(f"ONNX Runtime cannot run the exported policy ({reason(error)}).") from error
    outputs = dict(zip(output_names, next(iter(references.values())).outputs[0], strict=True))
    _check_signature(session, shapes, outputs)
    for name, reference in references.items():
        for index, output in enumerate(output_names):
            results = [outputs[index] for outputs in found[name]]
            compare_output("ONNX Runtime", results, reference, index, output, name, None if index else units)


def compare_output(
    runtime: str,
    found: Sequence[np.ndarray],
    reference: Reference,
    index: int,
    output: str,
    inputs: str,
    units: np.ndarray | None = None,
) -> None:
    """Raises ExportError where one output of another runtime differs from JAX's.

    Args:
        runtime: what an error calls it.
        found: the output for each of the batch sizes.
        reference: what JAX computed.
        index: of the output in `reference`.
        output, inputs: what an error calls them.
        units: of the output's components; 1 where it is None.
    """
    wanted = [_columns(outputs[index]).astype(np.float64) for outputs in reference.outputs]
    unit = np.ones(wanted[0].shape[1]) if units is None else units
    scale = (np.abs(np.concatenate(wanted)) / unit).max()
    rounding = reference.rounding[index] / unit
    allowed = np.clip(ROUNDING_MARGIN * rounding, TOLERANCE * scale, LARGEST_TOLERANCE * scale) * unit
    for rows, results in zip(wanted, found, strict=True):
        difference = np.abs(_columns(results).astype(np.float64) - rows).max(axis=0)
        if not (difference <= allowed).all():
            worst = int(np.argmax(np.nan_to_num(difference - allowed, nan=np.inf)))
            raise ExportError(
                f"{runtime} and JAX differ by {difference[worst]:.2e} in {output} {worst} at batch {len(rows)} on "
                f"{inputs}, where {allowed[worst]:.2e} is allowed, so the policy was not written."
            )


def reason(error: Exception) -> str:
    """Returns an error's text in one line, without JAX's advice on tracing, cut where it is long."""
    return " ".join(str(error).partition("The error occurred while tracing")[0].split())[:300]


def _check_signature(session: Any, inputs: Mapping[str, tuple[int, ...]], outputs: Mapping[str, np.ndarray]) -> None:
    """Raises ExportError where a graph's inputs or outputs are not the wanted ones with a free batch dimension."""
    wanted = {name: ["batch", *shape] for name, shape in inputs.items()}
    wanted |= {name: ["batch", *array.shape[1:]] for name, array in outputs.items()}
    found = {value.name: value.shape for value in (*session.get_inputs(), *session.get_outputs())}
    if found != wanted:
        raise ExportError(f"The exported policy has the signature {found} instead of {wanted}, so it was not written.")


def _batch(inputs: Arrays, size: int, dtype: Any = np.float32) -> list[jax.Array]:
    return [jnp.asarray(rows[:size], dtype) for rows in inputs.values()]


def _rows(name: str, samples: np.ndarray, shape: tuple[int, ...], rows: int) -> np.ndarray:
    """Returns so many samples, the given ones over and over."""
    if samples.shape[1:] != shape or not len(samples):
        wanted = ", ".join(map(str, ("k", *shape)))
        raise ValueError(f"The samples of {name!r} must have the shape ({wanted}) with k >= 1, not {samples.shape}.")
    return samples[np.arange(rows) % len(samples)]


def _columns(output: np.ndarray) -> np.ndarray:
    return output.reshape(len(output), -1)
