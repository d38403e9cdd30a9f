"""The defaults: equal to the schema's, explained in the docstrings, and stated in the annotated example."""

from __future__ import annotations

import dataclasses
import re

import pytest
import yaml

import rlbotics_jax.config.files
from rlbotics_jax.config import (
    CNNConfig,
    CNNEncoderConfig,
    Config,
    EnvConfig,
    GaussianDistributionConfig,
    LoggerConfig,
    MLPConfig,
    OnPolicyRunnerConfig,
    PPOConfig,
    SymmetryConfig,
    load_config,
    shipped_configs,
)

DEFAULTS = {
    EnvConfig: {
        "framework": None,
        "device": "auto",
        "clip_actions": None,
        "nconmax": None,
        "headless": True,
        "kwargs": {},
        "imports": (),
        "init_at_random_ep_len": False,
        "full_reset": False,
    },
    OnPolicyRunnerConfig: {
        "class_name": "OnPolicyRunner",
        "seed": None,
        "num_learning_iterations": 1000,
        "num_steps_per_env": 24,
        "verbose": True,
        "check_for_nan": False,
        "eval_interval": 0,
        "eval_episodes": 20,
        "early_stopping_threshold": None,
        "early_stopping_patience": 1,
        "init_from": None,
        "load": ("actor", "normalizer"),
        "torch_compile_mode": None,
        "logger": LoggerConfig(),
        "algorithm": PPOConfig(),
        "actor": MLPConfig(distribution_cfg=GaussianDistributionConfig()),
        "critic": MLPConfig(),
    },
    LoggerConfig: {
        "enabled": True,
        "log_name": "Logger",
        "log_dir": "logs",
        "experiment": "experiment",
        "log_interval": 100,
        "log_metrics": True,
        "log_video": False,
        "log_config": True,
        "save_interval": 1000,
        "keep_last_n": 5,
        "save_best": True,
        "resume": None,
        "wandb_project": None,
    },
    PPOConfig: {
        "class_name": "PPO",
        "optimizer": "adam",
        "learning_rate": 0.001,
        "min_learning_rate": 0.00001,
        "max_learning_rate": 0.01,
        "num_learning_epochs": 5,
        "num_mini_batches": 4,
        "schedule": "adaptive",
        "value_loss_coef": 1.0,
        "clip_param": 0.2,
        "use_clipped_value_loss": False,
        "desired_kl": 0.01,
        "entropy_coef": 0.01,
        "gamma": 0.99,
        "lam": 0.95,
        "max_grad_norm": 1.0,
        "normalize_advantage_per_mini_batch": False,
        "share_cnn_encoders": False,
        "max_rejected_updates": 100,
        "rnd_cfg": None,
        "symmetry_cfg": None,
    },
    SymmetryConfig: {"use_data_augmentation": True, "use_mirror_loss": True, "mirror_loss_coeff": 1.0},
    MLPConfig: {
        "class_name": "MLPModel",
        "hidden_dims": (256, 256, 256),
        "activation": "elu",
        "obs_normalization": False,
        "obs_clip": None,
        "distribution_cfg": None,
    },
    CNNConfig: {
        "class_name": "CNNModel",
        "hidden_dims": (256, 256, 256),
        "activation": "elu",
        "obs_normalization": False,
        "obs_clip": None,
        "distribution_cfg": None,
        "cnn_cfg": None,
        "image_normalization": True,
    },
    CNNEncoderConfig: {
        "output_channels": (32, 64, 64),
        "kernel_size": 3,
        "stride": 1,
        "dilation": 1,
        "padding": "none",
        "norm": "none",
        "activation": "elu",
        "max_pool": False,
        "global_pool": "none",
        "flatten": True,
    },
    GaussianDistributionConfig: {
        "class_name": "GaussianDistribution",
        "init_std": 1.0,
        "std_range": (1e-6, 1e6),
        "std_type": "scalar",
        "learn_std": True,
    },
    Config: {},
}
REQUIRED = {
    EnvConfig: {"id", "num_envs"},
    OnPolicyRunnerConfig: {"obs_groups"},
    SymmetryConfig: {"data_augmentation_func"},
    Config: {"env", "runner"},
}


@pytest.mark.parametrize("config_class", DEFAULTS, ids=lambda c: c.__name__)
def test_the_defaults_are_those_of_the_schema(config_class):
    found, required = {}, set()
    for field in dataclasses.fields(config_class):
        if field.default is not dataclasses.MISSING:
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
        else:
            required.add(field.name)
    assert found == DEFAULTS[config_class]
    assert required == REQUIRED.get(config_class, set())


@pytest.mark.parametrize("config_class", [c for c in DEFAULTS if c is not Config], ids=lambda c: c.__name__)
def test_every_key_is_explained_in_its_docstring(config_class):
    inherited = {
        field.name for base in config_class.__bases__ if base in DEFAULTS for field in dataclasses.fields(base)
    }
    explained = set()
    for line in config_class.__doc__.split("Attributes:")[1].splitlines():
        if match := re.match(r" {8}(\w+(?:, \w+)*): \S", line):
            explained |= set(match[1].split(", "))
    assert explained >= {field.name for field in dataclasses.fields(config_class)} - inherited


VALID_KEYS = {field.name for config_class in DEFAULTS for field in dataclasses.fields(config_class)}


def written_out(text, first_line):
    """A commented block of the example, uncommented: the lines that follow `first_line`."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip() == first_line)
    block = []
    for line in lines[start:]:
        if not line.strip().startswith("#"):
            break
        block.append(line.strip().removeprefix("# "))
    return yaml.safe_load("\n".join(block))


def test_the_example_has_every_key_explained_in_one_line():
    text = shipped_configs()["example"].read_text()
    example, plain = yaml.safe_load(text), load_config("example").to_dict()
    assert plain["runner"]["critic"].keys() == example["runner"]["critic"].keys()
    assert_same_keys(example, plain)
    symmetry = written_out(text, "# symmetry_cfg:")["symmetry_cfg"]
    encoder = written_out(text, "# class_name: CNNModel")
    assert symmetry.keys() == {field.name for field in dataclasses.fields(SymmetryConfig)}
    assert SymmetryConfig.from_dict(symmetry).use_mirror_loss
    assert encoder["cnn_cfg"].keys() == {field.name for field in dataclasses.fields(CNNEncoderConfig)}
    assert CNNConfig.from_dict(encoder).cnn_cfg == CNNEncoderConfig()
    for key in VALID_KEYS - {"env", "runner", "logger", "algorithm", "actor", "critic", "cnn_cfg"}:
        assert re.search(rf"^[ #]*{key}: *(\S.*?)? +# \S", text, re.MULTILINE), key


def assert_same_keys(example, plain):
    """Both mappings have the same keys, at every level."""
    assert example.keys() == plain.keys()
    for key, value in plain.items():
        if isinstance(value, dict) and key != "kwargs":
            assert_same_keys(example[key], value)


def test_the_defaults_that_the_example_states_are_the_real_ones():
    text = shipped_configs()["example"].read_text()
    stated = re.findall(r"^[ #]*(\w+): .*default (\[.*?\]|\{\}|[^ ;,:.]\S*?)(?:[:.]? .*)?$", text, re.MULTILINE)
    real = {name: value for defaults in DEFAULTS.values() for name, value in defaults.items()}
    names_of_two = {"class_name", "distribution_cfg", "framework"}
    for key, value in stated:
        if key not in names_of_two:
            found = yaml.load(value, Loader=rlbotics_jax.config.files._Loader)
            found = tuple(found) if isinstance(found, list) else found
            assert found == real[key], key
    assert len(stated) > 60
