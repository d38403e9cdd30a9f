"""Models that read groups: images and vectors, their statistics, and a module of one's own."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from helpers import assert_bit_equal
from image_cases import ENCODER, FIRST, OBSERVATIONS, VALID, group_model, make_ppo, primed_case
from ppo_cases import TRUE, N, one_batch, random_rollout, started, step_function, updated

from rlbotics_jax.cnn import CNNEncoder
from rlbotics_jax.config import (
    CNNConfig,
    CNNEncoderConfig,
    GaussianDistributionConfig,
    MLPConfig,
    OnPolicyRunnerConfig,
)
from rlbotics_jax.counters import to_int
from rlbotics_jax.models import GroupModel, Model, make_model, scaled
from rlbotics_jax.normalization import NormalizerState, blend, init_normalizer, merge_channels, normalize


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
