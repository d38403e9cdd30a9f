"""Values by annotation: what a YAML file, a JSON file or a caller wrote becomes the annotated type, or a ConfigError.

Every spelling of a number is a number ("1e-4", 3E-4, and 1e3 for a whole number); lists become tuples, so that configs
cannot change by accident; true and false are not numbers; NaN and infinity are refused everywhere.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import os
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from rlbotics_jax.config.errors import ConfigError, one_of, shown
from rlbotics_jax.registry import import_path

_SINGULAR = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "a string",
    type: "a class",
    Callable: "a function",
    NoneType: "null",
}
_PLURAL = {bool: "true or false values", int: "whole numbers", float: "finite numbers", str: "strings"}


def _is_config(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint) and hasattr(hint, "from_dict")


def describe(hint: Any) -> str:
    """An annotation in words, as errors use it: `int | None` is "a whole number or null"."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(describe(argument) for argument in arguments)
    if origin is Literal:
        return "one of " + ", ".join(map(shown, arguments))
    if origin is tuple or hint is tuple:
        fixed = arguments and arguments[-1] is not Ellipsis
        entries = _PLURAL.get(arguments[0], "values") if arguments else "values"
        return f"a list of {len(arguments)} {entries}" if fixed else f"a list of {entries}"
    if origin is dict or hint is dict:
        return "a mapping"
    if _is_config(hint):
        return f"a mapping of the keys of {hint.__name__}"
    return _SINGULAR.get(hint, f"a {getattr(hint, '__name__', hint)}")


def _refuse(value: Any, hint: Any, hint_text: str = "") -> ConfigError:
    return ConfigError("", f"must be {describe(hint)}, got {shown(value)}{hint_text}")


def _number(value: Any) -> int | float | None:
    """The number that `value` is or spells, else None."""
    if isinstance(value, str):
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _to_int(value: Any) -> int:
    number = _number(value)
    if number is None or (isinstance(number, float) and not number.is_integer()):
        raise _refuse(value, int)
    return int(number)


def _to_float(value: Any) -> float:
    number = _number(value)
    try:
        if number is not None and math.isfinite(number):
            return float(number)
    except OverflowError:
        pass
    raise _refuse(value, float)


def _to_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise _refuse(value, bool)


def _to_str(value: Any) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        return value
    is_scalar = isinstance(value, bool | int | float)
    raise _refuse(value, str, "; write it in quotes" if is_scalar else "")


_SCALARS: dict[Any, Callable[[Any], Any]] = {bool: _to_bool, int: _to_int, float: _to_float, str: _to_str}


def at(key: str, value: Any, hint: Any) -> Any:
    """`coerce(value, hint)`, with `key` in front of the path of its error."""
    try:
        return coerce(value, hint)
    except ConfigError as error:
        raise error.under(key) from error.__cause__


def coerce(value: Any, hint: Any) -> Any:
    """`value` as the type that `hint` annotates.

    Args:
        value: what was written.
        hint: bool, int, float, str, type, Callable, a config class, tuple[...], dict[str, ...], Literal, Any, another
            class (whose instances pass unchanged), or a union of these.

    Raises:
        ConfigError: the value is something else; its path is relative to the value.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return free_form(value)
    if hint in _SCALARS:
        return _SCALARS[hint](value)
    if origin in (Union, UnionType):
        return _to_union(value, hint, arguments)
    if origin is tuple or hint is tuple:
        return _to_tuple(value, hint, arguments)
    if origin is dict or hint is dict:
        return _to_dict(value, hint, arguments[1] if arguments else Any)
    if origin is Literal:
        if value in arguments:
            return value
        raise ConfigError("", f"got {shown(value)}; {one_of(map(str, arguments), value)}")
    if _is_config(hint):
        if isinstance(value, hint):
            return value
        if isinstance(value, Mapping):
            return hint.from_dict(value)
        raise _refuse(value, hint)
    if isinstance(hint, type) and not isinstance(value, hint):
        raise _refuse(value, hint)
    return value


def _to_union(value: Any, hint: Any, arguments: tuple[Any, ...]) -> Any:
    if value is None and NoneType in arguments:
        return None
    deeper = None
    for argument in arguments:
        if argument is NoneType:
            continue
        try:
            return coerce(value, argument)
        except ConfigError as error:
            # An error inside the value says more than "must be one kind or another": the value had the right kind.
            if error.path:
                deeper = error
    if deeper is not None:
        raise deeper from deeper.__cause__
    raise _refuse(value, hint)


def _to_tuple(value: Any, hint: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    variable = not arguments or arguments[-1] is Ellipsis
    entry = arguments[0] if arguments else Any
    if variable and entry in (int, float) and _number(value) is not None:
        value = (value,)
    if not isinstance(value, list | tuple) or (not variable and len(value) != len(arguments)):
        raise _refuse(value, hint, f"; write [{value}]" if entry is str and isinstance(value, str) and value else "")
    entries = [entry] * len(value) if variable else arguments
    return tuple(at(f"[{i}]", item, kind) for i, (item, kind) in enumerate(zip(value, entries, strict=True)))


def _to_dict(value: Any, hint: Any, entry: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _refuse(value, hint)
    for key in value:
        if not isinstance(key, str):
            raise ConfigError("", f"has the key {shown(key)}, but keys must be strings; write it in quotes")
    return {key: at(key, item, entry) for key, item in value.items()}


def free_form(value: Any) -> Any:
    """A value of a free-form mapping (`env.kwargs`): plain values, classes and functions, nested lists and mappings."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return _to_float(value)
    if isinstance(value, Mapping):
        return _to_dict(value, dict, Any)
    if isinstance(value, list | tuple):
        return _to_tuple(value, tuple, (Any, ...))
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return value
    raise ConfigError("", f"must be a number, string, true, false, null, list or mapping, got {shown(value)}")


def to_plain(value: Any) -> Any:
    """The value as JSON knows it: configs become mappings, tuples lists, classes and functions `module:QualName`."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return import_path(value) if callable(value) else value
