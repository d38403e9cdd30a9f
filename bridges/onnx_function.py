"""A JAX function to one ONNX file, written only if ONNX Runtime and JAX agree on it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bridges.onnx_graph import simplify
from bridges.onnx_parity import ExportError, check_parity, evaluate_all, reason
from bridges.onnx_support import failed_at
from rlbotics_jax import __version__
from rlbotics_jax.atomic import replacing
from rlbotics_jax.extras import missing_package
from rlbotics_jax.metadata import encode_metadata

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

    or, in a component that float32 itself leaves more undetermined than that, 40 * max_i |jax_ij - jax64_ij| / u_j, its
    distance to JAX in float64, and at most 1e-2 * s. Random inputs of magnitudes 10 and 100 are left out where the
    function is not finite on them.

    Args:
        function: from arrays (batch, *shape), one for each input in order, to an array (batch, ...) or a tuple of them.
            Pure, in float32, its parameters closed over as arrays, and not under jit (a jitted function is unwrapped).
            Several inputs and outputs let a recurrent policy take its state and give it back.
        inputs: name -> shape of one row.
        outputs: the names of what it returns.
        path: the file to write; missing folders are made, an existing file is replaced at once or not at all.
        metadata: written into the model's metadata, as `rlbotics_jax.metadata.encode_metadata`.
        samples: input -> rows (k, *shape) that the policy will meet.
        units: u, of the first output's components; 1 where it is None.

    Returns:
        The path written.

    Raises:
        ImportError: jax2onnx is not installed.
        ValueError: names, samples or metadata that are not usable.
        ExportError: the graph cannot be built (naming the primitive and the layer), gives non-finite values, or differs
            from JAX.
    """
    path, shapes = Path(path), {name: tuple(shape) for name, shape in inputs.items()}
    names = [*shapes, *outputs]
    if len(set(names)) < len(names):
        raise ValueError(f"Inputs and outputs must have names of their own, not {', '.join(names)}.")
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
    references = evaluate_all(graph, shapes, outputs, samples)
    try:
        with _EXPORT_LOCK, _restored(jnp, jax.nn, jax.lax, jnp.linalg, nn):
            model = to_onnx(
                graph if len(outputs) > 1 else lambda *arrays: graph(*arrays)[0],
                [("batch", *shape) for shape in shapes.values()],
                model_name="policy",
                opset=OPSET,
                input_names=list(shapes),
                output_names=list(outputs),
            )
    except Exception as error:
        raise ExportError(_failure(error)) from error
    simplify(model)
    model.ir_version = IR_VERSION
    model.producer_name, model.producer_version = "rlbotics-jax", __version__
    onnx.helper.set_model_props(model, texts)
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:
        raise ExportError(
            f"What jax2onnx made of this policy is not valid ONNX ({reason(error)}), so it was not written."
        ) from error
    serialised = model.SerializeToString()
    check_parity(serialised, shapes, outputs, references, units)
    with replacing(path) as temporary:
        temporary.write_bytes(serialised)
    return path


@contextlib.contextmanager
def _restored(*modules: ModuleType) -> Iterator[None]:
    """Puts back what jax2onnx leaves patched in these modules: it forgets jnp.cumsum."""
    before = [(module, dict(vars(module))) for module in modules]
    try:
        yield
    finally:
        for module, attributes in before:
            for name, value in attributes.items():
                if vars(module).get(name) is not value:
                    setattr(module, name, value)


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
