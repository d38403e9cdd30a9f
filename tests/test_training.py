"""`train`: what goes in, what comes out, and what happens when it is stopped, continued, or cannot go on."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import SMALL, assert_bit_equal, raw, small_config
from toys import ActionReward, DelayedReward, TimeLimitOnly, Toy

import rlbotics_jax
from bridges.policy import Policy
from rlbotics_jax import train
from rlbotics_jax.build import build_algorithm, build_environment
from rlbotics_jax.checkpoint import Checkpoints
from rlbotics_jax.config import ConfigError, load_config
from rlbotics_jax.envs import vectorize
from rlbotics_jax.evaluation import evaluate
from rlbotics_jax.program import make_program
from rlbotics_jax.training import TrainingError


def goal_config(**overrides):
    return small_config(**{"runner__num_steps_per_env": 4, "runner__num_learning_iterations": 6, **overrides})


def logged(path: Path, **overrides):
    return goal_config(runner__logger={"log_dir": str(path), "log_interval": 2, "save_interval": 3}, **overrides)


def test_result_and_run_directory(tmp_path, capsys):
    config = logged(tmp_path)
    result = train(config, ActionReward())
    assert not result.interrupted
    assert result.history["iteration"].tolist() == [1, 2, 3, 4, 5, 6]
    assert result.history["env_steps"].tolist() == [64 * i for i in range(1, 7)]
    assert (np.diff(result.history["wall_time"]) >= 0).all()
    assert np.isfinite(result.history["Episodes/mean_reward"]).all()
    for name in ("Loss/value", "Loss/surrogate", "Loss/entropy", "Diagnostics/kl"):
        # the first rollout only fills the observation statistics
        assert np.isfinite(result.history[name]).tolist() == [False] + [True] * 5, name
    for name in ("Diagnostics/clip_fraction", "Diagnostics/explained_variance", "Policy/action_std"):
        assert result.history[name].shape == (6,), name
    assert int(result.state.shared.iteration) == 6
    assert result.best_score == pytest.approx(result.history["Episodes/mean_reward"].max())

    run = result.run_directory
    assert run.parent == tmp_path / "experiment"
    assert load_config(run / "config.json") == config
    recorded = json.loads((run / "config.json").read_text())
    assert recorded["versions"]["jax"] == jax.__version__
    assert recorded["environment"]["observation_shapes"] == {"observation": [2]}
    assert Checkpoints(run).iterations() == [3, 6]
    assert list(run.glob("events.out.tfevents*"))
    assert (run / "policy.onnx").is_file()
    lines = capsys.readouterr().out.splitlines()
    assert sum("/6 " in line for line in lines) == 3


def test_two_runs_of_one_second_have_different_directories(tmp_path):
    config = logged(tmp_path).replace()
    config = config.replace(runner=config.runner.replace(num_learning_iterations=1))
    runs = {train(config, ActionReward()).run_directory for _ in range(2)}
    assert len(runs) == 2


def test_nothing_is_written_or_printed_where_nothing_is_asked_for(tmp_path, capsys):
    for logger in ({"log_dir": None, "enabled": True}, {"enabled": False, "log_dir": str(tmp_path / "logs")}):
        result = train(goal_config(runner__logger=logger, runner__verbose=False), ActionReward())
        assert result.run_directory is None
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""


def forward(policy, observations):
    """The actor in numpy: normaliser and three dense layers with ELU between them."""
    parameters = raw(policy.parameters)
    layers, statistics = parameters["actor"]["network"]["params"], parameters["normalizer"]
    x = (np.asarray(observations) - statistics.mean) / (np.sqrt(statistics.variance) + 1e-2)
    for name in ("Dense_0", "Dense_1", "Dense_2"):
        x = x @ layers[name]["kernel"] + layers[name]["bias"]
        x = x if name == "Dense_2" else np.where(x > 0, x, np.expm1(np.minimum(x, 0)))
    return x


def test_policies_agree_with_a_numpy_forward_pass(tmp_path):
    """The compiled policy, the exported file and numpy compute the same actions: no compiler fault in between."""
    result = train(logged(tmp_path), ActionReward(action_low=(-3.0,), action_high=(5.0,)))
    observations = np.random.default_rng(0).standard_normal((7, 2)).astype(np.float32)
    x = forward(result.policy, observations)
    expected = np.clip(x, -1, 1) * 4.0 + 1.0
    np.testing.assert_allclose(result.policy(observations), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result.policy(observations[0]), expected[0], rtol=1e-4, atol=1e-5)
    deployed = Policy(result.run_directory / "policy.onnx")
    np.testing.assert_allclose(deployed.get_action(observations), expected, rtol=1e-4, atol=1e-5)


def test_same_seed_same_run_other_seed_other_run():
    first, second, third = (train(goal_config(runner__seed=seed), ActionReward()) for seed in (0, 0, 1))
    assert_bit_equal(first.state, second.state)
    assert not np.array_equal(first.history["Loss/value"], third.history["Loss/value"])


def test_a_null_seed_is_drawn_and_recorded(tmp_path):
    seeds = []
    for _ in range(2):
        run = train(logged(tmp_path, runner__seed=None), ActionReward()).run_directory
        seeds.append(load_config(run / "config.json").runner.seed)
    assert None not in seeds and seeds[0] != seeds[1]


def test_config_as_mapping_path_and_object(tmp_path):
    values = goal_config().to_dict()
    path = tmp_path / "task.json"
    path.write_text(json.dumps(values))
    results = [train(config, ActionReward()) for config in (values, path, str(path), goal_config())]
    for result in results[1:]:
        assert_bit_equal(results[0].state, result.state)


def test_the_environment_of_the_config_is_built_when_none_is_given():
    result = train(SMALL)
    assert result.policy.spec.num_actions == 1
    assert result.policy(np.zeros(5)).shape == (1,)


def test_callback_sees_every_iteration_and_stops_the_run():
    seen = []

    def callback(iteration, metrics):
        seen.append((iteration, metrics["env_steps"]))
        return iteration == 3

    result = train(goal_config(runner__num_learning_iterations=10**6), ActionReward(), callback=callback)
    assert seen == [(i, 64 * i) for i in range(1, len(seen) + 1)] and 3 <= len(seen) < 10**4
    assert len(result.history["iteration"]) == len(seen) == int(result.state.shared.iteration)
    assert not result.interrupted


def test_a_state_continues_and_stays_usable():
    whole = train(goal_config(runner__num_learning_iterations=12), ActionReward())
    half = train(goal_config(), ActionReward())
    for _ in range(2):
        rest = train(goal_config(), ActionReward(), state=half.state)
        assert rest.history["iteration"].tolist() == [7, 8, 9, 10, 11, 12]
        assert_bit_equal(rest.state, whole.state)


def test_resume_is_bit_exact(tmp_path):
    """Run 2N equals run N, save, load, run N, although N lies in the middle of a block of the long run."""
    whole = train(goal_config(runner__num_learning_iterations=12), ActionReward())
    half = train(logged(tmp_path), ActionReward())
    config = logged(tmp_path)
    logger = config.runner.logger.replace(resume=str(half.run_directory))
    rest = train(config.replace(runner=config.runner.replace(logger=logger)), ActionReward())
    assert_bit_equal(rest.state, whole.state)
    # No iteration is repeated, and the curve begins where the first part's did.
    assert rest.history["iteration"].tolist() == list(range(1, 13))
    assert np.all(np.diff(rest.history["wall_time"]) > 0)
    np.testing.assert_array_equal(rest.history["wall_time"][:6], half.history["wall_time"])
    for name in ("env_steps", "Loss/value", "Episodes/mean_reward", "Learning/learning_rate"):
        np.testing.assert_array_equal(rest.history[name], whole.history[name])


def test_a_second_call_of_equal_shapes_compiles_nothing():
    train(goal_config(), ActionReward())
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        listener := lambda name, *_, **__: compiled.append(name) if "backend_compile" in name else None
    )
    started = time.perf_counter()
    train(goal_config(runner__seed=5, runner__algorithm__learning_rate=5e-4), ActionReward())
    seconds = time.perf_counter() - started
    jax.monitoring.unregister_event_duration_listener(listener)
    assert compiled == []
    assert seconds < 2.0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_an_interrupt_returns_the_result_so_far(number, tmp_path, capsys):
    def callback(iteration, metrics):
        if iteration == 2:
            os.kill(os.getpid(), number)

    config = logged(tmp_path)
    config = config.replace(runner=config.runner.replace(num_learning_iterations=10**6))
    result = train(config, ActionReward(), callback=callback)
    assert result.interrupted is number
    done = int(result.state.shared.iteration)
    assert 2 <= done < 10**5 and len(result.history["iteration"]) == done
    assert Checkpoints(result.run_directory).iterations()[-1] == done
    assert (result.run_directory / "policy.onnx").is_file()
    run = result.run_directory
    assert (
        f"Stopped by {number.name} after iteration {done} of 1000000; go on with runner.logger.resume: {run}, for "
        f"{10**6 - done} more.\n"
    ) in capsys.readouterr().out


def test_a_vectorised_environment_is_taken_as_it_is_and_recorded(tmp_path):
    environment = vectorize(ActionReward(), 8, clip_actions=0.5, full_reset=True)
    result = train(logged(tmp_path), environment)
    recorded = load_config(result.run_directory / "config.json").env
    assert (recorded.num_envs, recorded.clip_actions, recorded.full_reset) == (8, 0.5, True)
    assert result.history["env_steps"][-1] == 6 * 8 * 4
    assert np.abs(result.policy(np.full((4, 2), 100.0))).max() <= 0.5


class BrokenLater(ActionReward):
    """It passes the check (a batch of one traces) and fails when the program is traced."""

    def step(self, state, action):
        if self.episode_length == 9 and isinstance(action, jax.core.Tracer) and "Batch" in type(action).__name__:
            raise RuntimeError("no batches")
        return super().step(state, action)


def test_a_run_that_never_began_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError, match="no batches"):
        train(logged(tmp_path), BrokenLater(episode_length=9))
    assert list(tmp_path.iterdir()) == []


def test_evaluation_agrees_with_numpy(tmp_path):
    """One-step episodes whose return is -(action - goal)^2: the compiled evaluation gives what numpy computes."""
    result = train(goal_config(), ActionReward())
    returns = evaluate(result.policy, ActionReward(), num_episodes=16)["returns"]
    expected = {-((forward(result.policy, [[goal, 1.0]])[0, 0] - goal) ** 2) for goal in (-1.0, 1.0)}
    for value in returns:
        assert min(abs(value - e) for e in expected) < 1e-4


def test_a_failing_callback_loses_nothing(tmp_path):
    def callback(iteration, metrics):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        train(logged(tmp_path), ActionReward(), callback=callback)
    (run,) = (tmp_path / "experiment").iterdir()
    assert Checkpoints(run).iterations()


def test_an_interrupt_inside_a_callback_loses_nothing(tmp_path):
    def callback(iteration, metrics):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(logged(tmp_path), ActionReward(), callback=callback)
    (run,) = (tmp_path / "experiment").iterdir()
    assert Checkpoints(run).iterations()


def test_what_cannot_be_written_at_the_end_costs_the_file_and_not_the_result(tmp_path):
    def callback(iteration, metrics):
        (run,) = (tmp_path / "experiment").iterdir()
        for name in ("policy.onnx", "learning_curve.png"):
            (run / name).mkdir(exist_ok=True)  # a folder stands there

    with pytest.warns(UserWarning, match=r"No (policy.onnx|learning_curve.png) was written: .*directory") as caught:
        result = train(logged(tmp_path), ActionReward(), callback=callback)
    assert len(caught) == 2 and len(result.history["iteration"]) == 6


def test_config_json_of_a_resumed_run_resumes_the_same_checkpoint(tmp_path):
    train(logged(tmp_path), ActionReward())
    config = logged(tmp_path)
    logger = config.runner.logger.replace(resume="last")
    resumed = train(config.replace(runner=config.runner.replace(logger=logger)), ActionReward())
    again = train(load_config(resumed.run_directory / "config.json"), ActionReward())
    assert again.history["iteration"].tolist() == resumed.history["iteration"].tolist() == list(range(1, 13))
    assert_bit_equal(again.state, resumed.state)


def test_a_state_of_other_sizes_is_refused():
    state = train(goal_config(), ActionReward()).state
    with pytest.raises(
        ConfigError, match=r"the state given to train does not fit this config: .* is int32\[16\], needed is int32\[8\]"
    ):
        train(goal_config(env__num_envs=8), ActionReward(), state=state)


def test_metrics_without_a_slash_are_the_environment_s_and_taken_names_are_refused():
    class Named(ActionReward):
        def state(self, time, goal, reward, terminated):
            state = super().state(time, goal, reward, terminated)
            return state.replace(metrics={self.metric: reward})

    Named.metric = "success"
    result = train(goal_config(), Named())
    assert np.isfinite(result.history["Environment/success"]).all()
    Named.metric = "Loss/value"
    with pytest.raises(ValueError, match="The environment logs Loss/value"):
        train(goal_config(), Named(episode_length=7))


class LogsSuccess(TimeLimitOnly):
    """Tells at the end of an episode whether it succeeded (half of them do), and nothing before."""

    def state(self, time, goal, reward, terminated):
        state = super().state(time, goal, reward, terminated)
        return state.replace(metrics={"success": jnp.where(time == self.episode_length, (goal + 1) / 2, jnp.nan)})


def test_a_metric_of_some_steps_is_averaged_over_those(allow_nans, tmp_path):
    """Episodes last two rollouts: every second iteration has one success or failure an environment."""
    result = train(logged(tmp_path), LogsSuccess(episode_length=8))
    success = result.history["Environment/success"]
    np.testing.assert_array_equal(np.isfinite(success), [False, True] * 3)
    for value in success[1::2]:
        assert 0 < value < 1 and value * 16 == round(value * 16)
    rows = [json.loads(line) for line in (result.run_directory / "metrics.jsonl").read_text().splitlines()]
    assert ["Environment/success" in row for row in rows] == [False, True] * 3


class NanReset(ActionReward):
    """One episode in ten begins with a NaN observation."""

    def reset(self, key):
        broken = jax.random.uniform(jax.random.fold_in(key, 1)) < 0.1
        state = super().reset(key)
        observation = jnp.where(broken, jnp.nan, state.observations["observation"])
        return state.replace(observations={"observation": observation})

    def outcome(self, time, goal, action):
        reward, ended = super().outcome(time, goal, action)
        return reward + 0.0 * action[0], ended


def test_observations_that_begin_non_finite_spoil_no_update(allow_nans):
    with pytest.warns(UserWarning, match="steps were not valid"):
        result = train(goal_config(), NanReset())
    assert result.history["Diagnostics/invalid_steps"].sum() > 0
    assert result.history["Diagnostics/rejected_updates"].sum() == 0
    assert np.isfinite(result.history["Loss/value"][1:]).all()


class NanObservation(Toy):
    """Its observation is NaN from the third step of an episode on."""

    def observe(self, time, goal):
        return {"observation": jnp.stack([jnp.where(time >= 3, jnp.nan, 1.0), goal])}

    def outcome(self, time, goal, action):
        return 1.0, False


class InfiniteReward(Toy):
    """Rewards so large that squared errors overflow: the value loss has no finite gradient."""

    def outcome(self, time, goal, action):
        return 3e38, False


def test_non_finite_environments_are_left_out_or_end_the_run():
    with pytest.warns(
        UserWarning, match=r"Iteration 1: 16 steps.*step 2 .*environment 0; not finite: observations.obs"
    ):
        result = train(goal_config(), NanObservation())
    assert result.history["Diagnostics/invalid_steps"].sum() > 0
    assert np.isfinite(result.history["Loss/value"][1:]).all()
    # every third step is invalid
    assert result.history["env_steps"][-1] == 6 * 64 - result.history["Diagnostics/invalid_steps"].sum()
    with pytest.raises(TrainingError, match=r"Iteration 1: 16 steps were not valid.*check_for_nan"):
        train(goal_config(runner__check_for_nan=True), NanObservation())


def test_gradients_that_stay_non_finite_end_the_run(tmp_path, allow_nans, capsys):
    config = logged(tmp_path, runner__algorithm__max_rejected_updates=5)
    with pytest.raises(TrainingError, match=r"non-finite gradients.*max_rejected_updates is 5"):
        train(config, InfiniteReward())
    (run,) = (tmp_path / "experiment").iterdir()
    assert f"Iteration {Checkpoints(run).iterations()[-1]} is saved in {run}.\n" in capsys.readouterr().out


BAD = {
    "unknown group": (
        {"runner__obs_groups": {"actor": ["policy"], "critic": ["observation"]}},
        "runner.obs_groups.actor",
    ),
    "cnn": ({"runner__critic": {"cnn_cfg": {"output_channels": [8]}}}, "CNNModel"),
    "rnd": ({"runner__algorithm__rnd_cfg": {"weight": 1.0}}, "rnd_cfg"),
    "symmetry": ({"runner__algorithm__symmetry_cfg": {"data_augmentation_func": "a:b"}}, "symmetry_cfg"),
    "shared encoders": ({"runner__algorithm__share_cnn_encoders": True}, "share_cnn_encoders"),
    "resume": ({"runner__logger__resume": "last"}, "runner.logger.resume"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_ends_before_anything_is_compiled_or_written(name, tmp_path, monkeypatch):
    overrides, sentence = BAD[name]
    monkeypatch.setattr("rlbotics_jax.program.jit", lambda *_, **__: pytest.fail("something was compiled"))
    config = goal_config(**{"runner__logger": {"log_dir": str(tmp_path / "logs")}, **overrides})
    with pytest.raises(ConfigError, match=sentence):
        train(config, DelayedReward(episode_length=11))
    assert not (tmp_path / "logs").exists()


def test_an_unwritable_log_dir_is_named(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ConfigError, match=r"runner.logger.log_dir: '.*file/logs' cannot be written"):
        train(logged(blocked / "logs"), ActionReward())


def test_settings_that_are_no_floats_make_a_new_program_and_floats_do_not():
    def program(**overrides):
        config = goal_config(**overrides)
        config, environment = build_environment(config, ActionReward())
        return make_program(build_algorithm(config, environment)[0], environment, config.runner.num_steps_per_env)

    assert program() is program(runner__algorithm__gamma=0.5, runner__seed=3)
    assert program() is not program(runner__algorithm__num_learning_epochs=3)
    assert program() is not program(env__num_envs=8)


def test_public_names_resolve():
    for name in rlbotics_jax.__all__:
        assert getattr(rlbotics_jax, name) is not None
