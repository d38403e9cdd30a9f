"""Checkpoints between RLBotics' runner and this library, both ways: the same outputs, and training goes on."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import optax
import pytest
import torch
from cases import CASES, NORMALIZED, groups_of, shapes_of
from jax_task import JaxTask, assert_close, compute, runner_section, with_env
from rlbotics_runner import make_runner, outputs_of
from telekinesis.rlbotics.config import OnPolicyRunnerConfig
from torch_task import NUM_ENVS, observations

from bridges.torch import (
    config_beside,
    export_torch_checkpoint,
    load_torch_checkpoint,
    rlbotics_runner_section,
    save_torch_checkpoint,
)
from rlbotics_jax.config import ConfigError
from rlbotics_jax.envs import vectorize
from rlbotics_jax.importing import import_checkpoint
from rlbotics_jax.runs import load_run
from rlbotics_jax.training import train


def task_of(case: str) -> JaxTask:
    return JaxTask(tuple(shapes_of(case).items()))


def section_of(case: str, **sections):
    return runner_section(groups_of(case), **{**CASES[case], **sections})


def trained_runner(case: str, folder: Path):
    """RLBotics' runner after three iterations, and its run directory."""
    logger = {"log_dir": str(folder), "save_interval": 1, "keep_last_n": 0}
    runner = make_runner(section_of(case, logger=logger), shapes_of(case))
    runner.learn(3)
    return runner, Path(runner.log_dir)


def assert_same_outputs(runner, config, algorithm_state, case: str) -> None:
    inputs = observations(shapes_of(case), 32)
    theirs = outputs_of(runner, inputs)
    groups = {group: inputs[group].numpy() for group in shapes_of(case)}
    ours = compute(config, algorithm_state, groups, theirs.pop("latent"))
    for name, array in theirs.items():
        assert_close(ours[name], array, name)


@pytest.mark.parametrize("case", CASES)
def test_their_checkpoint_here(case, tmp_path):
    runner, run = trained_runner(case, tmp_path)
    config, task = with_env(section_of(case)), task_of(case)
    state = load_torch_checkpoint(run / "model_2.pt", config, task)
    assert_same_outputs(runner, config, state.shared.algorithm, case)
    assert int(state.shared.iteration) == 3
    rate = runner.alg.optimizer.param_groups[0]["lr"]
    assert float(state.shared.algorithm.hyperparameters["learning_rate"]) == np.float32(rate)
    assert_same_moments(runner, state.shared.algorithm, case)

    result = train(config, task, state=state)
    assert int(result.state.shared.iteration) == 5
    assert np.isfinite(result.history["Loss/value"]).all()


def assert_same_moments(runner, state, case: str) -> None:
    """Of the critic's last layer, which no conversion but the transpose touches, and the number of steps."""
    tree = state.optimizer
    parameter = runner.alg.critic.mlp[-1].weight
    theirs = runner.alg.optimizer.state[parameter]
    mine = {"exp_avg": "mu", "exp_avg_sq": "nu", "square_avg": "nu"}
    checked = 0
    for name, array in theirs.items():
        if name in mine:
            critic = optax.tree_utils.tree_get(tree, mine[name])["critic"]["network"]["params"]
            layers = critic.get("head", critic)
            np.testing.assert_array_equal(layers[f"Dense_{len(layers) - 1}"]["kernel"], array.numpy().T)
            checked += 1
    assert checked == {"sgd": 0, "rmsprop": 1}.get(case, 2)
    if checked == 2:
        assert int(optax.tree_utils.tree_get(tree, "count")) == int(theirs["step"]) > 0


@pytest.mark.parametrize("case", CASES)
def test_our_checkpoint_there(case, tmp_path):
    config, task = with_env(section_of(case)), task_of(case)
    result = train(config, task)
    path = save_torch_checkpoint(result, tmp_path / "folder" / "model.pt")
    runner = make_runner(rlbotics_runner_section(config), shapes_of(case))
    runner.load(str(path), strict=True)
    assert_same_outputs(runner, config, result.state.shared.algorithm, case)
    assert_same_moments(runner, result.state.shared.algorithm, case)
    assert runner.current_learning_iteration == 1
    assert runner.checkpoints.best_metric == result.best_score
    rate = result.state.shared.algorithm.hyperparameters["learning_rate"]
    assert runner.alg.optimizer.param_groups[0]["lr"] == float(rate)
    runner.learn(2)
    assert all(bool(torch.isfinite(array).all()) for array in runner.alg.actor.state_dict().values())

    back = load_torch_checkpoint(path, config, task)
    for mine, theirs in zip(
        jax.tree.leaves((back.shared.algorithm, back.shared.iteration)),
        jax.tree.leaves((result.state.shared.algorithm, result.state.shared.iteration)),
        strict=True,
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-30)


def test_best_file_has_its_score_and_the_config_lies_beside_it(tmp_path):
    _, run = trained_runner("adam", tmp_path)
    saved = torch.load(run / "model_best.pt", weights_only=True)
    environment = vectorize(JaxTask(), NUM_ENVS)
    state = load_torch_checkpoint(run / "model_best.pt", env=environment)
    assert float(state.shared.best.score) == np.float32(saved["best_metric"])
    assert int(state.shared.best.iteration) == saved["best_iteration"] + 1
    config = config_beside(run / "model_best.pt", environment)
    assert config.env.num_envs == NUM_ENVS and config.runner.actor.obs_normalization
    assert config.runner.actor.distribution_cfg.std_type == "log"
    with pytest.raises(ConfigError, match="RLBotics writes no such section"):
        load_torch_checkpoint(run / "model_best.pt", env=JaxTask())
    last = load_torch_checkpoint(run / "model_2.pt", env=environment)
    assert np.isneginf(float(last.shared.best.score))
    (run / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match="beside"):
        load_torch_checkpoint(run / "model_2.pt", env=environment)


def test_warnings_point_to_the_caller(tmp_path):
    _, run = trained_runner("adam", tmp_path / "theirs")
    section = section_of("adam", logger={"log_dir": str(tmp_path / "ours")}, algorithm={"optimizer": "sgd"})
    for call in (
        lambda: load_torch_checkpoint(run / "model_2.pt", with_env(section), JaxTask()),
        lambda: import_checkpoint(run / "model_2.pt", with_env(section)),
    ):
        with pytest.warns(UserWarning, match="which the optimizer sgd drops") as caught:
            call()
        assert [warning.filename for warning in caught] == [__file__]


def test_rlbotics_reads_the_section_whatever_is_in_it():
    """Every key that it does not know, and an activation that it knows by another name."""
    ours = {
        "eval_interval": 5,
        "early_stopping_threshold": 1.0,
        "logger": {"resume": "last", "wandb_project": "project"},
        "actor": {**CASES["cnn"]["actor"], "activation": "lrelu", "obs_clip": 5.0},
    }
    config = with_env(section_of("cnn", **ours))
    read = OnPolicyRunnerConfig.from_dict(rlbotics_runner_section(config))
    assert (read.actor.activation, read.actor.cnn_cfg.output_channels) == ("leaky_relu", [4, 6])
    assert (read.logger.resume, read.algorithm.use_clipped_value_loss) == (None, False)
    make_runner(rlbotics_runner_section(config), shapes_of("cnn")).learn(1)


def test_imported_run_resumes_and_exports(tmp_path):
    """`import`, then what a user does with a run: resume it, load its policy, give it back to RLBotics."""
    _, run = trained_runner("adam", tmp_path / "theirs")
    config = with_env(section_of("adam", logger={"log_dir": str(tmp_path / "ours"), "save_interval": 1}))
    imported = import_checkpoint(run / "model_best.pt", config)
    assert sorted(path.name for path in imported.iterdir()) == ["checkpoints", "config.json"]
    best = torch.load(run / "model_best.pt", weights_only=True)
    loaded = load_run(imported)
    assert loaded.summary["iteration"] == best["iteration"] + 1
    assert loaded.policy.metadata["which"] == "best" and loaded.policy.metadata["score"] == pytest.approx(
        best["best_metric"]
    )

    inputs, runner = observations(shapes_of("adam"), 16), make_runner(section_of("adam"), shapes_of("adam"))
    runner.load(str(run / "model_best.pt"))
    groups = {group: inputs[group].numpy() for group in loaded.policy.groups}
    assert_close(np.asarray(loaded.policy(groups)), outputs_of(runner, inputs)["actions"])

    back = export_torch_checkpoint(imported, tmp_path / "back.pt")
    again = torch.load(back, weights_only=True)
    for network in ("actor_state_dict", "critic_state_dict"):
        for name, array in best[network].items():
            torch.testing.assert_close(again[network][name], array, rtol=1e-6, atol=1e-7)
    assert again["iteration"] == best["iteration"]

    resumed = train(
        config.replace(runner=config.runner.replace(logger=config.runner.logger.replace(resume=str(imported))))
    )
    assert int(resumed.state.shared.iteration) == best["iteration"] + 3


def test_failed_import_leaves_nothing(tmp_path):
    _, run = trained_runner("adam", tmp_path / "theirs")
    section = section_of("adam", logger={"log_dir": str(tmp_path / "ours")}, actor={**NORMALIZED, "hidden_dims": [8]})
    with pytest.raises(ConfigError, match=r"runner.actor.hidden_dims: the file has \[16, 12\], the config \[8\]"):
        import_checkpoint(run / "model_2.pt", with_env(section))
    assert not (tmp_path / "ours").exists()
