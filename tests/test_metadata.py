"""rlbotics_jax.metadata: the texts by literal, and back to the values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlbotics_jax.metadata import decode_metadata, encode_metadata

VALUES = {
    "library": "rlbotics-jax",
    "version": "0.1.0",
    "config_hash": "1e5",
    "run_name": "2026",
    "iteration": 250,
    "score": 998.25,
    "dt": 0.02,
    "normalized": True,
    "observation_groups": {"joints": 12, "camera": [3, 32, 32]},
    "recurrent_states": {},
    "action_names": ["hip"],
    "action_low": [-1.0, -math.inf],
    "action_scale": [0.25, 0.5],
    "joint_stiffness": [],
    "observation_terms_clip": [[-math.inf, math.inf], [-1.0, 2.5]],
    "observation_terms_flatten_history_dim": [True, False],
}
TEXTS = {
    "library": "rlbotics-jax",
    "version": "0.1.0",
    "config_hash": "1e5",
    "run_name": "2026",
    "iteration": "250",
    "score": "998.25",
    "dt": "0.02",
    "normalized": "true",
    "observation_groups": '{"joints": 12, "camera": [3, 32, 32]}',
    "recurrent_states": "{}",
    "action_names": "hip",
    "action_low": "-1.0,-inf",
    "action_scale": "0.25,0.5",
    "joint_stiffness": "",
    "observation_terms_clip": "-inf;inf,-1.0;2.5",
    "observation_terms_flatten_history_dim": "1,0",
}


def test_texts_by_literal():
    assert encode_metadata(VALUES) == TEXTS


def test_values_come_back():
    assert decode_metadata(TEXTS) == VALUES
    assert list(decode_metadata(TEXTS)["observation_groups"]) == ["joints", "camera"]


def test_none_is_left_out():
    assert encode_metadata({"score": None, "dt": 0.1}) == {"dt": "0.1"}


@given(st.lists(st.floats(allow_nan=False), max_size=4), st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_keep_all_their_digits(numbers, number):
    values = {"action_scale": numbers, "score": number}
    assert decode_metadata(encode_metadata(values)) == values


def test_texts_of_another_exporter_stay_or_become_what_they_look_like():
    # As mjlab writes them: three decimals, and an action scale that may be one number.
    texts = {"joint_stiffness": "20.000,40.000", "action_scale": "0.25", "joint_names": "a,b", "note": "no JSON"}
    assert decode_metadata(texts) == {
        "joint_stiffness": [20.0, 40.0],
        "action_scale": [0.25],
        "joint_names": ["a", "b"],
        "note": "no JSON",
    }
    assert decode_metadata({"joint_damping": "soft,2"}) == {"joint_damping": "soft,2"}


def test_keys_of_ones_own_come_back():
    values = {
        "gains": [1.0, 2.0],
        "flags": [True],
        "serial": "12",
        "note": "null",
        "nested": [[1], {"a": [0.5, None]}],
        "empty": "",
        "bounds": [-math.inf],
        "text": 'say "hip"',
    }
    assert decode_metadata(encode_metadata(values)) == values
    assert encode_metadata({"text": "left hip", "serial": "12"}) == {"text": "left hip", "serial": '"12"'}


def test_arrays_are_lists():
    values = {"joint_stiffness": np.float32([20.0, 0.5]), "dt": np.float64(0.02), "gains": {"p": np.arange(2)}}
    assert decode_metadata(encode_metadata(values)) == {
        "joint_stiffness": [20.0, 0.5],
        "dt": 0.02,
        "gains": {"p": [0, 1]},
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"joint_names": ["a,b"]}, r"metadata\['joint_names'\] lists 'a,b'; it is a list of names without a comma"),
        ({"joint_names": [1]}, r"metadata\['joint_names'\] lists 1; it is a list of names"),
        ({"joint_damping": ["a"]}, r"metadata\['joint_damping'\] lists 'a'; it is a list of numbers"),
        ({"scene": object()}, r"metadata\['scene'\] holds a object that cannot be written"),
        ({1: 2}, "metadata has the key 1; a key is a text"),
    ],
)
def test_values_that_no_text_stands_for(values, message):
    with pytest.raises(ValueError, match=message):
        encode_metadata(values)
