"""Splits an algorithm's config in two: what shapes the program, and the numbers that it computes with.

Float fields become float32 arrays in the state, so that they vmap, anneal and change without a new compilation.
Everything else is static. The split follows the annotations: `float` and `float | None` are hyperparameters.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

Hyperparameters = dict[str, Float[Array, ""]]


def hyperparameters_of(config: Any) -> Hyperparameters:
    """Returns the config's float fields as strong float32 scalars; a field that is None becomes infinity."""
    values = {name: getattr(config, name) for name in _float_fields(type(config))}
    return {name: jnp.float32(math.inf if value is None else value) for name, value in values.items()}


@dataclasses.dataclass(frozen=True)
class StaticSettings:
    """The fields of an algorithm's config that are not floats, readable as attributes, hashable by value.

    A float read here would be baked into the compiled program and go stale, so that raises.
    """

    items: tuple[tuple[str, Any], ...]
    hyperparameters: tuple[str, ...]

    @classmethod
    def of(cls, config: Any) -> StaticSettings:
        """Returns the static half of `config`, a dataclass."""
        floats = _float_fields(type(config))
        names = [field.name for field in dataclasses.fields(config) if field.name not in floats]
        for name in names:
            try:
                hash(getattr(config, name))
            except TypeError:
                raise ValueError(
                    f"{type(config).__name__}.{name} cannot be hashed, which a static setting must be; use tuples."
                ) from None
        return cls(tuple((name, getattr(config, name)) for name in names), tuple(floats))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self.hyperparameters:
            raise AttributeError(
                f"settings.{name} is a float hyperparameter, which is no constant of the program: read "
                f"state.hyperparameters[{name!r}]."
            )
        for key, value in self.items:
            if key == name:
                return value
        raise AttributeError(f"The algorithm's config has no field {name!r}.")


def _float_fields(config_class: type) -> list[str]:
    """Returns the names of the fields annotated `float` or `float | None`."""
    hints = typing.get_type_hints(config_class)
    names = [field.name for field in dataclasses.fields(config_class)]
    return [name for name in names if hints[name] is float or set(typing.get_args(hints[name])) == {float, type(None)}]
