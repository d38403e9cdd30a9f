"""The section `runner` as RLBotics writes and reads it."""

from __future__ import annotations

import dataclasses
import json

import pytest
from helpers import small_config
from toys import ConstantReward

from bridges.torch_config import config_beside, rlbotics_runner_section
from rlbotics_jax.algorithms import PPO
from rlbotics_jax.config import ConfigError, PPOConfig, from_dict
from rlbotics_jax.envs import vectorize

OURS = {
    "eval_interval": 5,
    "early_stopping_threshold": 3.0,
    "init_from": "other",
    "load": ["actor"],
    "logger__wandb_project": "project",
    "logger__resume": "last",
    "algorithm__max_learning_rate": 0.1,
    "actor__obs_clip": 5.0,
    "critic__class_name": "CNNModel",
    "critic__image_normalization": False,
    "critic__cnn_cfg": {"camera": {"output_channels": [4], "activation": "lrelu"}},
    "actor__activation": "lrelu",
}


@dataclasses.dataclass(frozen=True)
class OwnConfig(PPOConfig):
    """With a key of its own."""

    bonus: float = 2.0


class OwnPPO(PPO):
    """A PPO of one's own."""

    config_class = OwnConfig


def test_what_rlbotics_does_not_know_is_left_out():
    plain, changed = (
        rlbotics_runner_section(small_config(**{f"runner__{key}": value for key, value in overrides.items()}))
        for overrides in ({}, OURS)
    )
    assert changed["actor"] == plain["actor"] | {"activation": "leaky_relu"}
    (encoder,) = changed["critic"].pop("cnn_cfg").values()
    assert (encoder["activation"], encoder["output_channels"]) == ("leaky_relu", [4])
    assert changed["critic"] == plain["critic"] | {"class_name": "CNNModel"}
    assert {key: value for key, value in changed.items() if key not in ("actor", "critic")} == {
        key: value for key, value in plain.items() if key not in ("actor", "critic")
    }
    assert plain["algorithm"]["use_clipped_value_loss"] is False and "max_learning_rate" not in plain["algorithm"]


def test_classes_are_named_as_there():
    section = rlbotics_runner_section(
        small_config(
            runner__algorithm={"class_name": "test_torch_config:OwnPPO", "bonus": 3.0},
            runner__actor__class_name="rlbotics_jax.networks:MLPModel",
        )
    )
    assert section["algorithm"] == rlbotics_runner_section(small_config(runner__algorithm={}))["algorithm"]
    assert section["actor"]["class_name"] == "MLPModel"


def test_config_beside_goes_back_to_a_config_that_trains_the_logarithm(tmp_path):
    config, environment = small_config(), vectorize(ConstantReward(), 4)
    (tmp_path / "config.json").write_text(json.dumps(rlbotics_runner_section(config)))
    found = config_beside(tmp_path / "model.pt", environment)
    assert (found.env.id, found.env.num_envs) == ("toys:ConstantReward", 4)
    assert found.runner == small_config(runner__actor__distribution_cfg__std_type="log").runner
    with pytest.raises(ConfigError, match="config.json: env: RLBotics writes no such section"):
        config_beside(tmp_path / "model.pt", ConstantReward())


def test_config_beside_that_is_whole_is_taken_as_it_is(tmp_path):
    config = small_config()
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    assert config_beside(tmp_path / "model.pt") == from_dict(config.to_dict())
