"""ConfigError: what is wrong with a configuration, with the full path of the key."""

from __future__ import annotations

from typing import Any

from rlbotics_jax.registry import nearest


class ConfigError(ValueError):
    """A configuration that cannot be used, told in one sentence.

    Attributes:
        path: the key, as far as it is known where the error is raised (`learning_rate`); every config around it adds
            its own key in front (`runner.algorithm.learning_rate`).
        problem: the value, what is allowed, and the nearest valid name where there is one.
        source: the file that was read, or None.
    """

    def __init__(self, path: str, problem: str, source: str | None = None):
        super().__init__(path, problem, source)
        self.path, self.problem, self.source = path, problem, source

    def __str__(self) -> str:
        return ": ".join(part for part in (self.source, self.path, self.problem) if part)

    def under(self, prefix: str) -> ConfigError:
        """The same error seen from outside: `prefix` joined in front of its path."""
        if not prefix or not self.path:
            path = prefix or self.path
        else:
            path = prefix + self.path if self.path.startswith("[") else f"{prefix}.{self.path}"
        return ConfigError(path, self.problem, self.source)

    def in_file(self, source: str) -> ConfigError:
        """The same error with the name of the file it comes from."""
        return ConfigError(self.path, self.problem, source)


def shown(value: Any) -> str:
    """A value as an error prints it: spelled as in YAML, and at most 80 characters."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = " ".join(repr(list(value) if isinstance(value, tuple) else value).split())
    return text if len(text) <= 80 else text[:77] + "..."


def one_of(names: Any, value: Any) -> str:
    """The end of a sentence: what is allowed, and which allowed name is nearest to `value`."""
    names = list(names)
    if not names:
        return "no name is allowed here"
    return f"allowed are {', '.join(names)}; the nearest is {nearest(value, names)!r}"
