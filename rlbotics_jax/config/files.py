"""Configuration files: YAML and JSON in, JSON out, and the files that the library ships."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rlbotics_jax.atomic import replacing
from rlbotics_jax.config.errors import ConfigError, shown
from rlbotics_jax.config.runner import Config
from rlbotics_jax.registry import nearest

_PACKAGE = Path(__file__).parents[1]
# What config.json records beside the configuration itself.
_RECORDED = ("versions", "environment")


class _Loader(yaml.SafeLoader):
    """A safe loader that reads 1e-4 as a number, as YAML 1.2 does, and refuses a key that appears twice."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        first_line: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in first_line:
                    problem = f"the key {key.value!r} stands twice, first in line {first_line[key.value]}"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                first_line[key.value] = key.start_mark.line + 1
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)


def parse_yaml(text: str) -> Any:
    """The value that a YAML text holds, numbers as YAML 1.2 reads them; raises ConfigError for what is no YAML."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}" if error.problem_mark else "the file"
        problem = " ".join(f"{error.context or ''} {error.problem or ''}".split())
        raise ConfigError(line, f"this is no valid YAML ({problem})") from error
    except yaml.YAMLError as error:
        raise ConfigError("", f"this is no valid YAML ({' '.join(str(error).split())})") from error
    except RecursionError as error:
        raise ConfigError("", "this is no usable YAML: its values are nested too deeply") from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError("", f"the key {key!r} stands twice in one object")
    return dict(pairs)


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        raise ConfigError(f"line {error.lineno}", f"this is no valid JSON ({error.msg})") from error
    except RecursionError as error:
        raise ConfigError("", "this is no usable JSON: its values are nested too deeply") from error


def configs_directory() -> Path:
    """The folder of the shipped configurations: inside an installed package, else at the root of the repository."""
    installed = _PACKAGE / "configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "configs"


def shipped_configs() -> dict[str, Path]:
    """Name -> file of every shipped configuration, sorted; names are like "mjx/CartpoleBalance", or "example"."""
    root = configs_directory()
    return {file.relative_to(root).with_suffix("").as_posix(): file for file in sorted(root.rglob("*.yaml"))}


def find_config(name: str | os.PathLike) -> Path:
    """The file that `name` means: an existing file, or a shipped configuration, with or without its folder or `.yaml`.

    Raises:
        FileNotFoundError: there is none, with the nearest shipped names.
        ConfigError: the name is a folder, or belongs to shipped configurations of several frameworks.
    """
    path, text = Path(name), os.fspath(name)
    if os.path.exists(path) and not os.path.isdir(path):
        return path
    shipped, short = shipped_configs(), text.removesuffix(".yaml")
    matches = [key for key in shipped if key == short] or [key for key in shipped if key.split("/")[-1] == short]
    if len(matches) == 1:
        return shipped[matches[0]]
    if matches:
        raise ConfigError("", f"the name stands for several configurations, choose one of {', '.join(matches)}", text)
    if os.path.isdir(path):
        raise ConfigError("", "this is a folder, not a configuration file", text)
    near = nearest(short, [*shipped, *(key.split("/")[-1] for key in shipped)])
    hint = f"the nearest name is {near!r}; shipped are {', '.join(shipped)}" if shipped else "none is shipped"
    raise FileNotFoundError(f"{text}: there is no such file and no shipped configuration of this name; {hint}")


def load_config(path_or_name: str | os.PathLike) -> Config:
    """The configuration of a YAML or JSON file, or of a shipped name such as "CartpoleBalance".

    Args:
        path_or_name: as `find_config`. A file that ends in `.json` is read as JSON, any other as YAML.

    Raises:
        FileNotFoundError: there is no such file or shipped configuration.
        ConfigError: the file cannot be read, or what it holds is no valid configuration; the sentence begins with the
            file and names the key's full path, or the line.
    """
    path = find_config(path_or_name)
    try:
        return _read(path)
    except ConfigError as error:
        raise error.in_file(str(path)) from error.__cause__


def _read(path: Path) -> Config:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise ConfigError("", f"the file cannot be read ({reason})") from error
    is_json = path.suffix.lower() == ".json"
    mapping = (_parse_json if is_json else parse_yaml)(text) if text.strip() else None
    if mapping is None:
        raise ConfigError("", "the file is empty; it must have the keys env and runner")
    if not isinstance(mapping, Mapping):
        raise ConfigError("", f"must be a mapping with the keys env and runner, got {shown(mapping)}")
    if is_json:
        mapping = {key: value for key, value in mapping.items() if key not in _RECORDED}
    try:
        return from_dict(mapping)
    except RecursionError as error:
        raise ConfigError("", "its values are nested too deeply") from error


def from_dict(mapping: Mapping[str, Any]) -> Config:
    """The configuration that a mapping with the keys `env` and `runner` describes; raises ConfigError as `Config`."""
    return Config.from_dict(mapping)


def config_hash(config: Config) -> str:
    """The SHA-256 of a configuration, as 64 hexadecimal digits: equal for two that mean the same key by key."""
    text = json.dumps(config.to_dict(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def save_config(config: Config, path: str | os.PathLike, **extra: Any) -> Path:
    """Write `config` as JSON that `load_config` reads back.

    The file appears whole or not at all.

    Args:
        config: the configuration.
        path: the file.
        **extra: what a run records beside it, under the keys `versions` and `environment`; JSON values. `load_config`
            ignores both.

    Raises:
        TypeError: another extra key, which `load_config` would refuse.
    """
    for key in extra:
        if key not in _RECORDED:
            raise TypeError(f"save_config has no extra key {key!r}; allowed are {', '.join(_RECORDED)}")
    text = json.dumps({**config.to_dict(), **extra}, indent=2, allow_nan=False) + "\n"
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)
