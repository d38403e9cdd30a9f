"""Runs on images: what ends one before it begins, bytes from the environment to the update, and learning."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from image_cases import CNN, ENCODER, group_model, image_config, make_ppo
from image_task import BLIND_RETURN, PLACES, PointAtSquare, image, position

from rlbotics_jax import train
from rlbotics_jax.algorithms import hyperparameters_of
from rlbotics_jax.build import build_algorithm
from rlbotics_jax.cnn import CNNModel
from rlbotics_jax.config import (
    ConfigError,
)
from rlbotics_jax.envs import vectorize
from rlbotics_jax.rollout import collect
from rlbotics_jax.step import make_train_step

SHARED = {"runner__algorithm": {"share_cnn_encoders": True}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"critic": {}},
            r"runner.critic.class_name: MLPModel reads vectors, but the group 'camera' has the shape \(1, 12, 12\); use "
            "CNNModel with a cnn_cfg, or leave the group out of runner.obs_groups",
        ),
        (
            {"groups": {"actor": ["mirror"], "critic": ["camera"]}},
            r"runner.actor.class_name: a CNNModel needs an image group \(C, H, W\), it reads 'mirror' \(1,\); use MLPModel",
        ),
        (
            {"critic": {"cnn_cfg": {"camra": {"stride": 2}}}},
            r"runner.critic.cnn_cfg.camra: it reads no such image group; allowed are camera; the nearest is 'camera'",
        ),
        (
            {"actor": {"cnn_cfg": {"camera": {"stride": 2}, "mirror": {"stride": 2}}}},
            r"runner.actor.cnn_cfg.mirror: it reads no such image group",
        ),
        (
            {"actor": {"cnn_cfg": {"stride": 3}}},
            r"runner.actor.cnn_cfg.kernel_size: layer 2 reads 1x1 values .*, 1x1 with padding, but its kernel spans 3x3",
        ),
        (
            {"actor": {"cnn_cfg": {"camera": {"kernel_size": 1, "stride": 4, "padding": "zeros"}}}},
            r"runner.actor.cnn_cfg.camera.padding: layer 0 reads 12x12 values",
        ),
        (
            {"critic": {}, "groups": {"actor": ["camera"], "critic": ["mirror"]}, **SHARED},
            r"runner.algorithm.share_cnn_encoders: runner.critic is no CNNModel but MLPModel; set it to false",
        ),
        (
            {"critic": {"cnn_cfg": {"output_channels": [5], "stride": 2}}, **SHARED},
            r"share_cnn_encoders: actor and critic have different encoders of 'camera'; give both the same cnn_cfg",
        ),
        (
            {"critic": {**CNN, "obs_normalization": True}, **SHARED},
            r"share_cnn_encoders: obs_normalization is False for the actor and True for the critic; give both the same",
        ),
    ],
)
def test_what_a_model_cannot_read_is_named(settings, message):
    config = image_config(**settings)
    with pytest.raises(ConfigError, match=message):
        build_algorithm(config, vectorize(PointAtSquare(mirrored=True), 2))


def test_an_image_that_a_mapping_forgets_is_named():
    model = CNNModel({"front": ENCODER}, (4,), "elu", 1)
    with pytest.raises(ConfigError, match=r"cnn_cfg: has no encoder for the image group 'wrist'; add wrist: \{...\}"):
        model.check_groups({"front": (1, 9, 9), "wrist": (1, 9, 9)})


def test_a_group_that_is_neither_vector_nor_image_is_refused():
    with pytest.raises(
        ConfigError, match=r"class_name: CNNModel reads vectors \(n,\) and images .* 'camera' has the sha"
    ):
        group_model("camera").check({"camera": (9, 8)})


def test_different_images_cannot_share_encoders():
    ppo, _ = make_ppo(groups=("camera", "wrist"), critic_groups=("camera",), share_cnn_encoders=True)
    with pytest.raises(ConfigError, match=r"the actor reads the images \['camera', 'wrist'\], the critic \['camera'\]"):
        ppo.check_observations({"camera": (1, 9, 8), "wrist": (1, 9, 8)})


def test_nothing_is_compiled_or_written_for_a_model_that_cannot_read(tmp_path, monkeypatch):
    monkeypatch.setattr("rlbotics_jax.program.jit", lambda *_, **__: pytest.fail("something was compiled"))
    config = image_config(critic={}, runner__logger={"log_dir": str(tmp_path / "logs")})
    with pytest.raises(ConfigError, match=r"runner\.critic\.class_name"):
        train(config, PointAtSquare(mirrored=True))
    assert not (tmp_path / "logs").exists()


def test_bytes_stay_bytes_in_environments_and_rollouts():
    environment = vectorize(PointAtSquare(mirrored=True), 4, full_reset=True)
    algorithm, _ = build_algorithm(image_config(), environment)
    hyperparameters = hyperparameters_of(image_config().runner.algorithm)
    init, _ = make_train_step(algorithm, environment, 3)
    state = jax.eval_shape(lambda: init(jax.random.key(0), hyperparameters))
    _, rollout = jax.eval_shape(
        lambda s: collect(algorithm, s.shared.algorithm, environment, s.per_environment, 3, jax.random.key(0)), state
    )
    assert rollout.transitions.act.observations["camera"].dtype == jnp.uint8
    assert rollout.transitions.act.observations["camera"].shape == (3, 4, 1, 12, 12)
    assert rollout.last_observations["camera"].dtype == jnp.uint8


def test_final_images_are_those_before_the_restart():
    environment = vectorize(PointAtSquare(), 5, full_reset=True)
    before = environment.reset(jax.random.key(0))
    after, timestep = jax.jit(environment.step)(before, jnp.zeros((5, 2)))
    assert bool(timestep.terminated.all())
    for images in (timestep.observations["camera"], timestep.final_observations["camera"]):
        assert images.dtype == jnp.uint8
    np.testing.assert_array_equal(timestep.final_observations["camera"], before.observations["camera"])
    np.testing.assert_array_equal(timestep.observations["camera"], after.observations["camera"])
    assert not np.array_equal(timestep.observations["camera"], before.observations["camera"])


ENCODED = {"output_channels": [8, 16], "stride": 2, "padding": "zeros"}
PLACED = jnp.stack(jnp.meshgrid(jnp.arange(PLACES), jnp.arange(PLACES)), axis=-1).reshape(-1, 2)


def learned_return(mirrored, groups, algorithm, **model):
    """The exact mean return, over all places and signs, of the policy that 40 iterations of 1024 steps have taught."""
    settings = {"learning_rate": 3e-3, "num_learning_epochs": 4, "num_mini_batches": 4, "entropy_coef": 0.0}
    model = {"cnn_cfg": ENCODED, **model}
    config = image_config(
        actor=model,
        critic=model,
        groups={"actor": groups, "critic": groups},
        runner__num_learning_iterations=40,
        runner__algorithm={**settings, **algorithm},
    )
    policy = train(config, PointAtSquare(mirrored)).policy
    returns = []
    for sign in (1.0, -1.0) if mirrored else (1.0,):
        observations = {"camera": jax.vmap(image)(PLACED), "mirror": jnp.full((len(PLACED), 1), sign)}
        actions = policy.algorithm.policy(policy.parameters)({group: observations[group] for group in groups})
        returns.append(-jnp.sum(jnp.square(actions - sign * jax.vmap(position)(PLACED)), axis=-1))
    return float(jnp.mean(jnp.stack(returns)))


def test_ppo_learns_from_images():
    assert abs(BLIND_RETURN + 0.8148) < 1e-4
    assert learned_return(False, ["camera"], {}) > -0.02


def test_ppo_learns_from_an_image_beside_a_vector_with_shared_encoders():
    assert learned_return(True, ["camera", "mirror"], {"share_cnn_encoders": True}, obs_normalization=True) > -0.15
