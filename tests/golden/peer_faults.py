"""Print the faults of telekinesis-rlbotics 0.1.3 that running it reproduces, one line each, with the figure seen.

Needs telekinesis-rlbotics 0.1.3 and torch, like generate.py. Only RLBotics' own classes compute the figures; what
follows "right:" is the value of a correct implementation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import torch
from loguru import logger
from telekinesis.rlbotics.algorithms import PPO
from telekinesis.rlbotics.config import GaussianDistributionConfig, MLPConfig, OnPolicyRunnerConfig, PPOConfig
from telekinesis.rlbotics.distributions import SquashedGaussianDistribution
from telekinesis.rlbotics.envs.base import VecEnv
from telekinesis.rlbotics.envs.gym_env import GymnasiumVecEnv
from telekinesis.rlbotics.models import MLPModel
from telekinesis.rlbotics.normalization import EmpiricalNormalization
from telekinesis.rlbotics.rollout import RolloutBuffer
from telekinesis.rlbotics.runner import OnPolicyRunner
from tensordict import TensorDict

GROUPS = {"actor": ["policy"], "critic": ["critic"]}


def say(number: int | str, what: str, figure: str) -> None:
    """One line of the report."""
    print(f"fault {number}: {what}: {figure}", flush=True)


def shown(tensor: torch.Tensor, digits: int = 6) -> list[float]:
    """A tensor as a list of rounded numbers."""
    return [round(value, digits) for value in tensor.detach().flatten().tolist()]


def ppo(
    inputs: int = 4,
    critic_inputs: int = 5,
    actions: int = 2,
    steps: int = 8,
    environments: int = 6,
    normalized: bool = False,
    distribution: dict | None = None,
    **settings: object,
) -> PPO:
    """A small PPO with weights from seed 0."""
    torch.manual_seed(0)
    cfg = GaussianDistributionConfig(**(distribution or {}))
    actor_cfg = MLPConfig(hidden_dims=(16,), obs_normalization=normalized, distribution_cfg=cfg)
    actor = MLPModel(actor_cfg, inputs, actions)
    critic = MLPModel(MLPConfig(hidden_dims=(16,), obs_normalization=normalized), critic_inputs, 1)
    storage = RolloutBuffer("rl", environments, steps, (inputs,), (actions,), critic_obs_shape=(critic_inputs,))
    return PPO(PPOConfig(**settings), actor, critic, storage, GROUPS)


def groups(policy: torch.Tensor, critic: torch.Tensor) -> TensorDict:
    """One step's observations."""
    return TensorDict({"policy": policy, "critic": critic}, batch_size=(len(policy),))


def collect(algorithm: PPO, reward: Callable = lambda actions: torch.randn(len(actions)), growth: float = 1.0) -> None:
    """A rollout on random observations, whose scale grows by a factor per step."""
    rows, widths = algorithm.storage.num_envs, (algorithm.actor.input_dim, algorithm.critic.input_dim)
    steps = algorithm.storage.num_transitions_per_env
    observations = [groups(*(growth**t * torch.randn(rows, width) for width in widths)) for t in range(steps + 1)]
    with torch.no_grad():
        for t in range(steps):
            actions = algorithm.act(observations[t])
            algorithm.process_env_step(observations[t + 1], reward(actions), torch.zeros(rows), {})
        algorithm.compute_returns(observations[-1])


def weights(algorithm: PPO) -> torch.Tensor:
    """All parameters as one vector."""
    parameters = [*algorithm.actor.parameters(), *algorithm.critic.parameters()]
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


def updated(algorithm: PPO) -> str:
    """Run an update and say what it reports and whether it did anything."""
    before = weights(algorithm)
    losses = algorithm.update()
    return f"reported losses {losses}, weights changed: {not torch.equal(before, weights(algorithm))}"


def oracle_advantages(done: float, time_out: bool, digits: int = 6) -> list[float]:
    """Advantages of r = 1, 1, 1 and V = .5, .6, .7, then .4, with gamma .9, lambda .8 and an end at t = 1."""
    settings = {"gamma": 0.9, "lam": 0.8, "normalize_advantage_per_mini_batch": True}
    algorithm = ppo(inputs=1, critic_inputs=2, actions=1, steps=3, environments=1, **settings)
    algorithm.critic.mlp = torch.nn.Linear(2, 1)
    algorithm.critic.mlp.weight.data, algorithm.critic.mlp.bias.data = torch.tensor([[1.0, 0.0]]), torch.zeros(1)
    steps = [groups(torch.zeros(1, 1), torch.tensor([[value, 0.0]])) for value in (0.5, 0.6, 0.7, 0.4)]
    for t in range(3):
        algorithm.act(steps[t])
        extras = {"time_outs": torch.tensor([time_out and t == 1])}
        algorithm.process_env_step(steps[t + 1], torch.ones(1), torch.tensor([done * (t == 1)]), extras)
    algorithm.compute_returns(steps[3])
    return shown(algorithm.storage.advantages, digits)


def returns() -> None:
    """Faults 1, 2 and 7: time-outs, dead states, NaN advantages."""
    say(1, "a time-out bootstraps V(s_t)", f"{oracle_advantages(1.0, True)}, right: [2.624, 2.2, 0.66] at V(final) 2")

    env = GymnasiumVecEnv.__new__(GymnasiumVecEnv)
    env.num_envs, env.device, env.action_low = 1, torch.device("cpu"), None
    both = np.array([True])
    env.venv = SimpleNamespace(step=lambda actions: (np.zeros((1, 2)), np.ones(1), both, both, {}))
    _, _, dones, extras = env.step(torch.zeros(1, 1))
    time_outs = extras["time_outs"]
    advantages = oracle_advantages(float(dones[0]), bool(time_outs[0]))
    figure = f"its Gymnasium adapter gives time_outs {time_outs.tolist()}, advantages {advantages}"
    say(2, "terminated and truncated at once is bootstrapped", f"{figure}, right: [1.328, 0.4, 0.66]")

    algorithm = ppo(normalize_advantage_per_mini_batch=True, num_mini_batches=48)
    collect(algorithm)
    say(7, "48 mini-batches of one sample, normalised each", f"{updated(algorithm)}, right: refused or trained")

    algorithm = ppo()
    collect(algorithm, reward=lambda actions: torch.tensor([math.nan] + [1.0] * 5))
    figure = f"{int(algorithm.storage.advantages.isnan().sum())} of 48 advantages are NaN, {updated(algorithm)}"
    say(7, "NaN rewards in one environment of 6", f"{figure}, right: at most 8 NaN, the others train")

    torch.set_default_dtype(torch.float64)
    figure = f"float64 advantages {oracle_advantages(0.0, False, digits=10)}, right: [2.123744, 1.5052, 0.66]"
    torch.set_default_dtype(torch.float32)
    say("not listed", "gamma and lambda are rounded to float32 by the done mask", figure)


def batches() -> None:
    """Faults 3 and 4: the shared buffer, the permutation and its remainder."""
    means = {}
    for width in (4, 5):
        algorithm = ppo(inputs=4, critic_inputs=width)
        step = groups(torch.zeros(6, 4), torch.ones(6, width))
        for _ in range(8):
            algorithm.act(step)
            algorithm.process_env_step(step, torch.ones(6), torch.zeros(6), {})
        means[width] = next(algorithm.storage.mini_batch_generator(1, 1)).critic_observations.mean().item()
    figure = f"actor sees 0, critic 1; the critic trains on {means[4]} (width 4 and 4), {means[5]} (width 4 and 5)"
    say(3, "groups of equal width share one buffer", f"{figure}, right: 1")

    algorithm, drawn, randperm = ppo(steps=5, environments=2), [], torch.randperm
    torch.randperm = lambda *args, **kwargs: drawn.append(randperm(*args, **kwargs)) or drawn[-1]
    collect(algorithm)
    algorithm.storage.observations[:] = torch.arange(10.0).reshape(5, 2, 1)
    rows = [batch.observations[:, 0].int().tolist() for batch in algorithm.storage.mini_batch_generator(4, 5)]
    epochs = [[row for batch in rows[4 * i : 4 * i + 4] for row in batch] for i in range(5)]
    figure = f"{len(drawn)} permutation for 5 epochs, epochs identical: {all(epoch == epochs[0] for epoch in epochs)}"
    say(4, "one permutation per update", f"{figure}, right: 5, False")
    used = set()
    for _ in range(100):
        for batch in algorithm.storage.mini_batch_generator(4, 5):
            used |= set(batch.observations[:, 0].int().tolist())
    torch.randperm = randperm
    figure = f"of 10 transitions in 4 mini-batches, numbers {sorted(set(range(10)) - used)} are in no mini-batch"
    say(4, "the remainder is dropped, always the same", f"{figure} of 100 updates, right: every one once per epoch")

    algorithm = ppo(steps=1, environments=3)
    collect(algorithm)
    say(4, "4 mini-batches of 3 transitions", f"{updated(algorithm)}, right: a configuration error")


def moving_statistics() -> None:
    """Faults 5 and 8: policy ratios before the first gradient, and what the rate rule makes of them."""
    for iterations, growth in ((1, 1.0), (3, 1.0), (3, 1.05)):
        algorithm = ppo(steps=24, environments=64, normalized=True, schedule="adaptive", learning_rate=1e-3)
        for i in range(iterations):
            collect(algorithm, growth=growth)
            if i < iterations - 1:
                algorithm.update()
        batch = next(algorithm.storage.mini_batch_generator(1, 1))
        with torch.no_grad():
            algorithm.actor(batch.observations)
            log_prob = algorithm.actor.get_output_log_prob(batch.actions)
            ratio = torch.exp(log_prob - batch.old_actions_log_prob.squeeze())
            new = algorithm.actor.output_distribution_params
            kl = algorithm.actor.distribution.kl_divergence(batch.old_distribution_params, new).mean()
        figure = f"ratios {ratio.min():.4f} to {ratio.max():.4f}, KL {kl:.2e}, right: 1, 0"
        say(5, f"before any gradient, iteration {iterations}, scale x {growth} per step", figure)

    algorithm = ppo(steps=24, environments=64, normalized=True, num_learning_epochs=1, num_mini_batches=1)
    collect(algorithm)
    algorithm.update()
    figure = f"rate 0.001 becomes {algorithm.learning_rate:.6f}, KL {algorithm.diagnostics['kl']:.2e}, right: 0.001"
    say(8, "the rate moves in the first mini-batch, where nothing was learned", figure)


class Pendulum(VecEnv):
    """The classic swing-up: torque within 2, 200 steps of 0.05 s, time limit only."""

    num_actions, device, max_episode_length, cfg = 1, "cpu", 200, {}

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.reset()

    def reset(self) -> TensorDict:
        self.angle = math.pi * (2 * torch.rand(self.num_envs) - 1)
        self.speed, self.time = 2 * torch.rand(self.num_envs) - 1, 0
        return self.get_observations()

    def get_observations(self) -> TensorDict:
        state = torch.stack([self.angle.cos(), self.angle.sin(), self.speed], -1)
        return groups(state, state.clone())

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        torque = 2 * actions[:, 0].clamp(-1, 1)
        angle = (self.angle + math.pi) % (2 * math.pi) - math.pi
        reward = -(angle**2 + 0.1 * self.speed**2 + 0.001 * torque**2)
        self.speed = (self.speed + (15 * self.angle.sin() + 3 * torque) * 0.05).clamp(-8, 8)
        self.angle, self.time = self.angle + 0.05 * self.speed, self.time + 1
        ended = torch.full((self.num_envs,), self.time == self.max_episode_length)
        if ended.all():
            self.reset()
        return self.get_observations(), reward, ended.float(), {"time_outs": ended}


def value_clip() -> None:
    """Fault 6: the bound on a value's change is absolute, whatever the scale of the returns."""
    found = {}
    for clipped in (True, False):
        cfg = OnPolicyRunnerConfig(
            obs_groups=GROUPS,
            seed=1,
            num_steps_per_env=200,
            verbose=False,
            logger={"enabled": False, "log_dir": None},
            algorithm=PPOConfig(use_clipped_value_loss=clipped),
            actor=MLPConfig(hidden_dims=(64, 64), distribution_cfg=GaussianDistributionConfig()),
            critic=MLPConfig(hidden_dims=(64, 64)),
        )
        torch.manual_seed(1)
        runner = OnPolicyRunner(Pendulum(32), cfg)
        runner.learn(5)
        found[clipped] = runner.alg.critic(runner.alg.storage.critic_observations).mean().item()
        target = runner.alg.storage.returns.mean().item()
    figure = (
        f"mean V {found[True]:.1f} with the clip, {found[False]:.1f} without (where the mean target is {target:.1f})"
    )
    say(6, "Pendulum after 5 iterations of 32 x 200 steps", figure)

    slopes = {}
    for clipped in (True, False):
        settings = {"num_learning_epochs": 1, "num_mini_batches": 1, "max_grad_norm": 1e9}
        algorithm = ppo(use_clipped_value_loss=clipped, **settings)
        collect(algorithm)
        algorithm.critic.mlp[-1].weight.data.zero_()
        algorithm.critic.mlp[-1].bias.data.fill_(100.5)
        algorithm.storage.values.fill_(100.0)
        algorithm.storage.returns.fill_(200.0)
        algorithm.update()
        slopes[clipped] = algorithm.critic.mlp[-1].bias.grad.item()
    figure = f"dL/dV {slopes[True]} with the clip, {slopes[False]} without"
    say(6, "V_old 100, V 100.5, R 200, bound 0.2", figure)


def gradients() -> None:
    """Fault 11: a finite loss whose gradient is NaN."""
    algorithm = ppo(num_learning_epochs=1, num_mini_batches=1)
    collect(algorithm)
    algorithm.storage.actions_log_prob.fill_(-200.0)
    algorithm.storage.advantages.fill_(1.0)
    losses = algorithm.update()
    vector = weights(algorithm)
    figure = f"surrogate loss {losses['surrogate']:.3f}, then {int(vector.isnan().sum())} of {len(vector)} weights NaN"
    say(11, "ratio overflow with a positive advantage passes the loss guard", f"{figure}, right: 0, update rejected")


def distributions() -> None:
    """Faults 12 to 15: the stuck std, std_type, squashed entropy and log-probability."""
    for upper in (1.0, 10.0):
        algorithm = ppo(distribution={"std_range": (0.05, upper)}, schedule="fixed", learning_rate=1e-2)
        parameter, pushed = algorithm.actor.distribution.log_std_param, None
        for i in range(52):
            algorithm.cfg.entropy_coef = 1.0 if i < 2 else 0.0
            collect(algorithm, reward=lambda actions: -actions.square().sum(-1))
            algorithm.update()
            pushed = shown(parameter, 3) if i == 1 else pushed
        figure = (
            f"log_std {pushed} after 2 updates under a strong entropy bonus, {shown(parameter, 3)} after 50 without"
        )
        say(12, f"small actions rewarded, log_std at most {math.log(upper):.3f}", figure)

    kept = {}
    for std_type in ("scalar", "log"):
        algorithm = ppo(distribution={"std_type": std_type, "init_std": 0.5})
        collect(algorithm)
        algorithm.update()
        kept[std_type] = algorithm.actor.distribution.state_dict()
    equal = torch.equal(kept["scalar"]["log_std_param"], kept["log"]["log_std_param"])
    figure = f"scalar holds {list(kept['scalar'])}; equal to log after an update: {equal}, right: False"
    say(13, "std_type is accepted and ignored", figure)

    for mean, std, right in ((0.5, 1.0, 0.5202), (0.5, 8.0, -7.988), (0.0, 1.0, 0.6698), (0.0, 2.0, -0.0012)):
        squashed = SquashedGaussianDistribution(1, init_std=std)
        squashed.update(torch.tensor([[mean]]))
        say(14, f"squashed entropy, mean {mean}, std {std}", f"{squashed.entropy.item():.4f}, right: {right}")

    squashed = SquashedGaussianDistribution(1)
    squashed.update(torch.zeros(1, 1))
    for latent, right in ((7.0, -12.805), (8.0, -18.305), (10.0, -32.305)):
        found = squashed.log_prob(torch.tanh(torch.tensor([[latent]]))).item()
        say(15, f"squashed log-probability of z = {latent}", f"{found:.3f}, right: {right}")


def normalisation() -> None:
    """Faults 16, 17 and 19: no bound on the output, poisoned statistics, silent broadcasting."""
    normalizer = EmpiricalNormalization(1)
    for _ in range(100):
        normalizer.update(torch.ones(64, 1))
    figure = f"1.0 for 6400 rows, then 1.5: {normalizer(torch.tensor([[1.5]])).item():.2f}, right: bounded by obs_clip"
    say(16, "a constant feature that changes", figure)
    normalizer = EmpiricalNormalization(2)
    normalizer.update(torch.tensor([[3.0, -4.0]]))
    outputs = normalizer(torch.tensor([[3.5, -4.5]]))
    figure = (
        f"std {shown(normalizer.std)}, the next observation 0.5 away becomes {shown(outputs, 2)}, right: no zero std"
    )
    say(16, "first update with one environment", figure)

    for bad in (math.nan, math.inf):
        torch.manual_seed(0)
        normalizer, rows = EmpiricalNormalization(2), torch.randn(64, 2)
        rows[3, 0] = bad
        normalizer.update(rows)
        for _ in range(100):
            normalizer.update(torch.randn(64, 2))
        figure = f"mean {shown(normalizer.mean, 3)}, std {shown(normalizer.std, 3)}, right: about 0 and 1"
        say(17, f"one {bad} among 64 rows, then 100 clean batches", figure)

    normalizer = EmpiricalNormalization(3)
    normalizer.update(torch.tensor([[1.0], [3.0]]))
    say(19, "rows of width 1 into statistics of width 3", f"mean {shown(normalizer.mean)}, right: an error")


def main() -> None:
    """Print every line."""
    logger.remove()
    torch.set_num_threads(1)
    for section in (returns, batches, moving_statistics, value_clip, gradients, distributions, normalisation):
        section()


if __name__ == "__main__":
    main()
