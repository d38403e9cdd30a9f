"""bridges.onnx_parity: what is allowed, by literals; tests/test_onnx.py has whole graphs."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from bridges.onnx_parity import BATCHES, ExportError, Reference, compare_output, evaluate, evaluate_all


def reference(columns, rounding=(0.0, 0.0)):
    """What JAX computed: the same row again and again."""
    return Reference({}, [(np.tile(np.float32(columns), (size, 1)),) for size in BATCHES], [np.array(rounding)])


def compare(found, *arguments, units=None):
    outputs = [np.tile(np.float32(found), (size, 1)) for size in BATCHES]
    compare_output("The robot", outputs, reference(*arguments), 0, "action", "what it sees", units)


def test_a_hundred_thousandth_of_the_largest_component_is_allowed():
    compare([100.0009, 1.0009], [100.0, 1.0])
    with pytest.raises(
        ExportError, match=r"The robot and JAX differ by 1\.\d+e-03 in action 1 at batch 1 on what it sees"
    ):
        compare([100.0, 1.0011], [100.0, 1.0])


def test_units_make_components_equal():
    compare([100.0009, 1.000009], [100.0, 1.0], units=np.array([100.0, 1.0]))
    with pytest.raises(ExportError, match="in action 1"):
        compare([100.0, 1.00002], [100.0, 1.0], units=np.array([100.0, 1.0]))


def test_a_component_s_own_rounding_is_allowed_forty_times_but_no_more_than_a_hundredth():
    compare([1.003, 1.0], [1.0, 1.0], [1e-4, 0.0])
    for found, rounding in (([1.005, 1.0], [1e-4, 0.0]), ([1.0, 1.003], [1e-4, 0.0]), ([1.02, 1.0], [1.0, 0.0])):
        with pytest.raises(ExportError):
            compare(found, [1.0, 1.0], rounding)


def test_not_a_number_is_a_difference():
    with pytest.raises(ExportError, match="differ by nan in action 0"):
        compare([np.nan, 1.0], [1.0, 1.0])


def test_rounding_is_the_distance_to_float64():
    x = np.float32([[1.0], [1e8]]).repeat(32, axis=0)
    found = evaluate(lambda x: ((x + 1.0) - x,), {"x": x}, ["y"])
    assert found.rounding[0] == [1.0]  # 1e8 + 1 is 1e8 in float32
    assert [len(outputs[0]) for outputs in found.outputs] == [1, 2, 64]


def test_a_function_that_does_not_run_in_float64_has_no_rounding():
    def strict(x):
        assert x.dtype == jnp.float32
        return (x / 3.0,)

    assert evaluate(strict, {"x": np.ones((64, 1), np.float32)}, ["y"]).rounding[0] == [0.0]


def test_far_from_zero_a_function_may_overflow():
    names = list(evaluate_all(lambda x: (jnp.exp(x),), {"x": (1,)}, ["y"], None))
    assert names == [f"random observations of magnitude {magnitude}" for magnitude in ("0.1", "1", "10")]
    with pytest.raises(ExportError, match=r"not finite on the sample observations"):
        evaluate_all(lambda x: (jnp.exp(x),), {"x": (1,)}, ["y"], {"x": np.full((1, 1), 1e3)})


def test_as_many_outputs_as_names():
    with pytest.raises(ExportError, match="gives 1 outputs, not action, state"):
        evaluate_all(lambda x: (x,), {"x": (1,)}, ["action", "state"], None)
