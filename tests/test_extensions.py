"""The seams at which users replace parts: algorithm, model and distribution, each named in three ways; and an algorithm
that is not PPO."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from config_cases import refused, whole
from helpers import small_config
from reinforce import Reinforce, ReinforceConfig
from toys import ActionReward

from bridges.policy import Policy
from rlbotics_jax import evaluate, train
from rlbotics_jax.config import GaussianDistributionConfig, MLPConfig, from_dict, load_config
from rlbotics_jax.distributions import GaussianDistribution
from rlbotics_jax.evaluation import evaluate_run
from rlbotics_jax.registry import ALGORITHMS, DISTRIBUTIONS, MODELS, import_path
from rlbotics_jax.runs import CONFIG_FILE, load_policy

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from custom_algorithm import EntropyDecayConfig, EntropyDecayPPO
from custom_model import ResidualModel


@dataclasses.dataclass(frozen=True)
class CautiousConfig(GaussianDistributionConfig):
    """The keys of a Gaussian, and how much of the mean the deterministic policy uses."""

    caution: float = 0.5

    def validate(self):
        super().validate()
        self.check_range("caution", 0.0, 1.0)


@dataclasses.dataclass(frozen=True)
class CautiousDistribution(GaussianDistribution):
    """A Gaussian whose deterministic action is a part of its mean."""

    config_class = CautiousConfig
    caution: float = 0.5

    @classmethod
    def from_config(cls, config):
        return dataclasses.replace(super().from_config(config), caution=config.caution)

    def mode(self, outputs):
        return self.caution * outputs


CLASSES = {ALGORITHMS: EntropyDecayPPO, MODELS: ResidualModel, DISTRIBUTIONS: CautiousDistribution}


@pytest.fixture
def registered():
    """The three classes under names of their own, for one test."""
    for registry, target in CLASSES.items():
        registry.register(f"My{target.__name__}", target)
    yield
    for registry, target in CLASSES.items():
        del registry._entries[f"My{target.__name__}"]


NAMINGS = {
    "name": lambda target: f"My{target.__name__}",
    "path": import_path,
    "class": lambda target: target,
}


@pytest.mark.parametrize("naming", NAMINGS)
def test_each_part_is_found_by_name_path_and_class_and_survives_config_json(registered, tmp_path, naming):
    named = NAMINGS[naming]
    config = small_config(
        runner__logger__log_dir=str(tmp_path),
        runner__num_learning_iterations=2,
        runner__algorithm={
            "class_name": named(EntropyDecayPPO),
            "num_learning_epochs": 1,
            "num_mini_batches": 2,
            "entropy_decay": 0.5,
            "min_entropy_coef": 0.003,
        },
        runner__actor={
            "class_name": named(ResidualModel),
            "hidden_dims": [8],
            "distribution_cfg": {"class_name": named(CautiousDistribution), "caution": 0.25},
        },
        runner__critic={"class_name": named(ResidualModel), "hidden_dims": [8, 8]},
    )
    result = train(config, ActionReward())

    algorithm = result.policy.algorithm
    assert type(algorithm) is EntropyDecayPPO
    assert (type(algorithm.actor.module), type(algorithm.critic.module)) == (ResidualModel, ResidualModel)
    assert (algorithm.actor.module.output_gain, algorithm.critic.module.num_outputs) == (0.01, 1)
    assert algorithm.distribution == CautiousDistribution(caution=0.25)
    np.testing.assert_allclose(result.history["Loss/entropy_coef"], [0.005, 0.003], rtol=1e-6)
    assert np.isfinite(result.history["Loss/value"]).all()

    read = load_config(result.run_directory / CONFIG_FILE)
    assert read.to_dict() == config.to_dict()
    assert read == (config if naming != "class" else from_dict(config.to_dict()))
    assert (type(read.runner.algorithm), type(read.runner.actor)) == (EntropyDecayConfig, MLPConfig)
    assert type(read.runner.actor.distribution_cfg) is CautiousConfig

    observations = np.float32([[1.0, 1.0], [-1.0, 1.0]])
    np.testing.assert_array_equal(
        load_policy(result.run_directory)(observations), result.policy(jnp.asarray(observations))
    )


def test_a_hyperparameter_that_training_changed_stays_changed_when_training_goes_on():
    config = small_config(
        runner__num_learning_iterations=2,
        runner__algorithm={"class_name": EntropyDecayPPO, "num_learning_epochs": 1, "entropy_decay": 0.5},
    )
    first = train(config, ActionReward())
    second = train(config, ActionReward(), state=first.state)
    decayed = [*first.history["Loss/entropy_coef"], *second.history["Loss/entropy_coef"]]
    np.testing.assert_allclose(decayed, [0.005, 0.0025, 0.00125, 0.000625], rtol=1e-6)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("entropy_decay", 1.5, "runner.algorithm.entropy_decay: must be in [0.0, 1.0], got 1.5"),
        ("entropy_decay", "fast", "runner.algorithm.entropy_decay: must be a finite number, got 'fast'"),
        (
            "min_entropy_coef",
            0.5,
            "runner.algorithm.min_entropy_coef: must be in [0, entropy_coef = 0.01], got 0.5",
        ),
        ("gamma", 2, "runner.algorithm.gamma: must be in [0.0, 1.0], got 2.0"),
    ],
)
def test_a_config_of_one_s_own_names_the_full_path(key, value, sentence):
    for named in (EntropyDecayPPO, "custom_algorithm:EntropyDecayPPO"):
        assert refused(whole(runner__algorithm={"class_name": named, key: value})) == sentence


def test_a_key_of_an_extension_is_unknown_without_it():
    text = refused(whole(runner__algorithm={"entropy_decay": 0.5}))
    assert text.startswith("runner.algorithm.entropy_decay: is no key of PPOConfig")
    text = refused(whole(runner__actor={"distribution_cfg": {"class_name": "GaussianDistribution", "caution": 0.5}}))
    assert text.startswith("runner.actor.distribution_cfg.caution: is no key of GaussianDistributionConfig")


@pytest.fixture(scope="module")
def reinforce_run(tmp_path_factory):
    """REINFORCE trained on the task of hitting a goal, by a config as a file would have it."""
    config = small_config(
        env__id="toys:ActionReward",
        env__num_envs=64,
        runner__obs_groups={"actor": ["observation"]},
        runner__logger={"log_dir": str(tmp_path_factory.mktemp("logs")), "save_interval": 40},
        runner__num_learning_iterations=120,
        runner__num_steps_per_env=4,
        runner__algorithm={"class_name": "reinforce:Reinforce", "learning_rate": "2e-2"},
        runner__actor={"hidden_dims": [16], "distribution_cfg": {"std_range": [0.05, 1.0]}},
    )
    return config, train(config)


def test_reinforce_learns_through_the_same_train_step(reinforce_run):
    _, result = reinforce_run
    returns = result.history["Episodes/mean_reward"]
    # Before learning: the mean action 0 misses the goal by 1, and the noise has variance 1.
    assert returns[0] == pytest.approx(-2.0, abs=0.4)
    assert returns[-1] > -0.2
    assert evaluate(result.policy, ActionReward(), num_episodes=20)["returns"].mean() > -0.05


def test_what_update_returns_is_logged_under_its_name(reinforce_run):
    _, result = reinforce_run
    for name in ("Loss/policy_gradient", "Diagnostics/return_to_go"):
        assert result.history[name].shape == (120,) and np.isfinite(result.history[name]).all()
    assert "Loss/value" not in result.history


def test_reinforce_survives_config_json_and_checkpoint(reinforce_run):
    config, result = reinforce_run
    read = load_config(result.run_directory / CONFIG_FILE)
    assert read == config and type(read.runner.algorithm) is ReinforceConfig
    assert read.runner.algorithm.learning_rate == 0.02

    loaded = load_policy(result.run_directory)
    assert type(loaded.algorithm) is Reinforce
    observations = jnp.float32([[1.0, 1.0], [-1.0, 1.0]])
    np.testing.assert_array_equal(loaded(observations), result.policy(observations))
    assert evaluate_run(result.run_directory, num_episodes=4)["mean_reward"] > -0.1


def test_reinforce_goes_on_from_its_checkpoint(reinforce_run):
    config, result = reinforce_run
    logger = config.runner.logger.replace(resume=str(result.run_directory), log_dir=None)
    runner = config.runner.replace(logger=logger, num_learning_iterations=2)
    resumed = train(config.replace(runner=runner))
    np.testing.assert_array_equal(resumed.history["iteration"], np.arange(1, 123))
    assert resumed.history["Episodes/mean_reward"][-1] > -0.2


def test_reinforce_is_exported(reinforce_run, tmp_path):
    _, result = reinforce_run
    policy = Policy(result.policy.export(tmp_path / "policy.onnx"))
    observations = np.float32([[1.0, 1.0], [-1.0, 1.0]])
    actions = policy.get_action(observations)
    np.testing.assert_allclose(actions, result.policy(observations), atol=1e-5)
    np.testing.assert_allclose(actions[:, 0], [1.0, -1.0], atol=0.3)
