"""What a model reads: its groups, in order and by name, its normaliser, its module."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from ppo_cases import make_ppo

from rlbotics_jax.config import GaussianDistributionConfig, MLPConfig, OnPolicyRunnerConfig
from rlbotics_jax.models import Model, make_model
from rlbotics_jax.networks import MLPModel

OBSERVATIONS = {
    "position": jnp.array([[1.0, 2.0], [3.0, 4.0]]),
    "velocity": jnp.array([[5.0], [6.0]]),
    "privileged": jnp.array([[7.0, 8.0], [9.0, 10.0]]),
}


class Sum(nn.Module):
    """A user's module that declares only what it wants to be given."""

    num_outputs: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.num_outputs)(x.sum(axis=-1, keepdims=True))


def model(*groups, **settings):
    return Model(MLPModel((4,), "elu", 1), groups, 1, **{"normalized": False, **settings})


@pytest.mark.parametrize(
    ("groups", "row"),
    [
        (("position", "velocity"), [1.0, 2.0, 5.0]),
        (("velocity", "position"), [5.0, 1.0, 2.0]),
        (("privileged",), [7.0, 8.0]),
    ],
)
def test_groups_are_joined_in_order(groups, row):
    np.testing.assert_array_equal(model(*groups).read(OBSERVATIONS)[0], row)


def test_leading_axes_are_kept():
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), OBSERVATIONS)
    assert model("position", "velocity").read(stacked).shape == (3, 2, 3)


def test_a_missing_group_is_named():
    with pytest.raises(KeyError, match=r"'speed'.*\['position', 'privileged', 'velocity'\]"):
        model("position", "speed").read(OBSERVATIONS)


def test_merge_then_apply_normalises():
    normalized = model("position", "velocity", normalized=True, obs_clip=0.5)
    parameters, normalizer = normalized.init(jax.random.key(0), OBSERVATIONS), normalized.init_normalizer(OBSERVATIONS)
    normalizer, accepted = normalized.merge(normalizer, OBSERVATIONS, jnp.ones(2, bool), None)
    assert bool(accepted)
    np.testing.assert_allclose(normalizer.mean, [2.0, 3.0, 5.5])
    inputs = np.clip((np.array([[1.0, 2.0, 5.0], [3.0, 4.0, 6.0]]) - [2.0, 3.0, 5.5]) / [1.01, 1.01, 0.51], -0.5, 0.5)
    expected = normalized.module.apply(parameters, jnp.asarray(inputs, jnp.float32))
    np.testing.assert_allclose(normalized.apply(parameters, normalizer, OBSERVATIONS), expected, rtol=1e-6)


def test_without_normalisation_there_are_no_statistics():
    plain = model("position")
    assert plain.init_normalizer(OBSERVATIONS) is None
    assert plain.merge(None, OBSERVATIONS, jnp.ones(2, bool), None)[0] is None
    parameters = plain.init(jax.random.key(0), OBSERVATIONS)
    expected = plain.module.apply(parameters, OBSERVATIONS["position"])
    np.testing.assert_array_equal(plain.apply(parameters, None, OBSERVATIONS), expected)


def test_make_model_gives_a_module_the_fields_that_it_declares():
    groups = {"actor": ["position"], "critic": ["velocity"]}
    actor = MLPConfig(
        hidden_dims=(8, -1),
        activation="tanh",
        obs_normalization=True,
        distribution_cfg=GaussianDistributionConfig(),
    )
    config = OnPolicyRunnerConfig(groups, actor=actor, critic=MLPConfig(class_name=Sum))
    built = make_model("actor", config, 3, 0.5)
    assert built == Model(MLPModel((8, -1), "tanh", 3, 0.5), ("position",), 3, True, None)
    assert make_model("critic", config, 3, 0.5).module == Sum(num_outputs=3)


def test_a_module_of_another_width_is_refused():
    wide = Model(MLPModel((4,), "elu", 3), ("position",), 1, False)
    with pytest.raises(ValueError, match=r"MLPModel maps observations \(2, 2\) to \(2, 3\); it must give \(2, 1\)"):
        wide.init(jax.random.key(0), OBSERVATIONS)


def test_equal_widths_do_not_share_an_input():
    """Actor and critic groups of the same width: the critic must still read its own."""
    ppo, hyperparameters = make_ppo(groups={"actor": ("position",), "critic": ("privileged",)})
    state = ppo.init(jax.random.key(0), OBSERVATIONS, hyperparameters)

    def act(observations):
        return ppo.act(state, observations, (), jax.random.key(1))[2]

    before = act(OBSERVATIONS)
    other_privileged = act(OBSERVATIONS | {"privileged": OBSERVATIONS["privileged"] + 1.0})
    other_position = act(OBSERVATIONS | {"position": OBSERVATIONS["position"] + 1.0})
    np.testing.assert_array_equal(other_privileged.outputs, before.outputs)
    np.testing.assert_array_equal(other_position.values, before.values)
    assert not np.allclose(other_privileged.values, before.values)
    assert not np.allclose(other_position.outputs, before.outputs)
    assert set(before.observations) == {"position", "privileged"}


def test_models_hash_by_value():
    assert hash(model("position")) == hash(model("position"))
    assert dataclasses.replace(model("position"), obs_clip=3.0) != model("position")
