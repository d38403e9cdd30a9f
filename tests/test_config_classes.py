"""Algorithms, models and distributions of one's own in a config: by name, import path or class, with their own keys."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from config_cases import GROUPS, refused, whole

from rlbotics_jax.config import (
    CNNConfig,
    ConfigBase,
    ConfigError,
    GaussianDistributionConfig,
    MLPConfig,
    OnPolicyRunnerConfig,
    PPOConfig,
    from_dict,
)
from rlbotics_jax.registry import ALGORITHMS, DISTRIBUTIONS, MODELS, import_path


@dataclass(frozen=True)
class EntropyDecayConfig(PPOConfig):
    """What a user writes: two more keys with rules of their own."""

    entropy_decay: float = 0.99
    entropy_floor: float = 0.0

    def validate(self):
        super().validate()
        self.check_range("entropy_decay", 0.0, 1.0)
        self.check_non_negative("entropy_floor")


class EntropyDecayPPO:
    """A user's algorithm, as far as configs are concerned."""

    config_class = EntropyDecayConfig


@dataclass(frozen=True)
class ReinforceConfig(ConfigBase):
    """The config of an algorithm that is no PPO."""

    class_name: str | type = "Reinforce"
    learning_rate: float = 1e-2


class Reinforce:
    """An algorithm that needs no critic."""

    config_class = ReinforceConfig


class PlainModel:
    """A user's model without a config of its own."""


@dataclass(frozen=True)
class WideConfig(MLPConfig):
    """The config of a user's model."""

    width: int = 8


class WideModel:
    """A user's model."""

    config_class = WideConfig


@dataclass(frozen=True)
class BetaConfig(ConfigBase):
    """The config of a user's distribution."""

    class_name: str | type = "Beta"
    concentration: float = 2.0


class Beta:
    """A user's distribution."""

    config_class = BetaConfig


@pytest.mark.parametrize("name", [import_path(EntropyDecayPPO), EntropyDecayPPO], ids=["path", "class"])
def test_an_algorithm_of_ones_own_brings_its_config(name):
    config = from_dict(whole(runner__algorithm={"class_name": name, "entropy_decay": "9e-1", "gamma": 0.9}))
    assert type(config.runner.algorithm) is EntropyDecayConfig
    assert (config.runner.algorithm.entropy_decay, config.runner.algorithm.gamma) == (0.9, 0.9)
    plain = json.loads(json.dumps(config.to_dict()))
    assert plain["runner"]["algorithm"]["class_name"] == import_path(EntropyDecayPPO)
    assert from_dict(plain).to_dict() == config.to_dict()
    text = refused(whole(runner__algorithm={"class_name": name, "entropy_decay": 2}))
    assert text == "runner.algorithm.entropy_decay: must be in [0.0, 1.0], got 2.0"
    assert refused(whole(runner__algorithm={"class_name": name, "entropy_decy": 2})).startswith(
        "runner.algorithm.entropy_decy: is no key of EntropyDecayConfig (its value is 2); "
        "the nearest key is 'entropy_decay'"
    )


def test_a_registered_algorithm_is_found_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "my_registered_tasks.py").write_text(
        "from rlbotics_jax.registry import ALGORITHMS\n"
        f"from {__name__} import Reinforce\n"
        "ALGORITHMS.register('RegisteredReinforce', Reinforce)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    entries = dict(ALGORITHMS._entries)
    try:
        mapping = whole(runner__algorithm={"class_name": "RegisteredReinforce"})
        assert "'RegisteredReinforce' is no known algorithm" in refused(mapping)
        mapping["env"]["imports"] = ["my_registered_tasks"]
        config = from_dict(mapping)
        assert config.runner.algorithm == ReinforceConfig(class_name="RegisteredReinforce")
        assert from_dict(config.to_dict()) == config
    finally:
        ALGORITHMS._entries = entries


def test_a_module_of_env_imports_is_imported_only_where_a_name_is_missing():
    mapping = whole(env__imports=["no_such_module_anywhere"])
    assert from_dict(mapping).env.imports == ("no_such_module_anywhere",)
    with pytest.raises(ConfigError, match=r"^imports\[0\]: the module 'no_such_module_anywhere' cannot be imported"):
        from_dict(mapping).env.import_modules()
    mapping["runner"]["algorithm"]["class_name"] = "Unknown"
    assert refused(mapping).startswith("env.imports[0]: the module 'no_such_module_anywhere' cannot be imported")


def test_models_and_distributions_of_ones_own():
    config = from_dict(
        whole(
            runner__actor={
                "class_name": import_path(WideModel),
                "width": 3,
                "distribution_cfg": {"class_name": import_path(Beta), "concentration": 5},
            },
            runner__critic={"class_name": PlainModel, "hidden_dims": [8]},
        )
    )
    assert (type(config.runner.actor), config.runner.actor.width) == (WideConfig, 3)
    assert config.runner.actor.distribution_cfg == BetaConfig(class_name=import_path(Beta), concentration=5.0)
    assert config.runner.critic == MLPConfig(class_name=PlainModel, hidden_dims=(8,))
    assert from_dict(config.to_dict()).to_dict() == config.to_dict()


def test_a_config_object_must_be_the_one_its_class_reads():
    runner = OnPolicyRunnerConfig(obs_groups=GROUPS, algorithm=EntropyDecayConfig(class_name=EntropyDecayPPO))
    assert runner.algorithm.entropy_decay == 0.99
    with pytest.raises(
        ConfigError, match=r"^algorithm.class_name: 'PPO' is configured by PPOConfig, not by EntropyDecayConfig"
    ):
        OnPolicyRunnerConfig(obs_groups=GROUPS, algorithm=EntropyDecayConfig())


def test_a_class_whose_config_cannot_be_used_is_refused():
    class NoConfig:
        config_class = dict

    @dataclass(frozen=True)
    class Nameless(ConfigBase):
        gamma: float = 0.9

    class WithNameless:
        config_class = Nameless

    assert "must derive from ConfigBase" in refused(whole(runner__algorithm={"class_name": NoConfig}))
    assert "must have a field 'class_name'" in refused(whole(runner__algorithm={"class_name": WithNameless}))


def test_an_algorithm_that_is_no_ppo_needs_no_critic_set():
    algorithm = {"class_name": import_path(Reinforce)}
    config = from_dict(whole(runner__algorithm=algorithm, runner__obs_groups={"actor": ["o"]}))
    assert config.runner.obs_groups == {"actor": ("o",)}
    assert refused(whole(runner__algorithm=algorithm, runner__obs_groups={"critic": ["o"]})).startswith(
        "runner.obs_groups.actor: "
    )
    extra = {**GROUPS, "teacher": ["observation", "privileged"]}
    assert from_dict(whole(runner__obs_groups=extra)).runner.obs_groups["teacher"] == ("observation", "privileged")


def test_the_registries_know_every_built_in_config():
    for registry, name, config_class in (
        (ALGORITHMS, "PPO", PPOConfig),
        (MODELS, "MLPModel", MLPConfig),
        (MODELS, "CNNModel", CNNConfig),
        (DISTRIBUTIONS, "GaussianDistribution", GaussianDistributionConfig),
        (DISTRIBUTIONS, "SquashedGaussianDistribution", GaussianDistributionConfig),
    ):
        assert registry.config_class(name, ConfigBase) is config_class
