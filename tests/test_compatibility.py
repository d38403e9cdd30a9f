"""A config that no longer fits the checkpoint is refused with both values, before anything is written."""

from __future__ import annotations

import contextlib
import dataclasses
import re

import jax.numpy as jnp
import pytest
from helpers import small_config
from toys import ActionReward, PrivilegedReward, WideObservations

from rlbotics_jax import train
from rlbotics_jax.build import build_algorithm, build_environment, state_like
from rlbotics_jax.compatibility import check_fits
from rlbotics_jax.config import ConfigError
from rlbotics_jax.program import make_program
from rlbotics_jax.resume import Resume

NETWORKS = (
    "; a resumed run keeps its networks and its optimizer; to start a new one from parts of it use runner.init_from"
)


@dataclasses.dataclass(frozen=True)
class Resized(ActionReward):
    """A task whose sizes are arguments, as those in a file that was edited."""

    width: int = 2

    def observe(self, time, goal):
        return {"observation": jnp.resize(super().observe(time, goal)["observation"], (self.width,))}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = small_config(runner__logger={"log_dir": str(tmp_path_factory.mktemp("logs"))})
    return train(config, Resized()).run_directory


def check(run, environment=None, **overrides):
    config, environment = build_environment(small_config(**overrides), environment or Resized())
    algorithm, spec = build_algorithm(config, environment)
    like = state_like(config, make_program(algorithm, environment, config.runner.num_steps_per_env))
    check_fits(Resume(run, 3, 6), config, spec, like)


CASES = {
    "width": (
        {"runner__actor__hidden_dims": [32, 32]},
        "runner.actor.hidden_dims: this config has [32, 32], the checkpoint 'RUN/checkpoints/3' [16, 16]" + NETWORKS,
    ),
    "depth of the critic": (
        {"runner__critic__hidden_dims": [16]},
        "runner.critic.hidden_dims: this config has [16], the checkpoint 'RUN/checkpoints/3' [16, 16]" + NETWORKS,
    ),
    "normaliser": (
        {"runner__critic__obs_normalization": False},
        "runner.critic.obs_normalization: this config has false, the checkpoint 'RUN/checkpoints/3' true" + NETWORKS,
    ),
    "standard deviation": (
        {"runner__actor__distribution_cfg__std_type": "log"},
        "runner.actor.distribution_cfg.std_type: this config has 'log', the checkpoint 'RUN/checkpoints/3' 'scalar'"
        + NETWORKS,
    ),
    "distribution": (
        {"runner__actor__distribution_cfg__class_name": "SquashedGaussianDistribution"},
        "runner.actor.distribution_cfg.class_name: this config has 'SquashedGaussianDistribution', the checkpoint "
        "'RUN/checkpoints/3' 'GaussianDistribution'" + NETWORKS,
    ),
    "optimizer": (
        {"runner__algorithm__optimizer": "sgd"},
        "runner.algorithm.optimizer: this config has 'sgd', the checkpoint 'RUN/checkpoints/3' 'adam'" + NETWORKS,
    ),
    "activation": (
        {"runner__critic__activation": "tanh"},
        "runner.critic.activation: this config has 'tanh', the checkpoint 'RUN/checkpoints/3' 'elu'" + NETWORKS,
    ),
    "algorithm": (
        {"runner__algorithm": {"class_name": "reinforce:Reinforce"}},
        "runner.algorithm.class_name: this config has 'reinforce:Reinforce', the checkpoint 'RUN/checkpoints/3' 'PPO'"
        + NETWORKS,
    ),
    "environments": (
        {"env__num_envs": 32},
        "env.num_envs: this config has 32, the checkpoint 'RUN/checkpoints/3' 16; a resumed run keeps its environments' "
        "states; to start a new one from parts of it use runner.init_from",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_differs_is_named_with_both_values(name, run):
    overrides, sentence = CASES[name]
    with pytest.raises(ConfigError) as error:
        check(run, **overrides)
    assert str(error.value).replace(str(run), "RUN") == sentence


SIZES = {
    "observations": (
        Resized(width=3),
        "the shape of observation group 'observation' is (2,) in the checkpoint 'RUN/checkpoints/3' and (3,) in this config's environment",
    ),
    "actions": (
        Resized(num_actions=2),
        "the number of actions is 1 in the checkpoint 'RUN/checkpoints/3' and 2 in this config's environment",
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_other_sizes_of_the_environment_are_named(name, run):
    environment, sentence = SIZES[name]
    with pytest.raises(ConfigError) as error:
        check(run, environment)
    assert str(error.value).replace(str(run), "RUN") == f"runner.logger.resume: {sentence}"


def test_observation_sets_are_compared_by_name(tmp_path):
    sets = {"actor": ["observation"], "critic": ["observation", "privileged"]}
    config = small_config(runner__obs_groups=sets, runner__logger={"log_dir": str(tmp_path)})
    run = train(config, PrivilegedReward()).run_directory
    check(run, PrivilegedReward(), runner__obs_groups=sets)
    with pytest.raises(
        ConfigError, match=r"^runner.obs_groups.critic: this config has \['privileged', 'observation'\]"
    ):
        check(run, PrivilegedReward(), runner__obs_groups={**sets, "critic": ["privileged", "observation"]})


@contextlib.contextmanager
def config_json(run, text):
    """Puts another text in the place of a run's config.json, or none, for a while."""
    file, recorded = run / "config.json", (run / "config.json").read_text()
    try:
        file.unlink() if text is None else file.write_text(text)
        yield
    finally:
        file.write_text(recorded)


def test_what_no_key_explains_is_named_by_the_state(run):
    """Without config.json, the checkpoint's own layout decides."""
    sentence = (
        "runner.logger.resume: the checkpoint .* does not fit this config: "
        "shared.algorithm.parameters.actor.network.params.Dense_0.bias is float32[16], needed is float32[32] "
    )
    with config_json(run, None):
        check(run)
        with pytest.raises(ConfigError, match=re.escape(sentence).replace(re.escape(".*"), ".*")):
            check(run, runner__actor__hidden_dims=[32, 16])


def test_a_config_json_that_cannot_be_read_is_said_once_and_the_state_decides(run):
    with config_json(run, "{"):
        with pytest.warns(UserWarning) as caught:
            check(run, runner__actor__activation="tanh")
        (warning,) = caught
        assert str(warning.message).startswith(f"'{run}/config.json' cannot be read (")
        with pytest.warns(UserWarning), pytest.raises(ConfigError, match="does not fit this config"):
            check(run, runner__actor__hidden_dims=[32, 16])


def test_two_names_of_one_activation_are_the_same(run):
    recorded = (run / "config.json").read_text()
    with config_json(run, recorded.replace('"activation": "elu"', '"activation": "lrelu"')):
        check(run, runner__actor__activation="leaky_relu", runner__critic__activation="lrelu")
        with pytest.raises(ConfigError, match="runner.actor.activation: this config has 'elu', the .* 'lrelu'"):
            check(run)


def test_what_keeps_the_state_as_it_is_may_change(run):
    check(
        run,
        runner__algorithm__learning_rate=1e-4,
        runner__algorithm__num_mini_batches=4,
        runner__algorithm__class_name="rlbotics_jax.algorithms.ppo:PPO",
        runner__num_steps_per_env=4,
        runner__seed=5,
        env__clip_actions=1.0,
    )


def test_other_arguments_of_the_environment_are_warned_of(run):
    with pytest.warns(
        UserWarning, match=r"env.kwargs: this config has \{'friction': 2\}, the checkpoint .* \{\}; the run"
    ):
        check(run, env__kwargs={"friction": 2})


def test_a_refused_run_writes_nothing(run, tmp_path):
    config = small_config(
        runner__actor__hidden_dims=[32, 32],
        runner__logger={"log_dir": str(tmp_path / "new"), "resume": str(run)},
    )
    with pytest.raises(ConfigError, match="runner.actor.hidden_dims"):
        train(config, Resized())
    with pytest.raises(ConfigError, match=r"trained test_compatibility:Resized, this config trains toys:Wide"):
        train(config, WideObservations())
    assert not (tmp_path / "new").exists()
