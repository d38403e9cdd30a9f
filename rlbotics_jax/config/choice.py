"""Which config class a section of the file has: the one that belongs to the class its `class_name` names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rlbotics_jax.config.base import ConfigBase
from rlbotics_jax.config.errors import ConfigError, shown
from rlbotics_jax.registry import Registry, import_path


def chosen_config(value: Any, registry: Registry, default: type[ConfigBase]) -> ConfigBase:
    """The config of a section whose `class_name` is found in `registry`.

    Args:
        value: a mapping, or a config object.
        registry: where the name is looked up; a custom class names its config by an attribute `config_class`.
        default: the config class where none is named; its own `class_name` is the name where the mapping has none.

    Raises:
        ConfigError: an unknown or unimportable class, a config of another class than the one its `class_name` asks for
            (its extra keys would be ignored, and would not read back), or what the config class itself refuses.
    """
    if isinstance(value, ConfigBase):
        name = getattr(value, "class_name", default.class_name)
    elif isinstance(value, Mapping):
        name = value.get("class_name", default.class_name)
    else:
        raise ConfigError("", f"must be a mapping of the keys of {default.__name__}, got {shown(value)}")
    try:
        config_class = registry.config_class(name, default)
    except ValueError as error:
        raise ConfigError("class_name", str(error)) from error
    if not (isinstance(config_class, type) and issubclass(config_class, ConfigBase)):
        raise ConfigError("class_name", f"the config_class of {shown(name)} must derive from ConfigBase")
    if "class_name" not in {field.name for field in dataclasses.fields(config_class)}:
        raise ConfigError("class_name", f"{config_class.__name__} must have a field 'class_name' to be found by it")
    if isinstance(value, Mapping):
        return config_class.from_dict(value)
    # By path, not identity: a notebook cell that defines the config again must not refuse the objects made before.
    if import_path(type(value)) != import_path(config_class):
        raise ConfigError(
            "class_name",
            f"{shown(name)} is configured by {config_class.__name__}, not by {type(value).__name__}; name the class "
            f"that reads {type(value).__name__}",
        )
    return value
