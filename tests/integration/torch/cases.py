"""Runs that both libraries can do: distributions, normalisers, optimizers, networks."""

from __future__ import annotations

from typing import Any

from torch_task import IMAGES, VECTORS

VECTOR_GROUPS = {"actor": ["joints", "command"], "critic": ["joints", "privileged"]}
IMAGE_GROUPS = {"actor": ["camera"], "critic": ["camera"]}
CNN = {
    "output_channels": [4, 6],
    "kernel_size": [3, 2],
    "stride": [2, 1],
    "norm": ["layer", "batch"],
    "max_pool": [False, True],
    "activation": "tanh",
}
NORMALIZED = {"obs_normalization": True}
SQUASHED = {"distribution_cfg": {"class_name": "SquashedGaussianDistribution"}}
CNN_MODEL = {"class_name": "CNNModel", "cnn_cfg": CNN}

CASES: dict[str, dict[str, Any]] = {
    "adam": {"actor": NORMALIZED, "critic": NORMALIZED},
    "adamw": {"actor": {**NORMALIZED, **SQUASHED}, "critic": NORMALIZED, "algorithm": {"optimizer": "adamw"}},
    "rmsprop": {"actor": {"distribution_cfg": {"std_type": "log"}}, "algorithm": {"optimizer": "rmsprop"}},
    "sgd": {
        "actor": {**NORMALIZED, "distribution_cfg": {"learn_std": False}},
        "critic": {"activation": "tanh"},
        "algorithm": {"optimizer": "sgd", "schedule": "fixed"},
    },
    "cnn": {"actor": CNN_MODEL, "critic": {**CNN_MODEL, "cnn_cfg": {"camera": CNN}}},
    "shared_cnn": {"actor": CNN_MODEL, "critic": CNN_MODEL, "algorithm": {"share_cnn_encoders": True}},
}


def shapes_of(case: str) -> dict[str, tuple[int, ...]]:
    return IMAGES if "cnn" in case else VECTORS


def groups_of(case: str) -> dict[str, list[str]]:
    return IMAGE_GROUPS if "cnn" in case else VECTOR_GROUPS
