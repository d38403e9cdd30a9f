"""What jax2onnx was converting when it failed: the primitive and the layer that it belongs to."""

from __future__ import annotations

import traceback

from flax import linen as nn


def failed_at(error: Exception) -> tuple[str | None, str]:
    """Returns the primitive that a conversion failed at, and the path of its layer, such as `Net/head`.

    The frames of the conversion hold the equations as `eqn`, the outermost first; the names inside a jitted or looped
    function are relative to the equation that holds it. Where tracing failed already there is no equation: the
    primitive is None, and the layer is the innermost Flax module that was being called. The layer is "" where nothing
    names one.
    """
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)]
    found = [frame["eqn"] for frame in frames if hasattr(frame.get("eqn"), "primitive")]
    if equations := [eqn for index, eqn in enumerate(found) if index == 0 or eqn is not found[index - 1]]:
        names = [str(eqn.source_info.name_stack) for eqn in equations]
        return equations[-1].primitive.name, "/".join(filter(None, names))
    modules = [frame["self"] for frame in frames if isinstance(frame.get("self"), nn.Module)]
    return None, ("/".join(modules[-1].path) or type(modules[-1]).__name__) if modules else ""
