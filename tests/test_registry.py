"""Registries: names, import paths and classes, and the sentence that an unknown one ends in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import pytest

from rlbotics_jax.registry import (
    ALGORITHMS,
    DISTRIBUTIONS,
    ENVIRONMENTS,
    MODELS,
    Registry,
    import_path,
    import_target,
    is_import_path,
    nearest,
)


class CustomConfig:
    """A config class for the entries below."""


class Custom:
    """A class that names its config."""

    config_class = CustomConfig

    class Inner:
        """A nested class."""


class Other:
    """A class that names no config."""


class Lazy:
    """A class that names its config by an import path."""

    config_class = f"{__name__}:CustomConfig"


def a_function():
    """Not a class."""


@pytest.fixture
def registry():
    return Registry("algorithm")


def test_a_class_is_found_by_name_path_and_itself(registry):
    registry.register("Custom", Custom)
    assert registry.resolve("Custom") is Custom
    assert registry.resolve(f"{__name__}:Custom") is Custom
    assert registry.resolve(f"{__name__}:Custom.Inner") is Custom.Inner
    assert registry.resolve(Other) is Other
    assert registry.names() == ["Custom"] and "Custom" in registry and "Other" not in registry


def test_register_works_as_a_decorator_and_returns_the_class(registry):
    @registry.register("Decorated", config_class=CustomConfig)
    class Decorated:
        pass

    assert Decorated.__name__ == "Decorated"
    assert registry.resolve("Decorated") is Decorated
    assert registry.config_class("Decorated", dict) is CustomConfig
    assert registry.register("Custom", Custom) is Custom


def test_a_lazy_target_is_imported_only_when_it_is_resolved(registry):
    registry.register("Missing", "no_such_module_anywhere:Class", "collections:OrderedDict")
    assert registry.config_class("Missing", dict) is OrderedDict
    with pytest.raises(ValueError, match="the module 'no_such_module_anywhere' cannot be imported"):
        registry.resolve("Missing")


def test_config_class_prefers_the_entry_then_the_attribute_then_the_default(registry):
    registry.register("WithEntry", Custom, config_class=Other)
    registry.register("WithAttribute", Custom)
    registry.register("WithNeither", Other)
    assert registry.config_class("WithEntry", dict) is Other
    assert registry.config_class("WithAttribute", dict) is CustomConfig
    assert registry.config_class("WithNeither", dict) is dict
    assert registry.config_class(Custom, dict) is CustomConfig
    assert registry.config_class(Lazy, dict) is CustomConfig
    assert registry.config_class(f"{__name__}:Custom", dict) is CustomConfig
    assert registry.config_class(f"{__name__}:Other", dict) is dict


def test_an_unknown_name_ends_in_one_sentence_with_the_nearest(registry):
    registry.register("Reinforce", Custom)
    registry.register("PPO", Other)
    with pytest.raises(ValueError) as caught:
        registry.resolve("Reinforse")
    assert str(caught.value) == (
        "'Reinforse' is no known algorithm; allowed are PPO, Reinforce, an import path 'module:Class' or the class "
        "itself; the nearest name is 'Reinforce'"
    )
    with pytest.raises(ValueError, match=r"'ppo' is no known algorithm.*nearest name is 'PPO'"):
        registry.check("ppo")
    with pytest.raises(ValueError, match="None is no known algorithm"):
        registry.config_class(None, dict)
    with pytest.raises(ValueError, match="3 is no known algorithm"):
        registry.resolve(3)


def test_an_empty_registry_names_no_nearest():
    with pytest.raises(ValueError) as caught:
        Registry("task").resolve("Walk")
    assert str(caught.value) == "'Walk' is no known task; allowed are an import path 'module:Class' or the class itself"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (
            "no_such_module_anywhere:Class",
            "the module 'no_such_module_anywhere' cannot be imported (ModuleNotFoundError",
        ),
        ("collections:OrderedDic", "'collections' has no 'OrderedDic'; the nearest name is 'OrderedDict'"),
        ("collections:OrderedDict.nothing", "'collections' has no 'OrderedDict.nothing'"),
        ("collections:namedtuple", "must be a class, but it is a function"),
        ("collections:f.<locals>.Class", "was defined inside a function and cannot be imported"),
    ],
)
def test_an_import_path_that_leads_nowhere_says_why(registry, path, words):
    with pytest.raises(ValueError) as caught:
        registry.resolve(path)
    assert words in str(caught.value)


def test_a_module_that_fails_while_it_is_imported_is_named(registry, tmp_path, monkeypatch):
    (tmp_path / "module_that_raises.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"'module_that_raises' cannot be imported \(RuntimeError: no licence\)"):
        registry.resolve("module_that_raises:Class")


def test_a_taken_name_is_refused_and_the_same_class_may_come_again(registry):
    registry.register("Custom", Custom)
    registry.register("Custom", Custom)
    registry.register("Custom", f"{__name__}:Custom")
    with pytest.raises(ValueError, match=f"belongs to '{__name__}:Custom' already"):
        registry.register("Custom", Other)
    for name in ("", "a:b", None):
        with pytest.raises(ValueError, match="is no valid algorithm name"):
            registry.register(name, Custom)
    with pytest.raises(ValueError, match="needs a class or an import path"):
        registry.register("Dotted", "collections.OrderedDict")


def test_import_path_and_import_target_are_inverse():
    assert import_path(Custom.Inner) == f"{__name__}:Custom.Inner"
    assert import_path(a_function) == f"{__name__}:a_function"
    for target in (Custom, Custom.Inner, a_function, OrderedDict):
        assert import_target(import_path(target)) is target


def test_a_class_of_a_script_is_named_by_the_script_and_not_imported_twice(tmp_path):
    (tmp_path / "my_script.py").write_text(
        "from rlbotics_jax.registry import import_path, import_target\n"
        "class Mine: pass\n"
        "print(import_path(Mine), import_target(import_path(Mine)) is Mine)\n"
    )
    command = [sys.executable, str(tmp_path / "my_script.py")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "my_script:Mine True\n"


@pytest.mark.parametrize("text", ["a:B", "a.b_c:D.e", "_a1:f.<locals>.G"])
def test_import_paths_are_recognised(text):
    assert is_import_path(text)


@pytest.mark.parametrize(
    "text", ["PPO", "a.b", "a:", ":B", "a b:C", "pkg:Task-v0", "1a:B", "a:b:c", "", None, 3, Custom]
)
def test_what_is_no_import_path(text):
    assert not is_import_path(text)


def test_nearest_ignores_case_and_needs_no_likeness():
    assert nearest("ELU", ["relu", "elu", "tanh"]) == "elu"
    assert nearest("critc", ["actor", "critic"]) == "critic"
    assert nearest("zzz", ["actor"]) == "actor"
    assert nearest("x", []) is None


def test_the_built_in_names():
    assert ALGORITHMS.names() == ["PPO"]
    assert MODELS.names() == ["CNNModel", "MLPModel"]
    assert DISTRIBUTIONS.names() == ["GaussianDistribution", "SquashedGaussianDistribution"]
    assert {"CartpoleBalance", "CartpoleSwingup"} <= set(ENVIRONMENTS.names())


def test_every_built_in_entry_leads_to_its_class():
    for registry in (ALGORITHMS, MODELS, DISTRIBUTIONS, ENVIRONMENTS):
        for name in registry.names():
            assert registry.resolve(name).__name__ == name
    assert MODELS.resolve("MLPModel").__name__ == "MLPModel"
    for registry in (ALGORITHMS, MODELS, DISTRIBUTIONS):
        for name in registry.names():
            assert registry.config_class(name, dict).class_name is not None
