"""Run directories: each has its own, and gives policy and history without environment or simulator."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import assert_bit_equal, small_config
from toys import ActionReward, TimeLimitOnly

from rlbotics_jax import train
from rlbotics_jax.checkpoint import ARCHIVE
from rlbotics_jax.config import ConfigError, load_config, save_config
from rlbotics_jax.envs import environment_spec
from rlbotics_jax.evaluation import evaluate_run
from rlbotics_jax.exports import export
from rlbotics_jax.runs import create_run, load_policy, load_run, recorded_config, recorded_environment
from rlbotics_jax.snapshot import run_identity


def test_runs_of_one_second_have_different_directories(tmp_path):
    config, spec = small_config(runner__logger={"log_dir": str(tmp_path)}), environment_spec(ActionReward())
    with ThreadPoolExecutor(16) as threads:
        runs = list(threads.map(lambda _: create_run(config, spec, "toys:ActionReward"), range(64)))
    assert len(set(runs)) == 64 and all(load_config(run / "config.json") == config for run in runs)


def test_a_run_directory_is_absolute_and_stays_where_it_was_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = small_config(runner__logger={"log_dir": "logs", "experiment": "walk/ppo", "save_interval": 1})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    result = train(config, ActionReward(), callback=lambda iteration, metrics: monkeypatch.chdir(elsewhere))
    assert result.run_directory.parent == tmp_path / "logs" / "walk" / "ppo"
    names = {path.name for path in result.run_directory.iterdir()}
    assert {"config.json", "metrics.jsonl", "policy.onnx", "checkpoints"} <= names
    assert list(elsewhere.iterdir()) == []


def test_a_run_s_identity():
    before = time.time()
    identity = run_identity(small_config(runner__seed=7), "tasks:Mine")
    assert before <= identity.pop("started") <= time.time()
    assert identity == {"environment_class": "tasks:Mine", "seed": 7}


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b'{"env": {', "line 1"), (b"\xff\xfe", "no UTF-8 text"), (b"[1]", "must be a mapping"), (b"", "empty")],
)
def test_a_config_json_that_cannot_be_read_is_named(content, reason, tmp_path):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.warns(UserWarning) as caught:
        assert recorded_config(tmp_path) == {}
    assert [str(warning.message).partition(" (")[0] for warning in caught] == [
        f"'{tmp_path}/config.json' cannot be read"
    ]
    for read in (load_run, load_policy):
        with pytest.raises(ConfigError, match=f"^{tmp_path}/config.json: .*{reason}"):
            read(tmp_path)
    with pytest.raises(ValueError, match=f"'{tmp_path}/config.json' cannot be read"):
        recorded_environment(tmp_path)


def test_a_config_json_without_its_environment_is_named(tmp_path):
    save_config(small_config(), tmp_path / "config.json")
    for read in (load_run, load_policy):
        with pytest.raises(ValueError, match=f"'{tmp_path}/config.json' records no environment"):
            read(tmp_path)


def test_the_commit_of_the_working_directory_is_recorded(tmp_path):
    config, spec = small_config(runner__logger={"log_dir": str(tmp_path / "logs")}), environment_spec(ActionReward())

    def recorded_config():
        return json.loads((create_run(config, spec, "t:T") / "config.json").read_text())["versions"].get("git_commit")

    def git(*arguments):
        command = ["git", "-c", "user.name=me", "-c", "user.email=me@example.com", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert recorded_config() is None
    git("init")
    assert recorded_config() is None  # nothing is committed yet
    (tmp_path / "mine.py").write_text("x = 1")
    git("add", "mine.py")
    git("commit", "-m", "first")
    git("tag", "-a", "v1", "-m", "a tag is no commit")
    commit = git("rev-parse", "HEAD")
    assert len(commit) == 40 and recorded_config() == commit
    (tmp_path / "mine.py").write_text("x = 2")
    assert recorded_config() == f"{commit}-dirty"


def test_an_unwritable_log_dir_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    config = small_config(runner__logger={"log_dir": str(tmp_path / "file" / "logs")})
    with pytest.raises(ConfigError, match=r"runner.logger.log_dir: '.*file/logs' cannot be written"):
        create_run(config, environment_spec(ActionReward()), "toys:ActionReward")


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


def test_a_run_is_loaded_whole_without_its_environment(tmp_path):
    config = small_config(env__id="my_robot.tasks:Gone", runner__logger={"log_dir": str(tmp_path), "save_interval": 2})
    result = train(config, ActionReward())
    run = load_run(result.run_directory)
    assert run.directory == result.run_directory and run.config == load_config(result.run_directory / "config.json")
    assert_bit_equal(run.policy.parameters, result.policy.parameters)
    assert run.policy.metadata == result.policy.metadata
    assert run.summary == {
        "iteration": 3,
        "env_steps": 3 * 16 * 8,
        "wall_time": pytest.approx(result.history["wall_time"][-1]),
        "best_score": result.best_score,
        "best_iteration": result.policy.metadata["iteration"],
        "started": pytest.approx(time.time(), abs=600),
        "environment_class": "toys:ActionReward",
        "seed": 0,
    }
    assert run.history["iteration"].tolist() == [1, 2, 3]
    np.testing.assert_array_equal(run.history["Episodes/mean_reward"], result.history["Episodes/mean_reward"])
    assert load_run(str(result.run_directory), "last").policy.metadata["which"] == "last"
    (result.run_directory / "metrics.jsonl").unlink()
    assert load_run(result.run_directory).history == {}


def test_a_damaged_checkpoint_costs_no_more_than_itself(tmp_path):
    config = small_config(runner__logger={"log_dir": str(tmp_path), "save_interval": 2})
    run = train(config, ActionReward()).run_directory
    (run / "checkpoints" / "3" / ARCHIVE).write_bytes(b"")
    with pytest.warns(UserWarning, match="checkpoints/3' is no whole checkpoint"):
        assert load_policy(run, "last").metadata["iteration"] == 2
    with pytest.raises(ValueError, match="checkpoints/3' is no whole checkpoint"):
        load_policy(run, "last", iteration=3)


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
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(FileNotFoundError, match="has no checkpoint"):
        load_policy(run)


def test_config_json_reproduces_the_run(tmp_path):
    result = train(small_config(runner__seed=None, runner__logger={"log_dir": str(tmp_path)}), ActionReward())
    again = train(load_config(result.run_directory / "config.json"), ActionReward())
    assert_bit_equal(result.state, again.state)
    assert "best" in json.dumps(result.policy.metadata)
