"""What `runner.logger.resume` means: which run, which checkpoint of it, and how far it goes on."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import pytest
from helpers import assert_bit_equal, small_config
from toys import ActionReward, DelayedReward

from rlbotics_jax import train
from rlbotics_jax.checkpoint import ARCHIVE, Checkpoints
from rlbotics_jax.config import ConfigError, load_config
from rlbotics_jax.resume import Resume, find_checkpoint

TASK = "tasks:Mine"


clock = itertools.count(1.7e9)


def make_run(folder, name, iterations, best_score, environment_class=TASK, experiment="experiment", seed=0, **told):
    """Writes checkpoints with the given score, as a run of that name would that began after all before it."""
    run = folder / experiment / name
    run.mkdir(parents=True)
    identity = {"started": next(clock), "environment_class": environment_class, "seed": seed} | told
    summary = {"best_score": best_score, **{key: value for key, value in identity.items() if value is not ...}}
    checkpoints = Checkpoints(run)
    for iteration in iterations:
        checkpoints.save(iteration, {"x": jnp.ones(1)}, {"last": jnp.ones(1)}, summary)
    checkpoints.close()
    return run


def damage(run, iteration):
    (run / "checkpoints" / str(iteration) / ARCHIVE).write_bytes(b"half")


def find(resume, log_dir, total=1000, seed=None, **logger):
    log_dir = None if log_dir is None else str(log_dir)
    logger = {"resume": resume, "log_dir": log_dir, **logger}
    config = small_config(runner__num_learning_iterations=total, runner__seed=seed, runner__logger=logger)
    return find_checkpoint(config, TASK)


def found(resume, log_dir, **logger):
    resume = find(resume, log_dir, **logger)
    return resume.run, resume.iteration


def test_last_best_name_and_path(tmp_path):
    tmp_path = tmp_path / "logs"  # not where the process runs
    first = make_run(tmp_path, "2026-01-01_10-00-00", [5, 10], 3.0)
    second = make_run(tmp_path, "2026-01-01_10-00-00_2", [7], 9.0)
    tenth = make_run(tmp_path, "2026-01-01_10-00-00_10", [2, 100], None, experiment="another")
    (tmp_path / "experiment" / "2027-01-01_00-00-00").mkdir()  # newer, but it ended before its first checkpoint
    other = make_run(tmp_path, "2026-02-01_10-00-00", [3], 1000.0, environment_class="tasks:Other")  # newer and better
    assert found("last", tmp_path) == (tenth, 100)
    assert found("best", tmp_path) == (second, 7)
    assert found(first.name, tmp_path) == (first, 10)
    assert found(f"another/{tenth.name}", tmp_path) == (tenth, 100)
    assert found(str(second), None) == (second, 7)
    assert found(f"{second}/", None) == (second, 7)
    assert found(str(first / "checkpoints" / "5"), None) == (first, 5)
    assert find(None, tmp_path) is None
    for named in (other.name, str(other), str(other / "checkpoints" / "3")):
        with pytest.raises(ConfigError, match="trained tasks:Other, this config trains tasks:Mine"):
            find(named, tmp_path)


def test_the_newest_run_is_the_one_that_began_last_whatever_its_name(tmp_path):
    """Names are local times, which an hour may repeat, and folders are renamed."""
    make_run(tmp_path, "my_first_good_one", [5], 1.0)
    make_run(tmp_path, "2026-10-25_02-59-59", [5], 1.0)
    newest = make_run(tmp_path, "2026-10-25_02-00-00", [5], 1.0)
    assert found("last", tmp_path) == found("auto", tmp_path) == (newest, 5)


def test_a_link_to_the_newest_run_is_not_taken_for_it(tmp_path):
    run = make_run(tmp_path, "2026-01-01_10-00-00", [5], 1.0)
    (run.parent / "a").symlink_to(run)
    (run.parent / "z").symlink_to(run)
    (run.parent / "round").symlink_to(tmp_path)
    (tmp_path / "linked").symlink_to(make_run(tmp_path.parent / "far", "1", [2], 9.0).parent)
    assert found("auto", tmp_path) == (run, 5)
    assert found("last", tmp_path) == found("linked/1", tmp_path) == (tmp_path / "linked" / "1", 2)
    with pytest.raises(ConfigError, match="names no run"):
        find("round/linked/1", tmp_path)  # nothing is found twice


def test_runs_that_do_not_tell_what_they_are_are_passed_over(tmp_path):
    run = make_run(tmp_path, "told", [5], 3.0)
    for key in ("started", "environment_class", "seed"):
        untold = make_run(tmp_path, f"without_{key}", [7], 9.0, **{key: ...})
        assert found(untold.name, tmp_path) == (untold, 7)
    unreadable = make_run(tmp_path, "unreadable", [7, 8], 9.0)
    damage(unreadable, 7)
    damage(unreadable, 8)
    (run / "config.json").write_text("{")
    (unreadable / "config.json").write_text("{")
    for resume in ("last", "best", "auto"):
        with pytest.warns(UserWarning) as caught:
            assert found(resume, tmp_path) == (run, 5)
        assert [str(warning.message) for warning in caught] == [
            f"None of the checkpoints of '{unreadable}' can be read. The run is passed over."
        ]


def test_experiments_lie_at_any_depth(tmp_path):
    deep = make_run(tmp_path, "2026-01-01_10-00-00", [5], 9.0, experiment="walk/ppo")
    flat = make_run(tmp_path, "2026-01-01_10-00-00", [6], 1.0, experiment="walk")
    assert found("auto", tmp_path, experiment="walk/ppo") == (deep, 5)
    assert found("auto", tmp_path, experiment="walk") == (flat, 6)
    assert find("auto", tmp_path, experiment="ppo") is None
    assert found("best", tmp_path) == (deep, 5) and found("last", tmp_path) == (flat, 6)
    for name in ("walk/ppo/2026-01-01_10-00-00", "ppo/2026-01-01_10-00-00"):
        assert found(name, tmp_path) == (deep, 5)
    assert found("2026-01-01_10-00-00", tmp_path, experiment="walk/ppo") == (deep, 5)
    assert found("2026-01-01_10-00-00", tmp_path) == (flat, 6)


def test_auto_goes_on_with_a_run_of_its_own_seed(tmp_path):
    """The jobs of an array over seeds share an experiment."""
    first = make_run(tmp_path, "a", [5], 1.0, seed=1)
    second = make_run(tmp_path, "b", [6], 1.0, seed=2)
    assert find("auto", tmp_path, seed=1, total=9) == Resume(first, 5, 9, seed=1)
    assert find("auto", tmp_path, seed=2, total=9) == Resume(second, 6, 9, seed=2)
    assert find("auto", tmp_path, seed=3) is None
    assert found("auto", tmp_path) == found("last", tmp_path, seed=1) == (second, 6)


def test_a_seed_of_null_becomes_that_of_the_resumed_run(tmp_path):
    run = make_run(tmp_path, "a", [5], 1.0, seed=7)
    for resume, seed, recorded in (("auto", None, 7), (str(run), None, 7), (str(run), 3, 3)):
        found = find(resume, tmp_path, seed=seed)
        assert found.record(small_config(runner__seed=seed)).runner.seed == recorded


def test_what_was_named_relative_holds_in_another_folder(tmp_path, monkeypatch):
    run = make_run(tmp_path / "logs", "a", [5], 1.0)
    monkeypatch.chdir(tmp_path)
    for resume in ("last", "best", "auto", "a", "logs/experiment/a", "logs/experiment/a/checkpoints/5"):
        found = find(resume, "logs", total=9)
        assert found.run == run and found.checkpoint == run / "checkpoints" / "5"
        assert found.record(small_config()).runner.logger.resume == str(found.checkpoint)


def test_a_name_in_two_experiments_is_this_one_s(tmp_path):
    here = make_run(tmp_path, "2026-01-01_10-00-00", [5], 3.0, experiment="b")
    for experiment in ("a", "c"):
        make_run(tmp_path, "2026-01-01_10-00-00", [5], 3.0, experiment=experiment)
    assert found(here.name, tmp_path, experiment="b") == (here, 5)


def test_best_without_any_score_is_the_last_and_says_so(tmp_path):
    make_run(tmp_path, "2026-01-01_10-00-00", [5], None)
    last = make_run(tmp_path, "2026-01-02_10-00-00", [5], None)
    with pytest.warns(UserWarning, match="no run of this task has a best policy yet: the last is taken"):
        assert found("best", tmp_path) == (last, 5)


def test_auto_is_the_newest_run_of_its_experiment_or_a_fresh_start(tmp_path):
    assert find("auto", tmp_path) is None and find("auto", None) is None
    make_run(tmp_path, "2026-03-01_10-00-00", [50], 9.0, experiment="elsewhere")
    make_run(tmp_path, "2026-03-01_10-00-00", [60], 9.0, environment_class="tasks:Other")
    assert find("auto", tmp_path) is None
    older = make_run(tmp_path, "2026-01-01_10-00-00", [40], 9.0)
    newer = make_run(tmp_path, "2026-02-01_10-00-00", [45], 1.0)
    (tmp_path / "experiment" / "2026-02-02_10-00-00").mkdir()  # killed before its first checkpoint
    assert find("auto", tmp_path, total=100) == Resume(newer, 45, 100, seed=0)
    assert find("auto", tmp_path, total=45).remaining == 0
    damage(newer, 45)
    with pytest.warns(UserWarning, match="None of the checkpoints of '.*2026-02-01_10-00-00' can be read"):
        assert find("auto", tmp_path, total=100) == Resume(older, 40, 100, seed=0)


def test_other_values_go_on_for_as_many_more(tmp_path):
    run = make_run(tmp_path, "2026-01-01_10-00-00", [40], 9.0)
    for resume in ("last", "best", run.name, str(run)):
        assert find(resume, tmp_path, total=100) == Resume(run, 40, 140, seed=0)


def test_a_damaged_checkpoint_is_passed_over_unless_it_was_named(tmp_path):
    run = make_run(tmp_path, "2026-01-01_10-00-00", [5, 10], 3.0)
    damage(run, 10)
    for resume in ("last", "best", run.name, str(run)):
        with pytest.warns(UserWarning, match="checkpoints/10' is no whole checkpoint"):
            assert found(resume, tmp_path) == (run, 5)
    with pytest.raises(ConfigError, match=r"runner.logger.resume: '.*checkpoints/10' is no whole checkpoint"):
        find(str(run / "checkpoints" / "10"), tmp_path)
    damage(run, 5)
    with pytest.warns(UserWarning), pytest.raises(ConfigError, match="none of the checkpoints of '.*' is whole"):
        find(run.name, tmp_path)


@pytest.mark.parametrize(
    ("name", "whose", "end"),
    [
        ("last", " of this task", "or a path to one"),
        ("best", " of this task", "or a path to one"),
        ("2026-01-01_10-00-01", "", "the nearest is '2026-01-01_10-00-00'"),
        ("bset", "", "the nearest is 'best'"),
        ("model_x/elsewhere", "", ""),
    ],
)
def test_nothing_to_resume_is_named(name, whose, end, tmp_path):
    make_run(tmp_path, "2026-01-01_10-00-00", [5], 3.0, environment_class="tasks:Other")
    with pytest.raises(ConfigError, match=f"runner.logger.resume: '{name}' names no run{whose} with a check.*{end}"):
        find(name, tmp_path)


def test_an_iteration_that_was_not_saved_is_named(tmp_path):
    run = make_run(tmp_path, "2026-01-01_10-00-00", [5, 10], 3.0)
    with pytest.raises(ConfigError, match="has no checkpoint 7, only 5, 10"):
        find(str(run / "checkpoints" / "7"), tmp_path)


def test_what_is_recorded_does_the_same_again(tmp_path):
    run = make_run(tmp_path, "2026-01-01_10-00-00", [40], 9.0)
    logger = {"resume": "auto", "log_dir": str(tmp_path)}
    config = small_config(runner__num_learning_iterations=100, runner__init_from="somewhere", runner__logger=logger)
    resume = find_checkpoint(config, TASK)
    recorded = resume.record(config)
    assert recorded.runner.logger.resume == str(run / "checkpoints" / "40")
    assert (recorded.runner.num_learning_iterations, recorded.runner.init_from) == (60, None)
    make_run(tmp_path, "2026-02-01_10-00-00", [70], 9.0)
    assert find_checkpoint(recorded, TASK) == resume


def config_of(path, **logger):
    logger = {"log_dir": str(path), "log_interval": 100, "save_interval": 2, **logger}
    return small_config(runner__num_learning_iterations=4, runner__logger=logger)


def test_training_goes_on_bit_exactly_from_another_experiment_and_from_one_checkpoint(tmp_path):
    whole = train(small_config(runner__num_learning_iterations=8), ActionReward())
    half = train(config_of(tmp_path / "a", experiment="one"), ActionReward())
    resumed = train(config_of(tmp_path / "b", experiment="two", resume=str(half.run_directory)), ActionReward())
    assert resumed.run_directory.parent == tmp_path / "b" / "two"
    assert_bit_equal(resumed.state, whole.state)
    again = train(config_of(tmp_path / "b", resume=str(half.run_directory / "checkpoints" / "2")), ActionReward())
    assert_bit_equal(again.state, train(small_config(runner__num_learning_iterations=6), ActionReward()).state)
    assert again.history["iteration"][-1] == 6


def test_auto_needs_no_logic_around_it(tmp_path):
    """The same command, run until the total is reached."""

    def stop_at(last):
        return lambda iteration, metrics: iteration >= last

    config = config_of(tmp_path, resume="auto", save_interval=1)
    first = train(config, ActionReward(), callback=stop_at(2))
    done = int(first.state.shared.iteration)
    assert 2 <= done < 4
    second = train(config, ActionReward())
    assert int(second.state.shared.iteration) == 4
    whole = train(small_config(runner__num_learning_iterations=4), ActionReward())
    assert_bit_equal(second.state, whole.state)
    third = train(config, ActionReward())
    assert_bit_equal(third.state, whole.state)
    assert third.run_directory == second.run_directory and len(list((tmp_path / "experiment").iterdir())) == 2


def test_auto_needs_no_config_json(tmp_path):
    config = config_of(tmp_path, resume="auto", log_config=False)
    first = train(config, ActionReward())
    assert not (first.run_directory / "config.json").exists()
    longer = config.replace(runner=config.runner.replace(num_learning_iterations=6))
    assert train(longer, ActionReward()).history["iteration"].tolist() == [1, 2, 3, 4, 5, 6]


def test_a_run_that_began_with_init_from_goes_on_without_it(tmp_path):
    """With its own config.json, as the line says that a stopped run ends with."""
    source = train(config_of(tmp_path / "source"), DelayedReward()).run_directory
    begun = config_of(tmp_path / "a")
    begun = begun.replace(runner=begun.runner.replace(init_from=str(source)))
    half = train(begun, ActionReward())
    config = load_config(half.run_directory / "config.json")
    assert config.runner.init_from is not None
    logger = config.runner.logger.replace(resume=str(half.run_directory))
    resumed = train(config.replace(runner=config.runner.replace(logger=logger)), ActionReward())
    assert load_config(resumed.run_directory / "config.json").runner.init_from is None
    whole = begun.replace(runner=begun.runner.replace(num_learning_iterations=8))
    assert_bit_equal(resumed.state, train(whole, ActionReward()).state)


def test_a_resumed_run_without_a_seed_records_the_old_one_s(tmp_path):
    config = config_of(tmp_path, resume="auto", save_interval=1)
    config = config.replace(runner=config.runner.replace(seed=None))
    first = train(config, ActionReward())
    seed = load_config(first.run_directory / "config.json").runner.seed
    second = train(config.replace(runner=config.runner.replace(num_learning_iterations=6)), ActionReward())
    assert second.history["iteration"][-1] == 6
    assert load_config(second.run_directory / "config.json").runner.seed == seed


def test_another_task_starts_afresh_under_auto_and_is_refused_otherwise(tmp_path):
    train(config_of(tmp_path), ActionReward())
    fresh = train(config_of(tmp_path, resume="auto"), DelayedReward())
    assert fresh.history["iteration"].tolist()[0] == 1
    named = str(fresh.run_directory)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match="trained toys:DelayedReward, this config trains toys:ActionReward"):
        train(config_of(tmp_path, resume=named), ActionReward())
    assert sorted(tmp_path.rglob("*")) == before
