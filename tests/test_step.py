"""The train step: pure, compiled once, equal in blocks and alone, on one device and on eight, for one seed and many."""

from __future__ import annotations

import contextlib
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_bit_equal, raw, small_config, small_step
from toys import ActionReward, DelayedReward, WideObservations

from rlbotics_jax.algorithms import hyperparameters_of, make_algorithm
from rlbotics_jax.compilation import jit
from rlbotics_jax.counters import to_int
from rlbotics_jax.envs import vectorize
from rlbotics_jax.envs.cartpole import CartpoleBalance
from rlbotics_jax.parallel import spread_over_devices
from rlbotics_jax.rollout import collect
from rlbotics_jax.step import make_block, reconfigure

SGD = {
    "runner__algorithm__optimizer": "sgd",
    "runner__algorithm__schedule": "fixed",
    "runner__algorithm__learning_rate": 1e-2,
}


def count_compilations(run) -> int:
    """Returns how many programs the backend compiled while `run` ran."""
    events = []
    jax.monitoring.register_event_duration_secs_listener(
        listener := lambda name, *_, **__: events.append(name) if name.endswith("backend_compile_duration") else None
    )
    try:
        run()
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    return len(events)


def test_same_input_same_output_to_the_bit():
    init, step = small_step(DelayedReward(), small_config())
    step = jit(step)
    state = init(0)
    assert_bit_equal(step(state), step(state))


def test_one_compilation_for_every_block_length_and_blocks_equal_single_steps():
    init, step = small_step(CartpoleBalance(), small_config())
    block = jit(make_block(step, 8), donate_argnums=0)
    single = jit(step, donate_argnums=0)
    blocked, alone = jit(init)(0), jit(init)(0)
    jax.block_until_ready(blocked)
    columns = []

    def run_blocks():
        nonlocal blocked
        for count in (5, 1, 6):
            blocked, metrics = block(blocked, np.int32(count))
            columns.append((count, metrics))

    with _no_cache():
        assert count_compilations(run_blocks) == 1
    for count, metrics in [(count, jax.device_get(metrics)) for count, metrics in columns]:
        for i in range(count):
            alone, row = single(alone)
            assert_bit_equal(jax.tree.map(lambda column, i=i: column[i], metrics), row)
    assert_bit_equal(blocked, alone)


def test_counters_and_metrics():
    config = small_config()
    init, step = small_step(DelayedReward(), config)
    state = init(0)
    step = jit(step)
    for _ in range(3):
        state, metrics = step(state)
    assert int(state.shared.iteration) == 3
    assert to_int(metrics["env_steps"]) == 3 * 16 * 8
    expected = {"Loss/surrogate", "Loss/value", "Loss/entropy", "Diagnostics/kl", "Diagnostics/clip_fraction"}
    expected |= {"Diagnostics/explained_variance", "Learning/learning_rate", "Policy/action_std"}
    expected |= {"Episodes/mean_reward", "Episodes/mean_length", "toy/reward"}
    assert expected <= metrics.keys()
    # DelayedReward with 8 steps ends in its seventh: return 1, length 7
    assert float(metrics["Episodes/mean_reward"]) == 1.0
    assert float(metrics["Episodes/mean_length"]) == 7.0


def test_best_policy_is_the_one_that_acted():
    init, step = small_step(DelayedReward(), small_config(env__num_envs=32))
    state = init(0)
    before = raw(state.shared.algorithm)
    state, _ = jit(step)(state)
    best = state.shared.best
    assert float(best.score) == 1.0 and int(best.iteration) == 1
    assert_bit_equal(best.parameters["actor"], before.parameters["actor"])
    assert_bit_equal(best.parameters["normalizer"], before.normalizers["actor"])


def test_state_can_be_donated_from_the_start():
    init, step = small_step(DelayedReward(), small_config())
    step = jit(step, donate_argnums=0)
    for make in (init, jit(init)):
        state, _ = step(make(0))
        jax.block_until_ready(state)


def test_state_has_no_weak_types_and_keeps_its_types():
    init, step = small_step(CartpoleBalance(), small_config())
    first = jax.eval_shape(init, 0)
    second = jax.eval_shape(step, first)[0]
    leaves = [jax.tree_util.tree_leaves_with_path(tree) for tree in (first, second)]
    for (path, a), (_, b) in zip(*leaves, strict=True):
        assert not getattr(a, "weak_type", False), path
        assert (a.shape, a.dtype, getattr(b, "weak_type", False)) == (b.shape, b.dtype, False), path


def test_rollout_is_stored_once_as_the_formula_says():
    """T * N * (observations + actions + means + 4 floats + 3 flags), nothing else leads with (T, N)."""
    config, environment = small_config(), CartpoleBalance()
    algorithm = make_algorithm(config.runner, 1)
    vectorized = vectorize(environment, 16)
    init, _ = small_step(environment, config)
    state = jax.eval_shape(init, 0)
    _, rollout = jax.eval_shape(
        lambda s: collect(algorithm, s.shared.algorithm, vectorized, s.per_environment, 8, jax.random.key(0)), state
    )
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(rollout.transitions))
    floats = 5 + 1 + 1 + 4  # observation, latent action, mean, and log-probability, value, reward, final value
    assert size == 8 * 16 * (4 * floats + 3)


@pytest.mark.parametrize(("normalized", "copies"), [(False, 1.25), (True, 2.1)])
def test_memory_grows_by_one_rollout(normalized, copies):
    """What the compiled block keeps alive, per sample: the formula's bytes once, plus returns, advantages and indices.

    Many mini-batches, so that theirs is small. Where observations are normalised, the merge of the statistics writes
    out the valid rows on a CPU, which does not fuse them into their sum.
    """
    changes = {f"runner__{name}__obs_normalization": normalized for name in ("actor", "critic")}
    config = small_config(runner__algorithm__num_mini_batches=32, **changes)

    def live_bytes(num_envs: int) -> int:
        init, step = small_step(WideObservations(), config, num_envs=num_envs)
        block = jit(make_block(step, 2), donate_argnums=0)
        return block.lower(jax.eval_shape(init, 0), np.int32(1)).compile().memory_analysis().temp_size_in_bytes

    per_sample = (live_bytes(512) - live_bytes(256)) / (256 * 8)
    formula = 4 * (64 + 1 + 1 + 4) + 3  # observation, latent action, mean, four floats, three flags
    assert formula < per_sample < copies * formula


def test_reconfigure_takes_over_what_changed_and_keeps_what_training_adapted():
    config = small_config()
    init, step = small_step(DelayedReward(), config)
    step = jit(step)
    state, _ = step(step(init(0))[0])  # the first rollout only fills the statistics
    adapted = float(state.shared.algorithm.hyperparameters["learning_rate"])
    assert adapted != pytest.approx(1e-3)
    changed = config.runner.algorithm.replace(entropy_coef=0.02)
    state = reconfigure(state, hyperparameters_of(changed))
    assert float(state.shared.algorithm.hyperparameters["learning_rate"]) == adapted
    assert float(state.shared.algorithm.hyperparameters["entropy_coef"]) == pytest.approx(0.02)
    state = reconfigure(state, hyperparameters_of(changed.replace(learning_rate=5e-4)))
    assert float(state.shared.algorithm.hyperparameters["learning_rate"]) == pytest.approx(5e-4)


def test_pmap_keeps_eight_devices_equal_to_the_bit():
    devices = jax.devices()
    assert len(devices) == 8
    config = small_config(env__num_envs=32)
    init_all, _ = small_step(DelayedReward(), config)
    _, step = small_step(DelayedReward(), config, axis_name="devices", num_envs=4)
    state = spread_over_devices(init_all(0), 8)
    pstep = jax.pmap(step, axis_name="devices", donate_argnums=0)
    for _ in range(20):
        state, metrics = pstep(state)
    for leaf in jax.tree.leaves(raw(state.shared)):
        assert (leaf == leaf[:1]).all()
    assert to_int(jax.tree.map(lambda leaf: leaf[0], metrics["env_steps"])) == 20 * 32 * 8
    # the devices' environments differ: each folds its index into the key
    returns = np.asarray(state.per_environment.environment.current.data[1])
    assert len(np.unique(returns, axis=0)) > 1


def test_update_on_eight_devices_equals_one_device():
    """The same rollout, one epoch, one mini-batch, SGD: parameters, statistics and metrics agree to 1e-6."""
    overrides = {**SGD, "runner__algorithm__num_learning_epochs": 1, "runner__algorithm__num_mini_batches": 1}
    config = small_config(env__num_envs=32, **overrides)
    algorithm = make_algorithm(config.runner, 1)
    init, step = small_step(ActionReward(), config)
    state, _ = jit(step)(init(0))  # the first rollout only fills the statistics
    vectorized = vectorize(ActionReward(), 32)
    _, rollout = jit(
        lambda s: collect(algorithm, s.shared.algorithm, vectorized, s.per_environment, 8, jax.random.key(1))
    )(state)
    # an uneven share of invalid rows: means over rows are not means over devices
    transitions = rollout.transitions.replace(valid=rollout.transitions.valid.at[:, :3].set(False))
    # another policy acted, so that KL and clip fraction are no zeros
    shifted = transitions.act.replace(
        outputs=transitions.act.outputs + 0.3 * transitions.act.latent, log_prob=transitions.act.log_prob - 0.15
    )
    transitions = transitions.replace(act=shifted)
    last = rollout.last_observations
    one, one_metrics = jit(functools.partial(_update, algorithm))(state.shared.algorithm, transitions, last)

    split = jax.tree.map(lambda x: jnp.stack(jnp.split(x, 8, axis=1)), transitions)
    many = jax.pmap(
        functools.partial(_update, dataclasses.replace(algorithm, axis_name="devices")),
        axis_name="devices",
        in_axes=(None, 0, 0),
    )(state.shared.algorithm, split, jax.tree.map(lambda x: jnp.stack(jnp.split(x, 8)), last))
    eight, eight_metrics = jax.tree.map(lambda leaf: leaf[0], many)
    assert float(one_metrics["Diagnostics/applied_updates"]) == 1.0 and float(one_metrics["Diagnostics/kl"]) > 1e-3
    for a, b in zip(jax.tree.leaves(raw(one)), jax.tree.leaves(raw(eight)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    for name, value in one_metrics.items():
        np.testing.assert_allclose(value, eight_metrics[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.timeout(120)
def test_several_seeds_of_a_large_network_are_initialised_one_by_one():
    config = small_config(runner__actor__hidden_dims=[512, 256, 128], runner__critic__hidden_dims=[512, 256, 128])
    init, _ = small_step(ActionReward(), config)
    states = [jit(init)(seed) for seed in range(2)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    assert stacked.shared.iteration.shape == (2,)


def test_adam_seeds_under_vmap_collect_the_same_and_see_the_same_gradients():
    """After one iteration Adam amplifies rounding; the rollout, the losses and the gradients of the mini-batch (Adam's
    first moment after one step is a tenth of them) must agree to 1e-5."""
    config = small_config(runner__algorithm__num_learning_epochs=1, runner__algorithm__num_mini_batches=1)
    init, step = small_step(DelayedReward(), config)
    states = [jit(step)(init(seed))[0] for seed in range(3)]  # the first rollout only fills the statistics
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    after_together, together = jit(jax.vmap(step))(stacked)
    rollout = functools.partial(_rollout, make_algorithm(config.runner, 1), vectorize(DelayedReward(), 16))
    rollouts = jit(jax.vmap(rollout))(stacked)
    step, rollout = jit(step), jit(rollout)
    for i, state in enumerate(states):
        after, alone = step(state)
        gradients, expected = (tree.shared.algorithm.optimizer.mu for tree in (after_together, after))
        pairs = [(gradients, expected), (rollouts, rollout(state))]
        for mine, other in pairs:
            for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(other), strict=True):
                np.testing.assert_allclose(a[i], b, rtol=1e-5, atol=1e-5)
        assert float(alone["Loss/value"]) > 0.0
        for name in ("Loss/surrogate", "Loss/value", "Loss/entropy", "Episodes/mean_reward", "toy/reward"):
            np.testing.assert_allclose(together[name][i], alone[name], rtol=1e-5, atol=1e-5, err_msg=name)


def _rollout(algorithm, environment, state):
    """The transitions that the state's policy collects."""
    key = jax.random.key(7)
    return collect(algorithm, state.shared.algorithm, environment, state.per_environment, 8, key)[1].transitions


def _update(algorithm, state, transitions, last_observations):
    return algorithm.update(state, transitions, (), last_observations, (), jax.random.key(2))


@contextlib.contextmanager
def _no_cache():
    """Compiles afresh: a program from the persistent cache is no compilation."""
    jax.config.update("jax_enable_compilation_cache", False)
    yield
    jax.config.update("jax_enable_compilation_cache", True)
