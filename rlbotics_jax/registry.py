"""Registries: the names under which algorithms, models, distributions and environments are found.

A class is named in three ways everywhere: by a registered name (`PPO`), by an import path (`my_package.module:MyPPO`),
or by the class itself. Built-in entries are import paths too, so that this module, and the configuration that uses it,
import no jax.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_<][\w.<>]*")


def nearest(name: object, names: Iterable[str]) -> str | None:
    """The entry of `names` that is spelled most like `name`, whatever its case; None where `names` is empty."""
    by_spelling = {candidate.lower(): candidate for candidate in names}
    matches = difflib.get_close_matches(str(name).lower(), by_spelling, n=1, cutoff=0.0)
    return by_spelling[matches[0]] if matches else None


def is_import_path(text: object) -> bool:
    """Whether `text` has the form `module:Class`, with dots allowed on both sides."""
    return isinstance(text, str) and _IMPORT_PATH.fullmatch(text) is not None


def _main_module_name() -> str:
    """The name under which another process would import the module that runs as `__main__`."""
    main = sys.modules.get("__main__")
    if getattr(main, "__spec__", None) is not None:
        return main.__spec__.name
    file = os.path.basename(getattr(main, "__file__", None) or "")
    # Only a script can be imported again: a console command has no `.py`, a notebook no file.
    return file.removesuffix(".py") if file.endswith(".py") else "__main__"


def import_path(target: Any) -> str:
    """`module:QualName` of a class or function, the inverse of `import_target`.

    A class of a script that runs as `__main__` is named by the script's own module name, so that a file written by the
    run can be read by another process.
    """
    module = target.__module__
    return f"{_main_module_name() if module == '__main__' else module}:{target.__qualname__}"


def import_module(name: str) -> Any:
    """Import a module by its dotted name.

    Raises:
        ValueError: the module cannot be imported; the sentence names it and the reason.
    """
    try:
        # A running script must not be imported a second time under its own name: its classes would exist twice.
        return sys.modules["__main__"] if name == _main_module_name() else importlib.import_module(name)
    except Exception as error:
        raise ValueError(f"the module {name!r} cannot be imported ({type(error).__name__}: {error})") from error


def import_target(path: str) -> Any:
    """The object that `module:Name` or `module:Outer.Name` names.

    Raises:
        ValueError: the path has another form, its module cannot be imported, or the module has no such name.
    """
    if not is_import_path(path):
        raise ValueError(f"{path!r} is no import path of the form 'module:Class'")
    module_name, _, qualified_name = path.partition(":")
    if "<" in qualified_name:
        raise ValueError(f"{path!r} was defined inside a function and cannot be imported; define it in a module")
    target = import_module(module_name)
    for name in qualified_name.split("."):
        if not hasattr(target, name):
            public = [candidate for candidate in vars(target) if not candidate.startswith("_")]
            hint = f"; the nearest name is {nearest(name, public)!r}" if public else ""
            raise ValueError(f"{module_name!r} has no {qualified_name!r}{hint}")
        target = getattr(target, name)
    return target


@dataclass(frozen=True)
class _Entry:
    """What a registry knows about one name."""

    target: type | str
    config_class: type | str | None


class Registry:
    """Names of one kind of class (`kind` is the word that errors use, such as "algorithm").

    `register` adds a class or a lazy import path, `resolve` finds the class, `config_class` finds the configuration
    class that belongs to it.
    """

    def __init__(self, kind: str):
        self.kind = kind
        self._entries: dict[str, _Entry] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def names(self) -> list[str]:
        """The registered names, sorted."""
        return sorted(self._entries)

    def register(
        self, name: str, target: type | str | None = None, config_class: type | str | None = None
    ) -> type | str | Callable[[type], type]:
        """Add a name: as a call, `register("MyPPO", MyPPO)`, or as a decorator, `@register("MyPPO")`.

        Args:
            name: the name, without a colon.
            target: the class, or its import path `module:Class`, which is imported only when it is needed. Without it a
                class decorator is returned.
            config_class: the configuration class or its import path; None reads the target's attribute `config_class`.

        Raises:
            ValueError: the name has a colon, or belongs to another class already. Registering a class of the same
                import path again replaces it, so that a notebook cell may run twice.
        """
        if target is None:
            return lambda decorated: self.register(name, decorated, config_class)
        if not isinstance(name, str) or not name or ":" in name:
            raise ValueError(f"{name!r} is no valid {self.kind} name: it must be a non-empty string without a colon")
        new_path = target if isinstance(target, str) else import_path(target)
        if isinstance(target, str) and not is_import_path(target):
            raise ValueError(f"the {self.kind} {name!r} needs a class or an import path 'module:Class', got {target!r}")
        known = self._entries.get(name)
        if known is not None:
            known_path = known.target if isinstance(known.target, str) else import_path(known.target)
            if known_path != new_path:
                raise ValueError(
                    f"the {self.kind} name {name!r} belongs to {known_path!r} already; choose another name"
                )
        self._entries[name] = _Entry(target, config_class)
        return target

    def check(self, name: object) -> None:
        """Raise the ValueError of `resolve` for what is no registered name, import path or class; imports nothing."""
        if isinstance(name, type) or is_import_path(name) or (isinstance(name, str) and name in self._entries):
            return
        known = self.names()
        names = f"{', '.join(known)}, " if known else ""
        hint = f"; the nearest name is {nearest(name, known)!r}" if known else ""
        raise ValueError(
            f"{name!r} is no known {self.kind}; allowed are {names}an import path 'module:Class' or the class itself"
            f"{hint}"
        )

    def resolve(self, name: str | type) -> type:
        """The class that `name` names: a registered name, an import path `module:Class`, or the class itself.

        Raises:
            ValueError: one sentence: the name is unknown (with the nearest one), its module cannot be imported, or it
                names something that is no class.
        """
        self.check(name)
        if isinstance(name, type):
            return name
        target: Any = name
        if name in self._entries:
            target = self._entries[name].target
        if isinstance(target, str):
            target = import_target(target)
        if not isinstance(target, type):
            raise ValueError(f"the {self.kind} {name!r} must be a class, but it is a {type(target).__name__}")
        return target

    def config_class(self, name: str | type, default: type) -> type:
        """The configuration class that belongs to `name`.

        It is what the name was registered with (nothing else is imported then), else the attribute `config_class` of
        the resolved class, else `default`.

        Raises:
            ValueError: as `resolve`.
        """
        self.check(name)
        entry = self._entries.get(name) if isinstance(name, str) else None
        found = entry.config_class if entry is not None else None
        if found is None:
            found = getattr(self.resolve(name), "config_class", None)
        if found is None:
            return default
        return import_target(found) if isinstance(found, str) else found


ALGORITHMS = Registry("algorithm")
ALGORITHMS.register("PPO", "rlbotics_jax.algorithms.ppo:PPO", "rlbotics_jax.config.algorithm:PPOConfig")

MODELS = Registry("model")
MODELS.register("MLPModel", "rlbotics_jax.networks:MLPModel", "rlbotics_jax.config.models:MLPConfig")
MODELS.register("CNNModel", "rlbotics_jax.cnn:CNNModel", "rlbotics_jax.config.models:CNNConfig")

DISTRIBUTIONS = Registry("distribution")
for _name in ("GaussianDistribution", "SquashedGaussianDistribution"):
    DISTRIBUTIONS.register(
        _name, f"rlbotics_jax.distributions:{_name}", "rlbotics_jax.config.models:GaussianDistributionConfig"
    )

ENVIRONMENTS = Registry("environment")
for _name in ("CartpoleBalance", "CartpoleSwingup"):
    ENVIRONMENTS.register(_name, f"rlbotics_jax.envs.cartpole:{_name}")

register_algorithm = ALGORITHMS.register
register_model = MODELS.register
register_distribution = DISTRIBUTIONS.register
register_environment = ENVIRONMENTS.register
