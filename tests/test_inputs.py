"""bridges.inputs: groups to inputs and back, by literal."""

from __future__ import annotations

import numpy as np
import pytest

from bridges.inputs import Inputs

VECTORS = {"joints": (2,), "command": (1,)}
CAMERA = {"camera": (1, 2, 2)}
ROWS = {"joints": np.array([[1.0, 2.0]]), "command": np.array([[3.0]]), "camera": np.arange(4.0).reshape(1, 1, 2, 2)}


@pytest.mark.parametrize(
    ("groups", "shapes"),
    [
        (VECTORS, {"observation": (3,)}),
        ({"command": [1]}, {"observation": (1,)}),
        (CAMERA, {"observation": (1, 2, 2)}),
        ({**CAMERA, **VECTORS}, {"camera": (1, 2, 2), "joints": (2,), "command": (1,)}),
        ({**CAMERA, "action": (2,)}, {"camera": (1, 2, 2), "action_input": (2,)}),
    ],
)
def test_shapes_of_the_inputs(groups, shapes):
    inputs = Inputs.of(groups)
    assert inputs.shapes == shapes and list(inputs.shapes) == list(shapes)


@pytest.mark.parametrize("groups", [VECTORS, CAMERA, {**CAMERA, **VECTORS}], ids=["vectors", "image", "both"])
def test_joined_and_split_again(groups):
    inputs = Inputs.of(groups)
    joined = inputs.join(ROWS)
    assert {name: rows.shape[1:] for name, rows in joined.items()} == inputs.shapes
    assert all(rows.dtype == np.float32 for rows in joined.values())
    split = inputs.split(*joined.values())
    assert list(split) == list(groups)
    for group, rows in split.items():
        np.testing.assert_array_equal(rows, ROWS[group])


def test_vectors_stand_side_by_side_in_their_order():
    np.testing.assert_array_equal(Inputs.of(VECTORS).join(ROWS)["observation"], [[1.0, 2.0, 3.0]])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"joints": ROWS["joints"]}, "The samples lack the group 'command'; given are joints"),
        ({**ROWS, "joints": np.ones((2, 2))}, r"with one k for all, not \{'joints': \(2, 2\), 'command': \(1, 1\)\}"),
        ({**ROWS, "joints": np.ones((1, 3))}, r"must have the shapes 'joints' \(k, 2\), 'command' \(k, 1\)"),
    ],
)
def test_rows_that_do_not_fit(rows, message):
    with pytest.raises(ValueError, match=message):
        Inputs.of(VECTORS).join(rows)
