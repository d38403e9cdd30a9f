"""The environment that a config names: registered, by import path, registered by the user's module, or refused."""

from __future__ import annotations

import textwrap

import pytest
from helpers import small_config
from toys import ConstantReward

from rlbotics_jax.config import ConfigError
from rlbotics_jax.envs import make_environment
from rlbotics_jax.envs.cartpole import CartpoleBalance, CartpoleSwingup
from rlbotics_jax.registry import ENVIRONMENTS


def env_config(**changes):
    """Returns the `env` section of a small config, changed."""
    return small_config(**{f"env__{key}": value for key, value in changes.items()}).env


def refused(**changes) -> ConfigError:
    """Returns the error in which an `env` section is refused."""
    with pytest.raises(ConfigError) as caught:
        make_environment(env_config(**changes))
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("task", [CartpoleBalance, CartpoleSwingup])
def test_a_registered_task(task):
    environment = make_environment(env_config(id=task.__name__))
    assert type(environment) is task
    assert environment == task()


def test_a_registered_task_takes_keyword_arguments():
    assert make_environment(env_config(kwargs={"episode_length": 50})) == CartpoleBalance(episode_length=50)


def test_an_import_path_with_keyword_arguments():
    environment = make_environment(env_config(id="toys:ConstantReward", kwargs={"episode_length": 5, "dt": 0.5}))
    assert environment == ConstantReward(episode_length=5, dt=0.5)


def test_an_import_path_needs_no_framework():
    config = env_config(id="toys:ConstantReward", framework=None)
    assert config.framework == "mjx"
    assert make_environment(config) == ConstantReward()


def test_lists_of_a_file_arrive_as_tuples():
    environment = make_environment(
        env_config(id="toys:ConstantReward", kwargs={"action_low": [-2.0], "action_high": [2.0]})
    )
    assert environment.action_low == (-2.0,)
    hash(environment)


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """A module of the user's own that registers a task, on the Python path."""
    (tmp_path / "my_robot_tasks.py").write_text(
        textwrap.dedent(
            """
            import dataclasses

            from rlbotics_jax import register_environment
            from rlbotics_jax.envs.cartpole import CartpoleBalance


            @register_environment("MyShortBalance")
            @dataclasses.dataclass(frozen=True)
            class MyShortBalance(CartpoleBalance):
                episode_length: int = 20
            """
        )
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_robot_tasks"
    ENVIRONMENTS._entries.pop("MyShortBalance", None)


def test_imports_register_a_task_of_the_user_s_own(user_module):
    assert "MyShortBalance" in refused(id="MyShortBalance").problem
    environment = make_environment(env_config(id="MyShortBalance", imports=[user_module]))
    assert (type(environment).__name__, environment.episode_length) == ("MyShortBalance", 20)


def test_an_unknown_task_is_refused_with_the_nearest_name():
    error = refused(id="CartpoleBalanse")
    assert error.path == "env.id"
    assert error.problem == (
        "'CartpoleBalanse' is no known environment; allowed are CartpoleBalance, CartpoleSwingup, an import path "
        "'module:Class' or the class itself; the nearest name is 'CartpoleBalance'"
    )


@pytest.mark.parametrize(
    ("path", "reason"),
    [("no_such_module_at_all:Task", "'no_such_module_at_all' cannot be imported"), ("toys:ConstantRevard", "Constant")],
)
def test_an_import_path_that_leads_nowhere_is_refused(path, reason):
    error = refused(id=path)
    assert error.path == "env.id" and reason in error.problem


def test_wrong_keyword_arguments_are_refused():
    error = refused(kwargs={"episode_lenght": 50})
    assert error.path == "env.kwargs"
    assert error.problem.startswith("{'episode_lenght': 50} do not fit CartpoleBalance: ")
    assert "unexpected keyword argument 'episode_lenght'" in error.problem


def test_a_module_that_cannot_be_imported_is_named():
    error = refused(imports=["json", "no_such_module_at_all"])
    assert error.path == "env.imports[1]" and "no_such_module_at_all" in error.problem


@pytest.mark.parametrize("framework", ["playground", "brax", "gymnasium", "envpool", "mjlab", "isaaclab"])
def test_a_framework_without_a_bridge_is_refused(framework):
    error = refused(framework=framework, id="CartpoleBalance")
    assert error.path == "env.framework"
    assert error.problem.startswith(
        f"{framework!r} is read but its bridge is not built in this version; allowed: 'mjx'"
    )
