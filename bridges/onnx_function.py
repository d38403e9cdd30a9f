"""A JAX function to one ONNX file, written only if ONNX Runtime and JAX agree on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bridges.metadata import encode_metadata
from bridges.onnx_graph import simplify
from bridges.onnx_parity import ExportError, check_parity, evaluate, parity_inputs, reason
from bridges.onnx_support import failed_at
from rlbotics_jax.atomic import replacing
from rlbotics_jax.extras import missing_package

OPSET = 18
# The IR version that belongs to opset 18. jax2onnx writes 10, which the runtimes that still accept numpy 1 refuse.
IR_VERSION = 8

# jax2onnx patches jax's functions while it traces: two exports at once would undo each other's patches.
_EXPORT_LOCK = threading.Lock()


def export_function(
    function: Callable[..., Any],
    inputs: Mapping[str, Sequence[int]],
    outputs: Sequence[str],
    path: str | Path,
    metadata: Mapping[str, Any] | None = None,
    samples: Mapping[str, np.ndarray] | None = None,
    units: np.ndarray | None = None,
) -> Path:
    """Write a function of batches as an ONNX graph with the weights inside: one file, opset 18, IR version 8.

    Before anything is written, ONNX Runtime must reproduce JAX (run eagerly, with full float32 products) at batch 1, 2
    and 64 on random inputs of magnitudes 0.1 to 100, and on `samples`. For each of these sets of rows i, and each
    component j of an output,

        max_i |onnx_ij - jax_ij| / u_j  <=  1e-5 * s,   s = max_ij |jax_ij| / u_j

    or, where float32 itself leaves more than that undetermined, 40 times max_ij |jax_ij - jax64_ij| / u_j, the distance
    to JAX in float64, and at most 1e-2 * s.

    Args:
        function: from arrays (batch, *shape), one for each input in order, to an array (batch, ...) or a tuple of them.
            Pure, in float32, its parameters closed over as arrays, and not under jit (a jitted function is unwrapped).
            Several inputs and outputs let a recurrent policy take its state and give it back.
        inputs: name -> shape of one row.
        outputs: the names of what it returns.
        path: the file to write; missing folders are made, an existing file is replaced at once or not at all.
        metadata: written into the model's metadata, as `bridges.metadata.encode_metadata`.
        samples: input -> rows (k, *shape) that the policy will meet.
        units: u, of the first output's components; 1 where it is None.

    Returns:
        The path written.

    Raises:
        ImportError: jax2onnx is not installed.
        ValueError: samples or metadata that are not usable.
        ExportError: the graph cannot be built (naming the primitive and the layer), gives non-finite values, or differs
            from JAX.
    """
    path, shapes = Path(path), {name: tuple(shape) for name, shape in inputs.items()}
    texts = encode_metadata(metadata or {})
    to_onnx, onnx = _import_exporter()
    function = unjit(function)

    def graph(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        results = function(*arrays)
        results = tuple(results) if isinstance(results, tuple | list) else (results,)
        # jax2onnx cannot give one value two names, such as the new state that is the action too.
        named = [*arrays]
        for result in results:
            named.append(result * 1 if any(result is other for other in named) else result)
        return tuple(named[len(arrays) :])

    # JAX first: the export may leave traces of its patched functions in JAX's caches.
    references = {name: evaluate(graph, rows) for name, rows in parity_inputs(shapes, samples).items()}
    try:
        with _EXPORT_LOCK:
            model = to_onnx(
                graph if len(outputs) > 1 else lambda *arrays: graph(*arrays)[0],
                [("batch", *shape) for shape in shapes.values()],
                model_name="policy",
                opset=OPSET,
                input_names=list(shapes),
                output_names=list(outputs),
            )
        simplify(model)
        model.ir_version = IR_VERSION
        model.producer_name = "rlbotics-jax"
        onnx.helper.set_model_props(model, texts)
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:
        raise ExportError(_failure(error)) from error
    check_parity(model.SerializeToString(), shapes, outputs, references, units)
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


def unjit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function under `jax.jit`: the export of a jitted function can poison JAX's compilation cache."""
    while isinstance(function, jax.stages.Wrapped):
        function = function.__wrapped__
    return function


def _failure(error: Exception) -> str:
    """Return the sentence for what could not be converted, naming the primitive and the layer where they are known."""
    primitive, layer = failed_at(error)
    what = f"the primitive '{primitive}'" if primitive else "this policy"
    where = f" in the layer '{layer}'" if layer else ""
    return f"jax2onnx cannot convert {what}{where} ({type(error).__name__}: {reason(error)})."
