"""Configuration files: shipped names, YAML and JSON in, JSON out, and what a file that cannot be used is told."""

from __future__ import annotations

import copy
import json
import math
import warnings
from pathlib import Path

import pytest
import yaml

import rlbotics_jax.config.files
from rlbotics_jax.config import ConfigError, find_config, from_dict, load_config, save_config, shipped_configs

MINIMAL = {
    "env": {"framework": "mjx", "id": "CartpoleBalance", "num_envs": 16},
    "runner": {"obs_groups": {"actor": ["observation"], "critic": ["observation"]}, "algorithm": {"gamma": 0.9}},
}


def load_text(folder, text, name="a.yaml"):
    """What `load_config` says of a file with this text."""
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load_config(folder / name)
    sentence = str(caught.value)
    assert sentence.startswith(f"{folder / name}: ") and "\n" not in sentence
    return sentence.removeprefix(f"{folder / name}: ")


def test_the_sentence_of_a_file_names_the_file_and_the_key(tmp_path):
    mapping = copy.deepcopy(MINIMAL)
    mapping["runner"]["algorithm"]["gama"] = 0.9
    text = load_text(tmp_path, yaml.safe_dump(mapping))
    assert text.startswith(
        "runner.algorithm.gama: is no key of PPOConfig (its value is 0.9); the nearest key is 'gamma'"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the file is empty"),
        ("# nothing\n---\n", "the file is empty"),
        ("- a\n", "must be a mapping with the keys env and runner, got ['a']"),
        ("just words", "must be a mapping with the keys env and runner, got 'just words'"),
        ("env:\n  id: a\n id: b\n", "line 3: this is no valid YAML"),
        ("env: {id: a\n", "line 2: this is no valid YAML"),
        (
            "env:\n  id: a\n  num_envs: 1\n  id: b\n",
            "line 4: this is no valid YAML (the key 'id' stands twice, first in line 2",
        ),
        ("env: !!python/object/apply:os.getcwd []\n", "line 1: this is no valid YAML"),
        ("env: 1\n---\nenv: 2\n", "line 2: this is no valid YAML"),
        (b"env: \xff\xfe\n", "the file cannot be read (it is no UTF-8 text)"),
        (b"env: \x00\n", "this is no valid YAML"),
        ("env: " + "[" * 5000, "this is no usable YAML: its values are nested too deeply"),
        ("env: {}\nversions: {}\nrunner: {}\n", "versions: is no key of Config"),
        ("env: {id: a:B, num_envs: 1, kwargs: &a {self: *a}}\nrunner: {}\n", "its values are nested too deeply"),
    ],
)
def test_a_file_that_is_no_configuration_says_why(tmp_path, text, sentence):
    assert load_text(tmp_path, text).startswith(sentence)


def test_json_files_are_read_and_their_faults_told(tmp_path):
    mapping = copy.deepcopy(MINIMAL)
    (tmp_path / "a.json").write_text(
        json.dumps({**mapping, "versions": {"jax": "1"}, "environment": {"num_actions": 1}})
    )
    assert load_config(tmp_path / "a.json") == from_dict(mapping)
    assert load_text(tmp_path, "{\n 'env': 1}", "b.json").startswith("line 2: this is no valid JSON (")
    assert load_text(tmp_path, '{"env": 1, "env": 2}', "b.json") == "the key 'env' stands twice in one object"
    assert load_text(tmp_path, json.dumps({**mapping, "version": 1}), "b.json").startswith(
        "version: is no key of Config"
    )
    mapping["runner"]["algorithm"]["gamma"] = math.nan
    assert (
        load_text(tmp_path, json.dumps(mapping), "b.json") == "runner.algorithm.gamma: must be a finite number, got nan"
    )


def test_yaml_anchors_and_merges_are_no_duplicates(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "env: {framework: mjx, id: a, num_envs: 1}\n"
        "runner:\n"
        "  obs_groups: {actor: [o], critic: [o]}\n"
        "  critic: &net {hidden_dims: [8], activation: tanh}\n"
        "  actor: {<<: *net, activation: elu, distribution_cfg: {}}\n"
    )
    runner = load_config(tmp_path / "a.yaml").runner
    assert (runner.actor.hidden_dims, runner.actor.activation, runner.critic.activation) == ((8,), "elu", "tanh")


def test_missing_files_and_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"^nowhere.yaml: there is no such file .*the nearest name is '"):
        load_config("nowhere.yaml")
    with pytest.raises(FileNotFoundError, match=r"the nearest name is 'CartpoleBalance'; shipped are example, "):
        load_config("CartpoleBalanc")
    with pytest.raises(FileNotFoundError, match="there is no such"):
        load_config("x" * 5000)
    with pytest.raises(ConfigError, match=r"^folder: this is a folder, not a configuration file$"):
        (tmp_path / "folder").mkdir()
        load_config("folder")


def test_shipped_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {"example", "mjx/CartpoleBalance", "mjx/CartpoleSwingup"} <= set(shipped_configs())
    file = shipped_configs()["mjx/CartpoleBalance"]
    for name in ("CartpoleBalance", "CartpoleBalance.yaml", "mjx/CartpoleBalance", "mjx/CartpoleBalance.yaml", file):
        assert find_config(name) == file
    Path("CartpoleBalance").mkdir()
    assert find_config("CartpoleBalance") == file
    Path("CartpoleBalance.yaml").write_text("")
    assert find_config("CartpoleBalance.yaml") == Path("CartpoleBalance.yaml")


def test_a_short_name_of_two_frameworks_is_refused(tmp_path, monkeypatch):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "Task.yaml").write_text("")
    monkeypatch.setattr(rlbotics_jax.config.files, "configs_directory", lambda: tmp_path)
    assert find_config("b/Task") == tmp_path / "b" / "Task.yaml"
    with pytest.raises(
        ConfigError, match=r"^Task: the name stands for several configurations, choose one of a/Task, b/Task$"
    ):
        find_config("Task")


@pytest.mark.parametrize("name", sorted(shipped_configs()))
def test_every_shipped_file_loads_without_a_warning(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = load_config(name)
    assert name == "example" or name == f"{config.env.framework}/{config.env.id}"


def test_save_config_writes_what_load_config_reads(tmp_path):
    config = load_config("CartpoleBalance")
    path = save_config(config, tmp_path / "config.json", versions={"jax": "0.10"}, environment={"num_actions": 1})
    assert load_config(path) == config
    assert json.loads(path.read_text())["versions"] == {"jax": "0.10"}
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


def test_save_config_leaves_the_old_file_and_nothing_else_where_it_fails(tmp_path):
    config = load_config("CartpoleBalance")
    path = save_config(config, tmp_path / "config.json")
    for extra, error in (
        ({"versions": {"a": object()}}, TypeError),
        ({"versions": math.nan}, ValueError),
        ({"x": 1}, TypeError),
    ):
        with pytest.raises(error):
            save_config(config.replace(env=config.env.replace(num_envs=1)), path, **extra)
    assert load_config(path) == config
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        save_config(config, tmp_path / "folder")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.json", "folder"]
