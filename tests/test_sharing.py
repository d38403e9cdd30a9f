"""Encoders that actor and critic share: they exist once, learn from both, and are stepped once."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from image_cases import ENCODER, FIRST, OBSERVATIONS, make_ppo, primed_case
from ppo_cases import TRUE, global_norm, one_batch, started, step_function

from rlbotics_jax.counters import to_int
from rlbotics_jax.models import scaled
from rlbotics_jax.normalization import normalize


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
