"""PPO's advantages, loss and gradient, and what must hold before the first step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import all_finite
from ppo_cases import (
    N,
    T,
    assert_trees_equal,
    case,
    global_norm,
    make_ppo,
    one_batch,
    random_observations,
    random_rollout,
    started,
    step_function,
    updated,
    with_hyperparameters,
)

from rlbotics_jax.algorithms import PPO
from rlbotics_jax.normalization import merge
from rlbotics_jax.types import Timestep


class RatioPPO(PPO):
    """PPO that also reports the largest deviation of the probability ratio from 1."""

    def loss(self, parameters, state, old_distribution, batch):
        total, metrics = super().loss(parameters, state, old_distribution, batch)
        outputs = self.actor.apply(parameters["actor"]["network"], state.normalizers["actor"], batch.act.observations)
        log_prob = self.distribution.log_prob(parameters["actor"]["distribution"], outputs, batch.act.latent)
        ratio = jnp.exp(log_prob - batch.act.log_prob)
        return total, {**metrics, "Diagnostics/max_ratio": jnp.max(jnp.abs(ratio - 1.0))}


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


class TestPriming:
    """The first rollout of a policy that normalises its observations only fills the statistics."""

    @pytest.mark.parametrize("optimizer", ["adam", "adamw"])
    def test_the_first_rollout_teaches_nothing_and_the_second_does(self, optimizer):
        ppo, state, rollout, last = case(normalized=True, optimizer=optimizer)
        primed, metrics = updated(ppo, state, rollout, last)
        for name in ("parameters", "optimizer", "hyperparameters", "rejected_updates"):
            assert_trees_equal(getattr(primed, name), getattr(state, name))
        assert int(primed.normalizers["actor"].count.low) == T * N
        assert float(metrics["Diagnostics/rejected_updates"]) == 0.0 and float(metrics["Loss/value"]) == 0.0
        learned, metrics = updated(ppo, primed, rollout, last)
        moved = jax.tree.map(jnp.subtract, learned.parameters, primed.parameters)
        assert float(global_norm(moved)) > 1e-3 and float(metrics["Loss/value"]) > 0.0

    def test_without_normalisers_every_rollout_teaches(self):
        ppo, state, rollout, last = case()
        learned, _ = updated(ppo, state, rollout, last)
        assert float(global_norm(jax.tree.map(jnp.subtract, learned.parameters, state.parameters))) > 1e-3


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
        assert all_finite(after.parameters)

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
        state, _ = updated(ppo, state, rollout, last)  # fills the statistics, so that the next update learns
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
        assert all_finite(after.parameters) and float(metrics["Diagnostics/rejected_updates"]) == 0.0
        assert float(metrics["Loss/value"]) > 0.0

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


class TestInvariance:
    """What an update may not depend on: which environment is which, and the unit of the rewards."""

    def test_order_of_the_environments(self):
        ppo, state, rollout, last = case(num_learning_epochs=1, num_mini_batches=1)
        order = np.random.default_rng(0).permutation(N)
        moved = jax.tree.map(lambda leaf: leaf[:, order], rollout)
        first, first_metrics = updated(ppo, state, rollout, last)
        second, second_metrics = updated(ppo, state, moved, jax.tree.map(lambda leaf: leaf[order], last))
        for name in ("Loss/surrogate", "Loss/value", "Diagnostics/explained_variance"):
            np.testing.assert_allclose(second_metrics[name], first_metrics[name], rtol=1e-4, atol=1e-6)
        # Adam's first moment after one step is a tenth of the gradient
        for a, b in zip(jax.tree.leaves(first.optimizer), jax.tree.leaves(second.optimizer), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)

    def test_unit_of_the_rewards(self):
        """Rewards and values ten times as large: the same normalised advantages, returns ten times as large."""
        ppo, state, rollout, last = case(lam=0.9)
        rollout = rollout.replace(terminated=rollout.terminated.at[-1].set(True))  # no bootstrap from the critic
        scaled = rollout.replace(
            rewards=10 * rollout.rewards,
            final_values=10 * rollout.final_values,
            act=rollout.act.replace(values=10 * rollout.act.values),
        )
        one, ten = (one_batch(ppo, state, r, last) for r in (rollout, scaled))
        np.testing.assert_allclose(ten.advantages, one.advantages, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(ten.returns, 10 * one.returns, rtol=1e-5, atol=1e-4)


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
