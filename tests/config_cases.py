"""What the tests of configs share: a valid file to change, and the sentence in which a mapping is refused."""

from __future__ import annotations

import copy

import pytest

from rlbotics_jax.config import ConfigError, from_dict

GROUPS = {"actor": ["observation"], "critic": ["observation"]}
DISTRIBUTION = {"class_name": "GaussianDistribution"}


def whole(**changes):
    """A valid file as a mapping, with `dotted__path=value` replaced."""
    mapping = {
        "env": {"framework": "mjx", "id": "CartpoleBalance", "num_envs": 16},
        "runner": {
            "obs_groups": copy.deepcopy(GROUPS),
            "logger": {},
            "algorithm": {},
            "actor": {"distribution_cfg": dict(DISTRIBUTION)},
            "critic": {},
        },
    }
    for path, value in changes.items():
        *parents, key = path.split("__")
        section = mapping
        for parent in parents:
            section = section.setdefault(parent, {})
        section[key] = value
    return mapping


def refused(mapping):
    """The sentence in which a mapping is refused."""
    with pytest.raises(ConfigError) as caught:
        from_dict(mapping)
    text = str(caught.value)
    assert "\n" not in text and text == f"{caught.value.path}: {caught.value.problem}"
    return text
