"""PPO's mini-batch steps: the guard, several devices, the standard deviation, coverage, the learning rate."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import all_finite
from ppo_cases import (
    TRUE,
    N,
    T,
    assert_trees_equal,
    case,
    make_ppo,
    one_batch,
    step_function,
    updated,
    with_hyperparameters,
)

from rlbotics_jax.algorithms import PPO


class RecordingPPO(PPO):
    """PPO that records its permutations and the rows of each mini-batch, told apart by their first feature."""

    permutations: ClassVar[list[np.ndarray]] = []
    rows: ClassVar[list[np.ndarray]] = []

    def permutation(self, key, batch_size):
        order = super().permutation(key, batch_size)
        jax.debug.callback(lambda order: self.permutations.append(np.array(order)), order, ordered=True)
        return order

    def _mini_batch_step(self, state, old_distribution, batch, adapt):
        def record(row, weight):
            self.rows.append(np.array(row)[np.array(weight) > 0])

        jax.debug.callback(record, batch.act.observations["observation"][:, 0], batch.weights, ordered=True)
        return super()._mini_batch_step(state, old_distribution, batch, adapt)


class TestGuard:
    """A finite loss can have a gradient that is not: the ratio overflows where the clip cuts it off."""

    def overflowing(self, rollout, rows):
        log_prob = rollout.act.log_prob.at[rows].set(-200.0)
        return rollout.replace(act=rollout.act.replace(log_prob=log_prob), rewards=rollout.rewards.at[rows].set(50.0))

    def test_a_rejected_step_changes_nothing(self, allow_nans):
        ppo, state, rollout, last = case(optimizer="adamw", schedule="fixed")
        step, good = step_function(ppo, state), one_batch(ppo, state, rollout, last)
        bad = one_batch(ppo, state, self.overflowing(rollout, (0, 0)), last)
        old = state.parameters["actor"]["distribution"]
        loss, _ = jax.jit(ppo.loss)(state.parameters, state, old, bad)
        gradients = jax.jit(jax.grad(ppo.loss, has_aux=True))(state.parameters, state, old, bad)[0]
        assert math.isfinite(float(loss)) and not all_finite(gradients)

        warm, metrics = step(state, good)
        assert float(metrics["applied"]) == 1.0 and int(warm.rejected_updates) == 0
        rejected = warm
        for count in (1, 2):
            rejected, metrics = step(rejected, bad)
            assert float(metrics["applied"]) == 0.0 and int(rejected.rejected_updates) == count
            assert_trees_equal(rejected.parameters, warm.parameters)
            assert_trees_equal(rejected.optimizer, warm.optimizer)
        resumed, _ = step(rejected, good)
        assert int(resumed.rejected_updates) == 0
        expected, _ = step(warm, good)
        assert_trees_equal(resumed, expected)

    def test_means_divide_by_the_applied_updates(self, allow_nans):
        """One bad row spoils one of four mini-batches; the means are those over the rows of the other three."""
        ppo, state, rollout, last = case(schedule="fixed", num_learning_epochs=1, learning_rate=1e-9)
        bad = self.overflowing(rollout, (0, 0))
        after, metrics = updated(ppo, state, bad, last)
        assert float(metrics["Diagnostics/rejected_updates"]) == 1.0
        assert all_finite(after.parameters) and int(after.rejected_updates) <= 1

        order = np.asarray(ppo.permutation(jax.random.split(jax.random.key(0), 1)[0], T * N))
        applied = np.concatenate([rows for rows in (order[j::4] for j in range(4)) if 0 not in rows])
        samples = one_batch(ppo, state, bad, last)
        errors = np.square(np.asarray(samples.returns - samples.act.values))
        assert len(applied) == 96 and errors.mean() > 2 * errors[applied].mean()
        assert float(metrics["Loss/value"]) == pytest.approx(errors[applied].mean(), rel=1e-4)
        assert float(metrics["Loss/entropy"]) == pytest.approx(2 * 1.4189385, rel=1e-5)
        assert all(math.isfinite(float(value)) for value in metrics.values())

    def test_consecutive_rejections_are_counted_across_updates(self, allow_nans):
        ppo, state, rollout, last = case(num_learning_epochs=2)
        bad = self.overflowing(rollout, (slice(None), slice(None)))
        for updates in (1, 2):
            after, metrics = updated(ppo, state, bad, last)
            assert int(after.rejected_updates) == 8 * updates
            assert float(metrics["Diagnostics/rejected_updates"]) == 8.0
            assert float(metrics["Diagnostics/consecutive_rejected_updates"]) == 8.0 * updates
            assert_trees_equal(after.parameters, state.parameters)
            state = after
        after, metrics = updated(ppo, state, rollout, last)
        assert int(after.rejected_updates) == 0 and float(metrics["Diagnostics/rejected_updates"]) == 0.0

    def test_a_batch_without_valid_rows_is_no_step(self):
        """Adam's momentum would otherwise move the parameters."""
        ppo, state, rollout, last = case()
        step, batch = step_function(ppo, state), one_batch(ppo, state, rollout, last)
        warm, _ = step(state, batch)
        after, metrics = step(warm, batch.replace(weights=jnp.zeros_like(batch.weights)))
        assert float(metrics["applied"]) == 0.0
        assert_trees_equal((after.parameters, after.optimizer), (warm.parameters, warm.optimizer))


class TestDevices:
    """Two devices with half of the rows each, as vmap over the axis name."""

    def halves(self, **settings):
        ppo, state, rollout, last = case(optimizer="sgd", schedule="fixed", learning_rate=1e-2, **settings)
        batch = one_batch(ppo, state, rollout, last)
        # The devices hold different numbers of valid rows, so that a mean of means would be wrong.
        batch = batch.replace(weights=batch.weights.at[: T * N // 4].set(0.0))
        split = jax.tree.map(lambda leaf: leaf.reshape(2, -1, *leaf.shape[1:]), batch)
        sharded = dataclasses.replace(ppo, axis_name="devices")
        old = state.parameters["actor"]["distribution"]

        def on_one(batch):
            return sharded._mini_batch_step(state, old, batch, TRUE)

        return ppo, state, batch, split, jax.jit(jax.vmap(on_one, axis_name="devices"))

    @pytest.mark.parametrize("per_mini_batch", [False, True])
    def test_take_the_step_that_one_device_takes(self, per_mini_batch):
        ppo, state, batch, split, step = self.halves(normalize_advantage_per_mini_batch=per_mini_batch)
        expected, expected_metrics = step_function(ppo, state)(state, batch)
        after, metrics = step(split)
        for device in (0, 1):
            for result, one in ((after.parameters, expected.parameters), (metrics, expected_metrics)):
                jax.tree.map(
                    lambda r, e, i=device: np.testing.assert_allclose(r[i], e, rtol=1e-5, atol=1e-6), result, one
                )

    def test_reject_together(self, allow_nans):
        """The gradient of one device is not finite; both keep their parameters."""
        _, state, _, split, step = self.halves()
        act = split.act.replace(log_prob=split.act.log_prob.at[1, 0].set(-200.0))
        after, metrics = step(split.replace(act=act, advantages=split.advantages.at[1, 0].set(1.0)))
        np.testing.assert_array_equal(metrics["applied"], [0.0, 0.0])
        np.testing.assert_array_equal(after.rejected_updates, [1, 1])
        for device in (0, 1):
            assert_trees_equal(jax.tree.map(lambda leaf, i=device: leaf[i], after.parameters), state.parameters)


class TestStandardDeviation:
    """Zero advantages leave the entropy bonus alone to push: a coefficient of 1 up, of -1 down."""

    LOW, HIGH = 0.5, 1.0

    def pushed(self, std_type, init_std, **settings):
        distribution = {"std_type": std_type, "init_std": init_std, "std_range": (self.LOW, self.HIGH)}
        ppo, state, rollout, last = case(
            schedule="fixed",
            learning_rate=1e-2,
            distribution=distribution | settings.pop("distribution", {}),
            **settings,
        )
        batch = one_batch(ppo, state, rollout, last)
        batch, step = batch.replace(advantages=jnp.zeros_like(batch.advantages)), step_function(ppo, state)

        def push(state, coefficient, num_steps):
            state = with_hyperparameters(state, entropy_coef=coefficient)
            for _ in range(num_steps):
                state, _ = step(state, batch)
            return state

        return ppo, state, push

    def std(self, ppo, state):
        return np.asarray(ppo.distribution.std(state.parameters["actor"]["distribution"]))

    def stored(self, state):
        return np.asarray(jax.tree.leaves(state.parameters["actor"]["distribution"])[0])

    @pytest.mark.parametrize("std_type", ["scalar", "log"])
    @pytest.mark.parametrize("optimizer", ["adam", "sgd"])
    def test_leaves_the_ceiling_at_the_next_step(self, std_type, optimizer):
        ppo, state, push = self.pushed(std_type, self.HIGH, optimizer=optimizer)
        assert (self.std(ppo, push(state, -1.0, 1)) < self.HIGH).all()

    @pytest.mark.parametrize("std_type", ["scalar", "log"])
    def test_leaves_the_ceiling_within_ten_steps_after_a_long_push(self, std_type):
        ppo, state, push = self.pushed(std_type, 0.9)
        state = push(state, 1.0, 100)
        np.testing.assert_array_equal(self.std(ppo, state), [self.HIGH] * 2)
        assert (self.std(ppo, push(state, -1.0, 10)) < self.HIGH).all()

    @pytest.mark.parametrize("std_type", ["scalar", "log"])
    def test_a_long_push_down_ends_exactly_on_the_floor(self, std_type):
        _, state, push = self.pushed(std_type, 0.9)
        floor = math.log(self.LOW) if std_type == "log" else self.LOW
        np.testing.assert_array_equal(self.stored(push(state, -1.0, 100)), np.float32([floor] * 2))

    @pytest.mark.parametrize("std_type", ["scalar", "log"])
    def test_not_learned_is_constant_to_the_bit(self, std_type):
        """adamw's weight decay would shrink it, and the entropy bonus raise it."""
        distribution = {"learn_std": False, "init_std": 0.7}
        _, state, push = self.pushed(std_type, 0.7, optimizer="adamw", distribution=distribution)
        after = push(state, 1.0, 20)
        np.testing.assert_array_equal(self.stored(after), self.stored(state))
        assert not np.array_equal(
            *(s.parameters["critic"]["network"]["params"]["Dense_0"]["kernel"] for s in (after, state))
        )


class TestMiniBatches:
    def recorded(self, num_epochs, num_mini_batches, rows):
        """One recorded update on the first rows of a rollout whose rows are numbered by their first feature."""
        RecordingPPO.permutations.clear()
        RecordingPPO.rows.clear()
        ppo, state, rollout, last = case(
            kind=RecordingPPO, num_learning_epochs=num_epochs, num_mini_batches=num_mini_batches
        )
        steps, envs = rows
        rollout = jax.tree.map(lambda leaf: leaf[:steps, :envs], rollout)
        last = jax.tree.map(lambda leaf: leaf[:envs], last)
        numbers = jnp.arange(steps * envs, dtype=jnp.float32).reshape(steps, envs)
        observations = {"observation": rollout.act.observations["observation"].at[..., 0].set(numbers)}
        updated(ppo, state, rollout.replace(act=rollout.act.replace(observations=observations)), last)
        jax.effects_barrier()
        return steps * envs

    @pytest.mark.parametrize(
        ("num_epochs", "num_mini_batches", "rows", "sizes"),
        [(3, 4, (5, 3), [4, 4, 4, 3]), (2, 4, (5, 1), [2, 1, 1, 1]), (2, 4, (4, 4), [4, 4, 4, 4])],
    )
    def test_every_transition_once_an_epoch_in_a_new_order(self, num_epochs, num_mini_batches, rows, sizes):
        batch_size = self.recorded(num_epochs, num_mini_batches, rows)
        assert len(RecordingPPO.permutations) == num_epochs
        assert len({tuple(order.tolist()) for order in RecordingPPO.permutations}) == num_epochs
        for epoch in range(num_epochs):
            parts = RecordingPPO.rows[epoch * num_mini_batches : (epoch + 1) * num_mini_batches]
            assert [len(part) for part in parts] == sizes
            np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(batch_size))
        assert len(RecordingPPO.rows) == num_epochs * num_mini_batches

    def test_another_key_gives_another_order(self):
        ppo, _ = make_ppo()
        orders = [ppo.permutation(jax.random.key(seed), 32).tolist() for seed in (0, 1)]
        assert orders[0] != orders[1]

    def test_more_mini_batches_than_samples(self):
        ppo, state, rollout, last = case(num_mini_batches=T * N + 1)
        with pytest.raises(ValueError, match=f"num_mini_batches is {T * N + 1}"):
            updated(ppo, state, rollout, last)


class TestLearningRate:
    """With a target that every KL is far below, or far above, each step but the first moves the rate once."""

    def rates(self, desired_kl, num_mini_batches):
        ppo, state, rollout, last = case(
            num_learning_epochs=1, num_mini_batches=num_mini_batches, desired_kl=desired_kl, learning_rate=1e-3
        )
        # Old means that are off by .1 stand for a first KL that rounding alone would leave.
        rollout = rollout.replace(act=rollout.act.replace(outputs=rollout.act.outputs + 0.1))
        after, metrics = updated(ppo, state, rollout, last)
        assert metrics["Learning/learning_rate"] == after.hyperparameters["learning_rate"]
        return float(metrics["Learning/learning_rate"]), float(metrics["Diagnostics/kl"])

    @pytest.mark.parametrize(("num_mini_batches", "factor"), [(1, 1.0), (2, 1.5), (3, 2.25)])
    def test_rises_with_every_mini_batch_but_the_first(self, num_mini_batches, factor):
        rate, kl = self.rates(1e3, num_mini_batches)
        assert kl > 0 and rate == pytest.approx(1e-3 * factor, rel=1e-6)

    def test_falls_with_every_mini_batch_but_the_first(self):
        rate, _ = self.rates(1e-6, 3)
        assert rate == pytest.approx(1e-3 / 2.25, rel=1e-6)

    def test_a_fixed_rate_stays(self):
        ppo, state, rollout, last = case(schedule="fixed", learning_rate=1e-2, desired_kl=1e-6)
        after, _ = updated(ppo, state, rollout, last)
        assert after.hyperparameters["learning_rate"] == np.float32(1e-2)
