"""Run directories: found by name, time and score, and giving their policy without environment or simulator."""

from __future__ import annotations

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_bit_equal, small_config
from toys import ActionReward, TimeLimitOnly

from rlbotics_jax import train
from rlbotics_jax.checkpoint import Checkpoints
from rlbotics_jax.config import ConfigError, load_config
from rlbotics_jax.evaluation import evaluate_run
from rlbotics_jax.runs import export, find_checkpoint, load_policy

TASK = "tasks:Mine"


def make_run(folder, name, iterations, best_score, environment_class=TASK):
    """Writes checkpoints with the given score, as a run of that name would."""
    run = folder / "experiment" / name
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({"environment": {"class": environment_class}}))
    checkpoints = Checkpoints(run)
    for iteration in iterations:
        checkpoints.save(iteration, {"x": jnp.ones(1)}, {"last": jnp.ones(1)}, {"best_score": best_score})
    checkpoints.close()
    return run


def test_find_checkpoint(tmp_path):
    first = make_run(tmp_path, "2026-01-01_10-00-00", [5, 10], 3.0)
    second = make_run(tmp_path, "2026-01-01_10-00-00_2", [7], 9.0)
    tenth = make_run(tmp_path, "2026-01-01_10-00-00_10", [2, 100], None)
    (tmp_path / "experiment" / "2027-01-01_00-00-00").mkdir()  # newer, but it ended before its first checkpoint
    other = make_run(tmp_path, "2026-02-01_10-00-00", [3], 1000.0, environment_class="tasks:Other")  # newer and better
    assert find_checkpoint("last", tmp_path, TASK) == (tenth, 100)
    assert find_checkpoint("best", tmp_path, TASK) == (second, 7)
    assert find_checkpoint(first.name, tmp_path, TASK) == (first, 10)
    assert find_checkpoint(str(second), None, TASK) == (second, 7)
    assert find_checkpoint(str(first / "checkpoints" / "5"), None, TASK) == (first, 5)
    for named in (other.name, str(other), str(other / "checkpoints" / "3")):
        with pytest.raises(ConfigError, match="trained tasks:Other, this config trains tasks:Mine"):
            find_checkpoint(named, tmp_path, TASK)


@pytest.mark.parametrize("name", ["last", "best", "2026-01-01_10-00-00", "model_x/elsewhere"])
def test_nothing_to_resume_is_named(name, tmp_path):
    with pytest.raises(
        ConfigError, match=f"runner.logger.resume: '{name}' names no run of this task with a checkpoint"
    ):
        find_checkpoint(name, tmp_path, TASK)


def test_a_run_gives_its_policy_without_its_environment(tmp_path):
    """The config names a task that does not exist: nothing builds it."""
    config = small_config(env__id="my_robot.tasks:Gone", runner__logger={"log_dir": str(tmp_path / "model_x.pt")})
    result = train(config, ActionReward(action_low=(-2.0,), action_high=(2.0,)))
    run = result.run_directory
    observations = np.random.default_rng(0).standard_normal((5, 2)).astype(np.float32)
    for which in (None, "best"):
        policy = load_policy(run, which)
        assert_bit_equal(policy.parameters, result.policy.parameters)
        np.testing.assert_array_equal(policy(observations), result.policy(observations))
    last = load_policy(run, "last")
    assert last.metadata["which"] == "last" and last.metadata["iteration"] == 3
    (run / "policy.onnx").unlink()
    assert export(run) == run / "policy.onnx" and (run / "policy.onnx").is_file()
    assert export(run, tmp_path / "deep" / "p.onnx").is_file()


def test_no_best_policy_is_said_and_the_last_is_used(tmp_path):
    config = small_config(runner__logger={"log_dir": str(tmp_path)})
    result = train(config, TimeLimitOnly(episode_length=1000))
    assert result.best_score is None and result.policy.metadata["which"] == "last"
    assert load_policy(result.run_directory).metadata["which"] == "last"
    with pytest.raises(ValueError, match="has no best policy"):
        load_policy(result.run_directory, "best")


def test_save_best_false_exports_the_last_policy(tmp_path):
    config = small_config(runner__logger={"log_dir": str(tmp_path), "save_best": False})
    result = train(config, ActionReward())
    assert result.best_score is not None
    for policy in (result.policy, load_policy(result.run_directory)):
        assert (policy.metadata["which"], policy.metadata["score"]) == ("last", None)
    assert load_policy(result.run_directory, "best").metadata["score"] == result.best_score


def test_a_task_without_control_limits_is_recorded_and_loaded(tmp_path):
    """JSON has no infinity."""
    environment = ActionReward(action_low=(-math.inf,), action_high=(math.inf,))
    result = train(small_config(runner__logger={"log_dir": str(tmp_path)}), environment)
    assert load_policy(result.run_directory).spec == result.policy.spec


def test_another_task_given_as_an_object_is_not_taken_for_the_config_s(tmp_path):
    result = train(small_config(runner__logger={"log_dir": str(tmp_path)}), ActionReward())
    with pytest.raises(ValueError, match=r"trained toys:ActionReward.*its config names .*CartpoleBalance"):
        evaluate_run(result.run_directory)


def test_no_run_and_no_checkpoint_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="is no run directory that can be read: it has no config.json"):
        load_policy(tmp_path)
    config = small_config(runner__logger={"log_dir": str(tmp_path)})
    run = train(config, ActionReward()).run_directory
    for checkpoint in (run / "checkpoints").iterdir():
        checkpoint.rename(tmp_path / checkpoint.name)
    with pytest.raises(FileNotFoundError, match="has no checkpoint"):
        load_policy(run)


def test_config_json_reproduces_the_run(tmp_path):
    result = train(small_config(runner__seed=None, runner__logger={"log_dir": str(tmp_path)}), ActionReward())
    again = train(load_config(result.run_directory / "config.json"), ActionReward())
    assert_bit_equal(result.state, again.state)
    assert "best" in json.dumps(result.policy.metadata)
