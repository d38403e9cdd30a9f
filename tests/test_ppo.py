"""PPO's update: what must hold of the loss, its gradient, the standard deviation, the guard and the mini-batches."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ppo_cases import (
    N,
    T,
    assert_trees_equal,
    global_norm,
    make_ppo,
    one_batch,
    random_observations,
    random_rollout,
    started,
    updated,
)

from rlbotics_jax.algorithms import PPO
from rlbotics_jax.normalization import merge
from rlbotics_jax.optimizers import all_finite
from rlbotics_jax.types import Timestep

TRUE = jnp.bool_(True)


class RatioPPO(PPO):
    """PPO that also reports the largest deviation of the probability ratio from 1."""

    def loss(self, parameters, state, old_distribution, batch):
        total, metrics = super().loss(parameters, state, old_distribution, batch)
        outputs = self.actor.apply(parameters["actor"]["network"], state.normalizers["actor"], batch.act.observations)
        log_prob = self.distribution.log_prob(parameters["actor"]["distribution"], outputs, batch.act.latent)
        ratio = jnp.exp(log_prob - batch.act.log_prob)
        return total, {**metrics, "Diagnostics/max_ratio": jnp.max(jnp.abs(ratio - 1.0))}


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


def case(seed=0, kind=PPO, **settings):
    """An algorithm, a fresh state and a rollout of it."""
    ppo, hyperparameters = make_ppo(kind, **settings)
    state = started(ppo, hyperparameters)
    return ppo, state, *random_rollout(ppo, state, seed)


def with_hyperparameters(state, **values):
    return state.replace(hyperparameters=state.hyperparameters | {k: jnp.float32(v) for k, v in values.items()})


def step_function(ppo, old):
    """The compiled mini-batch step against the policy of the state `old`."""
    distribution = old.parameters["actor"]["distribution"]
    return jax.jit(lambda state, batch, adapt=TRUE: ppo._mini_batch_step(state, distribution, batch, adapt))


class TestBeforeTheFirstGradient:
    """Nothing has moved between acting and updating: ratio 1 and KL 0, whatever the normaliser holds."""

    def filled(self, kind=RatioPPO, **settings):
        ppo, hyperparameters = make_ppo(kind, normalized=True, num_learning_epochs=1, **settings)
        observations = random_observations(3, offset=-20.0, scale=4.0)
        state = started(ppo, hyperparameters, observations)
        earlier = jnp.asarray(np.random.default_rng(4).normal(5.0, 2.0, (500, 3)), jnp.float32)
        normalizers = {
            name: merge(normalizer, earlier, jnp.ones(500, bool))[0] for name, normalizer in state.normalizers.items()
        }
        state = state.replace(normalizers=normalizers)
        return ppo, state, *random_rollout(ppo, state, 5, observations)

    @pytest.mark.parametrize("std_type", ["scalar", "log"])
    @pytest.mark.parametrize("class_name", ["GaussianDistribution", "SquashedGaussianDistribution"])
    def test_ratio_is_one_and_kl_zero_while_the_data_shift(self, std_type, class_name):
        distribution = {"std_type": std_type, "class_name": class_name, "init_std": 0.5}
        ppo, state, rollout, last = self.filled(num_mini_batches=1, distribution=distribution)
        after, metrics = updated(ppo, state, rollout, last)
        assert float(metrics["Diagnostics/max_ratio"]) < 1e-5
        assert abs(float(metrics["Diagnostics/kl"])) < 1e-6
        assert float(metrics["Diagnostics/clip_fraction"]) == 0.0
        assert float(abs(after.normalizers["actor"].mean - state.normalizers["actor"].mean).max()) > 1.0

    def test_statistics_that_moved_before_the_update_would_change_the_ratio(self):
        """The property above can fail: merging first, as the field's libraries do, gives ratios far from 1."""
        ppo, state, rollout, last = self.filled(num_mini_batches=1)
        moved, _ = ppo._merge_normalizers(state, rollout)
        _, metrics = updated(ppo, moved, rollout, last)
        assert float(metrics["Diagnostics/max_ratio"]) > 1e-3

    def test_the_statistics_of_an_update_are_those_of_its_rollout_merged_once(self):
        ppo, state, rollout, last = self.filled(PPO, num_mini_batches=4)
        after, _ = updated(ppo, state, rollout, last)
        rows = rollout.act.observations["observation"]
        expected, _ = jax.jit(merge)(state.normalizers["actor"], rows, rollout.valid)
        np.testing.assert_allclose(after.normalizers["actor"].mean, expected.mean, rtol=1e-6)
        np.testing.assert_allclose(after.normalizers["critic"].variance, expected.variance, rtol=1e-6)
        assert int(after.normalizers["actor"].count.low) == 500 + T * N


class TestAdvantages:
    @pytest.mark.parametrize("per_mini_batch", [False, True])
    def test_a_batch_of_one_is_finite(self, per_mini_batch):
        """The unbiased deviation of one sample is 0 / 0."""
        ppo, state, rollout, last = case(
            num_learning_epochs=1, num_mini_batches=1, normalize_advantage_per_mini_batch=per_mini_batch
        )
        rollout = jax.tree.map(lambda leaf: leaf[:1, :1], rollout)
        last = jax.tree.map(lambda leaf: leaf[:1], last)
        after, metrics = updated(ppo, state, rollout, last)
        assert float(metrics["Diagnostics/rejected_updates"]) == 0.0
        assert float(metrics["Loss/surrogate"]) == 0.0
        assert bool(all_finite(after.parameters))

    def test_normalised_over_the_rollout_with_the_unbiased_deviation(self):
        ppo, state, rollout, last = case()
        samples = one_batch(ppo, state, rollout, last)
        raw = samples.returns - rollout.act.values.reshape(-1)
        expected = (raw - raw.mean()) / (np.std(raw, ddof=1) + 1e-8)
        np.testing.assert_allclose(samples.advantages, expected, rtol=1e-4, atol=1e-5)
        assert float(np.std(samples.advantages, ddof=1)) == pytest.approx(1.0, abs=1e-5)

    def test_normalised_per_mini_batch(self):
        """Half of the rows, chosen by their sign, still have mean 0 when each mini-batch is normalised."""
        ppo, state, rollout, last = case(normalize_advantage_per_mini_batch=True)
        samples = one_batch(ppo, state, rollout, last)
        raw = samples.returns - rollout.act.values.reshape(-1)
        np.testing.assert_allclose(samples.advantages, raw, rtol=1e-5, atol=1e-6)
        weights = (samples.advantages > 0).astype(jnp.float32)
        normalised = ppo._normalized(samples.advantages, weights)
        assert float((normalised * weights).sum()) == pytest.approx(0.0, abs=1e-3)

    @pytest.mark.parametrize("per_mini_batch", [False, True])
    def test_a_nan_reward_in_an_invalid_row_touches_nothing(self, allow_nans, per_mini_batch):
        ppo, state, rollout, last = case(
            normalized=True, num_learning_epochs=2, normalize_advantage_per_mini_batch=per_mini_batch
        )
        row = (3, 2)
        invalid = rollout.replace(
            valid=rollout.valid.at[row].set(False),
            terminated=rollout.terminated.at[row].set(True),
            truncated=rollout.truncated.at[row].set(False),
        )
        poisoned = invalid.replace(rewards=invalid.rewards.at[row].set(jnp.nan))
        expected, expected_metrics = updated(ppo, state, invalid, last)
        after, metrics = updated(ppo, state, poisoned, last)
        assert_trees_equal(after, expected)
        assert_trees_equal(metrics, expected_metrics)
        assert bool(all_finite(after.parameters)) and float(metrics["Diagnostics/rejected_updates"]) == 0.0

    def test_an_invalid_row_weighs_nothing(self):
        """Whatever an invalid row did, the update is the same; a valid one matters."""
        ppo, state, rollout, last = case(num_learning_epochs=1)
        rollout = rollout.replace(terminated=rollout.terminated.at[3, 2].set(True))
        changed = rollout.replace(
            rewards=rollout.rewards.at[3, 2].set(100.0),
            act=rollout.act.replace(latent=rollout.act.latent.at[3, 2].add(1.0)),
        )
        valid = rollout.valid.at[3, 2].set(False)
        first, _ = updated(ppo, state, rollout.replace(valid=valid), last)
        second, _ = updated(ppo, state, changed.replace(valid=valid), last)
        assert_trees_equal(first.parameters, second.parameters)
        third, _ = updated(ppo, state, changed, last)
        assert float(global_norm(jax.tree.map(jnp.subtract, third.parameters, first.parameters))) > 1e-4

    def test_explained_variance(self):
        """A critic whose returns equal its values explains everything; returns it does not know at all, nothing."""
        ppo, state, rollout, last = case(gamma=0.0, lam=0.0)
        perfect = rollout.replace(rewards=rollout.act.values)
        assert float(jax.jit(ppo.samples)(state, perfect, last)[1]) == pytest.approx(1.0, abs=1e-5)
        blind = rollout.replace(act=rollout.act.replace(values=jnp.zeros((T, N))))
        assert float(jax.jit(ppo.samples)(state, blind, last)[1]) == pytest.approx(0.0, abs=1e-5)


class TestLoss:
    def test_entropy_is_optimised_with_the_right_sign(self):
        """d loss / d log_std changes by exactly -entropy_coef for each dimension."""
        ppo, state, rollout, last = case(num_actions=3, distribution={"std_type": "log", "init_std": 0.7})
        batch, old = one_batch(ppo, state, rollout, last), state.parameters["actor"]["distribution"]
        gradient = jax.jit(lambda state: jax.grad(ppo.loss, has_aux=True)(state.parameters, state, old, batch)[0])
        without, with_bonus = (
            gradient(with_hyperparameters(state, entropy_coef=coef))["actor"]["distribution"]["log_std"]
            for coef in (0.0, 0.25)
        )
        np.testing.assert_allclose(with_bonus - without, [-0.25] * 3, atol=1e-6)

    def test_is_the_sum_of_its_terms(self):
        ppo, state, rollout, last = case(value_loss_coef=0.5, entropy_coef=0.1)
        batch, old = one_batch(ppo, state, rollout, last), state.parameters["actor"]["distribution"]
        total, terms = jax.jit(ppo.loss)(state.parameters, state, old, batch)
        expected = terms["Loss/surrogate"] + 0.5 * terms["Loss/value"] - 0.1 * terms["Loss/entropy"]
        assert float(total) == pytest.approx(float(expected), rel=1e-6)
        squared = np.square(np.asarray(batch.returns - batch.act.values))
        assert float(terms["Loss/value"]) == pytest.approx(squared.mean(), rel=1e-5)
        assert float(terms["Loss/entropy"]) == pytest.approx(2 * 1.4189385, rel=1e-5)

    def test_value_clipping_is_a_setting(self):
        """With returns far from the values, both forms differ once the critic has moved."""
        clipped, state, rollout, last = case(use_clipped_value_loss=True)
        plain, _ = make_ppo()
        batch, old = one_batch(clipped, state, rollout, last), state.parameters["actor"]["distribution"]
        batch = batch.replace(act=batch.act.replace(values=batch.act.values - 1.0), returns=batch.act.values)
        losses = [jax.jit(p.loss)(state.parameters, state, old, batch)[1]["Loss/value"] for p in (plain, clipped)]
        np.testing.assert_allclose(losses, [0.0, 0.64], atol=1e-5)

    def test_actor_and_critic_gradients_are_clipped_apart(self):
        """SGD moves each network by rate * max_norm, however large the other's gradient is."""
        ppo, state, rollout, last = case(
            optimizer="sgd", schedule="fixed", learning_rate=1e-3, max_grad_norm=1e-2, value_loss_coef=1e3
        )
        after, _ = step_function(ppo, state)(state, one_batch(ppo, state, rollout, last))
        for name in ("actor", "critic"):
            moved = jax.tree.map(jnp.subtract, after.parameters[name], state.parameters[name])
            assert float(global_norm(moved)) == pytest.approx(1e-5, rel=1e-2)


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
        assert math.isfinite(float(loss)) and not bool(all_finite(gradients))

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
        """One bad row of T * N spoils one of four mini-batches; the entropy's mean is that of the other three."""
        ppo, state, rollout, last = case(schedule="fixed", num_learning_epochs=1, learning_rate=1e-9)
        after, metrics = updated(ppo, state, self.overflowing(rollout, (0, 0)), last)
        assert float(metrics["Diagnostics/rejected_updates"]) == 1.0
        assert float(metrics["Loss/entropy"]) == pytest.approx(2 * 1.4189385, rel=1e-5)
        assert all(math.isfinite(float(value)) for value in metrics.values())
        assert bool(all_finite(after.parameters)) and int(after.rejected_updates) <= 1

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


class TestAsymmetricCritic:
    """Groups of equal width (fault: sharing one buffer would train the critic on what the actor sees)."""

    def test_the_critic_learns_from_its_own_group_alone(self):
        groups = {"actor": ("observation",), "critic": ("privileged",)}
        ppo, hyperparameters = make_ppo(groups=groups, num_learning_epochs=2)
        observations = random_observations(7, sizes={"observation": 3, "privileged": 3})
        state = started(ppo, hyperparameters, observations)
        rollout, last = random_rollout(ppo, state, 8, observations)
        after, _ = updated(ppo, state, rollout, last)

        def noisy(group):
            noise = random_observations(9)["observation"][:-1]
            act = rollout.act.replace(observations=rollout.act.observations | {group: noise})
            return updated(ppo, state, rollout.replace(act=act), last)[0].parameters

        assert_trees_equal(noisy("observation")["critic"], after.parameters["critic"])
        assert_trees_equal(noisy("privileged")["actor"], after.parameters["actor"])
        for group, network in (("observation", "actor"), ("privileged", "critic")):
            moved = jax.tree.map(jnp.subtract, noisy(group)[network], after.parameters[network])
            assert float(global_norm(moved)) > 1e-4


class TestFinalValues:
    def timestep(self, ppo, state, truncated, final):
        observations = {name: leaf[0] for name, leaf in random_observations(0).items()}
        _, _, record = ppo.act(state, observations, (), jax.random.key(0))
        none = jnp.zeros(N, bool)
        step = Timestep(
            observations=observations,
            rewards=jnp.ones(N),
            terminated=none,
            truncated=truncated,
            valid=~none,
            final_observations=final,
            log={},
            non_finite={},
        )
        return record, ppo.process_env_step(state, (), record, step, jax.random.key(1))[1]

    def test_are_the_values_of_the_final_observations(self):
        ppo, hyperparameters = make_ppo()
        state, final = started(ppo, hyperparameters), {"observation": jnp.full((N, 3), 2.0)}
        truncated = jnp.arange(N) == 4
        _, transition = self.timestep(ppo, state, truncated, final)
        expected = ppo.critic.apply(state.parameters["critic"]["network"], None, final)[4, 0]
        assert float(transition.final_values[4]) == pytest.approx(float(expected), rel=1e-6)

    def test_fall_back_to_the_state_before_the_last_step_with_a_warning(self):
        ppo, hyperparameters = make_ppo()
        state = started(ppo, hyperparameters)
        with pytest.warns(UserWarning, match="no final observations"):
            record, transition = self.timestep(ppo, state, jnp.ones(N, bool), None)
        np.testing.assert_array_equal(transition.final_values, record.values)
