"""Two rewrites that leave the graph of an exported policy as small as one written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


def simplify(model: Any) -> None:
    """Rewrite an onnx.ModelProto in place: compute constants, fold biases, drop what is no longer used."""
    opset = next(entry.version for entry in model.opset_import if entry.domain == "")
    fold_constants(model.graph, opset)
    fold_biases(model.graph)
    used = {*_uses(model.graph), *(name for node in model.graph.node for name in node.output)}
    for collection in (model.graph.initializer, model.graph.value_info):
        for unused in [item for item in collection if item.name not in used]:
            collection.remove(unused)


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


def fold_biases(graph: Any) -> None:
    """Turn `Gemm(x, W, 0, beta=0)` then `Add(bias)`, as jax2onnx writes a dense layer, into `Gemm(x, W, bias)`."""
    from onnx import helper, numpy_helper

    constants = {tensor.name: tensor for tensor in graph.initializer}
    uses = list(_uses(graph))
    producers = {node.output[0]: node for node in graph.node if node.op_type == "Gemm" and len(node.input) == 3}
    for add in [node for node in graph.node if node.op_type == "Add"]:
        operands = [name for name in add.input if name in producers and uses.count(name) == 1]
        biases = [name for name in add.input if name in constants]
        if len(operands) != 1 or len(biases) != 1:
            continue
        dense = producers[operands[0]]
        zero, weight = constants.get(dense.input[2]), constants.get(dense.input[1])
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in dense.attribute}
        if weight is None or attributes.get("transA", 0) or attributes.get("transB", 0):
            continue
        if zero is None or numpy_helper.to_array(zero).any():
            continue
        if list(constants[biases[0]].dims) not in ([weight.dims[1]], [1, weight.dims[1]]):
            continue
        del dense.attribute[:]
        dense.attribute.append(helper.make_attribute("alpha", attributes.get("alpha", 1.0)))
        dense.input[2] = biases[0]
        dense.output[0] = add.output[0]
        graph.node.remove(add)


def _uses(graph: Any) -> Iterator[str]:
    """Yield every name that a node or an output reads, once per use; subgraphs read their surroundings by name."""
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _uses(attribute.g)
    for value in graph.output:
        yield value.name
