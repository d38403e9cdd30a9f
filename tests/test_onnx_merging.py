"""bridges.onnx_merging: graphs written by hand, run before and after; and what must not be merged."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from bridges.onnx_merging import merge_nodes

RANDOM = np.random.default_rng(0)
SHAPE = (2, 3, 6, 5)
KERNEL = RANDOM.normal(size=(4, 3, 3, 3)).astype(np.float32)
BIAS = RANDOM.normal(size=(1, 4, 1, 1)).astype(np.float32)
PADS = np.array([0, 0, 1, 1, 0, 0, 1, 0])


def graph(nodes, shape=SHAPE, **constants):
    """A model of nodes (operator, inputs, output, attributes), from `x` to `y`."""
    return helper.make_model(
        helper.make_graph(
            [helper.make_node(op, inputs, [output], **attributes) for op, inputs, output, attributes in nodes],
            "graph",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape))],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=8,
    )


def run(model, shape=SHAPE):
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def merged(model, shape=SHAPE):
    """The operators left, after making sure that they compute the same."""
    before = run(model, shape)
    merge_nodes(model.graph)
    onnx.checker.check_model(model, full_check=True)
    np.testing.assert_allclose(run(model, shape), before, rtol=1e-5, atol=1e-5)
    return [node.op_type for node in model.graph.node]


def test_the_bias_of_a_convolution():
    nodes = [("Conv", ["x", "k"], "h", {"strides": [2, 1]}), ("Add", ["b", "h"], "y", {})]
    assert merged(graph(nodes, k=KERNEL, b=BIAS)) == ["Conv"]


@pytest.mark.parametrize("bias", [BIAS[:, :1], RANDOM.normal(size=(1, 4, 4, 3)).astype(np.float32)])
def test_what_is_no_bias_of_a_convolution(bias):
    nodes = [("Conv", ["x", "k"], "h", {}), ("Add", ["h", "b"], "y", {})]
    assert merged(graph(nodes, k=KERNEL, b=bias)) == ["Conv", "Add"]


def test_a_convolution_that_is_read_twice():
    nodes = [("Conv", ["x", "k"], "h", {}), ("Add", ["h", "b"], "a", {}), ("Mul", ["a", "h"], "y", {})]
    assert merged(graph(nodes, k=KERNEL, b=BIAS)) == ["Conv", "Add", "Mul"]


def pool(pads=PADS, value=-np.inf):
    nodes = [
        ("Pad", ["x", "pads", "value"], "h", {}),
        ("MaxPool", ["h"], "y", {"kernel_shape": [3, 3], "strides": [2, 2]}),
    ]
    return graph(nodes, pads=pads, value=np.float32(value))


def test_padding_before_a_pooling():
    model = pool()
    assert merged(model) == ["MaxPool"]
    assert helper.get_node_attr_value(model.graph.node[0], "pads") == [1, 1, 1, 0]


@pytest.mark.parametrize(
    "model", [pool(value=0.0), pool(pads=np.array([0, 1, 1, 1, 0, 0, 1, 1]))], ids=["zeros", "channels"]
)
def test_padding_that_a_pooling_has_not(model):
    assert merged(model) == ["Pad", "MaxPool"]


def layer_norm(axes=(1, 2, 3), shape=SHAPE[1:], epsilon=1e-5):
    scale, shift = RANDOM.normal(size=(2, 1, *shape)).astype(np.float32)
    nodes = [
        ("ReduceMean", ["x", "axes"], "mean", {}),
        ("Sub", ["x", "mean"], "d", {}),
        ("Mul", ["d", "d"], "square", {}),
        ("ReduceMean", ["square", "axes"], "variance", {}),
        ("Add", ["variance", "epsilon"], "sum", {}),
        ("Sqrt", ["sum"], "root", {}),
        ("Div", ["d", "root"], "normed", {}),
        ("Mul", ["normed", "scale"], "scaled", {}),
        ("Add", ["scaled", "shift"], "y", {}),
    ]
    return graph(nodes, axes=np.array(axes), epsilon=np.float32(epsilon), scale=scale, shift=shift)


def test_a_layer_norm():
    model = layer_norm(epsilon=0.1)
    assert merged(model) == ["LayerNormalization"]
    assert helper.get_node_attr_value(model.graph.node[0], "epsilon") == pytest.approx(0.1)


@pytest.mark.parametrize("model", [layer_norm(axes=(2, 3)), layer_norm(shape=(3, 1, 1))], ids=["axes", "scale"])
def test_another_norm(model):
    assert "LayerNormalization" not in merged(model)


VECTOR = (4, 6)


def groups(*cuts, output="Identity"):
    """Slices (start, end) of the last axis, side by side."""
    constants, nodes = {"axes": np.array([1])}, []
    for i, (start, end) in enumerate(cuts):
        constants |= {f"start{i}": np.array([start]), f"end{i}": np.array([end])}
        nodes.append(("Slice", ["x", f"start{i}", f"end{i}", "axes"], f"s{i}", {}))
    last = [("Concat", [f"s{i}" for i in range(len(cuts))], "c" if output else "y", {"axis": -1})]
    last += [(output, ["c"], "y", {})] if output else []
    return graph([*nodes, *last], shape=VECTOR, **constants)


def test_groups_side_by_side_are_the_observation():
    assert merged(groups((0, 2), (2, 5), (5, 6), output="Tanh"), VECTOR) == ["Tanh"]


@pytest.mark.parametrize(
    "model",
    [
        groups((0, 2), (3, 6)),
        groups((0, 2), (2, 5)),
        groups((2, 6), (0, 2)),
        groups((0, 2), (2, 6), output=None),
    ],
    ids=["gap", "end", "order", "output"],
)
def test_groups_that_are_not_the_observation(model):
    assert merged(model, VECTOR)[:3] == ["Slice", "Slice", "Concat"]
