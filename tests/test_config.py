"""Configs: every shipped value set builds, every key round-trips, and every mistake is told with its full path."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
import re
import string
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import yaml
from config_cases import DISTRIBUTION, GROUPS, refused, whole
from hypothesis import given, settings
from hypothesis import strategies as st

from rlbotics_jax.config import (
    ACTIVATIONS,
    OPTIMIZERS,
    CNNConfig,
    CNNEncoderConfig,
    Config,
    ConfigBase,
    ConfigError,
    EnvConfig,
    GaussianDistributionConfig,
    LoggerConfig,
    MLPConfig,
    PPOConfig,
    from_dict,
    load_config,
)
from rlbotics_jax.registry import import_path

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
VALUE_SETS = json.loads((DATA / "rlbotics_configs.json").read_text())
CASES = [(framework, task) for framework, tasks in VALUE_SETS.items() for task in tasks]


def mirror(env, obs, actions):
    """A mirror function to name."""
    return obs, actions


def assert_contains(plain, mapping):
    """Every value of `mapping` is found unchanged in `plain`."""
    for key, value in mapping.items():
        if isinstance(value, dict):
            assert_contains(plain[key], value)
        else:
            assert plain[key] == value, key


@pytest.mark.parametrize(("framework", "task"), CASES)
def test_every_shipped_value_set_builds_and_round_trips(framework, task):
    mapping = VALUE_SETS[framework][task]
    config = from_dict(mapping)
    plain = config.to_dict()
    assert from_dict(plain) == config
    assert from_dict(json.loads(json.dumps(plain, allow_nan=False))) == config
    assert config.env.framework == framework and config.env.id == task
    assert_contains(plain, mapping)


def test_there_are_55_value_sets():
    assert len(CASES) == 55


@pytest.mark.parametrize("spelling", ["1e-4", "1E-4", "1.0e-4", "0.0001", "+1e-4", ".0001", "1.e-4", "10e-5", "'1e-4'"])
def test_every_spelling_of_a_number_is_a_number(tmp_path, spelling):
    mapping = yaml.safe_dump(whole(runner__algorithm__learning_rate="RATE")).replace("RATE", spelling)
    (tmp_path / "a.yaml").write_text(mapping)
    assert load_config(tmp_path / "a.yaml").runner.algorithm.learning_rate == 1e-4


@pytest.mark.parametrize("spelling", ["1000", "1e3", "1E3", "1e+3", "1000.0", "1000.", "10e2", "'1000'", "'1e3'"])
def test_every_spelling_of_a_whole_number_is_a_whole_number(tmp_path, spelling):
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(whole(env__num_envs="COUNT")).replace("COUNT", spelling))
    num_envs = load_config(tmp_path / "a.yaml").env.num_envs
    assert num_envs == 1000 and type(num_envs) is int


@settings(deadline=None)
@given(st.floats(min_value=1e-30, max_value=1e30), st.sampled_from(["{!r}", "{:.17e}", "{:.17E}"]))
def test_any_float_survives_its_spelling(value, spelling):
    assert PPOConfig(learning_rate=spelling.format(value)).learning_rate == value


def test_numpy_numbers_and_paths_are_taken_and_booleans_are_no_numbers():
    config = PPOConfig(learning_rate=np.float64(0.5), num_mini_batches=np.int32(8), entropy_coef=1)
    assert (config.learning_rate, config.num_mini_batches, config.entropy_coef) == (0.5, 8, 1.0)
    assert type(config.num_mini_batches) is int and type(config.entropy_coef) is float
    assert LoggerConfig(log_dir=Path("a") / "b").log_dir == str(Path("a") / "b")
    for name, value in (("learning_rate", True), ("num_mini_batches", True), ("use_clipped_value_loss", 1)):
        with pytest.raises(ConfigError, match=f"^{name}: must be "):
            PPOConfig(**{name: value})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "nan", ".inf", "-Infinity", "1e999", 10**400])
def test_numbers_that_are_not_finite_are_refused_everywhere(value):
    text = refused(whole(runner__algorithm__learning_rate=value))
    assert text.startswith("runner.algorithm.learning_rate: must be a finite number, got ")
    assert refused(whole(env__num_envs=value if not isinstance(value, int) else "inf")).startswith(
        "env.num_envs: must be"
    )
    if not isinstance(value, str):
        for key in ("env__kwargs", "runner__algorithm__rnd_cfg"):
            text = refused(whole(**{key: {"a": [1, {"b": value}]}})) if isinstance(value, float) else ".a[1].b: "
            assert ".a[1].b: " in text


def test_one_number_is_one_layer_and_lists_become_tuples():
    assert MLPConfig(hidden_dims=128).hidden_dims == (128,)
    assert MLPConfig(hidden_dims=[64, -1, 1e2]).hidden_dims == (64, -1, 100)
    config = from_dict(whole(env__kwargs={"a": [1, [2.5, "x"], {"b": [None, True]}]}, env__imports=["math"]))
    assert config.env.kwargs == {"a": (1, (2.5, "x"), {"b": (None, True)})}
    assert config.env.imports == ("math",)
    assert config.runner.obs_groups == {"actor": ("observation",), "critic": ("observation",)}
    assert from_dict(config.to_dict()) == config


def test_optimizer_names_have_no_case_and_all_choices_are_taken():
    for name in OPTIMIZERS:
        assert PPOConfig(optimizer=name.upper()).optimizer == name
    assert len(ACTIVATIONS) == 13
    for name in ACTIVATIONS:
        assert MLPConfig(activation=name).activation == name


@pytest.mark.parametrize("device", ["auto", "cpu", "gpu", "mps", "cuda", "cuda:0", "cuda:13"])
def test_every_device_spelling_is_taken(device):
    assert EnvConfig(framework="mjx", id="a", num_envs=1, device=device).device == device


def test_the_framework_of_an_import_path_is_mjx():
    assert EnvConfig(id="my_robot.tasks:Walk", num_envs=1).framework == "mjx"
    assert EnvConfig(id="my_robot.tasks:Walk", num_envs=1, framework="brax").framework == "brax"
    mapping = whole(env__id="pkg:Task-v0")
    del mapping["env"]["framework"]
    assert refused(mapping).startswith(
        "env.framework: is required unless id is an import path 'module:Class'; allowed are mjx"
    )


def test_runner_and_logger_may_be_named_with_their_module():
    config = from_dict(whole(runner__class_name="a.b:OnPolicyRunner", runner__logger__log_name="a.b.Logger"))
    assert config.runner.class_name == "a.b:OnPolicyRunner"


words = st.text(string.ascii_letters, max_size=5)
positive = st.floats(min_value=1e-9, max_value=1e9)
unit = st.floats(min_value=0.0, max_value=1.0)
PPO_VALUES = st.fixed_dictionaries(
    {},
    optional={
        "optimizer": st.sampled_from(OPTIMIZERS),
        "learning_rate": positive,
        "num_learning_epochs": st.integers(1, 100),
        "num_mini_batches": st.integers(1, 384),
        "schedule": st.sampled_from(["adaptive", "fixed"]),
        "value_loss_coef": positive,
        "use_clipped_value_loss": st.booleans(),
        "gamma": unit,
        "lam": unit,
        "rnd_cfg": st.none() | st.dictionaries(words, st.integers() | unit | st.lists(words)),
    },
)
MODEL_VALUES = st.fixed_dictionaries(
    {"distribution_cfg": st.fixed_dictionaries({}, optional={"init_std": positive.filter(lambda x: 1e-6 <= x <= 1e6)})},
    optional={
        "hidden_dims": st.lists(st.integers(1, 1024) | st.just(-1), min_size=1, max_size=4),
        "activation": st.sampled_from(ACTIVATIONS),
        "obs_clip": st.none() | positive,
    },
)


@settings(deadline=None)
@given(algorithm=PPO_VALUES, actor=MODEL_VALUES, seed=st.none() | st.integers(0, 2**32 - 1))
def test_any_valid_config_survives_json(algorithm, actor, seed):
    config = from_dict(whole(runner__algorithm=algorithm, runner__actor=actor, runner__seed=seed))
    assert from_dict(json.loads(json.dumps(config.to_dict(), allow_nan=False))) == config


def test_configs_are_frozen_and_replace_validates_again():
    config = PPOConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.gamma = 0.5
    assert config.replace(gamma="0.5").gamma == 0.5 and config.gamma == 0.99
    with pytest.raises(ConfigError, match=r"^gamma: must be in \[0.0, 1.0\], got 2.0$"):
        config.replace(gamma=2)
    with pytest.raises(ConfigError, match=r"^gama: is no key of PPOConfig .*the nearest is 'gamma'$"):
        config.replace(gama=0.5)


def test_a_config_built_in_python_names_its_keys_relative_to_itself():
    with pytest.raises(ConfigError, match=r"^init_std: must lie in std_range \[2.0, 3.0\], got 1.0$"):
        GaussianDistributionConfig(std_range=(2, 3))
    with pytest.raises(ConfigError, match=r"^distribution_cfg.init_std: "):
        MLPConfig(distribution_cfg={"init_std": -1})
    with pytest.raises(ConfigError, match=r"^somewhere.gamma: "):
        PPOConfig.from_dict({"gamma": 2}, "somewhere")


def test_objects_and_mappings_mix():
    config = Config(
        env=EnvConfig(framework="mjx", id="CartpoleBalance", num_envs=16),
        runner={"obs_groups": GROUPS, "algorithm": PPOConfig(gamma=0.9), "actor": {"distribution_cfg": {}}},
    )
    assert config.runner.algorithm.gamma == 0.9
    assert from_dict({"env": config.env, "runner": config.runner}) == config
    assert config.replace(env=config.env.replace(num_envs=3)).env.num_envs == 3


def test_an_error_can_be_pickled():
    error = pickle.loads(pickle.dumps(ConfigError("a.b", "is wrong", "file.yaml")))
    assert str(error) == "file.yaml: a.b: is wrong" and isinstance(error, ValueError)


@dataclass(frozen=True)
class EveryKind(ConfigBase):
    """One field of each kind that an annotation can have."""

    choice: Literal["a", "b"] = "a"
    pair: tuple[int, str] = (1, "x")
    nested: dict[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    either: bool | tuple[bool, ...] = False
    array: np.ndarray | None = None


def test_annotations_of_a_users_config_are_honoured():
    array = np.zeros(2)
    config = EveryKind(choice="b", pair=["2", "y"], nested={"k": [1, "2e0"]}, either=[True], array=array)
    assert (config.choice, config.pair, config.nested, config.either) == ("b", (2, "y"), {"k": (1.0, 2.0)}, (True,))
    assert config.array is array
    for values, text in [
        ({"choice": "c"}, "choice: got 'c'; allowed are a, b; the nearest is "),
        ({"pair": [1]}, "pair: must be a list of 2 whole numbers, got [1]"),
        ({"nested": {"k": ["x"]}}, "nested.k[0]: must be a finite number, got 'x'"),
        ({"nested": {1: []}}, "nested: has the key 1, but keys must be strings"),
        ({"either": "x"}, "either: must be true or false or a list of true or false values, got 'x'"),
        ({"array": 3}, "array: must be a ndarray or null, got 3"),
    ]:
        with pytest.raises(ConfigError, match="^" + re.escape(text)):
            EveryKind(**values)


def test_symmetry_and_random_network_distillation_are_read():
    for function in (mirror, import_path(mirror), "my_robot.symmetry.mirror"):
        config = PPOConfig(symmetry_cfg={"data_augmentation_func": function, "mirror_loss_coeff": "2e-1"})
        assert config.symmetry_cfg.mirror_loss_coeff == 0.2
    assert PPOConfig(symmetry_cfg={"data_augmentation_func": mirror}).to_dict()["symmetry_cfg"] == {
        "data_augmentation_func": import_path(mirror),
        "use_data_augmentation": True,
        "use_mirror_loss": True,
        "mirror_loss_coeff": 1.0,
    }
    assert PPOConfig(rnd_cfg={"weight": 1, "dims": [3]}).rnd_cfg == {"weight": 1, "dims": (3,)}


def test_image_models_are_read():
    by_key = from_dict(whole(runner__actor={"cnn_cfg": {"stride": [2, 1, 1]}, "distribution_cfg": {}})).runner.actor
    assert by_key == CNNConfig(cnn_cfg=CNNEncoderConfig(stride=(2, 1, 1)), distribution_cfg={})
    groups = {"front": {"kernel_size": 5, "norm": ["layer", "none", "batch"]}, "wrist": {"output_channels": 16}}
    model = CNNConfig.from_dict({"class_name": "CNNModel", "cnn_cfg": groups})
    assert model.cnn_cfg["front"].norm == ("layer", "none", "batch")
    assert model.cnn_cfg["wrist"].output_channels == (16,)
    assert CNNConfig.from_dict(json.loads(json.dumps(model.to_dict()))) == model


@pytest.mark.parametrize(("path", "value", "rest"), yaml.safe_load((DATA / "config_mistakes.yaml").read_text()))
def test_every_mistake_is_told_with_its_path(path, value, rest):
    assert refused(whole(**{path.replace(".", "__"): value})).startswith(path + rest)


def test_keyword_arguments_are_plain_values():
    assert refused(whole(env__kwargs={"a": {1, 2}})) == (
        "env.kwargs.a: must be a number, string, true, false, null, list or mapping, got {1, 2}"
    )


@pytest.mark.parametrize(
    ("section", "key"), [("", "env"), ("", "runner"), ("env", "id"), ("env", "num_envs"), ("runner", "obs_groups")]
)
def test_a_required_key_that_is_missing_is_named(section, key):
    mapping = whole()
    del (mapping[section] if section else mapping)[key]
    assert refused(mapping).startswith(f"{section}.{key}: this key is required and missing; it must be ".lstrip("."))


@settings(deadline=None)
@given(
    st.text(string.ascii_lowercase + "_", min_size=1, max_size=20),
    st.sampled_from(["env", "runner", "runner__algorithm"]),
)
def test_any_unknown_key_is_refused_with_a_valid_one(key, section):
    text = refused(whole(**{f"{section}__x{key}": 1}))
    assert re.search(r"the nearest key is '(\w+)'", text)[1] in re.search(r"allowed are (.*)$", text)[1].split(", ")


def test_as_many_mini_batches_as_samples_are_allowed():
    assert from_dict(whole(runner__algorithm__num_mini_batches=384)).runner.algorithm.num_mini_batches == 384


def test_what_has_no_meaning_here_warns():
    with pytest.warns(UserWarning, match="runner.torch_compile_mode 'default' has no meaning here"):
        from_dict(whole(runner__torch_compile_mode="default"))
    with pytest.warns(UserWarning, match="runner.critic.distribution_cfg has no meaning"):
        from_dict(whole(runner__critic={"distribution_cfg": DISTRIBUTION}))
    with pytest.warns(UserWarning, match="env.nconmax has no meaning with framework 'mjx'"):
        from_dict(whole(env__nconmax=10))
    with pytest.warns(UserWarning, match="env.headless has no meaning with framework 'mjx'"):
        from_dict(whole(env__headless=False))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_dict(whole(env__framework="mjlab", env__nconmax=10))
        from_dict(whole(runner__logger__log_video=True, runner__algorithm__share_cnn_encoders=True))


def test_importing_the_configuration_imports_no_jax():
    program = (
        "import sys, rlbotics_jax.config as c\n"
        "c.from_dict(c.load_config('CartpoleBalance').to_dict())\n"
        "print([name for name in ('jax', 'flax', 'numpy', 'mujoco', 'torch') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
