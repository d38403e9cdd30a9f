"""The train step is a pure function: vmap over seeds equals separate runs, compiled equals uncompiled.

With SGD and a fixed rate on a toy, so that rounding is not amplified.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ppo_cases import global_norm, make_ppo
from toys import ActionReward, ConstantReward

from rlbotics_jax.compilation import jit
from rlbotics_jax.envs import vectorize
from rlbotics_jax.step import make_train_step

SEEDS = (0, 1, 2)


def runs(toy, num_envs=16, num_steps=8, full_reset=False, **settings):
    """The train step, and one state for each seed: the initial one, or, where observations are normalised, the one
    after the first step, which only fills the statistics."""
    settings = {"optimizer": "sgd", "schedule": "fixed", "learning_rate": 1e-2, "num_actions": 1} | settings
    ppo, hyperparameters = make_ppo(**settings)
    init, train_step = make_train_step(ppo, vectorize(toy, num_envs, full_reset=full_reset), num_steps)
    init, step = jit(init), jit(train_step)
    states = [init(jax.random.key(seed), hyperparameters) for seed in SEEDS]
    return train_step, [step(state)[0] for state in states] if settings.get("normalized") else states


def numbers(tree):
    """The tree with random keys as their words."""

    def words(leaf):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    return jax.tree.map(words, tree)


def assert_close(tree, other):
    """Floats within 1e-6 of max(1, |x|), everything else (counts, keys, flags) equal."""

    def compare(leaf, expected):
        assert leaf.dtype == expected.dtype
        if np.issubdtype(leaf.dtype, np.floating):
            np.testing.assert_allclose(leaf, expected, rtol=1e-6, atol=1e-6)
        else:
            np.testing.assert_array_equal(leaf, expected)

    jax.tree.map(compare, numbers(tree), numbers(other))


@pytest.mark.parametrize("normalized", [False, True])
def test_vmap_over_seeds_equals_separate_runs(normalized):
    train_step, states = runs(ActionReward(), normalized=normalized)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    together, metrics = jit(jax.vmap(train_step))(stacked)
    step = jit(train_step)
    for i, state in enumerate(states):
        alone, alone_metrics = step(state)
        mine = jax.tree.map(lambda leaf, i=i: leaf[i], (together, metrics))
        assert_close(mine, (alone, alone_metrics))
        moved = jax.tree.map(jnp.subtract, alone.shared.algorithm.parameters, state.shared.algorithm.parameters)
        assert global_norm(moved) > 1e-3


def test_vmap_over_hyperparameters_equals_separate_runs():
    """Learning rates and discounts are leaves of the state, so that one program runs many settings."""
    train_step, (state, *_) = runs(ConstantReward())
    algorithm = state.shared.algorithm

    def with_values(rate, gamma):
        values = algorithm.hyperparameters | {"learning_rate": jnp.float32(rate), "gamma": jnp.float32(gamma)}
        return state.replace(shared=state.shared.replace(algorithm=algorithm.replace(hyperparameters=values)))

    states = [with_values(*values) for values in ((1e-2, 0.9), (1e-3, 0.99))]
    together, _ = jit(jax.vmap(train_step))(jax.tree.map(lambda *leaves: jnp.stack(leaves), *states))
    step = jit(train_step)
    for i, alone in enumerate(states):
        assert_close(jax.tree.map(lambda leaf, i=i: leaf[i], together), step(alone)[0])


def test_jit_equals_no_jit():
    train_step, (state, *_) = runs(
        ActionReward(),
        num_envs=4,
        num_steps=2,
        hidden_dims=(8,),
        normalized=True,
        num_learning_epochs=1,
        num_mini_batches=2,
    )
    compiled = jit(train_step)(state)
    assert float(compiled[1]["Loss/value"]) > 0.0
    with jax.disable_jit():
        uncompiled = train_step(state)
    assert_close(compiled, uncompiled)


def test_the_same_state_gives_the_same_bits():
    train_step, (state, *_) = runs(ActionReward(), full_reset=True)
    step = jit(train_step)
    first, second = step(state), step(state)
    jax.tree.map(np.testing.assert_array_equal, numbers(first), numbers(second))


def test_seeds_differ():
    train_step, states = runs(ActionReward())
    step = jit(train_step)
    kernels = [step(state)[0].shared.algorithm.parameters["actor"]["network"]["params"]["Dense_0"] for state in states]
    assert not np.allclose(kernels[0]["kernel"], kernels[1]["kernel"])


def test_a_step_compiles_once():
    """A weak type or a changed dtype in what it returns would compile it again."""
    train_step, (state, *_) = runs(ActionReward())
    step = jit(train_step)
    for _ in range(3):
        state, _ = step(state)
    assert step._cache_size() == 1
