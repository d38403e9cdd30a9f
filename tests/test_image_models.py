"""Models that read images: groups, statistics, shared encoders, what ends a run before it begins, and learning."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from helpers import assert_bit_equal, small_config
from image_task import BLIND_RETURN, PLACES, PointAtSquare, image, position
from ppo_cases import TRUE, N, T, global_norm, one_batch, random_rollout, started, step_function, updated

from rlbotics_jax import train
from rlbotics_jax.algorithms import PPO, hyperparameters_of
from rlbotics_jax.build import build_algorithm
from rlbotics_jax.cnn import CNNEncoder, CNNModel
from rlbotics_jax.config import (
    CNNConfig,
    CNNEncoderConfig,
    ConfigError,
    GaussianDistributionConfig,
    MLPConfig,
    OnPolicyRunnerConfig,
    PPOConfig,
)
from rlbotics_jax.counters import to_int
from rlbotics_jax.envs import vectorize
from rlbotics_jax.models import GroupModel, Model, make_model, scaled
from rlbotics_jax.normalization import NormalizerState, blend, init_normalizer, merge_channels, normalize
from rlbotics_jax.rollout import collect
from rlbotics_jax.step import make_train_step

ENCODER = CNNEncoderConfig((2, 3), stride=2, activation="tanh")
RANDOM = np.random.default_rng(0)
OBSERVATIONS = {
    "speed": jnp.asarray(RANDOM.normal(size=(T + 1, N, 2)), jnp.float32),
    "camera": jnp.asarray(RANDOM.integers(0, 256, (T + 1, N, 1, 9, 8)), jnp.uint8),
}
FIRST = {group: x[0] for group, x in OBSERVATIONS.items()}
VALID = jnp.asarray(RANDOM.random((T, N)) < 0.8)


def group_model(*groups, encoder=ENCODER, **settings):
    return GroupModel(CNNModel(encoder, (4,), "tanh", 2), groups, 2, **{"normalized": True, **settings})


def make_ppo(groups=("speed", "camera"), normalized=True, encoder=ENCODER, critic_groups=None, **settings):
    """PPO with CNN models and its hyperparameters; `settings` are fields of PPOConfig."""
    model = {"hidden_dims": (8,), "obs_normalization": normalized, "cnn_cfg": encoder}
    config = OnPolicyRunnerConfig(
        obs_groups={"actor": groups, "critic": critic_groups or groups},
        algorithm=PPOConfig(**settings),
        actor=CNNConfig(**model, distribution_cfg=GaussianDistributionConfig()),
        critic=CNNConfig(**model),
    )
    return PPO.from_config(config, 2), hyperparameters_of(config.algorithm)


def primed_case(**settings):
    """PPO, a state whose statistics are those of a first rollout, and a second rollout of it."""
    ppo, hyperparameters = make_ppo(**settings)
    state = started(ppo, hyperparameters, OBSERVATIONS)
    state, _ = updated(ppo, state, *random_rollout(ppo, state, 0, OBSERVATIONS))
    return ppo, state, *random_rollout(ppo, state, 1, OBSERVATIONS)


def test_bytes_are_scaled_and_floats_are_not():
    np.testing.assert_allclose(scaled(jnp.array([0, 51, 255], jnp.uint8)), [0.0, 0.2, 1.0], rtol=1e-6)
    floats = jnp.array([0.0, 51.0])
    assert scaled(floats) is floats


def test_groups_reach_the_module_in_the_order_of_the_config():
    assert list(group_model("speed", "camera").read(FIRST)) == ["speed", "camera"]
    assert list(group_model("camera", "speed").read(FIRST)) == ["camera", "speed"]
    with pytest.raises(KeyError, match=r"'lidar'; the environment gives \['camera', 'speed'\]"):
        group_model("lidar").read(FIRST)


def test_pixels_are_rows_of_channels():
    """Two images of two channels; the second image is not valid. Channel 0 holds {0, 2, 4, 6}, channel 1 is constant."""
    images = (
        jnp.array([[[[0.0, 2.0], [4.0, 6.0]], [[1.0, 1.0], [1.0, 1.0]]]] * 2) * jnp.array([1, 9])[:, None, None, None]
    )
    state, accepted = merge_channels(init_normalizer(2), images, jnp.array([True, False]), None)
    assert bool(accepted) and to_int(state.count) == 4
    np.testing.assert_allclose(state.mean, [3.0, 1.0])
    np.testing.assert_allclose(state.variance, [5.0, 0.0])
    normalized = normalize(state, images, axis=1)
    np.testing.assert_allclose(normalized[0, 0], (np.array([[0, 2], [4, 6]]) - 3) / (np.sqrt(5) + 0.01), rtol=1e-6)
    np.testing.assert_array_equal(normalized[0, 1], np.zeros((2, 2)))


def test_each_group_has_its_own_statistics_and_the_clip_is_for_all():
    model = group_model("speed", "camera", obs_clip=0.5)
    parameters, empty = model.init(jax.random.key(0), FIRST), model.init_normalizer(FIRST)
    rollout = {group: x[:-1] for group, x in OBSERVATIONS.items()}
    statistics, accepted = jax.jit(lambda n: model.merge(n, rollout, VALID, None))(empty)
    assert bool(accepted)
    inputs = {}
    for group, x in rollout.items():
        x = np.asarray(scaled(x), np.float64)
        rows = np.moveaxis(x[np.asarray(VALID)], 1, -1).reshape(-1, x.shape[2])
        state = statistics.observations[group]
        np.testing.assert_allclose(state.mean, rows.mean(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state.variance, rows.var(0), rtol=1e-5)
        assert to_int(state.count) == len(rows)
        shape = (1, -1) + (1,) * (x.ndim - 3)
        mean, std = rows.mean(0).reshape(shape), rows.std(0).reshape(shape)
        inputs[group] = jnp.asarray(np.clip((x[0] - mean) / (std + 0.01), -0.5, 0.5), jnp.float32)
    expected = model.module.apply(parameters, inputs)
    np.testing.assert_allclose(model.apply(parameters, statistics, FIRST), expected, rtol=1e-4, atol=1e-5)


def test_statistics_over_two_devices_are_those_of_one():
    model = group_model("speed", "camera", encoder=dataclasses.replace(ENCODER, norm="batch"))
    parameters, empty = model.init(jax.random.key(0), FIRST), model.init_normalizer(FIRST)
    rollout = {group: x[:-1] for group, x in OBSERVATIONS.items()}

    def merged(observations, valid, axis_name=None):
        statistics, first = model.merge(empty, observations, valid, axis_name)
        statistics, second = model.merge_batch_norm(parameters, statistics, observations, valid, axis_name)
        return statistics, first & second

    def halves(x):
        return jnp.stack([x[:, : N // 2], x[:, N // 2 :]])

    alone, _ = jax.jit(merged)(rollout, VALID)
    on_two = jax.vmap(lambda o, v: merged(o, v, "devices"), axis_name="devices")
    both, accepted = jax.jit(on_two)(jax.tree.map(halves, rollout), halves(VALID))
    assert bool(accepted.all())
    for device in (0, 1):
        jax.tree.map(
            lambda one, two, device=device: np.testing.assert_allclose(two[device], one, rtol=1e-5, atol=1e-6),
            alone,
            both,
        )


def test_without_normalisation_there_are_no_statistics():
    model = group_model("speed", "camera", normalized=False)
    empty = model.init_normalizer(FIRST)
    assert jax.tree.leaves(empty) == []
    rollout = {group: x[:-1] for group, x in OBSERVATIONS.items()}
    statistics, accepted = model.merge(empty, rollout, VALID, None)
    assert jax.tree.leaves(statistics) == [] and bool(accepted)
    parameters = model.init(jax.random.key(0), FIRST)
    expected = model.module.apply(parameters, {group: scaled(x) for group, x in FIRST.items()})
    np.testing.assert_array_equal(model.apply(parameters, empty, FIRST), expected)


def test_images_may_be_left_out_of_the_normalisation():
    config = OnPolicyRunnerConfig(
        obs_groups={"actor": ("speed", "camera"), "critic": ("speed",)},
        actor=CNNConfig(
            cnn_cfg=ENCODER,
            obs_normalization=True,
            image_normalization=False,
            distribution_cfg=GaussianDistributionConfig(),
        ),
    )
    model = make_model("actor", config, 2, 1.0)
    assert list(model.init_normalizer(FIRST).observations) == ["speed"]


def test_running_statistics_blend_literal():
    """Weights 1, 1/2, 1/3 ... and then 0.1; a batch of nothing changes nothing."""

    def batch(mean, variance):
        return NormalizerState(
            jnp.array([mean]), jnp.array([variance]), init_normalizer(1).count.replace(low=jnp.uint32(9))
        )

    state = init_normalizer(1)
    for mean, variance, expected in ((6.0, 2.0, (6.0, 2.0)), (0.0, 4.0, (3.0, 3.0)), (6.0, 0.0, (4.0, 2.0))):
        state = blend(state, batch(mean, variance))
        np.testing.assert_allclose((state.mean[0], state.variance[0]), expected, rtol=1e-6)
    assert_bit_equal(blend(state, init_normalizer(1)), state)
    for _ in range(9):
        state = blend(state, batch(4.0, 2.0))
    assert to_int(state.count) == 12
    np.testing.assert_allclose(blend(state, batch(14.0, 12.0)).mean, [5.0], rtol=1e-6)


def test_batch_statistics_are_those_of_the_valid_observations_layer_by_layer():
    """After the first rollout each layer's outputs, before scale and shift, have mean 0 and variance 1."""
    config = dataclasses.replace(ENCODER, norm="batch")
    model = group_model("camera", encoder=config)
    parameters, empty = model.init(jax.random.key(0), FIRST), model.init_normalizer(FIRST)
    rollout = {"camera": OBSERVATIONS["camera"][:-1]}
    normalized, _ = model.merge(empty, rollout, VALID, None)
    statistics, accepted = jax.jit(lambda n: model.merge_batch_norm(parameters, n, rollout, VALID, None))(normalized)
    assert bool(accepted)
    images = scaled(rollout["camera"][VALID])
    images = normalize(statistics.observations["camera"], images, axis=1)
    variables = {
        "params": parameters["params"]["encoder_camera"],
        "batch_norm": statistics.batch_norm["encoder_camera"],
    }
    _, inputs = CNNEncoder(config).apply(variables, images, mutable=["batch_norm_inputs"])
    for name, x in inputs["batch_norm_inputs"].items():
        state = statistics.batch_norm["encoder_camera"][name]
        np.testing.assert_allclose(state.mean, np.asarray(x, np.float64).mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(state.variance, np.asarray(x, np.float64).var((0, 2, 3)), rtol=1e-4)
        assert to_int(state.count) == 1


def test_batch_norm_stands_still_while_the_policy_learns():
    """Old and new policy are equal before the first gradient; the statistics move once, after the last; and they are no
    parameters, which adamw would decay."""
    ppo, state, rollout, last = primed_case(encoder=dataclasses.replace(ENCODER, norm="batch"), optimizer="adamw")
    assert bool(ppo.is_primed(state))
    assert set(state.parameters["actor"]["network"]) == {"params"}
    stepped, metrics = step_function(ppo, state)(state, one_batch(ppo, state, rollout, last), TRUE)
    assert abs(float(metrics["Diagnostics/kl"])) < 1e-6 and float(metrics["Diagnostics/clip_fraction"]) == 0.0
    assert float(metrics["applied"]) == 1.0
    assert_bit_equal(stepped.normalizers, state.normalizers)
    after, _ = updated(ppo, state, rollout, last)
    for name in ("actor", "critic"):
        before, moved = (s.normalizers[name].batch_norm["encoder_camera"]["norm_1"] for s in (state, after))
        assert to_int(before.count) == 1 and to_int(moved.count) == 2
        assert not np.allclose(before.mean, moved.mean)


def test_the_first_rollout_of_images_only_fills_the_statistics():
    ppo, hyperparameters = make_ppo()
    state = started(ppo, hyperparameters, OBSERVATIONS)
    assert not bool(ppo.is_primed(state))
    after, _ = updated(ppo, state, *random_rollout(ppo, state, 0, OBSERVATIONS))
    assert_bit_equal(after.parameters, state.parameters)
    assert bool(ppo.is_primed(after))
    ppo, hyperparameters = make_ppo(normalized=False)
    assert bool(ppo.is_primed(started(ppo, hyperparameters, OBSERVATIONS)))


class Pixels(nn.Module):
    """A user's module that takes groups: the brightness of an image beside a vector."""

    num_outputs: int

    takes_groups = True

    @nn.compact
    def __call__(self, groups):
        (speed, camera) = groups.values()
        brightness = camera.mean(axis=(1, 2, 3))[:, None]
        return nn.Dense(self.num_outputs)(jnp.concatenate([speed, brightness], axis=-1))


def test_a_users_module_may_take_groups():
    config = OnPolicyRunnerConfig(
        {"actor": ["speed", "camera"], "critic": ["speed"]},
        actor=MLPConfig(class_name=Pixels, obs_normalization=True, distribution_cfg=GaussianDistributionConfig()),
    )
    model = make_model("actor", config, 2, 0.01)
    assert isinstance(model, GroupModel) and model.module == Pixels(2)
    assert type(make_model("critic", config, 1, 1.0)) is Model
    model.check({"speed": (2,), "camera": (1, 9, 8)})
    parameters, statistics = model.init(jax.random.key(0), FIRST), model.init_normalizer(FIRST)
    assert model.apply(parameters, statistics, FIRST).shape == (N, 2)
    assert set(statistics.observations) == {"speed", "camera"} and statistics.batch_norm == {}


def test_a_mapping_gives_each_image_its_own_encoder():
    small, large = CNNEncoderConfig((2,)), CNNEncoderConfig((5,))
    config = OnPolicyRunnerConfig(
        {"actor": ["front", "wrist"], "critic": ["front", "wrist"]},
        actor=CNNConfig(cnn_cfg={"front": small, "wrist": large}, distribution_cfg=GaussianDistributionConfig()),
        critic=CNNConfig(cnn_cfg=small),
    )
    images = {"front": jnp.zeros((1, 1, 4, 4)), "wrist": jnp.zeros((1, 3, 5, 4))}
    model = make_model("actor", config, 2, 0.01)
    assert hash(model) == hash(make_model("actor", config, 2, 0.01))
    params = model.init(jax.random.key(0), images)["params"]
    assert params["encoder_front"]["kernel_0"].shape == (2, 1, 3, 3)
    assert params["encoder_wrist"]["kernel_0"].shape == (5, 3, 3, 3)
    params = make_model("critic", config, 2, 0.01).init(jax.random.key(0), images)["params"]
    assert params["encoder_wrist"]["kernel_0"].shape == (2, 3, 3, 3)


# Shared encoders


def shared_case(**settings):
    return primed_case(share_cnn_encoders=True, schedule="fixed", **settings)


def test_shared_encoders_exist_once():
    state = shared_case()[1]
    assert set(state.parameters["actor"]["network"]["params"]) == {"encoder_camera", "head"}
    assert set(state.parameters["critic"]["network"]["params"]) == {"head"}
    assert set(state.normalizers["actor"].observations) == {"speed", "camera"}
    assert set(state.normalizers["critic"].observations) == {"speed"}

    def count(**settings):
        ppo, hyperparameters = make_ppo(**settings)
        parameters = jax.eval_shape(lambda: started(ppo, hyperparameters, OBSERVATIONS).parameters)
        return sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(parameters))

    # two layers of 3x3 kernels with biases, 1 -> 2 -> 3 channels
    assert count() - count(share_cnn_encoders=True) == (2 * 9 + 2) + (3 * 2 * 9 + 3)


def test_gradient_of_a_shared_encoder_is_the_sum_of_both():
    """An unshared critic with the same encoder and statistics gives the parts."""
    ppo, state, rollout, last = shared_case()
    batch, old = one_batch(ppo, state, rollout, last), state.parameters["actor"]["distribution"]
    shared = jax.jit(jax.grad(ppo.loss, has_aux=True))(state.parameters, state, old, batch)[0]

    apart, _ = make_ppo(schedule="fixed")
    encoder = {"encoder_camera": state.parameters["actor"]["network"]["params"]["encoder_camera"]}
    critic = {"network": {"params": {**encoder, **state.parameters["critic"]["network"]["params"]}}}
    parameters = {**state.parameters, "critic": critic}
    images = {"camera": state.normalizers["actor"].observations["camera"]}
    statistics = state.normalizers["critic"]
    statistics = statistics.replace(observations={**statistics.observations, **images})
    state = state.replace(normalizers={**state.normalizers, "critic": statistics})
    parts = jax.jit(jax.grad(apart.loss, has_aux=True))(parameters, state, old, batch)[0]

    actors, critics = (parts[name]["network"]["params"] for name in ("actor", "critic"))
    assert global_norm(actors["encoder_camera"]) > 0 and global_norm(critics["encoder_camera"]) > 0
    total = jax.tree.map(jnp.add, actors["encoder_camera"], critics["encoder_camera"])
    found = shared["actor"]["network"]["params"]
    close = {"rtol": 1e-4, "atol": 1e-6}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **close), found["encoder_camera"], total)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **close), found["head"], actors["head"])
    found = shared["critic"]["network"]["params"]["head"]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **close), found, critics["head"])


def test_a_shared_encoder_is_clipped_and_stepped_once():
    """One step of SGD: parameter - 0.5 * gradient * min(1, 0.25 / |g|), |g| over the actor's own, the encoder in it."""
    ppo, state, rollout, last = shared_case(optimizer="sgd", learning_rate=0.5, max_grad_norm=0.25)
    batch = one_batch(ppo, state, rollout, last)
    old = state.parameters["actor"]["distribution"]
    gradients = jax.jit(jax.grad(ppo.loss, has_aux=True))(state.parameters, state, old, batch)[0]
    stepped, _ = step_function(ppo, state)(state, batch, TRUE)
    norm = global_norm(gradients["actor"])
    assert norm > 0.25
    kernel = ("actor", "network", "params", "encoder_camera", "kernel_0")

    def at(tree):
        for name in kernel:
            tree = tree[name]
        return np.asarray(tree)

    expected = at(state.parameters) - 0.5 * at(gradients) * 0.25 / (norm + 1e-6)
    np.testing.assert_allclose(at(stepped.parameters), expected, rtol=1e-5, atol=1e-7)


def test_a_shared_encoder_sees_the_actors_statistics():
    """The critic's values are those of its head over the actor's encoder, batch normalisation included."""
    ppo, state, _, _ = shared_case(encoder=dataclasses.replace(ENCODER, norm="batch"))
    values = ppo._values(state.parameters, state.normalizers, FIRST)
    actors, own = state.normalizers["actor"], state.normalizers["critic"]
    inputs = {
        "speed": normalize(own.observations["speed"], FIRST["speed"]),
        "camera": normalize(actors.observations["camera"], scaled(FIRST["camera"]), axis=1),
    }
    encoder = state.parameters["actor"]["network"]["params"]["encoder_camera"]
    params = {"encoder_camera": encoder, **state.parameters["critic"]["network"]["params"]}
    expected = ppo.critic.module.apply({"params": params, "batch_norm": actors.batch_norm}, inputs)[:, 0]
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
    assert to_int(actors.batch_norm["encoder_camera"]["norm_0"].count) == 1 and own.batch_norm == {}


# What ends a run before it begins

CNN = {"cnn_cfg": {"output_channels": [4], "stride": 2}}
BOTH = {"actor": ["camera", "mirror"], "critic": ["camera", "mirror"]}


def image_config(actor=CNN, critic=CNN, groups=BOTH, **overrides):
    """A config for PointAtSquare."""
    return small_config(
        **{
            "env__num_envs": 64,
            "env__full_reset": True,
            "runner__num_steps_per_env": 16,
            "runner__obs_groups": groups,
            "runner__actor": {"hidden_dims": [32], "distribution_cfg": {"std_range": [0.05, 1.0]}, **actor},
            "runner__critic": {"hidden_dims": [32], **critic},
            **overrides,
        }
    )


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


# Bytes from the environment to the update, and learning


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
