"""`init_from`: a new run starts from parts of another, and says what was not taken."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from helpers import assert_bit_equal, small_config
from toys import ActionReward, DelayedReward, WideObservations

from rlbotics_jax import train
from rlbotics_jax.build import build_algorithm, build_environment, initial_state, state_like
from rlbotics_jax.checkpoint import Checkpoints
from rlbotics_jax.config import ConfigError, load_config
from rlbotics_jax.program import make_program
from rlbotics_jax.transfer import find_transfer


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run of one task, which others start from."""
    logger = {"log_dir": str(tmp_path_factory.mktemp("logs")), "save_interval": 2}
    return train(small_config(env__id="gone.tasks:Gone", runner__logger=logger), ActionReward())


def begin(init_from, load, environment=None, **overrides):
    """Returns the state that a new run of another task begins with, and what was said."""
    config = small_config(runner__init_from=str(init_from), runner__load=load, runner__seed=7, **overrides)
    config, environment = build_environment(config, environment or DelayedReward())
    algorithm, _ = build_algorithm(config, environment)
    program = make_program(algorithm, environment, config.runner.num_steps_per_env)
    transfer = find_transfer(config, algorithm, state_like(config, program))
    fresh, _ = initial_state(config, program)
    state, seconds = initial_state(config, program, transfer=transfer)
    assert seconds == 0.0 and int(state.shared.iteration) == 0
    return state.shared, fresh.shared, str(transfer)


def test_parts_are_taken_and_the_rest_is_fresh(source):
    state, fresh, said = begin(source.run_directory, ["actor", "normalizer"])
    saved = source.state.shared.algorithm
    assert said == f"From '{source.run_directory}' iteration 3: actor, normalizer. Not loaded: critic, optimizer."
    assert_bit_equal(state.algorithm.parameters["actor"], saved.parameters["actor"])
    assert_bit_equal(state.algorithm.normalizers, saved.normalizers)
    assert_bit_equal(state.algorithm.parameters["critic"], fresh.algorithm.parameters["critic"])
    assert_bit_equal(state.algorithm.optimizer, fresh.algorithm.optimizer)
    assert_bit_equal(state.algorithm.hyperparameters, fresh.algorithm.hyperparameters)
    assert_bit_equal((state.key, state.env_steps, state.episodes), (fresh.key, fresh.env_steps, fresh.episodes))
    assert not np.array_equal(
        fresh.algorithm.parameters["actor"]["network"]["params"]["Dense_0"]["kernel"],
        saved.parameters["actor"]["network"]["params"]["Dense_0"]["kernel"],
    )


def test_its_best_policy_is_what_it_starts_with_and_has_no_score(source):
    assert source.best_score is not None
    state, _, _ = begin(source.run_directory, ["actor", "normalizer"])
    assert float(state.best.score) == -np.inf and int(state.best.iteration) == 0
    saved = source.state.shared.algorithm
    assert_bit_equal(
        state.best.parameters, {"actor": saved.parameters["actor"], "normalizer": saved.normalizers["actor"]}
    )
    pointers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves((state.best.parameters, state.algorithm))]
    assert len(set(pointers)) == len(pointers)  # the state is donated


def test_everything_and_one_checkpoint(source):
    path = source.run_directory / "checkpoints" / "2"
    parts = ["optimizer", "critic", "actor", "normalizer"]
    state, fresh, said = begin(path, parts)
    assert said == f"From '{source.run_directory}' iteration 2: optimizer, critic, actor, normalizer."
    saved = Checkpoints(source.run_directory).state(2, jax.eval_shape(lambda: source.state)).shared.algorithm
    for name in ("parameters", "normalizers", "optimizer"):
        assert_bit_equal(getattr(state.algorithm, name), getattr(saved, name))
    assert_bit_equal(state.algorithm.rejected_updates, fresh.algorithm.rejected_updates)


REFUSED = {
    "an unknown part": (
        {"load": ["actor", "normaliser"]},
        r"runner.load\[1\]: got 'normaliser'; allowed are actor, critic, normalizer, optimizer; the nearest is 'normalizer'",
    ),
    "another width": (
        {"load": ["actor"], "runner__actor__hidden_dims": [16, 8]},
        r"runner.init_from: actor: parameters.actor.network.params.Dense_1.bias is float32\[16\] in '.*' and float32\[8\] here",
    ),
    "other observations": (
        {"load": ["critic"], "environment": WideObservations()},
        r"critic: parameters.critic.network.params.Dense_0.kernel is float32\[2, 16\] in '.*' and float32\[64, 16\] here",
    ),
    "no normaliser here": (
        {"load": ["normalizer"], "runner__critic__obs_normalization": False},
        r"normalizer: normalizers.critic.mean is float32\[2\] in '.*' and missing here",
    ),
    "no such run": (
        {"load": ["actor"], "init_from": "nowhere"},
        "runner.init_from: 'nowhere' names no run with a checkpoint",
    ),
    "no such checkpoint": ({"load": ["actor"], "step": 9}, "runner.init_from: '.*' has no checkpoint 9, only 2, 3"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_with_both_values(name, source):
    arguments, sentence = REFUSED[name]
    arguments = {"init_from": source.run_directory, **arguments}
    if step := arguments.pop("step", None):
        arguments["init_from"] = source.run_directory / "checkpoints" / str(step)
    with pytest.raises(ConfigError, match=sentence):
        begin(**arguments)


def test_an_algorithm_without_parts_has_the_fields_of_its_state(tmp_path):
    overrides = {
        "runner__algorithm": {"class_name": "reinforce:Reinforce"},
        "runner__actor__obs_normalization": False,
    }
    logger = {"log_dir": str(tmp_path)}
    run = train(small_config(runner__logger=logger, **overrides), ActionReward()).run_directory
    _, _, said = begin(run, ["parameters"], **overrides)
    assert said == f"From '{run}' iteration 3: parameters. Not loaded: optimizer, hyperparameters."
    with pytest.raises(ConfigError, match=r"runner.load\[0\]: got 'actor'; allowed are parameters, optimizer, hyperp"):
        begin(run, ["actor"], **overrides)


def test_training_from_it_learns_at_once_and_its_config_repeats_it(source, tmp_path, capsys):
    """The statistics are filled, so that the first rollout teaches already."""
    config = small_config(
        runner__init_from=str(source.run_directory),
        runner__logger={"log_dir": str(tmp_path)},
    )
    result = train(config, DelayedReward())
    assert result.history["Diagnostics/applied_updates"].tolist() == [4.0, 4.0, 4.0]
    assert "actor, normalizer. Not loaded: critic, optimizer." in capsys.readouterr().out
    again = load_config(result.run_directory / "config.json")
    assert again.runner.init_from == str(source.run_directory / "checkpoints" / "3")
    assert_bit_equal(train(again, DelayedReward()).state, result.state)
    plain = train(small_config(), DelayedReward())
    assert plain.history["Diagnostics/applied_updates"].tolist() == [0.0, 4.0, 4.0]


def test_a_relative_path_is_recorded_so_that_it_holds_anywhere(source, tmp_path, monkeypatch):
    checkpoint = source.run_directory / "checkpoints" / "2"
    monkeypatch.chdir(source.run_directory.parent)
    config = small_config(runner__init_from=str(checkpoint.relative_to(source.run_directory.parent)))
    config, environment = build_environment(config, DelayedReward())
    algorithm, _ = build_algorithm(config, environment)
    program = make_program(algorithm, environment, config.runner.num_steps_per_env)
    transfer = find_transfer(config, algorithm, state_like(config, program))
    monkeypatch.chdir(tmp_path)
    assert transfer.record(config).runner.init_from == str(checkpoint)
    assert_bit_equal(
        transfer.apply(initial_state(config, program)[0]).shared.algorithm.parameters["actor"],
        Checkpoints(source.run_directory).state(2, state_like(config, program)).shared.algorithm.parameters["actor"],
    )


def test_a_refused_transfer_writes_nothing(source, tmp_path):
    config = small_config(
        runner__init_from=str(source.run_directory),
        runner__actor__hidden_dims=[8],
        runner__logger={"log_dir": str(tmp_path / "new")},
    )
    with pytest.raises(ConfigError, match="runner.init_from: actor"):
        train(config, DelayedReward())
    assert not (tmp_path / "new").exists()
