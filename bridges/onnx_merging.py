"""Merges nodes of an ONNX graph that one operator stands for: biases, padding in front of a pooling, layer norms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np


def merge_nodes(graph: Any) -> None:
    """Rewrite an onnx.GraphProto in place, where nothing else reads what is between. What jax2onnx writes, and what
    takes its place:

    Gemm(x, W, 0), Add(bias)        Gemm(x, W, bias)
    Conv(x, K), Add(bias)           Conv(x, K, bias)
    Pad(x, -inf), MaxPool           MaxPool with pads
    nine nodes of a layer norm      LayerNormalization
    Slices of all x, Concat         x
    """
    from onnx import numpy_helper

    view = _View(graph, {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer})
    for node in list(graph.node):
        if node.op_type == "Add" and not _merge_layer_norm(view, node):
            _merge_bias(view, node)
        elif node.op_type == "MaxPool":
            _merge_padding(view, node)
        elif node.op_type == "Concat":
            _merge_slices(view, node)


def uses(graph: Any) -> Iterator[str]:
    """Yield every name that a node or an output reads, once per use; subgraphs read their surroundings by name."""
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from uses(attribute.g)
    for value in graph.output:
        yield value.name


class _View:
    """A graph, its constants as arrays, and what its names stand for."""

    def __init__(self, graph: Any, constants: dict[str, np.ndarray]) -> None:
        self.graph, self.constants = graph, constants
        self._producers = {name: node for node in graph.node for name in node.output}
        self._uses = Counter(uses(graph))

    def producer(self, name: str, op_type: str, num_uses: int = 1) -> Any:
        """Return the node of this type that gives a name which is read so many times, or None."""
        node = self._producers.get(name)
        return node if node is not None and node.op_type == op_type and self._uses[name] == num_uses else None

    def split(self, node: Any) -> tuple[str, str] | None:
        """Return the two inputs of a commutative node, the variable and the constant one, or None."""
        first, second = node.input
        if first in self.constants:
            first, second = second, first
        return (first, second) if second in self.constants and first not in self.constants else None

    def add_constant(self, name: str, array: np.ndarray) -> str:
        from onnx import numpy_helper

        self.constants[name] = array
        self.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def rename(self, old: str, new: str) -> bool:
        """Let all nodes read `new` in place of `old`, unless an output or a subgraph reads it; return whether."""
        readers = [node for node in self.graph.node if old in node.input]
        if self._uses[old] != sum(list(node.input).count(old) for node in readers):
            return False
        for node in readers:
            node.input[:] = [new if name == old else name for name in node.input]
        return True

    def replace(self, nodes: list[Any], new: Any = None) -> None:
        """Put `new` in place of the last of the nodes, and remove them all."""
        if new is not None:
            self.graph.node.insert(list(self.graph.node).index(nodes[-1]), new)
            self._producers[new.output[0]] = new
        for node in nodes:
            self.graph.node.remove(node)


def _merge_bias(view: _View, add: Any) -> None:
    """`Gemm(x, W, 0, beta=0)` or `Conv(x, K)`, then `Add(bias)`, as jax2onnx writes a layer."""
    if (operands := view.split(add)) is None:
        return
    bias = view.constants[operands[1]]
    if dense := view.producer(operands[0], "Gemm"):
        attributes = _attributes(dense)
        weight = view.constants.get(dense.input[1])
        zero = view.constants.get(dense.input[2]) if len(dense.input) == 3 else None
        if weight is None or zero is None or zero.any() or attributes.get("transA", 0) or attributes.get("transB", 0):
            return
        if bias.shape not in ((weight.shape[1],), (1, weight.shape[1])):
            return
        _set_attributes(dense, alpha=attributes.get("alpha", 1.0))
        dense.input[2] = operands[1]
        dense.output[0] = add.output[0]
        view.replace([add])
    elif convolution := view.producer(operands[0], "Conv"):
        weight = view.constants.get(convolution.input[1])
        if len(convolution.input) != 2 or weight is None or bias.shape != (1, len(weight), *(1,) * (weight.ndim - 2)):
            return
        convolution.input.append(view.add_constant(f"{operands[1]}_of_{convolution.output[0]}", bias.reshape(-1)))
        convolution.output[0] = add.output[0]
        view.replace([add])


def _merge_padding(view: _View, pool: Any) -> None:
    """`Pad` with -inf over the image's axes, then `MaxPool`, which pads so itself."""
    pad = view.producer(pool.input[0], "Pad")
    attributes = _attributes(pool)
    if pad is None or len(pad.input) != 3 or any(attributes.get("pads", ())):
        return
    pads, value = (view.constants.get(name) for name in pad.input[1:])
    if pads is None or value is None or not np.isneginf(value).all():
        return
    before, after = np.split(pads, 2)
    if any([*before[:2], *after[:2]]) or attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return
    attributes.pop("auto_pad", None)
    _set_attributes(pool, **{**attributes, "pads": [*before[2:].tolist(), *after[2:].tolist()]})
    pool.input[0] = pad.input[0]
    view.replace([pad])


def _merge_slices(view: _View, concat: Any) -> None:
    """Observation groups, cut from one input and put side by side again in the same order."""
    slices = [view.producer(name, "Slice") for name in concat.input]
    if not all(slices) or len({node.input[0] for node in slices}) > 1:
        return
    source = slices[0].input[0]
    (last, end), position = _extent(view, source), 0
    for node in slices:
        starts, ends, axes, *steps = (view.constants.get(name) for name in node.input[1:])
        if any(array is None for array in (starts, ends, axes, *steps)):
            return
        cuts = {int(axis): (int(s), int(e)) for axis, s, e in zip(axes, starts, ends, strict=True)}
        if any((step != 1).any() for step in steps) or cuts.keys() != {last} or cuts[last][0] != position:
            return
        position = cuts[last][1]
    if position == end and _attributes(concat)["axis"] % (last + 1) == last and view.rename(concat.output[0], source):
        view.replace([*slices, concat])


def _extent(view: _View, name: str) -> tuple[int, int]:
    """Return the last axis of one of the graph's inputs and its length; (0, -1) of anything else."""
    for value in view.graph.input:
        if value.name == name:
            sizes = value.type.tensor_type.shape.dim
            return len(sizes) - 1, sizes[-1].dim_value
    return 0, -1


def _merge_layer_norm(view: _View, shift: Any) -> bool:
    """d / sqrt(mean(d * d) + epsilon) * scale + shift with d = x - mean(x), the means over all axes but the first."""
    from onnx import helper

    found: list[Any] = [shift]

    def step(name: str, op_type: str, num_uses: int = 1) -> Any:
        found.append(view.producer(name, op_type, num_uses))
        return found[-1]

    if not (
        (last := view.split(shift))
        and (scaling := step(last[0], "Mul"))
        and (scale := view.split(scaling))
        and (division := step(scale[0], "Div"))
        and (deviation := step(division.input[0], "Sub", num_uses=3))
        and (mean := step(deviation.input[1], "ReduceMean"))
        and (root := step(division.input[1], "Sqrt"))
        and (sum_ := step(root.input[0], "Add"))
        and (variance := view.split(sum_))
        and (mean_square := step(variance[0], "ReduceMean"))
        and (square := step(mean_square.input[0], "Mul"))
        and list(square.input) == [deviation.output[0]] * 2
        and mean.input[0] == deviation.input[0]
    ):
        return False
    x, epsilon = deviation.input[0], view.constants[variance[1]]
    scale, offset = view.constants[scale[1]], view.constants[last[1]]
    axes = list(range(1, scale.ndim))
    if scale.shape != offset.shape or scale.shape[0] != 1 or 1 in scale.shape[1:] or epsilon.size != 1:
        return False
    if any(sorted(view.constants[node.input[1]].tolist()) != axes for node in (mean, mean_square)):
        return False
    names = [view.add_constant(f"{last[1]}_{word}", array[0]) for word, array in (("scale", scale), ("shift", offset))]
    node = helper.make_node(
        "LayerNormalization", [x, *names], [shift.output[0]], axis=1, epsilon=float(epsilon.reshape(()))
    )
    view.replace(found[::-1], node)
    return True


def _attributes(node: Any) -> dict[str, Any]:
    from onnx import helper

    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def _set_attributes(node: Any, **values: Any) -> None:
    from onnx import helper

    del node.attribute[:]
    node.attribute.extend(helper.make_attribute(name, value) for name, value in values.items())
