"""Rewrites that leave the graph of an exported policy as small as one written by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from bridges.onnx_merging import merge_nodes, uses


def simplify(model: Any) -> None:
    """Rewrite an onnx.ModelProto in place: compute constants, merge nodes, drop what is no longer used."""
    opset = next(entry.version for entry in model.opset_import if entry.domain == "")
    fold_constants(model.graph, opset)
    merge_nodes(model.graph)
    _drop_unused(model.graph)


def fold_constants(graph: Any, opset: int) -> None:
    """Replace nodes that compute with weights alone, such as the standard deviation of a variance, by their result."""
    from onnx import AttributeProto, numpy_helper
    from onnx.reference import ReferenceEvaluator

    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    outputs = {value.name for value in graph.output}
    for node in list(graph.node):
        inputs = [name for name in node.input if name]
        has_subgraph = any(attribute.type == AttributeProto.GRAPH for attribute in node.attribute)
        if not inputs or has_subgraph or not constants.keys() >= set(inputs) or outputs & set(node.output):
            continue
        try:
            results = ReferenceEvaluator(node, opsets={"": opset}).run(None, {name: constants[name] for name in inputs})
        except Exception:  # an operator that the evaluator lacks stays in the graph
            continue
        for name, result in zip(node.output, results, strict=True):
            constants[name] = np.asarray(result)
            graph.initializer.append(numpy_helper.from_array(constants[name], name))
        graph.node.remove(node)


def _drop_unused(graph: Any) -> None:
    """Remove constants that nothing reads, and types of values that are no more, also in the bodies of loops."""
    used = {*uses(graph), *(name for node in graph.node for name in node.output)}
    for collection in (graph.initializer, graph.value_info):
        for unused in [item for item in collection if item.name not in used]:
            collection.remove(unused)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _drop_unused(attribute.g)
