"""Evaluations, checkpoints and videos during a run: when they happen, and that the training does not notice."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from drawing import Painter
from helpers import assert_bit_equal, small_config
from toys import ActionReward

from rlbotics_jax import train
from rlbotics_jax.checkpoint import Checkpoints
from rlbotics_jax.evaluation import evaluate, summarize
from rlbotics_jax.history import read_history
from rlbotics_jax.runs import load_policy


def config(log_dir=None, iterations=7, save_interval=3, **overrides):
    logger = {
        "log_dir": log_dir and str(log_dir),
        "save_interval": save_interval,
        "log_video": overrides.pop("video", False),
    }
    return small_config(
        runner__num_steps_per_env=4, runner__num_learning_iterations=iterations, runner__logger=logger, **overrides
    )


def test_evaluations_fall_on_their_interval_and_change_nothing(tmp_path):
    plain = train(config(), ActionReward())
    seen = {}
    evaluated = train(
        config(tmp_path, runner__eval_interval=2, runner__eval_episodes=5),
        ActionReward(),
        callback=lambda iteration, metrics: seen.update({iteration: metrics.get("Evaluation/mean_reward")}),
    )
    assert_bit_equal(evaluated.state, plain.state)
    measured = evaluated.history["Evaluation/mean_reward"]
    np.testing.assert_array_equal(np.isfinite(measured), [False, True, False, True, False, True, False])
    assert [iteration for iteration, value in seen.items() if value is not None] == [2, 4, 6]
    # What was logged is what `evaluate` finds for the policy of that iteration.
    policy = load_policy(evaluated.run_directory, "last", iteration=6)
    expected = summarize(evaluate(policy, ActionReward(), num_episodes=5, seed=0))
    logged = {name: evaluated.history[f"Evaluation/{name}"][5] for name in expected}
    assert logged == expected and expected["std_reward"] > 0


def test_checkpoints_fall_on_their_interval_and_at_the_end(tmp_path):
    run = train(config(tmp_path, runner__eval_interval=2), ActionReward()).run_directory
    assert Checkpoints(run).iterations() == [3, 6, 7]  # none where there was an evaluation only
    stopped = train(config(tmp_path, runner__eval_interval=1), ActionReward(), callback=lambda i, _: i == 4)
    last = int(stopped.state.shared.iteration)
    assert 4 <= last < 7 and Checkpoints(stopped.run_directory).iterations()[-1] == last


def test_videos_stand_beside_checkpoints_and_change_nothing(tmp_path):
    plain = train(config(), Painter())
    filmed = train(config(tmp_path, video=True), Painter())
    assert_bit_equal(filmed.state, plain.state)
    names = [path.name for path in sorted((filmed.run_directory / "videos").iterdir())]
    assert names == ["iteration_000003.mp4", "iteration_000006.mp4", "iteration_000007.mp4"]


def test_an_environment_that_cannot_be_drawn_is_one_warning(tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = train(config(tmp_path, video=True), ActionReward())
    (text,) = [str(warning.message) for warning in caught if "video" in str(warning.message)]
    assert "ActionReward has no member `renderer(width, height)`" in text and "training goes on without videos" in text
    assert Checkpoints(result.run_directory).iterations() == [3, 6, 7]


class BreaksWhenEvaluated(ActionReward):
    """Cannot be evaluated in 5 environments; trains in 16."""

    def reset(self, key):
        if not self.trains:
            raise RuntimeError("no second scene")
        return super().reset(key)

    trains = True


def test_an_evaluation_that_fails_loses_nothing(tmp_path):
    environment = BreaksWhenEvaluated()

    def callback(iteration, metrics):
        BreaksWhenEvaluated.trains = False

    try:
        with pytest.raises(RuntimeError, match="no second scene"):
            train(config(tmp_path, runner__eval_interval=4), environment, callback=callback)
    finally:
        BreaksWhenEvaluated.trains = True
    (run,) = (tmp_path / "experiment").iterdir()
    assert Checkpoints(run).iterations() == [3, 4]
    assert read_history(run)["iteration"].tolist() == [1, 2, 3, 4]


def test_summary_of_an_evaluation():
    results = {"returns": np.float32([1.0, 2.0, 6.0]), "lengths": np.int32([10, 20, 60])}
    assert summarize(results) == {
        "mean_reward": 3.0,
        "std_reward": pytest.approx((14 / 3) ** 0.5),
        "min_reward": 1.0,
        "max_reward": 6.0,
        "mean_length": 30.0,
    }


def test_a_return_that_is_good_enough_ends_the_run(tmp_path, capsys):
    overrides = {"runner__early_stopping_threshold": 0.0, "runner__early_stopping_patience": 2}
    result = train(config(tmp_path, iterations=10**6, **overrides), Painter())  # every episode's return is 8
    done = len(result.history["iteration"])
    assert 3 <= done < 10**5 and result.interrupted is None
    assert Checkpoints(result.run_directory).iterations()[-1] == done
    returns = result.history["Episodes/mean_reward"]
    reached = int(np.argmax((returns[1:] >= 0) & (returns[:-1] >= 0))) + 2
    assert f"Iteration {reached}: the mean return, now 8.00, has been at least 0 for 2 iter" in capsys.readouterr().out
