"""bridges.metadata: the texts by literal, and back to the values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridges.metadata import decode_metadata, encode_metadata

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


def test_values_that_no_text_stands_for():
    with pytest.raises(ValueError, match=r"metadata\['joint_names'\] lists the name 'a,b'"):
        encode_metadata({"joint_names": ["a,b"]})
    with pytest.raises(ValueError, match=r"metadata\['scene'\] holds a object; allowed are"):
        encode_metadata({"scene": object()})
