"""ConfigBase: a frozen dataclass that validates itself and converts to and from plain mappings."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, dataclass
from typing import Any, Self, get_type_hints

from rlbotics_jax.config.coercion import coerce, describe, to_plain
from rlbotics_jax.config.errors import ConfigError, one_of, shown
from rlbotics_jax.registry import Registry, nearest


@functools.cache
def _hints(config_class: type) -> dict[str, Any]:
    return get_type_hints(config_class)


@dataclass(frozen=True)
class ConfigBase:
    """Base of every config. A subclass is a frozen dataclass with annotated fields and, for its rules, a `validate`:

        @dataclass(frozen=True)
        class EntropyDecayConfig(PPOConfig):
            entropy_decay: float = 0.99

            def validate(self):
                super().validate()
                self.check_range("entropy_decay", 0.0, 1.0)

    An `Attributes` section in the docstring explains the keys; the first sentence of an entry is the help of its flag.

    Construction turns every value into its annotated type (`coercion.coerce`; a field may name a function of its own in
    `metadata["parse"]`) and then calls `validate`. Errors are `ConfigError`s; a config built directly names its keys
    relative to itself, `from_dict` of the whole file names them in full.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            self._coerce_field(field)
        self.validate()

    def _coerce_field(self, field: Field) -> None:
        value, parse = getattr(self, field.name), field.metadata.get("parse")
        try:
            value = parse(value) if parse else coerce(value, _hints(type(self))[field.name])
        except ConfigError as error:
            raise error.under(field.name) from error.__cause__
        object.__setattr__(self, field.name, value)

    def validate(self) -> None:
        """Check what types alone cannot, and raise `ConfigError(key, problem)`; overrides call `super().validate()`."""

    @classmethod
    def _check_keys(cls, mapping: Mapping[str, Any]) -> None:
        fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
        for key, value in mapping.items():
            if key not in fields:
                raise ConfigError(
                    str(key),
                    f"is no key of {cls.__name__} (its value is {shown(value)}); the nearest key is "
                    f"{nearest(key, fields)!r}; allowed are {', '.join(fields)}",
                )
        for name, field in fields.items():
            if name not in mapping and field.default is MISSING and field.default_factory is MISSING:
                kind = describe(_hints(cls)[name])
                raise ConfigError(name, f"this key is required and missing; it must be {kind}")

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any], path: str = "") -> Self:
        """The config that a (nested) mapping describes.

        Args:
            mapping: keys and values; nested configs as mappings or as config objects.
            path: where the mapping stands in the file, put in front of the paths of errors.

        Raises:
            ConfigError: an unknown key, a missing required key, a value of the wrong type or outside its range.
        """
        try:
            if not isinstance(mapping, Mapping):
                raise ConfigError("", f"must be {describe(cls)}, got {shown(mapping)}")
            cls._check_keys(mapping)
            return cls(**mapping)
        except ConfigError as error:
            raise error.under(path) from error.__cause__

    def to_dict(self) -> dict[str, Any]:
        """The config as a nested mapping of plain JSON values, every key present; the inverse of `from_dict`."""
        return {field.name: to_plain(getattr(self, field.name)) for field in dataclasses.fields(self) if field.init}

    def replace(self, **changes: Any) -> Self:
        """A copy with some keys changed, validated again.

        Raises:
            ConfigError: an unknown key or a value that is not allowed.
        """
        names = [field.name for field in dataclasses.fields(self) if field.init]
        for key, value in changes.items():
            if key not in names:
                raise ConfigError(key, f"is no key of {type(self).__name__} (got {shown(value)}); {one_of(names, key)}")
        return dataclasses.replace(self, **changes)

    def check_positive(self, *names: str) -> None:
        """Every named number, where it is not null, is greater than zero."""
        for name in names:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(name, f"must be greater than 0, got {shown(value)}")

    def check_non_negative(self, *names: str) -> None:
        """Every named number, where it is not null, is zero or greater."""
        for name in names:
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(name, f"must be 0 or greater, got {shown(value)}")

    def check_range(self, name: str, low: float, high: float) -> None:
        """The named number, where it is not null, lies in [low, high]."""
        value = getattr(self, name)
        if value is not None and not low <= value <= high:
            raise ConfigError(name, f"must be in [{low}, {high}], got {shown(value)}")

    def check_one_of(self, name: str, allowed: Collection[str]) -> None:
        """The named string, where it is not null, is one of `allowed`."""
        value = getattr(self, name)
        if value is not None and value not in allowed:
            raise ConfigError(name, f"got {shown(value)}; {one_of(allowed, value)}")

    def check_not_empty(self, *names: str) -> None:
        """Every named string, list or mapping, where it is not null, has content."""
        for name in names:
            value = getattr(self, name)
            if value is not None and not value:
                raise ConfigError(name, f"must not be empty, got {shown(value)}")

    def check_class_name(self, registry: Registry) -> None:
        """`class_name` is a registered name, an import path or a class; nothing is imported."""
        try:
            registry.check(self.class_name)
        except ValueError as error:
            raise ConfigError("class_name", str(error)) from error
