"""An algorithm's config in two halves: floats for the state, the rest for the program."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass

import jax.numpy as jnp
import pytest

from rlbotics_jax.algorithms.settings import StaticSettings, hyperparameters_of
from rlbotics_jax.config import PPOConfig


@dataclass(frozen=True)
class ExampleConfig:
    """One field of each kind."""

    rate: float = 0.5
    target: float | None = None
    steps: int = 3
    name: str = "adam"
    layers: tuple[int, ...] = (4, 4)


def test_floats_are_strong_float32_scalars():
    hyperparameters = hyperparameters_of(ExampleConfig())
    assert set(hyperparameters) == {"rate", "target"}
    for value in hyperparameters.values():
        assert value.dtype == jnp.float32 and value.shape == () and not value.weak_type
    assert float(hyperparameters["rate"]) == 0.5


def test_none_is_infinity():
    assert float(hyperparameters_of(ExampleConfig())["target"]) == float("inf")
    assert float(hyperparameters_of(ExampleConfig(target=0.25))["target"]) == 0.25


def test_the_rest_is_static():
    settings = StaticSettings.of(ExampleConfig())
    assert (settings.steps, settings.name, settings.layers) == (3, "adam", (4, 4))


def test_reading_a_float_raises():
    with pytest.raises(
        AttributeError, match=r"settings.rate is a float hyperparameter.*state.hyperparameters\['rate'\]"
    ):
        _ = StaticSettings.of(ExampleConfig()).rate


def test_reading_an_unknown_field_raises():
    with pytest.raises(AttributeError, match="no field 'stepz'"):
        _ = StaticSettings.of(ExampleConfig()).stepz


def test_hashable_by_value_and_blind_to_floats():
    settings = StaticSettings.of(ExampleConfig())
    assert hash(settings) == hash(StaticSettings.of(ExampleConfig(rate=0.1)))
    assert settings == StaticSettings.of(ExampleConfig(rate=0.1))
    assert settings != StaticSettings.of(ExampleConfig(steps=4))


def test_copies():
    settings = StaticSettings.of(ExampleConfig())
    assert copy.deepcopy(settings) == pickle.loads(pickle.dumps(settings)) == settings


def test_every_field_of_ppo_is_in_exactly_one_half():
    config = PPOConfig()
    settings, hyperparameters = StaticSettings.of(config), hyperparameters_of(config)
    static = {name for name, _ in settings.items}
    assert static.isdisjoint(hyperparameters)
    assert static | set(hyperparameters) == set(PPOConfig.__dataclass_fields__)
    assert {"learning_rate", "gamma", "desired_kl", "entropy_coef", "clip_param"} <= set(hyperparameters)
    assert {"optimizer", "schedule", "num_mini_batches"} <= static
