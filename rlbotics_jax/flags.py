"""Every key of a configuration as a flag: `--runner.algorithm.learning-rate 3e-4`. Imports no jax.

`flags_of` lists the keys of a config as a type that tyro parses, `override` puts what was given in place of the
config's values. A flag's help is the first sentence of its key in the docstring of the config class. The parser knows
no kinds of values: the reader of YAML files and the config itself read and judge them.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypedDict, Union, get_args, get_origin, get_type_hints, is_typeddict

import tyro
import yaml

from rlbotics_jax.config import Config, ConfigBase, ConfigError, EnvConfig, OnPolicyRunnerConfig, from_dict
from rlbotics_jax.config.coercion import to_plain
from rlbotics_jax.config.errors import shown
from rlbotics_jax.config.files import parse_yaml

# The everyday keys stand first in the help and have short names too.
SHORT = {
    "env.num_envs": ("-n", "--num-envs"),
    "env.device": ("-d", "--device"),
    "runner.num_learning_iterations": ("-i", "--iterations", "--num-learning-iterations"),
    "runner.seed": ("--seed",),
    "runner.logger.log_dir": ("--log-dir",),
    "runner.logger.resume": ("--resume",),
    "runner.init_from": ("--init-from",),
    "runner.load": ("--load",),
}

_METAVARS = {bool: "true|false", int: "INT", float: "FLOAT", str: "TEXT", NoneType: "null"}
# Text stands for these as it is written; a class or a function is named by its import path.
_TEXTS = {str, NoneType, type, Callable}
_NULLS = ("null", "Null", "NULL", "~")


@dataclasses.dataclass(frozen=True)
class Given:
    """The words that follow a flag, unread, and the annotation of its key."""

    words: tuple[str, ...]
    hint: Any

    def read(self) -> Any:
        """The value as a YAML file would have it; raises ConfigError for what is no YAML.

        A list is written as words, `64 64`, or as one, `[64, 64]`. A string needs no quotes, whatever it looks like.
        """
        kinds = _kinds(self.hint) - {NoneType}
        lists = {kind for kind in kinds if _is_list(kind)}
        if len(self.words) == 1:
            (word,) = self.words
            if word in _NULLS:
                return None
            if lists and word.startswith("["):
                return parse_yaml(word)
            if kinds > lists:
                return _scalar(word, kinds - lists)
        entries = {kind for hint in lists for argument in get_args(hint) for kind in _kinds(argument)} - {Ellipsis}
        return [_scalar(word, entries) for word in self.words]


def _kinds(hint: Any) -> set[Any]:
    return set(get_args(hint)) if get_origin(hint) in (Union, UnionType) else {hint}


def _is_list(hint: Any) -> bool:
    return any(kind is tuple or get_origin(kind) is tuple for kind in _kinds(hint))


def _scalar(word: str, kinds: set[Any]) -> Any:
    """One word as YAML reads it; a string is the word itself, unless it is null or stands in YAML's own quotes."""
    is_text = bool(kinds) and kinds <= _TEXTS
    # An empty word is an empty string: a shell variable that is not set must not mean null.
    if not word or (is_text and not word.startswith(("'", '"'))):
        return None if word in _NULLS else word
    try:
        value = parse_yaml(word)
    except ConfigError:
        if is_text:
            return word
        raise
    return word if is_text and not isinstance(value, str) else value


def flags_of(config: Config | None = None) -> type:
    """The flags of `config`: a TypedDict for tyro, nested as the file, that holds a `Given` for every flag given.

    Args:
        config: its keys become the flags and its values the defaults that the help shows. Without it the library's
            keys and defaults are taken.
    """
    whole = config or Config(
        EnvConfig(id="module:Class", num_envs=10**9),
        OnPolicyRunnerConfig(obs_groups={"actor": ("observation",), "critic": ("observation",)}),
    )
    short: dict[str, Any] = {}
    sections = {name: _section(getattr(whole, name), name, short, config is None) for name in ("env", "runner")}
    return TypedDict("Flags", {**{key: short[key] for key in SHORT}, **sections}, total=False)


def flag_names(flags: type) -> list[str]:
    """The long names of the flags in a type of `flags_of`, such as `--env.num-envs`."""
    names: list[str] = []
    for key, annotated in flags.__annotations__.items():
        inner = annotated.__origin__
        names += flag_names(inner) if is_typeddict(inner) else [f"--{key.replace('_', '-')}"]
    return names


def _section(section: ConfigBase, path: str, short: dict[str, Any], is_default: bool) -> Any:
    """The flags of one section under its heading; those with a short name go to `short`, which has no heading."""
    hints, meanings = get_type_hints(type(section)), _meanings(type(section))
    flags: dict[str, Any] = {}
    for field in dataclasses.fields(section):
        if not field.init:
            continue
        key, value, hint = f"{path}.{field.name}", getattr(section, field.name), hints[field.name]
        is_section = isinstance(value, ConfigBase)
        if is_section:
            flags[field.name] = _section(value, key, short, is_default)
        # A section that may be null has a flag for the whole of it too.
        if not is_section or NoneType in _kinds(hint):
            if is_section:
                default = "default: its own flags below"
            else:
                default = _default(field) if is_default else _spelled(value)
            home, name = (short, key) if key in SHORT else (flags, field.name)
            home[key] = _flag(name, hint, meanings.get(field.name, ""), default, SHORT.get(key))
    title = _docstring(type(section)).partition("\n\n")[0]
    name = path.rpartition(".")[2].replace("_", "-")
    return Annotated[TypedDict(name, flags, total=False), tyro.conf.arg(name=name, help=title)]


def _flag(name: str, hint: Any, meaning: str, default: str, aliases: tuple[str, ...] | None) -> Any:
    spec = tyro.constructors.PrimitiveConstructorSpec(
        nargs="*" if _is_list(hint) else 1,
        metavar=_metavar(hint),
        instance_from_str=lambda words: Given(tuple(words), hint),
        is_instance=lambda value: isinstance(value, Given),
        str_from_instance=lambda value: list(value.words),
    )
    name = name.replace("_", "-")
    return Annotated[
        Any, spec, tyro.conf.arg(name=name, help=meaning, help_behavior_hint=f"({default})", aliases=aliases)
    ]


def _metavar(hint: Any) -> str:
    """What may follow a flag: `INT|null`, `FLOAT FLOAT`, `[INT ...]`; YAML for what has parts of its own."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        kinds = [kind for kind in arguments if kind not in (type, Callable)]
        return "|".join(dict.fromkeys(map(_metavar, kinds)))
    if origin is Literal:
        return "|".join(map(str, arguments))
    if origin is tuple:
        return f"[{_metavar(arguments[0])} ...]" if arguments[-1] is Ellipsis else " ".join(map(_metavar, arguments))
    return _METAVARS.get(hint, "YAML")


def _default(field: dataclasses.Field) -> str:
    if field.default is not dataclasses.MISSING:
        return _spelled(field.default)
    return "no default" if field.default_factory is dataclasses.MISSING else _spelled(field.default_factory())


def _spelled(value: Any) -> str:
    """A value as the flag would take it, in the help's words."""
    plain = to_plain(value)
    if isinstance(plain, str):
        text = plain
    elif isinstance(plain, dict | list):
        text = yaml.safe_dump(plain, default_flow_style=True, width=10**6, sort_keys=False).strip()
    else:
        text = json.dumps(plain)
    return f"default: {text}"


def _docstring(config_class: type) -> str:
    text = inspect.cleandoc(config_class.__doc__ or "")
    # Where a dataclass has no docstring, Python makes one of its signature.
    return "" if text.startswith(f"{config_class.__name__}(") else text


def _meanings(config_class: type) -> dict[str, str]:
    """Key -> the first sentence of its entry in the `Attributes` section of the class or of a class that it extends."""
    meanings: dict[str, str] = {}
    for base in reversed(config_class.__mro__):
        attributes = _docstring(base).partition("Attributes:\n")[2]
        entries = re.findall(r"^ +(\w+(?:, \w+)*): +(.+(?:\n {5,}.+)*)", re.split(r"\n(?=\S)", attributes)[0], re.M)
        for names, text in entries:
            meaning = re.split(r"(?<=\.)\s", " ".join(text.split()))[0].removesuffix(".")
            meanings |= dict.fromkeys(names.split(", "), meaning)
    return meanings


def override(config: Config, flags: Mapping[str, Any]) -> Config:
    """`config` with the values of flags in place of its own, validated as a whole.

    Args:
        config: what the file says.
        flags: what tyro made of the type that `flags_of(config)` returns.

    Raises:
        ConfigError: as `from_dict`, for a flag as for the same value in a file.
    """
    values = config.to_dict()
    for key, given in sorted(_given(flags), key=lambda item: item[0].count(".")):
        try:
            value = given.read()
        except ConfigError as error:
            raise ConfigError(key, error.problem) from error.__cause__
        *parents, name = key.split(".")
        section: Any = values
        for parent in parents:
            section = section[parent]
            if not isinstance(section, dict):
                raise ConfigError(key, f"cannot be set, since {'.'.join(parents)} is {shown(section)}")
        section[name] = value
    try:
        return from_dict(values)
    except RecursionError as error:
        raise ConfigError("", "the values of the flags are nested too deeply") from error


def _given(flags: Mapping[str, Any]) -> Iterator[tuple[str, Given]]:
    for key, value in flags.items():
        if isinstance(value, Given):
            yield key, value
        else:
            yield from _given(value)
